"""Generates a pointwise kernel: every element is computed once, from loads at its own position or by broadcasting.

A thread moves several independent vectors of up to 16 bytes, which keeps enough bytes in flight to hide the latency of
device memory. What is left over at the end, and tensors that are not aligned, take the plain path.
"""

from __future__ import annotations

from cuda_agent.skills import cuda_text
from cuda_agent.skills.element import Access, Extents, Names, Statements, index_text, loads, size_text
from cuda_agent.skills.kernel_text import (
    Generated,
    Tuning,
    extent_parameter,
    indented,
    kernel_tensors,
    output_parameter,
    preamble,
    tensor_parameter,
    vector_width,
)
from cuda_agent.skills.program import Expression, Load, Program, Shape, Size, Tensor, Unplaceable, count, product_text
from cuda_agent.skills.sharing import resolved

TUNINGS: tuple[dict[str, int | bool], ...] = ({"vectors": 1}, {"threads": 256}, {"vectors": 4})
"""More vectors a thread hide more latency and cost registers; the block size moves the tail."""


def generate(program: Program, tuning: Tuning) -> Generated:
    """Return the kernel of a program without reductions.

    Raises:
        Unplaceable: its outputs have different numbers of elements.
    """
    return _Pointwise(program, tuning).generated()


class _Pointwise:
    def __init__(self, program: Program, tuning: Tuning) -> None:
        program, ways = resolved(program, rows=None, columns=None)
        self._program = program
        self._tuning = tuning
        self._shape: Shape = program.outputs[0].value.shape
        if any(count(output.value.shape) != count(self._shape) for output in program.outputs):
            raise Unplaceable("outputs of different sizes")
        self._tensors: dict[str, Tensor] = {}
        self._loads: dict[int, tuple[Tensor, Access]] = {}
        for output in program.outputs:
            for load in loads([output.value.expression]):
                self._tensors.setdefault(load.tensor.name, load.tensor)
                self._loads[id(load)] = (load.tensor, ways[id(load)])
        self._names = Names([*self._tensors, *(output.name for output in program.outputs), program.name, "total"])
        self._launch_extents = Extents(self._names)
        self._extents = self._launch_extents.for_kernel()
        dtypes = {t.dtype for t in self._tensors.values()} | {o.value.dtype for o in program.outputs}
        moved = {t.dtype for t, found in self._loads.values() if found.vectors} | {
            o.value.dtype for o in program.outputs
        }
        self._dtypes = dtypes
        self._width = 1 if tuning.scalar else vector_width(moved)

    def generated(self) -> Generated:
        program, width = self._program, self._width
        element, functions = self._element()
        kernel = self._kernel()
        source = [
            f"// {program.name}: one pass over memory; every element is read, computed and written once.",
            *preamble(self._dtypes, functions, vectors=True),
            *element,
            "",
            *kernel,
            "",
            *self._launcher(),
            "",
        ]
        arguments = [t.python for t in self._tensors.values()] + [o.name for o in program.outputs]
        arguments += [product_text(self._shape), *(e.python for e in self._launch_extents.all)]
        note = f"{self._tuning.threads} threads a block, {self._tuning.vectors} vectors of {width} elements a thread"
        return Generated(f"{program.name}_launcher", "\n".join(source), tuple(arguments), program.outputs, note=note)

    def _distinct(self) -> list[tuple[str, Tensor, Access]]:
        """Return each (tensor, way to read it) once, with the name of the value read."""
        found: dict[tuple[str, str], tuple[str, Tensor, Access]] = {}
        for tensor, way in self._loads.values():
            key = (tensor.name, repr(way))
            if key not in found:
                found[key] = (f"{tensor.name}_value", tensor, way)
        if len({name for name, _, _ in found.values()}) != len(found):
            return [(f"{name}_{n}", t, w) for n, (name, t, w) in enumerate(found.values())]
        return list(found.values())

    def _element(self) -> tuple[list[str], list[str]]:
        """Return the device function that computes one element."""
        distinct = self._distinct()
        names = {(t.name, repr(w)): name for name, t, w in distinct}
        statements = Statements(self._names, lambda e: self._leaf(e, names))
        results = []
        for output in self._program.outputs:
            text = statements.text(output.value.expression)
            results.append(f"{output.name}_value = {cuda_text.narrow(text, output.value.dtype)};")
        parameters = [f"{cuda_text.COMPUTE[t.dtype]} {name}" for name, t, _ in distinct]
        parameters += [extent_parameter(e) for e in self._extents.used]
        parameters += [f"{cuda_text.STORAGE[o.value.dtype]}& {o.name}_value" for o in self._program.outputs]
        lines = [
            "// One element, in float where the tensors are narrower; rounded once, when it is stored.",
            f"__device__ __forceinline__ void {self._program.name}_element({', '.join(parameters)}) {{",
            *indented([*statements.lines, *results], 1),
            "}",
        ]
        self._element_extents = list(self._extents.used)
        return lines, list(statements.functions)

    def _leaf(self, expression: Expression, names: dict[tuple[str, str], str]) -> str | None:
        if isinstance(expression, Load):
            tensor, way = self._loads[id(expression)]
            return names[(tensor.name, repr(way))]
        if isinstance(expression, Size):
            return size_text(expression, lambda dims: self._extents.parameter(dims, "extent"))
        return None

    def _call(self, values: list[str], results: list[str]) -> str:
        """Return the call of the element function on values as they are stored."""
        widened = [cuda_text.widen(text, tensor.dtype) for text, (_, tensor, _) in zip(values, self._distinct())]
        return f"{self._program.name}_element({', '.join([*widened, *(e.name for e in self._element_extents), *results])});"

    def _kernel(self) -> list[str]:
        early, late, values, ends = [], [], [], []
        arrays = []
        for name, tensor, way in self._distinct():
            storage = cuda_text.STORAGE[tensor.dtype]
            if way.place == "full":
                arrays.append(f"Vector<{storage}, N> {name}s[VECTORS];")
                early.append(f"{name}s[v] = load<N>({tensor.name} + position);")
                values.append(f"{name}s[v].element[lane]")
                ends.append(f"{tensor.name}[rest]")
            elif way.place == "uniform":
                values.append(f"{tensor.name}[0]")
                ends.append(f"{tensor.name}[0]")
            else:
                index = index_text(way, "position", self._extents, tensor.name, "Index")
                ends.append(f"{tensor.name}[{index_text(way, 'rest', self._extents, tensor.name, 'Index')}]")
                if way.vectors:
                    late.append(f"const Vector<{storage}, N> {name}s = load<N>({tensor.name} + {index});")
                    values.append(f"{name}s.element[lane]")
                else:
                    late.append(f"const {storage} {name} = {tensor.name}[{index}];")
                    values.append(name)
        outputs = self._program.outputs
        results = [f"Vector<{cuda_text.STORAGE[o.value.dtype]}, N> {o.name}_results;" for o in outputs]
        storing = [f"store<N>({o.name} + position, {o.name}_results);" for o in outputs]
        parameters = kernel_tensors(self._tensors.values(), outputs)
        parameters += ["Index total", *(extent_parameter(e) for e in self._extents.used)]
        each_vector = [
            "#pragma unroll",
            "for (int v = 0; v < VECTORS; ++v) {",
            "  const Index position = start + static_cast<Index>(v) * THREADS * N;",
        ]
        return [
            "// A block covers VECTORS consecutive stripes; neighbouring threads touch neighbouring vectors of a stripe.",
            "template <int N, int VECTORS, int THREADS, typename Index>",
            f"__global__ void __launch_bounds__(THREADS) {self._program.name}_kernel({', '.join(parameters)}) {{",
            "  const Index start = (static_cast<Index>(blockIdx.x) * VECTORS * THREADS + threadIdx.x) * N;",
            "  if (start + static_cast<Index>(VECTORS - 1) * THREADS * N + N <= total) {",
            *(["    // All loads are under way before the first is used."] if arrays else []),
            *indented(arrays, 2),
            *(indented([*each_vector, *indented(early, 1), "}"], 2) if early else []),
            *indented(each_vector, 2),
            *indented([*late, *results], 3),
            "#pragma unroll",
            "      for (int lane = 0; lane < N; ++lane) {",
            f"        {self._call(values, [f'{o.name}_results.element[lane]' for o in outputs])}",
            "      }",
            *indented(storing, 3),
            "    }",
            "    return;",
            "  }",
            "  // The end of the tensors, element by element.",
            "  for (int v = 0; v < VECTORS; ++v) {",
            "    const Index position = start + static_cast<Index>(v) * THREADS * N;",
            "    for (Index rest = position; rest < position + N && rest < total; ++rest) {",
            f"      {self._call(ends, [f'{o.name}[rest]' for o in outputs])}",
            "    }",
            "  }",
            "}",
        ]

    def _conditions(self) -> list[str]:
        """Return what must hold for vectors: aligned tensors, and broadcast runs of whole vectors."""
        conditions = [f"aligned({t.name})" for t, way in self._loads.values() if way.vectors]
        conditions += [f"aligned({o.name})" for o in self._program.outputs]
        for tensor, way in self._loads.values():
            for block in way.blocks:
                shape = block.inner or block.size
                text = self._launch_extents.parameter(shape, f"{tensor.name}_{'inner' if block.inner else 'size'}")
                conditions.append(f"{text} % {self._width} == 0")
        return list(dict.fromkeys(conditions))

    def _launcher(self) -> list[str]:
        conditions = self._conditions() if self._width > 1 else []
        parameters = [tensor_parameter(t) for t in self._tensors.values()]
        parameters += [output_parameter(o) for o in self._program.outputs]
        parameters += [
            "long long total",
            *(extent_parameter(e) for e in self._launch_extents.all),
            "cudaStream_t stream",
        ]
        arguments = [t.name for t in self._tensors.values()] + [o.name for o in self._program.outputs]
        extents = [e.name for e in self._extents.used]
        threads, vectors = self._tuning.threads, self._tuning.vectors

        def launch(width: int, index: str) -> str:
            given = ", ".join([*arguments, f"static_cast<{index}>(total)", *extents])
            return f"{self._program.name}_kernel<{width}, VECTORS, THREADS, {index}><<<blocks({width}), THREADS, 0, stream>>>({given});"

        def both(width: int) -> list[str]:
            return [
                "if (small) {",
                f"  {launch(width, 'unsigned')}",
                "} else {",
                f"  {launch(width, 'long long')}",
                "}",
            ]

        body = [
            "if (total == 0) return cudaSuccess;",
            f"constexpr int THREADS = {threads};",
            f"// {vectors} independent accesses in flight a thread.",
            f"constexpr int VECTORS = {vectors};",
            "// 32-bit indices are cheaper; they must not overflow in the last block.",
            "const bool small = total < (1LL << 31);",
            "const auto blocks = [&](int width) {",
            "  const long long span = static_cast<long long>(THREADS) * VECTORS * width;",
            "  return static_cast<unsigned>((total + span - 1) / span);",
            "};",
        ]
        if self._width > 1:
            body += [f"const bool vector = {' && '.join(conditions) or 'true'};", "if (vector) {"]
            body += [*indented(both(self._width), 1), "} else {", *indented(both(1), 1), "}"]
        else:
            body += both(1)
        body.append("return cudaGetLastError();")
        return [
            cuda_text.ALIGNED.strip(),
            "",
            f'extern "C" int {self._program.name}_launcher({", ".join(parameters)}) {{',
            *indented(body, 1),
            "}",
        ]
