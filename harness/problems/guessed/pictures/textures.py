"""Read what a kernel does with its textures and surfaces: by the calls that a parameter is the object of.

Functions that a kernel hands an object on to are read with what they are given in place of their parameters.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from harness.kernels import text
from harness.kernels.cpp.host import values

_CALL = re.compile(
    r"\b(tex|surf)(1D|2D|3D|Cubemap)(?:fetch|gather)?(Layered)?(?:Lod|Grad)?(?:read|(write))?"
    r"\s*(?:<([^;{}()]*)>)?\s*(?=\()"
)
_CALLED = re.compile(r"\b(\w+)\s*(?:<([^;{}()]*)>)?\s*(?=\()")
_HEAD = re.compile(r"(?:\btemplate\s*<([^;{}()]*)>[^;{}()]*?)?\b(\w+)\s*\Z")
_BEFORE = 300  # characters of what stands before a function's parameters
_SIZEOF = re.compile(r"\bsizeof\s*\(\s*([^()]*?)\s*\)")
_MADE = re.compile(r"\bmake_(\w+)\s*\(|\(\s*((?:unsigned\s+)?\w+)\s*\)\s*[\w(]")
_LITERAL = re.compile(r"[-+]?(?:(\d+[uU]?)|[\d.]+(?:e[-+]?\d+)?f)\Z")
_VECTOR = re.compile(r"\b(?:u?(?:char|short|int)|float)[234]\b(?!\s*\*)")
_NORMALIZED = re.compile(  # (x + 0.5f) / n, 2.f * x / n, (float)x / n, x / (float)n
    r"((?:\d\.\d*|\.\d+)[fF]?\)?(?:\s*\*\s*\w+)?|\(\s*float\s*\)\s*\w+|\bfloat\s*\(\s*\w+\s*\))\s*/"
    r"|/(?=\s*\(*\s*float\b)"
)
_ROUNDS, _LONGEST = 4, 100_000  # functions in each other, and characters of what all do
_KEPT = 8  # texts
Function = tuple[list[str], tuple[str, ...], str]  # parameters of its template, its own, and its body
_AXES = {"1D": 1, "2D": 2, "3D": 3, "Cubemap": 2}


@dataclass(frozen=True, kw_only=True)
class Used:
    """A texture or surface as a kernel uses it.

    kind: the C type of a texel; "" where no call tells it
    places: of each of x, y and z, then of the layer, what the calls have for it
    """

    surface: bool
    axes: int
    layered: bool
    cube: bool
    written: bool
    kind: str
    places: tuple[tuple[str, ...], ...]

    @property
    def extents(self) -> tuple[str, ...]:
        """Return the names of its extents, innermost first. A cube has one for all its faces."""
        axes = ("width",) if self.cube else ("width", "height", "depth")[: self.axes]
        return (*axes, "layers") if self.layered or self.cube else axes


def whole(texts: Sequence[str], entry: text.Entry, name: str) -> str:
    """Return the body of the kernel `name`, and those of the functions to which it hands its values on."""
    if not any(map(_CALL.search, texts)):
        return entry.body
    known = {called: found for source in texts for called, found in _functions(source).items()}
    types, objects = entry.types(name), {p.name for p in entry.parameters if not p.pointer}
    left, found = [replaced(entry.body, types)], ""
    for _ in range(_ROUNDS):
        found += "".join(left)
        if len(found) > _LONGEST:
            break
        left = [body for part in left for body in _bodies(part, objects, known)]
    return found


def of(body: str, entry: text.Entry) -> dict[str, Used]:
    """Return the textures and surfaces of a kernel by parameter; `body` is its `whole`."""
    types = {p.name: p.type for p in entry.parameters if not p.pointer}
    calls = dict[str, list[Used]]()
    for at in _CALL.finditer(body):
        given = text.split(body[at.end() + 1 : text.closing(body, at.end())])
        place = 0 if given and given[0] in types and not at[4] else 1  # behind a value or where it goes
        if given[place : place + 1] and given[place] in types:
            used = _used(at, given, place, body, types)
            if len(used.places) >= used.axes:
                calls.setdefault(given[place], []).append(used)
    return {p.name: _merged(calls[p.name]) for p in entry.parameters if p.name in calls}


def plain(body: str) -> str:
    """Return a text without what only seems to ask for sizes that are multiples.

    The types of texels, ``float4 v``, say nothing of how buffers are read, and ``(x + 0.5f) / width`` divides
    no size into parts.
    """
    return _NORMALIZED.sub(r"\1 + ", _VECTOR.sub("", body))


def _used(at: re.Match[str], given: list[str], place: int, body: str, types: Mapping[str, str]) -> Used:
    """Return what one call says: that of object `given[place]`, behind the value that a form has there."""
    surface, cube = at[1] == "surf", at[2] == "Cubemap"
    axes, layered = _AXES[at[2]], bool(at[3])
    rest = given[place + 1 :]
    layer = rest[axes + (cube and not surface) :][: layered or (cube and surface)]  # a direction has z, too
    width = _SIZEOF.search(rest[0]) if surface and rest else None
    counted = width and (_declared(width[1], body, types) or width[1])  # sizeof(value) is one of its type
    value = given[0].strip("& ") if place else ""
    kind = at[5] or counted or (_kind(value, body, types) if value else "")
    return Used(
        surface=surface, axes=axes, layered=layered, cube=cube, written=bool(at[4]), kind=kind.strip(),
        places=tuple((one,) for one in (*rest[:axes], *layer)),
    )  # fmt: skip


def _merged(calls: Sequence[Used]) -> Used:
    """Return what all calls on one object say of it: the first says its kind, the largest its axes."""
    most = max(calls, key=lambda one: (one.axes, one.layered))
    alike = [one.places for one in calls if len(one.places) == len(most.places)]
    return Used(
        surface=most.surface,
        axes=most.axes,
        layered=most.layered,
        cube=most.cube,
        written=any(one.written for one in calls),
        kind=next((one.kind for one in calls if one.kind), ""),
        places=tuple(tuple(dict.fromkeys(itertools.chain(*along))) for along in zip(*alike, strict=True)),
    )


def _kind(value: str, body: str, types: Mapping[str, str]) -> str:
    """Return the type of an expression, as far as its first words tell: a variable's, or ``make_float4``."""
    if literal := _LITERAL.match(value):
        return "int" if literal[1] else "float"
    if made := _MADE.match(value):
        return made[1] or made[2]
    name = re.match(r"\w+(?!\s*[.(])", value)
    return _declared(name[0], body, types) if name else ""


