"""Read what the text of a kernel says of the dimensions of PyTorch's accessors.

These are called ``x__1`` here, the second one of x, so that they are words as variables are. What stands in
their place in an index, is compared with their size or is a copy of such a variable is alike: of one size.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.kernels.cpp import elements
from harness.kernels.cpp.host import allocations
from harness.kernels.cpp.host.launches import Launch
from harness.kernels.cpp.host.values import Values, value_at
from harness.kernels.expr import Expr, ExprError

MEMBERS = ("elements", "extents", "steps")  # of the stand-in for PyTorch's own, tensor_accessors.h
_INDEX = re.compile(r"\b(threadIdx|blockIdx|blockDim|gridDim)\s*\.\s*([xyz])\b")
_CAST = re.compile(
    r"\(\s*(?:(?:unsigned|int|long|size_t|u?int\d+_t)\s*)+\)|\bstatic_cast\s*<[\w\s:]+>\s*(?=\()"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_PLACES = r"((?:\s*\[[^][;]*\])+)\s*"
_SIZE = r"((?:\s*\[[^][;]*\])*)\s*\.\s*size\s*\(\s*(\d)\s*\)"
_ROW = re.compile(rf"\b(\w+)\s*=\s*(\w+){_PLACES};")
_ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)\s*=(?!=)\s*")
_CHANGED = r"(?:\+\+|--)\s*{0}\b|\b{0}\s*(?:\+\+|--|[-+*/%&|^]=|<<=|>>=)"
_COMPARED = re.compile(
    r"\b([A-Za-z_]\w*)\s*(<=?|>=?|[!=]=)\s*([A-Za-z_]\w*(?:\s*\*\s*\w+)*|\d+)(?!\w*\s*[.([])"
)
_ANEW = r"[;{{}})]\s*{0}\s*=(?!=)"
_DIVIDED = r"\b{0}\s*(?:/|%|>>)"  # and not rounded up, (n + 15) / 16
_REST = re.compile(r".*%\s*(\w+)", re.DOTALL)
_COUNTED = re.compile(r"\b(\w+)\s*=\s*\d+\s*;\s*\1\s*[<!]")
_ALONE = re.compile(r"\A\(*(\w+)\)*\Z")
_ROUNDS = 3  # rows of rows


@dataclass(frozen=True, kw_only=True)
class Said:
    """Hold what a text says of dimensions, by their names and those of variables and parameters.

    group: the number of those that are alike; ``blockIdx_x`` and ``threadIdx_x`` may be among them
    least: by dimension one more than the largest number that indexes it
    places: by dimension the other indices that are no variables, and which nothing guards
    defined: what variables begin with that are set once
    changed: the other variables
    numbers, products: numbers below which variables stay, and products, ``rows * x__1``
    compared: dimensions and parameters with which a variable is compared
    counted: variables that loops count from a number
    divided: True where a size is, as into tiles of which it may have to be a multiple
    sure: False where an index is set anew or read from a buffer
    told: what host code says of dimensions and parameters, in terms of others, ``2 * r + 1``
    """

    group: Mapping[str, int]
    least: Mapping[str, int]
    places: Mapping[str, Sequence[str]]
    defined: Mapping[str, str]
    changed: frozenset[str]
    numbers: Mapping[str, int]
    products: Mapping[str, str]
    compared: frozenset[str]
    counted: frozenset[str]
    divided: bool
    sure: bool
    told: Mapping[str, str]

    def alike(self, name: str) -> set[str]:
        """Return all that is alike, a name itself among it."""
        return {other for other, number in self.group.items() if number == self.group.get(name)} | {name}

    def derived(self, name: str) -> set[str]:
        """Return the variables that are made of a variable, directly or not, and itself."""
        found = {name}
        while more := {
            n for n, value in self.defined.items() if n not in found and not found.isdisjoint(_words(value))
        }:
            found |= more
        return found


def rank(kind: elements.Type | None) -> int:
    """Return the dimensions of an accessor's type; 0 for any other type."""
    if not isinstance(kind, np.dtype) or kind.names != MEMBERS:
        return 0
    return int(kind["extents"].shape[0])


