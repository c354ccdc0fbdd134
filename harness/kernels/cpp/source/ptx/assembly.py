"""Split PTX text into entries, these into instructions and labels, and an instruction into its operands.

For a text to be read this is enough: scopes of names and directives are left out. What is run is read by
`harness.emulator.ptx`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?([^{};]*)\{")
_BOUNDS = re.compile(r"\.(maxntid|reqntid)\s+(\d+)\s*(?:,\s*(\d+)\s*)?(?:,\s*(\d+))?")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(\.ptr\b(?:\s*\.\w+)*(?:\s+\d+)?\s+)?([\w$]+)\s*(?:\[\s*(\d+)\s*\])?"
)
_DYNAMIC = re.compile(r"\.extern\s+\.shared[^;]*?([\w$]+)\s*\[\s*\]")
_VECTOR = re.compile(r"\{\s*((?:[%\w$.-]+\s*,\s*)*[%\w$.-]+)\s*\}")
_MOVED = re.compile(r"\bmov\.[bu]64\s+(%[\w$]+)\s*,\s*(%?[A-Za-z_$][\w$]*)\s*;")
STATEMENT = re.compile(r"(?:@(!?)\s*([%\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)\Z", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of an entry.

    name, of_entry: without the entry's name in front, and with it
    type: of PTX, such as ``u64``
    pointer: PTX says that it is one
    bytes: of a struct; 0 of a number or pointer
    """

    name: str
    of_entry: str
    type: str
    pointer: bool
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry of PTX text: `threads` are those of a block, 0 where that is not said, and `block` has them by
    axis where all are needed, or there are several axes; `dynamic` are the names of shared memory whose size
    the launch gives; `body` is what stands in its braces.
    """

    name: str
    parameters: tuple[Parameter, ...]
    threads: int
    block: tuple[int, ...]
    dynamic: tuple[str, ...]
    body: str


def entries(ptx: str) -> Iterator[Entry]:
    """Yield the entries that a PTX text defines."""
    plain = _COMMENT.sub(" ", ptx).replace(".param::entry", ".param")
    shared = _DYNAMIC.findall(plain)
    for found in _ENTRY.finditer(plain):
        end = plain.find(".entry", found.end())
        body, bounds = plain[found.end() : end if end > 0 else len(plain)], _BOUNDS.search(found[3])
        by_axis = tuple(int(n) for n in bounds.groups()[1:] if n) if bounds else ()
        structs = {p[3] for p in _PARAMETER.finditer(found[2] or "") if p[4]}
        yield Entry(
            name=found[1],
            parameters=tuple(
                Parameter(
                    name=name_of(p[3].removeprefix(f"{found[1]}_")),
                    of_entry=p[3],
                    type=p[1],
                    pointer=bool(p[2]),
                    bytes=int(p[4] or 0),
                )
                for p in _PARAMETER.finditer(found[2] or "")
            ),
            threads=math.prod(by_axis) if by_axis else 0,
            block=by_axis if bounds and (bounds[1] == "reqntid" or math.prod(by_axis[1:]) > 1) else (),
            dynamic=tuple(n for n in shared if re.search(rf"(?<![\w$]){re.escape(n)}(?![\w$])", body)),
            body=_named(body, structs),
        )


def _named(body: str, structs: Collection[str]) -> str:
    """Return a body that loads from structs by their names, where registers hold their addresses alone."""
    names, moves = {name: name for name in structs}, list[str]()
    for at in _MOVED.finditer(body):
        if at[2] in names:
            names[at[1]] = names[at[2]]
            moves.append(at[0])
    registers = "|".join(re.escape(name) for name in names if name[0] == "%")
    if not registers:
        return body
    loads, others = rf"(ld\.param[^;]*\[\s*)({registers})\b", body
    for move in moves:
        others = others.replace(move, "", 1)
    found = re.sub(loads, lambda at: f"{at[1]}{names[at[2]]}", others)
    return body if re.search(rf"(?:{registers})\b", found) else found


def statements(body: str) -> Iterator[str]:
    """Yield the instructions and labels of a function, without directives, up to its end."""
    depth = 1
    text = _VECTOR.sub(lambda found: f"({found[1]})", body)
    for part in re.findall(r"[{}]|[^{};]+", text):
        if part in "{}":
            depth += 1 if part == "{" else -1
            if not depth:
                return
            continue
        words = re.sub(r"^\s*\.(?:loc|file|section)\b[^\n]*$", " ", part, flags=re.MULTILINE)
        while label := re.match(r"\s*([\w$]+)\s*:(?!:)", words):
            yield f"{label[1]}:"
            words = words[label.end() :]
        words = " ".join(words.split())
        if words and not words.startswith("."):
            yield words


def loaded(entry: Entry, parameter: Parameter) -> dict[int, str] | None:
    """Return the types of what an entry loads from a struct by value, by their offsets.

    None is returned where something else is done with it, as with a tensor map, or an array in it.
    """
    found, of_entry = dict[int, str](), re.escape(parameter.of_entry)
    loads = re.findall(
        rf"ld\.param\S*?\.(\w+)\s+([^\[\];]*)\[\s*{of_entry}\s*(?:\+\s*(\d+)\s*)?\]", entry.body
    )
    if len(loads) != len(re.findall(rf"(?<![\w$]){of_entry}(?![\w$])", entry.body)):
        return None
    uses = Counter(re.findall(r"%[\w$]+", entry.body))
    for kind, into, offset in loads:
        for n, register in enumerate(re.findall(r"%[\w$]+", into)):
            if uses[register] > 1:  # a vector's other numbers are loaded along with it
                found[int(offset or 0) + n * bytes_of(kind)] = kind
    return found


def members(entry: Entry, parameter: Parameter) -> dict[int, str] | None:
    """Return the types of a struct by value by their offsets, as an entry loads them; f64 to b8 between them.

    None is returned where they are not known.
    """
    if (found := loaded(entry, parameter)) is None:
        return None
    at = 0
    for place in (*sorted(found), parameter.bytes):
        if at > place:  # two loads overlap
            return None
        while at < place:
            width = next(n for n in (8, 4, 1) if at % n == 0 and at + n <= place)
            found[at] = {8: "f64", 4: "f32", 1: "b8"}[width]
            at += width
        at += bytes_of(found[place]) if place in found else 0
    return dict(sorted(found.items()))


def bytes_of(kind: str) -> int:
    """Return the bytes of a type, such as ``u32``."""
    return int(re.findall(r"\d+", kind)[0]) // 8


def operands(text: str) -> list[str]:
    """Return the operands of an instruction: vectors in parentheses, addresses in brackets."""
    return [" ".join(o.split()) for o in re.findall(r"\([^)]*\)|\[[^]]*\]|[^,\s|][^,|]*", text)]


def set_by(statement: str) -> list[str]:
    """Return the registers that a statement sets, which its first operand names."""
    found = STATEMENT.match(statement)
    first = (operands(found[4]) if found else [])[:1]
    stores = not found or found[3].startswith(("st.", "red."))
    return [] if stores else [name for o in first if o[0] != "[" for name in re.findall(r"%[\w$]+", o)]


def number(text: str) -> int | None:
    """Return the value of an integer literal; None of anything else."""
    found = re.fullmatch(r"(-?)(0[xX][\da-fA-F]+|\d+)U?", text)
    return (-1 if found[1] else 1) * int(found[2], 16 if "x" in found[2].lower() else 10) if found else None


def name_of(text: str) -> str:
    """Return a register, label or parameter as C++ may name it."""
    return re.sub(r"\W", "_", text.lstrip("%$"))
