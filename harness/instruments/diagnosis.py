"""Diagnose what limits a kernel from the counters of one launch, with the evidence and the usual remedy.

Nothing here measures. Each rule is a function of the counters; a rule whose metrics were not measured is
skipped. Thresholds:

    60%   of its peak: a unit is busy. NVIDIA's own speed-of-light rule calls a kernel that keeps neither
          compute nor memory that busy latency-bound (Nsight Compute, Kernel Profiling Guide).
    30%   of a warp's time: a stall reason, or several with one cause, is decisive. NVIDIA's stall rules
          apply from 30% too.
    1.5   times the least traffic: more than the ragged edge of an array explains.
    90%   of the time: the SMs are busy, on average. Below that, a tenth of the GPU was idle.

The first four, memory-, compute-, tensor- and latency-bound, exclude each other. A kernel whose L1 is busy
with shared memory is none of the four: the rule about the MIO queue covers it. The others may all hold at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.instruments import counters as c
from harness.instruments.counters import Counters

BUSY = 60.0  # % of a unit's peak
DECISIVE = 0.3  # share of a warp's time
EXCESS = 1.5  # times the least traffic
FULL = 90.0  # % of the time
_FEW_WARPS = 50.0  # % of an SM's warp slots
_TENSOR = "the tensor cores"
# % of the instructions that the tensor pipe can take; kernels that use none showed up to 0.6 on an H200.
_TENSOR_INSTRUCTIONS = 1.0
_LEVELS = {"DRAM": c.DRAM, "L2": c.L2, "L1/TEX": c.L1}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One rule that holds for a launch.

    `says` is one sentence, `cure` the usual remedy. `evidence` maps the metrics that the rule read, by ncu's
    names, to their values.
    """

    kind: str
    says: str
    cure: str
    evidence: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: `judge` returns its sentence for a launch, or None if the rule does not hold.

    `needs` names the metrics that must have been measured; `cure` is the usual remedy.
    """

    kind: str
    needs: tuple[str, ...]
    judge: Callable[[Counters], str | None]
    cure: str


def diagnose(counters: Counters) -> tuple[Diagnosis, ...]:
    """Return every rule that holds, in the order of `RULES`."""
    found = []
    for rule in RULES:
        if rule in unjudged(counters):
            continue
        says = rule.judge(counters)
        if says is not None:
            evidence = {name: counters[name] for name in rule.needs}
            found.append(Diagnosis(kind=rule.kind, says=says, cure=rule.cure, evidence=evidence))
    return tuple(found)


def unjudged(counters: Counters) -> tuple[Rule, ...]:
    """Return the rules that cannot be judged, since some of their metrics were not measured."""
    return tuple(rule for rule in RULES if any(name not in counters for name in rule.needs))


def _memory(counters: Counters) -> tuple[float, str]:
    """Return how busy the busiest level of memory is, in % of its peak, and the level's name."""
    return max((counters[metric], name) for name, metric in _LEVELS.items())


def _compute(counters: Counters) -> tuple[float, str]:
    """Return how busy the busiest unit of computation is, in % of its peak, and the unit's name.

    The units are the issue slots, the arithmetic pipes and the tensor cores. The number of instructions
    issued to the tensor pipe says little if one of them is 64 x 256 x 16 products. The tensor cores' load is
    therefore taken from the SM's throughput, which is that of its busiest unit. (On an H200 it equals, to the
    last digit, the FLOP of rungs 22 to 29 over a peak of 4,096 per cycle and SM, half of that for tf32 and
    two thirds for mma.sync.)
    """
    pipes = ((counters[m], f"the {name} pipe") for name, m in c.ARITHMETIC.items() if m in counters)
    units = [(counters[c.ISSUED], "the issue slots"), *pipes]
    if _multiplies(counters):
        units.append((counters[c.SM], _TENSOR))
    return max(units)


def _multiplies(counters: Counters) -> bool:
    """Return True if the kernel uses the tensor cores."""
    return counters.get(c.PIPES["tensor_op_hmma"], 0.0) > _TENSOR_INSTRUCTIONS


def _for_shared(counters: Counters) -> bool:
    """Return True if the L1's data stage works for shared memory more than for global memory."""
    return 2 * counters[c.SHARED_STAGE] > counters[c.DATA_STAGE]


def _share(counters: Counters, *reasons: str) -> float:
    """Return the share of a warp's time spent in these stall reasons, 0 to 1."""
    shares = c.stalls(counters)
    return sum(shares[reason][1] for reason in reasons if reason in shares)


