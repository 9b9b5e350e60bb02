"""Records over a socket, one line of JSON each: how a gate and a worker talk."""

from __future__ import annotations

import select
import socket
import time
from typing import Any, TypeVar

import msgspec

from cuda_agent.records import codec

T = TypeVar("T")

LONGEST_LINE = 16 << 20
"""A peer that sends more without a newline is cut off; bytes."""


class ChannelClosed(Exception):
    """The other side is gone, or what it sent is no record of the expected kind."""


class Channel:
    """One end of a conversation; each side sends records and receives records.

    The socket stays the caller's: close it when the conversation is over.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._pending = b""

    def send(self, record: Any) -> None:
        """Send one record; raises ChannelClosed when the other side is gone."""
        try:
            self._link.sendall(codec.encode(record) + b"\n")
        except OSError as error:
            raise ChannelClosed(f"the other side is gone ({error})") from error

    def receive(self, kind: type[T] | Any, *, timeout_s: float | None = None) -> T:
        """Return the next record.

        Raises:
            TimeoutError: nothing whole came within `timeout_s`.
            ChannelClosed: the other side is gone, or sent something that is not a `kind`.
        """
        line = self._line(None if timeout_s is None else time.monotonic() + timeout_s)
        try:
            record: T = msgspec.json.decode(line, type=kind)
        except msgspec.MsgspecError as error:
            raise ChannelClosed(f"the other side sent an unreadable line ({error})") from error
        return record

    def _line(self, deadline: float | None) -> bytes:
        while b"\n" not in self._pending:
            if len(self._pending) > LONGEST_LINE:
                raise ChannelClosed("the other side sent an endless line")
            if deadline is not None:
                left = max(0.0, deadline - time.monotonic())
                if not select.select([self._link], [], [], left)[0]:
                    raise TimeoutError("no answer in time")
            try:
                received = self._link.recv(1 << 16)
            except OSError as error:
                raise ChannelClosed(f"the other side is gone ({error})") from error
            if not received:
                raise ChannelClosed("the other side is gone")
            self._pending += received
        line, _, self._pending = self._pending.partition(b"\n")
        return line
