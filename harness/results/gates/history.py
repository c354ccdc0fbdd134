"""Find where times changed over many result files: change points with their intervals.

The method is binary segmentation (Scott and Knott, 1974): where a series has changed, it is split at the
place with the least squared error, and both parts are searched in the same way; then each change is tested
again between its neighbours. The test is the likelihood ratio for a change of the mean at an unknown place
(Worsley, 1979), held against the same values in random order: a permutation test, which supposes no
distribution. It works on logarithms of median times, one a file, and supposes that without a change their
order is random.

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

from harness.bench.stats import Interval, decide, student_t
from harness.errors import UsageError
from harness.results.record import Document
from harness.results.rows import label

LEAST = 8  # with fewer points no change reaches the confidence: half of them low has a chance of 2 in 70
_CONFIDENCE = 0.95
_DRAWS = 1000


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
        raise UsageError("no file has times", hint="harness history results/*.json, written by bench --json")
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
    places = _split(values, 0, draw)
    while places:  # a change that was found beside another one may not stand on its own
        ends = [0, *places, len(values)]
        kept = [
            b
            for a, b, c in zip(ends, ends[1:], ends[2:], strict=False)
            if _confidence(values[a:c], draw) >= _CONFIDENCE
        ]
        if kept == places:
            break
        places = kept
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


def _split(values: NDArray[np.float64], offset: int, draw: np.random.Generator) -> list[int]:
    """Return the indices of changes, found by splitting again and again; `offset` is added to each."""
    if len(values) < LEAST or _confidence(values, draw) < _CONFIDENCE:
        return []
    at = int(_place(values[None])[0])
    return [
        *_split(values[:at], offset, draw),
        offset + at,
        *_split(values[at:], offset + at, draw),
    ]


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
    return Interval(
        low=math.exp(estimate - half), estimate=math.exp(estimate), high=math.exp(estimate + half)
    )


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
