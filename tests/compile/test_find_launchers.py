"""Write launchers in the ways people write them: each is found with its types, or the message says why not."""

from __future__ import annotations

import pytest

from cuda_agent.errors import SignatureError
from cuda_agent.gates.signatures import find_launchers, read_kernels
from cuda_agent.records.candidate import Launcher
from tests.compile.building import candidate


def found(kernels: str | dict[str, str]) -> dict[str, Launcher]:
    return {launcher.name: launcher for launcher in find_launchers(candidate(kernels))}


def shown(launcher: Launcher) -> str:
    """Return the canonical signature without the stream."""
    parts = [f"{'const ' if p.const else ''}{p.ctype} {p.name}" for p in launcher.parameters]
    return f"{launcher.returns} {launcher.name}({', '.join(parts)})"


class TestFound:
    @pytest.mark.parametrize(
        ("text", "signature"),
        [
            ('extern "C" void f(const float* x, cudaStream_t s) {}', "void f(const float* x)"),
            ('extern "C" int f(float const *x, cudaStream_t) { return 0; }', "int f(const float* x)"),
            ('extern "C" cudaError_t f(float* __restrict__ x, cudaStream_t s) { return cudaSuccess; }', "cudaError_t f(float* x)"),
            ('extern "C" void f(const int64_t* i, size_t n, cudaStream_t s) {}', "void f(const long long* i, unsigned long long n)"),
            ('extern "C" void f(unsigned n, unsigned long m, long long k, cudaStream_t s) {}', "void f(unsigned int n, unsigned long long m, long long k)"),
            ('extern "C" void f(std::uint8_t a, char b, uint16_t c, cudaStream_t s) {}', "void f(unsigned char a, signed char b, unsigned short c)"),
            ('extern "C" void f(half* a, const nv_bfloat16* b, __half2* c, cudaStream_t s) {}', "void f(__half* a, const __nv_bfloat16* b, __half2* c)"),
            ('extern "C" void f(float x[], const void* y, cudaStream_t s) {}', "void f(float* x, const void* y)"),
            ('extern "C" void f(const float, cudaStream_t) {}', "void f(float argument1)"),
            ('extern "C" void f(float eps = 1e-5f, cudaStream_t s = 0) {}', "void f(float eps)"),
            ('extern "C" void f(cudaStream_t s) {}', "void f()"),
            ('extern "C" void f(float* const x, bool flag, cudaStream_t s) {}', "void f(float* x, bool flag)"),
            ('extern "C" void f(const cuComplex* x, thrust::complex<double>* y, cudaStream_t s) {}', "void f(const cuFloatComplex* x, cuDoubleComplex* y)"),
            ('extern "C" void f(int n, CUstream s) {}', "void f(int n)"),
            ('extern "C" __host__ void f(int n, cudaStream_t s) noexcept {}', "void f(int n)"),
        ],
    )  # fmt: skip
    def test_types_come_out_canonical(self, text: str, signature: str) -> None:
        assert shown(found(text)["f"]) == signature

    @pytest.mark.parametrize(
        "text",
        [
            'extern "C" {\nvoid f(int n, cudaStream_t s) {}\n}',
            'namespace a { namespace b {\nextern "C" void f(int n, cudaStream_t s) {}\n} }',
            '#define LAUNCHER extern "C" void\nLAUNCHER f(int n, cudaStream_t s) {}',
            '#define MAKE(NAME) extern "C" void NAME(int n, cudaStream_t s) {}\nMAKE(f)',
            '#if CUDART_VERSION >= 12000\nextern "C" void f(int n, cudaStream_t s) {}\n#else\nbroken (\n#endif',
            '#ifdef __CUDACC__\nextern "C" void f(int n, cudaStream_t s) {}\n#endif',
            '#include <cuda_runtime.h>\n#include "cub/cub.cuh"\nextern "C" void f(int n, cudaStream_t s) {}',
            'extern "C" void f(int n, cudaStream_t s);\nvoid f(int n, cudaStream_t s) {}',
            'extern "C" void f(\n    int n,  // how many\n    cudaStream_t s  /* ours */) {\n}',
            'template <int N> __global__ void k(float* x) {}\ntemplate <int N> void go(float* x, cudaStream_t s) {}\n'
            'extern "C" void f(int n, cudaStream_t s) { go<4>(nullptr, s); }',
            'const char* text = "extern \\"C\\" void g(int n, cudaStream_t s) {}";\n'
            'extern "C" void f(int n, cudaStream_t s) {}\n// extern "C" void h(int n, cudaStream_t s) {}',
            '#if 0\nextern "C" void g(int n, cudaStream_t s) {}\n#endif\nextern "C" void f(int n, cudaStream_t s) {}',
        ],
        ids=["block", "namespace", "macro prefix", "macro", "if", "ifdef", "headers", "declared", "comments", "template",
             "string", "if 0"],
    )  # fmt: skip
    def test_wherever_it_stands(self, text: str) -> None:
        assert [shown(launcher) for launcher in found(text).values()] == ["void f(int n)"]

    def test_aliases_are_followed_through_the_candidates_own_headers(self) -> None:
        launchers = found(
            {
                "common.cuh": "#pragma once\nusing scalar_t = __half;\ntypedef const scalar_t* input_t;\n#define N_TYPE int64_t\n"
                "enum Mode { fast, exact };\ntypedef enum { up, down } Way;\nenum class Small : unsigned char { a };",
                "a.cu": '#include "common.cuh"\nextern "C" void f(input_t x, scalar_t* y, N_TYPE n, Mode m, enum Mode k, Way w, '
                "Small s, cudaStream_t stream) {}",
            }
        )
        assert shown(launchers["f"]) == (
            "void f(const __half* x, __half* y, long long n, int m, int k, int w, unsigned char s)"
        )

    def test_file_and_line_are_the_authors(self) -> None:
        launchers = found(
            {
                "b.cu": '#include "shared.h"\n\n\nextern "C" void f(int n, cudaStream_t s) {}\n',
                "sub/a.cu": '#include "../shared.h"\nextern "C" void g(int n, cudaStream_t s) {}\n',
                "shared.h": "#pragma once\n" + "static int filler;\n" * 40,
            }
        )
        assert [(q.name, q.file, q.line) for q in launchers.values()] == [
            ("f", "kernels/b.cu", 4),
            ("g", "kernels/sub/a.cu", 2),
        ]

    def test_a_header_may_declare_what_a_file_defines(self) -> None:
        launchers = found(
            {
                "all.h": '#pragma once\nextern "C" { void f(const float* x, cudaStream_t s); }',
                "f.cu": '#include "all.h"\nvoid f(const float* x, cudaStream_t s) {}',
                "g.cu": '#include "all.h"\nextern "C" void g(cudaStream_t s) { f(nullptr, s); }',
            }
        )
        assert {name: q.file for name, q in launchers.items()} == {"f": "kernels/f.cu", "g": "kernels/g.cu"}


