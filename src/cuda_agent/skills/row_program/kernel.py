"""Generates a row kernel: reductions over the columns of a row, with pointwise work before, between and after them.

A group of threads owns a row. In the resident form every thread keeps its share of the row in registers, so memory is
read once and written once however many reductions there are; values that a later stage needs are carried, not computed
again. Rows too long for that take the re-reading form, which goes over the row once per stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.skills import cuda_text
from cuda_agent.skills.element import Access, Extents, Names, Statements, index_text, size_text
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
    At,
    Column,
    Expression,
    Load,
    Output,
    Program,
    Reduce,
    Shape,
    Size,
    Tensor,
    Unplaceable,
    count,
    product_text,
    walk,
)
from cuda_agent.skills.sharing import resolved

TUNINGS: tuple[dict[str, int | bool], ...] = ({"elements": 16}, {"elements": 32}, {"elements": 8}, {"resident": False})
"""Fewer elements a thread mean more threads a row; many need registers that a full multiprocessor does not have."""


def generate(program: Program, tuning: Tuning) -> Generated:
    """Return the kernel of a program whose reductions all go over the same columns.

    Raises:
        Unplaceable: reductions over different shapes, or an output that is neither a row's nor an element's.
    """
    return _Rows(program, tuning).generated()


@dataclass
class _Stage:
    """Reductions that can be done in one sweep over a row."""

    reductions: list[Reduce]


REDUCE_FUNCTIONS = """// Combine one value of every thread of a row's group; all of them get the result, in a fixed order.
template <int THREADS, typename T, typename Combine>
__device__ __forceinline__ T reduce_row(T value, Combine combine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, shuffle(value, offset));
  if constexpr (THREADS > 32) {
    constexpr int WARPS = THREADS / 32;
    __shared__ T partial[WARPS];
    __syncthreads();  // readers of the reduction before are done with `partial`
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = partial[threadIdx.x % WARPS];
#pragma unroll
    for (int offset = WARPS / 2; offset > 0; offset /= 2) value = combine(value, shuffle(value, offset));
  }
  return value;
}"""

SHUFFLE = """template <typename T>
__device__ __forceinline__ T shuffle(T value, int offset) {
  return __shfl_xor_sync(0xffffffffu, value, offset);
}"""

INDEXED_VALUE = """// A value and its column; of equal values the first wins, and NaN wins over numbers, as in torch.
template <typename T>
struct Found {
  T value;
  int column;
};
template <typename T>
__device__ __forceinline__ Found<T> shuffle(Found<T> found, int offset) {
  return {__shfl_xor_sync(0xffffffffu, found.value, offset), __shfl_xor_sync(0xffffffffu, found.column, offset)};
}
// The next column of a thread: it only wins when it is better.
template <bool LARGEST, typename T>
__device__ __forceinline__ Found<T> better(Found<T> best, T value, int column) {
  const bool wins = best.value == best.value && !(LARGEST ? value <= best.value : value >= best.value);
  return wins ? Found<T>{value, column} : best;
}
// Two threads' columns, in no order.
template <bool LARGEST, typename T>
__device__ __forceinline__ Found<T> better(Found<T> a, Found<T> b) {
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a.value == b.value || (a_nan && b_nan)) return a.column < b.column ? a : b;
  if (a_nan || b_nan) return a_nan ? a : b;
  return (LARGEST ? a.value > b.value : a.value < b.value) ? a : b;
}"""


class _Rows:
    def __init__(self, program: Program, tuning: Tuning) -> None:
        first = program.over_rows()
        if first is None:
            raise Unplaceable("a row kernel without rows")
        self._rows, self._columns = first.rows, first.columns
        self._row_count, self._column_count = count(first.rows), count(first.columns)
        program, self._ways = resolved(program, rows=self._row_count, columns=self._column_count)
        self._program = program
        self._tuning = tuning
        self._reductions = program.reductions()
        for reduction in self._reductions:
            if (count(reduction.rows), count(reduction.columns)) != (self._row_count, self._column_count):
                raise Unplaceable("reductions over different rows or columns")
        self._tensors: dict[str, Tensor] = {}
        self._full: dict[int, bool] = {}
        for reduction in self._reductions:
            self._place(reduction.operand)
        for output in program.outputs:
            elements = count(output.value.shape)
            if elements not in (self._row_count, self._row_count * self._column_count):
                raise Unplaceable(f"output {output.name} has one value for neither a row nor an element")
            self._place(output.value.expression)
        whole = self._row_count * self._column_count
        self._wide = [o for o in program.outputs if count(o.value.shape) == whole and self._is_wide(o)]
        self._narrow = [o for o in program.outputs if o not in self._wide]
        taken = [*self._tensors, *(o.name for o in program.outputs), program.name, "row_start", "thread"]
        self._names = Names(taken)
        self._extents = Extents(self._names)
        self._stages = self._staged()
        dtypes = {t.dtype for t in self._tensors.values()} | {o.value.dtype for o in program.outputs}
        self._dtypes = dtypes
        moved = {t.dtype for t in self._tensors.values() if self._moves(t)} | {o.value.dtype for o in self._wide}
        self._width = 1 if tuning.scalar or not moved else vector_width(moved)
        self._functions: dict[str, None] = {}
        self._kernel_extents: dict[bool, Extents] = {}
        self._kept = 0.0

    def _is_wide(self, output: Output) -> bool:
        # With one column a row's value and an element's are alike; what does not vary in a row is written once.
        return self._column_count > 1 or self._full.get(id(output.value.expression), False)

    def _place(self, expression: Expression) -> bool:
        """Find out whether each expression varies within a row."""
        if id(expression) not in self._full:
            varies = isinstance(expression, Column)
            if isinstance(expression, Load):
                self._tensors.setdefault(expression.tensor.name, expression.tensor)
                varies = self._ways[id(expression)].place in ("full", "column", "indexed")
            elif isinstance(expression, Apply):
                placed = [self._place(operand) for operand in expression.operands]
                varies = any(placed)
            elif isinstance(expression, At):
                self._place(expression.index)
                self._place(expression.operand)
            self._full[id(expression)] = varies
        return self._full[id(expression)]

    def _moves(self, tensor: Tensor) -> bool:
        return any(
            self._ways[key].vectors for key, load in self._all_loads().items() if load.tensor.name == tensor.name
        )

    def _all_loads(self) -> dict[int, Load]:
        roots = [output.value.expression for output in self._program.outputs]
        return {id(item): item for root in roots for item in walk(root) if isinstance(item, Load)}

    def _staged(self) -> list[_Stage]:
        """Group reductions that do not depend on each other."""
        depth: dict[tuple[str, int], int] = {}

        def needs(item: Expression) -> int:
            if isinstance(item, Reduce):
                if item.key not in depth:
                    depth[item.key] = needs(item.operand)
                return depth[item.key] + 1
            if isinstance(item, Apply):
                return max((needs(operand) for operand in item.operands), default=0)
            if isinstance(item, At):
                return max(needs(item.operand), needs(item.index))
            return 0

        for reduction in self._reductions:
            needs(reduction)
        stages: list[_Stage] = []
        for reduction in self._reductions:
            level = depth[reduction.key]
            while len(stages) <= level:
                stages.append(_Stage([]))
            stages[level].reductions.append(reduction)
        return stages

    # --- text ---

    def generated(self) -> Generated:
        program = self._program
        resident = self._kernel(resident=True) if self._tuning.resident else None
        streaming = self._kernel(resident=False)
        kernels = [*(resident or []), "", *streaming] if resident else streaming
        launcher = self._launcher(bool(resident))
        indexed = any(r.kind in ("argmax", "argmin") for r in self._reductions)
        source = [
            f"// {program.name}: {len(self._reductions)} reduction(s) over rows with the work around them in one kernel.",
            *preamble(self._dtypes, self._functions, vectors=True),
            SHUFFLE,
            *(["", INDEXED_VALUE] if indexed else []),
            "",
            REDUCE_FUNCTIONS,
            "",
            *kernels,
            "",
            *launcher,
            "",
        ]
        arguments = [t.python for t in self._tensors.values()] + [o.name for o in program.outputs]
        arguments += [product_text(self._rows), product_text(self._columns), *(e.python for e in self._extents.all)]
        form = (
            f"rows in registers, up to {self._groups()[-1][1]} elements a thread"
            if resident
            else "rows re-read per stage"
        )
        return Generated(
            f"{program.name}_launcher",
            "\n".join(source),
            tuple(arguments),
            program.outputs,
            note=f"{form}; vectors of {self._width} elements",
        )

    def _kernel(self, *, resident: bool) -> list[str]:
        extents = self._kernel_extents[resident] = self._extents.for_kernel()
        body = _KernelBody(self, resident, extents)
        lines = body.lines()
        self._functions.update(body.functions)
        parameters = kernel_tensors(self._tensors.values(), self._program.outputs)
        parameters += ["long long rows", "int columns", *(extent_parameter(e) for e in extents.used)]
        if resident:
            self._kept = body.most_kept
            head = [
                "// THREADS threads own a row and keep ITEMS vectors of N elements of it each. WHOLE: that is the row exactly.",
                "// At most 64 registers a thread, so that 1024 threads share a multiprocessor: one row loads while another reduces.",
                "template <int N, int ITEMS, int THREADS, bool WHOLE>",
                "__global__ void __launch_bounds__(THREADS < 128 ? 128 : THREADS, THREADS < 128 ? 8 : 1024 / THREADS)",
                f"    {self._program.name}_kernel({', '.join(parameters)}) {{",
            ]
        else:
            head = [
                "// For rows that do not fit into registers: one sweep over the row for each stage.",
                "template <int N, int THREADS>",
                "__global__ void __launch_bounds__(THREADS)",
                f"    {self._program.name}_long_rows_kernel({', '.join(parameters)}) {{",
            ]
        opening = [
            "// Groups smaller than a block share it; larger ones fill it.",
            "constexpr int ROWS = THREADS < 128 ? 128 / THREADS : 1;",
            "const int thread = threadIdx.x % THREADS;",
            "const long long row = static_cast<long long>(blockIdx.x) * ROWS + threadIdx.x / THREADS;",
            "if (row >= rows) return;",
            "const long long row_start = row * columns;",
        ]
        if not resident:
            opening = [
                "const int thread = threadIdx.x;",
                "const long long row = blockIdx.x;",
                "const long long row_start = row * columns;",
            ]
        return [*head, *indented([*opening, *lines], 1), "}"]

    def _launcher(self, resident: bool) -> list[str]:
        tensors = [tensor_parameter(t) for t in self._tensors.values()]
        tensors += [output_parameter(o) for o in self._program.outputs]
        tensors += ["long long rows", "int columns"]
        given = [t.name for t in self._tensors.values()] + [o.name for o in self._program.outputs]
        given += ["rows", "columns"]
        name, width = self._program.name, self._width

        def arguments(which: bool) -> str:
            return ", ".join([*given, *(e.name for e in self._kernel_extents[which].used)])

        conditions = [f"columns % {width} == 0"]
        loads = self._all_loads()
        conditions += [
            f"aligned({loads[k].tensor.name})" for k, way in self._ways.items() if way.vectors and k in loads
        ]
        conditions += [f"aligned({o.name})" for o in self._wide]
        for key, way in self._ways.items():
            for block in way.blocks if key in loads else ():
                shape = block.inner or block.size
                wanted = f"{loads[key].tensor.name}_{'inner' if block.inner else 'size'}"
                conditions.append(f"{self._extents.parameter(shape, wanted)} % {width} == 0")
        choose = ["// The smallest group of threads that holds a row."] if resident else []

        def ladder(n: int) -> list[str]:
            lines: list[str] = []
            for threads, elements in self._groups() if resident else ():
                items = max(1, elements // n)
                held = threads * items * n
                whole = n > 1 and self._tuning.whole and threads >= 128
                call = f"launch_{name}<{n}, {items}, {threads}, {{}}>({arguments(True)}, stream);"
                lines += [f"if (columns <= {held}) {{"]
                if whole:
                    lines += [
                        f"  if (columns == {held}) {{",
                        f"    {call.format('true')}",
                        "  } else {",
                        f"    {call.format('false')}",
                        "  }",
                    ]
                else:
                    lines.append(f"  {call.format('false')}")
                lines.append("} else")
            threads = 512
            long_rows = f"{name}_long_rows_kernel<{n}, {threads}><<<static_cast<unsigned>(rows), {threads}, 0, stream>>>({arguments(False)});"
            if not lines:
                return [long_rows]
            lines[-1] += " {"
            return [*_chained(lines), f"  {long_rows}", "}"]

        every = [extent_parameter(e) for e in self._extents.all]
        body = ["if (rows == 0) return cudaSuccess;", *choose]
        if width > 1:
            body += [f"const bool vector = {' && '.join(dict.fromkeys(conditions))};", "if (vector) {"]
            body += [*indented(ladder(width), 1), "} else {", *indented(ladder(1), 1), "}"]
        else:
            body += ladder(1)
        body.append("return cudaGetLastError();")
        launching = []
        if resident:
            resident_extents = [extent_parameter(e) for e in self._kernel_extents[True].used]
            launching = [
                "template <int N, int ITEMS, int THREADS, bool WHOLE>",
                f"static void launch_{name}({', '.join([*tensors, *resident_extents, 'cudaStream_t stream'])}) {{",
                "  constexpr int ROWS = THREADS < 128 ? 128 / THREADS : 1;",
                "  const unsigned blocks = static_cast<unsigned>((rows + ROWS - 1) / ROWS);",
                f"  {name}_kernel<N, ITEMS, THREADS, WHOLE><<<blocks, ROWS * THREADS, 0, stream>>>({arguments(True)});",
                "}",
                "",
            ]
        return [
            cuda_text.ALIGNED.strip(),
            "",
            *launching,
            f'extern "C" int {name}_launcher({", ".join([*tensors, *every, "cudaStream_t stream"])}) {{',
            *indented(body, 1),
            "}",
        ]

    def _groups(self) -> list[tuple[int, int]]:
        """Return (threads, elements a thread) of the groups that hold a row in registers, smallest first."""
        most = self._tuning.elements or (32 if self._kept <= 1 else 16)
        few = min(most, 16)
        groups = [(32, few), (128, few), (256, few), (512, few)]
        # Long rows: rather more elements a thread than more threads, so that two rows share a multiprocessor.
        return [*groups, *([(512, most)] if most > few else []), (1024, most)]


def _chained(lines: list[str]) -> list[str]:
    """Join `} else` with the `if` on the next line."""
    result: list[str] = []
    for line in lines:
        if result and result[-1] == "} else":
            result[-1] += f" {line}"
        else:
            result.append(line)
    return result


class _KernelBody:
    """The stages of one kernel."""

    def __init__(self, rows: _Rows, resident: bool, extents: Extents) -> None:
        self._r = rows
        self._extents = extents
        self._resident = resident
        self._names = Names([*rows._tensors, *(o.name for o in rows._program.outputs), "row_start", "thread", "item"])
        self._row_values: dict[tuple[str, int], str] = {}
        self._row_text: dict[int, str] = {}
        self._carried: dict[int, str] = {}
        self._done: set[int] = set()
        self.functions: dict[str, None] = {}
        self.most_kept = 0.0
        """Rows' worth of floats that a thread keeps at most between two stages."""

    def lines(self) -> list[str]:
        self._to_carry = self._values_to_carry() if self._resident else {}
        out: list[str] = []
        for key, expression in self._to_carry.items():
            name = self._names.fresh(f"{self._label(expression)}_kept")
            self._carried[key] = name
            if isinstance(expression, Load):
                out.append(f"Vector<{cuda_text.STORAGE[expression.dtype]}, N> {name}[ITEMS];")
            else:
                out.append(f"{cuda_text.COMPUTE[expression.dtype]} {name}[ITEMS][N];")
        for stage in self._r._stages:
            out += self._stage(stage)
        return out + self._final()

    @staticmethod
    def _label(expression: Expression) -> str:
        if isinstance(expression, Load):
            return expression.tensor.name
        if isinstance(expression, Apply):
            return expression.name or expression.op
        return "value"

    def _roots(self) -> list[list[Expression]]:
        """Return the expressions that each stage and the end evaluate for every element."""
        roots: list[list[Expression]] = [[r.operand for r in stage.reductions] for stage in self._r._stages]
        roots.append([output.value.expression for output in self._r._wide])
        return roots

    def _values_to_carry(self) -> dict[int, Expression]:
        """Return what one stage computes for every element and a later one needs."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        carried: dict[int, Expression] = {}

        def visit(item: Expression, stage: int, now: set[int]) -> None:
            if id(item) in now or not self._r._full.get(id(item), False):
                return
            if id(item) in first and not self._is_cheap(item):
                carried.setdefault(id(item), item)
                last[id(item)] = stage
                return
            now.add(id(item))
            if isinstance(item, Apply):
                for operand in item.operands:
                    visit(operand, stage, now)

        roots = self._roots()
        for stage, expressions in enumerate(roots):
            now: set[int] = set()
            for root in expressions:
                visit(root, stage, now)
            for key in now:
                first.setdefault(key, stage)
        for stage in range(len(roots) - 1):
            alive = [item for key, item in carried.items() if first[key] <= stage < last[key]]
            bytes_kept = sum(cuda_text.ITEM_BYTES[item.dtype] if isinstance(item, Load) else 4 for item in alive)
            self.most_kept = max(self.most_kept, bytes_kept / 4)
        return carried

    def _is_cheap(self, item: Expression) -> bool:
        """Column and indexed loads come from cache again; carrying them would cost registers."""
        return isinstance(item, Column) or (isinstance(item, Load) and self._r._ways[id(item)].place != "full")

    # --- one sweep over the row ---

    def _sweep(self, roots: list[Expression], each: list[tuple[Expression, str]], after: list[str]) -> list[str]:
        """Return loops over the thread's vectors that load, evaluate `roots` and then do `each` per element.

        `each` holds (expression, statement with {} for its value); `after` comes once a vector. All vectors at the
        elements' own positions are loaded before the first is used, so that their latencies overlap.
        """
        fetching, loading = [], []
        vectors: dict[tuple[str, str], str] = {}
        loads: dict[int, str] = {}

        def collect(item: Expression, seen: set[int]) -> None:
            if id(item) in seen or not self._r._full.get(id(item), False):
                return
            seen.add(id(item))
            if id(item) in self._carried and id(item) in self._done:
                return
            if isinstance(item, Load):
                way = self._r._ways[id(item)]
                key = (item.tensor.name, repr(way))
                if key not in vectors:
                    early = self._resident and way.place == "full"
                    kept = self._carried.get(id(item), "")
                    vectors[key] = kept or self._names.fresh(f"{item.tensor.name}_read")
                    if early:
                        if not kept:
                            declared.append(f"Vector<{cuda_text.STORAGE[item.dtype]}, N> {vectors[key]}[ITEMS];")
                        fetching.append(f"{vectors[key]}[item] = {self._vector(item, way)};")
                        vectors[key] += "[item]"
                        self._done.add(id(item))
                    else:
                        loading.append(self._load_line(item, way, vectors[key]))
                text = f"{vectors[key]}.element[k]" if way.vectors else vectors[key]
                loads[id(item)] = cuda_text.widen(text, item.dtype)
            elif isinstance(item, Apply):
                for operand in item.operands:
                    collect(operand, seen)

        seen: set[int] = set()
        declared: list[str] = []
        for root in roots:
            collect(root, seen)
        statements = Statements(self._names, lambda e: self._leaf(e, loads))
        written = [template.format(statements.text(expression)) for expression, template in each]
        keeping = []
        for key, name in self._carried.items():
            if key not in self._done and key in seen:
                keeping.append(f"{name}[item][k] = {statements.text(self._to_carry[key])};")
                self._done.add(key)
        self.functions.update(statements.functions)
        inside = [*statements.lines, *keeping, *written]
        loop = ["#pragma unroll", "for (int k = 0; k < N; ++k) {", *indented(inside, 1), "}"]
        body = [*loading, *loop, *after]
        if self._resident:
            fetch = [*declared, *self._over_items(fetching)] if fetching else []
            return [*fetch, *self._over_items(body)]
        return [
            "for (int column = thread * N; column < columns; column += THREADS * N) {",
            *indented(body, 1),
            "}",
        ]

    @staticmethod
    def _over_items(body: list[str]) -> list[str]:
        return [
            "#pragma unroll",
            "for (int item = 0; item < ITEMS; ++item) {",
            "  const int column = (item * THREADS + thread) * N;",
            "  if (WHOLE || column < columns) {",
            *indented(body, 2),
            "  }",
            "}",
        ]

    def _vector(self, load: Load, way: Access) -> str:
        """Return C++ that loads the vector of a load at `column`."""
        tensor = load.tensor.name
        if way.place == "full":
            return f"load<N>({tensor} + row_start + column)"
        if way.place == "column":
            return f"load<N>({tensor} + column)"
        return f"load<N>({tensor} + {index_text(way, '(row_start + column)', self._extents, tensor, 'long long')})"

    def _load_line(self, load: Load, way: Access, name: str) -> str:
        storage, tensor = cuda_text.STORAGE[load.dtype], load.tensor.name
        if way.vectors:
            return f"const Vector<{storage}, N> {name} = {self._vector(load, way)};"
        index = index_text(way, "(row_start + column)", self._extents, tensor, "long long")
        return f"const {storage} {name} = {tensor}[{index}];"

    def _leaf(self, expression: Expression, loads: dict[int, str]) -> str | None:
        if not self._r._full.get(id(expression), False):
            return self._row_level(expression)
        if id(expression) in loads:
            return loads[id(expression)]
        if id(expression) in self._carried and id(expression) in self._done:
            name = self._carried[id(expression)]
            if isinstance(expression, Load):
                return cuda_text.widen(f"{name}[item].element[k]", expression.dtype)
            return f"{name}[item][k]"
        if isinstance(expression, Column):
            return "static_cast<long long>(column + k)"
        return None

    def _row_level(self, expression: Expression) -> str | None:
        """Return the text of what is the same for a whole row, when it is known or a leaf."""
        if id(expression) in self._row_text:
            return self._row_text[id(expression)]
        if isinstance(expression, Reduce):
            return self._row_values[expression.key]
        if isinstance(expression, Load):
            place = self._r._ways[id(expression)].place
            index = "row" if place == "row" else "0"
            return cuda_text.widen(f"{expression.tensor.name}[{index}]", expression.dtype)
        if isinstance(expression, Size):
            return size_text(expression, self._extent)
        return None

    def _extent(self, dims: Shape) -> str:
        if product_text(dims) == product_text(self._r._columns):
            return "columns"
        return self._extents.parameter(dims, "extent")

    def _row_statements(self, roots: list[Expression]) -> list[str]:
        """Compute, once a row, everything below `roots` that does not vary within it."""
        statements = Statements(self._names, self._row_level)
        for root in roots:
            for item in walk(root):
                if isinstance(item, At) and id(item) not in self._row_text:
                    self._row_text[id(item)] = self._at(item, statements)

        def visit(item: Expression) -> None:
            if isinstance(item, Apply):
                if not self._r._full.get(id(item), False):
                    if id(item) not in self._row_text:
                        self._row_text[id(item)] = statements.text(item)
                    return
                for operand in item.operands:
                    visit(operand)

        for root in roots:
            visit(root)
        self.functions.update(statements.functions)
        return statements.lines

    def _at(self, item: At, statements: Statements) -> str:
        """Add the statements that compute a full expression at one column; return the name of the result."""
        column = self._names.fresh("picked_column")
        statements.lines.append(f"const int {column} = static_cast<int>({statements.text(item.index)});")

        def leaf(expression: Expression) -> str | None:
            if not self._r._full.get(id(expression), False):
                return statements.text(expression)
            if isinstance(expression, Column):
                return f"static_cast<long long>({column})"
            if isinstance(expression, Load):
                way, tensor = self._r._ways[id(expression)], expression.tensor.name
                index = {"full": f"row_start + {column}", "column": column}.get(way.place)
                if index is None:
                    index = index_text(way, f"(row_start + {column})", self._extents, tensor, "long long")
                return cuda_text.widen(f"{tensor}[{index}]", expression.dtype)
            return None

        inner = Statements(self._names, leaf)
        text = inner.text(item.operand)
        name = self._names.fresh("picked")
        statements.lines += [*inner.lines, f"const {cuda_text.COMPUTE[item.dtype]} {name} = {text};"]
        self.functions.update(inner.functions)
        return name

    # --- stages ---

    def _stage(self, stage: _Stage) -> list[str]:
        roots = [r.operand for r in stage.reductions]
        out = ["", *self._row_statements(roots)]
        each: list[tuple[Expression, str]] = []
        closing = []
        for reduction in stage.reductions:
            name = self._names.fresh(reduction.name or f"row_{reduction.kind}")
            found = f"static_cast<long long>({name}.column)"
            self._row_values[reduction.key] = found if reduction.kind.startswith("arg") else name
            compute = cuda_text.COMPUTE[
                reduction.operand.dtype if reduction.kind.startswith("arg") else reduction.dtype
            ]
            kind, start, combine, function = reduction_text(reduction, compute)
            if function:
                self.functions[function] = None
            out.append(f"{kind} {name} = {start};")
            if reduction.kind.startswith("arg"):
                template = f"{name} = {combine}({name}, {{}}, column + k);"
            elif reduction.kind in ("sum", "prod"):
                template = f"{name} {combine}= {{}};"
            elif cuda_text.COMPUTE[reduction.operand.dtype] == compute:
                template = f"{name} = {combine}({name}, {{}});"
            else:
                template = f"{name} = {combine}({name}, static_cast<{compute}>({{}}));"
            each.append((reduction.operand, template))
            joined = f"{combine}(a, b)" if combine.isidentifier() or "<" in combine else f"a {combine} b"
            closing.append(f"{name} = reduce_row<THREADS>({name}, []({kind} a, {kind} b) {{ return {joined}; }});")
        out += self._sweep(roots, each, [])
        return out + closing

    def _final(self) -> list[str]:
        out = [""]
        roots = [output.value.expression for output in self._r._program.outputs]
        out += self._row_statements(roots)
        if self._r._narrow:
            stores = []
            statements = Statements(self._names, self._row_level)
            for output in self._r._narrow:
                text = self._row_text.get(id(output.value.expression)) or statements.text(output.value.expression)
                stores.append(f"{output.name}[row] = {_stored(text, output.value.dtype)};")
            self.functions.update(statements.functions)
            out += [*statements.lines, "if (thread == 0) {", *indented(stores, 1), "}"]
        if self._r._wide:
            results = []
            each = []
            after = []
            for output in self._r._wide:
                storage = cuda_text.STORAGE[output.value.dtype]
                name = self._names.fresh(f"{output.name}_results")
                results.append(f"Vector<{storage}, N> {name};")
                narrowed = (
                    cuda_text.narrow("@", output.value.dtype).replace("{", "{{").replace("}", "}}").replace("@", "{}")
                )
                each.append((output.value.expression, f"{name}.element[k] = {narrowed};"))
                after.append(f"store<N>({output.name} + row_start + column, {name});")
            sweep = self._sweep(roots, each, after)
            at = (
                next(i for i, line in enumerate(sweep) if line.strip().startswith("#pragma unroll") and i > 0)
                if self._resident
                else next(i for i, line in enumerate(sweep) if line.strip() == "#pragma unroll")
            )
            depth = len(sweep[at]) - len(sweep[at].lstrip())
            sweep[at:at] = [" " * depth + line for line in results]
            out += sweep
        return out


def _stored(text: str, dtype: str) -> str:
    return cuda_text.narrow(text, dtype)


def reduction_text(reduction: Reduce, compute: str) -> tuple[str, str, str, str | None]:
    """Return the C type, start value, combining operation and device function of a reduction."""
    floating = compute in ("float", "double")
    suffix = "_F" if compute == "float" else ""
    low = f"-CUDART_INF{suffix}" if floating else _LOWEST[compute]
    high = f"CUDART_INF{suffix}" if floating else _HIGHEST[compute]
    if reduction.kind == "sum":
        return compute, cuda_text.literal(0, compute), "+", None
    if reduction.kind == "prod":
        return compute, cuda_text.literal(1, compute), "*", None
    if reduction.kind == "max":
        return compute, low, "maximum", "maximum"
    if reduction.kind == "min":
        return compute, high, "minimum", "minimum"
    largest = reduction.kind == "argmax"
    # A row of nothing but -inf is won by its first column, so a thread starts at its own; one without columns, behind all.
    start = f"{{{low if largest else high}, thread * N < columns ? thread * N : 2147483647}}"
    return f"Found<{compute}>", start, f"better<{'true' if largest else 'false'}>", None


_LOWEST = {"int": "(-2147483647 - 1)", "long long": "(-9223372036854775807LL - 1)", "bool": "false"}
_HIGHEST = {"int": "2147483647", "long long": "9223372036854775807LL", "bool": "true"}