def _declared(name: str, body: str, types: Mapping[str, str]) -> str:
    """Return the type that a variable or parameter is declared with, or ""."""
    others = r"(?:\w+(?:\s*=[^;,]*)?\s*,\s*)*"
    found = re.search(rf"\b((?:unsigned\s+)?[A-Za-z_][\w:]*)\s+{others}{re.escape(name)}\s*[;=,\[{{(]", body)
    return types.get(name) or (found[1] if found and found[1] not in ("return", "auto", "else") else "")


@functools.lru_cache(maxsize=_KEPT)
def _functions(source: str) -> dict[tuple[str, int], Function]:
    """Return the functions of a text by their names and how many parameters they have."""
    plain, found = text.blank(source), dict[tuple[str, int], Function]()
    for begin, opened, closed, names in values.bodies(plain):
        if head := _HEAD.search(plain[max(0, begin - _BEFORE) : begin]):
            template = [
                words[-1] for part in text.split(head[1] or "") if (words := re.findall(r"\w+", part))
            ]
            found[head[2], len(names)] = template, names, plain[opened : closed + 1]
    return found


def _bodies(body: str, objects: Set[str], known: Mapping[tuple[str, int], Function]) -> Iterator[str]:
    """Yield what functions do that a body hands one of `objects`, in the words of the caller."""
    called = {name for name, _ in known}
    for at in _CALLED.finditer(body):
        if at[1] not in called or (end := text.closing(body, at.end())) < 0:
            continue
        given = text.split(body[at.end() + 1 : end])
        if (at[1], len(given)) in known and not objects.isdisjoint(given):
            template, names, inside = known[at[1], len(given)]
            words = {n: g if g.isidentifier() else f"({g})" for n, g in zip(names, given, strict=True)}
            yield replaced(inside, dict(zip(template, text.split(at[2] or ""), strict=False)) | words)


def replaced(body: str, words: Mapping[str, str]) -> str:
    """Return a body with other words in place of some that are no members."""
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda word: words.get(word[0], word[0]), body)
