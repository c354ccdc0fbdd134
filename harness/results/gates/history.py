"""Find where times changed over many result files: change points with their intervals.

The series, logarithms of median times, one a file, is cut into the segments of constant level that have the
least squared error plus a penalty for each (optimal partitioning: Jackson et al., 2005). Then each change is
tested between its neighbours, and the least certain is dropped until all are certain. The test is the
likelihood ratio for a change of the mean at an unknown place (Worsley, 1979), held against the same values in
random order: a permutation test. It supposes no distribution, but that without a change the order of the
results is random: of a hundred such series one seems to have a change.

The interval of the place is a bootstrap of the residuals on both sides, that of the size Student's t with a
pooled variance. Both are of 95%.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.bench.stats import Interval, decide, power, student_t
from harness.errors import UsageError
from harness.results.record import Document
from harness.results.rows import label

LEAST = 11  # with fewer no change is certain enough: that 5 of 10 are low has a chance of 2 in 252
_CONFIDENCE = 0.99  # there are many series: at 95% one in twenty would seem to have changed
_DRAWS = 2000
_PENALTY = 3.0  # of a change, in log n times the variance: lower than what the test asks for


@dataclass(frozen=True, kw_only=True)
class Point:
    """One result: the median time in seconds, when it was made (UTC, ISO 8601), by which commit, its file."""

    seconds: float
    utc: str
    commit: str
    file: str


@dataclass(frozen=True, kw_only=True)
class ChangePoint:
    """A place in a series from which on the times are others.

    `at` is the index of the first point after the change; `first` and `last` bound it at 95%. `ratio` is the
    level after over the level before. `confidence` is the share of random orders that look less like a
    change. `status` is a decision of `harness.bench.stats`: SLOW, FAST, SAME or INCONCLUSIVE.
    """

    at: int
    first: int
    last: int
    ratio: Interval
    confidence: float
    status: str


@dataclass(frozen=True, kw_only=True)
class Series:
    """The times of one kernel at one size on one GPU, oldest first, and where they changed."""

    label: str
    problem: str
    shape: str
    regime: str
    gpu: str
    points: tuple[Point, ...]
    changes: tuple[ChangePoint, ...]

    @property
    def name(self) -> str:
        """The kernel, problem and size in one line."""
        return f"{self.label}, {self.problem} {self.shape}"


def series(contents: Mapping[str, Document], *, threshold: float) -> list[Series]:
    """Return the series of every kernel, size and GPU in files of ``harness bench``, by file name.

    Results are ordered by the time at which their file was made. Times of two GPUs, of other regimes or other
    input data are never one series. `threshold` is the difference that counts, 0.02 for 2%. Raises UsageError
    if no file has a time.
    """
    found: dict[tuple[str, ...], list[Point]] = {}
    for name, content in contents.items():
        meta = content["meta"]
        gpu = meta.get("gpu") or {}
        card = f"{gpu.get('name', '')} {gpu.get('uuid', '')}".strip()
        for row in content["rows"]:
            if not row.get("seconds") or row.get("status") != "ok":
                continue
            key = (
                label(row),
                row["problem"],
                row["shape"],
                row.get("regime") or "",
                card,
                str(row.get("seed")),
            )
            commit = str(meta.get("commit") or meta.get("code_sha256") or "")
            point = Point(seconds=row["seconds"], utc=str(meta.get("utc") or ""), commit=commit, file=name)
            found.setdefault(key, []).append(point)
    if not found:
        raise UsageError(
            "no file has times, which take a GPU",
            hint="harness history results/*.json, written by bench --json; without a GPU `harness compare "
            "OLD.json NEW.json` holds registers, instructions, sectors and ways against each other",
        )
    made = []
    for (kernel, problem, shape, regime, card, _), points in found.items():
        points.sort(key=lambda p: (p.utc, p.file))
        changes = change_points([p.seconds for p in points], threshold=threshold)
        made.append(
            Series(
                label=kernel,
                problem=problem,
                shape=shape,
                regime=regime,
                gpu=card,
                points=tuple(points),
                changes=tuple(changes),
            )
        )
    return made


def change_points(seconds: Sequence[float], *, threshold: float) -> list[ChangePoint]:
    """Return where a series of times in seconds changed, in order.

    Random orders and bootstraps are drawn from a fixed seed: the same series has the same changes.
    """
    values = np.log(np.asarray(seconds, dtype=np.float64))
    draw = np.random.default_rng(0)
    places = _partition(values) if len(values) >= LEAST else []
    while places:
        ends = [0, *places, len(values)]
        sure = [_confidence(values[a:c], draw) for a, c in zip(ends, ends[2:], strict=False)]
        if min(sure) >= _CONFIDENCE:
            break
        dropped = sure.index(min(sure))
        del places[dropped]
        for i in range(max(0, dropped - 1), min(dropped + 1, len(places))):  # its neighbours see more by now
            a, c = ([0, *places][i], [*places, len(values)][i + 1])
            places[i] = a + int(_place(values[None, a:c])[0])
    ends = [0, *places, len(values)]
    found = []
    for a, b, c in zip(ends, ends[1:], ends[2:], strict=False):
        first, last = _interval(values[a:c], b - a, draw)
        ratio = _ratio(values[a:b], values[b:c])
        found.append(
            ChangePoint(
                at=b,
                first=a + first,
                last=a + last,
                ratio=ratio,
                confidence=_confidence(values[a:c], draw),
                status=decide(ratio, threshold),
            )
        )
    return found


def _partition(values: NDArray[np.float64]) -> list[int]:
    """Return where the segments of the least penalised squared error begin, the first excepted.

    The variance is that of the differences of neighbours, by their median: changes hardly enter into it.
    """
    n = len(values)
    spread = float(np.median(np.abs(np.diff(values)))) / (0.6745 * math.sqrt(2))
    penalty = _PENALTY * math.log(n) * max(spread, 1e-6) ** 2
    sums, squares = (np.concatenate([[0.0], np.cumsum(v)]) for v in (values, values**2))
    best, start = np.zeros(n + 1), np.zeros(n + 1, dtype=int)
    best[0] = -penalty
    for end in range(1, n + 1):
        begin = np.arange(end)
        error = squares[end] - squares[begin] - (sums[end] - sums[begin]) ** 2 / (end - begin)
        costs = best[begin] + error + penalty
        start[end] = int(np.argmin(costs))
        best[end] = costs[start[end]]
    places: list[int] = []
    at = int(start[n])
    while at:
        places.insert(0, at)
        at = int(start[at])
    return places


def _confidence(values: NDArray[np.float64], draw: np.random.Generator) -> float:
    """Return one less the share of random orders of the values that look as much like a change as theirs."""
    centred = values - values.mean()
    if not np.any(np.abs(centred) > 1e-12):
        return 0.0  # equal values have no order
    shuffled = draw.permuted(np.tile(centred, (_DRAWS, 1)), axis=1)
    own, others = (_gains(v).max(axis=1) for v in (centred[None], shuffled))
    return 1 - float(1 + np.count_nonzero(others >= own * (1 - 1e-9))) / (_DRAWS + 1)


def _gains(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much each split of each row lowers the squared error: n1 n2 / n (mean1 - mean2)^2."""
    n = rows.shape[1]
    left = np.arange(1, n)
    sums = np.cumsum(rows, axis=1)[:, :-1]
    gap = sums / left - (rows.sum(axis=1, keepdims=True) - sums) / (n - left)
    return np.asarray(left * (n - left) / n * gap**2)


