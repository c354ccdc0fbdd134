"""Measure one code on one set of operands: prepare, verify, sample, verify again, record.

The order is the point. A code that computes a wrong result has no time: it is verified before it is timed,
its outputs are then overwritten with other values, and what the timed runs themselves wrote is verified
after.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.bench import sampling
from harness.bench.ceilings import Ceilings, impossible, peaks
from harness.bench.row import (
    COLD,
    EXPECTED,
    FAILED,
    GRAPH,
    IMPOSSIBLE,
    OK,
    REPEATABLE,
    UNEXPECTED,
    Measurement,
)
from harness.bench.sampling import Pair, Samples, WarmUp
from harness.bench.stopping import StopRule
from harness.bench.timing import Timer, Work
from harness.driver import Graph, Stream
from harness.launch.builds import Built
from harness.launch.kernel import Launch
from harness.launch.operands import Operands
from harness.launch.runnable import Runnable
from harness.problems.verify import Repeats, Verdict

_MATRIX = 32  # no kernel with matrix instructions exceeds the float32 units' peak by more than this factor
_NEAR_OVERHEAD = 10  # below this many times the cost of the two events, that cost distorts a time
_GRAPH_SECONDS, _GRAPH_MOST = 0.002, 1024  # a graph's launches: about this many seconds, at most this many
_BRIEF = 0.02  # seconds of warm-up for a baseline, which has been warmed up before


@dataclass(frozen=True, kw_only=True)
class Method:
    """How to time.

    `rule` says when to stop, `regime` (a key of `row.REGIMES`) how operands and launches follow each other,
    `seed` how a comparison is ordered and resampled. `overhead` is the time in seconds between two events
    with nothing between them. `ceilings` are the card's, None where not measured. `verified` is the number of
    sets of operands whose outputs are verified after timing, all of them where it is None.
    """

    rule: StopRule
    regime: str = COLD
    seed: int = 1
    overhead: float = 0.0
    ceilings: Ceilings | None = None
    verified: int | None = None


def measure(
    one: Runnable,
    operands: Operands,
    stream: Stream,
    timer: Timer,
    method: Method | None,
    *,
    against: Launch | None = None,
    repeats: int = 0,
) -> Measurement:
    """Measure one code, and return its row; without a `method` it is verified only.

    `against` is a launch of the baseline, with outputs of its own (`Twin`), that is timed in turn with it. At
    the end the code is launched `repeats` times more on the same inputs, and every output must have the same
    bits.

    Raises ContextLost after a fault on the GPU, and HarnessError if the code cannot be bound or launched. A
    wrong result is no error but a row that says so.
    """
    with one.prepare(operands) as run:  # prepare; found and compiled it is already (`build_all`)
        before = check(run, stream, sets=1)  # verify
        row = _described(one, run, before, method)
        if method is not None and row.right:
            sampled = _sample(run, against, stream, timer, method)  # sample
            after = _check_samples(run, stream, method)  # verify
            row = _timed(row, operands, sampled, after, against, method)  # record
        row = _undamaged(row, operands, stream)
        if repeats and row.status in REPEATABLE:
            if row.samples is not None:
                check(run, stream, sets=1)  # the output as a verified launch leaves it
            prints = operands.repeated(run.calls[0], stream, repeats)
            row = row.repeated(Repeats.of(next(prints), prints), operands.damaged_inputs(stream))
        return row


def check(run: Launch, stream: Stream, *, sets: int) -> Verdict:
    """Fill every output anew, run on the first `sets` sets of operands, and return the worst verdict."""
    operands = run.operands
    operands.fill_output(stream)
    run.rewind()
    for _ in range(sets):
        run(stream)
    return _worst(operands.verdicts(stream, sets=sets))


def _described(one: Runnable, run: Launch, before: Verdict, method: Method | None) -> Measurement:
    """Return the row of a launch that has been verified, but not timed yet."""
    operands, built = run.operands, one.built
    status = OK if before.ok else FAILED
    if built is not None and built.variant.kernel.broken:
        status = UNEXPECTED if before.ok else EXPECTED
    return Measurement(
        label=one.label,
        built=built,
        problem=operands.problem,
        status=status,
        before=before,
        occupancy=_occupancy(run, built),
        sets=run.sets,
        bytes_touched=operands.bytes,
        cold=operands.cold,
        regime=method.regime if method else "",
        ceilings=method.ceilings if method else None,
        peaks=peaks(operands.problem, operands.context.device),
        algorithm=run.algorithm,
    )


@dataclass(frozen=True, kw_only=True)
class _Sampled:
    """Samples of a launch, those of the pair if it was timed in turn with another, and notes on the times."""

    samples: Samples
    pair: Pair | None
    notes: tuple[str, ...]


def _sample(run: Launch, against: Launch | None, stream: Stream, timer: Timer, method: Method) -> _Sampled:
    """Warm up, overwrite the outputs, and sample.

    The outputs are overwritten between warm-up and sampling, so that the warm-up's results cannot stand in
    for those of a kernel that stops working when it sees its output filled. Outputs that the kernel
    accumulates into are filled with their initial values instead.
    """
    operands, rule, sets = run.operands, method.rule, _verified_sets(run, method)
    spoilt = not operands.problem.accumulates
    warm = sampling.warm_up(Work(run), timer, rule)
    pair: Pair | None = None
    with _work(run, warm, stream, method) as work:
        run.rewind()  # sampling starts with the sets that are verified
        if against is None:
            operands.fill_output(stream, spoilt=spoilt)
            samples = sampling.sample(work, timer, rule, typical=warm.typical, at_least=sets)
        else:
            brief = min(_BRIEF, rule.warmup)
            other = sampling.warm_up(Work(against), timer, replace(rule, warmup=brief, settle=brief))
            with _work(against, other, stream, method) as opponent:
                operands.fill_output(stream, spoilt=spoilt)
                pair = sampling.interleave(
                    work,
                    opponent,
                    timer,
                    rule,
                    typical=(warm.typical, other.typical),
                    seed=method.seed,
                    at_least=sets,
                )
            samples = pair.candidate
    notes = [*_notes(samples, work, warm, method)]
    notes += pair.remarks(against.label) if pair and against else ()
    return _Sampled(samples=samples, pair=pair, notes=tuple(notes))


def _check_samples(run: Launch, stream: Stream, method: Method) -> Verdict:
    """Return the worst verdict on the outputs of the sampled runs, in the sets that are to be verified.

    Where launches accumulate (beta != 0), the outputs after several launches are not the problem's answer;
    one more run on fresh outputs is verified instead.
    """
    sets = _verified_sets(run, method)
    if run.operands.problem.accumulates:
        return check(run, stream, sets=sets)
    return _worst(run.operands.verdicts(stream, sets=sets, spoilt=True))


def _timed(
    row: Measurement,
    operands: Operands,
    sampled: _Sampled,
    after: Verdict,
    against: Launch | None,
    method: Method,
) -> Measurement:
    """Return the row with its times; FAILED if the timed runs were wrong, IMPOSSIBLE if they were too fast.

    The row then has no times.
    """
    row, samples, pair = replace(row, after=after), sampled.samples, sampled.pair
    if not after.ok:
        return replace(row, status=FAILED)
    # A float32 problem is not rated by the tensor cores' peak, but a kernel may use them and exceed its own.
    most = max(row.peaks, _MATRIX if _uses_matrix_units(row.built) else 1)
    device, seconds = operands.context.device, samples.summary.median
    if error := impossible(operands.problem, device, seconds, samples.sm_hz, most, method.ceilings):
        return replace(row, status=IMPOSSIBLE, error=error)
    return replace(
        row,
        samples=samples,
        pair=pair,
        ratio=pair.ratio(method.seed) if pair else None,
        against=against.label if against else "",
        notes=sampled.notes,
    )


def _undamaged(row: Measurement, operands: Operands, stream: Stream) -> Measurement:
    """Return the row, marked as failed and without times if the launches overwrote an input."""
    damaged = operands.damaged_inputs(stream)
    if not damaged:
        return row
    status = EXPECTED if row.status in (EXPECTED, UNEXPECTED) else FAILED
    error = f"FAILED: it overwrote its input {' and '.join(damaged)}"
    return replace(row, status=status, samples=None, pair=None, ratio=None, error=error)


@contextmanager
def _work(run: Launch, warm: WarmUp, stream: Stream, method: Method) -> Iterator[Work]:
    """Yield what to sample: the launch, or in the graph regime one graph of several rounds over its sets."""
    if method.regime != GRAPH:
        yield Work(run)
        return
    rounds = math.ceil(_GRAPH_SECONDS / max(warm.typical, 1e-9) / run.sets)
    repeats = run.sets * max(1, min(rounds, _GRAPH_MOST // run.sets))
    repeats = max(2, repeats)
    run.rewind()

    def enqueue(stream: Stream) -> None:
        for _ in range(repeats):
            run(stream)

    with Graph(stream, enqueue) as graph:
        yield Work(graph, repeats)


def _notes(samples: Samples, work: Work, warm: WarmUp, method: Method) -> Iterator[str]:
    """Yield the notes that qualify the time: near the events' cost, unsettled clock, discarded batches."""
    if samples.summary.median * work.repeats < _NEAR_OVERHEAD * method.overhead:
        yield (
            f"near the cost of the events themselves, {method.overhead * 1e6:.2f} us, which its time "
            "includes; --regime graph takes it out"
        )
    if warm.settled is False:
        yield "the SM clock did not settle while it warmed up"
    yield from samples.remarks


def _verified_sets(run: Launch, method: Method) -> int:
    """Return the number of sets of operands to verify after timing."""
    return min(run.sets, method.verified or run.sets)


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict: a wrong one first, then by wrong elements, stray writes and largest error."""
    return max(verdicts, key=lambda v: (not v.ok, v.bad, v.stray, v.worst))


def _uses_matrix_units(built: Built | None) -> bool:
    """Return True if the code has, or may have, matrix instructions.

    A library, or a kernel that was not disassembled, may have them.
    """
    if built is None:
        return False
    return built.tally is None or built.tally.tensor_instructions > 0


def _occupancy(run: Launch, built: Built | None) -> float | None:
    """Return the occupancy that the driver computes, as a fraction; None for a library."""
    if run.function is None or built is None:
        return None
    return run.function.occupancy(built.variant.threads, built.variant.shared)
