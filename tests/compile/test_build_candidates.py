"""Build candidates: what comes back from the compilers, from the cache, and when something is in the way."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch

from cuda_agent import emulator
from cuda_agent.emulator.runtime import Runtime
from cuda_agent.errors import MachineError, UserError
from cuda_agent.gates import binding, compile
from cuda_agent.gates.cache import LIBRARY, BuildCache
from cuda_agent.gates.compile import CompileGate
from cuda_agent.gates.toolkit import Toolkit
from cuda_agent.records.candidate import Build, Candidate
from cuda_agent.records.verdict import BuildFailed, SourceRejected, TimedOut
from tests.compile.building import SCALE, candidate, emulated, extension

HOPPER = ("sm_90a",)


def gate_in(folder: Path, toolkit: Toolkit, *, time_limit_s: float = 300) -> CompileGate:
    return CompileGate(
        toolkit=toolkit,
        cache_folder=folder,
        emulator_library=emulator.core_library,
        emulator_headers=emulator.host_headers(),
        time_limit_s=time_limit_s,
    )


class TestBuilt:
    def test_files_with_a_shared_header_make_one_module(self, gate: CompileGate, runtime: Runtime) -> None:
        module = extension(
            gate,
            {
                "include/apply.cuh": "#pragma once\ntemplate <int F> __global__ void apply(float* x) { x[threadIdx.x] *= F; }\n",
                "twice.cu": '#include "include/apply.cuh"\n'
                'extern "C" void twice(float* x, int n, cudaStream_t s) { apply<2><<<1, n, 0, s>>>(x); }',
                "sub/thrice.cu": '#include "../include/apply.cuh"\n'
                'namespace inner {\nextern "C" void thrice(float* x, int n, cudaStream_t s) { apply<3><<<1, n, 0, s>>>(x); }\n}',
            },
        )
        x = torch.ones(3)
        module.twice(x, 3)
        module.thrice(x, 3)
        assert x.tolist() == [6.0, 6.0, 6.0]

    def test_the_build_for_a_device_reports_what_ptxas_says(self, gate: CompileGate) -> None:
        text = SCALE.replace(
            "int i =", "__shared__ float tile[256]; tile[threadIdx.x] = x[0]; __syncthreads();\n  int i ="
        ).replace("2.0f * x[i]", "tile[255 - threadIdx.x]")
        build = gate.build(candidate(text), target="cuda", architectures=HOPPER)
        assert isinstance(build, Build)
        (kernel,) = build.resources
        assert kernel.kernel == "scale_kernel(float const*, float*, int)"
        assert (kernel.arch, kernel.static_shared_bytes, kernel.spill_store_bytes) == ("sm_90a", 1024, 0)
        assert 4 <= kernel.registers <= 64
        assert build.warnings == ()
        assert [q.name for q in build.launchers] == ["scale"]
        assert "-gencode arch=compute_90a,code=sm_90a" in build.command
        assert "/" not in build.command.replace("kernels/scale.cu", "")
        again = gate.build(candidate(text), target="cuda", architectures=HOPPER)
        assert again == msgspec.structs.replace(build, cached=True)

    def test_warnings_are_kept(self, gate: CompileGate) -> None:
        build = emulated(gate, candidate(SCALE.replace("int i =", "int unused_number;\n  int i =")))
        assert [(w.severity, w.file, w.line) for w in build.warnings] == [("warning", "kernels/scale.cu", 3)]
        assert "unused_number" in build.warnings[0].message


class TestRefused:
    def test_an_error_names_file_and_line_in_the_authors_words(self, gate: CompileGate) -> None:
        made = candidate(
            {
                "scale.cu": SCALE.replace("2.0f * x[i]", "2.0f * xx[i]"),
                "other.cu": SCALE.replace("int scale(", "int other(").replace("scale_kernel", "other_kernel"),
            }
        )
        failed = gate.build(made, target="emulated", architectures=("compute_90",))
        assert isinstance(failed, BuildFailed)
        assert failed.message == 'kernels/scale.cu:4: identifier "xx" is undefined'
        assert [(d.severity, d.file, d.line) for d in failed.diagnostics] == [("error", "kernels/scale.cu", 4)]

    def test_a_missing_header_is_named(self, gate: CompileGate) -> None:
        failed = gate.build(
            candidate('#include "tools.cuh"\n' + SCALE), target="emulated", architectures=("compute_90",)
        )
        assert isinstance(failed, BuildFailed)
        assert failed.message.startswith("kernels/scale.cu:1: tools.cuh: No such file or directory")

    def test_a_function_nobody_defines_is_named(self, gate: CompileGate) -> None:
        text = "void elsewhere(int);\n" + SCALE.replace("scale_kernel<<<", "elsewhere(n); scale_kernel<<<")
        failed = gate.build(candidate(text), target="emulated", architectures=("compute_90",))
        assert isinstance(failed, BuildFailed)
        assert failed.check == "link"
        assert "elsewhere" in failed.message
        assert failed.message.endswith("declared and called, but defined in no .cu file and no linked library")

    def test_one_kernel_in_two_files_is_a_link_error_without_paths(self, gate: CompileGate) -> None:
        texts = {"a.cu": SCALE, "b.cu": SCALE.replace("int scale(", "int scale_again(")}
        failed = gate.build(candidate(texts), target="emulated", architectures=("compute_90",))
        assert isinstance(failed, BuildFailed)
        assert "multiple definition of" in failed.message
        assert "scale_kernel" in failed.message
        assert "/tmp" not in failed.message

    def test_many_errors_are_trimmed(self, gate: CompileGate) -> None:
        lines = "\n".join(f"  y[{k}] = missing_{k};" for k in range(40))
        text = SCALE.replace("int i =", lines + "\n  int i =")
        failed = gate.build(candidate(text), target="emulated", architectures=("compute_90",))
        assert isinstance(failed, BuildFailed)
        assert failed.message.endswith(f"(and {len(failed.diagnostics) - 5} more errors)")
        assert len(failed.diagnostics) == compile.MOST_DIAGNOSTICS
        assert failed.diagnostics[0].line == 3

    def test_a_launcher_that_cannot_be_bound_is_refused_before_anything_compiles(self, gate: CompileGate) -> None:
        made = candidate('extern "C" void f(struct P p, cudaStream_t s) {}')
        refused = gate.build(made, target="emulated", architectures=("compute_90",))
        assert isinstance(refused, SourceRejected)
        assert (refused.gate, refused.check) == ("compile", "launcher signature")
        assert "parameter 1 `struct P p`" in refused.message

    def test_an_unknown_architecture_is_the_users_mistake(self, gate: CompileGate) -> None:
        with pytest.raises(
            UserError, match=r"Architecture sm_12: nvcc [\d.]+ does not know it. It builds for sm_\d+,.*sm_90a"
        ):
            gate.build(candidate(), target="cuda", architectures=("sm_12",))

    def test_a_build_that_takes_too_long_is_ended(self, toolkit: Toolkit, tmp_path: Path) -> None:
        endless = "template <int N> struct F { static const long v = F<N-1>::v + F<N-2>::v + (N & 1); };\n"
        started = time.monotonic()
        ended = gate_in(tmp_path, toolkit, time_limit_s=0.3).build(
            candidate(endless + SCALE), target="emulated", architectures=("compute_90",)
        )
        assert isinstance(ended, TimedOut)
        assert (ended.gate, ended.check, ended.limit_s) == ("compile", "build time", 0.3)
        assert "did not finish within" in ended.message
        assert time.monotonic() - started < 10
        assert list((tmp_path / "builds").iterdir()) == []


class TestCache:
    def test_the_key_changes_with_whatever_may_change_the_result(
        self, gate: CompileGate, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = candidate()

        def key(made: Candidate = made, toolkit: Toolkit = toolkit, **changed: object) -> str:
            with monkeypatch.context() as patch:
                patch.setattr(gate, "_toolkit", toolkit)
                target = changed.pop("target", "cuda")
                architectures = changed.pop("architectures", HOPPER)
                library = changed.pop("emulator", None)
                for name, value in changed.items():
                    patch.setattr(compile, name, value)
                return gate._key(made, target, architectures, library)  # type: ignore[arg-type]

        plain = key()
        assert key() == plain
        others = {
            "source": key(candidate(SCALE.replace("2.0f", "3.0f"))),
            "another file": key(candidate({"scale.cu": SCALE, "more.cuh": "// nothing"})),
            "file name": key(candidate({"renamed.cu": SCALE})),
            "architecture": key(architectures=("sm_90",)),
            "architectures": key(architectures=("sm_90a", "sm_80")),
            "flags": key(CUDA_FLAGS=(*compile.CUDA_FLAGS, "-G")),
            "binding flags": key(BINDING_FLAGS=("-O0",)),
            "nvcc's version": key(toolkit=msgspec.structs.replace(toolkit, version="13.0.1")),
            "host compiler's version": key(toolkit=msgspec.structs.replace(toolkit, host_version="g++ 1.0")),
            "target": key(target="emulated"),
            "emulator": key(target="emulated", emulator=Path("/elsewhere/core.so")),
        }
        monkeypatch.setattr(binding, "generator_version", lambda: "another")
        others["binding"] = key()
        assert len({plain, *others.values()}) == 1 + len(others), others

    def test_the_module_is_no_part_of_the_key_and_the_kernels_are(self, gate: CompileGate) -> None:
        first = emulated(gate, candidate())
        again = emulated(gate, candidate(model="from cuda_extension import scale\nclass ModelNew: pass\n"))
        assert again == msgspec.structs.replace(first, cached=True)

    def test_one_candidate_built_twice_at_once_is_stored_once(self, toolkit: Toolkit, tmp_path: Path) -> None:
        gates = [gate_in(tmp_path, toolkit) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            builds = list(pool.map(lambda each: emulated(each, candidate()), gates))
        assert len({build.key for build in builds}) == 1
        assert all(Path(build.library).is_file() for build in builds)
        assert [path.name for path in (tmp_path / "builds").iterdir()] == [builds[0].key]
        assert emulated(gates[0], candidate()).cached

    @pytest.mark.parametrize("damage", ["library", "record", "missing library", "missing record"])
    def test_a_damaged_entry_is_a_miss_and_is_replaced(self, tmp_path: Path, damage: str) -> None:
        cache = BuildCache(tmp_path / "builds")
        made = cache.work_folder() / LIBRARY
        made.write_bytes(b"machine code")
        build = Build(
            key="k", library="", target="cuda", architectures=HOPPER, launchers=(), resources=(), warnings=(),
            toolkit="nvcc", command="nvcc", seconds=1.0, cached=False,
        )  # fmt: skip
        entry = Path(cache.publish("k", made, build).library).parent
        found = cache.find("k")
        assert found == msgspec.structs.replace(build, library=str(entry / LIBRARY), cached=True)
        if damage == "library":
            (entry / LIBRARY).write_bytes(b"machine cod")
        elif damage == "record":
            (entry / "entry.json").write_text("{")
        else:
            (entry / (LIBRARY if damage == "missing library" else "entry.json")).unlink()
        assert cache.find("k") is None
        cache.publish("k", made, build)
        assert cache.find("k") == found

    def test_a_killed_build_leaves_no_entry_and_its_rest_is_cleared_later(
        self, toolkit: Toolkit, tmp_path: Path
    ) -> None:
        script = (
            "from pathlib import Path\n"
            "from tests.compile.building import candidate\n"
            "from tests.compile.test_build_candidates import gate_in\n"
            "from cuda_agent.gates.toolkit import discover\n"
            f"gate = gate_in(Path({str(tmp_path)!r}), discover())\n"
            "gate.build(candidate(), target='emulated', architectures=('compute_90',))\n"
        )
        command = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
        builds = tmp_path / "builds"
        deadline = time.monotonic() + 60
        while not list(builds.glob(".building.*/binding.cpp")) and time.monotonic() < deadline:
            time.sleep(0.005)
        command.send_signal(signal.SIGKILL)
        command.wait()
        (left,) = builds.iterdir()
        assert left.name.startswith(".building.")
        os.utime(left, (0, 0))
        built = emulated(gate_in(tmp_path, toolkit), candidate())
        assert not built.cached
        assert [path.name for path in builds.iterdir()] == [built.key]


class TestConfined:
    """The sources are a stranger's, and a compiler reads and writes whatever they say."""

    @pytest.mark.parametrize(
        "line",
        ['#include "{secret}"', 'asm(".incbin \\"{secret}\\"");'],
        ids=["included", "embedded"],
    )
    def test_a_build_can_not_take_in_files_of_the_user(self, gate: CompileGate, tmp_path: Path, line: str) -> None:
        secret = tmp_path / "secret.h"
        secret.write_text("// the expected values\n")
        source = f"{SCALE}\n{line.format(secret=secret)}\n"
        built = gate.build(candidate(source), target="emulated", architectures=("compute_90a",))
        if (
            "read files"
            not in json.loads(subprocess.check_output([sys.executable, "-m", "cuda_agent.worker.protections"]))["taken"]
        ):
            pytest.skip("this machine confines no files")
        assert isinstance(built, BuildFailed), built
        assert "the expected values" not in built.message

    def test_a_build_that_would_take_all_time_and_memory_is_ended(self, toolkit: Toolkit, tmp_path: Path) -> None:
        source = f"""{SCALE}
template <int D, long K> struct Tree {{ static constexpr long sum = Tree<D - 1, 2 * K>::sum + Tree<D - 1, 2 * K + 1>::sum; }};
template <long K> struct Tree<0, K> {{ static constexpr long sum = K; }};
__device__ long bomb = Tree<40, 1>::sum;
"""
        limited = gate_in(tmp_path, toolkit, time_limit_s=8)
        built = limited.build(candidate(source), target="emulated", architectures=("compute_90a",))
        assert isinstance(built, BuildFailed | TimedOut), built


