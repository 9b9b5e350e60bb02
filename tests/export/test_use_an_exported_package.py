"""Export a candidate and use the package as someone would who has plain PyTorch and nothing of this project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.errors import CandidateError, ToolkitError, UserError
from cuda_agent.gates import compile as compile_gate
from cuda_agent.gates import exported_build
from cuda_agent.gates.devices import cuda_devices, installed_torch
from cuda_agent.gates.export import export, read_source, relative_imports
from cuda_agent.gates.toolkit import discover

# Runs before the code under test: this project can't be imported, and a CPU build of torch answers what the launchers
# ask of a CUDA build when they are loaded (not when they are called).
STRANGER = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cuda_agent":
            raise ModuleNotFoundError(f"{name} is not installed here")

sys.meta_path.insert(0, Block())
import torch
for name in ("_cuda_getCurrentRawStream", "_cuda_getDevice"):
    if not hasattr(torch._C, name):
        setattr(torch._C, name, lambda *_: 0)
"""

MODEL = """
import torch
from cuda_extension import (
    twice_launcher,  # doubles
)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        twice_launcher(x, y, x.numel())
        return y
"""

KERNEL = """
#include <cuda_runtime.h>
__global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = FACTOR * x[i];
}
extern "C" void twice_launcher(const float* x, float* y, int n, cudaStream_t stream) {
    twice<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
}
extern "C" int factor_launcher(cudaStream_t stream) { return FACTOR; }
"""


def write_candidate(folder: Path, *, model: str = MODEL, factor: int = 2) -> Path:
    (folder / "kernels").mkdir(parents=True)
    (folder / "model_new.py").write_text(model)
    (folder / "kernels" / "twice.cu").write_text(KERNEL.replace("FACTOR", f"({factor})"))
    return folder


