"""Guess the sizes of PyTorch's accessors among the parameters of a kernel.

Each dimension is an axis, ``x.0``. Those that are alike by the text have one size: that of a parameter with
which the text compares them, else one by default. A dimension that nothing but numbers index is as long as
they say, and one that is indexed by a sum, ``x[h + i]``, as long as that takes.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.kernels import text
from harness.kernels.cpp.host.values import Values
from harness.kernels.expr import Expr, ExprError
from harness.problems.guessed import accessors, contents
from harness.problems.guessed.sizes import vectors
from harness.problems.protocol import Struct

_USUAL = {1: 1000, 2: 64, 3: 32}  # by the most dimensions that an accessor has
_LEAST = 12  # of four dimensions and more
_WINDOW = 3  # of a filter
_LOOPED = 6  # what nothing but loops of threads go through, with so many dimensions
_STEP = 2
_ITEMS = 256  # blocks along an axis that have an item each, at most
_APART = (0, 5, 9, 3, 7, 1)
_WORD = re.compile(r"(-\s*)?\b([A-Za-z_]\w*)")
_PART = re.compile(r"[/%]\s*(?:\w+|\([^()]*\))")
_REST = re.compile(r"(?:\w+|\((?:[^()]|\([^()]*\))*\))\s*%\s*(\w+)")


def of(entry: text.Entry, types: Mapping[str, Any], block: Sequence[int], values: Values) -> Dimensions:
    """Return the dimensions of the accessors among parameters, for a `block` of so many threads."""
    given = [p.name for p in entry.parameters if not p.pointer]
    ranks = {n: rank for n in given if n.isidentifier() and (rank := accessors.rank(types[n]))}
    kinds = {name: kind for name in given if isinstance(kind := types[name], tuple)}
    integers = [name for name, (kind, lanes) in kinds.items() if "int" in kind and lanes == 1]
    return Dimensions(
        begins={name: contents.begins(entry.body, name) for name in ranks},
        said=accessors.read(entry.body, ranks, integers, values) if ranks else None,
        ranks=ranks,
        items=entry.items,
        block=dict(zip("xyz", (*block, 1, 1, 1), strict=False)),
        values=values,
    )


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """Hold the accessors of a kernel by their `ranks`, and what the text has `said` of them, if any.

    `block` has the threads along each axis, and `items` are the axes along which each block has an item. Of
    those in `begins` a loop goes from ``x[row]`` to ``x[row + 1]``, so that they are one longer.
    """

    said: accessors.Said | None
    ranks: Mapping[str, int]
    items: frozenset[str]
    block: Mapping[str, int]
    values: Values
    begins: Mapping[str, bool]

    @property
    def usual(self) -> int:
        """Return a size by default; without accessors there is no limit."""
        return _USUAL.get(max(self.ranks.values()), _LEAST) if self.ranks else sys.maxsize

    def sizes(self, axes: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, int]:
        """Return the size of each dimension by its axis, with `axes` that are given and these parameters."""
        if self.said is None:
            return {}
        return _Sizes(self, self.said, self._own(axes), numbers).all()

    def elements(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the elements of each accessor, by their axis."""
        return {
            f"{name}.{accessors.MEMBERS[0]}": math.prod(sizes[f"{name}.{d}"] for d in range(n))
            for name, n in self.ranks.items()
        }

    @property
    def variable(self) -> list[str]:
        """Return the axes of the dimensions that more than numbers index."""
        if self.said is None:
            return []
        names = [f"{name}__{d}" for name, n in self.ranks.items() for d in range(n)]
        by_numbers = (
            bool(self.said.alike(n) & self.said.numbers.keys() or self.said.alike(n) == {n})
            and not self.said.alike(n) & self.said.compared
            and n not in self.said.places
            for n in names
        )
        return [n.replace("__", ".") for n, fixed in zip(names, by_numbers, strict=True) if not fixed]

    def steps(self, integers: Sequence[str]) -> dict[str, int]:
        """Return a number for the parameters that are in indices alone, ``x[h * step]``, or end a filter."""
        if self.said is None:
            return {}
        found = _Sizes(self, self.said, {}, {})
        windows = {n: _WINDOW for n in integers if found.window(self.said.alike(n) - {*integers})}
        written = [*self.said.defined.values(), *(p for ps in self.said.places.values() for p in ps)]
        words = {word for part in written for _, word in _WORD.findall(part)}
        alone = (n for n in integers if n in words and self.said.alike(n) == {n})
        return dict.fromkeys((n for n in alone if n not in self.said.compared), _STEP) | windows

    def totals(
        self, integers: Sequence[str], axes: Mapping[str, Any], numbers: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the parameters that count an accessor's elements, ``i < n`` with ``x[i / w][i % w]``."""
        if self.said is None:
            return {}
        found = _Sizes(self, self.said, axes, {})
        counts = {n: self.said.alike(n) - {n} for n in integers if not self.dimensions_of(n)}
        counts = {n: alike for n, alike in counts.items() if any(map(found.parted, alike))}
        found = _Sizes(self, self.said, axes, {n: m for n, m in numbers.items() if n not in counts})
        return {n: max(map(found.parted, alike)) for n, alike in counts.items()}

    def along(self, axes: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, int]:
        """Return how far the grid goes along its axes, where the text tells."""
        if self.said is None:
            return {}
        found = _Sizes(self, self.said, self._own(axes), numbers)
        extents = {axis: n for axis in "xyz" if (n := found.along(axis))}
        return {axis: min(n, _ITEMS) if axis in self.items else n for axis, n in extents.items()}

    def called(self, name: str) -> str:
        """Return the accessor whose elements have this axis, or the name itself."""
        accessor, _, member = name.rpartition(".")
        return accessor if accessor in self.ranks and member == accessors.MEMBERS[0] else name

    def _own(self, axes: Mapping[str, Any]) -> dict[str, int]:
        """Return the sizes among axes."""
        names = (f"{name}.{d}" for name, n in self.ranks.items() for d in range(n))
        return {axis: int(axes[axis]) for axis in names if axis in axes}

    def argument(self, name: str, kind: np.dtype[Any], axes: Mapping[str, int]) -> Struct:
        """Return an accessor of an array whose rows follow each other."""
        sizes = [axes[f"{name}.{d}"] for d in range(self.ranks[name])]
        strides = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
        first, *others = accessors.MEMBERS
        whole = {
            member: np.void(np.array(numbers, kind[member].base).tobytes())
            for member, numbers in zip(others, (sizes, strides), strict=True)
        }
        return Struct({first: f"{name}.{first}", **whole})

    def ragged(
        self, integers: Sequence[str], numbers: Mapping[str, int], called: str
    ) -> list[dict[str, int]]:
        """Return other sizes that are no multiples of blocks; none where that may not be right.

        It is where a size is guarded and none divided, and the text, or what is `called` with it, reads no
        vectors. They are unequal where every index is understood.
        """
        if self.said is None or max(self.ranks.values()) < 2 or self.said.divided or vectors(called):
            return []
        found = _Sizes(self, self.said, {}, numbers)
        sizes, totals = found.all(), self.totals(integers, {}, numbers)
        alone = [n for n in integers if n not in totals and not self.dimensions_of(n)]
        if alone or not any(self.dimensions_of(n) for n in self.said.compared):
            return []
        free: dict[int, list[str]] = {}
        for name in (*integers, *(f"{x}__{d}" for x, n in self.ranks.items() for d in range(n))):
            axis = name.replace("__", ".")
            size = numbers.get(name, sizes.get(axis, 0))
            if name not in totals and size == self.usual and len(self.said.alike(name)) > 1:
                free.setdefault(self.said.group[name], []).append(axis)
        least = self.usual - self.usual // 4 - (self.usual - self.usual // 4) % 4 + 2
        axes, equal = dict[str, int](), found.unknown or not self.said.sure
        for n, alike in enumerate(free.values()):
            of_parameters = [axis for axis in alike if axis in integers]
            more = 0 if equal else _APART[n % len(_APART)]
            axes |= dict.fromkeys(of_parameters or alike[:1], least + more)
        return [axes | self.totals(integers, axes, {**numbers, **axes})] if axes else []

    def dimensions_of(self, name: str) -> set[str]:
        """Return the dimensions that are alike to a name."""
        alike = self.said.alike(name) if self.said else set[str]()
        return {other for other in alike if other.rpartition("__")[0] in self.ranks}


class _Sizes:
    """Find the sizes where some are given; `unknown` is True once an index says nothing of its dimension."""

    def __init__(
        self,
        whole: Dimensions,
        said: accessors.Said,
        axes: Mapping[str, int],
        numbers: Mapping[str, int],
    ) -> None:
        self._whole, self._said, self._axes, self._numbers = whole, said, axes, numbers
        self._known: dict[int, int] = {}
        self._busy = set[int]()
        self._lasts: dict[str, int | None] = {}
        self.unknown = False

    def all(self) -> dict[str, int]:
        """Return the sizes of all dimensions by their axes."""
        names = [f"{name}__{d}" for name, n in self._whole.ranks.items() for d in range(n)]
        return {name.replace("__", "."): self._dimension(name) for name in names}

    def _dimension(self, name: str) -> int:
        if given := self._axes.get(name.replace("__", ".")):
            return given
        least, places = self._said.least.get(name, 0), self._said.places.get(name, ())
        size = least if self._said.alike(name) == {name} and (least or places) else self._alike(name)
        for place in places:
            words = {word for _, word in _WORD.findall(place)}
            if words & self._said.alike(name):
                continue  # a border, which is guarded or a finding
            last = self._last(place)
            self.unknown = self.unknown or last is None
            size = max(size, self._whole.usual if last is None else last + 1)
        begins = self._whole.begins.get(name.rpartition("__")[0], False)
        return max(size + begins, least, 1)

    def _alike(self, name: str) -> int:
        """Return the size of all that is alike to a dimension or variable."""
        group, alike = self._said.group[name], self._said.alike(name)
        if group in self._busy:
            return self._by_default(alike)
        if group not in self._known:
            self._busy.add(group)
            self._known[group] = self._of_all(alike)
            self._busy.remove(group)
        return self._known[group]

    def _of_all(self, alike: set[str]) -> int:
        axes = [self._axes[axis] for n in sorted(alike) if (axis := n.replace("__", ".")) in self._axes]
        if given := axes or [self._numbers[n] for n in alike if n in self._numbers]:
            return max(given)
        if not alike & self._said.compared:
            below = [n for other in alike if (n := self._said.numbers.get(other))]
            below += [n for a, n in self._whole.block.items() if f"threadIdx_{a}" in alike and not below]
            if below:
                return max(below)
            lasts = (self._last(self._said.defined.get(other, "")) for other in sorted(alike))
            if derived := [last for last in lasts if last is not None]:
                return max(derived) + 1
        return self._by_default(alike)

    def _by_default(self, alike: set[str]) -> int:
        """Return a size of which the text says no more."""
        variables = {n for n in alike if n.rpartition("__")[0] not in self._whole.ranks}
        if self.window(variables):
            return _WINDOW
        looped = variables and variables <= self._said.counted
        return _LOOPED if looped and self._whole.usual == _LEAST else self._whole.usual

    def window(self, variables: set[str]) -> bool:
        """Return True where loops count all these variables, and indices are sums with one of them."""
        written = (
            *self._said.defined.values(),
            *(p for places in self._said.places.values() for p in places),
        )
        sums = ({word for _, word in _WORD.findall(part)} for part in written if "+" in part)
        looped = bool(variables) and variables <= self._said.counted
        return looped and any(variables & words and words - variables for words in sums)

    def _last(self, written: str) -> int | None:
        """Return the largest value of an index; None where that is not known."""
        if not written or re.search(r"[^\w\s+*/%(),-]|\b\d[.\w]*[.a-z]", written):
            return None
        plain, known = _REST.sub(r"(\1 - 1)", written), True

        def number(at: re.Match[str]) -> str:
            nonlocal known
            if at[2] in ("min", "max"):
                return at[0]
            exact = self._exact(at[2])
            last = exact if exact is not None or not at[1] else 0
            last = self._most(at[2]) if last is None else last
            known = known and last is not None
            return f"{at[1] or ''}{last}"

        plain = _WORD.sub(number, plain).replace("/", "//")
        with contextlib.suppress(ExprError):
            return Expr.parse(" ".join(plain.split()))({}) if known else None
        return None

    def _exact(self, name: str) -> int | None:
        """Return the value of what is no variable: a dimension, a parameter or a constant."""
        if name.rpartition("__")[0] in self._whole.ranks:
            return self._axes.get(name.replace("__", ".")) or self._alike(name)
        kind, _, axis = name.partition("_")
        exact = self._whole.block.get(axis) if kind == "blockDim" else self._numbers.get(name)
        return exact if exact is not None or name in self._said.changed else self._whole.values.number(name)

    def _most(self, name: str) -> int | None:
        """Return the largest value of a variable."""
        if name not in self._lasts:
            self._lasts[name] = None  # while it is asked for, as where it is made of itself
            self._lasts[name] = self._of_variable(name)
        return self._lasts[name]

    def _of_variable(self, name: str) -> int | None:
        alike = self._said.alike(name)
        known = alike & self._said.compared and self._whole.dimensions_of(name)
        if known or alike & self._numbers.keys():
            return self._alike(name) - 1
        if name in self._said.numbers:
            return self._said.numbers[name] - 1
        if (product := self._said.products.get(name)) and (count := self._last(product)) is not None:
            return count - 1
        if name.startswith("threadIdx_"):
            return self._whole.block[name[-1]] - 1
        if (last := self._last(self._said.defined.get(name, ""))) is not None:
            return last
        return self._alike(name) - 1 if self._whole.dimensions_of(name) else None

    def along(self, axis: str) -> int | None:
        """Return how far the indices of blocks along an axis go; None where that is not known."""
        block = f"blockIdx_{axis}"
        begun = [name for name, value in self._said.defined.items() if re.search(rf"\b{block}\b", value)]
        whole = [name for name in begun if not self._part(name)]
        for name in (block, *whole):
            if self._whole.dimensions_of(name) or self._said.alike(name) & self._numbers.keys():
                return self._alike(name)
            if product := self._last(self._said.products.get(name, "")):
                return product
        return max(map(self.parted, (block, *begun))) or None

    def parted(self, name: str) -> int:
        """Return the elements through which a variable counts: the product of what it is divided into."""
        most = 0
        derived = set(filter(self._part, self._said.derived(name)))
        for accessor, rank in self._whole.ranks.items():
            names = (f"{accessor}__{d}" for d in range(rank))
            sizes = [self._dimension(name) for name in names if self._said.alike(name) & derived]
            most = max(most, math.prod(sizes) if sizes else 0)
        return most

    def _part(self, variable: str) -> bool:
        """Return True for what a variable is divided into, ``i / w % h``."""
        left, divisions = _PART.subn("", self._said.defined.get(variable, ""))
        return bool(divisions) and not re.search(r"[*+]", left)
