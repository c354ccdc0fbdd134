"""Measurements of one kernel and size, each on operands at other addresses -> one row.

Where matrices lie decides which channels of memory and slices of the L2 cache serve which of their tiles. A
kernel's time may differ by some percent for it, from run to run, while within each run it varies by tenths
of a percent: an interval from a single placement does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

import numpy as np

from harness.driver import Buffer, Context
from harness.errors import OutOfMemory
from harness.measure import Measurement, Place
from harness.sampling import Pair, Samples
from harness.stats import pooled_ratio
from harness.verify import Verdict

_APART = 0.01  # beyond this, placements are said to differ
_PAGE = 2 << 20  # bytes; device memory comes in pages of that size
_MOST_PAGES = 32


def displacing(context: Context, count: int, owned: ExitStack, *, seed: int) -> Iterator[int]:
    """The numbers of `count` placements. Between two of them memory is taken, which `owned` frees, so that
    what is allocated anew gets other pages.
    """
    for number, pages in enumerate(np.random.default_rng(seed).integers(1, _MOST_PAGES, count)):
        if number > 0:
            with suppress(OutOfMemory):
                owned.enter_context(Buffer(context, int(pages) * _PAGE))
        yield number


def merged(rounds: Iterable[Sequence[Measurement]]) -> Iterator[Measurement]:
    """The rows of several rounds, those of a label as one, in the order in which they first came."""
    rows: dict[str, list[Measurement]] = {}
    for row in (row for found in rounds for row in found):
        rows.setdefault(row.label, []).append(row)
    return map(_merged, rows.values())


def _merged(rows: Sequence[Measurement]) -> Measurement:
    """Whatever went wrong in a placement is what became of all; otherwise all of their samples, and a ratio
    whose interval is of the placements.
    """
    samples = [row.samples for row in rows if row.samples is not None]
    if len(samples) < len(rows) or len(rows) == 1:
        return next((row for row in rows if row.failed), rows[0])
    pairs = [row.pair for row in rows if row.pair is not None]
    ratios = [row.ratio.estimate for row in rows if row.ratio is not None]
    places = tuple(
        Place(
            seconds=row.samples.summary.median,
            baseline=row.pair.baseline.summary.median if row.pair else None,
            ratio=row.ratio.estimate if row.ratio else None,
        )
        for row in rows
        if row.samples is not None
    )
    # Notes that differ in their numbers only are one.
    notes = {re.sub(r"\d[\d.]*", "", note): note for row in rows for note in row.notes}
    if note := _apart(rows[0].against, places):
        notes[""] = note
    return replace(
        rows[0],
        before=_worst(row.before for row in rows),
        after=_worst(row.after for row in rows),
        samples=_samples(samples),
        pair=_pair(pairs) if pairs else None,
        ratio=pooled_ratio(ratios) if len(ratios) == len(rows) else None,
        places=places,
        notes=tuple(notes.values()),
    )


def _apart(against: str, places: Sequence[Place]) -> str:
    """What to say of times that depend on where the operands lie; empty where they do not."""
    own = [place.seconds for place in places]
    others = [place.baseline for place in places if place.baseline is not None]
    differ = [
        f"{name}{min(times) * 1e6:.2f} to {max(times) * 1e6:.2f} us"
        for name, times in (("", own), (f"{against} ", others))
        if times and max(times) > (1 + _APART) * min(times)
    ]
    return f"by where its operands lay, {' and '.join(differ)}" if differ else ""


def _worst(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    return max((v for v in verdicts if v is not None), key=lambda v: v.worst, default=None)


def _samples(parts: Sequence[Samples]) -> Samples:
    return Samples(
        batches=tuple(batch for part in parts for batch in part.batches),
        stopped=parts[-1].stopped,
        discarded=tuple(reason for part in parts for reason in part.discarded),
    )


def _pair(parts: Sequence[Pair]) -> Pair:
    return Pair(
        candidate=_samples([part.candidate for part in parts]),
        baseline=_samples([part.baseline for part in parts]),
        order=tuple(block for part in parts for block in part.order),
    )
