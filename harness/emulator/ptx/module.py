"""Parse PTX text into entries: their declarations, instructions and the source line of each instruction.

Reads both dialects of NVRTC, typed registers (compute_75 to compute_90) and the untyped ``.b32`` of
compute_100 on, and PTX written by hand. Source lines come from ``.loc``; PTX without it is its own source.
Grammar: PTX ISA, chapters "Syntax" and "Directives".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from harness.emulator.ptx.calls import linked
from harness.emulator.ptx.declarations import BYTES, RESERVED, RESERVED_BYTES, Variable, aligned, declare
from harness.emulator.ptx.headers import Header, header
from harness.emulator.ptx.program import Entry, Function, Instruction
from harness.emulator.ptx.statements import LABEL, statements
from harness.emulator.watch.findings import Source
from harness.errors import EmulatorError

_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,\s{}\[\]()]+")
_NAME = re.compile(r"(?<![\w$%.])[A-Za-z_$%][\w$%]*")
_OPCODE = re.compile(r"([a-z][\w.:]*)(?![^\s{\[(%])\s*(.*)", re.DOTALL)  # no space is needed before ``{``
_GUARD = re.compile(r"@\s*(!?)\s*([\w$%]+)\s+")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
OF_ANOTHER = '.file 0 ""\n'  # before the first .file: that is not the text's own file, and has its name
CARRY = "CC.CF"  # the register of the carry (PTX ISA, "Extended-Precision Integer Arithmetic")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)")


@dataclass
class _Body:
    """A function that is being read.

    Labels, registers and variables belong to the braces in which they are declared. A scope is the tuple of
    the numbers of the open braces, outermost first.

    labels: the index of the instruction that a label stands before, by scope and name
    tables: the text of each ``.branchtargets`` list, by its label
    lines: (text, scope, source line, PTX line) of each instruction
    scopes: how many braces have been opened
    inner: for each scope of inner braces, the names that its declared names are kept under
    wide: the registers of 128 bits, each held as two of 64, ``%q.lo`` and ``%q.hi``
    prefix: of a function that is called, what all its names are kept with; "" for an entry
    """

    header: Header
    prefix: str
    variables: dict[str, Variable]
    sizes: dict[str, int]
    registers: dict[str, str] = field(default_factory=dict)
    labels: dict[tuple[tuple[int, ...], str], int] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    lines: list[tuple[str, tuple[int, ...], Source, int]] = field(default_factory=list)
    scope: list[int] = field(default_factory=list)
    scopes: int = 0
    inner: dict[tuple[int, ...], dict[str, str]] = field(default_factory=dict)
    wide: set[str] = field(default_factory=set)

    def named(self, name: str) -> str:
        """Return the name to keep a declared name under.

        That is itself in an entry's outermost braces, elsewhere a new one with a colon, which no name of
        PTX has.
        """
        if len(self.scope) < 2 and not self.prefix:
            return name
        kept = f"{self.prefix}{name}:{self.scope[-1]}"
        return self.inner.setdefault(tuple(self.scope), {}).setdefault(name, kept)

    def open(self) -> None:
        """Open a scope. A called function's own holds its parameters, as registers with their addresses."""
        self.scopes += 1
        self.scope.append(self.scopes)
        if self.prefix and self.scopes == 1:
            for one in (*self.header.parameters, *self.header.returns):
                self.registers[self.named(one.name)] = one.type if one.register else "b64"

    def seen_from(self, scope: tuple[int, ...]) -> dict[str, str]:
        """Return the kept names of inner declarations that `scope` sees; inner ones hide outer ones."""
        found: dict[str, str] = {}
        for depth in range(1, len(scope) + 1):
            found |= self.inner.get(scope[:depth], {})
        return found


def parse(text: str) -> dict[str, Entry]:
    """Return the entries of a PTX module by name. Raises EmulatorError where the text is not PTX."""
    found = list(statements(text))
    reader = _Reader(*_files(found), any(_LOC.match(statement) for _, statement in found))
    if "%reserved_smem_offset" in text:  # it lies below what is declared, as on a GPU
        reader.outside(0, f".shared .align 16 .b8 {RESERVED}[{RESERVED_BYTES}]")
    for line, statement in found:
        reader.opens(statement)
        if reader.body is None:
            reader.outside(line, statement)
        else:
            reader.inside(line, statement, reader.body)
    if reader.body is not None or reader.depth:
        raise EmulatorError("the text ends inside a function", where="PTX", hint="Is the file cut short?")
    return {name: linked(entry, reader.functions) for name, entry in reader.entries.items()}


