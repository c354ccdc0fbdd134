"""Check the predictions in kernel files against what is counted, by the emulator or ncu, and recorded
times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from harness.bench.row import OK, Measurement
from harness.bench.stats import Interval, unpaired_ratio
from harness.emulator import Counts, Emulation
from harness.errors import HarnessError, UsageError
from harness.instruments import counters
from harness.kernels import catalog
from harness.kernels.prediction import FIGURES, RACES, SECONDS, Figures, Prediction
from harness.kernels.spec import Kernel, Variant
from harness.launch.builds import Built
from harness.launch.cublas import LABEL as CUBLAS
from harness.problems import checks
from harness.problems.protocol import Axes
from harness.problems.registry import resolve
from harness.results.record import Document
from harness.results.rows import ProfileRow, Row, seconds

Count = Callable[
    [Variant, Axes], Figures
]  # the figures of a variant at a size, at any size where it is empty
Runs = Mapping[str, Document]  # contents of result files, by file name

VERDICTS = {True: "held", False: "NOT HELD", None: "not known"}

_RACES = ("RAW hazard", "WAR hazard", "WAW hazard", "missing cp.async wait", "global race")
_BARRIER = re.compile(r"bar(rier)?(\.cta)?\.(sync|red|arrive)\b")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A prediction and what became of it.

    `kernel` is the variant's label. `value` is the predicted figure as counted or timed, and `limit` is what
    it was held against; either is None where it is not known. `holds` is None where that cannot be decided,
    and `reason` says why. For times the value is a ratio, with its `interval`, from the result file `record`.
    """

    kernel: str
    prediction: Prediction
    value: float | None = None
    limit: float | None = None
    holds: bool | None = None
    reason: str = ""
    interval: Interval | None = None
    record: str = ""


def outcomes(variant: Variant, count: Count, runs: Runs) -> list[Outcome]:
    """Return the outcome of every prediction in a variant's file.

    Predictions of times are checked by `runs` of ``harness bench``, the others by what `count` returns for
    the variant and for the one it is compared with. Raises UsageError for a prediction about a kernel, a
    parameter or a size that does not exist.
    """
    found = []
    for p in variant.kernel.predict:
        with _blamed(variant, p):
            ours = variant.kernel.variant(**{**variant.params, **p.params}) if p.params else variant
            if p.of == CUBLAS and p.of_params:
                raise UsageError(f"{CUBLAS} has no parameters", hint="leave out its 'with'")
            other = catalog.related(variant.kernel, p.of) if p.of not in ("", CUBLAS) else None
            theirs = other.variant(**p.of_params) if other else None
            timed = p.figure == SECONDS
            found.append(_timed(ours, theirs, p, runs) if timed else _counted(ours, theirs, p, count))
    return found


@contextmanager
def _blamed(variant: Variant, p: Prediction) -> Iterator[None]:
    """Name the prediction and its file in a UsageError that is raised inside."""
    try:
        yield
    except UsageError as e:
        raise UsageError(f"predict {p.text!r}: {e.what}", where=str(variant.kernel.path), hint=e.hint) from e


def _counted(variant: Variant, other: Variant | None, p: Prediction, count: Count) -> Outcome:
    """Check a prediction of a count. Raises UsageError for one about cuBLAS, of which nothing is counted."""
    if p.of == CUBLAS:
        raise UsageError(f"nothing counts {p.figure} of {CUBLAS}", hint="only its seconds are known")
    ours, why = _figures(count, variant, p)
    theirs, of_theirs = _figures(count, other, p) if other else (None, "")
    return Outcome(
        kernel=variant.label,
        prediction=p,
        value=ours.get(p.figure),
        limit=p.limit(theirs),
        holds=p.holds(ours, theirs),
        reason=why or of_theirs,
    )


