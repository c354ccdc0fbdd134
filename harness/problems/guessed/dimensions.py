"""Guess the sizes of PyTorch's accessors among the parameters of a kernel.

Each dimension is an axis, ``x.0``. Those that are alike by the text have one size: that of a parameter with
which the text compares them, else one by default. A dimension that nothing but numbers index is as long as
they say, and one that is indexed by a sum, ``x[h + i]``, as long as that takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.kernels import text
from harness.kernels.cpp.host.launches import Launch
from harness.kernels.cpp.host.values import Values
from harness.problems.guessed import accessors, contents
from harness.problems.guessed.sizes import vectors
from harness.problems.guessed.solved import WINDOW, WORD, Known, Sizes
from harness.problems.protocol import Struct

_STEP = 2
_ITEMS = 256  # blocks along an axis that have an item each, at most
_APART = (0, 5, 9, 3, 7, 1)


def of(
    entry: text.Entry,
    types: Mapping[str, Any],
    block: Sequence[int],
    values: Values,
    launched: Launch | None,
) -> Dimensions:
    """Return the dimensions of the accessors among parameters, for a `block` of so many threads."""
    given = [p.name for p in entry.parameters if not p.pointer]
    ranks = {n: rank for n in given if n.isidentifier() and (rank := accessors.rank(types[n]))}
    kinds = {name: kind for name in given if isinstance(kind := types[name], tuple)}
    integers = [name for name, (kind, lanes) in kinds.items() if "int" in kind and lanes == 1]
    told = accessors.told(launched, [p.name for p in entry.parameters], ranks)
    return Dimensions(
        begins={name: contents.begins(entry.body, name) for name in ranks},
        said=accessors.read(entry.body, ranks, integers, values, told) if ranks else None,
        ranks=ranks,
        items=entry.items,
        block=dict(zip("xyz", (*block, 1, 1, 1), strict=False)),
        values=values,
    )


class Dimensions(Known):
    """Give a kernel its accessors: their axes, sizes and bytes."""

    def sizes(self, axes: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, int]:
        """Return the size of each dimension by its axis, with `axes` that are given and these parameters."""
        if self.said is None:
            return {}
        return Sizes(self, self.said, self._own(axes), numbers).all()

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
        found = Sizes(self, self.said, {}, {})
        windows = {n: WINDOW for n in integers if found.window(self.said.alike(n) - {*integers})}
        written = [*self.said.defined.values(), *(p for ps in self.said.places.values() for p in ps)]
        words = {word for part in written for _, word in WORD.findall(part)}
        alone = (n for n in integers if n in words and self.said.alike(n) == {n})
        return (
            dict.fromkeys((n for n in alone if n not in self.said.compared | {*self.said.told}), _STEP)
            | windows
        )

    def totals(
        self, integers: Sequence[str], axes: Mapping[str, Any], numbers: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the parameters that count an accessor's elements, ``i < n`` with ``x[i / w][i % w]``."""
        if self.said is None:
            return {}
        found = Sizes(self, self.said, axes, {})
        counts = {n: self.said.alike(n) - {n} for n in integers if not self.dimensions_of(n)}
        counts = {n: alike for n, alike in counts.items() if any(map(found.parted, alike))}
        free = {n: m for n, m in numbers.items() if n not in counts and n not in self.said.told}
        found = Sizes(self, self.said, axes, free)
        told = {n: m for n in integers if (m := found.told(n))}
        return {n: max(map(found.parted, alike)) for n, alike in counts.items()} | told

    def along(self, axes: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, int]:
        """Return how far the grid goes along its axes, where the text tells."""
        if self.said is None:
            return {}
        found = Sizes(self, self.said, self._own(axes), numbers)
        extents = {axis: n for axis in "xyz" if (n := found.along(axis))}
        return {axis: min(n, _ITEMS) if axis in self.items else n for axis, n in extents.items()}

    def widths(self) -> dict[str, int]:
        """Return the last dimension of each accessor of several."""
        sizes = self.sizes({}, {})
        return {name: sizes[f"{name}.{n - 1}"] for name, n in self.ranks.items() if n > 1}

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
        found = Sizes(self, self.said, {}, numbers)
        sizes, totals = found.all(), self.totals(integers, {}, numbers)
        alone = [n for n in integers if n not in totals and not self.dimensions_of(n)]
        if alone or not any(n in self.said.told or self.dimensions_of(n) for n in self.said.compared):
            return []
        free: dict[int, list[str]] = {}
        for name in (*integers, *(f"{x}__{d}" for x, n in self.ranks.items() for d in range(n))):
            axis = name.replace("__", ".")
            size = numbers.get(name, sizes.get(axis, 0))
            computed = self.said.told.get(name, name) not in self.said.alike(name)
            if not computed and name not in totals and size == self.usual and len(self.said.alike(name)) > 1:
                free.setdefault(self.said.group[name], []).append(axis)
        least = self.usual - self.usual // 4 - (self.usual - self.usual // 4) % 4 + 2
        axes, equal = dict[str, int](), found.unknown or not self.said.sure
        for n, alike in enumerate(free.values()):
            of_parameters = [axis for axis in alike if axis in integers]
            more = 0 if equal else _APART[n % len(_APART)]
            axes |= dict.fromkeys(of_parameters or alike[:1], least + more)
        return [axes | self.totals(integers, axes, {**numbers, **axes})] if axes else []
