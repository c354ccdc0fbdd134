"""Read how host code makes textures: how they are sampled, what a texel is, how large arrays are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from harness.kernels import text
from harness.kernels.cpp.host import launches
from harness.kernels.cpp.host.values import Values, constants

_CREATE = re.compile(r"\bcudaCreate(?:Texture|Surface)Object\s*(?=\()")
_OBJECT = re.compile(r"[&*(\s]*(?:\w+\s*(?:\.|->)\s*)*(\w+)")
_DESCRIBED = re.compile(r"\bcudaCreateChannelDesc\s*(?:<([^;{}()]*)>)?\s*\(([^();]*)\)")
_BITS = {8: "char", 16: "short", 32: "int"}
_ARRAY = re.compile(r"\bcudaMalloc(3D|Mipmapped)?Array\s*(?=\()")
_EXTENT = re.compile(r"(?:\bmake_cudaExtent\s*)?[({]([^();{}]*)[)}]")


@dataclass(frozen=True, kw_only=True)
class Made:
    """A texture or surface as host code makes it; without any, CUDA's defaults, which are zeros.

    texel: the C type of a texel, or ""
    extents: those of its array that are numbers, innermost first
    """

    filter: str = "point"
    address: tuple[str, ...] = ("wrap", "wrap", "wrap")
    normalized: bool = False
    read_normalized: bool = False
    texel: str = ""
    extents: tuple[int, ...] = ()


def of(source: str, entry: text.Entry, name: str) -> dict[str, Made]:
    """Return what host code makes for the parameters of the kernel `name`, where it does.

    That is what has the name that host code passes, or the parameter's, or is the only one of the text.
    """
    made = _made(source) if _CREATE.search(source) else {}
    launched = launches.of(source, name)
    passed = (*(launched.arguments if launched else ()), *[""] * len(entry.parameters))
    found = {}
    for p, argument in zip(entry.parameters, passed, strict=False):
        given = _OBJECT.match(argument)
        known = made.get(given[1] if given else "") or made.get(p.name)
        if known or len(made) == 1:
            found[p.name] = known or next(iter(made.values()))
    return found


def _made(source: str) -> dict[str, Made]:
    """Return all textures and surfaces that a text makes, by their names there."""
    plain, found = text.blank(source), dict[str, Made]()
    numbers = constants([source], (), {})
    for at in _CREATE.finditer(plain):
        given = [
            part.strip("&* ") for part in text.split(plain[at.end() + 1 : text.closing(plain, at.end())])
        ]
        called = _OBJECT.match(given[0]) if given else None
        if called is None or len(given) < 2:
            continue
        before = plain[: at.start()]
        given = [*given, ""][:3]
        sampled = _sampled(before, given[2], numbers) if given[2].isidentifier() else {}
        texel, extents = _texel(before, numbers), _extents(before, given[1], numbers)
        found[called[1]] = Made(texel=texel, extents=extents, **sampled)
    return found


def _sampled(before: str, name: str, numbers: Values) -> dict[str, Any]:
    """Return what a ``cudaTextureDesc`` says at the end of a text: what was last assigned to each member."""
    begins = [at.start() for at in re.finditer(rf"\bcudaTextureDesc\s+{name}\b", before)]
    own = before[begins[-1] if begins else 0 :]

    def members(member: str) -> list[tuple[str, str]]:
        """Return (index, value) of what is assigned to a member, also as ``{.member = value}``."""
        pattern = rf"(?:\b{name}\s*(?:\.|->)|(?<![\w\])])\.)\s*{member}\s*(?:\[\s*(\w+)\s*\])?\s*=(?!=)"
        assigned = re.compile(pattern + r"\s*([\w:]+)")
        return [(at[1] or "", at[2]) for at in assigned.finditer(own)]

    found: dict[str, Any] = {}
    if filters := members("filterMode"):
        found["filter"] = "linear" if filters[-1][1].endswith("Linear") else "point"
    if modes := members("addressMode"):
        axes = ["wrap"] * 3
        for index, value in modes:
            mode = value.rpartition("Mode")[2].lower()
            for axis in [int(index)] if index in ("0", "1", "2") else range(3):
                axes[axis] = mode if mode in ("wrap", "clamp", "mirror", "border") else "wrap"
        found["address"] = tuple(axes)
    if coordinates := members("normalizedCoords"):
        found["normalized"] = bool(numbers.number(coordinates[-1][1]))
    if reads := members("readMode"):
        found["read_normalized"] = reads[-1][1].endswith("NormalizedFloat")
    return found


def _texel(before: str, numbers: Values) -> str:
    """Return the type of the last channel description of a text: ``<float4>``, or its bits and their kind."""
    at = next(reversed([*_DESCRIBED.finditer(before)]), None)
    if at is None or at[1]:
        return at[1].strip() if at else ""
    given = text.split(at[2])
    bits = [numbers.number(part) or 0 for part in given[:4]]
    count = sum(n > 0 for n in bits)
    if len(given) != 5 or bits[0] not in _BITS:
        return ""
    if given[4].endswith("Float"):
        return f"float{count}" if bits[0] == 32 else "half" * (count == 1)
    return f"{'u' * given[4].endswith('Unsigned')}{_BITS[bits[0]]}{count}"


def _extents(before: str, resource: str, numbers: Values) -> tuple[int, ...]:
    """Return the extents of the array that a resource has at the end of a text; of the last one otherwise."""
    of_it = rf"\b{re.escape(resource)}\s*(?:\.|->)\s*res\s*\.\s*\w+\s*\.\s*\w+\s*=\s*[&*]?\s*([\w.>-]+)"
    arrays, found = re.findall(of_it, before)[-1:], tuple[int, ...]()
    for at in _ARRAY.finditer(before):
        given = text.split(before[at.end() + 1 : text.closing(before, at.end())])
        sizes = given[2:4]
        if at[1] and sizes:
            named = rf"\b{re.escape(sizes[0])}\s*(?:=\s*)?{_EXTENT.pattern}"
            made = [*_EXTENT.finditer(sizes[0]), *re.finditer(named, before)]
            sizes = text.split(made[-1][1]) if made else []
        lengths = [numbers.number(part) for part in sizes]
        if not arrays or not found or given[0].strip("&* ") in arrays:
            found = tuple(n for n in lengths if n) if None not in lengths else ()
    return found
