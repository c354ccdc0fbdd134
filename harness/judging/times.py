"""Time a submission in turn with its reference, by `harness.bench`, and turn rows into times and checks.

Every timed launch is verified there: see docs/timing.md for how. Here is only what a row means for a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from harness.bench.row import FAILED as WRONG
from harness.bench.row import IMPOSSIBLE, OK, Measurement
from harness.bench.session import Bench
from harness.bench.stopping import StopRule
from harness.driver import Context
from harness.errors import ContextLost, HarnessError, UsageError
from harness.judging.verdict import FAILED, GPU, PASSED, SKIPPED, Check, Timed
from harness.kernels import catalog
from harness.launch.builds import Built, build_all
from harness.launch.cublas import CuBlas
from harness.launch.runnable import Runnable
from harness.problems.registry import resolve
from harness.support.cache import default as default_cache

if TYPE_CHECKING:
    from harness.judging.worker import Request

# A verdict is wanted in seconds: less than half of what `harness bench` takes for a row.
RULE = StopRule(min_time=0.1, timeout=0.6, warmup=0.05, settle=0.5)


def measured(
    context: Context, built: Built, request: Request, step: Callable[[str], None]
) -> Iterator[tuple[str, Any]]:
    """Yield ("timed", `Timed`) for each size, then ("check", `Check`) for "timed launches" and "ceiling"."""
    cls = resolve(built.variant.kernel)
    sizes = request.axes or [a for a in cls.bench_axes if _taken(built, cls.from_axes(a))][1:3]
    rows: list[Measurement] = []
    if not sizes:
        yield from _checks(rows, "it takes none of the sizes to time at: name some with -a")
        return
    with ExitStack() as owned:
        session = owned.enter_context(
            Bench(
                context,
                rule=RULE,
                regime=request.regime,
                baseline=_against(context, built, request, owned),
                seed=request.seed,
                limits=True,
            )
        )
        try:
            for row in session.rows([built], {cls: sizes}, step):
                if not row.baseline:
                    rows.append(row)
                    yield "timed", timed(row)
        except ContextLost as e:
            yield "check", Check(name="ends", where=GPU, outcome=FAILED, reason=str(e))
    yield from _checks(rows, "no size was timed")


def timed(row: Measurement) -> Timed:
    """Return what a row says of a time."""
    speedup = row.speedup
    return Timed(
        shape=row.problem.label,
        regime=row.regime,
        seconds=row.seconds if row.right else None,
        ratio=(speedup.low, speedup.estimate, speedup.high) if row.right and speedup else None,
        against=row.against,
        of_ceiling=row.of_ceiling,
        sm_hz=row.samples.sm_hz if row.samples else None,
        detail="" if row.right else row.detail,
        protections=row.protections,
    )


def _checks(rows: list[Measurement], missing: str) -> Iterator[tuple[str, Check]]:
    """Yield the checks that rows decide: wrong launches, impossible times, launches that failed."""
    for name, status in (("timed launches", WRONG), ("ceiling", IMPOSSIBLE), ("ends", "error")):
        bad = [r for r in rows if r.status == status]
        good = [r for r in rows if r.status == OK]
        if bad:
            reason = f"{bad[0].problem.label}: {bad[0].detail.removeprefix('FAILED: ')}"
            yield "check", Check(name=name, where=GPU, outcome=FAILED, reason=reason)
        elif good and name != "ends":
            said = f"{len(good)} size{'s' if len(good) > 1 else ''}"
            yield "check", Check(name=name, where=GPU, outcome=PASSED, reason=said)
        elif name != "ends":
            yield "check", Check(name=name, where=GPU, outcome=SKIPPED, reason=missing)


def _taken(built: Built, problem: Any) -> bool:
    """Return True if the kernel takes this size."""
    from harness.launch.kernel import grid

    try:
        grid(built.variant, problem)
    except UsageError:
        return False
    return True


def _against(context: Context, built: Built, request: Request, owned: ExitStack) -> Runnable | None:
    """Return what to time in turn with: the kernel of --ref, else cuBLAS; None where that is absent."""
    if request.ref:
        return _reference(request, built)
    try:
        return owned.enter_context(CuBlas(context))
    except ContextLost:
        raise
    except HarnessError:
        return None


def _reference(request: Request, built: Built) -> Built:
    """Build the kernel of --ref, which is trusted, for the same architecture and element type."""
    kernel = catalog.kernel(request.ref)
    if built.variant.kernel.dtype in kernel.dtypes:
        kernel = kernel.with_dtype(built.variant.kernel.dtype)
    (found,), _ = build_all([kernel.variant()], [built.cubin.arch], default_cache(), lambda _: None)
    return found
