"""Build the kernels of this package for the GPUs of this machine, or for those named with --arch.

    python build.py
    python build.py --arch sm_90a --arch sm_80

Importing the package does the same where nothing fitting is built yet. Needs Python 3.10 or newer with its headers,
g++, and nvcc (on the PATH, in $CUDA_HOME, or from NVIDIA's wheels).
"""

# CUDA Agent copies this file as it is into every package it exports, as `build.py`; it uses the standard library only.

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import cast

HERE = Path(__file__).resolve().parent
BUILT = HERE / "built"
MODULE = "cuda_extension"

NVCC_FLAGS = ("-O3", "-std=c++17", "--split-compile", "0", "-lineinfo", "-Xcompiler", "-fPIC")
BINDING_FLAGS = ("-O2", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-unused-function")
LIBRARIES_BY_HEADER = {
    "cublas_v2.h": ("cublas",),
    "cublasLt.h": ("cublasLt",),
    "cudnn.h": ("cudnn",),
    "curand.h": ("curand",),
    "cufft.h": ("cufft",),
    "cusparse.h": ("cusparse",),
}
WHEELS = tuple(f"'nvidia-{part}==13.0.*'" for part in ("cuda-nvcc", "nvvm", "cuda-crt", "cuda-runtime", "cuda-cccl"))

# Asks the driver in a process of its own: no CUDA context is made here, so a later fork may still use the GPU.
_ASK_DRIVER = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # COMPUTE_CAPABILITY_MAJOR
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)  # COMPUTE_CAPABILITY_MINOR
        print(major.value, minor.value)
"""


class BuildError(RuntimeError):
    """The kernels can't be built here; the text says what is missing and how to get it."""


