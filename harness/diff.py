"""Two kernels' machine code -> what changed: resources, and the mix of instructions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from harness.code import Code


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`identical`: the same instructions with the same encodings, so that any difference in speed is noise.

    `figures` holds each figure of both sides, changed or not. `loop` and `kernel` hold, for every opcode
    whose number changed, how often it stands on either side: in the hot loop (in all the code where either
    has no loop), and in all the code.
    """

    identical: bool
    figures: dict[str, tuple[Any, Any]]
    loop: dict[str, tuple[int, int]]
    kernel: dict[str, tuple[int, int]]


def compare(a: Code, b: Code) -> Difference:
    return Difference(
        identical=a.sass.sha256 == b.sass.sha256,
        figures={name: (_figures(a)[name], _figures(b)[name]) for name in _figures(a)},
        loop=_changed(a.hot_mix, b.hot_mix),
        kernel=_changed(a.sass.mix, b.sass.mix),
    )


def _figures(code: Code) -> dict[str, Any]:
    occupancy, peak, loop, banks = code.occupancy, code.sass.peak, code.hot_loop, code.banks
    return {
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
    """The largest change first."""
    names = [name for name in a | b if a[name] != b[name]]
    names.sort(key=lambda name: (-abs(a[name] - b[name]), name))
    return {name: (a[name], b[name]) for name in names}
