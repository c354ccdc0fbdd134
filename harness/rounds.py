"""Rounds of measuring one kernel and size, each from its operands on -> one row.

A time has modes. On an H200 a product of cuBLAS took 20.4 or 21.0 us, on the same operands and at one clock,
and stayed within 0.2% of either for as long as it was timed; which of the two it was changed whenever some
other kernel was launched for the first time. An interval from within one mode does not know of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

import numpy as np

from harness.driver import Buffer, Context, Stream
from harness.errors import OutOfMemory
from harness.fingerprint import Fingerprints
from harness.measure import Measurement, Round
from harness.sampling import Pair, Samples
from harness.stats import pooled_ratio
from harness.verify import Verdict

_APART = 0.01  # beyond this, rounds are said to differ
_PAGE = 2 << 20  # bytes; device memory comes in pages of that size
_MOST_PAGES = 32


def unsettled(context: Context, stream: Stream, count: int, owned: ExitStack, *, seed: int) -> Iterator[int]:
    """The numbers of `count` rounds. Between two of them happens what changes modes: memory is taken, which
    `owned` frees, so that what is allocated anew lies elsewhere; and, as a coin falls, a kernel is launched
    for the first time.
    """
    rng = np.random.default_rng(seed)
    for number in range(count):
        if number > 0:
            with suppress(OutOfMemory):
                owned.enter_context(Buffer(context, int(rng.integers(1, _MOST_PAGES)) * _PAGE))
                if rng.integers(2):
                    with Fingerprints(context) as fresh, Buffer(context, _PAGE) as anything:
                        tuple(fresh.of([anything], stream))
        yield number


def merged(rounds: Iterable[Sequence[Measurement]]) -> Iterator[Measurement]:
    """The rows of several rounds, those of a label as one, in the order in which they first came."""
    rows: dict[str, list[Measurement]] = {}
    for row in (row for found in rounds for row in found):
        rows.setdefault(row.label, []).append(row)
    return map(_merged, rows.values())


def _merged(rows: Sequence[Measurement]) -> Measurement:
    """Whatever went wrong in a round is what became of all; otherwise all of their samples, and a ratio whose
    interval is of the rounds.
    """
    samples = [row.samples for row in rows if row.samples is not None]
    if len(samples) < len(rows) or len(rows) == 1:
        return next((row for row in rows if row.failed), rows[0])
    pairs = [row.pair for row in rows if row.pair is not None]
    ratios = [row.ratio.estimate for row in rows if row.ratio is not None]
    each = tuple(
        Round(
            seconds=row.samples.summary.median,
            baseline=row.pair.baseline.summary.median if row.pair else None,
            ratio=row.ratio.estimate if row.ratio else None,
        )
        for row in rows
        if row.samples is not None
    )
    # Notes that differ in their numbers only are one.
    notes = {re.sub(r"\d[\d.]*", "", note): note for row in rows for note in row.notes}
    if note := _apart(rows[0].against, each):
        notes[""] = note
    return replace(
        rows[0],
        before=_worst(row.before for row in rows),
        after=_worst(row.after for row in rows),
        samples=_samples(samples),
        pair=_pair(pairs) if pairs else None,
        ratio=pooled_ratio(ratios) if len(ratios) == len(rows) else None,
        rounds=each,
        notes=tuple(notes.values()),
    )


def _apart(against: str, rounds: Sequence[Round]) -> str:
    """What to say of times that differ from round to round; empty where they do not."""
    own = [one.seconds for one in rounds]
    others = [one.baseline for one in rounds if one.baseline is not None]
    differ = [
        f"{name}{min(times) * 1e6:.2f} to {max(times) * 1e6:.2f} us"
        for name, times in (("", own), (f"{against} ", others))
        if times and max(times) > (1 + _APART) * min(times)
    ]
    return f"from round to round {' and '.join(differ)}" if differ else ""


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
