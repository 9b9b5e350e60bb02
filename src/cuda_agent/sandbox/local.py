"""Jobs as processes of this machine, forked from a warm zygote that outlives single commands.

Stops: a crash, hang, memory or process explosion of one job reaching the caller or another job; anything of a
job living on after it, after Ctrl-C, or after the caller is killed; the caller's environment (keys, seeds) and
descriptors reaching a job.
Does not stop: what `cuda_agent.worker.zygote` lists; jobs start as the same user with network and file access, and those
that load candidates give that up themselves (`cuda_agent.worker.confinement`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import cuda_agent
from cuda_agent.errors import MachineError
from cuda_agent.records import codec
from cuda_agent.records.jobs import Died, Expired, Finished, JobEnd, JobOrder, Outcome, WorkerJob
from cuda_agent.store.cache_folder import cache_folder

PASSED_ON = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TZ",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    "CUDA_AGENT_CACHE",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
)
"""The only variables of the caller that a job gets."""
START_LIMIT_S = 120.0
"""Longest wait for a worker to be reported dead after it was killed, a cold `import torch` included."""
_LONGEST_SOCKET_PATH = 100
"""`sockaddr_un` holds 108 bytes."""


class LocalSandbox:
    """See `Sandbox`; jobs are forked from a zygote shared by all commands of this user and installation."""

    def __init__(self, *, keep_warm: bool = True, environment: Mapping[str, str] | None = None) -> None:
        """Start nothing yet.

        Args:
            keep_warm: use the shared zygote and leave it running (it ends after 15 idle minutes); otherwise
                one of our own, which ends with `close` or with this process.
            environment: where the variables in `PASSED_ON` are taken from; default this process's.
        """
        source = os.environ if environment is None else environment
        self._environment = {name: source[name] for name in PASSED_ON if name in source}
        self._keep_warm = keep_warm
        self._lock = threading.Lock()
        self._private: tempfile.TemporaryDirectory[str] | None = None
        self._lease: int | None = None
        self._folder: Path | None = None
        self._key = ""

    def warm(self) -> None:
        """Start the zygote if there is none and return at once, so that it loads while the caller works.

        Raises:
            MachineError: it can't be started.
        """
        self._connect().close()

    def run(self, job: WorkerJob, *, deadline_s: float) -> Outcome:
        """See `Sandbox.run`; a job lost to a killed zygote is run once more."""
        try:
            return self.start(job).wait(deadline_s)
        except ZygoteLost:
            return self.start(job).wait(deadline_s)

    def start(self, job: WorkerJob) -> LocalJob:
        """See `Sandbox.start`."""
        ours, theirs = socket.socketpair()
        with theirs:
            order = codec.encode(JobOrder(job=job, environment=self._environment))
            for last in (False, True):
                connection = self._connect()
                try:
                    socket.send_fds(connection, [order], [theirs.fileno()])
                    return LocalJob(connection, ours, self._loss)
                except OSError as error:
                    connection.close()
                    if last:
                        ours.close()
                        raise ZygoteLost(self._loss(str(error))) from error
        raise AssertionError("unreachable")

    def close(self) -> None:
        """See `Sandbox.close`."""
        with self._lock:
            if self._lease is not None:
                os.close(self._lease)
                self._lease = None
            if self._private is not None:
                self._private.cleanup()
                self._private = None
            self._folder = None

    def _connect(self) -> socket.socket:
        with self._lock:
            if self._folder is None:
                self._folder, self._key = self._place()
            path = self._folder / f"{self._key}.socket"
            with (self._folder / f"{self._key}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                try:
                    connection.connect(os.fspath(path))
                    return connection
                except (FileNotFoundError, ConnectionRefusedError):
                    pass  # none yet, or the socket of a dead one
                try:
                    self._launch(path, connection)
                except OSError as error:
                    connection.close()
                    raise MachineError(
                        f"the process that workers are forked from could not be started: {error}. "
                        f"Look at {path.with_suffix('.log')}"
                    ) from error
                return connection

    def _place(self) -> tuple[Path, str]:
        if not self._keep_warm:
            self._private = tempfile.TemporaryDirectory(prefix="cuda-agent-zygote-")
            return Path(self._private.name), "private"
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        folder = Path(runtime) / "cuda-agent" if runtime and Path(runtime).is_dir() else cache_folder() / "zygote"
        key = zygote_key(self._environment)
        if len(os.fspath(folder / f"{key}.socket")) > _LONGEST_SOCKET_PATH:
            folder = Path(tempfile.gettempdir()) / f"cuda-agent-{os.getuid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise MachineError(f"{folder} should be a folder of ours and is not; remove it or set XDG_RUNTIME_DIR")
        if stat.S_IMODE(found.st_mode) != 0o700:
            folder.chmod(0o700)
        return folder, key

    def _launch(self, path: Path, connection: socket.socket) -> None:
        """Start a zygote on a fresh socket at `path`, with `connection` as the first to wait for it."""
        path.unlink(missing_ok=True)
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(os.fspath(path))
            listener.listen(128)
            connection.connect(os.fspath(path))
            command = [
                sys.executable,
                "-P",
                "-m",
                "cuda_agent.worker.zygote",
                "--listen",
                str(listener.fileno()),
            ]
            passed = [listener.fileno()]
            if not self._keep_warm:
                lease, kept = os.pipe()
                stack.callback(os.close, lease)
                if self._lease is not None:
                    os.close(self._lease)
                self._lease = kept
                command += ["--lease", str(lease)]
                passed.append(lease)
            log = stack.enter_context(path.with_suffix(".log").open("wb"))
            process = subprocess.run(
                command,
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._environment | ZYGOTE_ENVIRONMENT,
                timeout=START_LIMIT_S,
            )
            if process.returncode != 0:
                text = path.with_suffix(".log").read_text(errors="replace")[-2000:]
                raise MachineError(f"the process that workers are forked from failed to start:\n{text}")

    def _loss(self, reason: str) -> str:
        log = self._folder / f"{self._key}.log" if self._folder is not None else None
        try:
            text = log.read_text(errors="replace").strip()[-1000:] if log is not None else ""
        except OSError:
            text = ""
        return f"the process that workers are forked from was lost ({reason}). {text}".rstrip()


ZYGOTE_ENVIRONMENT = {
    # OpenBLAS starts its threads when numpy is imported, which must not happen before a fork.
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Blocks from the per-thread cache are not poisoned by M_PERTURB (glibc 2.36), so that cache is off.
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}


class ZygoteLost(MachineError):
    """The zygote went away while a job ran; nothing is known about the job."""


class LocalJob:
    """See `RunningJob`."""

    def __init__(self, connection: socket.socket, channel: socket.socket, loss: Callable[[str], str]) -> None:
        self.channel = channel
        self._connection = connection
        self._loss = loss

    def wait(self, deadline_s: float) -> Outcome:
        """See `RunningJob.wait`."""
        end = self._end(deadline_s)
        if end is None:
            self._ask_to_kill()
            end = self._end(START_LIMIT_S)
            self._close()
            peak = end.peak_bytes if end is not None else 0
            return Expired(limit_s=deadline_s, peak_bytes=peak)
        self._close()
        if end.limit == "killed":
            raise ZygoteLost(self._loss("killed while a job ran"))
        return _outcome(end)

    def kill(self) -> Outcome:
        """See `RunningJob.kill`."""
        started = time.monotonic()
        self._ask_to_kill()
        try:
            end = self._end(START_LIMIT_S)
        except ZygoteLost:
            end = None
        self._close()
        if end is None or end.limit == "killed":
            peak = end.peak_bytes if end is not None else 0
            return Expired(limit_s=time.monotonic() - started, peak_bytes=peak)
        return _outcome(end)

    def _ask_to_kill(self) -> None:
        with contextlib.suppress(OSError):  # it has ended already
            self._connection.send(b"kill")

    def _end(self, deadline_s: float) -> JobEnd | None:
        """Return how the job ended, None when it has not within `deadline_s`."""
        if not select.select([self._connection], [], [], max(0.0, deadline_s))[0]:
            return None
        try:
            message = self._connection.recv(1 << 20)
        except OSError as error:
            self._close()
            raise ZygoteLost(self._loss(str(error))) from error
        if not message:
            self._close()
            raise ZygoteLost(self._loss("the job's supervisor ended without a word"))
        return codec.decode(message, JobEnd)

    def _close(self) -> None:
        self._connection.close()
        self.channel.close()


def _outcome(end: JobEnd) -> Outcome:
    status = end.status if end.status is not None else 1
    if end.limit is None and status == 0:
        return Finished(seconds=end.seconds, peak_bytes=end.peak_bytes)
    by_signal = end.limit is None and os.WIFSIGNALED(status)
    return Died(
        seconds=end.seconds,
        peak_bytes=end.peak_bytes,
        signal=_signal_name(os.WTERMSIG(status)) if by_signal else None,
        exit_code=os.WEXITSTATUS(status) if end.limit is None and os.WIFEXITED(status) else None,
        limit="memory" if end.limit == "memory" else "processes" if end.limit == "processes" else None,
        stderr_tail=end.stderr_tail,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def zygote_key(environment: Mapping[str, str]) -> str:
    """Return what two commands must share to share a zygote: 16 hex digits.

    It covers the interpreter, torch, the loader's search path and the sources that a worker may have loaded.
    """
    digest = hashlib.sha256()
    for part in (
        sys.executable,
        sys.version,
        importlib.metadata.version("torch"),
        environment.get("LD_LIBRARY_PATH", ""),
    ):
        digest.update(part.encode() + b"\0")
    package = Path(cuda_agent.__file__).parent
    files = [package / "errors.py"]
    for folder in ("records", "worker", "emulator"):
        files += [path for path in (package / folder).rglob("*") if path.suffix in {".py", ".cpp", ".h"}]
    for path in sorted(files):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