def told(launched: Launch | None, names: Sequence[str], ranks: Mapping[str, int]) -> dict[str, str]:
    """Return what host code says of the dimensions of accessors, and of the other parameters `names`."""
    if launched is None:
        return {}
    words, found = dict[str, str](), dict[str, str]()
    for argument, tensor, name in zip(launched.arguments, launched.tensors, names, strict=False):
        given = allocations.extents(tensor) if name in ranks else (argument,)
        for d, word in enumerate(given[: ranks.get(name, 1)]):
            words.setdefault(word, f"{name}__{d}" if name in ranks else name)
    for name, shape, size in zip(names, launched.shapes, launched.sizes, strict=False):
        for d, extent in enumerate(shape[: ranks.get(name, 0)]):
            found[f"{name}__{d}"] = extent
        if name not in ranks:
            found[name] = size
    known = {*words.values(), "min", "max"}
    found = {n: " ".join(e.split()) for n, e in found.items()}
    found = {n: _WORD.sub(lambda w: words.get(w[0], w[0]), _ALONE.sub(r"\1", e)) for n, e in found.items()}
    return {n: e for n, e in found.items() if _readable(e) and {*_WORD.findall(e)} <= known - {n}}


def _readable(written: str) -> bool:
    """Return True for an expression that can be evaluated, which ``a < b ? a : b`` cannot."""
    with contextlib.suppress(ExprError):
        return bool(written and Expr.parse(written))
    return False


def read(
    body: str, ranks: Mapping[str, int], integers: Sequence[str], values: Values, told: Mapping[str, str]
) -> Said:
    """Return what a body says of accessors with these `ranks`, beside parameters that are `integers`.

    What host code has `told` to be another dimension is alike, unless the text takes columns for rows then.
    """
    plain = _plain(body, ranks)
    known = {f"{name}__{d}" for name, n in ranks.items() for d in range(n)} | {*integers}
    defined = {name: value for name, value in _once(plain).items() if name not in known}
    changed = {at[1] for at in _ASSIGNED.finditer(plain)} - defined.keys()
    groups, compared, indexed = _Groups(), set[str](), dict[str, set[str]]()
    least, places, dense = dict[str, int](), dict[str, list[str]](), "".join(plain.split())
    for place, index in _indices(plain, ranks):
        number = None if changed.intersection(_words(index)) else values.number(index)
        if number is not None:
            least[place] = max(least.get(place, 0), number + 1)
        elif _WORD.fullmatch(index):
            groups.join(place, index)
            indexed.setdefault(index, set()).add(place)
        elif (below := _below(dense, index)) in known:
            groups.join(place, below)
            compared.add(below)
        else:
            places.setdefault(place, []).append(index)
    for name, value in defined.items():
        copy, rest = _WORD.fullmatch(value), _REST.fullmatch(value)
        if copy or (rest and rest[1] in known):  # the rest of a division by a size stays below that
            groups.join(name, rest[1] if rest else value)
            compared |= {rest[1]} if rest else set()
    numbers, products = dict[str, int](), dict[str, str]()
    compared |= {other for _, _, other in _comparisons(plain) if other in known}
    for name, sign, other in _comparisons(plain):
        number = None if other in known else values.number(other)
        if other in known:
            beside = {place for place in indexed.get(name, ()) if _accessor(place) == _accessor(other)}
            if other in beside or not beside & compared:  # else columns were taken for rows
                groups.join(name, other)
        elif number is not None and number > 1 and sign != "==":
            numbers[name] = max(numbers.get(name, 0), number + (sign in ("<=", ">")))
        elif number is None and ("*" in other or {*_words(defined.get(other, ""))} & {*integers}):
            products[name] = other
            compared |= {*_words(other)} & known
    groups.add({name: other for name, other in told.items() if {name, other} <= known})
    return Said(
        group=groups.numbers(known),
        least=least,
        places=places,
        defined=defined,
        changed=frozenset(changed),
        numbers=numbers,
        products=products,
        compared=frozenset(compared),
        counted=frozenset(_COUNTED.findall(plain)),
        divided=any(re.search(_DIVIDED.format(name), plain) for name in known),
        sure=not any("[" in defined.get(v, "") or re.search(_ANEW.format(v), plain) for v in indexed),
        told=told,
    )


def _below(dense: str, index: str) -> str:
    """Return what an index that is no variable is compared with, in a text without spaces; "" for nothing."""
    guard = re.search(rf"{re.escape(''.join(index.split()))}\)*(?:<|>=)(\w+)", dense)
    return guard[1] if guard else ""


