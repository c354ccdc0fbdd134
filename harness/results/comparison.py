"""Compare two result files: which rows became faster or slower, or why that cannot be said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.bench.stats import INCONCLUSIVE, SLOW, Interval, decide, unpaired_ratio
from harness.errors import UsageError
from harness.results.record import Document
from harness.results.rows import Row, label

FAILED = "FAILED"  # the row had a time in the first file and has none in the second
_CLOCK = 0.01  # how far the SM clocks of two rows may differ
_KEPT = {  # what must be the same in both runs, and what it is called
    ("gpu", "uuid"): "GPU",
    ("gpu", "math_mode"): "math mode",
    ("gpu", "cublas"): "cuBLAS",
    ("seed",): "input data (seed)",
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One row that both files have.

    `ratio` is a ratio of times, the second file's over the first's; None without samples. `status` is a
    decision of `stats`, or FAILED. `identical` is True if both ran the same code, so that the difference is
    noise.
    """

    label: str
    shape: str
    reference: Row
    candidate: Row
    ratio: Interval | None
    status: str
    identical: bool

    @property
    def regressed(self) -> bool:
        """True if the row failed, or became slower with other code than before."""
        return self.status == FAILED or (self.status == SLOW and not self.identical)

    @property
    def unclear(self) -> bool:
        """True if the difference cannot be decided, and the code is not the same."""
        return self.status == INCONCLUSIVE and not self.identical


def compare(
    reference: Document, candidate: Document, *, threshold: float, force: bool = False
) -> list[Difference]:
    """Return the difference of every row that both files have and the first has timed, in the second's order.

    `threshold` is the difference that counts, 0.02 for 2%. Raises UsageError if no such row exists, or,
    unless `force` is set, if the runs are `incomparable`.
    """
    old = {_key(r): r for r in reference["rows"]}
    pairs = [(old[_key(r)], r) for r in candidate["rows"] if _key(r) in old]
    timed = [(a, b) for a, b in pairs if a.get("seconds")]
    if not timed:
        raise UsageError(
            "the two files have no measured row in common: kernel, parameters and size must agree"
        )
    if not force and (reasons := list(incomparable(reference["meta"], candidate["meta"], timed))):
        raise UsageError(
            "these runs cannot be compared: " + "; ".join(reasons),
            hint="--force compares them all the same",
        )
    return [_difference(a, b, threshold) for a, b in timed]


def incomparable(a: Document, b: Document, pairs: Sequence[tuple[Row, Row]]) -> Iterator[str]:
    """Yield each difference between the two runs that changes times whatever the kernels do.

    `a` and `b` are the `meta` of two documents, `pairs` their common rows. Differences are another GPU, math
    mode, cuBLAS, seed or regime, and SM clocks that are more than 1% apart.
    """
    for path, name in _KEPT.items():
        x, y = _at(a, path), _at(b, path)
        if x != y:
            yield f"another {name}: {x} and {y}"
    regimes = {(x.get("regime"), y.get("regime")) for x, y in pairs if y.get("seconds")}
    for x, y in sorted((x, y) for x, y in regimes if x != y):
        yield f"another regime: {x} and {y}"
    for x, y in pairs:
        f, g = _clock(x), _clock(y)
        if f and g and abs(f - g) > _CLOCK * max(f, g):
            yield f"another SM clock, {f / 1e6:.0f} and {g / 1e6:.0f} MHz ({label(x)}, {x['shape']})"
            return


def _clock(row: Row) -> float | None:
    """Return the row's SM clock in Hz, as measured, or as NVML reported it in files that lack that."""
    device = row.get("device")
    return row.get("sm_hz") or (device.get("sm_mhz", 0) * 1e6 if device else None)


def _difference(a: Row, b: Row, threshold: float) -> Difference:
    """Return the difference of two rows."""
    ratio = unpaired_ratio(b["times"], a["times"], seed=0) if b.get("seconds") else None
    status = FAILED if not b.get("seconds") else decide(ratio, threshold) if ratio else INCONCLUSIVE
    return Difference(
        label=label(b),
        shape=b["shape"],
        reference=a,
        candidate=b,
        ratio=ratio,
        status=status,
        identical=_same_code(a, b),
    )


def _same_code(a: Row, b: Row) -> bool:
    """Return True if both rows ran the same code in the same launch configuration."""
    if "sass_sha256" not in a and "sass_sha256" not in b:
        return a.get("algorithm") == b.get("algorithm")  # rows of a library, whose version is the same
    if any((row.get("chosen") or {}).get("others") for row in (a, b)):
        return False  # further launches are recorded by name only, without hashes
    keys = ("sass_sha256", "block", "tile", "shared")
    return a.get("sass_sha256") is not None and all(a.get(k) == b.get(k) for k in keys)


def _key(row: Row) -> tuple[Any, ...]:
    """Return what identifies a row in both files."""
    return row["kernel"], tuple(sorted(row["params"].items())), row.get("shape")


def _at(meta: Document, path: tuple[str, ...]) -> Any:
    """Return the value at a path of keys; None if it is missing."""
    value: Any = meta
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
