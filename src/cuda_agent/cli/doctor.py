"""`cuda-agent doctor`: what this machine can do, what is missing, and how to get it.

torch is looked at through its files only, so the answer comes at once and a broken torch can't take it down.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Literal

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from cuda_agent import __version__, emulator
from cuda_agent.cli.failures import MACHINE, reported
from cuda_agent.cli.output import Output
from cuda_agent.errors import ToolkitError
from cuda_agent.gates.devices import cuda_devices, installed_torch
from cuda_agent.gates.toolkit import Toolkit, discover
from cuda_agent.records import codec
from cuda_agent.records.protection import Protections
from cuda_agent.store.cache_folder import cache_folder

OLDEST_TORCH = (2, 9)
LEAST_CACHE_BYTES = 1 << 30
"""Room for the emulated device's core (a few MB) and some hundred builds (about 1 MB each), with some to spare."""
LEAST_SHARED_BYTES = 1 << 30
"""Inputs and outputs of the built-in problems pass through memory here; below it they go to the disk."""

Status = Literal["ok", "note", "missing"]
STYLE: dict[Status, str] = {"ok": "green", "note": "yellow", "missing": "bold red"}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the machine."""

    part: str
    status: Status
    """`missing` keeps candidates from being judged at all; `note` takes something away."""
    found: str
    advice: str = ""
    """What to do; empty when there is nothing to do."""


def run(*, toolkit_only: bool, json: bool) -> None:
    """Look at the machine; exit with 0 if candidates can be compiled (and judged), else with 3."""
    output = Output(json=json)
    with reported(output):
        toolkit = _toolkit()
        findings = (_compiler(toolkit),) if toolkit_only else _everything(toolkit)
        able = not any(finding.status == "missing" for finding in findings)
        conclusion = _conclusion(findings, toolkit_only=toolkit_only)
        if json:
            output.print_json(
                {
                    "schema_version": 1,
                    "cuda_agent": __version__,
                    "able": able,
                    "conclusion": conclusion,
                    "toolkit": None if isinstance(toolkit, ToolkitError) else toolkit,
                    "devices": () if toolkit_only else cuda_devices(),
                    "findings": findings,
                }
            )
        else:
            output.print(_table(findings))
            output.print(Text(conclusion, "green" if able else "bold red"))
        raise typer.Exit(0 if able else MACHINE)


def _everything(toolkit: Toolkit | ToolkitError) -> tuple[Finding, ...]:
    return (
        _python(),
        _torch(),
        _host_compiler(),
        _compiler(toolkit),
        *_gpus(),
        _emulated(toolkit),
        _cache(),
        _shared_memory(),
        _temporary(),
        _protections(),
    )


def _python() -> Finding:
    version = f"{platform.python_implementation()} {platform.python_version()}"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if header.is_file():
        return Finding(part="Python", status="ok", found=f"{version}, with {header}")
    return Finding(
        part="Python",
        status="missing",
        found=f"{version}, but {header} is not there",
        advice="Candidates' bindings are compiled against it. Install the headers (Debian or Ubuntu: apt install "
        "python3-dev), or use a Python that brings them.",
    )


def _torch() -> Finding:
    torch = installed_torch()
    if not torch.version:
        return Finding(
            part="torch", status="missing", found="not installed", advice="Install it: pip install 'torch>=2.9'."
        )
    numbers = tuple(int(part) for part in torch.version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_TORCH:
        return Finding(
            part="torch",
            status="missing",
            found=f"{torch.version}, older than 2.9",
            advice="Upgrade it: pip install --upgrade 'torch>=2.9'.",
        )
    if torch.cuda:
        return Finding(part="torch", status="ok", found=f"{torch.version}, built for CUDA {torch.cuda}")
    if cuda_devices():
        return Finding(
            part="torch",
            status="note",
            found=f"{torch.version}, a CPU build: the GPU here can't be used",
            advice="Install a CUDA build of torch to judge on the GPU (https://pytorch.org/get-started/locally).",
        )
    return Finding(part="torch", status="ok", found=f"{torch.version}, a CPU build, which the emulated device needs")


def _toolkit() -> Toolkit | ToolkitError:
    try:
        return discover()
    except ToolkitError as error:
        return error


def _host_compiler() -> Finding:
    found = shutil.which("g++")
    if found is None:
        return Finding(
            part="host compiler",
            status="missing",
            found="no g++ on the PATH",
            advice="Install one (Debian or Ubuntu: apt install g++).",
        )
    return Finding(part="host compiler", status="ok", found=found)


def _compiler(toolkit: Toolkit | ToolkitError) -> Finding:
    if isinstance(toolkit, ToolkitError):
        return Finding(part="CUDA compiler", status="missing", found=str(toolkit))
    return Finding(
        part="CUDA compiler",
        status="ok",
        found=f"{toolkit.name}, {toolkit.nvcc}; host side by {toolkit.host_version}",
    )


def _gpus() -> list[Finding]:
    devices = cuda_devices()
    if not devices:
        return [
            Finding(
                part="GPU",
                status="note",
                found="no CUDA device",
                advice="Candidates are judged on the emulated device: built and verified, but not timed.",
            )
        ]
    return [
        Finding(
            part=device.name,
            status="ok",
            found=f"{device.model}, {device.architecture}, driver {device.driver}",
        )
        for device in devices
    ]


def _emulated(toolkit: Toolkit | ToolkitError) -> Finding:
    if isinstance(toolkit, ToolkitError):
        return Finding(part="emulated", status="note", found="needs the compilers first")
    library = emulator.built_library()
    if library is not None:
        return Finding(part="emulated", status="ok", found=f"its core is built: {library}")
    return Finding(
        part="emulated",
        status="ok",
        found="its core is not built yet",
        advice="The first judgement builds it once, in about a minute.",
    )


def _cache() -> Finding:
    folder = cache_folder()
    standing = next(path for path in (folder, *folder.parents) if path.exists())
    if not standing.is_dir() or not os.access(standing, os.W_OK | os.X_OK):
        return Finding(
            part="cache",
            status="missing",
            found=f"{folder}, which can't be written",
            advice="Choose another folder with $CUDA_AGENT_CACHE.",
        )
    free = shutil.disk_usage(standing).free
    if free < LEAST_CACHE_BYTES:
        return Finding(
            part="cache",
            status="note",
            found=f"{folder}, {_size(free)} free",
            advice="Free space there, or choose another folder with $CUDA_AGENT_CACHE.",
        )
    return Finding(part="cache", status="ok", found=f"{folder}, {_size(free)} free")


def _shared_memory() -> Finding:
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        free = 0
        found = "no /dev/shm to write to"
    else:
        free = shutil.disk_usage(folder).free
        found = f"/dev/shm, {_size(free)} free"
    if free >= LEAST_SHARED_BYTES:
        return Finding(part="shared memory", status="ok", found=found)
    return Finding(
        part="shared memory",
        status="note",
        found=found,
        advice="Inputs and outputs pass through temporary files instead, which is slower. In a container: "
        "docker run --shm-size=8g.",
    )


def _temporary() -> Finding:
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        return Finding(
            part="temporary files",
            status="missing",
            found=str(error),
            advice="Name a folder that can be written in $TMPDIR.",
        )
    return Finding(part="temporary files", status="ok", found=f"{folder}, {_size(shutil.disk_usage(folder).free)} free")


def _protections() -> Finding:
    """Let a process confine itself as a candidate's does, and try what it then should not be able to do."""
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "cuda_agent.worker.protections"], capture_output=True, text=True, check=False
    )
    try:
        found = codec.decode(ran.stdout.encode(), Protections)
    except msgspec.MsgspecError:
        said = ran.stderr.strip().rpartition("\n")[2]
        return Finding(
            part="confinement",
            status="missing",
            found=f"a process could not confine itself: {said}",
            advice="Candidates are not loaded without it. Please report this, with the kernel's version.",
        )
    # Only root can give its user away, and only root needs to.
    left = {right: why for right, why in found.left.items() if right != "caller's user" or os.getuid() == 0}
    taken = f"candidates lose: {', '.join(found.taken) or 'nothing'}"
    if not left:
        return Finding(part="confinement", status="ok", found=taken)
    return Finding(
        part="confinement",
        status="note",
        found=f"{taken}; they keep: {'; '.join(f'{right} ({why})' for right, why in left.items())}",
        advice="Judge only candidates that you trust here, or use a newer kernel (5.13 has Landlock) or a container "
        "that lets processes use Landlock and seccomp.",
    )


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


def _conclusion(findings: tuple[Finding, ...], *, toolkit_only: bool) -> str:
    missing = [finding.part for finding in findings if finding.status == "missing"]
    if missing:
        return f"Candidates can't be judged here before this is put right: {', '.join(missing)}."
    if toolkit_only:
        return "Candidates can be compiled here."
    devices = cuda_devices() if installed_torch().cuda else ()
    if devices:
        return (
            "Candidates can be judged here, and timed, on "
            f"{', '.join(device.name for device in devices)}, and judged on the emulated device."
        )
    return "Candidates can be judged here on the emulated device: built and verified, but not timed."


def _table(findings: tuple[Finding, ...]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    table.add_column(overflow="fold")
    for finding in findings:
        text = f"{finding.found}\n{finding.advice}" if finding.advice else finding.found
        table.add_row(finding.part, Text(finding.status, STYLE[finding.status]), text)
    return table
