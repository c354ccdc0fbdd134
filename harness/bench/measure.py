"""Measure one code on one set of operands: prepare, verify, sample, record.

A code that computes a wrong result has no time. It is verified before it is timed, by element and on data
whose result is known, and while it is timed: each timed launch gets new data, and its output is verified
(`harness.launch.fresh.visits`).
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from harness.bench import sampling
from harness.bench.ceilings import Ceilings, impossible, peaks
from harness.bench.emulation import multiplies_matrices
from harness.bench.row import (
    COLD,
    EXPECTED,
    FAILED,
    GRAPH,
    HOT,
    IMPOSSIBLE,
    OK,
    REPEATABLE,
    UNEXPECTED,
    Measurement,
)
from harness.bench.sampling import Samples, WarmUp
from harness.bench.stopping import StopRule
from harness.bench.timing import MOST, Timer, Work
from harness.driver import Device, Graph, Stream
from harness.launch.builds import Built
from harness.launch.fresh.code import derive
from harness.launch.fresh.source import source
from harness.launch.fresh.visits import Visits, WrongWhileTimed
from harness.launch.kernel import Launch
from harness.launch.operands import Operands
from harness.launch.runnable import Runnable
from harness.problems.protocol import Problem
from harness.problems.verify import Repeats, Verdict

_NEAR_OVERHEAD = 10  # below this many times the cost of the two events, that cost distorts a time
GRAPH_SECONDS, GRAPH_MOST = 0.002, 1024  # a graph's launches: about this many seconds, at most this many
# Launches of one batch do the same work. Where the mean time of a batch is above its median by more than this
# factor, in most batches, a few launches do what the others then find done; the median would be theirs. Where
# the baseline's launches are about as uneven, up to another factor, it is the machine. Without a baseline the
# machine may be as uneven as a GPU that several programs share. Libraries are trusted.
_UNEVEN, _AS_UNEVEN, _ALONE = 1.25, 4, 2.0
_BRIEF = 0.02  # seconds of warm-up for a baseline, which has been warmed up before
_FASTER = 1.5  # than its rated peaks: no GPU is
_LAUNCH = 1e-6  # seconds that any launch takes
_NAMED = 4  # stray writes that a message names
_MEASURED = itertools.count()  # so that no two launches of a process get the same data


@dataclass(frozen=True, kw_only=True)
class Method:
    """The options of a measurement.

    `rule` says when to stop, `regime` (a key of `row.REGIMES`) how operands and launches follow each other,
    `seed` how a comparison is ordered and resampled. `key` is what the data of timed launches is made from.
    `overhead` is the time in seconds between two events with nothing between them. `ceilings` are the card's,
    None where not measured. With `by_element` one timed launch is also verified by element, on the host.
    """

    rule: StopRule
    regime: str = COLD
    seed: int = 1
    key: int = field(default_factory=lambda: secrets.randbits(64))
    overhead: float = 0.0
    ceilings: Ceilings | None = None
    by_element: bool = True


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

    `against` is a launch of the baseline, on operands of its own (`Operands.twin`), that is timed in turn
    with it. At the end the code is launched `repeats` times more on the same inputs, and every output must
    have the same bits.

    Raises ContextLost after a fault on the GPU, and HarnessError if the code cannot be bound or launched. A
    wrong result is no error but a row that says so.
    """
    with one.prepare(operands) as run:  # prepare; found and compiled it is already (`build_all`)
        before = check(run, stream, sets=1)  # verify
        row = _contained(_described(one, run, before, method), run, stream)
        if method is not None and row.right:
            row = _sampled(row, run, against, stream, timer, method)  # sample
            row = _contained(row, run, stream)
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
    operands, built, device = run.operands, one.built, run.operands.context.device
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
        cold=method is not None and method.regime != HOT,
        regime=method.regime if method else "",
        ceiling=method.ceilings.of(operands.problem, device) if method and method.ceilings else None,
        peaks=peaks(operands.problem, device),
        algorithm=run.algorithm,
    )


def _sampled(
    row: Measurement, run: Launch, against: Launch | None, stream: Stream, timer: Timer, method: Method
) -> Measurement:
    """Warm up and sample, and return the row with its times, or with what was wrong with a timed launch.

    After that the operands hold their known data again.
    """
    operands = run.operands
    try:
        with ExitStack() as owned:
            visits = _visits(run, stream, method, owned)
            other = None if against is None else _visits(against, stream, method, owned, opponent=True)
            row = replace(row, protections=_protections(visits))
            return _timed(row, visits, other, stream, timer, method)
    except WrongWhileTimed as e:
        return replace(row, status=FAILED, error=f"FAILED: {e.said}")
    finally:
        for launch in (run, against):
            if launch is not None and not operands.context.lost:
                launch.operands.restore(stream)


def _visits(
    run: Launch, stream: Stream, method: Method, owned: ExitStack, *, opponent: bool = False
) -> Visits:
    """Return the visits of a launch that has been verified, on new data until `owned` is closed."""
    seed = derive(method.key, run.label, next(_MEASURED))
    data = source(run.operands, stream, seed=seed)
    owned.callback(data.close)
    hot = method.regime == HOT
    by_element = method.by_element and not opponent
    return Visits(run, data, hot=hot, seed=seed, by_element=by_element, opponent=opponent)


