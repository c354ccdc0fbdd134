"""Merge several rounds of measuring one kernel and size into one row; each round starts from new operands.

Times have modes. On an H200 a product of cuBLAS took 20.4 or 21.0 us, on the same operands and at one clock,
and stayed within 0.2% of one of the two for as long as it was timed. Which of them it took changed whenever
some other kernel was launched for the first time. An interval from within one mode does not include the
others.

Where a time has two modes, 3% apart and equally likely, the interval over five rounds or more contains the
mean of the two in 94 to 97 of 100 cases; over four rounds in 88, over two in 55, since all may fall into one
mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

import numpy as np

from harness.bench.row import Measurement, Round
from harness.bench.sampling import Pair, Samples
from harness.bench.stats import pooled_ratio
from harness.driver import Buffer, Context, Stream
from harness.errors import OutOfMemory
from harness.launch.builds import Built
from harness.launch.fingerprint import Fingerprints
from harness.problems.verify import Verdict

LEAST, MOST = 5, 20  # least and most rounds if the measurement is repeated; see the module's docstring
_APART = 0.01  # a note is made if the times of rounds differ by more than this fraction
_PAGE = 2 << 20  # bytes; device memory comes in pages of that size
_MOST_PAGES = 8


def unsettle(context: Context, stream: Stream, owned: ExitStack, rng: np.random.Generator) -> None:
    """Provoke a change of mode before the next round.

    Allocate 2 to 16 MiB of device memory, owned by `owned`, so that later allocations lie elsewhere; and, at
    random in half of the cases, load and launch a kernel for the first time. Does nothing where memory is
    exhausted.
    """
    with suppress(OutOfMemory):
        owned.enter_context(Buffer(context, int(rng.integers(1, _MOST_PAGES, endpoint=True)) * _PAGE))
        if rng.integers(2):
            with Fingerprints(context) as fresh, Buffer(context, _PAGE) as anything:
                tuple(fresh.of([anything], stream))


class Rounds:
    """The rows of up to `asked` rounds, grouped by what was measured.

    Labels may be shared, so rows are grouped by baseline or not, by their build, and by their label.
    """

    def __init__(self, asked: int) -> None:
        self._asked = asked
        self._rows: dict[tuple[bool, int, str], list[Measurement]] = {}

    def add(self, row: Measurement) -> None:
        """Add the row of one round."""
        self._rows.setdefault((row.baseline, id(row.built), row.label), []).append(row)

    def timed(self, one: Built) -> bool:
        """Return True if every row of this kernel so far has times: only such kernels take part in another
        round.
        """
        mine = (
            row
            for (baseline, built, _), rows in self._rows.items()
            if built == id(one) and not baseline
            for row in rows
        )
        return all(row.samples is not None for row in mine)

    def merged(self) -> Iterator[Measurement]:
        """Return one row for each code that was measured, in the order in which they first came."""
        return (self._merged(rows) for rows in self._rows.values())

    def _merged(self, rows: Sequence[Measurement]) -> Measurement:
        """Merge the rows of one code.

        If a round went wrong, the result is that round's row. Otherwise it has the samples of all rounds, and
        a ratio whose interval is taken over the rounds (`pooled_ratio`).
        """
        last = rows[-1]
        if last.samples is None:
            return last
        all_of_them = _samples([row.samples for row in rows if row.samples is not None])
        pairs = [row.pair for row in rows if row.pair is not None]
        pair = _pair(pairs) if len(pairs) == len(rows) else None
        ratios = [row.ratio for row in rows if row.ratio is not None]
        each = tuple(_round(row, row.samples) for row in rows if row.samples is not None)
        kept = (
            note for row in rows for note in row.notes if note not in _remarks(row.samples, row.pair, row)
        )
        return replace(
            last,
            before=_worst(row.before for row in rows),
            after=_worst(row.after for row in rows),
            samples=all_of_them,
            pair=pair,
            ratio=pooled_ratio(ratios) if pair is not None else None,
            rounds=each,
            notes=(
                *dict.fromkeys(kept),
                *_remarks(all_of_them, pair, last),
                *_apart(last.against, each),
                *([f"{len(rows)} of {self._asked} rounds only"] if len(rows) < self._asked else []),
            ),
        )


def _round(row: Measurement, samples: Samples) -> Round:
    """Return the result of one round."""
    return Round(
        seconds=samples.summary.median,
        sm_hz=samples.sm_hz,
        baseline_seconds=row.pair.baseline.summary.median if row.pair else None,
        baseline_sm_hz=row.pair.baseline.sm_hz if row.pair else None,
        ratio=row.ratio.estimate if row.ratio else None,
    )


def _remarks(samples: Samples | None, pair: Pair | None, row: Measurement) -> list[str]:
    """Return the notes that contain numbers; the merged row has its own in place of each round's."""
    return [*(samples.remarks if samples else ()), *(pair.remarks(row.against) if pair else ())]


def _apart(against: str, rounds: Sequence[Round]) -> Iterator[str]:
    """Yield a note if the times differ from round to round by more than 1%."""
    own = [one.seconds for one in rounds]
    others = [one.baseline_seconds for one in rounds if one.baseline_seconds is not None]
    differ = [
        f"{name}{min(times) * 1e6:.2f} to {max(times) * 1e6:.2f} us"
        for name, times in (("", own), (f"{against} ", others))
        if times and max(times) > (1 + _APART) * min(times)
    ]
    if differ:
        yield f"from round to round {' and '.join(differ)}"


def _worst(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """Return the verdict with the largest error over its bound; None if there is none."""
    return max((v for v in verdicts if v is not None), key=lambda v: v.worst, default=None)


def _samples(parts: Sequence[Samples]) -> Samples:
    """Concatenate the samples of all rounds."""
    return Samples(
        batches=tuple(batch for part in parts for batch in part.batches),
        stopped=parts[-1].stopped,
        discarded=tuple(reason for part in parts for reason in part.discarded),
    )


def _pair(parts: Sequence[Pair]) -> Pair:
    """Concatenate the paired samples of all rounds."""
    return Pair(
        candidate=_samples([part.candidate for part in parts]),
        baseline=_samples([part.baseline for part in parts]),
        order=tuple(block for part in parts for block in part.order),
    )