def _worst(counters: Counters) -> str:
    """Return a sentence about the longest stall; warps that were ready to issue are not stalled."""
    ranked = [(r, s) for r, (_, s) in c.stalls(counters).items() if r not in ("selected", "not_selected")]
    reason, share = ranked[0]
    return f"a warp {c.STALLS[reason]} {share:.0%} of its time ({reason})"


def _memory_bound(counters: Counters) -> str | None:
    """Return a sentence if a level of memory is busy, and busier than computation, or else None.

    An L1 that is busy with shared memory does not count.
    """
    (memory, level), (compute, _) = _memory(counters), _compute(counters)
    if memory < BUSY or memory <= compute or (level == "L1/TEX" and _for_shared(counters)):
        return None
    others = ", ".join(f"{name} {counters[m]:.1f}%" for name, m in _LEVELS.items() if name != level)
    return f"{level} is at {memory:.0f}% of its peak ({others}), arithmetic at {compute:.0f}%"


def _compute_bound(counters: Counters) -> str | None:
    """Return a sentence if the issue slots or an arithmetic pipe are busy, at least as busy as memory."""
    (memory, level), (compute, unit) = _memory(counters), _compute(counters)
    if compute < BUSY or compute < memory or unit == _TENSOR:
        return None
    verb, whose = ("is", "its") if unit.endswith("pipe") else ("are", "their")
    return f"{unit} {verb} at {compute:.0f}% of {whose} peak while an SM has work, {level} at {memory:.0f}%"


def _tensor_bound(counters: Counters) -> str | None:
    """Return a sentence if the tensor cores are busy, at least as busy as memory."""
    (memory, level), (compute, unit) = _memory(counters), _compute(counters)
    if compute < BUSY or compute < memory or unit != _TENSOR:
        return None
    return f"{unit} are at {compute:.0f}% of their peak, {level} at {memory:.0f}%"


def _latency_bound(counters: Counters) -> str | None:
    """Return a sentence if neither memory nor computation is busy."""
    (memory, level), (compute, unit) = _memory(counters), _compute(counters)
    if max(memory, compute) >= BUSY:
        return None
    return (
        f"nothing is busy: {unit} {compute:.0f}%, {level} {memory:.0f}%; no warp is ready in "
        f"{c.no_eligible(counters):.0f}% of the cycles; {_worst(counters)}"
    )


def _mio_bound(counters: Counters) -> str | None:
    """Return a sentence if waiting for the MIO queue and for shared memory's data is decisive.

    MIO is the queue of shared-memory and special instructions.
    """
    queue, data = _share(counters, "mio_throttle"), _share(counters, "short_scoreboard")
    if queue + data < DECISIVE:
        return None
    return (
        f"warps wait for room in the MIO queue {queue:.0%} of their time and for what comes out of it "
        f"{data:.0%}; shared memory moves {counters[c.SHARED_STAGE]:.0f}% of the wavefronts it can"
    )


def _lsu_bound(counters: Counters) -> str | None:
    """Return a sentence if waiting for room in the LSU's queue of global and local accesses is decisive."""
    share = _share(counters, "lg_throttle")
    if share < DECISIVE:
        return None
    return (
        f"warps wait for room in the LSU's queue of global loads {share:.0%} of their time; a load touches "
        f"{c.sectors_a_request(counters):.1f} sectors"
    )


def _synchronisation_bound(counters: Counters) -> str | None:
    """Return a sentence if waiting at barriers and fences is decisive and the kernel is not tensor-bound."""
    share = _share(counters, "barrier", "membar")
    if share < DECISIVE or _tensor_bound(counters):
        return None
    products = ", a warpgroup for its products among them" if _multiplies(counters) else ""
    return f"warps wait at barriers and fences {share:.0%} of their time{products}"


def _bank_conflicts(counters: Counters) -> str | None:
    """Return a sentence if bank conflicts multiply the wavefronts by `EXCESS` or more and cost time.

    They cost time if shared memory is at least half as busy as `BUSY`.
    """
    if not counters[c.WAVEFRONTS] or counters[c.SHARED_STAGE] < BUSY / 2 or c.ways(counters) < EXCESS:
        return None
    return (
        f"shared memory takes {c.ways(counters):.1f} times the wavefronts it would without bank conflicts, "
        f"and is {counters[c.SHARED_STAGE]:.0f}% busy with them"
    )


def _uncoalesced(counters: Counters) -> str | None:
    """Return a sentence if global accesses touch `EXCESS` times the sectors that their bytes would fill."""
    ideal = counters[c.SECTORS_IDEAL]
    if not ideal or counters[c.SECTORS] < EXCESS * ideal:
        return None
    return (
        f"warps touch {counters[c.SECTORS] / ideal:.1f} times the sectors of global memory that the bytes "
        "they ask for would fill"
    )