def _figures(count: Count, variant: Variant, p: Prediction) -> tuple[Mapping[str, float], str]:
    """Return the figures that `count` gives, or none and why it failed."""
    try:
        return count(variant, p.at), ""
    except UsageError:
        raise
    except HarnessError as e:
        return {}, f"{variant.kernel.name}: {e.what}"


def _timed(variant: Variant, other: Variant | None, p: Prediction, runs: Runs) -> Outcome:
    """Check a prediction of a ratio of times by the first run that has both kernels, right and timed.

    Times of two different runs are never compared. If the interval contains the bound, the outcome is not
    known.
    """
    size = _size(variant.kernel, p.at)
    opponent = (other.kernel.name, other.stated, _size(other.kernel, p.at)) if other else (CUBLAS, {}, size)
    brief = other.brief if other else CUBLAS
    reason = f"no record of bench has {variant.brief} and {brief} at {size[0]}"
    for name, content in runs.items():
        a = _row(content, variant.kernel.name, variant.stated, size)
        b = _row(content, *opponent)
        if a is None or b is None:
            continue
        if wrong := [r for r in (a, b) if r["status"] != OK or not r.get("seconds")]:
            why = "not timed" if wrong[0]["status"] == OK else wrong[0]["status"]
            reason = f"{wrong[0]['kernel']} at {wrong[0]['shape']} in {name}: {why}"
            continue
        ratio = _ratio(a, b, other.label if other else CUBLAS)
        ends = {p.holds({SECONDS: end}, {SECONDS: 1.0}) for end in (ratio.low, ratio.high)}
        across = f"the 95% interval, {ratio.low:.4g} to {ratio.high:.4g}, lies across {p.bound:g}"
        return Outcome(
            kernel=variant.label,
            prediction=p,
            value=ratio.estimate,
            limit=p.bound,
            holds=ends.pop() if len(ends) == 1 else None,
            reason=across if len(ends) > 1 else "",
            interval=ratio,
            record=name,
        )
    return Outcome(kernel=variant.label, prediction=p, reason=reason)


def _size(kernel: Kernel, at: Axes) -> tuple[str, dict[str, Any]]:
    """Return the shape and the axes that a row of ``harness bench`` has at this size. Raises UsageError."""
    cls = resolve(kernel)
    if unknown := set(at) - set(cls.axes):
        raise UsageError(f"no axis {sorted(unknown)[0]!r}", hint=f"axes: {', '.join(cls.axes)}")
    problem = cls.from_axes(at)
    return problem.label, checks.axes(problem)


def _row(
    content: Document, name: str, params: Mapping[str, int], size: tuple[str, dict[str, Any]]
) -> Row | None:
    """Return the row of this kernel at this size; or the dispatcher's row, if that is the kernel it chose."""
    wanted = name, dict(params), *size
    for row in content["rows"]:
        ran = row.get("chosen") or row
        if (ran.get("kernel"), ran.get("params"), row.get("shape"), row.get("axes")) == wanted:
            found: Row = row.copy()
            return found
    return None


def _ratio(a: Row, b: Row, label: str) -> Interval:
    """Return the time of `a` over that of `b`.

    It is the recorded ratio if they were timed in turn, else the ratio of their samples, else of the two
    medians, with an interval of no width.
    """
    if (paired := a.get("ratio")) and a.get("against") == label:
        return Interval(**paired)
    plain = seconds(a) / seconds(b)
    apart = unpaired_ratio(a.get("times") or [], b.get("times") or [], seed=0)
    return apart or Interval(low=plain, estimate=plain, high=plain)


def predicts_races(kernel: Kernel) -> bool:
    """Return True if the kernel predicts races: looking for them takes the emulator longer than counting."""
    return any(p.figure == RACES for p in kernel.predict)