def _accessor(dimension: str) -> str:
    return dimension.rpartition("__")[0]


def _words(written: str) -> list[str]:
    return list(dict.fromkeys(_WORD.findall(written)))


def _plain(body: str, ranks: Mapping[str, int]) -> str:
    """Return a body with ``x__1`` for ``x.size(1)`` and what is given it, and ``x[n][i]`` for ``row[i]``."""
    body = _CAST.sub("", _INDEX.sub(r"\1_\2", body))
    for _ in range(_ROUNDS):
        for name, base, written in _ROW.findall(body):
            row = base + "".join(written.split())
            if row.count("[") < ranks.get(base, 0) and name not in ranks:
                body = re.sub(rf"\b{name}\b(?=\s*[\[.])", row, body)
    for name, n in ranks.items():
        for at in reversed([*re.finditer(rf"\b{name}{_SIZE}", body)]):
            size = f"{name}__{at[1].count('[') + int(at[2])}"
            body = f"{body[: at.start()]}{size}{body[at.end() :]}"
        for size in (f"{name}__{d}" for d in range(n)):
            for alias in re.findall(rf"\b(\w+)\s*=\s*\(*\s*{size}\s*\)*\s*[,;]", body):
                body = re.sub(rf"\b{alias}\b", size, body)
    return body


def _indices(plain: str, ranks: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield (dimension, index) of each place where an accessor is indexed."""
    for name, most in ranks.items():
        for at in re.finditer(rf"\b{name}\s*(?=\[)", plain):
            opened = at.end()
            for d in range(most):
                closed = _closing(plain, opened)
                if closed < 0:
                    break
                yield f"{name}__{d}", plain[opened + 1 : closed].strip()
                opened = closed + 1 + len(plain[closed + 1 :]) - len(plain[closed + 1 :].lstrip())


def _closing(plain: str, at: int) -> int:
    """Return where a bracket is closed; -1 where none opens there."""
    depth = 0
    for found in re.compile(r"[][]").finditer(plain, at) if plain[at : at + 1] == "[" else ():
        depth += 1 if found[0] == "[" else -1
        if not depth:
            return found.start()
    return -1


def _once(plain: str) -> dict[str, str]:
    """Return what a body gives the variables that it gives nothing else."""
    found: dict[str, list[str]] = {}
    for at in _ASSIGNED.finditer(plain):
        found.setdefault(at[1], []).append(value_at(plain, at.end()))
    return {
        name: given[0]
        for name, given in found.items()
        if len(given) == 1 and given[0] and not re.search(_CHANGED.format(name), plain)
    }


def _comparisons(plain: str) -> Iterator[tuple[str, str, str]]:
    """Yield (variable, sign, what it is compared with), but none of a sum, ``h + i < n``."""
    for at in _COMPARED.finditer(plain):
        if plain[: at.start()].rstrip()[-1:] not in tuple("+-*/%.<"):
            yield at[1], at[2], at[3]


class _Groups:
    """Join names that are alike."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def _first(self, name: str) -> str:
        while (above := self._above.get(name, name)) != name:
            name = above
        return name

    def join(self, one: str, other: str) -> None:
        """Say that two names are alike."""
        self._above[one] = self._above.get(one, one)
        self._above[other] = self._above.get(other, other)
        self._above[self._first(one)] = self._first(other)

    def add(self, alike: Mapping[str, str]) -> None:
        """Join names with those that they are told to be alike to."""
        for name, other in alike.items():
            if not self._clash(name, other):
                self.join(name, other)

    def _clash(self, one: str, other: str) -> bool:
        """Return True where an accessor has a dimension among what is alike to either, and they differ."""
        both = [self._first(name) for name in (one, other)]
        of_each = (
            {_accessor(n) for n in self._above if n and self._first(n) == first} - {""} for first in both
        )
        return both[0] != both[1] and not set.isdisjoint(*of_each)

    def numbers(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of the group of each name that is known, and of `names`."""
        everything = sorted({*self._above, *names})
        firsts = {name: n for n, name in enumerate(dict.fromkeys(map(self._first, everything)))}
        return {name: firsts[self._first(name)] for name in everything}