def as_stranger(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in `folder` where this project can't be imported."""
    return subprocess.run(
        [sys.executable, "-c", f"{STRANGER}\nsys.path.insert(0, '')\n{code}"],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def build(package: Path, *architectures: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the package's own build file with the Python that has torch."""
    asked = [part for architecture in architectures for part in ("--arch", architecture)]
    return subprocess.run(
        [sys.executable, str(package / "build.py"), *asked],
        cwd=package.parent,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two built packages whose launchers have the same names."""
    try:
        discover()
    except ToolkitError as error:
        pytest.skip(f"an exported package is built with nvcc: {error}")
    folder = tmp_path_factory.mktemp("exported")
    for name, factor in (("double_it", 2), ("treble_it", 3)):
        candidate = write_candidate(folder / f"{name}-candidate", factor=factor)
        export(*read_source(candidate), folder / name)
        built = build(folder / name, "sm_80")
        assert built.returncode == 0, built.stderr
    return folder


def test_the_package_imports_where_this_project_does_not_exist(packages: Path) -> None:
    ran = as_stranger("import double_it; print(double_it.ModelNew.__name__, 'cuda_extension' in sys.modules)", packages)
    assert (ran.stdout, ran.stderr) == ("ModelNew False\n", "")


def test_tensors_on_the_cpu_are_refused_with_the_launcher_and_the_argument(packages: Path) -> None:
    ran = as_stranger("import double_it; double_it.ModelNew()(torch.ones(3))", packages)
    assert ran.stderr.splitlines()[-1] == (
        "ValueError: twice_launcher(): argument 1 'x' lies on the CPU; the kernel needs it on a CUDA device"
    )


@pytest.mark.gpu
@pytest.mark.skipif(not (cuda_devices() and installed_torch().cuda), reason="needs a CUDA device that torch can use")
def test_on_a_gpu_the_first_import_builds_and_the_kernel_runs(tmp_path: Path) -> None:
    export(*read_source(write_candidate(tmp_path / "candidate")), tmp_path / "kernel")
    ran = as_stranger("import kernel; print(kernel.ModelNew()(torch.ones(3, device='cuda')).tolist())", tmp_path)
    assert ran.stdout == "[2.0, 2.0, 2.0]\n", ran.stderr


def test_two_packages_with_equal_launcher_names_keep_their_own(packages: Path) -> None:
    code = """
from double_it import cuda_extension as first
from treble_it import cuda_extension as second
for module in (first, second, first):
    try:
        module.factor_launcher()
    except RuntimeError as error:
        print(str(error).split(" (")[0])
"""
    ran = as_stranger(code, packages)
    assert ran.stdout.splitlines() == [
        "factor_launcher() returned 2",
        "factor_launcher() returned 3",
        "factor_launcher() returned 2",
    ], ran.stderr


def test_building_again_builds_nothing(packages: Path) -> None:
    library = Path(build(packages / "double_it", "sm_80").stdout.strip())
    before = library.stat().st_mtime_ns
    assert build(packages / "double_it", "sm_80", PATH="/nowhere").stdout.strip() == str(library)
    assert library.stat().st_mtime_ns == before


def test_processes_that_import_at_once_build_one_library(tmp_path: Path, packages: Path) -> None:
    export(*read_source(packages / "double_it-candidate"), tmp_path / "fresh")
    command = [sys.executable, str(tmp_path / "fresh" / "build.py"), "--arch", "sm_80"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate(timeout=240)[0].strip() for process in running}
    assert len(said) == 1
    assert sorted(path.name for path in (tmp_path / "fresh" / "built").iterdir()) == [".lock", Path(said.pop()).name]


def test_a_machine_without_a_gpu_is_told_to_name_an_architecture(tmp_path: Path) -> None:
    export(*read_source(write_candidate(tmp_path / "candidate")), tmp_path / "kernel")
    ran = build(tmp_path / "kernel", CUDA_VISIBLE_DEVICES="")
    assert ran.returncode == 1
    assert ran.stderr.startswith("kernel: no CUDA device here to build for. Name an architecture: python ")


def test_a_machine_without_nvcc_is_told_how_to_get_it(tmp_path: Path) -> None:
    export(*read_source(write_candidate(tmp_path / "candidate")), tmp_path / "kernel")
    code = """
import build
from pathlib import Path
build.shutil.which = lambda name: None
build.Path.is_file = lambda path: False
build.build(["sm_80"])
"""
    ran = as_stranger(code, tmp_path / "kernel", CUDA_HOME="", CUDA_PATH="")
    assert "building its kernels needs nvcc, and there is none in $CUDA_HOME, on the PATH" in ran.stderr
    assert "pip install 'nvidia-cuda-nvcc==13.0.*'" in ran.stderr
    assert [path.name for path in (tmp_path / "kernel" / "built").iterdir()] == [".lock"]


def test_a_python_without_torch_is_told_to_install_it(tmp_path: Path) -> None:
    export(
        *read_source(
            write_candidate(tmp_path / "candidate", model=MODEL.replace("import torch", "")),
        ),
        tmp_path / "k",
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import k"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr.splitlines()[-1] == (
        "ImportError: k needs PyTorch built for CUDA, and torch is not installed here. Install it."
    )


@pytest.mark.parametrize(
    ("written", "exported"),
    [
        ("from cuda_extension import a, b as c\n", "from .cuda_extension import a, b as c\n"),
        (
            "from cuda_extension import (  # why\n    a,\n    b,\n)\nx = 1\n",
            "from .cuda_extension import a, b\nx = 1\n",
        ),
        ("import cuda_extension\n", "from . import cuda_extension\n"),
        ("import cuda_extension as e, torch\n", "import torch; from . import cuda_extension as e\n"),
        (
            "def f():\n    import cuda_extension; return 'é'\n",
            "def f():\n    from . import cuda_extension; return 'é'\n",
        ),
        ("é = 1; from cuda_extension import a\n", "é = 1; from .cuda_extension import a\n"),
        ("import torch  # cuda_extension\n", "import torch  # cuda_extension\n"),
    ],
)
def test_imports_of_the_launchers_become_relative_and_the_rest_stays(written: str, exported: str) -> None:
    assert relative_imports(written) == exported


def test_a_candidate_that_names_the_module_in_a_string_is_refused() -> None:
    with pytest.raises(CandidateError, match=r"model_new.py:2: it names 'cuda_extension' in a string"):
        relative_imports("import importlib\nx = importlib.import_module('cuda_extension')\n")


def test_a_candidate_that_imports_this_project_is_refused() -> None:
    with pytest.raises(CandidateError, match=r"model_new.py:1: it imports cuda_agent, which users"):
        relative_imports("import cuda_agent.records\n")


@pytest.mark.parametrize("name", ["my-kernel", "class", "2fast", "torch"])
def test_a_name_python_can_not_import_is_refused(tmp_path: Path, name: str) -> None:
    candidate, evidence = read_source(write_candidate(tmp_path / "candidate"))
    with pytest.raises(UserError, match=re.escape(name)):
        export(candidate, evidence, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_the_exported_build_compiles_with_the_flags_that_were_judged() -> None:
    report_only = ("-Xptxas", "-v")
    assert tuple(f for f in compile_gate.CUDA_FLAGS if f not in report_only) == exported_build.NVCC_FLAGS
    assert exported_build.BINDING_FLAGS == compile_gate.BINDING_FLAGS
    assert exported_build.LIBRARIES_BY_HEADER == compile_gate.LIBRARIES_BY_HEADER


@pytest.mark.parametrize(
    ("made", "device", "runs"),
    [
        ("sm_90a", "sm_90a", True),
        ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False),
        ("sm_80", "sm_90a", False),
        ("sm_90", "sm_90a", True),
        ("sm_90a", "sm_100a", False),
        ("sm_100", "sm_103a", True),
    ],
)
def test_a_built_library_is_used_only_where_its_code_runs(made: str, device: str, runs: bool) -> None:
    assert exported_build._runs_on(made, device) is runs
