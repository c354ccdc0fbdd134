"""A kernel's claim -> each of its predictions, held or not: by what is counted, by ncu, by recorded times."""

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
from harness.problems.protocol import Axes
from harness.problems.registry import resolve
from harness.results.record import Document
from harness.results.rows import ProfileRow, Row, seconds

Count = Callable[[Variant, Axes], Figures]  # at a size; at any where it is empty
Runs = Mapping[str, Document]  # the content of result files by name

VERDICTS = {True: "held", False: "NOT HELD", None: "not known"}

_RACES = ("RAW hazard", "WAR hazard", "WAW hazard", "missing cp.async wait", "global race")
_BARRIER = re.compile(r"bar(rier)?(\.cta)?\.(sync|red|arrive)\b")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A prediction, the figure and what it was held against; `holds` is None where that is not known, and
    `reason` says why. Of times the figure is a ratio, with its `interval`, from the result file `record`.
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
    """Every prediction of a kernel's file: those of times by `runs` of ``harness bench``, the others by what
    `count` says of the kernel and of those it names. Raises UsageError for a prediction about a kernel, a
    parameter or a size that there is not.
    """
    found = []
    for p in variant.kernel.predict:
        with _blamed(variant, p):
            ours = variant.kernel.variant(**{**variant.params, **p.params}) if p.params else variant
            if p.of == CUBLAS and p.of_params:
                raise UsageError(f"{CUBLAS} has no parameters", hint="leave out its 'with'")
            theirs = catalog.kernel(p.of).variant(**p.of_params) if p.of not in ("", CUBLAS) else None
            timed = p.figure == SECONDS
            found.append(_timed(ours, theirs, p, runs) if timed else _counted(ours, theirs, p, count))
    return found


@contextmanager
def _blamed(variant: Variant, p: Prediction) -> Iterator[None]:
    try:
        yield
    except UsageError as e:
        raise UsageError(f"predict {p.text!r}: {e.what}", where=str(variant.kernel.path), hint=e.hint) from e


def _counted(variant: Variant, other: Variant | None, p: Prediction, count: Count) -> Outcome:
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
    """What is counted, or why nothing is."""
    try:
        return count(variant, p.at), ""
    except UsageError:
        raise
    except HarnessError as e:
        return {}, f"{variant.kernel.name}: {e.what}"


def _timed(variant: Variant, other: Variant | None, p: Prediction, runs: Runs) -> Outcome:
    """By the first run that has both, right and timed: nothing compares times of two runs."""
    size = _size(variant.kernel, p.at)
    opponent = (other.kernel.name, other.params, _size(other.kernel, p.at)) if other else (CUBLAS, {}, size)
    brief = other.brief if other else CUBLAS
    reason = f"no record of bench has {variant.brief} and {brief} at {size[0]}"
    for name, content in runs.items():
        a = _row(content, variant.kernel.name, variant.params, size)
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
    """What a row of ``harness bench`` has as shape and axes."""
    cls = resolve(kernel)
    if unknown := set(at) - set(cls.axes):
        raise UsageError(f"no axis {sorted(unknown)[0]!r}", hint=f"axes: {', '.join(cls.axes)}")
    problem = cls.from_axes(at)
    return problem.label, {name: getattr(problem, name) for name in problem.axes}


def _row(
    content: Document, name: str, params: Mapping[str, int], size: tuple[str, dict[str, Any]]
) -> Row | None:
    """The kernel's; or the dispatcher's, where that is what it chose."""
    wanted = name, dict(params), *size
    for row in content["rows"]:
        ran = row.get("chosen") or row
        if (ran.get("kernel"), ran.get("params"), row.get("shape"), row.get("axes")) == wanted:
            found: Row = row.copy()
            return found
    return None


def _ratio(a: Row, b: Row, label: str) -> Interval:
    """A's time over B's: from turns that they took, else from the samples of either, else of two medians."""
    if (paired := a.get("ratio")) and a.get("against") == label:
        return Interval(**paired)
    plain = seconds(a) / seconds(b)
    apart = unpaired_ratio(a.get("times") or [], b.get("times") or [], seed=0)
    return apart or Interval(low=plain, estimate=plain, high=plain)


def predicts_races(kernel: Kernel) -> bool:
    """Whether the emulator has to look for them, which takes longer than counting."""
    return any(p.figure == RACES for p in kernel.predict)


def figures(built: Built, row: Measurement | None) -> dict[str, float]:
    """Those of `FIGURES` that are known; `row` is the kernel's in the emulator, which looked for races where
    the kernel `predicts_races`.
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
    """Those of `FIGURES` that ncu counted in a launch, by what it counts for each instruction.

    Nothing of shared memory's wavefronts where the kernel `copies` by cp.async: of a copy ncu counts a pass
    for each line of global memory that it comes from. (Rung 21 on an H200: 6 on average, which is 8 for eight
    rows of 64 bytes and 4 for whole lines, while the hardware's counter of bank conflicts says none.)
    And nothing of global_bytes, which is what all threads ask for: smsp__sass_data_bytes_mem_global counts
    once what lanes share, for rung 02 on an H200 33 bytes of 64.
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
    """What ncu counted of a kernel, at one size if that matters; empty where it was not profiled.

    `copies`: see `measured`.
    """
    for row in profiles:
        labelled = row.get("label") == variant.label
        same = (row.get("kernel"), row.get("params")) == (variant.kernel.name, dict(variant.params))
        if (same or labelled) and (not at or _size(variant.kernel, at)[0] == row.get("shape")):
            return measured(row, copies=copies)
    return {}


def claim_record(
    variant: Variant, known: Figures, found: Sequence[Outcome], by_ncu: Sequence[Outcome]
) -> Document:
    """A kernel's claim, what was counted of it, and each prediction's outcome by that and by ncu."""
    return {
        "kernel": variant.kernel.name,
        "params": dict(variant.params),
        "label": variant.label,
        "title": variant.kernel.title,
        "claim": variant.kernel.claim,
        "figures": dict(known),
        "outcomes": [_outcome_record(o) for o in found],
        "measured": [_outcome_record(o) for o in by_ncu],
    }


def _outcome_record(o: Outcome) -> Document:
    return {
        "prediction": o.prediction.text,
        "value": o.value,
        "limit": o.limit,
        "holds": o.holds,
        "reason": o.reason,
        "interval": asdict(o.interval) if o.interval else None,
        "record": o.record,
    }
