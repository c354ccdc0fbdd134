"""The row of a result: one type from measuring to tables and files and back.

A row is a JSON object: what `harness.results.encode` makes of a measurement is printed, written, read again
and compared as it is. Times are in seconds, clocks in Hz, rates in FLOP/s and bytes/s, sizes in bytes, and
shares and ratios are fractions. A key may be missing if the row was not timed, was only verified or emulated,
or was written by an older harness. A value is None if there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Required, TypedDict

from harness.support.typed import Above

if TYPE_CHECKING:
    from harness.bench.stats import Interval

Positive = Annotated[float, Above(0)]
Count = Annotated[int, Above(-1)]
Axis = Annotated[float, Above(-(2**48), 2**48)]  # a size or a factor of a problem


class Ratio(TypedDict):
    """A ratio of times or speeds with its 95% confidence interval."""

    low: Positive
    estimate: Positive
    high: Positive


class Choice(TypedDict, total=False):
    """The kernel that the dispatcher chose; `others` names the kernels that it launches beside it."""

    kernel: str
    params: dict[str, int]
    label: str
    others: list[str]


class Reading(TypedDict, total=False):
    """A summary of NVML's readings: median SM clock (MHz), median power (W) and highest temperature (degrees
    Celsius).

    `throttle` has every reason that was seen.
    """

    sm_mhz: float
    power: float
    temperature: float
    throttle: Sequence[str]


class PairRow(TypedDict, total=False):
    """Batches of two codes that were timed in turn, with the median seconds of each batch.

    Block i of `order` (``ABBA`` or ``BAAB``) took batches 2i and 2i + 1 of either side. `sm_hz` has the
    median SM clock of ``candidate`` and ``baseline``.
    """

    order: list[str]
    candidate: list[Positive]
    baseline: list[Positive]
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
    sass: dict[str, int] | None  # number of instructions by opcode; key `bytes`: size of the code
    source_sha256: str
    cubin_sha256: str
    sass_sha256: str | None
    gpu: str  # the UUID of the one that measured it, where there were several

    # The size, and whether the result was right
    shape: str
    axes: dict[str, Axis | None]
    status: str
    detail: str
    error_over_bound: float | None
    verdict: dict[str, Any] | None
    repeats: dict[str, Any] | None
    tensor_instructions: int | None

    # Times
    regime: str | None
    protections: list[str]  # what keeps a time from being that of a launch which did not do its work
    seed: int | None  # of the data that is verified by element
    data_key: str | None  # what the data of timed launches was made from
    seconds: Positive | None  # the median; `mean` and `stdev` are of the same samples
    mean: Positive | None
    stdev: float | None
    noise: float | None
    samples: Count | None
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
    times: list[Positive]

    # Comparison: `against` is what it was timed in turn with, `ratio` this row's time over that one's
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
    notices: list[dict[str, Any]] | None
    output: str | None
    schedules: list[str]
    total: dict[str, Any] | None
    emulated: dict[str, float | None] | None
    lines: list[dict[str, Any]]
    tool: str  # the tool of compute-sanitizer

    # In a tuning
    stage: str
    utc: str
    build_seconds: float
    hung: bool


class LoopRow(TypedDict, total=False):
    """A loop of machine code: its header's address, nesting depth, instructions, and whether it is hot."""

    address: int
    depth: int
    hot: bool
    instructions: int
    mix: dict[str, int]


class CodeRow(TypedDict, total=False):
    """The fields of one code that ``harness sass`` writes, beside those of a `Row`."""

    label: str
    arch: str
    registers: int | None
    shared: int | None
    spills: int | None
    occupancy: float | None
    mix: dict[str, int]
    loops: list[LoopRow]
    expectations: list[dict[str, Any]]


class Spot(TypedDict):
    """A source line or an instruction at which warps were sampled; see `harness.instruments.hotspots`."""

    place: str
    text: str
    samples: Annotated[int, Above(0)]
    reason: str
    because: Count


