"""Finds the CUDA compiler and the host compiler: an explicit one, the wheels of this interpreter, then the system's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import msgspec

from cuda_agent.errors import ToolkitError, UserError

OLDEST_NVCC = (12, 4)
"""Oldest nvcc that knows `--no-compress`, which the emulated device needs."""

INSTALL = (
    "Install the CUDA compiler as wheels with `pip install 'cuda-agent[toolkit]'`, install a CUDA toolkit, or name an "
    "nvcc in $CUDA_AGENT_NVCC."
)


class Toolkit(msgspec.Struct, frozen=True, kw_only=True):
    """A usable pair of compilers."""

    nvcc: str
    version: str
    """nvcc's own version, `13.0.88`."""
    origin: str
    """`$CUDA_AGENT_NVCC`, `wheels`, or `system`."""
    libraries: tuple[str, ...]
    """Folders with the toolkit's libraries; the wheels keep them where nvcc's own profile does not look."""
    host_compiler: str
    host_version: str

    @property
    def name(self) -> str:
        """Say which compiler this is, for evidence."""
        return f"nvcc {self.version} ({self.origin})"


def discover() -> Toolkit:
    """Return the first usable toolkit.

    Raises:
        ToolkitError: there is none, or no host compiler, or no Python headers; the text says what to install.
    """
    host = shutil.which("g++")
    if host is None:
        raise ToolkitError(
            "Compiling a candidate needs a host C++ compiler, and no g++ is on the PATH. "
            "Install one (Debian or Ubuntu: apt install g++)."
        )
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        raise ToolkitError(
            f"Compiling a candidate's binding needs Python's headers, and {header} is not there. "
            "Install them (Debian or Ubuntu: apt install python3-dev), or use a Python that brings them."
        )
    refused = []
    for origin, nvcc in _places():
        version = _nvcc_version(nvcc)
        if version is None:
            refused.append(f"{nvcc} does not run")
        elif _numbers(version) < OLDEST_NVCC:
            refused.append(f"{nvcc} is version {version}, older than {'.'.join(map(str, OLDEST_NVCC))}")
        else:
            return Toolkit(
                nvcc=nvcc,
                version=version,
                origin=origin,
                libraries=_libraries(Path(nvcc)),
                host_compiler=host,
                host_version=_host_version(host),
            )
    found = (
        "; ".join(refused) or "no nvcc among this interpreter's wheels, on the PATH, in $CUDA_HOME or /usr/local/cuda"
    )
    raise ToolkitError(f"Compiling a candidate needs nvcc, and found {found}. {INSTALL}")


def check_architecture(toolkit: Toolkit, architecture: str) -> None:
    """Raise `UserError` when nvcc can't build for `architecture` (`sm_90a`, `compute_90`), listing what it can."""
    known = _architectures(toolkit.nvcc)
    if architecture.replace("compute_", "sm_") not in known:
        raise UserError(
            f"Architecture {architecture}: nvcc {toolkit.version} does not know it. It builds for {', '.join(known)}."
        )


def _places() -> list[tuple[str, str]]:
    if chosen := os.environ.get("CUDA_AGENT_NVCC"):
        return [("$CUDA_AGENT_NVCC", chosen)]
    places = []
    packages = {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}
    for folder in sorted(packages):
        places += [("wheels", str(nvcc)) for nvcc in sorted(Path(folder).glob("nvidia/cu*/bin/nvcc"), reverse=True)]
    if on_path := shutil.which("nvcc"):
        places.append(("system", on_path))
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    homes += [str(path) for path in (Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True))]
    places += [("system", f"{home}/bin/nvcc") for home in homes if home and Path(home, "bin/nvcc").exists()]
    return places


def _nvcc_version(nvcc: str) -> str | None:
    try:
        ran = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"release [\d.]+, V([\d.]+)", ran.stdout)
    return match[1] if ran.returncode == 0 and match else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _host_version(compiler: str) -> str:
    ran = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=False)
    return f"g++ {ran.stdout.strip()}"


def _libraries(nvcc: Path) -> tuple[str, ...]:
    """Return the folders with the static runtime; nvcc itself may be a wrapper script, so it is asked for its root."""
    ran = subprocess.run(
        [str(nvcc), "--dryrun", "-c", "-x", "cu", "/dev/null", "-o", "/dev/null"],
        capture_output=True,
        text=True,
        check=False,
    )
    top = re.search(r"^#\$ TOP=(.+)$", ran.stderr, re.M)
    roots = [Path(top[1])] if top else []
    roots += [nvcc.parent.parent, nvcc.resolve().parent.parent]
    found = [
        root / name for root in roots for name in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
    ]
    return tuple(dict.fromkeys(str(path.resolve()) for path in found if (path / "libcudart_static.a").exists()))


def _architectures(nvcc: str) -> list[str]:
    ran = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False)
    listed = re.findall(r"sm_\d+[af]?", ran.stdout)
    # nvcc lists the plain names; those with architecture-specific instructions come as `a` from 9.0 on.
    return [*dict.fromkeys([*listed, *(f"{name}a" for name in listed if name[3:].isdigit() and int(name[3:]) >= 90)])]
