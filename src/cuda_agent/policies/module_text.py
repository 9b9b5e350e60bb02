"""Writes `model_new.py`: the reference's own constructor, and a forward that only allocates and launches.

The constructor is taken from the reference, so arguments, parameters and their names stay the same; what only its
forward needs is left out.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Sequence

from cuda_agent.policies.lowering import Plan, Uncovered
from cuda_agent.records.graph import Node
from cuda_agent.skills.kernel_text import Generated, shape_python
from cuda_agent.skills.program import Output


def module_text(source: str, plan: Plan, generated: Sequence[Generated], *, name: str) -> str:
    """Return the text of `model_new.py` for the problem `source` called `name`.

    Raises:
        Uncovered: the reference's class can't be taken apart.
    """
    tree = ast.parse(source)
    model = _class_named(tree, "Model")
    launchers = sorted({kernel.launcher for kernel in generated})
    needed = _Needed(tree)
    constructor = needed.of_class(model)
    forward = _forward(model, plan, generated)
    imports = [text for text in needed.imports() if text not in ("import torch", "from torch import nn")]
    lines = [
        f'"""{name}: written by CUDA Agent\'s composer; the kernels are in kernels/."""',
        "",
        "from __future__ import annotations",
        "",
        *imports,
        "import torch",
        "from torch import nn",
        "",
        f"from cuda_extension import {', '.join(launchers)}",
        "",
        "",
    ]
    for text in needed.definitions():
        lines += [*text.splitlines(), "", ""]
    bases = ", ".join(ast.unparse(base) for base in model.bases) or "nn.Module"
    lines += [f"class ModelNew({bases}):"]
    for text in constructor:
        lines += [*("    " + line if line else "" for line in text.splitlines()), ""]
    lines += ["    " + line if line else "" for line in forward]
    return "\n".join(lines) + "\n"


def _class_named(tree: ast.Module, name: str) -> ast.ClassDef:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise Uncovered(f"the problem does not define class {name} at its top level")


class _Needed:
    """Finds what a class needs to be constructed: its methods but `forward`, and what those name."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._named: dict[str, ast.stmt] = {}
        for node in tree.body:
            for name in _bound(node):
                self._named[name] = node
        self._wanted: list[ast.stmt] = []

    def of_class(self, model: ast.ClassDef) -> list[str]:
        """Return the statements of the class body that are kept, as text, and note what they need."""
        kept = _kept(model)
        for base in model.bases:
            self._need(base)
        for node in kept:
            self._need(node)
        return [ast.unparse(_Renamed().visit(node)) for node in kept]

    def _need(self, node: ast.AST) -> None:
        for item in ast.walk(node):
            if isinstance(item, ast.Name) and item.id in self._named:
                self._want(self._named[item.id])

    def _want(self, node: ast.stmt) -> None:
        if node in self._wanted or (isinstance(node, ast.ClassDef) and node.name == "Model"):
            return
        self._wanted.append(node)
        if isinstance(node, ast.ClassDef):
            for part in (*node.bases, *_kept(node)):
                self._need(part)
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            self._need(node)

    def imports(self) -> list[str]:
        """Return the import lines needed, in the order of the file."""
        return [
            ast.unparse(node)
            for node in self._tree.body
            if node in self._wanted
            and isinstance(node, ast.Import | ast.ImportFrom)
            and not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        ]

    def definitions(self) -> list[str]:
        """Return functions, constants and classes needed, in the order of the file; modules lose their forward."""
        texts = []
        for node in self._tree.body:
            if node not in self._wanted or isinstance(node, ast.Import | ast.ImportFrom):
                continue
            if isinstance(node, ast.ClassDef):
                node = copy.copy(node)
                node.body = _kept(node) or [ast.Pass()]
            texts.append(ast.unparse(node))
        return texts


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign):
        return [item.id for target in node.targets for item in ast.walk(target) if isinstance(item, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _kept(model: ast.ClassDef) -> list[ast.stmt]:
    """Return a class's statements without its docstring and the methods only `forward` reaches."""
    methods = {node.name: node for node in model.body if isinstance(node, ast.FunctionDef)}
    reached: set[str] = set()
    waiting: list[str] = [name for name in ("__init__", "reset_parameters") if name in methods]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for item in ast.walk(methods[name]):
            if isinstance(item, ast.Attribute) and item.attr in methods:
                waiting.append(item.attr)
    kept: list[ast.stmt] = []
    for node in model.body:
        if isinstance(node, ast.FunctionDef):
            if node.name in reached and node.name != "forward":
                kept.append(_without_docstring(node))
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            kept.append(node)
    return kept


def _without_docstring(node: ast.FunctionDef) -> ast.FunctionDef:
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(node.body) > 1:
        node.body = node.body[1:]
    return node


class _Renamed(ast.NodeTransformer):
    """`super(Model, self)` belongs to `ModelNew` now."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name("ModelNew", node.ctx), node) if node.id == "Model" else node


def _forward(model: ast.ClassDef, plan: Plan, generated: Sequence[Generated]) -> list[str]:
    tensors = [node for node in plan.inputs if node.value is not None and node.value.kind == "tensor"]
    plain = [node for node in plan.inputs if node not in tensors]
    lines = [f"def forward({_signature(model, plan.inputs)}):"]
    body = [
        f"assert {node.name} == {node.value.text}, f'written for {node.name} = {node.value.text}, got {{{node.name}}}'"
        for node in plain
        if node.value is not None
    ]
    used = " ".join(argument for kernel in generated for argument in kernel.arguments)
    dense = [node.name for node in tensors if _mentions(used, node.name)]
    if dense:
        body.append("# Kernels read dense row-major memory; this copies only what is not.")
        body += [f"{name} = {name}.contiguous()" for name in dense]
    device = f"{tensors[0].name}.device" if tensors else "next(self.parameters()).device"
    for kernel in generated:
        body += [_empty(output, device) for output in kernel.outputs]
        for variable, elements, dtype in kernel.scratch:
            body.append(f"{variable} = torch.empty({elements}, dtype=torch.{dtype}, device={device})")
        body.append(_call(kernel))
    returned = re.sub(r"\$(\d+)", lambda place: plan.results[int(place[1])], plan.returns)
    body.append(f"return {returned}")
    return [*lines, *("    " + line for line in body)]


def _signature(model: ast.ClassDef, inputs: Sequence[Node]) -> str:
    """Return forward's parameters: the reference's own where they are named ones, with their defaults."""
    for node in model.body:
        if isinstance(node, ast.FunctionDef) and node.name == "forward" and not node.args.vararg:
            own = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)][1:]
            if own[: len(inputs)] == [i.name for i in inputs]:
                return _bare(node.args)
    return ", ".join(["self", *(i.name for i in inputs)])


def _bare(arguments: ast.arguments) -> str:
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    return ast.unparse(arguments)


def _mentions(text: str, name: str) -> bool:
    return name in {node.id for part in text.split() for node in _names(part)}


def _names(part: str) -> list[ast.Name]:
    try:
        return [node for node in ast.walk(ast.parse(part.strip("()"), mode="eval")) if isinstance(node, ast.Name)]
    except SyntaxError:
        return []


def _empty(output: Output, device: str) -> str:
    shape = shape_python(output.value.shape)
    return f"{output.name} = torch.empty({shape}, dtype=torch.{output.value.dtype}, device={device})"


def _call(kernel: Generated) -> str:
    text = f"{kernel.launcher}({', '.join(kernel.arguments)})"
    if len(text) <= 108:
        return text
    return f"{kernel.launcher}(\n            " + ",\n            ".join(kernel.arguments) + ",\n        )"
