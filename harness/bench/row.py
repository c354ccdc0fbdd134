"""The row that a measurement returns: verdicts, times and the circumstances under which they were taken."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from harness.bench import nvml
from harness.bench.ceilings import Ceiling
from harness.bench.sampling import Pair, Samples
from harness.bench.stats import Interval
from harness.emulator import Emulation
from harness.errors import HarnessError, OutOfMemory
from harness.launch.builds import Built
from harness.launch.runnable import Runnable
from harness.problems.gemm import Gemm
from harness.problems.protocol import Problem
from harness.problems.verify import Repeats, Verdict

COLD, HOT, GRAPH = "cold", "hot", "graph"
REGIMES = {
    COLD: "each launch on operands of its own, none of them in the L2 cache",
    HOT: "the operands are written right before each launch",
    GRAPH: "as cold, many launches in one CUDA graph: no gaps between them",
}

OK = "ok"
FAILED = "FAILED"
EXPECTED = "FAILED as marked"  # the kernel is broken on purpose, and the defect showed
UNEXPECTED = "passed, marked broken"  # the kernel is broken on purpose, but the defect did not show this time
IMPOSSIBLE = "impossible"  # faster than the hardware allows: the measurement must be wrong
REFUSED = "needs a GPU"  # the emulator cannot run the kernel
LATE = "not ended"  # the emulator had no more time for the kernel
UNVERIFIED = "no reference"  # nothing was found, and the numbers were compared with nothing
ERROR = "error"  # the kernel could not be launched, or faulted
FAILURES = (FAILED, IMPOSSIBLE, ERROR)
UNCHECKED = (REFUSED, LATE)
REPEATABLE = (OK, EXPECTED, UNEXPECTED)  # statuses of rows that `repeats` launches again


@dataclass(frozen=True, kw_only=True)
class Round:
    """The result of one of several rounds.

    `seconds` is the median time of a run and `sm_hz` the SM clock in Hz; `baseline_seconds` and
    `baseline_sm_hz` are those of the baseline's turns. `ratio` is the time over the baseline's.
    """

    seconds: float
    sm_hz: float | None
    baseline_seconds: float | None
    baseline_sm_hz: float | None
    ratio: float | None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One code on one problem: verified, timed, verified again.

    `built` is its machine code, None for a library. `samples` is None where it was only verified, or could
    not be timed for the reason in `status`, which `error` says in words. `before` and `after` are the
    verdicts before and after timing, and `repeats` is the comparison of the outputs of further launches.

    `occupancy` is the driver's answer: active warps over the most that an SM holds. `sets` copies of the
    operands, `bytes_touched` in all, were visited in turn; `cold` says that none was in the L2 cache.
    `protections` says in words what keeps a time from being that of a launch which did not do its work.
    `ratio` is this time over that of `against`, from runs of both in turn (`pair`), and `against_wrong` what
    was wrong with that one's outputs, if anything; `identical` says that
    both are the same machine code, `baseline` that this row is what the others are timed in turn with.
    `ceiling` is this card's for the problem's element type, in bytes/s where the problem has no FLOP. `peaks`
    is the peak for that type as a multiple of the float32 units'. `notes` qualify the time. `algorithm` names
    the algorithm that a library chose. `rounds` has the result of each round where there were
    several; all other fields then cover all rounds. `seed` is that of the data that is verified by element,
    `key` what that of timed launches is made from. `emulation` is what the emulator saw, where no GPU was
    used.
    """

    label: str
    built: Built | None
    problem: Problem
    status: str
    error: str = ""
    before: Verdict | None = None
    after: Verdict | None = None
    repeats: Repeats | None = None
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
    against_wrong: str = ""
    identical: bool = False
    baseline: bool = False
    ceiling: Ceiling | None = None
    peaks: float = 1
    notes: tuple[str, ...] = ()
    algorithm: str = ""
    protections: tuple[str, ...] = ()
    seed: int | None = None
    data_key: str | None = None
    emulation: Emulation | None = None

    def __repr__(self) -> str:
        told = [self.status]
        told += [f"{1e6 * self.seconds:.4g} us"] if self.seconds else []
        told += [f"{len(self.emulation.findings)} findings"] if self.emulation is not None else []
        problem = f"{type(self.problem).__name__} {self.problem.label}"
        return f"<Measurement {self.label}, {problem}: {', '.join(told)}>"

    def _repr_html_(self) -> str:
        """Return a table for a notebook: the result, the verdict, findings and counts."""
        rows = [("result", repr(self).strip("<>")), ("numbers", self.detail)]
        if self.emulation is not None:
            rows += [("finding", str(f)) for f in self.emulation.findings]
            total = self.emulation.total
            rows += [
                ("sectors a request", f"{total.sectors_per_request or 0:.3g}"),
                ("ways", f"{total.ways or 0:.3g}"),
            ]
        cells = "".join(f"<tr><th>{n}</th><td>{html.escape(v)}</td></tr>" for n, v in rows)
        return f"<table>{cells}</table>"

    @classmethod
    def failed_with(
        cls, one: Runnable, problem: Problem, error: HarnessError | MemoryError | str, status: str = ERROR
    ) -> Self:
        """Return the row of a code that could not be measured, with the error's text; every error row is made
        here.
        """
        if isinstance(error, MemoryError) and not isinstance(error, HarnessError):
            error = OutOfMemory("host memory is exhausted")
        return cls(label=one.label, built=one.built, problem=problem, status=status, error=str(error))

    def repeated(self, repeats: Repeats, damaged: Sequence[str] = ()) -> Self:
        """Return the verified row with the outcome of further launches, which failed if anything differs.

        `damaged` names the inputs that those launches overwrote. Outputs whose bits differ from launch to
        launch count as wrong, as damaged inputs do.
        """
        row = replace(self, repeats=repeats)
        wrong = [] if repeats.ok else [str(repeats)]
        wrong += [f"FAILED: a repeat overwrote its input {' and '.join(damaged)}"] if damaged else []
        if not wrong:
            return row
        status = FAILED if row.status == OK else EXPECTED
        return replace(row, status=status, error="\n".join(filter(None, (row.error, *wrong))))

    @property
    def seconds(self) -> float | None:
        """The median GPU time of a run in seconds; None where it was not timed."""
        return None if self.samples is None else self.samples.summary.median

    @property
    def flops_rate(self) -> float | None:
        """FLOP/s at the median time; None where it was not timed or the problem has no FLOP."""
        return self.problem.flops / self.seconds if self.seconds and self.problem.flops else None

    @property
    def bandwidth(self) -> float | None:
        """Compulsory bytes per second at the median time; None where it was not timed."""
        return self.problem.bytes / self.seconds if self.seconds else None

    @property
    def speedup(self) -> Interval | None:
        """The speed as a multiple of that of `against`: the inverse of `ratio`. None without one."""
        return self.ratio.inverse if self.ratio else None

    @property
    def of_ceiling(self) -> float | None:
        """The fraction of this card's ceiling that is reached, in FLOP/s, or in bytes/s where there are no
        FLOP.

        None where it was not timed or the ceilings are not known.
        """
        rate = self.flops_rate or self.bandwidth
        if self.ceiling is None or self.samples is None or rate is None:
            return None
        return rate / self.ceiling.at(self.samples.sm_hz)

    @property
    def device(self) -> nvml.Reading | None:
        """The summary of NVML's readings while it was timed (`nvml.summarize`).

        None if there are no readings.
        """
        return None if self.samples is None else nvml.summarize(self.samples.readings)

    @property
    def dtype(self) -> str | None:
        """The name of the element type; None where the problem is no GEMM."""
        return self.problem.dtype.name if isinstance(self.problem, Gemm) else None

    @property
    def detail(self) -> str:
        """The verdict on its numbers in words, or the error."""
        return self.error or str(self.after or self.before)

    @property
    def right(self) -> bool:
        """True if the status is OK."""
        return self.status == OK

    @property
    def failed(self) -> bool:
        """True if the status is a failure: wrong, impossible, or an error."""
        return self.status in FAILURES
