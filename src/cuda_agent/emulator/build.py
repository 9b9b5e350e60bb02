"""Builds the emulated device's C++ core at first use, with the host compiler that nvcc needs anyway.

The result lies in the cache folder under a key of everything that can change it: the sources, the flags, the
compiler and the processor (`-march=native`). `docs/decisions/0002-emulator-built-at-first-use.md` says why.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from cuda_agent.errors import MachineError, ToolkitError

SOURCES = Path(__file__).parent
FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fPIC",
    # A product is rounded before it is added, as on the device; fused operations are written out.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=default",
    "-pthread",
    "-Wall",
)
LIBRARY = "libcuda_agent_emulator.so"


def host_headers() -> Path:
    """Return the folder with `host_api.h`, which generated bindings include."""
    return SOURCES


def core_library() -> Path:
    """Return the core's shared object, building it when it is not in the cache (about a minute on two cores).

    Raises:
        ToolkitError: there is no host C++ compiler, or it can't compile the core.
        MachineError: the cache folder can't be written.
    """
    return _build(_compiler(), _cache_folder() / "emulator")


def built_library() -> Path | None:
    """Return the core's shared object if it is in the cache already, else None; raises as `core_library` does."""
    library = _cache_folder() / "emulator" / _key(_compiler(), _units()) / LIBRARY
    return library if library.exists() else None


def _compiler() -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        raise ToolkitError(
            "The emulated device needs a host C++ compiler and found no g++ on the PATH. "
            "Install one (Debian or Ubuntu: apt install g++)."
        )
    return compiler


def _units() -> list[Path]:
    return sorted(SOURCES.glob("*.cpp"))


def _cache_folder() -> Path:
    # The rule of store.cache_folder, repeated because the emulator stands beside the stack and imports none of it.
    if chosen := os.environ.get("CUDA_AGENT_CACHE"):
        return Path(chosen).expanduser().resolve()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return Path(xdg).expanduser().resolve() / "cuda-agent" if xdg else Path.home() / ".cache" / "cuda-agent"


@cache
def _build(compiler: str, folder: Path) -> Path:
    units = _units()
    target = folder / _key(compiler, units)
    if (target / LIBRARY).exists():
        return target / LIBRARY
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "build.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (target / LIBRARY).exists():
                _compile(compiler, units, folder, target)
    except OSError as error:
        raise MachineError(
            f"The emulated device's core can't be built in {folder}: {error.strerror or error}. "
            "Free space there, or choose another cache with $CUDA_AGENT_CACHE."
        ) from error
    return target / LIBRARY


def _key(compiler: str, units: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in [*units, *sorted(SOURCES.glob("*.h"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    digest.update("\0".join(FLAGS).encode() + version + _processor().encode())
    return digest.hexdigest()[:24]


def _processor() -> str:
    """Return what `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return platform.machine() + "".join(sorted({line for line in lines if line.startswith(wanted)}))


def _compile(compiler: str, units: list[Path], folder: Path, target: Path) -> None:
    work = Path(tempfile.mkdtemp(dir=folder, prefix=".build."))
    try:
        # The largest first, so that the cores finish together.
        by_size = sorted(units, key=lambda path: -path.stat().st_size)

        def one(unit: Path) -> None:
            _run([compiler, *FLAGS, "-c", str(unit), "-o", str(work / f"{unit.stem}.o")])

        with ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
            list(pool.map(one, by_size))
        objects = [str(work / f"{unit.stem}.o") for unit in units]
        _run([compiler, "-shared", "-pthread", f"-Wl,-soname,{LIBRARY}", "-o", str(work / LIBRARY), *objects])
        for name in objects:
            os.unlink(name)
        work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _run(command: list[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise ToolkitError(
            f"The emulated device's core does not compile with {command[0]}: "
            f"{ran.stderr.strip()[:2000] or 'no message'}. It needs g++ 11 or newer."
        )
