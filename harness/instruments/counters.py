"""The counters of Nsight Compute that harness shows, and the values computed from them.

The counters of a launch are a mapping from ncu's own metric names to values in base units (ns, bytes, cycles,
%). The names are those of ncu 2025.3 on sm_90. A metric that a GPU lacks is absent, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Counters = Mapping[str, float]

TIME = "gpu__time_duration.sum"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
L1 = "l1tex__throughput.avg.pct_of_peak_sustained_active"
L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_READ, DRAM_WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
IPC = "sm__inst_executed.avg.per_cycle_active"
ISSUED = "smsp__issue_active.avg.pct_of_peak_sustained_active"
PIPES = {  # instructions issued to a pipe, in % of the most that it can take
    name: f"sm__inst_executed_pipe_{name}.avg.pct_of_peak_sustained_active"
    for name in ("fma", "alu", "lsu", "fp64", "xu", "tensor_op_hmma")
}
# Without the LSU: the number of instructions sent to it says little about how long its data stage is busy.
ARITHMETIC = {name: metric for name, metric in PIPES.items() if name != "lsu"}
L1_HIT, L2_HIT = "l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct"
LOADS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
STORES = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
SECTORS = "memory_l2_theoretical_sectors_global"
SECTORS_IDEAL = "memory_l2_theoretical_sectors_global_ideal"
# Wavefronts attributed to instructions; WAVEFRONTS also has those that arbitration repeats.
PASSES, PASSES_IDEAL = "memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal"
DATA_STAGE = "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"
SHARED_STAGE = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
# Warp instructions. The loads are without ldmatrix, which has its own metric; cp.async is in none of these.
SHARED_LOADS = "smsp__sass_inst_executed_op_shared_ld.sum"
SHARED_STORES = "smsp__sass_inst_executed_op_shared_st.sum"
SHARED_MATRICES = "smsp__inst_executed_op_ldsm.sum"
ELIGIBLE = "smsp__warps_eligible.avg.per_cycle_active"
ACTIVE_WARPS = "smsp__warps_active.avg.per_cycle_active"
INSTRUCTIONS = "smsp__inst_executed.sum"
SMS_BUSY, ELAPSED = "sm__cycles_active.avg", "sm__cycles_elapsed.max"
CLOCK = "sm__cycles_elapsed.avg.per_second"
THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
REGISTERS = "launch__registers_per_thread"
SHARED = "launch__shared_mem_per_block_allocated"
BLOCK, GRID, WAVES, SMS = (
    "launch__block_size",
    "launch__grid_size",
    "launch__waves_per_multiprocessor",
    "launch__sm_count",
)
_LIMIT = "launch__occupancy_limit_"
LIMITS = ("warps", "registers", "shared_mem", "blocks", "barriers")

_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
# The reasons, by ncu's names, why a warp did not issue -> their meaning.
STALLS = {
    "barrier": "waits at a block's barrier",
    "branch_resolving": "waits for a branch's target",
    "dispatch_stall": "the dispatcher holds it back: register banks, say",
    "drain": "waits for its stores at its end",
    "gmma": "waits for wgmma",
    "imc_miss": "waits for a constant",
    "lg_throttle": "the queue of global and local memory instructions is full",
    "long_scoreboard": "waits for data of global or local memory",
    "math_pipe_throttle": "the arithmetic pipe is taken",
    "membar": "waits at a memory fence",
    "mio_throttle": "the queue of shared-memory and special instructions is full",
    "misc": "something else",
    "no_instruction": "waits for instructions to be fetched",
    "not_selected": "ready, but another warp was chosen",
    "selected": "issued",
    "short_scoreboard": "waits for data of shared memory",
    "sleeping": "sleeps",
    "tex_throttle": "the queue of texture instructions is full",
    "wait": "waits a fixed number of cycles for its last instruction",
}


def stall(reason: str) -> str:
    """Return the name of the metric of one of the reasons in `STALLS`.

    The metric is the average number of warps stalled for that reason per instruction issued. That equals the
    cycles for which a warp is so stalled, per instruction that it issues.
    """
    return _STALL.format(reason)


def stalls(counters: Counters) -> dict[str, tuple[float, float]]:
    """Return each measured reason -> (cycles per instruction, share of a warp's time), the longest first.

    ``selected`` and ``not_selected`` are among the reasons, so the shares add up to 1.
    """
    cycles = {reason: counters[stall(reason)] for reason in STALLS if stall(reason) in counters}
    total = sum(cycles.values())
    ranked = sorted(cycles.items(), key=lambda item: -item[1])
    return {reason: (c, c / total if total else 0.0) for reason, c in ranked}


def no_eligible(counters: Counters) -> float:
    """Return the % of a scheduler's cycles in which no warp could issue."""
    return 100 - counters[ISSUED]


def sectors_a_request(counters: Counters) -> float:
    """Return how many 32-byte sectors a warp's global load touches on average."""
    return _over(counters[LOAD_SECTORS], counters[LOADS])


def ways(counters: Counters) -> float:
    """Return the wavefronts of shared memory over those without bank conflicts; 1 means no conflicts."""
    return _over(counters[WAVEFRONTS], counters[WAVEFRONTS] - counters[CONFLICTS])


def sms_busy(counters: Counters) -> float:
    """Return the % of the launch's time in which an SM, on average, has work."""
    return 100 * _over(counters[SMS_BUSY], counters[ELAPSED])


def _over(count: float, of: float) -> float:
    """Return the ratio; NaN, for which no rule holds, where nothing was counted."""
    return count / of if of else math.nan


def limiters(counters: Counters) -> str:
    """Return the resources that the next block on an SM would lack: ``registers``, ``warps`` and so on.

    Just ``warps`` if they are among the resources.
    """
    fits = {name: counters[_LIMIT + name] for name in LIMITS if _LIMIT + name in counters}
    least = min(fits.values(), default=0)
    found = [name for name, blocks in fits.items() if blocks == least]
    return "warps" if "warps" in found else ", ".join(found).replace("shared_mem", "shared memory")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of a section: one of ncu's metrics as it is, or a value `derived` from several.

    `name` is the metric, or the title of the derived value; `show` is the format of the value.
    """

    name: str
    show: str = "{:.1f}"
    derived: Callable[[Counters], float] | None = None

    def text(self, counters: Counters) -> str:
        """Return the value as text; ``-`` if a metric was not measured, or the value is a division by 0."""
        try:
            value = self.derived(counters) if self.derived else counters[self.name]
        except (KeyError, ZeroDivisionError):
            return "-"
        return self.show.format(value)


_COUNT = "{:,.0f}"
SECTIONS: dict[str, tuple[Row, ...]] = {
    "GPU speed of light": (
        Row(name=TIME, show=_COUNT),
        *(Row(name=name) for name in (SM, L1, L2, DRAM)),
    ),
    "Compute workload": (
        Row(name=IPC, show="{:.2f}"),
        Row(name=ISSUED),
        *(Row(name=name) for name in PIPES.values()),
        Row(name=INSTRUCTIONS, show=_COUNT),
    ),
    "Memory workload": (
        Row(name=L1_HIT),
        Row(name=L2_HIT),
        Row(name=DRAM_READ, show=_COUNT),
        Row(name=DRAM_WRITE, show=_COUNT),
        Row(name=LOADS, show=_COUNT),
        Row(name="sectors a global load", derived=sectors_a_request),
        Row(name=DATA_STAGE),
        Row(name=SHARED_STAGE),
        Row(name=SHARED_LOADS, show=_COUNT),
        Row(name=WAVEFRONTS, show=_COUNT),
        Row(name=CONFLICTS, show=_COUNT),
        Row(name="wavefronts over those without bank conflicts", show="{:.2f}", derived=ways),
    ),
    "Scheduler": (
        Row(name=ACTIVE_WARPS, show="{:.2f}"),
        Row(name=ELIGIBLE, show="{:.2f}"),
        Row(name="cycles with no eligible warp, %", derived=no_eligible),
    ),
    "Launch": (
        Row(name=GRID, show=_COUNT),
        Row(name=BLOCK, show=_COUNT),
        Row(name=REGISTERS, show=_COUNT),
        Row(name=SHARED, show=_COUNT),
        Row(name=WAVES, show="{:.2f}"),
        Row(name="SMs busy, % of the time", derived=sms_busy),
    ),
    "Occupancy": (
        Row(name=THEORETICAL),
        Row(name=ACHIEVED),
    ),
}

# Metrics that are not shown, but compared with predictions (`harness.results.claims`).
CLAIMED = (STORES, SHARED_STORES, SHARED_MATRICES)
# The metrics that ncu is asked for: all that are shown, and those from which values are derived.
METRICS: tuple[str, ...] = tuple(
    dict.fromkeys(
        [
            *(row.name for rows in SECTIONS.values() for row in rows if row.derived is None),
            *(LOAD_SECTORS, SMS_BUSY, ELAPSED, SMS, CLOCK),
            *CLAIMED,
            *(_LIMIT + name for name in LIMITS),
            *map(stall, STALLS),
        ]
    )
)
# Metrics that come with a section of ncu and cannot be asked for by name.
SECTION_METRICS = (SECTORS, SECTORS_IDEAL, PASSES, PASSES_IDEAL)
