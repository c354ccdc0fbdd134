"""Several ``fma.rn.f32`` at once, as register-blocked products have them: one call of NumPy for many.

The fma of straight code that do not depend on one another are executed together, where the last of them
stands. Factors are made float64 once. Those with a factor in common, whose others follow each other, are
multiplied together: a row of an outer product. The results lie side by side, as rows of one array, so that
the next ones that add to them in the same order need not gather them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.emulator.numbers.floats import add32
from harness.emulator.numbers.values import Array, Lanes

if TYPE_CHECKING:
    from harness.emulator.decode import Decoder, Run
    from harness.emulator.group import Group
    from harness.emulator.ptx.program import Instruction

Used = Callable[[int], tuple[frozenset[int], frozenset[int]]]
_FMA = ("fma", "rn", "f32")
_LEAST = 4  # fma that are worth it
_AT_ONCE = 16384  # elements of a call, unless a row has more: its arrays fit a processor's cache
# What fma may be moved past: instructions that say in their operands all that they read and write.
_PASSED = {"ld", "mov", "add", "sub", "mul", "mad", "shl", "shr", "cvt", "cvta", "fma", "and", "or", "xor"}


def fuse(decoder: Decoder, instructions: Sequence[Instruction], used: Used) -> dict[int, Run | None]:
    """Return what executes the fma of straight code, by index: the last one all of its set, the others None.

    used(index): returns the registers that an instruction reads and writes, by number
    """
    found: dict[int, Run | None] = {}
    members: list[Instruction] = []
    reads: set[int] = set()
    writes: set[int] = set()
    for ins in instructions:
        read, written = used(ins.index)
        apart = writes.isdisjoint(read | written) and reads.isdisjoint(written)
        if not apart or ins.opcode[0] not in _PASSED:
            _close(decoder, members, found)
            members, reads, writes = [], set(), set()
        if ins.opcode == _FMA and len(written) == 1:
            members.append(ins)
            reads |= read
            writes |= written
    _close(decoder, members, found)
    return found


def _close(decoder: Decoder, members: list[Instruction], found: dict[int, Run | None]) -> None:
    if len(members) >= _LEAST:
        found |= dict.fromkeys([ins.index for ins in members])
        found[members[-1].index] = Fused(decoder, members)


@dataclass(frozen=True)
class Row:
    """The `count` fma from `first` on: the factor `common` times those from `other` on."""

    first: int
    count: int
    common: int
    other: int


class Results:
    """The results of a set in one group of threads: rows (T, C) of one array, and each of them."""

    def __init__(self, count: int, shape: tuple[int, int]) -> None:
        self.array = np.empty((count, *shape), np.float32)
        self.rows = list(self.array)


class Fused:
    """The fma `members`, which do not depend on one another; call it as the function of an instruction."""

    def __init__(self, decoder: Decoder, members: list[Instruction]) -> None:
        pairs = [ins.operands[1:3] for ins in members]
        names = list(dict.fromkeys(name for pair in pairs for name in pair))
        places = {name: place for place, name in enumerate(names)}
        self._into = [decoder.register(ins, ins.operands[0]) for ins in members]
        by_name = {name: ins for ins, pair in zip(members, pairs, strict=True) for name in pair}
        self._factors = [decoder.floating(by_name[name], name, np.float32) for name in names]
        self._addends = [decoder.floating(ins, ins.operands[3], np.float32) for ins in members]
        self._rows = rows_of([(places[a], places[b]) for a, b in pairs])

    def __call__(self, group: Group, where: Lanes) -> None:
        """Execute them in all lanes of a group."""
        results = group.results.get(self)
        if results is None:
            results = group.results[self] = Results(len(self._into), group.shape)
            group.results |= {id(row): (results, place) for place, row in enumerate(results.rows)}
        factors = group.wide(len(self._factors))
        for place, read in enumerate(self._factors):
            factors[place] = read(group)
        addends = [read(group) for read in self._addends]
        most = max(1, _AT_ONCE // group.lanes)
        for first in range(0, len(addends), most):
            end = min(first + most, len(addends))
            work = group.workspace((end - first, *group.shape))
            for row in self._rows:
                start, stop = max(row.first, first), min(row.first + row.count, end)
                if start < stop:
                    other = row.other + start - row.first
                    np.multiply(
                        factors[row.common],
                        factors[other : other + stop - start],
                        out=work.products[start - first : stop - first],
                    )
            add32(_side_by_side(group, addends[first:end]), results.array[first:end], work)
        for register, value in zip(self._into, results.rows, strict=True):
            group.registers[register] = value


def _side_by_side(group: Group, values: list[Any]) -> Array:
    """Return values, float32 (T, C) or scalars, as one array; without a copy where they are rows of one."""
    results, first = group.results.get(id(values[0]), (None, 0))
    if results is not None:
        rows = results.rows[first : first + len(values)]
        if len(rows) == len(values) and all(map(operator.is_, values, rows)):
            found: Array = results.array[first : first + len(values)]
            return found
    stacked = np.empty((len(values), *group.shape), np.float32)
    for place, value in enumerate(values):
        stacked[place] = value
    return stacked


def rows_of(pairs: Sequence[tuple[int, int]]) -> list[Row]:
    """Divide products, each of two factors by number, into rows: one in common, the others in order."""
    found: list[Row] = []
    start = 0
    while start < len(pairs):
        best = Row(start, 1, *pairs[start])
        for common, other in (pairs[start], pairs[start][::-1]):
            count = 1
            while start + count < len(pairs) and pairs[start + count] in (
                (common, other + count),
                (other + count, common),
            ):
                count += 1
            if count > best.count:
                best = Row(start, count, common, other)
        found.append(best)
        start += best.count
    return found
