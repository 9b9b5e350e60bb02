"""A parser for the PTX that nvcc and inline assembly produce.

It keeps what the assembler needs and resolves two things on the way: names declared in nested scopes (registers,
variables, labels) become unique, and every instruction gets the source line a programmer would look at (the innermost line of the
`.loc` chain that lies in a file of their own rather than in a toolkit header).

Source: PTX ISA 9.0, "Syntax", "State Spaces, Types, and Variables", "Directives".
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

TYPE_BITS = {
    **{f"{letter}{bits}": bits for letter in "bus" for bits in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16,
    "bf16": 16,
    "f16x2": 32,
    "bf16x2": 32,
    "tf32": 32,
    "f32": 32,
    "f64": 64,
    "e4m3x2": 16,
    "e5m2x2": 16,
    "u16x2": 32,
    "s16x2": 32,
    "e4m3": 8,
    "e5m2": 8,
    "pred": 1,
}

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16})
  | (?P<number>0[xX][0-9a-fA-F]+U?|\d+\.\d+(?:[eE][+-]?\d+)?|\d+U?)
  | (?P<word>[%$._a-zA-Z][\w$.:]*(?:<\d+>)?)
  | (?P<mark>[{}()\[\],;:@!|=+\-<>*/&^~])
    """,
    re.X | re.S,
)
_LINE_DIRECTIVES = (".version", ".target", ".address_size", ".loc", ".file")


class PtxSyntaxError(ValueError):
    """The text is not PTX this parser understands; the message quotes it."""


@dataclass(frozen=True)
class Register:
    """A register operand, by its unique name."""

    name: str
    negated: bool = False


@dataclass(frozen=True)
class Immediate:
    """A literal: an integer, or the bits of a float literal."""

    value: int
    float_bits: int = 0
    """Width of a float literal; 0 for an integer."""


@dataclass(frozen=True)
class Symbol:
    """The name of a variable, function or label, with a byte offset."""

    name: str
    offset: int = 0
    mask: int = 0
    """In an initialiser, which bits of the address are meant; 0 for all."""


@dataclass(frozen=True)
class Address:
    """A memory operand `[base + offset]`."""

    base: Register | Symbol | None
    offset: int


@dataclass(frozen=True)
class Group:
    """A braced or parenthesised list of operands."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """Two results, `p|q`."""

    first: Operand
    second: Operand


Operand = Register | Immediate | Symbol | Address | Group | Pair
Scope = dict[str, Register | Symbol]
"""What a name stands for in a function: a register, or a variable or label by its unique name."""


@dataclass(frozen=True)
class Place:
    """A source line; line 0 where the compiler gave none."""

    file: str
    line: int


@dataclass(frozen=True)
class Statement:
    """One instruction."""

    guard: Register | None
    opcode: str
    operands: tuple[Operand, ...]
    place: Place
    text: str


@dataclass
class Variable:
    """A variable in a state space, or a parameter."""

    name: str
    space: str
    bits: int
    count: int | None
    """Elements of an array, 0 for `[]`, None for a scalar."""
    align: int
    init: list[Immediate | Symbol | str] = field(default_factory=list)
    extern: bool = False

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.bits // 8 * (1 if self.count is None else self.count)


@dataclass
class Function:
    """An entry or device function."""

    name: str
    is_kernel: bool
    parameters: list[Variable]
    returns: list[Variable]
    registers: dict[str, str] = field(default_factory=dict)
    """Unique name to type."""
    variables: list[Variable] = field(default_factory=list)
    """Local, shared and call parameter variables declared in the body."""
    statements: list[Statement] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    branch_targets: dict[str, list[str]] = field(default_factory=dict)
    prototypes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Name to (number of results, number of parameters)."""
    has_body: bool = False
    most_threads: int = 0
    """Threads a block may have (.maxntid, .reqntid), 0 where that is left open."""
    cluster_blocks: int = 1
    """Blocks of a cluster (.reqnctapercluster)."""


