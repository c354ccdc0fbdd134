"""Compare the machine code of two kernels: their resources and how often each opcode occurs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from harness.sass.code import Code


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The differences between two kernels' machine code.

    `identical` is True if both have the same instructions with the same encodings. `noise` is True if,
    moreover, their figures are equal and they call no function (whose code may differ): a measured difference
    in speed is then noise.

    `figures` maps the name of each figure to the values of both sides, changed or not. `loop` and `kernel`
    map each opcode whose count changed to its counts on both sides, the largest change first: `kernel` in all
    the code, `loop` in the hot loops, or in all the code if either side has no loop.
    """

    identical: bool
    noise: bool
    figures: dict[str, tuple[Any, Any]]
    loop: dict[str, tuple[int, int]]
    kernel: dict[str, tuple[int, int]]


def compare(a: Code, b: Code) -> Difference:
    """Compare the code of `a` and `b`; in each pair of the result `a` comes first."""
    ours, theirs = _figures(a), _figures(b)
    identical = a.sass.sha256 == b.sass.sha256
    looped = a.hot_loop is not None and b.hot_loop is not None
    return Difference(
        identical=identical,
        noise=identical and ours == theirs and not a.sass.count("CALL"),
        figures={name: (ours[name], theirs[name]) for name in ours},
        loop=_changed(a.hot_mix, b.hot_mix) if looped else _changed(a.sass.mix, b.sass.mix),
        kernel=_changed(a.sass.mix, b.sass.mix),
    )


def _figures(code: Code) -> dict[str, Any]:
    """Return the figures that are compared, by the name under which they are printed; None is unknown."""
    occupancy, peak, loop, banks = code.occupancy, code.sass.peak, code.hot_loop, code.banks
    return {
        "threads a block": code.threads,
        "registers": code.registers,
        "live registers at most": peak and peak.live,
        "shared bytes": code.shared,
        "spills": code.spills,
        "occupancy": occupancy and round(occupancy.fraction, 3),
        "instructions": len(code.sass.instructions),
        "code bytes": code.sass.code_bytes,
        "loop instructions": loop and len(loop.instructions),
        "loop FFMA share": loop and round(loop.count("FFMA") / len(loop.instructions), 3),
        "loop FFMA a cycle, bank model": banks and round(banks.ffma_per_cycle, 3),
    }


def _changed(a: Counter[str], b: Counter[str]) -> dict[str, tuple[int, int]]:
    """Return the counts of each opcode whose count differs, the largest difference first."""
    names = [name for name in a | b if a[name] != b[name]]
    names.sort(key=lambda name: (-abs(a[name] - b[name]), name))
    return {name: (a[name], b[name]) for name in names}
