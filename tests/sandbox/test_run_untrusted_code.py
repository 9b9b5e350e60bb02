"""Run code that crashes, hangs, multiplies and shouts, and stay unharmed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.errors import MachineError
from cuda_agent.records.channel import Channel
from cuda_agent.records.jobs import Died, Expired, Finished, Limits, WorkerJob
from cuda_agent.sandbox.contract import Sandbox
from cuda_agent.sandbox.local import LocalSandbox, ZygoteLost, zygote_key
from cuda_agent.sandbox.scripted import ScriptedSandbox
from tests.sandbox import misbehaving

ROOT = Path(__file__).parents[2]
WORKER = "tests.sandbox.misbehaving"


@pytest.fixture(scope="module")
def local() -> Iterator[LocalSandbox]:
    sandbox = LocalSandbox(keep_warm=False)
    yield sandbox
    sandbox.close()


@pytest.fixture(params=["local", "scripted"])
def sandbox(request: pytest.FixtureRequest, local: LocalSandbox) -> Sandbox:
    return local if request.param == "local" else ScriptedSandbox({WORKER: misbehaving.main})


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of our own; pytest's folders may be too long for a socket's path, so it is not one of them."""
    with tempfile.TemporaryDirectory(prefix="ca-") as folder:
        monkeypatch.setenv("CUDA_AGENT_CACHE", folder)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        yield Path(folder)
        end_zygote(Path(folder) / "zygote")


def job(folder: Path, mode: str, limits: Limits | None = None) -> WorkerJob:
    folder.mkdir(exist_ok=True)
    (folder / "mode.txt").write_text(mode)
    return WorkerJob(
        worker=WORKER,
        folder=str(folder),
        limits=limits or Limits(),
        environment={"PYTHONPATH": str(ROOT)},
    )


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


class TestEverySandbox:
    def test_a_job_leaves_its_result_in_its_folder(self, sandbox: Sandbox, tmp_path: Path) -> None:
        assert isinstance(sandbox.run(job(tmp_path, "result"), deadline_s=60), Finished)
        assert (tmp_path / "result.json").read_text() == '{"answer": 42}'

    def test_a_started_job_converses_over_its_channel(self, sandbox: Sandbox, tmp_path: Path) -> None:
        running = sandbox.start(job(tmp_path, "echo"))
        link = Channel(running.channel)
        link.send({"a": 7})
        assert link.receive(dict[str, dict[str, int]], timeout_s=60) == {"got": {"a": 7}}
        assert isinstance(running.wait(60), Finished)

    def test_a_raising_worker_died_with_its_traceback(self, sandbox: Sandbox, tmp_path: Path) -> None:
        outcome = sandbox.run(job(tmp_path, "raise"), deadline_s=60)
        assert isinstance(outcome, Died)
        assert outcome.exit_code == 1
        assert "ValueError: a reason to fail" in outcome.stderr_tail

    def test_an_exit_status_is_reported(self, sandbox: Sandbox, tmp_path: Path) -> None:
        outcome = sandbox.run(job(tmp_path, "exit 3"), deadline_s=60)
        assert isinstance(outcome, Died)
        assert (outcome.exit_code, outcome.signal) == (3, None)


