"""Hand in a candidate: what is refused before it is built, and the legitimate twin that is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cuda_agent.errors import CandidateFolderError, ToolkitError
from cuda_agent.gates.source import SourceGate
from cuda_agent.gates.toolkit import discover
from cuda_agent.gates.workspace import LARGEST_FILE_BYTES, read_candidate
from tests.compile.building import MODEL, SCALE, candidate


def with_line(line: str) -> str:
    return MODEL.replace("import torch\n", f"import torch\n{line}\n", 1)


def check(model: str = MODEL, kernels: str | dict[str, str] = SCALE) -> tuple[str, str] | None:
    """Return which check refuses and its message."""
    refused = SourceGate().check(candidate(kernels, model=model))
    assert refused is None or refused.gate == "source"
    return refused and (refused.check, refused.message)


class TestModule:
    def test_a_plain_candidate_passes(self) -> None:
        assert check() is None

    @pytest.mark.parametrize(
        ("line", "name", "line_of"),
        [
            ("import triton", "forbidden import", "imports triton"),
            ("import triton.language as tl", "forbidden import", "imports triton.language"),
            ("from numba import cuda", "forbidden import", "imports numba.cuda"),
            ("import cupy as cp", "forbidden import", "imports cupy"),
            ("from torch.utils.cpp_extension import load_inline", "forbidden import", "imports torch.utils.cpp_extension.load_inline"),
            ("from torch.utils import cpp_extension", "forbidden import", "imports torch.utils.cpp_extension"),
            ("import torch._inductor.config", "forbidden import", "imports torch._inductor.config"),
            ("from torch import _dynamo", "forbidden import", "imports torch._dynamo"),
            ("import subprocess", "forbidden import", "imports subprocess"),
            ("import ctypes", "forbidden import", "imports ctypes"),
            ("ct = __import__('ctypes')", "forbidden import", "imports ctypes"),
            ("import importlib\ntl = importlib.import_module('triton.language')", "forbidden import", "imports triton.language"),
            ("f = torch.compile(torch.relu)", "forbidden use", "uses torch.compile"),
            ("import torch as t\nf = t.compile(t.relu)", "forbidden use", "uses torch.compile"),
            ("from torch import compile", "forbidden import", "imports torch.compile"),
            ("from torch.jit import script", "forbidden import", "imports torch.jit.script"),
            ("import os\nos.system('nvcc x.cu')", "forbidden use", "uses os.system"),
        ],
    )  # fmt: skip
    def test_other_generators_and_ways_around_are_refused_by_name(self, line: str, name: str, line_of: str) -> None:
        refused = check(with_line(line))
        assert refused is not None
        assert refused[0] == name
        number = 3 + line.count("\n")
        assert refused[1].startswith(f"model_new.py:{number}: {line_of}: ")

    @pytest.mark.parametrize(
        "line",
        [
            "import math, os, functools",
            "import torch.nn.functional as F",
            "from torch.utils import checkpoint",
            "import re\npattern = re.compile('x')",
            "compile_flags = ['-O3']",
            "# import triton",
            "text = 'import triton'",
            "from torch import nn",
            "from torch.jit import annotations",
            "class Process:\n    def system(self):\n        return self",
        ],
    )
    def test_what_only_looks_like_it_passes(self, line: str) -> None:
        assert check(with_line(line)) is None

    @pytest.mark.parametrize(
        ("model", "name", "message"),
        [
            ("def f(:\n", "python syntax", "model_new.py:1: invalid syntax in `def f(:`. Fix the syntax."),
            (MODEL.replace("ModelNew", "Model"), "ModelNew", "model_new.py must define a class ModelNew, a torch.nn.Module with the __init__ and forward arguments of the problem's Model; it defines Model. Rename Model to ModelNew."),
            ("import torch\n", "ModelNew", "model_new.py must define a class ModelNew, a torch.nn.Module with the __init__ and forward arguments of the problem's Model; it defines no class."),
            (MODEL.replace("import scale", "import scales"), "launcher name", "model_new.py:3: uses scales of cuda_extension: kernels/*.cu define scale (did you mean scale?)."),
            (MODEL.replace("import scale\n", "import scale, scale_kernel\n"), "launcher name", "model_new.py:3: uses scale_kernel of cuda_extension: kernels/scale.cu:2 defines it as a __global__ kernel; Python calls a host function that launches it."),
            (MODEL.replace("from cuda_extension import scale", "import cuda_extension as ext").replace("scale(x", "ext.sale(x"), "launcher name", "model_new.py:8: uses sale of cuda_extension: kernels/*.cu define scale (did you mean scale?)."),
            (MODEL.replace("from cuda_extension import scale", "scale = torch.add"), "launcher use", "model_new.py never imports cuda_extension, so none of the candidate's kernels can run. Import a launcher, from cuda_extension import scale, and call it in ModelNew.forward."),
        ],
        ids=["syntax", "Model", "no class", "no such launcher", "a kernel", "attribute", "never imported"],
    )  # fmt: skip
    def test_a_broken_module_is_told_what_to_change(self, model: str, name: str, message: str) -> None:
        assert check(model) == (name, message)

    @pytest.mark.parametrize(
        "model",
        [
            MODEL.replace("from cuda_extension import scale", "import cuda_extension").replace("scale(x", "cuda_extension.scale(x"),
            MODEL.replace("import scale", "import scale as run, strided").replace("scale(x", "run(strided(x)"),
            MODEL.replace("from cuda_extension import scale", "import importlib\nscale = importlib.import_module('cuda_extension').scale"),
            MODEL.replace("class ModelNew", "class Fast") + "\nModelNew = Fast\n",
            MODEL.replace("class ModelNew", "try:\n    import none_such\nexcept ImportError:\n    none_such = None\n\nclass ModelNew"),
        ],
        ids=["module", "renamed", "importlib", "alias", "try"],
    )  # fmt: skip
    def test_other_ways_to_write_the_same_pass(self, model: str) -> None:
        assert check(model) is None


class TestKernels:
    @pytest.mark.parametrize(
        "header", ["torch/extension.h", "ATen/ATen.h", "c10/cuda/CUDAStream.h", "pybind11/pybind11.h", "Python.h"]
    )
    def test_torch_headers_are_refused_with_the_other_way(self, header: str) -> None:
        refused = check(kernels=f"\n#include <{header}>\n{SCALE}")
        assert refused is not None
        assert refused[0] == "torch headers"
        assert refused[1].startswith(f"kernels/scale.cu:2: includes {header}. Kernels are built without torch")

    @pytest.mark.parametrize("header", ["/etc/passwd", "../../secret.h", "../model_new.py/../../x.h"])
    def test_includes_that_leave_the_folder_are_refused(self, header: str) -> None:
        refused = check(kernels=f'#include "{header}"\n{SCALE}')
        assert refused == (
            "include path",
            f"kernels/scale.cu:1: includes {header}, which lies outside the candidate. Copy the header to kernels/.",
        )

    def test_own_and_toolkit_headers_pass(self) -> None:
        kernels = {
            "a/scale.cu": f'#include "../torch_like.cuh"\n#include <cub/cub.cuh>\n#include <mma.h>\n{SCALE}',
            "torch_like.cuh": "// ours",
        }
        assert check(kernels=kernels) is None

    def test_no_launcher_is_told_how_one_looks_and_what_nearly_was_one(self) -> None:
        refused = check(kernels=SCALE.replace('extern "C" ', ""))
        assert refused is not None
        assert refused[0] == "launchers"
        assert (
            'such as extern "C" int scale_launcher(const float* x, float* y, int n, cudaStream_t stream)' in refused[1]
        )
        assert refused[1].endswith(
            'scale: kernels/scale.cu:6 defines it without extern "C"; write extern "C" in front of it.'
        )

    def test_a_file_that_cannot_be_parsed_is_left_to_nvcc(self) -> None:
        assert check(kernels="__global__ void k( {{{\n") is None


class TestFolder:
    def test_sources_and_headers_are_read_and_the_rest_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "kernels" / "sub").mkdir(parents=True)
        (tmp_path / "model_new.py").write_text("\ufeff" + MODEL, encoding="utf-8")
        for name in ("scale.cu", "sub/a.cuh", "b.h", "notes.md", ".hidden.cu", "scale.o"):
            (tmp_path / "kernels" / name).write_text(SCALE)
        (tmp_path / "README.md").write_text("x")
        read = read_candidate(tmp_path)
        assert list(read.files) == ["kernels/b.h", "kernels/scale.cu", "kernels/sub/a.cuh", "model_new.py"]
        assert read.files["model_new.py"] == MODEL
        assert read.id == read_candidate(tmp_path).id
        (tmp_path / "kernels" / "b.h").write_text("")
        assert read_candidate(tmp_path).id != read.id

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ({}, r"it has no model_new.py; it holds nothing. A candidate is a folder with model_new.py"),
            ({"model.py": ""}, r"it has no model_new.py; it holds model.py"),
            ({"model_new.py": ""}, r"kernels/ is not there"),
            ({"model_new.py": "", "kernels/x.cuh": ""}, r"kernels/ holds no .cu file"),
            ({"model_new.py": "from torch.utils.cpp_extension import load_inline"}, r"model_new.py calls load_inline, the single-file form, .* move the CUDA text to kernels/NAME.cu"),
            ({"model_new.py": "", "kernels/x.cu": "", "kernels/x.cpp": ""}, r"host code belongs in .cu files"),
            ({"model_new.py": "", "kernels/x.cu": "", "kernels/x_binding.cpp": ""}, r"the form of the released CUDA-Agent work directory"),
            ({"model_new.py": "", "kernels/x.cu": b"\xff\xfe"}, r"kernels/x.cu is not UTF-8 text \(byte 0\)"),
            ({"model_new.py": "", "kernels/x.cu": "a\0b"}, r"kernels/x.cu holds a NUL byte"),
            ({"model_new.py": "", "kernels/x.cu": " " * (LARGEST_FILE_BYTES + 1)}, r"kernels/x.cu has 2097153 bytes, at most 2097152 are read"),
        ],
    )  # fmt: skip
    def test_a_folder_that_is_no_candidate_says_what_it_holds(
        self, tmp_path: Path, files: dict[str, str | bytes], message: str
    ) -> None:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(CandidateFolderError, match=message):
            read_candidate(tmp_path)

    def test_a_missing_folder_and_a_file_are_told_apart(self, tmp_path: Path) -> None:
        with pytest.raises(CandidateFolderError, match="there is no such folder"):
            read_candidate(tmp_path / "none")
        (tmp_path / "x.py").write_text("load_inline()")
        with pytest.raises(
            CandidateFolderError, match=r"it is a file, and a candidate is a folder. x.py calls load_inline"
        ):
            read_candidate(tmp_path / "x.py")

    def test_links_must_stay_inside_and_loops_end(self, tmp_path: Path) -> None:
        folder = tmp_path / "candidate"
        (folder / "kernels").mkdir(parents=True)
        (folder / "model_new.py").write_text(MODEL)
        (folder / "kernels" / "scale.cu").write_text(SCALE)
        os.symlink("scale.cu", folder / "kernels" / "same.cu")
        os.symlink("..", folder / "kernels" / "loop")
        assert "kernels/same.cu" in read_candidate(folder).files
        (tmp_path / "secret.cu").write_text("")
        os.symlink(tmp_path / "secret.cu", folder / "kernels" / "out.cu")
        with pytest.raises(
            CandidateFolderError, match=r"kernels/out.cu is a link that leads out of the folder. Copy the file."
        ):
            read_candidate(folder)


class TestToolkit:
    def test_a_named_nvcc_that_does_not_run_is_reported_with_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_AGENT_NVCC", "/nowhere/nvcc")
        with pytest.raises(
            ToolkitError,
            match=r"found /nowhere/nvcc does not run. Install the CUDA compiler as wheels with `pip install",
        ):
            discover()

    def test_an_old_nvcc_is_refused_by_version(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        nvcc = tmp_path / "nvcc"
        nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n")
        nvcc.chmod(0o755)
        monkeypatch.setenv("CUDA_AGENT_NVCC", str(nvcc))
        with pytest.raises(ToolkitError, match=r"is version 11.8.89, older than 12.4"):
            discover()

    def test_no_host_compiler_is_reported_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(
            ToolkitError, match=r"no g\+\+ is on the PATH. Install one \(Debian or Ubuntu: apt install g\+\+\)"
        ):
            discover()
