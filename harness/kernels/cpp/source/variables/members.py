"""Show a struct of parameters as what is in it: each member that a kernel reads is a parameter of its own.

``k(const Params p)``, which reads ``p.rows`` and ``p.row_stride``, is read as ``k(int p_rows, int
p_row_stride)``, and a launch passes ``args_rows`` in place of ``args``. So what is guessed of sizes and
strides is guessed of these. The compiler never sees that text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.kernels import text
from harness.kernels.cpp.host import calling, values

if TYPE_CHECKING:
    from harness.kernels.cpp.source.variables.declared import Part, Variable

    _Struct = tuple[Variable, tuple[Part, ...]]

_PLAIN = re.compile(r"(?:const\s+)?(?:struct\s+)?([A-Za-z_][\w:]*(?:\s*<[\w\s:,]*>)?)(?:\s+const)?\s+(\w+)\Z")
_ATTRIBUTES = re.compile(r"__grid_constant__|__restrict__")
_FEWEST = 2  # integers that are read of a struct
_Edit = tuple[int, int, str]


@dataclass(frozen=True)
class Flat:
    """Hold a text whose kernels have members of structs as parameters; `structs` has these by kernel.

    structs: with the parts that are parameters, by the kernel's name without namespaces
    """

    source: str
    structs: Mapping[str, tuple[_Struct, ...]] = field(default_factory=dict)


def of(source: str, texts: Sequence[str]) -> Flat:
    """Return a text as it is read; `texts`, with headers, have the structs."""
    plain = text.blank(source)
    kernels = [k for k in _kernels(plain) if any(_reads(plain, k, p) for p in k.parameters)]
    names = [k.name for k in kernels]
    edits: list[_Edit] = []
    structs: dict[str, tuple[_Struct, ...]] = {}
    bodies = values.bodies(plain) if kernels else []
    for kernel in (k for k in kernels if names.count(k.name) == 1):
        found = {p: one for p in kernel.parameters if (one := _struct(plain, kernel, p, texts)) is not None}
        if found:
            structs[kernel.name] = tuple(found.values())
            edits += _in_kernel(plain, kernel, found)
            edits += _in_launches(plain, kernel, found, bodies)
    done = len(source) + 1
    for begin, end, new in sorted(set(edits), reverse=True):
        if end <= done:
            source, done = source[:begin] + new + source[end:], begin
    return Flat(source, structs)


@dataclass(frozen=True, kw_only=True)
class _Kernel:
    """A kernel in a text: its parameters with the places where they begin and end, and that of its body."""

    name: str
    parameters: dict[str, tuple[int, int, str]]
    begin: int
    end: int


def _kernels(plain: str) -> Iterator[_Kernel]:
    """Yield the kernels of a blank text, those with a body."""
    for at in re.finditer(r"\b__global__\b", plain):
        entry = text.declared_at(plain, at.start(), at.end())
        base = entry.name.rpartition("::")[2] if entry else ""
        head = re.compile(rf"\b{re.escape(base)}\s*(\()").search(plain, at.end()) if base else None
        closed = text.closing(plain, head.start(1)) if head else -1
        if entry is None or not entry.body or head is None or closed < 0:
            continue
        opened = plain.find("{", closed)
        parameters = {}
        for begin, end, written in _listed(plain, head.end(), closed):
            kind = _PLAIN.fullmatch(" ".join(_ATTRIBUTES.sub(" ", written).split()))
            if kind:
                parameters[kind[2]] = (begin, end, kind[1])
        yield _Kernel(name=base, parameters=parameters, begin=opened, end=text.closing(plain, opened))


def _listed(plain: str, begin: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield (begin, end, text) of the parts of a list in a text."""
    place = begin
    for part in text.split(plain[begin:end]):
        place = plain.find(part, place, end)
        yield place, place + len(part), part
        place += len(part)


def _reads(plain: str, kernel: _Kernel, name: str) -> bool:
    """Return True where a kernel reads several members of a parameter, and does nothing else with it."""
    body = plain[kernel.begin : kernel.end]
    read = {*re.findall(rf"(?<![\w.>:])\b{name}\s*\.\s*(\w+)\b(?!\s*\()", body)}
    return len(read) >= _FEWEST and not re.search(rf"(?<![\w.>])\b{name}\b(?!\s*\.\s*\w+\b(?!\s*\())", body)


