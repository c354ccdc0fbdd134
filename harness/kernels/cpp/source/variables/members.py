"""Show a struct of parameters as what is in it: each member that a kernel reads is a parameter of its own.

``k(const Params p)``, which reads ``p.rows`` and ``p.row_stride``, is read as ``k(int p_rows, int
p_row_stride)``, and a launch passes ``args_rows`` in place of ``args``. So what is guessed of sizes and
strides is guessed of these. The compiler never sees that text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.kernels import text
from harness.kernels.cpp.host import calling, values

if TYPE_CHECKING:
    from harness.kernels.cpp.source.variables.declared import Part, Variable

    _Struct = tuple[Variable, tuple[Part, ...]]

_PLAIN = re.compile(r"(?:const\s+)?(?:struct\s+)?([A-Za-z_][\w:]*(?:\s*<[\w\s:,]*>)?)(?:\s+const)?\s+(\w+)\Z")
_ATTRIBUTES = re.compile(r"__grid_constant__|__restrict__")
_FEWEST = 2  # integers that are read of a struct
_DEEPEST, _LONGEST = 4, 300  # functions in each other, and characters of a call
_Edit = tuple[int, int, str]
_Place = tuple[int, int, str]  # where a body begins and ends, and what a struct is called there
_Body = tuple[int, int, int, tuple[str, ...]]


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
    bodies = values.bodies(plain) if "__global__" in plain else []
    kernels = [k for k in _kernels(plain, bodies) if k.parameters]
    names = [k.name for k in kernels]
    edits: dict[tuple[int, int], str] = {}
    structs: dict[str, tuple[_Struct, ...]] = {}
    for kernel in (k for k in kernels if names.count(k.name) == 1):
        found = {p: one for p in kernel.parameters if (one := _struct(plain, kernel, p, texts)) is not None}
        new = {(begin, end): text for begin, end, text in _in_kernel(plain, kernel, found)}
        if not found or any(edits.get(place, text) != text for place, text in new.items()):
            continue  # or a function gets another kernel's struct, too, by another name
        structs[kernel.name] = tuple(found.values())
        edits |= new | {(begin, end): text for begin, end, text in _in_launches(plain, kernel, found, bodies)}
    done = len(source) + 1
    for (begin, end), new_text in sorted(edits.items(), reverse=True):
        if end <= done:
            source, done = source[:begin] + new_text + source[end:], begin
    return Flat(source, structs)


@dataclass(frozen=True, kw_only=True)
class _Kernel:
    """A kernel in a text: its `parameters` that may be structs, of which it reads several members.

    parameters: with the places where they begin and end, and their types
    names: of all parameters
    reads: where each is read, with its name there: in the body and in functions that get it
    """

    name: str
    parameters: dict[str, tuple[int, int, str]]
    names: tuple[str, ...]
    reads: dict[str, list[_Place]]


def _kernels(plain: str, bodies: Sequence[_Body]) -> Iterator[_Kernel]:
    """Yield the kernels of a blank text, those with a body."""
    for at in re.finditer(r"\b__global__\b", plain):
        entry = text.declared_at(plain, at.start(), at.end())
        base = entry.name.rpartition("::")[2] if entry else ""
        head = re.compile(rf"\b{re.escape(base)}\s*(\()").search(plain, at.end()) if base else None
        closed = text.closing(plain, head.start(1)) if head else -1
        if entry is None or not entry.body or head is None or closed < 0:
            continue
        opened = plain.find("{", closed)
        end = text.closing(plain, opened)
        parameters, reads = {}, {}
        for begin, stop, written in _listed(plain, head.end(), closed):
            kind = _PLAIN.fullmatch(" ".join(_ATTRIBUTES.sub(" ", written).split()))
            if kind and (found := _reads(plain, bodies, (opened, end, kind[2]), kind[1], _DEEPEST)):
                parameters[kind[2]], reads[kind[2]] = (begin, stop, kind[1]), found
        names = tuple(p.name for p in entry.parameters)
        yield _Kernel(name=base, parameters=parameters, names=names, reads=reads)


def _listed(plain: str, begin: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield (begin, end, text) of the parts of a list in a text."""
    place = begin
    for part in text.split(plain[begin:end]):
        place = plain.find(part, place, end)
        yield place, place + len(part), part
        place += len(part)


def _reads(plain: str, bodies: Sequence[_Body], place: _Place, kind: str, depth: int) -> list[_Place]:
    """Return where a struct is read by its members: a place, and the functions that are given it there.

    Nothing is returned where anything else is done with it.
    """
    begin, end, name = place
    found = [place]
    for at in re.compile(rf"(?<![\w.>:])\b{name}\b(?!\s*\.\s*\w+\b(?!\s*\())").finditer(plain, begin, end):
        function = _function(plain, bodies, at.start(), name, kind) if depth else None
        inner = function and _reads(plain, bodies, function, kind, depth - 1)
        if not inner:
            return []
        found += inner
    return found