def _occupancy_limited(counters: Counters) -> str | None:
    """Return a sentence if a latency-bound kernel fills nearly all of the few warp slots it can have."""
    few = counters[c.THEORETICAL] <= _FEW_WARPS and counters[c.ACHIEVED] >= 0.8 * counters[c.THEORETICAL]
    if not few or _latency_bound(counters) is None:
        return None
    return (
        f"{counters[c.THEORETICAL]:.0f}% of an SM's warp slots can be filled (limited by "
        f"{c.limiters(counters)}), {counters[c.ACHIEVED]:.0f}% are, and no warp is ready in "
        f"{c.no_eligible(counters):.0f}% of the cycles"
    )


def _quantised(counters: Counters) -> str | None:
    """Return a sentence, with the waves of the grid, if SMs have no work for part of the launch."""
    busy, waves = c.sms_busy(counters), counters[c.WAVES]
    if busy >= FULL:
        return None
    blocks, sms = counters[c.GRID], counters[c.SMS]
    if waves <= 1:
        grid = f"{blocks:.0f} blocks are {waves:.2f} of a wave on {sms:.0f} SMs"
    else:
        grid = f"{blocks:.0f} blocks are {waves:.2f} waves: the last one is {waves % 1 or 1:.0%} full"
    return f"an SM has work {busy:.0f}% of the time; {grid}"


_LEVEL_METRICS = tuple(_LEVELS.values())
_BOUND = (*_LEVEL_METRICS, c.SM, c.ISSUED, c.DATA_STAGE, c.SHARED_STAGE)
_REASONS = ("long_scoreboard", "short_scoreboard", "mio_throttle", "lg_throttle", "selected")
_TIME = tuple(map(c.stall, _REASONS))

RULES: tuple[Rule, ...] = (
    Rule(
        kind="memory-bound",
        needs=_BOUND,
        judge=_memory_bound,
        cure="move fewer bytes: reuse them from shared memory or registers, coalesce, load 128 bits each",
    ),
    Rule(
        kind="compute-bound",
        needs=_BOUND,
        judge=_compute_bound,
        cure="fewer instructions beside the arithmetic: wider loads, larger tiles a thread, unrolling; "
        "then another kind of arithmetic (tensor cores)",
    ),
    Rule(
        kind="tensor-bound",
        needs=_BOUND,
        judge=_tensor_bound,
        cure="larger products (64 x 256), the results of a tile written while the next is multiplied, a grid "
        "of whole waves; a narrower type",
    ),
    Rule(
        kind="latency-bound",
        needs=(*_BOUND, *_TIME),
        judge=_latency_bound,
        cure="more work in flight: more warps, more independent instructions a thread, loads issued earlier",
    ),
    Rule(
        kind="MIO-queue-bound",
        needs=(*_TIME, c.SHARED_STAGE),
        judge=_mio_bound,
        cure="fewer shared-memory instructions for each product: several outputs a thread from registers, "
        "64- and 128-bit loads; no bank conflicts",
    ),
    Rule(
        kind="LSU-queue-bound",
        needs=(*_TIME, c.LOADS, c.LOAD_SECTORS),
        judge=_lsu_bound,
        cure="fewer global loads: tiles in shared memory, 128-bit loads; fewer sectors for each",
    ),
    Rule(
        kind="synchronisation-bound",
        needs=(*_BOUND, *_TIME, c.stall("barrier"), c.stall("membar")),
        judge=_synchronisation_bound,
        cure="fewer barriers (double buffering), smaller blocks, more blocks an SM, named barriers",
    ),
    Rule(
        kind="bank conflicts",
        needs=(c.WAVEFRONTS, c.CONFLICTS, c.SHARED_STAGE),
        judge=_bank_conflicts,
        cure="pad the rows by a word, or swizzle the columns",
    ),
    Rule(
        kind="uncoalesced",
        needs=(c.SECTORS, c.SECTORS_IDEAL),
        judge=_uncoalesced,
        cure="let neighbouring threads read neighbouring words",
    ),
    Rule(
        kind="occupancy-limited",
        needs=(*_BOUND, *_TIME, c.THEORETICAL, c.ACHIEVED),
        judge=_occupancy_limited,
        cure="fewer registers (__launch_bounds__), less shared memory a block; more independent work a warp",
    ),
    Rule(
        kind="tail-quantised",
        needs=(c.SMS_BUSY, c.ELAPSED, c.WAVES, c.GRID, c.SMS),
        judge=_quantised,
        cure="a grid of whole waves: another tile, split k, or a persistent kernel that hands out tiles",
    ),
)
