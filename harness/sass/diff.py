"""Two kernels' machine code -> what changed: resources, and the mix of instructions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from harness.sass.code import Code


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`identical`: the same instructions with the same encodings. A difference in speed is `noise` then, if
    threads and memory are the same too, and no function is called, which would be code of its own.

    `figures` holds each figure of both sides, changed or not. `loop` and `kernel` hold, for every opcode
    whose number changed, how often it stands on either side: in the hot loop (in all the code where either
    has no loop), and in all the code.
    """

    identical: bool
    noise: bool
    figures: dict[str, tuple[Any, Any]]
    loop: dict[str, tuple[int, int]]
    kernel: dict[str, tuple[int, int]]


def compare(a: Code, b: Code) -> Difference:
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
    """The largest change first."""
    names = [name for name in a | b if a[name] != b[name]]
    names.sort(key=lambda name: (-abs(a[name] - b[name]), name))
    return {name: (a[name], b[name]) for name in names}
