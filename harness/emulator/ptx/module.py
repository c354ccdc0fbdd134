"""Parse PTX text into entries: their declarations, instructions and the source line of each instruction.

Reads both dialects of NVRTC, typed registers (compute_75 to compute_90) and the untyped ``.b32`` of
compute_100 on, and PTX written by hand. Source lines come from ``.loc``; PTX without it is its own source.
Grammar: PTX ISA, chapters "Syntax" and "Directives".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from harness.emulator.ptx.declarations import BYTES, LARGEST, Variable, aligned, declare
from harness.emulator.ptx.statements import LABEL, statements
from harness.emulator.watch.findings import Source
from harness.errors import EmulatorError

_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,\s{}\[\]()]+")
_PARAMETER = re.compile(r"\.param\b(?P<attributes>[^,()]*?)(?P<name>[\w$%]+)\s*(?:\[(?P<count>\d+)\])?\s*$")
_NAME = re.compile(r"(?<![\w$%.])[A-Za-z_$%][\w$%]*")
_GUARD = re.compile(r"@\s*(!?)\s*([\w$%]+)\s+")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+")
CARRY = "CC.CF"  # the register of the carry (PTX ISA, "Extended-Precision Integer Arithmetic")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)")


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A kernel parameter; `offset` and `size` are bytes within the parameter space."""

    name: str
    type: str
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """An instruction of an entry.

    index: its number in `Entry.instructions`
    opcode: its dotted parts, ``("ld", "global", "f32")``
    operands: the text of each
    guard, negated: the predicate of ``@p`` or ``@!p``, "" without one
    source: the line of the kernel's source
    ptx_line: the line of the PTX text
    targets: of a branch, the indices of the instructions that it can go to
    """

    index: int
    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str = ""
    negated: bool = False
    source: Source
    ptx_line: int
    targets: tuple[int, ...] = ()

    def __str__(self) -> str:
        return ".".join(self.opcode)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A kernel of a PTX module.

    variables: its own variables and the module's, by name
    registers: the type of each register, by name
    sizes: bytes in use of each state space; dynamic shared memory is left out
    """

    name: str
    parameters: tuple[Parameter, ...]
    variables: dict[str, Variable]
    registers: dict[str, str]
    sizes: dict[str, int]
    instructions: tuple[Instruction, ...]


@dataclass
class _Body:
    """An entry that is being read.

    Labels, registers and variables belong to the braces in which they are declared. A scope is the tuple of
    the numbers of the open braces, outermost first.

    labels: the index of the instruction that a label stands before, by scope and name
    tables: the text of each ``.branchtargets`` list, by its label
    lines: (text, scope, source line, PTX line) of each instruction
    scopes: how many braces have been opened
    inner: for each scope of inner braces, the names that its declared names are kept under
    """

    name: str
    parameters: tuple[Parameter, ...]
    variables: dict[str, Variable]
    sizes: dict[str, int]
    registers: dict[str, str] = field(default_factory=dict)
    labels: dict[tuple[tuple[int, ...], str], int] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    lines: list[tuple[str, tuple[int, ...], Source, int]] = field(default_factory=list)
    scope: list[int] = field(default_factory=list)
    scopes: int = 0
    inner: dict[tuple[int, ...], dict[str, str]] = field(default_factory=dict)

    def named(self, name: str) -> str:
        """Return the name to keep a declared name under: the same in the outermost braces, new in others."""
        if len(self.scope) < 2:
            return name
        kept = f"{name}${self.scope[-1]}"
        return self.inner.setdefault(tuple(self.scope), {}).setdefault(name, kept)

    def seen_from(self, scope: tuple[int, ...]) -> dict[str, str]:
        """Return the kept names of inner declarations that `scope` sees; inner ones hide outer ones."""
        found: dict[str, str] = {}
        for depth in range(2, len(scope) + 1):
            found |= self.inner.get(scope[:depth], {})
        return found


def parse(text: str) -> dict[str, Entry]:
    """Return the entries of a PTX module by name. Raises EmulatorError where the text is not PTX."""
    found = list(statements(text))
    reader = _Reader(_files(found), any(_LOC.match(statement) for _, statement in found))
    for line, statement in found:
        if reader.body is None:
            reader.outside(line, statement)
        else:
            reader.inside(line, statement, reader.body)
    if reader.body is not None or reader.skipping:
        raise EmulatorError("the text ends inside a function", where="PTX", hint="Is the file cut short?")
    return reader.entries


class _Reader:
    """The state of `parse`: at module level, in the `body` of an entry, or skipping another function.

    `skipping` counts that function's open braces; `has_lines` tells whether the text has ``.loc``.
    """

    def __init__(self, files: dict[str, str], has_lines: bool) -> None:
        self._files = files
        self._has_lines = has_lines
        self._module: dict[str, Variable] = {}
        self._sizes: dict[str, int] = {}
        self._where = Source()
        self.entries: dict[str, Entry] = {}
        self.body: _Body | None = None
        self.skipping = 0

    def outside(self, line: int, statement: str) -> None:
        """Read a statement that is not in an entry's body."""
        if statement == "{":
            self.skipping += 1
        elif statement == "}":
            if not self.skipping:
                raise EmulatorError("a closing brace without its opening one", where=f"PTX line {line}")
            self.skipping -= 1
        elif self.skipping:
            return
        elif re.search(r"\.entry\b", statement):
            self.body = _header(statement, line, self._module, self._sizes)
            self._where = Source()
        elif re.match(r"(?:\.\w+\s+)*\.(shared|global|const|local)\b", statement):
            declare(statement, line, self._module, self._sizes)

    def inside(self, line: int, statement: str, body: _Body) -> None:
        """Read a statement in the body of an entry."""
        if statement == "{":
            body.scopes += 1
            body.scope.append(body.scopes)
        elif statement == "}":
            if not body.scope:
                raise EmulatorError("a closing brace without its opening one", where=f"PTX line {line}")
            body.scope.pop()
            if not body.scope:
                self.entries[body.name] = _finish(body)
                self.body = None
        elif _LOC.match(statement):
            self._where = _location(statement, self._files) or self._where
        else:
            _statement(statement, line, self._where if self._has_lines else Source(line=line), body)


