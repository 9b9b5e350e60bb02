"""Kill a command while nvcc runs, or give it a full disk: the next call works as if nothing had been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuda_agent import emulator
from cuda_agent.errors import ToolkitError
from cuda_agent.gates import cache as build_cache
from cuda_agent.gates.toolkit import discover
from tests.cli.commands import KERNEL, run, write_candidate, write_problem

COMMAND = [sys.executable, "-c", "from cuda_agent.cli import main; main()"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build cache of the test's own, with the emulated device's core in it."""
    try:
        discover()
    except ToolkitError as error:
        pytest.skip(f"a candidate is compiled: {error}")
    core = emulator.core_library()
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "emulator").symlink_to(core.parent.parent)
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(folder))
    return folder


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_was_killed_leaves_no_entry_and_is_built_again(
    tmp_path: Path, cache: Path, how: signal.Signals
) -> None:
    problem = write_problem(tmp_path)
    # Headers that take seconds to compile, so that the signal arrives while nvcc runs however busy the machine is.
    candidate = write_candidate(tmp_path / "candidate", kernel=f"#include <cub/block/block_radix_sort.cuh>\n{KERNEL}")
    asked = ["judge", str(problem), str(candidate), "--device", "emulated", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [*COMMAND, *asked, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + 60
    # nvcc's first intermediate file: the compilers are at work.
    while not list(cache.glob("builds/.building.*/tmp/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(how)
    said, _ = process.communicate(timeout=60)
    assert not list(cache.glob("builds/[0-9a-f]*"))
    assert not (tmp_path / "run").exists()
    if how == signal.SIGINT:
        assert (process.returncode, json.loads(said)["error"]["kind"]) == (130, "Interrupted")
        assert not list(cache.glob("builds/.building.*"))
    again = run(*asked)
    assert (again.code, again.result["verdict"]["kind"]) == (0, "passed")
    assert len(list(cache.glob("builds/[0-9a-f]*"))) == 1


def test_what_a_killed_build_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    left = tmp_path / "builds" / ".building.killed"
    running = tmp_path / "builds" / ".building.running"
    for folder in (left, running):
        folder.mkdir(parents=True)
    long_ago = time.time() - build_cache.ABANDONED_AFTER_S - 60
    os.utime(left, (long_ago, long_ago))
    fresh = build_cache.BuildCache(tmp_path / "builds").work_folder()
    assert sorted((tmp_path / "builds").iterdir()) == sorted([running, fresh])


@pytest.mark.parametrize("size", ["8k", "600k"])
def test_a_full_disk_is_the_machines_fault_and_nothing_half_built_is_kept(
    tmp_path: Path, cache: Path, size: str
) -> None:
    write_problem(tmp_path)
    write_candidate(tmp_path / "candidate", kernel=f"{KERNEL}// on {size}\n")
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size={size} tmpfs {small}"
    if subprocess.run(["unshare", "-Urm", "sh", "-c", mount], capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system can't be mounted here")
    judged = f"judge {tmp_path}/asked.py {tmp_path}/candidate --device emulated --json --out {tmp_path}/run"
    script = f"""
        {mount} && ln -s {cache}/emulator {small}/emulator && export CUDA_AGENT_CACHE={small}
        {sys.executable} -c 'from cuda_agent.cli import main; main()' {judged} 2>/dev/null
        code=$?; ls -A {small}/builds >&2; exit $code
    """
    ran = subprocess.run(["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 3
    verdict = json.loads(ran.stdout)["verdict"]
    assert verdict["kind"] == "machine-fault"
    assert "space left on" in verdict["message"]
    assert "Free space, or choose another cache folder with $CUDA_AGENT_CACHE" in verdict["message"]
    assert ran.stderr == ""
    assert not (tmp_path / "run").exists()