class TestLocalSandbox:
    def test_a_signal_is_named(self, local: LocalSandbox, tmp_path: Path) -> None:
        outcome = local.run(job(tmp_path, "crash"), deadline_s=60)
        assert isinstance(outcome, Died)
        assert (outcome.signal, outcome.exit_code) == ("SIGSEGV", None)
        assert "misbehaving.py" in outcome.stderr_tail

    def test_a_hanging_job_is_killed_at_its_deadline(self, local: LocalSandbox, tmp_path: Path) -> None:
        local.warm()
        started = time.monotonic()
        assert isinstance(local.run(job(tmp_path, "hang"), deadline_s=0.5), Expired)
        assert time.monotonic() - started < 5

    def test_children_and_daemons_do_not_outlive_the_job(self, local: LocalSandbox, tmp_path: Path) -> None:
        assert isinstance(local.run(job(tmp_path, "children"), deadline_s=60), Finished)
        pids = [int(text) for text in (tmp_path / "pids.txt").read_text().split()]
        assert len(pids) == 2
        assert [pid for pid in pids if alive(pid)] == []

    def test_a_fork_bomb_is_ended_for_its_number_of_processes(self, local: LocalSandbox, tmp_path: Path) -> None:
        outcome = local.run(job(tmp_path, "fork bomb", Limits(processes=20)), deadline_s=60)
        assert isinstance(outcome, Died)
        assert outcome.limit == "processes"
        assert isinstance(local.run(job(tmp_path, "result"), deadline_s=60), Finished)

    def test_memory_above_the_limit_ends_the_job(self, local: LocalSandbox, tmp_path: Path) -> None:
        outcome = local.run(job(tmp_path, "memory", Limits(memory_bytes=800 << 20)), deadline_s=60)
        assert isinstance(outcome, Died)
        assert outcome.limit == "memory"
        assert 700 << 20 < outcome.peak_bytes < 4 << 30

    def test_endless_output_is_cut_and_its_tail_kept(self, local: LocalSandbox, tmp_path: Path) -> None:
        outcome = local.run(job(tmp_path, "shout", Limits(text_bytes=100_000)), deadline_s=60)
        assert isinstance(outcome, Finished)
        assert (tmp_path / "stdout.txt").stat().st_size == 100_000
        assert (tmp_path / "stderr.txt").stat().st_size == 100_000

    def test_a_job_sees_neither_the_callers_environment_nor_its_descriptors(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SECRET_KEY", "1")
        sandbox = LocalSandbox(keep_warm=False)
        assert isinstance(sandbox.run(job(tmp_path, "look"), deadline_s=60), Finished)
        sandbox.close()
        names, folder, descriptors = (tmp_path / "seen.txt").read_text().split("\n")
        assert "SECRET_KEY" not in names.split(",")
        assert folder == str(tmp_path / "tmp")
        # 0-2, the channel, and the one that lists them.
        assert descriptors.split(",") == ["0", "1", "2", "3", "4"]

    def test_a_job_dies_with_the_command_that_asked_for_it(self, cache: Path, tmp_path: Path) -> None:
        (tmp_path / "mode.txt").write_text("hang")
        script = (
            "import sys\n"
            "from cuda_agent.sandbox.local import LocalSandbox\n"
            "from cuda_agent.records.jobs import WorkerJob\n"
            f"job = WorkerJob(worker={WORKER!r}, folder={str(tmp_path)!r},"
            f" environment={{'PYTHONPATH': {str(ROOT)!r}}})\n"
            "LocalSandbox().run(job, deadline_s=100)\n"
        )
        command = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.DEVNULL)
        workers: list[int] = []
        deadline = time.monotonic() + 60
        while not workers and time.monotonic() < deadline:
            time.sleep(0.05)
            workers = working_in(tmp_path / "tmp")
        assert len(workers) == 1
        command.send_signal(signal.SIGKILL)
        command.wait()
        assert gone(workers[0])

    def test_a_killed_zygote_is_replaced(self, tmp_path: Path) -> None:
        sandbox = LocalSandbox(keep_warm=False)
        assert isinstance(sandbox.run(job(tmp_path, "result"), deadline_s=60), Finished)
        running = sandbox.start(job(tmp_path / "hung", "hang"))
        (worker,) = await_working_in(tmp_path / "hung" / "tmp")
        zygote = parent(parent(worker))
        os.kill(zygote, signal.SIGKILL)
        with pytest.raises(ZygoteLost, match="worker"):
            running.wait(60)
        assert gone(worker)
        assert isinstance(sandbox.run(job(tmp_path, "result"), deadline_s=60), Finished)
        sandbox.close()

    def test_two_commands_share_one_warm_zygote(self, cache: Path, tmp_path: Path) -> None:
        sandboxes = [LocalSandbox(), LocalSandbox()]
        outcomes: list[object] = []

        def ask(index: int) -> None:
            outcomes.append(sandboxes[index].run(job(tmp_path / str(index), "result"), deadline_s=60))

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [type(outcome) for outcome in outcomes] == [Finished, Finished]
        assert len(list((cache / "zygote").glob("*.socket"))) == 1
        assert (cache / "zygote").stat().st_mode & 0o777 == 0o700
        started = time.monotonic()
        ask(0)
        assert time.monotonic() - started < 1.0

    def test_a_cache_folder_too_deep_for_a_socket_is_no_obstacle(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / ("deep" * 25)))
        monkeypatch.setattr(tempfile, "tempdir", str(cache))
        assert isinstance(LocalSandbox().run(job(tmp_path, "result"), deadline_s=60), Finished)
        (short,) = cache.glob("cuda-agent-*")
        assert short.stat().st_mode & 0o777 == 0o700
        assert len(list(short.glob("*.socket"))) == 1
        end_zygote(short)

    def test_a_stale_socket_is_no_obstacle(self, cache: Path, tmp_path: Path) -> None:
        sandbox = LocalSandbox()
        folder = cache / "zygote"
        folder.mkdir(parents=True)
        stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stale.bind(str(folder / f"{zygote_key(sandbox._environment)}.socket"))
        stale.close()
        assert isinstance(sandbox.run(job(tmp_path, "result"), deadline_s=60), Finished)

    def test_a_zygote_that_cannot_start_is_the_machines_fault_with_its_log(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "torch.py").write_text("raise ImportError('libtorch is broken here')")
        sandbox = LocalSandbox(keep_warm=False)
        sandbox._environment["PYTHONPATH"] = str(tmp_path)
        with pytest.raises(MachineError, match="libtorch is broken here"):
            sandbox.run(job(tmp_path, "result"), deadline_s=60)
        sandbox.close()

    def test_loading_the_sandbox_does_not_load_torch(self) -> None:
        script = "import sys, cuda_agent.sandbox.local; print('torch' in sys.modules)"
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert found.stdout == "False\n"


def working_in(folder: Path) -> list[int]:
    """Processes whose current folder is `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
    return found


def await_working_in(folder: Path) -> list[int]:
    deadline = time.monotonic() + 60
    while not (found := working_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def end_zygote(folder: Path) -> None:
    """End the zygote whose socket lies in `folder`, found by the inode of the socket it listens on."""
    paths = {str(path) for path in folder.glob("*.socket")}
    inodes = {
        f"socket:[{line.split()[6]}]"
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]
        if line.split()[-1] in paths
    }
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                links = {os.readlink(item) for item in (entry / "fd").iterdir()}
                if links & inodes:
                    os.kill(int(entry.name), signal.SIGKILL)