def _files(found: list[tuple[int, str]]) -> dict[str, str]:
    """Return the files of the ``.file`` directives by number; the first, the kernel's own, becomes ""."""
    matches = [m for _, s in found if (m := re.match(r'\.file\s+(\d+)\s+"([^"]*)"', s))]
    return {match[1]: match[2] if place else "" for place, match in enumerate(matches)}


def _location(statement: str, files: dict[str, str]) -> Source | None:
    """Return the source line of a ``.loc``, or None for line 0, which says nothing.

    The compiler marks code that belongs to no line with 0; the last line stays in force. Code inlined from a
    header belongs to the line of the kernel's own file that it was inlined at, if there is one.
    """
    match = _LOC.match(statement)
    if not match or match[2] == "0":
        return None
    for number, line in [(match[1], match[2]), *_INLINED.findall(statement)]:
        if files.get(number, "") == "":
            return Source(line=int(line))
    return Source(line=int(match[2]), file=files[match[1]])


def _header(text: str, line: int, module: dict[str, Variable], sizes: dict[str, int]) -> _Body:
    """Read the name and parameters of an ``.entry``; `module` and `sizes` are those of the module."""
    match = re.search(r"\.entry\s+([\w$%]+)\s*(?:\((.*?)\))?", text, re.DOTALL)
    if not match:
        raise EmulatorError("an .entry without a name", where=f"PTX line {line}")
    parameters: list[Parameter] = []
    offset = 0
    for declared in filter(str.strip, (match[2] or "").split(",")):
        found = _PARAMETER.match(declared.strip())
        types = [t for t in re.findall(r"\.(\w+)", found["attributes"]) if t in BYTES] if found else []
        if not found or not types:
            raise EmulatorError(f"not a parameter: {declared.strip()!r}", where=f"PTX line {line}")
        align = re.search(r"\.align\s+(\d+)", found["attributes"])
        pointer = ".ptr" in found["attributes"]  # its .align is that of the memory it points to
        size = BYTES[types[-1]] * int(found["count"] or 1)
        step = int(align[1]) if align and not pointer else BYTES[types[-1]]
        offset = aligned(offset, step, line)
        if size > LARGEST:
            raise EmulatorError(f"parameter {found['name']} is {size} bytes large", where=f"PTX line {line}")
        parameters.append(Parameter(name=found["name"], type=types[-1], offset=offset, size=size))
        offset += size
    return _Body(match[1], tuple(parameters), dict(module), dict(sizes))


