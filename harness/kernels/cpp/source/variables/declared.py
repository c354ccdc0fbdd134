"""Read the ``__constant__`` variables of a text, and the numbers, pointers and tensor maps in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.kernels import text
from harness.kernels.cpp import elements

_QUALIFIED = re.compile(
    r"\b(?:__constant__|__device__|__restrict__|static|extern|inline|const|volatile|struct)\b"
    r"|\b(?:__align__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)"
)
_BASE = re.compile(r"(.*?[\w>])(?=\s*\*|\s+\w+\s*(?:\[|\Z))", re.DOTALL)
_WORDS = {  # C types of NumPy's, and what vectors of them begin with
    "int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort", "int32": "int", "uint32": "uint",
    "int64": "longlong", "uint64": "ulonglong", "float32": "float", "float64": "double", "float16": "half",
}  # fmt: skip
_PLAIN = {
    "uchar": "unsigned char",
    "longlong": "long long",
    "ulonglong": "unsigned long long",
    "uint": "unsigned",
}
_MOST = 64  # parts of a variable
_ANONYMOUS = re.compile(r"\.anonymous_\w*")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a variable, ``.n`` at byte `offset`: the variable itself if `path` is empty.

    name: what it is called as a parameter, ``params_n``
    declared: the same as a declaration; "" for an array of numbers or of structs of numbers
    kind: the type of a number or element, None of a pointer or tensor map
    count: elements of an array
    """

    path: str
    name: str
    offset: int
    declared: str
    kind: elements.Type | None = None
    count: int = 0

    @property
    def pointer(self) -> bool:
        """Return True for a pointer to numbers."""
        return "*" in self.declared

    @property
    def lanes(self) -> int:
        """Return how many numbers a vector has, else 1."""
        return self.kind[1] if isinstance(self.kind, tuple) and self.declared else 1

    @property
    def whole(self) -> bool:
        """Return True for an integer."""
        return isinstance(self.kind, tuple) and "int" in self.kind[0] and self.kind[1] == 1


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable of so many bytes that the text begins with nothing, with its parts.

    Of a struct alone `members` are the names of its members in order, and `given` the numbers that some begin
    with.
    """

    name: str
    size: int
    parts: tuple[Part, ...]
    members: tuple[str, ...] = ()
    given: Mapping[str, float] = field(default_factory=dict, hash=False)


def of(plain: Sequence[str], texts: Sequence[str]) -> Iterator[Variable]:
    """Yield the variables of some blank texts whose types are known from `texts`, which have macros, too."""
    for one in plain:
        for at in re.finditer(r"\b__constant__\b", one):
            begin = max(one.rfind(mark, 0, at.start()) for mark in ";{}") + 1
            end = next((m.start() for m in re.finditer(r"[;({]|=(?!=)", one[at.end() :])), -1) + at.end()
            whole = one[begin : one.find(";", end)] if end >= at.end() else ""
            for declared, name in _declarators(_QUALIFIED.sub(" ", whole)):
                if (found := variable(declared, name, texts)) is not None:
                    yield found


def _declarators(statement: str) -> Iterator[tuple[str, str]]:
    """Yield (declaration, name) of what a declaration has without an initial value."""
    first, *others = text.split(statement) or [""]
    base = _BASE.match(first.partition("=")[0].strip())
    for part in (first, *(f"{base[1]} {other}" for other in others if base)):
        named = re.fullmatch(r"\s*[^=(){}\[\]]*?\b(\w+)\s*(?:\[[^=(){}\[\]]*\]\s*)*", part, re.DOTALL)
        if base and named:
            yield " ".join(part.split()), named[1]


def variable(declared: str, name: str, texts: Sequence[str]) -> Variable | None:
    """Return a variable; None where its type is not known, or has more parts than may be told apart."""
    kind = elements.variable(declared, texts)
    if kind is None or name not in (kind.names or ()):
        return None
    inner, _ = kind.fields[name][:2] if kind.fields else (kind, 0)
    found = list(_parts(inner, "", name, 0))
    if len(found) > _MOST or None in found:
        return None
    parts = tuple(part for part in found if part is not None)
    given, names = dict(inner.base.metadata or {}).get("given", {}), tuple(inner.base.names or ())
    return Variable(name=name, size=kind.itemsize, parts=parts, members=names, given=given)


def _parts(kind: np.dtype[Any], path: str, variable: str, at: int) -> Iterator[Part | None]:
    """Yield the parts of a type at a place; None for a pointer to what has no name of its own."""
    base, (*lengths, lanes) = kind.base, kind.shape or (1,)
    told, name = (
        dict(base.metadata or {}),
        re.sub(r"\W+", "_", variable + _ANONYMOUS.sub("", path)).strip("_"),
    )
    count = int(np.prod(lengths, dtype=int)) if lengths else 0
    if "pointer" in told or "map" in told or (base.names and (not lengths or _points(base))):
        for number in range(max(1, min(count, _MOST + 1))):
            place = f"{path}[{number}]" if lengths else path
            called, begin = f"{name}_{number}" if lengths else name, at + number * base.itemsize
            if "map" in told:
                yield Part(path=place, name=called, offset=begin, declared=f"{elements.MAP} {called}")
            elif "pointer" in told:
                behind, const = told["pointer"]
                word = "" if isinstance(behind, np.dtype) else _word(*behind)
                pointed = f"{'const ' * const}{word}* {called}"
                yield Part(path=place, name=called, offset=begin, declared=pointed) if word else None
            else:
                for member in base.names or ():
                    part, offset = base.fields[member][:2] if base.fields else (base, 0)
                    yield from _parts(part, f"{place}.{member}", variable, begin + offset)
        return
    own: elements.Type = base if base.names else (base.name, lanes)
    word = "" if base.names or lengths else _word(base.name, lanes)
    yield Part(
        path=path, name=name, offset=at, declared=f"{word} {name}" if word else "", kind=own, count=count or 1
    )


def _points(kind: np.dtype[Any]) -> bool:
    """Return True where a struct has pointers or tensor maps in it."""
    return any(elements.pointers(kind)) or any(elements.maps(kind))


def _word(kind: str, lanes: int) -> str:
    """Return the C type of so many numbers, ``float3``."""
    word = _WORDS.get(kind, kind)
    return f"{word}{lanes}" if lanes > 1 else _PLAIN.get(word, word)