def _place(rows: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return for each row the length of the first part of the split with the least squared error."""
    return np.asarray(1 + np.argmax(_gains(rows), axis=1))


def _interval(values: NDArray[np.float64], at: int, draw: np.random.Generator) -> tuple[int, int]:
    """Return the first and the last index at which the change may lie, by a bootstrap of the residuals."""
    parts = values[:at], values[at:]
    drawn = [
        part.mean() + draw.choice(part - part.mean(), size=(_DRAWS, len(part)), replace=True)
        for part in parts
    ]
    low, high = np.quantile(_place(np.hstack(drawn)), [0.025, 0.975], method="nearest")
    return min(at, int(low)), max(at, int(high))


def _ratio(before: NDArray[np.float64], after: NDArray[np.float64]) -> Interval:
    """Return the ratio of the levels, geometric means, with Student's interval of two samples."""
    n, m = len(before), len(after)
    estimate = float(after.mean() - before.mean())
    squares = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    half = student_t(n + m - 2) * math.sqrt(squares / (n + m - 2) * (1 / n + 1 / m))
    return Interval(low=power(estimate - half), estimate=power(estimate), high=power(estimate + half))


def history_record(found: Sequence[Series]) -> list[dict[str, Any]]:
    """Return the series as rows of a result file."""
    return [
        {
            "label": s.label,
            "problem": s.problem,
            "shape": s.shape,
            "regime": s.regime,
            "gpu": s.gpu,
            "points": [
                {"seconds": p.seconds, "utc": p.utc, "commit": p.commit, "file": p.file} for p in s.points
            ],
            "changes": [
                {
                    "at": c.at,
                    "first": c.first,
                    "last": c.last,
                    "ratio": {"low": c.ratio.low, "estimate": c.ratio.estimate, "high": c.ratio.high},
                    "confidence": c.confidence,
                    "status": c.status,
                }
                for c in s.changes
            ],
        }
        for s in found
    ]
