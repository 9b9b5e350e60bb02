"""An append-only JSON-lines file that survives a torn last line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from cuda_agent.errors import UserError
from cuda_agent.records import codec

T = TypeVar("T")


class Journal(Generic[T]):
    """Records of one type, one JSON object a line, each on disk before `append` returns.

    A process that dies while writing leaves a last line without its newline; that line is dropped at the
    next append and never read. A broken line anywhere else is damage, and reading it is an error.
    """

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._kind = kind

    def append(self, record: T) -> None:
        """Add one record; raises `OSError` when the disk is full, leaving earlier records readable."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "ab+") as file:
            self._drop_torn_line(file.fileno())
            file.write(codec.encode(record) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[T]:
        """Return all whole records in order; raises `UserError` naming the line that is not one."""
        if not self._path.exists():
            return []
        whole, _, _torn = self._path.read_bytes().rpartition(b"\n")
        records = []
        for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
            try:
                records.append(codec.decode(line, self._kind))
            except msgspec.MsgspecError as error:
                raise UserError(
                    f"{self._path}: line {number} is not a {self._kind.__name__}: {error}. "
                    "The file was changed after it was written; start a new run or restore it."
                ) from error
        return records

    @staticmethod
    def _drop_torn_line(descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        end = size
        while end > 0:
            start = max(0, end - 65536)
            block = os.pread(descriptor, end - start, start)
            newline = block.rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end != size:
            os.ftruncate(descriptor, end)