def figures(built: Built, row: Measurement | None) -> dict[str, float]:
    """Return those of `FIGURES` that are known of a build.

    `row` is the kernel's row from the emulator, None if it was not emulated; it must have been checked for
    races if the kernel `predicts_races`.
    """
    run: Emulation | None = row.emulation if row is not None else None
    known: dict[str, Any] = {
        "registers": built.cubin.resources.registers,
        "shared": built.cubin.shared,
        "occupancy": built.occupancy.fraction,
    }
    if run is not None:
        counts: Counts = run.total
        known |= {name: getattr(counts, name) for name in FIGURES if hasattr(counts, name)}
        known["barriers"] = sum(c.executions for c in run.instructions if _BARRIER.match(c.opcode))
        if predicts_races(built.variant.kernel):
            known[RACES] = sum(f.kind in _RACES for f in run.findings)
    return {name: known[name] for name in FIGURES if known.get(name) is not None}


def measured(profile: ProfileRow, *, copies: bool = False) -> dict[str, float]:
    """Return those of `FIGURES` that ncu counted in a launch.

    The wavefronts of shared memory, and what follows from them, are left out where the kernel `copies` by
    cp.async: ncu counts a copy as one pass for each line of global memory that it reads. (Rung 21 on an H200:
    6 on average, which is 8 for eight rows of 64 bytes and 4 for whole lines, while the hardware's counter of
    bank conflicts is zero.) global_bytes, the bytes that all threads ask for, is left out as well:
    smsp__sass_data_bytes_mem_global counts bytes that lanes share only once, for rung 02 on an H200 33 of 64.
    """
    values = profile["counters"]

    def total(*names: str) -> float | None:
        return sum(values[n] for n in names) if all(n in values for n in names) else None

    def ratio(over: float | None, under: float | None) -> float | None:
        return over / under if over is not None and under else None

    passes, ideal = (None if copies else values.get(n) for n in (counters.PASSES, counters.PASSES_IDEAL))
    sectors, requests = values.get(counters.SECTORS), total(counters.LOADS, counters.STORES)
    known = {
        "global_requests": requests,
        "sectors": sectors,
        "sectors_per_request": ratio(sectors, requests),
        "shared_requests": total(counters.SHARED_LOADS, counters.SHARED_STORES, counters.SHARED_MATRICES),
        "wavefronts": passes,
        "conflicts": None if passes is None or ideal is None else passes - ideal,
        "ways": ratio(passes, ideal),
        "registers": values.get(counters.REGISTERS),
    }
    return {name: value for name, value in known.items() if value is not None}


def profiled(variant: Variant, at: Axes, profiles: Sequence[ProfileRow], *, copies: bool = False) -> Figures:
    """Return the figures that ncu counted for a variant; empty if it was not profiled.

    The profile must be of the size `at`, or of any size where that is empty. `copies` is that of `measured`.
    """
    for row in profiles:
        labelled = row.get("label") == variant.label
        same = (row.get("kernel"), row.get("params")) == (variant.kernel.name, variant.stated)
        if (same or labelled) and (not at or _size(variant.kernel, at)[0] == row.get("shape")):
            return measured(row, copies=copies)
    return {}


def claim_record(
    variant: Variant, known: Figures, found: Sequence[Outcome], by_ncu: Sequence[Outcome]
) -> Document:
    """Return the record of a kernel's claim: its figures, and each prediction's outcome by them and by
    ncu.
    """
    return {
        "kernel": variant.kernel.name,
        "params": variant.stated,
        "label": variant.label,
        "title": variant.kernel.title,
        "claim": variant.kernel.claim,
        "figures": dict(known),
        "outcomes": [_outcome_record(o) for o in found],
        "measured": [_outcome_record(o) for o in by_ncu],
    }


def _outcome_record(o: Outcome) -> Document:
    """Return an outcome as it stands in a record."""
    return {
        "prediction": o.prediction.text,
        "value": o.value,
        "limit": o.limit,
        "holds": o.holds,
        "reason": o.reason,
        "interval": asdict(o.interval) if o.interval else None,
        "record": o.record,
    }
