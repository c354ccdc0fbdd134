"""Make a GPU ready to measure for ``harness bench`` and ``harness tune``, and describe it for their
records.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from harness.cli import options
from harness.errors import ContextLost, HarnessError

if TYPE_CHECKING:
    from harness.bench.row import Measurement
    from harness.bench.session import Bench
    from harness.bench.stopping import StopRule
    from harness.driver import Device
    from harness.launch.builds import Built
    from harness.problems.protocol import Axes, Problem
    from harness.results.rows import Row

Points = dict[type["Problem"], list["Axes"]]


def element_types(points: Iterable[type[Problem]]) -> tuple[str, ...]:
    """Return the element types of the GEMM problems, which cuBLAS is asked to multiply; fp32 if there is
    none.
    """
    from harness.problems.gemm import Gemm

    return tuple(cls.dtype.name for cls in points if issubclass(cls, Gemm)) or (Gemm.dtype.name,)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that a session needs: GPU, stopping rule and comparison, as in
    `harness.bench.session.Bench`.

    `baseline` is None for cuBLAS. `cublaslt` adds a row of cuBLASLt. `threshold` is the difference that
    counts, as a fraction, and `dtypes` are the element types that cuBLAS multiplies.
    """

    gpu: Device
    rule: StopRule
    regime: str
    seed: int
    baseline: Built | None
    alone: bool = False
    cublaslt: bool = False
    rounds: int = 1
    threshold: float
    dtypes: tuple[str, ...]

    def record(self, row: Measurement) -> Row:
        """Return the record of a row, with a decision if a kernel is the baseline."""
        from harness.results import encode

        return encode.timed_record(row, self.gpu.peak_fp32, self.threshold if self.baseline else None)


def open_session(owned: ExitStack, what: Request) -> tuple[Bench, dict[str, Any]]:
    """Open a session on this GPU, to be closed with `owned`; return it with the record's entry about GPU and
    session.

    If cuBLAS cannot be used, the session has no baseline and the entry says why.
    """
    from harness.bench.session import Bench
    from harness.driver import Context
    from harness.launch import cublas, cublaslt

    context = owned.enter_context(Context(what.gpu))
    about = options.about(what.gpu)
    baseline: Any = what.baseline
    if baseline is None:
        try:
            baseline = owned.enter_context(cublas.CuBlas(context))
            modes = "; ".join(cublas.MATH_MODES[name] for name in what.dtypes)
            about |= {"cublas": baseline.version, "math_mode": modes}
        except ContextLost:
            raise
        except HarnessError as e:
            about["no_cublas"] = str(e)
    fastest = owned.enter_context(cublaslt.CuBlasLt(context)) if what.cublaslt else None
    if fastest is not None:
        about["cublaslt"] = fastest.version
    session = owned.enter_context(
        Bench(
            context,
            rule=what.rule,
            regime=what.regime,
            baseline=baseline,
            fastest=fastest,
            seed=what.seed,
            limits=True,
            alone=what.alone,
            rounds=what.rounds,
        )
    )
    about["no_telemetry"], about["no_ceilings"] = session.sensor.unavailable, session.no_ceilings
    if session.method is not None:
        limits = session.method.ceilings
        about |= {"event_overhead": session.method.overhead, "ceilings": asdict(limits) if limits else None}
    about["clock_source"] = "%clock64 over %globaltimer, median of the SMs"
    return session, about
