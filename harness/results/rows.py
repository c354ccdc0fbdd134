"""The row of a result: one type from the measurement to tables, files and back.

A row is a JSON object as it is: what `harness.results.encode` makes of a measurement is what is printed,
written, read again and compared. Times are seconds, clocks Hz, rates FLOP/s and bytes/s, sizes bytes, and
shares and ratios fractions. A key may be missing where a row was not timed, was only verified or emulated, or
was written by an older harness; a value is None where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from harness.bench.stats import Interval


class Ratio(TypedDict):
    """A 95% interval."""

    low: float
    estimate: float
    high: float


class Choice(TypedDict, total=False):
    """The kernel that the dispatcher took, and in `others` those beside it."""

    kernel: str
    params: dict[str, int]
    label: str
    others: list[str]


class Reading(TypedDict):
    """The median of NVML's readings: MHz, watts, degrees Celsius."""

    sm_mhz: int
    power: float
    temperature: int
    throttle: Sequence[str]


class PairRow(TypedDict, total=False):
    """Runs in turn: block i of `order` took the i-th two batches of either side (median seconds of each)."""

    order: list[str]
    candidate: list[float]
    baseline: list[float]
    sm_hz: dict[str, float | None]


class Row(TypedDict, total=False):
    """One kernel at one size."""

    # The kernel and its machine code
    kernel: str
    params: dict[str, int]
    chosen: Choice | None
    arch: str
    compiler: str
    problem: str
    dtype: str | None
    tile: list[int]
    block: list[int]
    registers: int
    shared: int
    occupancy: float
    occupancy_limiter: str
    spills: int
    intensity: float | None  # FLOP a byte loaded from global memory
    sass: dict[str, int] | None  # instructions by opcode, and `bytes` of code
    source_sha256: str
    cubin_sha256: str
    sass_sha256: str | None

    # The size, and whether the result was right
    shape: str
    axes: dict[str, Any]
    status: str
    detail: str
    error_over_bound: float | None
    verdict: dict[str, Any] | None
    repeats: dict[str, Any] | None
    tensor_instructions: int | None

    # Times
    regime: str | None
    seconds: float | None  # the median; `mean` and `stdev` are of the same samples
    mean: float | None
    stdev: float | None
    noise: float | None
    samples: int | None
    stopped: str | None
    wall: float | None
    cycles: float | None
    sm_hz: float | None
    flops_rate: float | None
    bandwidth: float | None
    algorithm: str | None
    notes: list[str]
    discarded: list[str]
    device: Reading | None
    driver_occupancy: float | None
    sets: int
    bytes_touched: int
    rounds: list[dict[str, Any]]
    batches: list[dict[str, Any]]
    times: list[float]

    # Beside another: `against` is what it was timed in turn with, `ratio` this one's time over that one's
    against: str
    baseline: bool
    identical_sass: bool
    decision: str | None
    ratio: Ratio | None
    speedup: Ratio | None
    vs_cublas: float | None
    vs_peak: float | None
    of_ceiling: float | None
    pair: PairRow | None

    # In the emulator
    findings: list[dict[str, Any]] | None
    total: dict[str, Any] | None
    emulated: dict[str, float | None] | None
    lines: list[dict[str, Any]]
    tool: str  # of compute-sanitizer

    # In a tuning
    stage: str
    utc: str
    build_seconds: float
    hung: bool


class ProfileRow(TypedDict, total=False):
    """One launch under Nsight Compute: its counters by name, in base units."""

    label: str
    function: str
    grid: str
    block_text: str
    capability: str
    counters: dict[str, float]
    diagnoses: list[dict[str, Any]]
    hotspots: dict[str, Any] | None
    kernel: str
    params: dict[str, int]
    shape: str
    axes: dict[str, Any]
    dtype: str | None


def ratio(interval: Interval | None) -> Ratio | None:
    """Return the interval as it stands in a row."""
    if interval is None:
        return None
    return Ratio(low=interval.low, estimate=interval.estimate, high=interval.high)


def seconds(row: Row) -> float:
    """Return the median time. Raises ValueError for a row without one."""
    return _known(row, row.get("seconds"), "time")


def flops_rate(row: Row) -> float:
    """Return FLOP/s. Raises ValueError for a row without a rate."""
    return _known(row, row.get("flops_rate"), "rate")


def _known(row: Row, value: float | None, what: str) -> float:
    if value is None:
        raise ValueError(f"{label(row)} has no {what}")
    return value


def params_text(params: Mapping[str, int]) -> str:
    """Return ``TILE=64 COARSE=16``."""
    return " ".join(f"{name}={value}" for name, value in params.items())


def label(row: Row) -> str:
    """Return ``03_tiled TILE=16``, the label of what was built."""
    return f"{row['kernel']} {params_text(row['params'])}".rstrip()


def name(row: Row, *, params: bool) -> str:
    """Return the name of a row in a table: with its `params` where asked for, and with what the dispatcher
    chose.
    """
    if chosen := row.get("chosen"):
        return f"{row['kernel']} -> {chosen['label']}"
    return label(row) if params else row["kernel"]
