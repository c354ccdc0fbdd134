"""Split PTX text into entries, these into instructions and labels, and an instruction into its operands.

For a text to be read this is enough: scopes of names and directives are left out. What is run is read by
`harness.emulator.ptx`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?([^{};]*)\{")
_BOUNDS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d+)\s*(?:,\s*(\d+)\s*)?(?:,\s*(\d+))?")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(\.ptr\b(?:\s*\.\w+)*(?:\s+\d+)?\s+)?([\w$]+)\s*(?:\[\s*(\d+)\s*\])?"
)
_DYNAMIC = re.compile(r"\.extern\s+\.shared[^;]*?([\w$]+)\s*\[\s*\]")
_VECTOR = re.compile(r"\{\s*((?:[%\w$.-]+\s*,\s*)*[%\w$.-]+)\s*\}")
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
    """An entry of PTX text: `threads` are those of a block, 0 where that is not said; `dynamic` are the names
    of shared memory whose size the launch gives; `body` is what stands in its braces.
    """

    name: str
    parameters: tuple[Parameter, ...]
    threads: int
    dynamic: tuple[str, ...]
    body: str


def entries(ptx: str) -> Iterator[Entry]:
    """Yield the entries that a PTX text defines."""
    plain = _COMMENT.sub(" ", ptx)
    shared = _DYNAMIC.findall(plain)
    for found in _ENTRY.finditer(plain):
        end = plain.find(".entry", found.end())
        body, bounds = plain[found.end() : end if end > 0 else len(plain)], _BOUNDS.search(found[3])
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
            threads=math.prod(int(n) for n in bounds.groups() if n) if bounds else 0,
            dynamic=tuple(n for n in shared if re.search(rf"(?<![\w$]){re.escape(n)}(?![\w$])", body)),
            body=body,
        )


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


def members(entry: Entry, parameter: Parameter) -> dict[int, str] | None:
    """Return the types of a struct by value by their offsets, as an entry loads them; f64 to b8 between them.

    None is returned where something else is done with it, as with a tensor map, or an array in it.
    """
    found, of_entry = dict[int, str](), re.escape(parameter.of_entry)
    loads = re.findall(
        rf"ld\.param\S*?\.(\w+)\s+([^\[\];]*)\[\s*{of_entry}\s*(?:\+\s*(\d+)\s*)?\]", entry.body
    )
    if len(loads) != len(re.findall(rf"(?<![\w$]){of_entry}(?![\w$])", entry.body)):
        return None
    for kind, into, offset in loads:
        for n in range(len(re.findall(r"%[\w$]+", into))):
            found[int(offset or 0) + n * bytes_of(kind)] = kind
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