class _Reader:
    """The state of `parse`: at module level, or in the `body` of a function.

    depth: open braces at module level
    pending: the header of a function whose body may follow, and its line
    has_lines: the text has ``.loc``
    places: the source line that each file, line and column of a ``.loc`` belonged to last
    """

    def __init__(self, files: dict[str, str], own: str, has_lines: bool) -> None:
        self._files, self._own = files, own
        self._has_lines = has_lines
        self._module: dict[str, Variable] = {}
        self._sizes: dict[str, int] = {}
        self._where = Source()
        self._places: dict[tuple[str, ...], Source] = {}
        self.entries: dict[str, Entry] = {}
        self.functions: dict[str, Function] = {}
        self.body: _Body | None = None
        self.pending: Header | None = None
        self.depth = 0

    def opens(self, statement: str) -> None:
        """Make the pending function the one to read if a statement opens its body."""
        head, self.pending = self.pending, None
        if head is not None and statement == "{":  # otherwise it was a prototype alone
            self.body = _Body(head, f"{head.name}:", dict(self._module), {})
            self._where = Source()

    def outside(self, line: int, statement: str) -> None:
        """Read a statement that is not in a function's body."""
        if statement == "{":
            self.depth += 1
        elif statement == "}":
            if not self.depth:
                raise EmulatorError("a closing brace without its opening one", where=f"PTX line {line}")
            self.depth -= 1
        elif self.depth:
            return
        elif re.search(r"\.entry\b", statement):
            self.body = _Body(header(statement, line), "", dict(self._module), dict(self._sizes))
            self._where = Source()
        elif re.search(r"\.func\b", statement):
            self.pending = header(statement, line)
            self.functions.setdefault(self.pending.name, Function(header=self.pending))
        elif re.match(r"(?:\.\w+\s+)*\.(shared|global|const|local|tex)\b", statement):
            declare(statement, line, self._module, self._sizes)

    def inside(self, line: int, statement: str, body: _Body) -> None:
        """Read a statement in the body of an entry."""
        if statement == "{":
            body.open()
        elif statement == "}":
            if not body.scope:
                raise EmulatorError("a closing brace without its opening one", where=f"PTX line {line}")
            body.scope.pop()
            if not body.scope:
                name, read = body.header.name, _finish(body)
                if body.prefix:
                    own = {v: kept for v, kept in read.variables.items() if v not in self._module}
                    self.functions[name] = Function(header=body.header, body=replace(read, variables=own))
                else:
                    self.entries[name] = read
                self.body = None
        elif _LOC.match(statement):
            self._where = _location(statement, self._files, self._own, self._places) or self._where
        else:
            _statement(statement, line, self._where if self._has_lines else Source(line=line), body)


def _files(found: list[tuple[int, str]]) -> tuple[dict[str, str], str]:
    """Return the files of the ``.file`` directives by number, and what the kernel's own is called.

    That is the first, and called "", but in a PTX text that is the kernel's file itself (`OF_ANOTHER`).
    """
    matches = [m for _, s in found if (m := re.match(r'\.file\s+(\d+)\s+"([^"]*)"', s))]
    files = {match[1]: match[2] for match in matches}
    another = files.pop("0", None) == ""
    own = next(iter(files.values()), "") if another else ""
    return files | dict.fromkeys([*files][:1], own), own


def _location(
    statement: str, files: dict[str, str], own: str, places: dict[tuple[str, ...], Source]
) -> Source | None:
    """Return the source line of a ``.loc``, or None for line 0, which says nothing.

    The compiler marks code that belongs to no line with 0; the last line stays in force. Code inlined from a
    header belongs to the line of the kernel's own file that it was inlined at, if there is one. Of functions
    that call each other the outermost is told first: `places` keeps what their places belong to.
    """
    match = _LOC.match(statement)
    if not match or match[2] == "0":
        return None
    found, inlined = Source(int(match[2]), files.get(match[1], own)), _INLINED.search(statement)
    caller = _caller(inlined.groups(), files, own, places) if inlined else None
    if caller is not None and found.file == own:
        found = Source(found.line, own, caller=caller.caller or caller.line)
    elif caller is not None:
        headers = (*caller.headers, found.file)
        found = Source(caller.line, own, caller=caller.caller, headers=headers)
    places[match.groups()] = found
    return found


