"""The process that every job is forked from: torch imported once, no CUDA context, one thread.

`python -m cuda_agent.worker.zygote --listen FD [--lease FD]` takes over a listening Unix socket
(`SOCK_SEQPACKET`, in a folder only its owner can enter). Each connection is one job: the client sends a
`JobOrder` with the worker's end of the channel, keeps the connection open, and gets a `JobEnd` when every process
of the job is gone. A client that closes the connection, or sends anything more, has its job killed.

Three processes deep: the zygote forks a supervisor per job, which adopts every orphan below it
(`PR_SET_CHILD_SUBREAPER`), watches memory and process count, and forks the worker itself.

Stops: a job that outlives its client, its deadline or the zygote; daemons that leave the session; memory above
the limit (looked at 20 times a second); endless output; inherited descriptors; the caller's environment.
Does not stop: reading files that the user can read, the network, writing into the user's other folders,
killing the user's other processes. Jobs that load candidates give these rights up (`confinement`).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NoReturn

from cuda_agent.records import codec
from cuda_agent.records.jobs import JobEnd, JobOrder, Limits, WorkerJob

IDLE_S = 15 * 60.0
"""Without a job for this long the zygote leaves."""
WATCH_S = 0.05
"""Between two looks at a job's memory; a fast allocator touches about 3 GB/s, so 0.15 GB go unseen."""
TAIL_BYTES = 4000
PRELOADED = (
    "torch",
    "torch.nn.functional",
    "torch.utils._pytree",
    "numpy",
    "cuda_agent.records.verification",
)
"""Imported before the first fork; none starts a thread or touches a GPU."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CHANNEL = 3
"""Descriptor of the channel in a worker."""


def main(arguments: list[str]) -> None:
    """Detach, import torch and serve jobs until idle, or until the lease's other end is closed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", type=int, required=True)
    parser.add_argument("--lease", type=int)
    options = parser.parse_args(arguments)
    if os.fork():
        os._exit(0)  # whoever started us waits for this process only
    os.setsid()
    listener = socket.socket(fileno=options.listen)
    for module in PRELOADED:
        importlib.import_module(module)
    if len(os.listdir("/proc/self/task")) != 1:
        print("zygote: an import started a thread; forked workers may hang", file=sys.stderr)
    # Objects that exist now are never collected, so that a child's collector does not copy their pages.
    gc.collect()
    gc.freeze()
    _Zygote(listener, options.lease).serve()


class _Zygote:
    def __init__(self, listener: socket.socket, lease: int | None) -> None:
        self._listener = listener
        self._lease = lease
        self._supervisors: set[int] = set()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def serve(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        watched: list[int] = [self._listener.fileno(), self._wake_read]
        if self._lease is not None:
            watched.append(self._lease)
        while True:
            ready, _, _ = select.select(watched, [], [], None if self._supervisors else IDLE_S)
            if not ready and not self._supervisors:
                return
            if self._lease in ready:
                return
            if self._wake_read in ready:
                os.read(self._wake_read, 1 << 12)
                self._reap()
            if self._listener.fileno() in ready:
                self._accept()

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._supervisors.discard(pid)
        # A supervisor that was itself killed leaves its job's orphans to us.
        for stray in _children(os.getpid()) - self._supervisors:
            _kill(stray, signal.SIGKILL)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(5.0)
            try:
                if _peer_uid(connection) != os.getuid():
                    return
                message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 1)
                order = codec.decode(message, JobOrder)
            except Exception:  # a client that died or sends nonsense must not end the service
                traceback.print_exc()
                return
            if len(descriptors) != 1:
                return
            zygote = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._become_supervisor(connection, descriptors[0], order, zygote)
            os.close(descriptors[0])
            self._supervisors.add(pid)

    def _become_supervisor(self, connection: socket.socket, channel: int, order: JobOrder, zygote: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._listener.close()
            for descriptor in (self._wake_read, self._wake_write, self._lease):
                if descriptor is not None:
                    os.close(descriptor)
            supervisor = _Supervisor(connection, order)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() == zygote:
                supervisor.run(channel)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)


