"""Generates reductions over all elements: blocks reduce stripes to partial results, one block reduces those.

Two launches instead of atomics on the result: the order of summation stays the same from run to run.
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
from cuda_agent.skills.program import (
    Apply,
    Expression,
    Load,
    Program,
    Reduce,
    Size,
    Tensor,
    Unplaceable,
    count,
    product_text,
)
from cuda_agent.skills.row_program.kernel import REDUCE_FUNCTIONS, SHUFFLE, reduction_text
from cuda_agent.skills.sharing import resolved

BLOCKS = 1056
"""Blocks of the first kernel: eight for each of an H200's 132 multiprocessors."""
THREADS = 256
UNROLL = 4
"""Vectors of each tensor that a thread has under way."""

TUNINGS: tuple[dict[str, int | bool], ...] = ()
"""Enough loads are in flight at any setting; there is nothing to gain."""


def generate(program: Program, tuning: Tuning) -> Generated:
    """Return the kernels of a program whose reductions go over everything.

    Raises:
        Unplaceable: a reduction needs another one's result, or reductions go over different numbers of elements.
    """
    return _Total(program, tuning).generated()


class _Total:
    def __init__(self, program: Program, tuning: Tuning) -> None:
        program, self._ways = resolved(program, rows=None, columns=None)
        self._program = program
        self._tuning = tuning
        self._reductions = program.reductions()
        self._shape = self._reductions[0].operand_shape
        for reduction in self._reductions:
            if count(reduction.operand_shape) != count(self._shape):
                raise Unplaceable("reductions over different numbers of elements")
            if _has_reduction(reduction.operand):
                raise Unplaceable("a reduction over everything needs the result of another one")
            if reduction.kind.startswith("arg"):
                raise Unplaceable(f"{reduction.kind} over everything")
        self._tensors: dict[str, Tensor] = {}
        for reduction in self._reductions:
            for load in loads([reduction.operand]):
                self._tensors.setdefault(load.tensor.name, load.tensor)
        self._after: dict[str, Tensor] = {}
        for output in program.outputs:
            if count(output.value.shape) != 1:
                raise Unplaceable(f"output {output.name} is not a single number")
            self._collect_after(output.value.expression)
        taken = [*self._tensors, *self._after, *(o.name for o in program.outputs), program.name, "total", "thread"]
        self._names = Names(taken)
        self._launch_extents = Extents(self._names)
        self._first_extents, self._second_extents = (self._launch_extents.for_kernel() for _ in range(2))
        moved = {load.dtype for r in self._reductions for load in loads([r.operand]) if self._ways[id(load)].vectors}
        self._width = 1 if tuning.scalar or not moved else vector_width(moved)
        self._dtypes = {t.dtype for t in (*self._tensors.values(), *self._after.values())}
        self._dtypes |= {o.value.dtype for o in program.outputs}
        self._functions: dict[str, None] = {}
        self._partials = {r.key: self._names.fresh(f"{r.name or r.kind}_partial") for r in self._reductions}

    def _collect_after(self, expression: Expression) -> None:
        if isinstance(expression, Load):
            self._after.setdefault(expression.tensor.name, expression.tensor)
        elif isinstance(expression, Apply):
            for operand in expression.operands:
                self._collect_after(operand)

    def generated(self) -> Generated:
        program = self._program
        first, second = self._first(), self._second()
        launcher = self._launcher()
        source = [
            f"// {program.name}: {len(self._reductions)} reduction(s) over all elements, in a fixed order of summation.",
            *preamble(self._dtypes, self._functions, vectors=True),
            SHUFFLE,
            "",
            REDUCE_FUNCTIONS,
            "",
            *first,
            "",
            *second,
            "",
            *launcher,
            "",
        ]
        scratch = tuple((self._partials[r.key], str(BLOCKS), r.dtype) for r in self._reductions)
        tensors = {**self._tensors, **self._after}
        arguments = [t.python for t in tensors.values()] + [o.name for o in program.outputs]
        arguments += [name for name, _, _ in scratch]
        arguments += [product_text(self._shape), *(e.python for e in self._launch_extents.all)]
        note = f"up to {BLOCKS} blocks of {THREADS} threads, vectors of {self._width} elements"
        return Generated(
            f"{program.name}_launcher", "\n".join(source), tuple(arguments), program.outputs, scratch=scratch, note=note
        )

    def _first(self) -> list[str]:
        distinct: dict[tuple[str, Access], tuple[str, Load]] = {}
        texts: dict[int, str] = {}
        for reduction in self._reductions:
            for load in loads([reduction.operand]):
                key = (load.tensor.name, self._ways[id(load)])
                if key not in distinct:
                    distinct[key] = (self._names.fresh(f"{load.tensor.name}_value"), load)
                texts[id(load)] = distinct[key][0]
        statements = Statements(self._names, lambda e: self._leaf(e, texts))
        starts, updates, closing = [], [], []
        for reduction in self._reductions:
            compute = cuda_text.COMPUTE[reduction.dtype]
            name = self._names.fresh(reduction.name or reduction.kind)
            kind, start, combine, function = reduction_text(reduction, compute)
            if function:
                self._functions[function] = None
            starts.append(f"{kind} {name} = {start};")
            value = f"static_cast<{compute}>({statements.text(reduction.operand)})"
            operator = not combine.isidentifier()
            updates.append(f"{name} {combine}= {value};" if operator else f"{name} = {combine}({name}, {value});")
            joined = f"a {combine} b" if operator else f"{combine}(a, b)"
            closing += [
                f"{name} = reduce_row<{THREADS}>({name}, []({kind} a, {kind} b) {{ return {joined}; }});",
                f"if (threadIdx.x == 0) {self._partials[reduction.key]}[blockIdx.x] = {name};",
            ]
        self._functions.update(statements.functions)
        values = ", ".join(f"{cuda_text.COMPUTE[load.dtype]} {name}" for name, load in distinct.values())
        vectors, fills, inside, rest = [], [], [], []
        for name, load in distinct.values():
            way, storage = self._ways[id(load)], cuda_text.STORAGE[load.dtype]
            if way.vectors:
                vectors.append(f"Vector<{storage}, N> {name}s[UNROLL];")
                fills.append(f"{name}s[u] = load<N>({load.tensor.name} + {self._index(load)});")
                inside.append(cuda_text.widen(f"{name}s[u].element[k]", load.dtype))
            else:
                inside.append(cuda_text.widen(f"{load.tensor.name}[{self._index(load)}]", load.dtype))
            rest.append(cuda_text.widen(f"{load.tensor.name}[{self._index(load)}]", load.dtype))
        parameters = kernel_tensors(self._tensors.values(), ())
        parameters += [f"{cuda_text.STORAGE[r.dtype]}* __restrict__ {self._partials[r.key]}" for r in self._reductions]
        parameters += ["long long total", *(extent_parameter(e) for e in self._first_extents.used)]
        each_vector = [
            "#pragma unroll",
            "for (int u = 0; u < UNROLL; ++u) {",
            f"  const long long position = (start + u * {THREADS}) * N;",
            "  if (position < vectors * N) {",
        ]
        return [
            "// Every block reduces the vectors it meets at a stride of the whole grid. All loads of a step are under way",
            "// before the first is used.",
            "template <int N>",
            f"__global__ void __launch_bounds__({THREADS}) {self._program.name}_partial_kernel({', '.join(parameters)}) {{",
            f"  constexpr int UNROLL = {UNROLL};",
            *indented(starts, 1),
            f"  const auto take = [&]({values}) {{",
            *indented([*statements.lines, *updates], 2),
            "  };",
            "  const long long vectors = total / N;",
            f"  const long long stride = static_cast<long long>(gridDim.x) * ({THREADS} * UNROLL);",
            f"  const long long first = static_cast<long long>(blockIdx.x) * ({THREADS} * UNROLL) + threadIdx.x;",
            "  for (long long start = first; start < vectors; start += stride) {",
            *indented(vectors, 2),
            *(indented([*each_vector, *indented(fills, 2), "  }", "}"], 2) if fills else []),
            *indented(each_vector, 2),
            "#pragma unroll",
            "        for (int k = 0; k < N; ++k) {",
            f"          take({', '.join(inside)});",
            "        }",
            "      }",
            "    }",
            "  }",
            "  // The last elements, fewer than a vector.",
            "  const long long position = vectors * N + threadIdx.x;",
            "  if (blockIdx.x == 0 && position < total) {",
            f"    take({', '.join(rest)});",
            "  }",
            *indented(closing, 1),
            "}",
        ]

    def _index(self, load: Load) -> str:
        """Return C++ for where a load's element, or its vector's first element, is at `position`."""
        way = self._ways[id(load)]
        if way.place in ("full", "uniform"):
            return "position" if way.place == "full" else "0"
        return index_text(way, "position", self._first_extents, load.tensor.name, "long long")

    def _leaf(self, expression: Expression, texts: dict[int, str]) -> str | None:
        if isinstance(expression, Load):
            return texts[id(expression)]
        if isinstance(expression, Size):
            return size_text(expression, lambda dims: self._first_extents.parameter(dims, "extent"))
        return None

    def _second(self) -> list[str]:
        values: dict[tuple[str, int], str] = {}
        lines = []
        for reduction in self._reductions:
            compute = cuda_text.COMPUTE[reduction.dtype]
            kind, start, combine, _ = reduction_text(reduction, compute)
            name = self._names.fresh(reduction.name or reduction.kind)
            values[reduction.key] = name
            partial = self._partials[reduction.key]
            operator = not combine.isidentifier()
            update = f"{name} {combine}= {partial}[i];" if operator else f"{name} = {combine}({name}, {partial}[i]);"
            joined = f"a {combine} b" if operator else f"{combine}(a, b)"
            lines += [
                f"{kind} {name} = {start};",
                f"for (int i = threadIdx.x; i < blocks; i += {THREADS}) {update}",
                f"{name} = reduce_row<{THREADS}>({name}, []({kind} a, {kind} b) {{ return {joined}; }});",
            ]

        def leaf(expression: Expression) -> str | None:
            if isinstance(expression, Reduce):
                return values[expression.key]
            if isinstance(expression, Load):
                return cuda_text.widen(f"{expression.tensor.name}[0]", expression.dtype)
            if isinstance(expression, Size):
                whole = product_text(expression.dims) == product_text(self._shape)
                return size_text(
                    expression, lambda dims: "total" if whole else self._second_extents.parameter(dims, "extent")
                )
            return None

        statements = Statements(self._names, leaf)
        stores = []
        for output in self._program.outputs:
            text = statements.text(output.value.expression)
            stores.append(f"{output.name}[0] = {cuda_text.narrow(text, output.value.dtype)};")
        self._functions.update(statements.functions)
        parameters = [f"const {cuda_text.STORAGE[r.dtype]}* {self._partials[r.key]}" for r in self._reductions]
        parameters += [tensor_parameter(t) for t in self._after.values()]
        parameters += [output_parameter(o) for o in self._program.outputs]
        parameters += ["int blocks", "long long total", *(extent_parameter(e) for e in self._second_extents.used)]
        return [
            "// One block reduces the partial results and finishes.",
            f"__global__ void {self._program.name}_kernel({', '.join(parameters)}) {{",
            *indented(lines, 1),
            "  if (threadIdx.x == 0) {",
            *indented([*statements.lines, *stores], 2),
            "  }",
            "}",
        ]

    def _launcher(self) -> list[str]:
        name, width = self._program.name, self._width
        tensors = {**self._tensors, **self._after}
        parameters = [tensor_parameter(t) for t in tensors.values()]
        parameters += [output_parameter(o) for o in self._program.outputs]
        parameters += [f"{cuda_text.STORAGE[r.dtype]}* {self._partials[r.key]}" for r in self._reductions]
        parameters += ["long long total"]
        partials = [self._partials[r.key] for r in self._reductions]
        used = [e.name for e in self._first_extents.used]
        first = ", ".join([*self._tensors, *partials, "total", *used])
        used = [e.name for e in self._second_extents.used]
        second = ", ".join(
            [*partials, *self._after, *(o.name for o in self._program.outputs), "blocks", "total", *used]
        )
        conditions = []
        for reduction in self._reductions:
            for load in loads([reduction.operand]):
                way = self._ways[id(load)]
                if way.vectors:
                    conditions.append(f"aligned({load.tensor.name})")
                for block in way.blocks:
                    shape = block.inner or block.size
                    wanted = f"{load.tensor.name}_{'inner' if block.inner else 'size'}"
                    conditions.append(f"{self._launch_extents.parameter(shape, wanted)} % {width} == 0")
        body = [
            f"// {BLOCKS} blocks at most: enough to fill the device, few enough for one block to finish.",
            f"const long long wanted = (total + {THREADS * UNROLL} * {width} - 1) / ({THREADS * UNROLL} * {width});",
            f"const int blocks = static_cast<int>(wanted < 1 ? 1 : (wanted > {BLOCKS} ? {BLOCKS} : wanted));",
        ]
        launch = f"{name}_partial_kernel<{{}}><<<blocks, {THREADS}, 0, stream>>>({first});"
        if width > 1 and conditions:
            body += [
                f"if ({' && '.join(dict.fromkeys(conditions))}) {{",
                f"  {launch.format(width)}",
                "} else {",
                f"  {launch.format(1)}",
                "}",
            ]
        else:
            body.append(launch.format(1))
        body += [f"{name}_kernel<<<1, {THREADS}, 0, stream>>>({second});", "return cudaGetLastError();"]
        parameters += [*(extent_parameter(e) for e in self._launch_extents.all), "cudaStream_t stream"]
        return [
            cuda_text.ALIGNED.strip(),
            "",
            f'extern "C" int {name}_launcher({", ".join(parameters)}) {{',
            *indented(body, 1),
            "}",
        ]


def _has_reduction(expression: Expression) -> bool:
    if isinstance(expression, Reduce):
        return True
    return isinstance(expression, Apply) and any(_has_reduction(operand) for operand in expression.operands)