def _caller(
    place: tuple[str, ...], files: dict[str, str], own: str, places: dict[tuple[str, ...], Source]
) -> Source | None:
    """Return what the place of a call belongs to in the kernel's own file; None if that is not known."""
    found = places.get(place) or Source(int(place[1]), files.get(place[0], own))
    return found if found.file == own else None


def _statement(text: str, line: int, where: Source, body: _Body) -> None:
    """Read one statement of a body: a label, a branch table, a declaration or an instruction."""
    if match := LABEL.match(text):
        if rest := text[match.end() :].strip():
            body.tables[match[1]] = rest.partition(" ")[2]
        else:
            body.labels[tuple(body.scope), match[1]] = len(body.lines)
    elif text.startswith(".reg"):
        _registers(text, line, body)
    elif re.match(r"\.(shared|local|global|const|param)\b", text):
        declare(text, line, body.variables, body.sizes, body.named)
    elif text and not text.startswith("."):
        body.lines.append((text, tuple(body.scope), where, line))


def _registers(text: str, line: int, body: _Body) -> None:
    """Read a ``.reg`` declaration, in which ``%r<3>`` stands for %r0, %r1 and %r2."""
    match = re.match(r"\.reg\s*(?:\.v[24]\s*)?\.(\w+)\s+(.*)", text, re.DOTALL)
    if not match or match[1] not in BYTES:
        raise EmulatorError(f"not a register declaration: {text[:60]!r}", where=f"PTX line {line}")
    for name in match[2].split(","):
        found = re.fullmatch(r"\s*([\w$%]+)(?:<(\d{1,6})>)?\s*", name)
        if not found:
            raise EmulatorError(f"not a register name: {name.strip()!r}", where=f"PTX line {line}")
        names = [found[1]] if found[2] is None else [f"{found[1]}{i}" for i in range(int(found[2]))]
        kept = [body.named(name) for name in names]
        if match[1] == "b128":
            body.wide.update(kept)
            body.registers.update((f"{name}.{half}", "b64") for name in kept for half in ("lo", "hi"))
        else:
            body.registers.update((name, match[1]) for name in kept)


def _finish(body: _Body) -> Entry:
    """Return the entry of a body: opcodes and operands split, labels replaced by instruction numbers."""
    instructions: list[Instruction] = []
    for index, (text, scope, where, line) in enumerate(body.lines):
        guard = _GUARD.match(text)
        rest = text[guard.end() :] if guard else text
        match = _OPCODE.match(rest)
        if not match:
            raise EmulatorError(f"not an instruction: {text[:60]!r}", where=f"PTX line {line}")
        opcode, operands = match.groups()
        inner = body.seen_from(scope)
        if inner and opcode not in ("bra", "bra.uni"):
            operands = _meant(operands, inner)
        found = _OPERAND.findall(operands)
        if body.wide:
            found = [_halved(given, body.wide) for given in found]
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
        name=body.header.name,
        parameters=body.header.parameters,
        variables=body.variables,
        registers=body.registers,
        sizes=body.sizes,
        instructions=tuple(instructions),
        cluster=body.header.cluster,
        blocks=body.header.blocks,
        most=body.header.most,
    )


def _meant(operands: str, inner: dict[str, str]) -> str:
    """Return the text of operands with names of inner braces replaced by those they are kept under."""
    return _NAME.sub(lambda match: inner.get(match[0], match[0]), operands)


def _halved(operand: str, wide: set[str]) -> str:
    """Return an operand with each register of 128 bits replaced by its halves, the low one first."""
    names = [name.strip() for name in operand.strip("{}").split(",")]
    if not wide & set(names):
        return operand
    return "{" + ", ".join(f"{name}.lo, {name}.hi" if name in wide else name for name in names) + "}"


def _place_dynamic(body: _Body) -> None:
    """Place the ``extern __shared__`` arrays, which have no size, after the static ones."""
    dynamic = [v for v in body.variables.values() if v.space == "shared" and not v.size]
    if dynamic:
        align = max(16, *(v.align for v in dynamic))
        start = body.sizes["shared"] = aligned(body.sizes.get("shared", 0), align, 0)
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