def _statement(text: str, line: int, where: Source, body: _Body) -> None:
    """Read one statement of a body: a label, a branch table, a declaration or an instruction."""
    if match := LABEL.match(text):
        if rest := text[match.end() :].strip():
            body.tables[match[1]] = rest.partition(" ")[2]
        else:
            body.labels[tuple(body.scope), match[1]] = len(body.lines)
    elif text.startswith(".reg"):
        _registers(text, line, body)
    elif re.match(r"\.(shared|local|global|const)\b", text):
        declare(text, line, body.variables, body.sizes, body.named)
    elif text and not text.startswith("."):
        body.lines.append((text, tuple(body.scope), where, line))


def _registers(text: str, line: int, body: _Body) -> None:
    """Read a ``.reg`` declaration, in which ``%r<3>`` stands for %r0, %r1 and %r2."""
    match = re.match(r"\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)", text, re.DOTALL)
    if not match or match[1] not in BYTES:
        raise EmulatorError(f"not a register declaration: {text[:60]!r}", where=f"PTX line {line}")
    for name in match[2].split(","):
        found = re.fullmatch(r"\s*([\w$%]+)(?:<(\d{1,6})>)?\s*", name)
        if not found:
            raise EmulatorError(f"not a register name: {name.strip()!r}", where=f"PTX line {line}")
        names = [found[1]] if found[2] is None else [f"{found[1]}{i}" for i in range(int(found[2]))]
        body.registers.update((body.named(name), match[1]) for name in names)


def _finish(body: _Body) -> Entry:
    """Return the entry of a body: opcodes and operands split, labels replaced by instruction numbers."""
    instructions: list[Instruction] = []
    for index, (text, scope, where, line) in enumerate(body.lines):
        guard = _GUARD.match(text)
        rest = text[guard.end() :] if guard else text
        opcode, *operands = re.split(r"\s+", rest, maxsplit=1)
        inner = body.seen_from(scope)
        if inner and opcode not in ("bra", "bra.uni"):
            operands = [_meant(given, inner) for given in operands]
        if not re.fullmatch(r"[a-z][\w.:]*", opcode):
            raise EmulatorError(f"not an instruction: {text[:60]!r}", where=f"PTX line {line}")
        found = _OPERAND.findall(operands[0]) if operands else []
        parts = tuple(part for part in opcode.split(".") if part)
        instructions.append(
            Instruction(
                index=index,
                opcode=parts,
                operands=tuple(found),
                guard=inner.get(guard[2], guard[2]) if guard else "",
                negated=bool(guard and guard[1]),
                source=where,
                ptx_line=line,
                targets=_targets(parts, found, scope, line, body),
            )
        )
    _place_dynamic(body)
    if any("cc" in i.opcode or i.opcode[0] in ("addc", "subc", "madc") for i in instructions):
        body.registers[CARRY] = "b32"
    return Entry(
        name=body.name,
        parameters=body.parameters,
        variables=body.variables,
        registers=body.registers,
        sizes=body.sizes,
        instructions=tuple(instructions),
    )


def _meant(operands: str, inner: dict[str, str]) -> str:
    """Return the text of operands with names of inner braces replaced by those they are kept under."""
    return _NAME.sub(lambda match: inner.get(match[0], match[0]), operands)


def _place_dynamic(body: _Body) -> None:
    """Place the ``extern __shared__`` arrays, which have no size, after the static ones."""
    dynamic = [v for v in body.variables.values() if v.space == "shared" and not v.size]
    if dynamic:
        start = body.sizes["shared"] = aligned(body.sizes["shared"], 16, 0)
        body.variables.update({v.name: replace(v, offset=start) for v in dynamic})


def _targets(
    opcode: tuple[str, ...], operands: list[str], scope: tuple[int, ...], line: int, body: _Body
) -> tuple[int, ...]:
    """Return the indices of the instructions that a ``bra`` or ``brx`` can go to, () for any other."""
    if opcode[0] == "bra":
        names = operands[:1]
    elif opcode[0] == "brx" and len(operands) == 2:
        names = [name.strip() for name in body.tables.get(operands[1], "").split(",")]
    else:
        return ()
    found = []
    for name in names:
        depth = next((d for d in range(len(scope), 0, -1) if (scope[:d], name) in body.labels), 0)
        if not depth:
            raise EmulatorError(f"no label {name!r} to branch to", where=f"PTX line {line}")
        found.append(body.labels[scope[:depth], name])
    return tuple(found)