class Spots(TypedDict):
    """The hottest source lines and instructions of a launch."""

    samples: Annotated[int, Above(0)]
    lines: list[Spot]
    instructions: list[Spot]


class DiagnosisRow(TypedDict):
    """One rule that holds for a launch; see `harness.instruments.diagnosis`."""

    kind: str
    says: str
    cure: str
    evidence: dict[str, float]


class ProfileRow(TypedDict, total=False):
    """One launch under Nsight Compute, with its counters by metric name, in base units."""

    label: str
    function: str
    grid: str
    block_text: str
    capability: str
    counters: dict[str, float]
    diagnoses: list[DiagnosisRow]
    hotspots: Spots | None
    kernel: str
    params: dict[str, int]
    shape: str
    axes: dict[str, Axis | None]
    dtype: str | None


class OutcomeRow(TypedDict, total=False):
    """A prediction of a kernel's file, by counts and times or by ncu."""

    prediction: Required[str]
    value: Required[float | None]
    limit: Required[float | None]
    holds: Required[bool | None]
    reason: str
    interval: Ratio | None
    record: str


class ClaimRow(TypedDict, total=False):
    """The claim of a kernel's file, with the figures that its predictions were held against."""

    kernel: Required[str]
    params: Required[dict[str, int]]
    label: str
    title: Required[str]
    claim: Required[str]
    figures: Required[dict[str, float | None]]
    outcomes: Required[list[OutcomeRow]]
    measured: Required[list[OutcomeRow]]


class CeilingRow(TypedDict, total=False):
    """A measured ceiling of a GPU, in FLOP/s or bytes/s."""

    rate: Positive


class Gpu(TypedDict, total=False):
    """The GPU of a record: sizes in bytes, clocks in Hz; see `harness.driver.Device`."""

    name: str
    uuid: str
    ordinal: Count
    capability: list[int]
    driver: str
    sms: Annotated[int, Above(0)]
    clock_hz: Positive
    memory_clock_hz: Positive
    bus_bits: Positive
    cublas: str
    math_mode: str
    ceilings: dict[str, CeilingRow | None] | None


class Meta(TypedDict, total=False):
    """The circumstances of a record: command, time, versions, GPU; None where something is not known."""

    argv: list[str]
    utc: str
    seed: int | None
    commit: str | None
    code_sha256: str
    gpu: Gpu | str | None
    rule: dict[str, Any]


def ratio(interval: Interval | None) -> Ratio | None:
    """Return the interval as it stands in a row; None if there is none."""
    if interval is None:
        return None
    return Ratio(low=interval.low, estimate=interval.estimate, high=interval.high)


def seconds(row: Row) -> float:
    """Return the median time in seconds. Raises ValueError if the row has none."""
    return _known(row, row.get("seconds"), "time")


def flops_rate(row: Row) -> float:
    """Return the rate in FLOP/s. Raises ValueError if the row has none."""
    return _known(row, row.get("flops_rate"), "rate")


def _known(row: Row, value: float | None, what: str) -> float:
    """Return the value. Raises ValueError if it is None."""
    if value is None:
        raise ValueError(f"{label(row)} has no {what}")
    return value


def params_text(params: Mapping[str, int]) -> str:
    """Return parameters as text, ``TILE=64 COARSE=16``."""
    return " ".join(f"{name}={value}" for name, value in params.items())


def label(row: Row) -> str:
    """Return the kernel's name with its parameters, ``03_tiled TILE=16``, which is the label of its
    variant.
    """
    return f"{row['kernel']} {params_text(row['params'])}".rstrip()


def name(row: Row, *, params: bool) -> str:
    """Return the name of a row in a table: the kernel, followed by its parameters if `params` is set.

    For the dispatcher the name is followed by what it chose.
    """
    if chosen := row.get("chosen"):
        return f"{row['kernel']} -> {chosen['label']}"
    return label(row) if params else row["kernel"]
