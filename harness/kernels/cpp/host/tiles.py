"""Guess sizes and grids of kernels that go through tensors box by box.

A pipeline has to come around for what is wrong with its stages to show, and a persistent kernel to its second
tile: one box along each extent would hide both.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence

from harness.kernels import text
from harness.kernels.cpp.host import launches, values
from harness.kernels.cpp.host.tensors import Encoded
from harness.kernels.expr import Expr, ExprError

_STAGES = re.compile(r"(?i:\w*stage\w*|\w*pipe\w*|q_?size|\w*depth|num_?buf\w*|\w*queue\w*)")
_USUAL, _DEEPEST = 3, 12  # stages of a pipeline, where the text does not say, and at most
_TILES, _WIDE = 4, 256  # boxes along a size that the grid is over, and elements where these are more
_MOST = 2**17  # threads of a persistent kernel's launch
_LONG = 2**16  # a size for which an extent is computed
_SMS = Expr.parse("SMS")  # multiprocessors


def sizes(
    maps: Mapping[str, Encoded],
    launched: launches.Launch | None,
    entry: text.Entry,
    known: values.Values,
    grid: Sequence[Expr],
) -> dict[str, int]:
    """Return the sizes of a kernel that are extents of its tensor maps: some boxes long.

    Those in `grid`, over which its grid is, have several tiles, the last of them twice as many, so that rows
    that are taken for columns show. One that is not goes around all stages of a pipeline, and twice through
    the first. So is one that is an extent of several maps where the grid is not known.
    """
    found, loops = dict[str, int](), dict[str, int]()
    over = frozenset[str]().union(*(blocks.names for blocks in grid))
    stages = _stages(entry, known)
    for name, boxes in _boxes(maps, launched, entry).items():
        whole = math.lcm(*boxes)
        tiles = whole * max(2, min(_TILES, _WIDE // whole))
        if name not in over if over else len(boxes) > 1:
            loops[name] = max(tiles, (stages + 2) * whole)
        else:
            found[name] = tiles
    wide = [*found][-1:] if len(found) > 1 and len({*found.values()}) == 1 else []
    return loops | found | {name: 2 * found[name] for name in wide}


def grid(launched: launches.Launch | None, entry: text.Entry, called: str) -> tuple[Expr, ...]:
    """Return the grid of a persistent kernel with tensor maps: that of its launch, or all multiprocessors.

    Nothing is returned for another one. `called` is its body with what it calls.
    """
    sizes = [p for p in entry.parameters if not p.pointer and "int" in p.type]
    if launched is None or not sizes or all(p.type != "CUtensorMap" for p in entry.parameters):
        return ()
    if launched.grid:
        small = math.prod(launched.grid) * math.prod(launched.block) <= _MOST
        given = zip(entry.parameters, launched.numbers, strict=False)
        several = any(p in sizes and (n is None or n > 1) for p, n in given)
        return tuple(map(Expr.parse, launched.grid)) if small and several else ()
    return (_SMS,) if re.search(r"\bgridDim\s*\.\s*x\b", called) and not launched.blocks else ()


def _stages(entry: text.Entry, known: values.Values) -> int:
    """Return the stages of a kernel's pipeline, by what numbers in its text are called."""
    words = {w for w in re.findall(r"\w+", entry.body) if _STAGES.fullmatch(w)}
    found = [n for word in words if (n := known.number(word)) and 1 < n <= _DEEPEST]
    return max(found, default=_USUAL)


def _boxes(
    maps: Mapping[str, Encoded], launched: launches.Launch | None, entry: text.Entry
) -> dict[str, list[int]]:
    """Return the boxes along each of a kernel's sizes, one for each map that it is an extent of.

    That is what a launch passes of the names that the extents depend on, or has such a name.
    """
    called = {p.name: p.name for p in entry.parameters if not p.pointer}
    given = zip(entry.parameters, launches.passed(launched, entry), strict=True)
    called |= {p.name: values.uncast(argument) for p, argument in given if p.name in called and argument}
    found: dict[str, list[int]] = {}
    for encoded in maps.values():
        for (frame, written), box in zip(encoded.written, encoded.box, strict=True):
            if (length := frame.expression(written, {*called, *called.values()})) is None:
                continue
            for name in (n for n, a in called.items() if {a, n} & length.names):
                ones = dict.fromkeys(length.names, 1)
                with contextlib.suppress(ExprError):  # K / 64 boxes of one are 64 of K
                    extent = length(ones | {n: _LONG for n in (called[name], name) if n in ones})
                    found.setdefault(name, []).append(max(1, round(box * _LONG / max(extent, 1))))
    return found
