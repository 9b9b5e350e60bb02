"""A worker that does what its folder's `mode.txt` says, for tests of sandboxes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from cuda_agent.records.channel import Channel


def main(folder: Path, channel: socket.socket) -> None:
    """Do it."""
    mode = (folder / "mode.txt").read_text()
    if mode == "echo":
        link = Channel(channel)
        link.send({"got": link.receive(dict[str, int])})
    elif mode == "result":
        (folder / "result.json").write_text('{"answer": 42}')
    elif mode == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif mode == "raise":
        raise ValueError("a reason to fail")
    elif mode == "exit 3":
        sys.exit(3)
    elif mode == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    elif mode == "children":
        # One plain child, one daemon that has left the session and the process tree.
        plain = subprocess.Popen(["sleep", "1000"])
        script = "import os,time\nif os.fork()==0:\n os.setsid()\n"
        script += " if os.fork()==0:\n  print(os.getpid(),flush=True)\n  time.sleep(1000)\n os._exit(0)"
        leaver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert leaver.stdout is not None
        daemon = leaver.stdout.readline().decode().strip()
        leaver.wait()
        (folder / "pids.txt").write_text(f"{plain.pid} {daemon}")
    elif mode == "fork bomb":
        while True:
            os.fork()
    elif mode == "memory":
        held = []
        while True:
            held.append(bytearray(b"\1" * (64 << 20)))
    elif mode == "shout":
        for _ in range(200):
            os.write(1, b"x" * 65536)
        os.write(2, b"y" * 5_000_000 + b"the end\n")
    elif mode == "look":
        names = sorted(os.environ)
        (folder / "seen.txt").write_text(
            f"{','.join(names)}\n{os.getcwd()}\n{','.join(sorted(os.listdir('/proc/self/fd')))}"
        )
    else:
        raise AssertionError(mode)