def _function(plain: str, bodies: Sequence[_Body], at: int, name: str, kind: str) -> _Place | None:
    """Return the body of the function that is given a struct as one of its arguments, and its name there."""
    opened = _opened(plain, at)
    called = re.search(r"(\w+)\s*(?:<[^;{}()]*>\s*)?\Z", plain[max(0, opened - _LONGEST) : opened])
    given = text.split(plain[opened + 1 : text.closing(plain, opened)]) if opened > 0 else []
    if called is None or given.count(name) != 1:
        return None
    known = [b for b in bodies if re.search(rf"\b{called[1]}\s*\Z", plain[max(0, b[0] - _LONGEST) : b[0]])]
    if len(known) != 1:
        return None
    begin, start, end, _ = known[0]
    parameters = text.split(plain[begin + 1 : text.closing(plain, begin)])
    own = parameters[given.index(name)] if len(parameters) == len(given) else ""
    taken = _PLAIN.fullmatch(" ".join(_ATTRIBUTES.sub(" ", own.replace("&", " ")).split()))
    return (start, end, taken[2]) if taken and taken[1] == kind else None


def _opened(plain: str, at: int) -> int:
    """Return where the parenthesis around a place begins; -1 for none."""
    depth = 0
    for place in range(at - 1, max(0, at - _LONGEST), -1):
        depth += (plain[place] == ")") - (plain[place] == "(")
        if depth < 0:
            return place
        if plain[place] in ";{}":
            break
    return -1


def _struct(plain: str, kernel: _Kernel, name: str, texts: Sequence[str]) -> _Struct | None:
    """Return the struct that a parameter is, with the parts that the kernel reads; None if it has others."""
    paths = set[str]()
    for begin, end, called in kernel.reads[name]:
        read = re.findall(rf"(?<![\w.>:])\b{called}((?:\s*\.\s*[A-Za-z_]\w*)+)", plain[begin:end])
        paths |= {"".join(path.split()) for path in read}
    if len(paths) < _FEWEST:
        return None
    from harness.kernels.cpp import elements  # it takes NumPy's time to import
    from harness.kernels.cpp.source.variables import declared

    variable = declared.variable(f"{kernel.parameters[name][2]} {name}", name, texts)
    if variable is None or any(elements.MAP in part.declared for part in variable.parts):
        return None
    # Of a vector, ``p.origin.x``, the whole is the part.
    parts = tuple(_typed(p, texts) for p in variable.parts if p.path in paths or _lane(p, paths))
    arrays = [part for part in parts if not part.declared]
    known = {path for path in paths if any(p.path == path or _lane(p, {path}) for p in parts)} == paths
    words = {*re.findall(r"\w+", plain)}
    free = not any(part.name in words for part in parts)
    whole = [p for p in parts if p.declared and not p.pointer and p.whole]
    plain_arrays = all(isinstance(part.kind, tuple) for part in arrays)
    return (variable, parts) if known and free and plain_arrays and len(whole) >= _FEWEST else None


def _typed(part: Part, texts: Sequence[str]) -> Part:
    """Return a part that leads to nothing of a type as that, not as to bytes."""
    name = part.path.rpartition(".")[2]
    nothing = part.pointer and any(re.search(rf"\bvoid\s*\*[\s\w]*?\b{name}\s*[;,=]", one) for one in texts)
    return replace(part, declared=part.declared.replace("unsigned char*", "void*")) if nothing else part


def _lane(part: Part, paths: set[str]) -> bool:
    """Return True where one of these paths leads to a number of a vector, ``.origin.x``."""
    return bool(part.lanes > 1 and any(re.fullmatch(rf"{re.escape(part.path)}\.[xyzw]", p) for p in paths))


def _in_kernel(plain: str, kernel: _Kernel, found: Mapping[str, _Struct]) -> Iterator[_Edit]:
    """Yield what becomes of the head and of the body of a kernel, and of the functions that it calls."""
    for name, (_, parts) in found.items():
        begin, end, _ = kernel.parameters[name]
        lines = "\n" * plain.count("\n", begin, end)
        yield begin, end, ", ".join(part.declared for part in parts if part.declared) + lines
        for opened, closed, called in kernel.reads[name]:
            yield from _renamed(plain, opened, closed, name, called, parts)


def _renamed(
    plain: str, begin: int, end: int, name: str, called: str, parts: Sequence[Part], new: str = ""
) -> Iterator[_Edit]:
    """Yield edits that call members of a variable as parts: ``p_rows`` for ``p.rows``; or by a `new` name."""
    for part in (p for p in parts if p.declared):
        member = re.escape(part.path).replace(r"\.", r"\s*\.\s*")
        for at in re.compile(rf"(?<![\w.>:])\b{called}{member}\b").finditer(plain, begin, end):
            lines = "\n" * plain.count("\n", at.start(), at.end())
            yield at.start(), at.end(), (new or name) + part.name.removeprefix(name) + lines


def _in_launches(
    plain: str,
    kernel: _Kernel,
    found: Mapping[str, _Struct],
    bodies: Sequence[_Body],
) -> Iterator[_Edit]:
    """Yield what becomes of the arguments of launches, and of what host code gives the members there."""
    names = kernel.names
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
            given_parts = [p for p in parts if p.declared]
            new = (told.get(p.path) or passed[1] + p.name.removeprefix(variable.name) for p in given_parts)
            yield begin, end, ", ".join(f"{call.mark}{argument}" for argument in new)
            if around:
                where = around[1], around[2], variable.name, passed[1], parts, passed[1]
                yield from _renamed(plain, *where)


def _told(plain: str, around: _Body | None, name: str, variable: Variable) -> dict[str, str]:
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