class TestMachine:
    def test_a_full_disk_is_the_machines_fault_and_nothing_half_built_stays(
        self, toolkit: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(self: Path, *_: object, **__: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_text", full)
            with pytest.raises(
                MachineError, match=r"No space left on device .*CUDA_AGENT_CACHE; nothing half-built was kept"
            ):
                gate_in(tmp_path, toolkit).build(candidate(), target="cuda", architectures=HOPPER)
        assert list((tmp_path / "builds").iterdir()) == []

    def test_a_compiler_that_finds_the_disk_full_is_the_machines_fault(self, toolkit: Toolkit, tmp_path: Path) -> None:
        compiler = tmp_path / "g++"
        compiler.write_text(
            "#!/bin/sh\necho 'fatal error: error writing to /tmp/x.s: No space left on device' >&2\nexit 1\n"
        )
        compiler.chmod(0o755)
        broken = msgspec.structs.replace(toolkit, host_compiler=str(compiler))
        with pytest.raises(MachineError, match="no space left on the disk of the build cache or of temporary files"):
            gate_in(tmp_path / "cache", broken).build(candidate(), target="emulated", architectures=("compute_90",))

    def test_an_unwritable_cache_is_the_machines_fault(self, toolkit: Toolkit, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(MachineError, match=r"failed: .*\(.*/file/builds\). .*CUDA_AGENT_CACHE"):
            gate_in(tmp_path / "file", toolkit).build(candidate(), target="cuda", architectures=HOPPER)

    def test_a_compiler_that_is_gone_is_the_machines_fault(self, toolkit: Toolkit, tmp_path: Path) -> None:
        gone = msgspec.structs.replace(toolkit, host_compiler=str(tmp_path / "g++"))
        with pytest.raises(MachineError, match=r"No such file or directory \(.*/g\+\+\). The compiler was there"):
            gate_in(tmp_path / "cache", gone).build(candidate(), target="emulated", architectures=("compute_90",))

    def test_an_interrupted_build_ends_its_compilers(
        self, toolkit: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compiler = tmp_path / "g++"
        compiler.write_text("#!/bin/sh\nsleep 60\n")
        compiler.chmod(0o755)
        slow = msgspec.structs.replace(toolkit, nvcc=str(compiler), host_compiler=str(compiler))
        monkeypatch.setattr(compile, "check_architecture", lambda toolkit, architecture: None)
        timer = threading.Timer(0.5, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            gate_in(tmp_path, slow).build(candidate(), target="cuda", architectures=HOPPER)
        assert time.monotonic() - started < 10
        assert list((tmp_path / "builds").iterdir()) == []
