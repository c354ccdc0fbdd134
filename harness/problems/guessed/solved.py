"""Find the sizes of the dimensions of PyTorch's accessors by what text and host code say of them."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from harness.kernels.cpp.host.values import Values
from harness.kernels.expr import Expr, ExprError
from harness.problems.guessed import accessors

_USUAL = {1: 1000, 2: 64, 3: 32}  # by the most dimensions that an accessor has
_LEAST = 12  # of four dimensions and more
_LOOPED = 6  # what nothing but loops of threads go through, with so many dimensions
WINDOW = 3  # of a filter
WORD = re.compile(r"(-\s*)?\b([A-Za-z_]\w*)")
_PART = re.compile(r"[/%]\s*(?:\w+|\([^()]*\))")
_REST = re.compile(r"(?:\w+|\((?:[^()]|\([^()]*\))*\))\s*%\s*(\w+)")


@dataclass(frozen=True, kw_only=True)
class Known:
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

    def dimensions_of(self, name: str) -> set[str]:
        """Return the dimensions that are alike to a name."""
        alike = self.said.alike(name) if self.said else set[str]()
        return {other for other in alike if other.rpartition("__")[0] in self.ranks}


class Sizes:
    """Find the sizes where some are given; `unknown` is True once an index says nothing of its dimension."""

    def __init__(
        self,
        whole: Known,
        said: accessors.Said,
        axes: Mapping[str, int],
        numbers: Mapping[str, int],
    ) -> None:
        self._whole, self._said, self._axes, self._numbers = whole, said, axes, numbers
        self._known: dict[int, int] = {}
        self._busy = set[int]()
        self._asked = set[str]()  # of what host code has told
        self._lasts: dict[str, int | None] = {}
        self.unknown = False

    def all(self) -> dict[str, int]:
        """Return the sizes of all dimensions by their axes."""
        names = [f"{name}__{d}" for name, n in self._whole.ranks.items() for d in range(n)]
        return {name.replace("__", "."): self._dimension(name) for name in names}

    def _dimension(self, name: str) -> int:
        if given := self._axes.get(name.replace("__", ".")) or self.told(name):
            return given
        least, places = self._said.least.get(name, 0), self._said.places.get(name, ())
        size = least if self._said.alike(name) == {name} and (least or places) else self._alike(name)
        for place in () if self._by_host(name) else places:
            words = {word for _, word in WORD.findall(place)}
            if words & self._said.alike(name):
                continue  # a border, which is guarded or a finding
            last = self._last(place)
            self.unknown = self.unknown or last is None
            size = max(size, self._whole.usual if last is None else last + 1)
        begins = self._whole.begins.get(name.rpartition("__")[0], False)
        return max(size + begins, least, 1)

    def _by_host(self, name: str) -> bool:
        """Return True where host code says which parameter or dimension of another accessor this one is."""
        alike = self._said.alike(name)
        return any(self._said.told.get(other) in alike for other in alike)

    def told(self, name: str) -> int | None:
        """Return what host code has told of a name; None where it is just alike to another."""
        written = self._said.told.get(name, "")
        if not written or name in self._asked or written in self._said.alike(name):
            return None
        self._asked.add(name)
        expression, numbers = Expr.parse(written), dict[str, int]()
        for word in expression.names:
            known = self._numbers.get(word) or self.told(word)
            if word.rpartition("__")[0] in self._whole.ranks:
                known = self._dimension(word)
            if known is not None:
                numbers[word] = known
        self._asked.remove(name)
        with contextlib.suppress(ExprError):
            return max(1, expression(numbers)) if expression.names <= numbers.keys() else None
        return None

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
        if told := [n for other in sorted(alike) if (n := self.told(other))]:
            return max(told)
        by_numbers = [n for other in alike if (n := self._said.least.get(other))]
        if by_numbers and {n.rpartition("__")[0] for n in alike} <= self._whole.ranks.keys():
            return max(by_numbers)
        if not alike & self._said.compared:
            below = [n for other in alike if (n := self._said.numbers.get(other))]
            below += [n for other in alike if (n := self._last(self._said.products.get(other, "")))]
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
            return WINDOW
        looped = variables and variables <= self._said.counted
        return _LOOPED if looped and self._whole.usual == _LEAST else self._whole.usual

    def window(self, variables: set[str]) -> bool:
        """Return True where loops count all these variables, and indices are sums with one of them."""
        written = (
            *self._said.defined.values(),
            *(p for places in self._said.places.values() for p in places),
        )
        sums = ({word for _, word in WORD.findall(part)} for part in written if "+" in part)
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

        plain = WORD.sub(number, plain).replace("/", "//")
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
