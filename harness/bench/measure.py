"""One launch -> a `Measurement`: verified, timed, verified again.

The order is the point: verify, spoil the outputs, time, verify what the timed runs wrote. A kernel that
computes something wrong has no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.bench import nvml, sampling
from harness.bench.ceilings import Ceilings, impossible, peaks
from harness.bench.sampling import Pair, Samples, WarmUp
from harness.bench.stats import Interval
from harness.bench.stopping import StopRule
from harness.bench.timing import Timer, Work
from harness.driver import Graph, Stream
from harness.emulator import Emulation
from harness.launch.kernel import Launch
from harness.problems.gemm import Gemm
from harness.problems.protocol import Problem
from harness.problems.verify import Repeats, Verdict
from harness.sass.builds import Built

COLD, HOT, GRAPH = "cold", "hot", "graph"
REGIMES = {
    COLD: "operands rotate through copies that displace twice the L2 cache",
    HOT: "the same operands every time",
    GRAPH: "as cold, many launches in one CUDA graph: no gaps between them",
}

OK = "ok"
FAILED = "FAILED"
EXPECTED = "FAILED as marked"  # broken on purpose, and seen to be
UNEXPECTED = "passed, marked broken"  # a race that did not show this time
IMPOSSIBLE = "impossible"  # faster than the hardware: the measurement is wrong, whatever the reason
REFUSED = "needs a GPU"  # the emulator cannot run it
ERROR = "error"  # it could not be launched, or faulted
FAILURES = (FAILED, IMPOSSIBLE, ERROR)
REPEATABLE = (OK, EXPECTED, UNEXPECTED)  # whose launches may be seen again

_MATRIX = 32  # times the peak of the float32 units: no kernel with matrix instructions is faster than this
_NEAR_OVERHEAD = 10  # times the cost of the events themselves: below, that cost shows
_GRAPH_SECONDS, _GRAPH_MOST = 0.002, 1024  # a graph's launches: about so long in all, and no more than this
_BRIEF = 0.02  # seconds of warm-up for what has been warmed up before


@dataclass(frozen=True, kw_only=True)
class Method:
    """How to time. `overhead` is the seconds that an empty pair of events takes. After timing the outputs of
    `verified` sets are verified, of all of them by default.
    """

    rule: StopRule
    regime: str = COLD
    seed: int = 1
    overhead: float = 0.0
    ceilings: Ceilings | None = None
    verified: int | None = None


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one of several rounds came to: median seconds and SM clock, of the baseline's turns too, and the
    ratio of the two.
    """

    seconds: float
    sm_hz: float | None
    baseline_seconds: float | None
    baseline_sm_hz: float | None
    ratio: float | None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One launch on one problem. `samples` is None where it was not timed, for the reason in `status`.

    `occupancy` is the driver's: active warps over the most that an SM holds. `sets` copies of the operands,
    `bytes_touched` in all, are visited in turn (as far as a first look goes); `cold` says that they displace
    twice the L2 cache. `ratio` is of times, this over that of `against`, from runs of both in turn. `peaks`
    is how many times the peak of float32 units counts as the peak for this problem's type. `notes` qualify
    the time. `algorithm` is which of its ways a library goes. `rounds`, where there were several, has what
    each came to; the rest is of all. `emulation` is what the emulator saw, where no GPU ran it.
    """

    label: str
    built: Built | None
    problem: Problem
    status: str
    error: str = ""
    before: Verdict | None = None
    after: Verdict | None = None
    repeats: Repeats | None = None  # launches beyond the one that `before` is of
    samples: Samples | None = None
    occupancy: float | None = None
    sets: int = 0
    bytes_touched: int = 0
    cold: bool | None = None
    regime: str = COLD
    pair: Pair | None = None
    ratio: Interval | None = None
    rounds: tuple[Round, ...] = ()
    against: str = ""
    identical: bool = False
    baseline: bool = False  # it is what the others are timed in turn with
    ceilings: Ceilings | None = None
    peaks: float = 1
    notes: tuple[str, ...] = ()
    algorithm: str = ""
    emulation: Emulation | None = None

    @property
    def seconds(self) -> float | None:
        return None if self.samples is None else self.samples.summary.median

    @property
    def flops_rate(self) -> float | None:
        """FLOP/s at the median time; None where the problem has none."""
        return self.problem.flops / self.seconds if self.seconds and self.problem.flops else None

    @property
    def bandwidth(self) -> float | None:
        """Compulsory bytes/s at the median time."""
        return self.problem.bytes / self.seconds if self.seconds else None

    @property
    def speedup(self) -> Interval | None:
        """How many times as fast as `against` it is."""
        return self.ratio.inverse if self.ratio else None

    @property
    def of_ceiling(self) -> float | None:
        """Its FLOP/s over what this card reaches at best; for a problem without any, its bytes/s."""
        if self.ceilings is None or self.samples is None:
            return None
        if self.flops_rate:
            return self.flops_rate / (self.peaks * self.ceilings.flops.at(self.samples.sm_hz))
        return self.bandwidth / self.ceilings.bandwidth.rate if self.bandwidth else None

    @property
    def device(self) -> nvml.Reading | None:
        return None if self.samples is None else nvml.summarize(self.samples.readings)

    @property
    def dtype(self) -> str | None:
        """The element type, of a gemm."""
        return self.problem.dtype.name if isinstance(self.problem, Gemm) else None

    @property
    def detail(self) -> str:
        """What was found out about its numbers, or why it could not be launched."""
        return self.error or str(self.after or self.before)

    @property
    def right(self) -> bool:
        return self.status == OK

    @property
    def failed(self) -> bool:
        return self.status in FAILURES


def measure(
    run: Launch,
    stream: Stream,
    timer: Timer,
    method: Method | None,
    *,
    built: Built | None = None,
    against: Launch | None = None,
) -> Measurement:
    """Verify, time, verify again; see the module's docstring. Without a `method`, verify only.

    `against` is timed in turn with it; it has outputs of its own (`Twin`).
    """
    operands, problem = run.operands, run.operands.problem
    row = Measurement(
        label=run.label,
        built=built,
        problem=problem,
        status=OK,
        before=check(run, stream, sets=1),
        occupancy=_occupancy(run, built),
        sets=run.sets,
        bytes_touched=operands.bytes,
        cold=operands.cold,
        regime=method.regime if method else "",
        ceilings=method.ceilings if method else None,
        peaks=peaks(problem, operands.context.device),
        algorithm=run.algorithm,
    )
    if built is not None and built.variant.kernel.broken:
        row = replace(row, status=UNEXPECTED if row.before and row.before.ok else EXPECTED)
    elif row.before is None or not row.before.ok:
        row = replace(row, status=FAILED)
    elif method is not None:
        row = _timed(row, run, against, stream, timer, method)
    if damaged := operands.damaged_inputs(stream):
        status = EXPECTED if row.status in (EXPECTED, UNEXPECTED) else FAILED
        error = f"FAILED: it overwrote its input {' and '.join(damaged)}"
        row = replace(row, status=status, samples=None, pair=None, ratio=None, error=error)
    return row


def repeated(row: Measurement, repeats: Repeats, damaged: Sequence[str] = ()) -> Measurement:
    """The verified row with what became of more launches, and which inputs those have overwritten: other bits
    are as wrong as wrong numbers.
    """
    row = replace(row, repeats=repeats)
    wrong = [] if repeats.ok else [str(repeats)]
    wrong += [f"FAILED: a repeat overwrote its input {' and '.join(damaged)}"] if damaged else []
    if not wrong:
        return row
    status = FAILED if row.status == OK else EXPECTED
    return replace(row, status=status, error="\n".join(filter(None, (row.error, *wrong))))


def _timed(
    row: Measurement, run: Launch, against: Launch | None, stream: Stream, timer: Timer, method: Method
) -> Measurement:
    """The row with samples, and the verdict on what the sampled runs themselves wrote, in the sets that are
    to be verified: the first that they visit.

    The outputs are spoilt between warm-up and sampling, so that the warm-up's results cannot stand in for
    those of a kernel that stops working when it sees its output filled. Where launches accumulate
    (beta != 0), what they leave is not the problem's answer, and one more run is verified instead.
    """
    operands, rule = run.operands, method.rule
    sets = min(run.sets, method.verified or run.sets)
    warm = sampling.warm_up(Work(run), timer, rule)
    pair: Pair | None = None
    with _work(run, warm, stream, method) as work:
        spoilt = not operands.problem.accumulates
        run.rewind()  # the sets that are verified are the first that are visited
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
    if spoilt:
        after = _worst(operands.verdicts(stream, sets=sets, spoilt=True))
    else:
        after = check(run, stream, sets=sets)
    row = replace(row, after=after)
    if not after.ok:
        return replace(row, status=FAILED)
    # For a float32 problem tensor cores are no peak to be measured by, and no impossible way either.
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
        notes=(
            *_notes(samples, work, warm, method),
            *(pair.remarks(against.label) if pair and against else ()),
        ),
    )


@contextmanager
def _work(run: Launch, warm: WarmUp, stream: Stream, method: Method) -> Iterator[Work]:
    """What to sample: the launch, or in the regime of graphs whole rounds of its sets in one."""
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
    if samples.summary.median * work.repeats < _NEAR_OVERHEAD * method.overhead:
        yield (
            f"near the cost of the events themselves, {method.overhead * 1e6:.2f} us, which its time "
            "includes; --regime graph takes it out"
        )
    if warm.settled is False:
        yield "the SM clock did not settle while it warmed up"
    yield from samples.remarks


def check(run: Launch, stream: Stream, *, sets: int) -> Verdict:
    """Fill every output anew, run on the first `sets` sets of operands, and compare those: the worst."""
    operands = run.operands
    operands.fill_output(stream)
    run.rewind()
    for _ in range(sets):
        run(stream)
    return _worst(operands.verdicts(stream, sets=sets))


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=lambda v: (not v.ok, v.bad, v.stray, v.worst))


def _uses_matrix_units(built: Built | None) -> bool:
    """Whether its code has any kind of MMA; without nvdisasm we cannot know that it has none."""
    if built is None:
        return False
    return built.tally is None or built.tally.tensor_instructions > 0


def _occupancy(run: Launch, built: Built | None) -> float | None:
    if run.function is None or built is None:
        return None
    return run.function.occupancy(built.variant.threads, built.variant.shared)