def _protections(visits: Visits) -> tuple[str, ...]:
    """Return in words what a row's times are protected by."""
    return (
        visits.source.label,
        "outputs filled with random numbers before each launch",
        "inputs compared with what they were after each launch",
        "red zones around all buffers",
        "persisting L2 lines reset before each batch",
    )


def _timed(
    row: Measurement, visits: Visits, other: Visits | None, stream: Stream, timer: Timer, method: Method
) -> Measurement:
    """Warm up, sample, and return the row with its times; IMPOSSIBLE without, if they are too short.

    Raises WrongWhileTimed.
    """
    rule, run, pair = method.rule, visits.run, None
    warm = sampling.warm_up(Work(run, visits=visits), timer, rule)
    with _work(visits, stream, method) as work:
        if other is None:
            samples = sampling.sample(work, timer, rule, typical=warm.typical)
        else:
            brief = replace(rule, warmup=min(_BRIEF, rule.warmup), settle=min(_BRIEF, rule.warmup))
            cold = sampling.warm_up(Work(other.run, visits=other), timer, brief)
            with _work(other, stream, method) as opponent:
                typical = warm.typical, cold.typical
                pair = sampling.interleave(work, opponent, timer, rule, typical=typical, seed=method.seed)
            samples = pair.candidate
    row = replace(row, after=visits.verdict(stream))
    if row.after is not None and not row.after.ok:
        return replace(row, status=FAILED)
    problem, device, seconds = run.operands.problem, run.operands.context.device, samples.summary.median
    most = method.ceilings
    error = impossible(problem, device, seconds, samples.sm_hz, most, matrix=False)
    if error and _multiplies_matrices(row.built, type(problem)):
        error = impossible(problem, device, seconds, samples.sm_hz, most, matrix=True)
    if error:
        return replace(row, status=IMPOSSIBLE, error=error)
    uneven, machine = samples.unevenness, pair.baseline.unevenness if pair else _ALONE
    if row.built is not None and uneven > _UNEVEN + _AS_UNEVEN * (machine - 1):
        error = (
            f"its launches do not take equally long: the mean is {uneven:.3g} times the median, so some do "
            "the work of others, or other programs use this GPU: not a measurement"
        )
        return replace(row, status=IMPOSSIBLE, error=error)
    notes = [*_notes(samples, work, warm, method)]
    if uneven > _UNEVEN:
        notes.append("launches do not take equally long: does something else use the GPU?")
    against, wrong = (other.run.label, other.said) if other else ("", "")
    if wrong:
        notes.append(f"{against} was wrong while it was timed in turn with it: {wrong}")
    return replace(
        row,
        samples=samples,
        pair=pair,
        ratio=pair.ratio(method.seed) if pair else None,
        against=against,
        against_wrong=wrong,
        notes=(*notes, *(pair.remarks(against) if pair else ())),
    )


def _contained(row: Measurement, run: Launch, stream: Stream) -> Measurement:
    """Return the row, marked as failed and without times if launches wrote outside of their results.

    That is: into an input that still holds its known data, or into a red zone.
    """
    found = (
        [f"FAILED: it overwrote its input {' and '.join(d)}"]
        if (d := run.operands.damaged_inputs(stream))
        else []
    )
    if stray := run.operands.stray_writes(stream, run.scratch):
        found.append(f"FAILED: it wrote outside of its buffers: {', '.join(stray[:_NAMED])}")
    if not found:
        return row
    status = EXPECTED if row.status in (EXPECTED, UNEXPECTED) else FAILED
    return replace(row, status=status, samples=None, pair=None, ratio=None, error="\n".join(found))


@contextmanager
def _work(visits: Visits, stream: Stream, method: Method) -> Iterator[Work]:
    """Yield what to sample: the launch, or in the graph regime one graph of a launch on each set."""
    run = visits.run
    if method.regime != GRAPH:
        yield Work(run, visits=visits)
        return
    run.rewind()

    def enqueue(stream: Stream) -> None:
        for _ in range(run.sets):
            run(stream)

    with Graph(stream, enqueue) as graph:
        yield Work(graph, run.sets, visits)


def launches(problem: Problem, device: Device, method: Method) -> int:
    """Return how many launches a batch or a graph may have, judged by the fastest that the GPU could be."""
    seconds, most = (GRAPH_SECONDS, GRAPH_MOST) if method.regime == GRAPH else (sampling.BATCH_SECONDS, MOST)
    shortest = max(
        problem.flops / (_FASTER * device.peak_fp32 * peaks(problem, device)),
        problem.bytes / (_FASTER * device.peak_bandwidth) if device.peak_bandwidth else 0.0,
        _LAUNCH,
    )
    return max(1, min(most, math.ceil(seconds / shortest)))


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


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict: a wrong one first, then by wrong elements, stray writes and largest error."""
    return max(verdicts, key=lambda v: (not v.ok, v.bad, v.stray, v.worst))


def _multiplies_matrices(built: Built | None, cls: type[Problem]) -> bool:
    """Return True if a kernel executes matrix instructions, as the emulator counts them, or may do so.

    One that was not disassembled may. Of a library it is known which type it was asked to multiply in.
    """
    if built is None:
        return False
    return built.tally is None or (built.tally.tensor_instructions > 0 and multiplies_matrices(built, cls))


def _occupancy(run: Launch, built: Built | None) -> float | None:
    """Return the occupancy that the driver computes, as a fraction; None for a library."""
    if run.function is None or built is None:
        return None
    return run.function.occupancy(built.variant.threads, built.variant.shared)