class _Supervisor:
    """Runs one job and ends with no process of it left."""

    def __init__(self, connection: socket.socket, order: JobOrder) -> None:
        self._connection = connection
        self._order = order
        self._limits = order.job.limits
        self._folder = Path(order.job.folder)
        self._orphaned = False
        self._peak = 0
        signal.signal(signal.SIGTERM, self._on_orphaned)

    def run(self, channel: int) -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        started = time.monotonic()
        (self._folder / "tmp").mkdir(mode=0o700, exist_ok=True)
        texts = [_Text(self._folder / name, self._limits.text_bytes) for name in ("stdout.txt", "stderr.txt")]
        supervisor = os.getpid()
        worker = os.fork()
        if worker == 0:
            _Worker(self._order).run(channel, texts, supervisor)
        os.close(channel)
        for text in texts:
            os.close(text.write_end)
        limit = self._watch(worker, texts)
        if limit is not None:
            self._end_all(spare=worker)
            _kill(worker, signal.SIGKILL)
        _, status, usage = os.wait4(worker, 0)
        self._end_all()
        for text in texts:
            text.drain()
        self._peak = max(self._peak, usage.ru_maxrss * 1024)
        end = JobEnd(
            status=status,
            limit=limit,  # type: ignore[arg-type]
            seconds=time.monotonic() - started,
            peak_bytes=self._peak,
            stderr_tail=texts[1].tail.decode(errors="replace"),
        )
        with contextlib.suppress(OSError):  # the client is gone: nobody to tell
            self._connection.send(codec.encode(end))

    def _on_orphaned(self, *_: object) -> None:
        self._orphaned = True

    def _watch(self, worker: int, texts: list[_Text]) -> str | None:
        """Return None when the worker has ended, else the limit that ends it."""
        poll = select.poll()
        exited = os.pidfd_open(worker)
        by_descriptor = {text.read_end: text for text in texts}
        for descriptor in (exited, self._connection.fileno(), *by_descriptor):
            poll.register(descriptor, select.POLLIN)
        next_look = 0.0
        try:
            while True:
                for descriptor, _ in poll.poll(WATCH_S * 1000):
                    if descriptor == exited:
                        return None
                    if descriptor == self._connection.fileno():
                        return "killed"
                    if not by_descriptor[descriptor].take():
                        poll.unregister(descriptor)
                if self._orphaned:
                    return "killed"
                if time.monotonic() >= next_look:
                    if passed := self._passed_limit():
                        return passed
                    next_look = time.monotonic() + WATCH_S
        finally:
            os.close(exited)

    def _passed_limit(self) -> str | None:
        family = _descendants(os.getpid())
        if len(family) > self._limits.processes:
            return "processes"
        resident = sum(_resident_bytes(pid) for pid in family)
        self._peak = max(self._peak, resident)
        return "memory" if resident > self._limits.memory_bytes else None

    def _end_all(self, *, spare: int | None = None) -> None:
        """Kill every descendant but `spare`; stopping them all first outruns a fork bomb."""
        stopped: set[int] = set()
        while True:
            fresh = _descendants(os.getpid()) - stopped
            if not fresh:
                break
            for pid in fresh:
                _kill(pid, signal.SIGSTOP)
            stopped |= fresh
        stopped.discard(spare or 0)
        for pid in stopped:
            _kill(pid, signal.SIGKILL)
        if spare is not None:
            return
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                if not _children(os.getpid()):
                    return
            for pid in _descendants(os.getpid()):
                _kill(pid, signal.SIGKILL)


class _Text:
    """A stream of the worker's text, kept up to a number of bytes; what comes after is dropped."""

    def __init__(self, path: Path, kept: int) -> None:
        self._file = path.open("wb", buffering=0)
        self._left = kept
        self.tail = b""
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)

    def take(self) -> bool:
        """Move what is there; False at the end of the stream."""
        try:
            data = os.read(self.read_end, 1 << 16)
        except BlockingIOError:
            return True
        if self._left > 0:
            with contextlib.suppress(OSError):  # a full disk costs the text, not the job
                self._file.write(data[: self._left])
            self._left -= len(data)
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        return bool(data)

    def drain(self) -> None:
        """Move the rest; every writer is dead."""
        while self.take():
            pass


