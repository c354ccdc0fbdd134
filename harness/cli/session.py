"""A GPU made ready for what `harness bench` and `harness tune` measure, and what a record says of it."""

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
    """The element types that cuBLAS is asked to multiply."""
    from harness.problems.gemm import Gemm

    return tuple(cls.dtype.name for cls in points if issubclass(cls, Gemm)) or (Gemm.dtype.name,)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is measured, on what, and how a row of it is written down."""

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
        from harness.results import encode

        return encode.timed_record(row, self.gpu.peak_fp32, self.threshold if self.baseline else None)


def open_session(owned: ExitStack, what: Request) -> tuple[Bench, dict[str, Any]]:
    """A session on this GPU, closed with `owned`, and what a record should say about the two."""
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
