"""Two kernels, or a kernel and its claim -> what differs between them, in figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import catalog
from harness.builds import Built
from harness.emulator import Counts
from harness.errors import HarnessError, UsageError
from harness.measure import Measurement
from harness.predict import FIGURES, Figures, Prediction
from harness.record import Record
from harness.spec import Variant
from harness.stats import Interval, unpaired_ratio

Count = Callable[[Variant], Figures]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A prediction, the figure and what it was held against; `holds` is None where one is not known."""

    kernel: str
    prediction: Prediction
    value: float | None
    limit: float | None
    holds: bool | None


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What records hold of two kernels: `ratio` of B's time over A's in `shape`, of runs not in turn."""

    shape: str
    seconds: tuple[float, float]
    ratio: Interval | None
    source: str


def figures(built: Built, row: Measurement | None) -> dict[str, float]:
    """Those of `FIGURES` that are known; `row` is the kernel's in the emulator."""
    counts: Counts | None = row.emulation.total if row is not None and row.emulation is not None else None
    known: dict[str, Any] = {
        "registers": built.cubin.resources.registers,
        "shared": built.cubin.shared,
        "occupancy": built.occupancy.fraction,
    }
    if counts is not None:
        known |= {name: getattr(counts, name) for name in FIGURES if hasattr(counts, name)}
    return {name: known[name] for name in FIGURES if known.get(name) is not None}


def outcomes(variant: Variant, count: Count) -> list[Outcome]:
    """Every prediction of a kernel's file, checked with what `count` says of it and of those it names."""
    found = []
    for p in variant.kernel.predict:
        try:
            ours = count(variant)
            theirs = count(catalog.kernel(p.of).variant()) if p.of else None
        except UsageError as e:
            raise UsageError(
                f"predict {p.text!r}: {e.what}", where=str(variant.kernel.path), hint=e.hint
            ) from e
        except HarnessError:
            ours, theirs = {}, None
        found.append(
            Outcome(
                kernel=variant.label,
                prediction=p,
                value=ours.get(p.figure),
                limit=p.limit(theirs),
                holds=p.holds(ours, theirs),
            )
        )
    return found


def recorded(a: Variant, b: Variant, content: Mapping[str, Any], source: str) -> Recorded | None:
    """Both kernels' times at the largest size of which a file of ``harness bench`` has both; None without."""
    rows: dict[str, dict[int, Record]] = {}
    for row in content["rows"]:
        for side, variant in enumerate((a, b)):
            if _is(variant, row) and row.get("seconds"):
                rows.setdefault(row["shape"], {})[side] = row
    both = [(shape, sides) for shape, sides in rows.items() if len(sides) == 2]
    if not both:
        return None
    shape, sides = max(both, key=lambda item: item[1][0]["seconds"])
    return Recorded(
        shape=shape,
        seconds=(sides[0]["seconds"], sides[1]["seconds"]),
        ratio=unpaired_ratio(sides[1]["times"], sides[0]["times"], seed=0),
        source=source,
    )


def profiled(variant: Variant, contents: Sequence[Mapping[str, Any]]) -> Record | None:
    """The kernel's row in the first file of ``harness profile`` that has one."""
    rows = (row for content in contents if content.get("kind") == "profile" for row in content["rows"])
    return next((row for row in rows if _is(variant, row) or row.get("label") == variant.label), None)


def _is(variant: Variant, row: Record) -> bool:
    return bool(row.get("kernel") == variant.kernel.name and row.get("params") == dict(variant.params))