class TestRefused:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("extern \"C\" void f(std::vector<float> x, cudaStream_t s) {}", r"kernels/scale.cu:1: launcher f, parameter 1 `std::vector<float> x`: the type .* is not one that Python can pass. A launcher takes pointers to void"),
            ("struct P { int a; };\nextern \"C\" void f(int n, P p, cudaStream_t s) {}", r"kernels/scale.cu:2: launcher f, parameter 2 `P p`: the type P is not one"),
            ("extern \"C\" void f(const float& x, cudaStream_t s) {}", r"parameter 1 `const float& x`: a reference can't be passed from Python; take it by value"),
            ("extern \"C\" void f(float** x, cudaStream_t s) {}", r"a pointer to pointers can't be passed from Python; take one pointer a tensor"),
            ("extern \"C\" void f(void (*g)(int), cudaStream_t s) {}", r"a function pointer can't be passed"),
            ("extern \"C\" void f(cudaStream_t a, cudaStream_t s) {}", r"there is one stream, the last parameter"),
            ("extern \"C\" void f(long double x, cudaStream_t s) {}", r"the type long double is not one"),
            ("extern \"C\" float f(int n, cudaStream_t s) { return 0; }", r"launcher f returns float; it must return void, int \(0 for success\) or cudaError_t"),
            ("extern \"C\" float* f(int n, cudaStream_t s) { return 0; }", r"launcher f returns float \*; it must return"),
            ("extern \"C\" void strided(int n, cudaStream_t s) {}", r"a launcher is named strided, a name of cuda_extension itself. Rename it"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_bound_says_where_and_why(self, text: str, message: str) -> None:
        with pytest.raises(SignatureError, match=message):
            found(text)

    def test_two_launchers_of_one_name_are_both_placed(self) -> None:
        with pytest.raises(SignatureError, match=r"Two launchers are named f: kernels/a.cu:1 and kernels/b.cu:2."):
            found(
                {
                    "a.cu": 'extern "C" void f(int n, cudaStream_t s) {}',
                    "b.cu": '\nextern "C" void f(float* x, cudaStream_t s) {}',
                }
            )

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("void f(int n, cudaStream_t s) {}", 'kernels/scale.cu:1 defines it without extern "C"; write extern "C" in front of it'),
            ("__global__ void f(float* x) {}", "kernels/scale.cu:1 defines it as a __global__ kernel; Python calls a host function that launches it"),
            ('extern "C" void f(float* x, int n) {}', "kernels/scale.cu:1 defines it, and its last parameter is `int n`; the last parameter of a launcher is a cudaStream_t"),
            ('extern "C" void f() {}', "kernels/scale.cu:1 defines it, and it takes no parameter; the last parameter of a launcher is a cudaStream_t"),
            ('extern "C" void f(int n, cudaStream_t s);', "kernels/scale.cu:1 declares it, and no file under kernels/ defines it"),
        ],
    )  # fmt: skip
    def test_a_near_miss_is_remembered_with_its_reason(self, text: str, reason: str) -> None:
        kernels = read_kernels(candidate(text))
        assert kernels.launchers == ()
        assert kernels.others == {"f": reason}