class _Worker:
    """Turns this process into the worker."""

    def __init__(self, order: JobOrder) -> None:
        self._job: WorkerJob = order.job
        self._environment = order.environment

    def run(self, channel: int, texts: list[_Text], supervisor: int) -> NoReturn:
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:
                os._exit(1)
            self._descriptors(channel, texts)
            _limit(self._job.limits)
            self._surroundings()
            link = socket.socket(fileno=_CHANNEL)
            status = self._main(link)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            # No atexit handlers or destructors: they are the candidate's, or need a dead CUDA context.
            os._exit(status)

    def _descriptors(self, channel: int, texts: list[_Text]) -> None:
        null = os.open(os.devnull, os.O_RDONLY)
        # Copies above the low numbers first, so that no dup2 below overwrites one still needed.
        high = 100
        sources = [null, texts[0].write_end, texts[1].write_end, channel]
        copies = [fcntl.fcntl(source, fcntl.F_DUPFD, high) for source in sources]
        for target, copy in enumerate(copies):
            os.dup2(copy, target)
        os.closerange(_CHANNEL + 1, 1 << 20)
        sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        faulthandler.enable(2)

    def _surroundings(self) -> None:
        import numpy
        import torch

        temporary = f"{self._job.folder}/tmp"
        threads = self._job.limits.threads or len(os.sched_getaffinity(0))
        os.environ.clear()
        os.environ.update(self._environment)
        os.environ.update({"TMPDIR": temporary, "OMP_NUM_THREADS": str(threads)})
        os.environ.update(self._job.environment)
        tempfile.tempdir = None
        os.chdir(temporary)
        sys.argv = [self._job.worker]
        sys.path[:0] = filter(None, self._job.environment.get("PYTHONPATH", "").split(os.pathsep))
        # libgomp read OMP_NUM_THREADS when torch was imported, so torch has to be told.
        torch.set_num_threads(threads)
        # Forked twins share the state of every generator.
        random.seed()
        numpy.random.seed()
        torch.seed()

    def _main(self, link: socket.socket) -> int:
        name = self._job.worker
        module = importlib.import_module(name if "." in name else f"cuda_agent.worker.{name}")
        try:
            module.main(Path(self._job.folder), link)
        except SystemExit as leaving:
            if leaving.code is None:
                return 0
            return leaving.code & 0xFF if isinstance(leaving.code, int) else 1
        return 0


def _limit(limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_NOFILE, 4096)
    if limits.cpu_seconds is not None:
        _lower(resource.RLIMIT_CPU, limits.cpu_seconds)
    # Address space is not limited: a CUDA context reserves hundreds of GB of it. The supervisor watches what is
    # resident. RLIMIT_NPROC counts all of the user's threads, so the job's number stands on top of them.
    if os.getuid() != 0:
        _lower(resource.RLIMIT_NPROC, _threads_of_user(os.getuid()) + 32 * limits.processes)


def _lower(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def _threads_of_user(uid: int) -> int:
    count = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # gone meanwhile
                if entry.stat().st_uid == uid:
                    count += len(os.listdir(f"{entry.path}/task"))
    return count


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _peer_uid(connection: socket.socket) -> int:
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


def _descendants(pid: int) -> set[int]:
    seen: set[int] = set()
    stack = [pid]
    while stack:
        for child in _children(stack.pop()) - seen:
            seen.add(child)
            stack.append(child)
    return seen


def _children(pid: int) -> set[int]:
    """Children of all threads of `pid`, ended but unreaped ones left out."""
    found: set[int] = set()
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # gone meanwhile
        return found
    if Path("/proc/self/task", str(os.getpid()), "children").exists():
        for thread in threads:
            with contextlib.suppress(OSError):  # gone meanwhile
                found.update(map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split()))
    else:  # a kernel without CONFIG_PROC_CHILDREN
        names = [name for name in os.listdir("/proc") if name.isdigit()]
        found.update(int(name) for name in names if _state_and_parent(int(name))[1] == pid)
    return {child for child in found if not _is_zombie(child)}


def _is_zombie(pid: int) -> bool:
    try:
        # A process whose first thread has left also shows as a zombie while its other threads go on.
        return _state_and_parent(pid)[0] in "ZX" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except OSError:  # gone meanwhile
        return True


def _state_and_parent(pid: int) -> tuple[str, int]:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:  # gone meanwhile
        return "X", 0
    return state, int(parent)


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # gone meanwhile
        return 0


if __name__ == "__main__":
    main(sys.argv[1:])