def _struct(plain: str, kernel: _Kernel, name: str, texts: Sequence[str]) -> _Struct | None:
    """Return the struct that a parameter is, with the parts that the kernel reads; None if it has others."""
    if not _reads(plain, kernel, name):
        return None
    from harness.kernels.cpp.source.variables import declared  # it takes NumPy's time to import

    variable = declared.variable(f"{kernel.parameters[name][2]} {name}", name, texts)
    if variable is None or not all(part.declared for part in variable.parts):
        return None
    body = plain[kernel.begin : kernel.end]
    read = {*re.findall(rf"(?<![\w.>:])\b{name}((?:\s*\.\s*[A-Za-z_]\w*)+)", body)}
    paths = {"".join(path.split()) for path in read}
    parts = tuple(part for part in variable.parts if part.path in paths)
    words = {*re.findall(r"\w+", plain)}
    whole = [p for p in parts if not p.pointer and p.whole]
    known = paths <= {part.path for part in parts} and not any(part.name in words for part in parts)
    return (variable, parts) if known and len(whole) >= _FEWEST else None


def _in_kernel(plain: str, kernel: _Kernel, found: Mapping[str, _Struct]) -> Iterator[_Edit]:
    """Yield what becomes of the head and of the body of a kernel."""
    for name, (_, parts) in found.items():
        begin, end, _ = kernel.parameters[name]
        lines = "\n" * plain.count("\n", begin, end)
        yield begin, end, ", ".join(part.declared for part in parts) + lines
        yield from _renamed(plain, kernel.begin, kernel.end, name, name, parts)


def _renamed(
    plain: str, begin: int, end: int, name: str, called: str, parts: Sequence[Part]
) -> Iterator[_Edit]:
    """Yield the edits that call the members of a variable `called` as parts: ``p_rows`` for ``p.rows``."""
    for part in parts:
        member = re.escape(part.path).replace(r"\.", r"\s*\.\s*")
        for at in re.compile(rf"(?<![\w.>:])\b{called}{member}\b").finditer(plain, begin, end):
            lines = "\n" * plain.count("\n", at.start(), at.end())
            yield at.start(), at.end(), called + part.name.removeprefix(name) + lines


def _in_launches(
    plain: str,
    kernel: _Kernel,
    found: Mapping[str, _Struct],
    bodies: Sequence[tuple[int, int, int, tuple[str, ...]]],
) -> Iterator[_Edit]:
    """Yield what becomes of the arguments of launches, and of what host code gives the members there."""
    names = [*kernel.parameters]
    for call in calling.calls(plain):
        if call.kernel.rpartition("::")[2] != kernel.name or call.end < 0:
            continue
        first = plain.rfind("{", 0, call.end) + 1 if call.mark else call.end - len(call.arguments)
        around = next((b for b in bodies if b[1] < call.place < b[2]), None)
        given = list(_listed(plain, first, call.end))
        for at, (begin, end, written) in enumerate(given):
            one = found.get(names[at]) if len(given) == len(names) else None
            passed = re.fullmatch(r"(?:\([\w\s*]+\)\s*)?&?\s*(\w+)", written)
            if one is None or not passed:
                continue
            variable, parts = one
            told = _told(plain, around, passed[1], variable)
            new = (told.get(p.path) or passed[1] + p.name.removeprefix(variable.name) for p in parts)
            yield begin, end, ", ".join(f"{call.mark}{argument}" for argument in new)
            if around:
                yield from _renamed(plain, around[1], around[2], variable.name, passed[1], parts)


def _told(
    plain: str, around: tuple[int, int, int, tuple[str, ...]] | None, name: str, variable: Variable
) -> dict[str, str]:
    """Return what a function gives the members of a struct, each once, by path.

    That is ``p.rows = n;`` or, if it assigns none, ``Params p{x, n};``.
    """
    if around is None:
        return {}
    body = plain[around[1] : around[2]]
    given = re.findall(rf"(?<![\w.>]){name}\s*((?:\.\s*\w+\s*)+)=(?!=)\s*([^;{{}}]*);", body)
    if given:
        paths = ["".join(path.split()) for path, _ in given]
        pairs = zip(paths, given, strict=True)
        return {path: " ".join(one[1].split()) for path, one in pairs if paths.count(path) == 1}
    if not (at := re.search(rf"[\w>]\s+{name}\s*=?\s*(?:\w+\s*)?(\{{)", body)):
        return {}
    parts = text.split(body[at.end() : text.closing(body, at.start(1))])
    named = [re.fullmatch(r"\.\s*(\w+)\s*=?\s*(.*)", part, re.DOTALL) for part in parts]
    if parts and all(named):
        return {f".{one[1]}": " ".join(one[2].split()) for one in named if one}
    members = zip(variable.members, parts, strict=False)
    return {f".{member}": " ".join(written.split()) for member, written in members if "{" not in written}