@dataclass
class Module:
    """One PTX text."""

    functions: list[Function] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)


def parse(text: str) -> Module:
    """Return the module in `text`; raises `PtxSyntaxError`."""
    return _Parser(text).module()


def shown_path(path: str) -> str:
    """Return a source path as a candidate's author knows it: from `kernels/` on, or the file's name."""
    parts = Path(path).parts
    if "kernels" in parts:
        return "/".join(parts[parts.index("kernels") :])
    return parts[-1] if parts else path


def _is_toolkit_file(path: str) -> bool:
    return any(part in path for part in ("/include/", "/nvvm/", "/targets/", "/nvidia/cu", "/usr/"))


class _Lines:
    """The `.loc` chains, from any line to the line that inlined it."""

    def __init__(self) -> None:
        self.files: dict[int, str] = {}
        self._inlined_at: dict[tuple[int, int, int], tuple[int, int, int]] = {}

    def place(self, words: list[str]) -> Place:
        """Return the place a `.loc` directive stands for."""
        here = (int(words[0]), int(words[1]), int(words[2]) if len(words) > 2 and words[2].isdigit() else 0)
        if "inlined_at" in words:
            at = words.index("inlined_at")
            self._inlined_at[here] = (int(words[at + 1]), int(words[at + 2]), int(words[at + 3]))
        else:
            self._inlined_at.pop(here, None)
        for _ in range(32):
            if not _is_toolkit_file(self.files.get(here[0], "")) or here not in self._inlined_at:
                break
            here = self._inlined_at[here]
        return Place(self.files.get(here[0], ""), here[1])


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        self._lines = _Lines()
        self._names: set[str] = set()
        # The file table stands at the end of the text, after the lines that refer to it.
        for number, name in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.M):
            self._lines.files[int(number)] = name
        self._tokenise(text)

    # Tokens. Directives that end with their line become one ("line", words) token.
    def _tokenise(self, text: str) -> None:
        position, end = 0, len(text)
        add = self._tokens.append
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise PtxSyntaxError(f"unexpected text in PTX: {text[position : position + 40]!r}")
            kind, value = str(match.lastgroup), match.group()
            position = match.end()
            if kind == "space":
                continue
            if kind == "word" and value in _LINE_DIRECTIVES:
                newline = text.find("\n", position)
                newline = end if newline < 0 else newline
                add(("line", value + " " + text[position:newline].split("//")[0]))
                position = newline
                continue
            if kind == "word" and value[0] == "." and "." in value[1:]:  # `.reg.b32`, as inline assembly has it
                for word in value[1:].split("."):
                    add((kind, f".{word}"))
                continue
            add((kind, value))

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _kind(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else "end"

    def _next(self) -> str:
        value = self._peek()
        self._at += 1
        return value

    def _expect(self, value: str) -> None:
        found = self._next()
        if found != value:
            around = " ".join(token for _, token in self._tokens[max(0, self._at - 8) : self._at + 4])
            raise PtxSyntaxError(f"expected {value!r}, found {found!r} in PTX near: {around}")

    def _accept(self, value: str) -> bool:
        if self._peek() == value:
            self._at += 1
            return True
        return False

    def module(self) -> Module:
        module = Module()
        while self._at < len(self._tokens):
            if self._kind() == "line":
                self._line_directive(self._next())
                continue
            word = self._peek()
            if word == ".pragma":
                self._skip_to(";")
            elif word == ".section":
                self._skip_to("{")
                self._skip_braces()
            elif word in (";", ".alias"):
                self._skip_to(";")
            else:
                self._declaration(module)
        return module

    def _line_directive(self, text: str) -> Place | None:
        words = text.replace(",", " ").split()
        if words[0] == ".loc":
            return self._lines.place(words[1:])
        return None

    def _skip_to(self, mark: str) -> None:
        while self._at < len(self._tokens) and self._next() != mark:
            pass

    def _skip_braces(self) -> None:
        depth = 1
        while depth and self._at < len(self._tokens):
            token = self._next()
            depth += (token == "{") - (token == "}")

    def _declaration(self, module: Module) -> None:
        extern = False
        while self._peek() in (".visible", ".extern", ".weak", ".common"):
            extern |= self._next() == ".extern"
        word = self._peek()
        if word in (".entry", ".func"):
            function = self._function(word == ".entry")
            known = next((f for f in module.functions if f.name == function.name), None)
            if known is None:
                module.functions.append(function)
            elif function.has_body:
                module.functions[module.functions.index(known)] = function
        elif word in (".global", ".const", ".shared"):
            variable = self._variable(extern)
            if not (extern and any(v.name == variable.name for v in module.variables)):
                module.variables.append(variable)
        else:
            raise PtxSyntaxError(f"unexpected {word!r} at the top level of PTX")

    def _variable(self, extern: bool = False) -> Variable:
        space = self._next().removeprefix(".").split("::")[0]
        align, bits, vector = 0, 32, 1
        while self._peek().startswith("."):
            word = self._next()[1:]
            if word == "align":
                align = int(self._next())
            elif word in ("v2", "v4"):
                vector = int(word[1])
            elif word in TYPE_BITS:
                bits = TYPE_BITS[word]
            elif word == "attribute":
                self._skip_to(")")
            elif word == "ptr":
                while self._peek().startswith(".") and self._peek() != ".align":
                    self._next()
                if self._accept(".align"):
                    self._next()
        name = self._next()
        count: int | None = None
        while self._accept("["):
            size = 0 if self._peek() == "]" else int(self._next().rstrip("U"), 0)
            self._expect("]")
            count = size if count is None else count * size
        if vector > 1:
            count = vector * (1 if count is None else count)
        variable = Variable(name, space, bits, count, align or max(1, bits // 8 * vector), extern=extern)
        if self._accept("="):
            variable.init = self._initialiser()
        self._accept(";")
        return variable

    def _initialiser(self) -> list[Immediate | Symbol | str]:
        items: list[Immediate | Symbol | str] = []
        depth = 0
        while True:
            token = self._peek()
            if token == "{":
                depth += 1
                self._next()
            elif token == "}":
                depth -= 1
                self._next()
            elif token == ",":
                self._next()
            elif token == "generic":
                self._next()
                self._expect("(")
                name = self._next()
                self._expect(")")
                items.append(Symbol(name, self._offset()))
            elif token == ";":
                break
            else:
                operand = self._operand({})
                if isinstance(operand, Immediate) and self._peek() == "(":  # one byte of an address: 0xFF00(name)
                    group = self._operand({})
                    named = group.items[0] if isinstance(group, Group) and len(group.items) == 1 else None
                    if not isinstance(named, Symbol):
                        raise PtxSyntaxError(f"unexpected initialiser {group}")
                    operand = Symbol(named.name, named.offset, operand.value)
                if not isinstance(operand, Immediate | Symbol):
                    raise PtxSyntaxError(f"unexpected initialiser {operand}")
                items.append(operand)
            if depth == 0 and self._peek() == ";":
                break
        return items

    def _offset(self) -> int:
        if self._accept("+"):
            sign = -1 if self._accept("-") else 1
            return sign * int(self._next().rstrip("U"), 0)
        if self._peek() == "-":
            self._next()
            return -int(self._next().rstrip("U"), 0)
        return 0

    def _parameters(self) -> list[Variable]:
        parameters = []
        self._expect("(")
        while not self._accept(")"):
            if self._accept(","):
                continue
            parameters.append(self._variable())
        return parameters

    def _function(self, is_kernel: bool) -> Function:
        self._next()
        while self._peek().startswith(".") and self._peek() != ".param":  # .attribute(...) before the name
            self._next()
            if self._peek() == "(" and self._tokens[self._at + 1][1].startswith(".unified"):
                self._skip_to(")")
        returns = self._parameters() if self._peek() == "(" else []
        name = self._next()
        parameters = self._parameters() if self._peek() == "(" else []
        function = Function(name, is_kernel, parameters, returns)
        while self._peek() not in ("{", ";"):
            if self._kind() == "line":
                self._line_directive(self._next())
            elif self._peek() in (".maxntid", ".reqntid"):
                self._next()
                function.most_threads = self._product()
            elif self._next() == ".reqnctapercluster":
                function.cluster_blocks = self._product()
            # else .minnctapersm, .noreturn and the like, and their numbers
        if self._next() == "{":
            function.has_body = True
            _Body(self, function).parse()
        return function

    def _product(self) -> int:
        product = int(self._next())
        while self._accept(","):
            product *= int(self._next())
        return product

    def unique(self, name: str) -> str:
        """Return a variable's name, changed where another function or scope has one of that name."""
        unique, number = name, 0
        while unique in self._names:
            number += 1
            unique = f"{name}#{number}"
        self._names.add(unique)
        return unique

    def _operand(self, scope: Scope) -> Operand:
        token, kind = self._peek(), self._kind()
        if token == "{" or token == "(":
            close = "}" if token == "{" else ")"
            self._next()
            items = []
            while not self._accept(close):
                if not self._accept(","):
                    items.append(self._operand(scope))
            return Group(tuple(items))
        if token == "[":
            self._next()
            return self._address(scope)
        if token == "!":
            self._next()
            inner = self._operand(scope)
            if not isinstance(inner, Register):
                raise PtxSyntaxError("'!' stands before something that is not a predicate")
            return Register(inner.name, negated=True)
        if token == "-":
            self._next()
            literal = self._operand(scope)
            if not isinstance(literal, Immediate):
                raise PtxSyntaxError("'-' stands before something that is not a number")
            if literal.float_bits:
                return Immediate(literal.value ^ 1 << (literal.float_bits - 1), literal.float_bits)
            return Immediate(-literal.value)
        self._next()
        if kind == "float":
            return Immediate(int(token[2:], 16), float_bits=4 * len(token[2:]))
        if kind == "number":
            if "." in token:
                return Immediate(struct.unpack("<Q", struct.pack("<d", float(token)))[0], float_bits=64)
            return Immediate(int(token.rstrip("U"), 0))
        operand: Operand
        known = scope.get(token)
        if isinstance(known, Register):
            operand = known
        elif token.startswith("%") and known is None:
            operand = Register(token)  # a special register
        else:
            name = known.name if known is not None else token
            operand = Symbol(name, self._offset() if self._peek() in ("+", "-") else 0)
        if self._accept("|"):
            return Pair(operand, self._operand(scope))
        return operand

    def _address(self, scope: Scope) -> Address:
        base: Register | Symbol | None = None
        token, kind = self._peek(), self._kind()
        offset = 0
        if kind == "number" or token == "-":
            sign = -1 if self._accept("-") else 1
            offset = sign * int(self._next().rstrip("U"), 0)
        else:
            self._next()
            base = scope.get(token, Symbol(token))
            offset = self._offset()
        if self._accept(","):  # tensor coordinates and the like: not supported, but parsed
            while self._peek() != "]":
                self._operand(scope) if self._peek() != "," else self._next()
        self._expect("]")
        return Address(base, offset)


class _Body:
    """The body of one function: declarations, labels and instructions in nested scopes."""

    def __init__(self, parser: _Parser, function: Function) -> None:
        self._p = parser
        self._f = function
        self._scopes: list[Scope] = [{}]
        self._place = Place("", 0)
        self._serial = 0

    def parse(self) -> None:
        p = self._p
        self._find_labels()
        while True:
            if p._kind() == "line":
                place = p._line_directive(p._next())
                self._place = place or self._place
                continue
            token = p._peek()
            if token == "{":
                p._next()
                self._scopes.append(dict(self._scopes[-1]))
                self._find_labels()
            elif token == "}":
                p._next()
                self._scopes.pop()
                if not self._scopes:
                    return
            elif token == ".reg":
                self._registers()
            elif token in (".local", ".shared", ".param"):
                variable = p._variable()
                name, variable.name = variable.name, p.unique(variable.name)
                self._scopes[-1][name] = Symbol(variable.name)
                self._f.variables.append(variable)
            elif token == ".pragma":
                p._skip_to(";")
            elif token == ";":
                p._next()
            elif token == "":
                raise PtxSyntaxError(f"PTX ends inside function {self._f.name}")
            elif p._at + 1 < len(p._tokens) and p._tokens[p._at + 1][1] == ":" and token[0] not in "@":
                p._next()
                p._next()
                self._label(token)
            elif token.endswith(":"):
                p._next()
                self._label(token[:-1])
            else:
                self._instruction()

    def _find_labels(self) -> None:
        """Enter the labels of the scope that begins here, which branches may name before they stand."""
        p = self._p
        depth, at, starts = 0, p._at, True
        while at < len(p._tokens) and depth >= 0:
            kind, token = p._tokens[at]
            depth += (token == "{") - (token == "}")
            if depth == 0 and starts and kind == "word":
                follows = p._tokens[at + 1][1] if at + 1 < len(p._tokens) else ""
                if token.endswith(":") or follows == ":":
                    name = token.removesuffix(":")
                    self._serial += 1
                    self._scopes[-1][name] = Symbol(f"{name}#{self._serial}")
            starts = kind == "line" or token in (";", "}", "{", ":") or token.endswith(":")
            at += 1

    def _label(self, name: str) -> None:
        p = self._p
        found = self._scopes[-1][name]
        name = found.name
        if p._peek() == ".branchtargets":
            p._next()
            targets = []
            while not p._accept(";"):
                if not p._accept(","):
                    target = p._next()
                    targets.append(self._scopes[-1].get(target, Symbol(target)).name)
            self._f.branch_targets[name] = targets
        elif p._peek() == ".callprototype":
            p._next()
            results = len(p._parameters()) if p._peek() == "(" else 0
            p._next()  # the placeholder name
            parameters = len(p._parameters()) if p._peek() == "(" else 0
            p._skip_to(";")
            self._f.prototypes[name] = (results, parameters)
        else:
            self._f.labels[name] = len(self._f.statements)

    def _registers(self) -> None:
        p = self._p
        p._next()
        kind = p._next()[1:]
        vector = 1
        if kind in ("v2", "v4"):
            vector = int(kind[1])
            kind = p._next()[1:]
        if vector > 1:
            raise PtxSyntaxError("vector registers are not supported")
        while not p._accept(";"):
            if p._accept(","):
                continue
            name = p._next()
            family = re.fullmatch(r"(.*)<(\d+)>", name)
            if family is None and p._accept("<"):
                family = re.fullmatch(r"(.*)<(\d+)>", f"{name}<{p._next()}>")
                p._expect(">")
            names = [f"{family[1]}{k}" for k in range(int(family[2]))] if family else [name]
            for each in names:
                unique = each if each not in self._f.registers else f"{each}#{self._serial}"
                self._serial += 1
                self._f.registers[unique] = kind
                self._scopes[-1][each] = Register(unique)

    def _instruction(self) -> None:
        p = self._p
        start = p._at
        scope = self._scopes[-1]
        guard: Register | None = None
        if p._accept("@"):
            negated = p._accept("!")
            name = p._next()
            guard = Register(scope.get(name, Register(name)).name, negated)
        opcode = p._next()
        operands: list[Operand] = []
        while not p._accept(";"):
            if p._accept(","):
                continue
            if p._kind() == "end":
                raise PtxSyntaxError(f"PTX ends inside an instruction of {self._f.name}")
            operands.append(p._operand(scope))
        text = " ".join(token for _, token in p._tokens[start : p._at - 1])
        self._f.statements.append(Statement(guard, opcode, tuple(operands), self._place, text))
