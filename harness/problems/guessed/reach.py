"""Lengthen guessed buffers to where their kernel goes, where the numbers of its text say that it means to.

A kernel of n threads that reads ``x[i * H * W + j]`` needs n * H * W elements, which a guess by indices may
miss. It shows: the kernel goes exactly as far as such a product. One whose guard is missing or off by one
goes to another number, the end of its last block or one element too far, and stays a finding.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.kernels import text
from harness.kernels.cpp.host.values import Values

_LARGEST = 4096  # a number of the text that counts elements
_FACTORS = 3  # beside the first one
_LONGEST = 2**24  # elements
_WORD = r"(?<![\w.])(0[xX][\da-fA-F]+|\d+|[A-Za-z_]\w*)(?![\w.])"
_FACTOR = re.compile(rf"\*\s*\(?\s*{_WORD}|(?={_WORD}\s*\)?\s*\*)|<=?\s*{_WORD}")


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What may explain how far a kernel goes.

    numbers: those by which its text multiplies, and up to which it counts
    sums: pairs of sizes that it adds
    items: the axes of the grid along which each block has an item, such as a row
    """

    numbers: frozenset[int]
    sums: frozenset[tuple[str, str]]
    items: frozenset[str]

    def explains(
        self, elements: int, sizes: Mapping[str, int], launch: Sequence[int], given: Collection[int] = ()
    ) -> bool:
        """Return True where a number of elements is a product of what is known.

        That is of a size, a sum of two, or a number of items, with further ones and numbers of the text. For
        a kernel without sizes it is one of the extents of its `launch`, grid and block, with these. `given`
        are numbers that it is given and that are no sizes.
        """
        whole = [*sizes.values(), *(sizes[a] + sizes[b] for a, b in self.sums if {a, b} <= sizes.keys())]
        items = [blocks for axis, blocks in zip("xyz", launch, strict=False) if axis in self.items]
        first = [n for n in ([*whole, *items] if sizes else launch) if n > 1]
        others = {n for n in (*(whole if sizes else launch), *self.numbers, *given) if n > 1}
        return elements <= _LONGEST and any(
            elements % n == 0 and _product(elements // n, others, _FACTORS) for n in first
        )


def of(entry: text.Entry, sizes: Sequence[str], values: Values) -> Reach:
    """Return what the body of a kernel says, with the numbers that `values` give its names."""
    return Reach(
        numbers=frozenset(_numbers(entry.body, values)),
        sums=frozenset(_sums(entry.body, sizes)),
        items=entry.items,
    )


def _numbers(body: str, values: Values) -> Iterator[int]:
    for word in {word for words in _FACTOR.findall(body) for word in words if word}:
        number = int(word, 0) if re.match(r"0[xX]|[1-9]", word) else values.number(word)
        if number is not None and 1 < number <= _LARGEST:
            yield number


def _sums(body: str, sizes: Sequence[str]) -> Iterator[tuple[str, str]]:
    for a, b in re.findall(r"\b([A-Za-z_]\w*)\s*\+\s*([A-Za-z_]\w*)\b", body):
        if a in sizes and b in sizes:
            yield a, b


def _product(number: int, factors: Collection[int], most: int) -> bool:
    """Return True where a number is a product of at most so many of `factors`."""
    if number == 1:
        return True
    return most > 0 and any(number % n == 0 and _product(number // n, factors, most - 1) for n in factors)