def load(name: str) -> ModuleType:
    """Return the built launchers as a module called `name`, whose last part is `cuda_extension`; build if need be.

    Raises:
        BuildError: nothing fitting is built, and it can't be built here.
        ImportError: torch is not installed, or was not built for CUDA.
    """
    if importlib.util.find_spec("torch") is None:
        raise ImportError(f"{HERE.name} needs PyTorch built for CUDA, and torch is not installed here. Install it.")
    library = _fitting(_devices()) or build()
    loader = importlib.machinery.ExtensionFileLoader(name, str(library))
    spec = importlib.util.spec_from_file_location(name, library, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def build(architectures: Iterable[str] = ()) -> Path:
    """Build for `architectures` (default: the GPUs here) and return the shared object; nothing is built twice.

    Raises:
        BuildError: no GPU and no architecture named, a compiler is missing, or one refused.
    """
    wanted = sorted(set(architectures) or _devices())
    if not wanted:
        raise BuildError(
            f"{HERE.name}: no CUDA device here to build for. Name an architecture: "
            f"python {HERE / 'build.py'} --arch sm_90a"
        )
    for architecture in wanted:
        if not re.fullmatch(r"sm_\d+[af]?", architecture):
            raise BuildError(f"{HERE.name}: architecture {architecture}: expected a name such as sm_80 or sm_90a.")
    library = _path(wanted)
    if library.exists():
        return library
    try:
        BUILT.mkdir(exist_ok=True)
        with open(BUILT / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may import at once: one builds, the others wait
            if not library.exists():
                _compile(wanted, library)
    except OSError as error:
        raise BuildError(
            f"{HERE.name}: can't build in {BUILT}: {error.strerror or error}. Build once from an account that may "
            f"write there: python {HERE / 'build.py'}"
        ) from error
    return library


def _compile(architectures: list[str], library: Path) -> None:
    nvcc, compiler = _nvcc(), _host_compiler()
    sources = sorted(path.relative_to(HERE).as_posix() for path in HERE.glob("kernels/**/*.cu"))
    work = Path(tempfile.mkdtemp(dir=BUILT, prefix=".building."))
    try:
        command = [nvcc, *NVCC_FLAGS, "-ccbin", compiler, "-I", "kernels"]
        for architecture in architectures:
            command += ["-gencode", f"arch={architecture.replace('sm_', 'compute_')},code={architecture}"]
        objects = [str(work / f"{source.replace('/', '__')}.o") for source in sources]
        commands = [[*command, "-c", source, "-o", made] for source, made in zip(sources, objects, strict=True)]
        include = sysconfig.get_paths()["include"]
        binding = [compiler, *BINDING_FLAGS, "-I", include, "-I", ".", "-c", "binding.cpp"]
        commands.append([*binding, "-o", str(work / "binding.o")])
        environment = os.environ | {"TMPDIR": str(work)}
        with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
            for _ in pool.map(lambda one: _run(one, environment), commands):
                pass
        folders = _library_folders(nvcc)
        link = [compiler, "-shared", "-Wl,-Bsymbolic", "-o", str(work / MODULE), *objects, str(work / "binding.o")]
        link += [f"-L{folder}" for folder in folders]
        link += [*_library_flags(folders), "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
        _run(link, environment)
        os.replace(work / MODULE, library)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(command: list[str], environment: dict[str, str]) -> None:
    ran = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        said = (ran.stderr + ran.stdout).strip()[-4000:]
        raise BuildError(f"{HERE.name}: {' '.join(command)} failed with code {ran.returncode}:\n{said}")


def _nvcc() -> str:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    places = [Path(home, "bin/nvcc") for home in homes if home]
    on_path = shutil.which("nvcc")
    places += [Path(on_path)] if on_path else []
    packages = {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}
    places += [nvcc for folder in sorted(packages) for nvcc in sorted(Path(folder).glob("nvidia/cu*/bin/nvcc"))[::-1]]
    places.append(Path("/usr/local/cuda/bin/nvcc"))
    found = next((place for place in places if place.is_file() and os.access(place, os.X_OK)), None)
    if found is None:
        raise BuildError(
            f"{HERE.name}: building its kernels needs nvcc, and there is none in $CUDA_HOME, on the PATH, among this "
            "Python's wheels or in /usr/local/cuda. Install a CUDA toolkit, or the compiler as wheels of one release: "
            f"pip install {' '.join(WHEELS)}"
        )
    return str(found)


def _host_compiler() -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        raise BuildError(
            f"{HERE.name}: building its kernels needs a host C++ compiler, and no g++ is on the PATH. Install one "
            "(Debian or Ubuntu: apt install g++)."
        )
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        raise BuildError(
            f"{HERE.name}: building its kernels needs Python's headers, and {header} is not there. Install them "
            "(Debian or Ubuntu: apt install python3-dev)."
        )
    return compiler


def _library_folders(nvcc: str) -> list[Path]:
    """Return the folders with the static runtime; nvcc may be a wrapper script, so it is asked for its root."""
    dry = [nvcc, "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull]
    ran = subprocess.run(dry, capture_output=True, text=True, check=False)
    top = re.search(r"^#\$ TOP=(.+)$", ran.stderr, re.M)
    roots = [Path(top[1])] if top else []
    roots += [Path(nvcc).parent.parent, Path(nvcc).resolve().parent.parent]
    names = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
    found = [(root / name).resolve() for root in roots for name in names]
    return list(dict.fromkeys(folder for folder in found if (folder / "libcudart_static.a").exists()))


def _library_flags(folders: list[Path]) -> list[str]:
    """Return link flags of the CUDA libraries whose headers the kernels include, where they are installed."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in _sources())
    wanted = [name for header, names in LIBRARIES_BY_HEADER.items() if header in text for name in names]
    wheels = sorted(Path(sysconfig.get_paths()["purelib"], "nvidia").glob("*/lib"))
    flags = []
    for name in wanted:
        for folder in (*folders, *wheels):
            files = sorted(folder.glob(f"lib{name}.so*"), key=lambda path: len(path.name))
            if files:
                flags += [f"-L{folder}", f"-l:{files[0].name}", f"-Wl,-rpath,{folder}"]
                break
    return flags


def _devices() -> list[str]:
    """Return the architectures of the GPUs that this process may use, each once; empty without a driver."""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _ASK_DRIVER], capture_output=True, text=True, check=False, timeout=120
    )
    found = [tuple(map(int, line.split())) for line in ran.stdout.splitlines()]
    # From Hopper on, the full instruction set needs the suffix.
    return sorted({f"sm_{major}{minor}{'a' if major >= 9 else ''}" for major, minor in found})


def _fitting(devices: list[str]) -> Path | None:
    """Return a built library that runs on all `devices` (any library where there is none), None without one."""
    for path in sorted(BUILT.glob(f"{_stem()}-*{_suffix()}")):
        built = path.name.removeprefix(f"{_stem()}-").removesuffix(_suffix()).split("+")
        if all(any(_runs_on(made, device) for made in built) for device in devices):
            return path
    return None


def _runs_on(made: str, device: str) -> bool:
    """Whether code for `made` runs on `device`: the same, or an earlier minor version without special features."""
    if made == device:
        return True
    if not made[3:].isdigit():
        return False
    number = int(re.sub(r"\D", "", device))
    return int(made[3:]) // 10 == number // 10 and int(made[3:]) <= number


def _path(architectures: list[str]) -> Path:
    return BUILT / f"{_stem()}-{'+'.join(architectures)}{_suffix()}"


def _stem() -> str:
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.relative_to(HERE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{MODULE}-{digest.hexdigest()[:16]}-{platform.machine()}"


def _suffix() -> str:
    return cast(str, sysconfig.get_config_var("EXT_SUFFIX"))  # `.cpython-312-x86_64-linux-gnu.so`: the Python it fits


def _sources() -> list[Path]:
    """Return everything that decides what is built."""
    kernels = sorted(path for path in HERE.glob("kernels/**/*") if path.is_file())
    return [*kernels, HERE / "binding.cpp", HERE / "binding_support.h", Path(__file__).resolve()]


def main() -> None:
    """Build and say where the result lies."""
    parser = argparse.ArgumentParser(description="Build the kernels of this package.")
    parser.add_argument("--arch", action="append", default=[], metavar="sm_XY", help="default: the GPUs here")
    try:
        print(build(parser.parse_args().arch))
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
