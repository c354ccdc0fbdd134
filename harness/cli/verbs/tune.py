"""``harness tune``: find the fastest parameters of a kernel at each size."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import options, running
from harness.cli.children import fleet, fleet_tune, isolation
from harness.cli.session import Request, element_types, open_session
from harness.cli.views import tuned
from harness.errors import ContextLost, HarnessError, MissingDependency, NoGpu, UsageError

if TYPE_CHECKING:
    from harness.driver import Device
    from harness.kernels.spec import Kernel, Variant
    from harness.results.record import Document
    from harness.tune.journal import Journal
    from harness.tune.plan import Plan


@click.command(name="tune")
@click.argument("kernel")
@options.params
@options.axis
@options.dtype
@options.a_gpu
@click.option(
    "--strategy",
    type=click.Choice(["halving", "exhaustive", "random"]),
    default="halving",
    show_default=True,
    help="halving: all, the slow ones with few samples; exhaustive: all in full; random: some in full.",
)
@click.option(
    "--budget",
    "--time-limit",
    "time_limit",
    type=options.Seconds(min=0, min_open=True),
    metavar="TIME",
    help="Stop after this long, such as 120s or 5m, with what is known by then.",
)
@click.option("--max-fevals", type=click.IntRange(min=1), metavar="N", help="Visit N candidates at most.")
@click.option(
    "--seed",
    default=1,
    show_default=True,
    type=click.IntRange(min=0),
    help="Of the inputs, and of which candidates are drawn.",
)
@options.regime("As bench's.")
@options.threshold("0.5%", "Closer than this is a tie.")
@click.option(
    "--isolate",
    is_flag=True,
    help="In a process of its own from the beginning, begun again without whoever faulted or hung.",
)
@click.option(
    "--kernel-timeout",
    default=60.0,
    show_default=True,
    type=options.Finite(min=0),
    help="With --isolate, and after a fault: seconds after which a candidate hangs.",
)
@click.option("--fresh", is_flag=True, help="Forget what earlier runs have measured.")
@options.markdown
@options.comma
@options.json_file
@click.option(
    "--t4",
    "t4_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Also write a T4 file, as Kernel Tuner does; with several sizes one each, FILE-SIZE.",
)
@fleet.options
@click.option(isolation.SUPERVISED, "supervised", is_flag=True, hidden=True)
@click.option("--only", type=click.Path(path_type=Path), hidden=True)
@click.option("--search", is_flag=True, hidden=True)
@click.option("--results", "results_file", type=click.Path(path_type=Path), hidden=True)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    kernel: str,
    params: tuple[str, ...],
    axis: tuple[str, ...],
    dtypes: tuple[str, ...],
    device: str | None,
    strategy: str,
    time_limit: float | None,
    max_fevals: int | None,
    seed: int,
    regime: str,
    threshold: float,
    isolate: bool,
    kernel_timeout: float,
    fresh: bool,
    json_file: Path | None,
    t4_file: Path | None,
    gpus: str | None,
    scheduler: str | None,
    supervised: bool,
    only: Path | None,
    search: bool,
    results_file: Path | None,
    **_: Any,
) -> None:
    """Find the fastest parameters of KERNEL at each size: all that are tied.

    The space is what its file lists and `where` allows; -p narrows or replaces a parameter's values. Builds
    run beside the timing. Candidates that spill, do not fit or break the file's own SASS expectations are
    skipped; the others are verified, and timed in turn with cuBLAS until all but the fastest are told apart.
    Those are measured again on other data. An interrupted tuning goes on where it ended. Exit code 1 where
    a candidate is wrong, or where there is no GPU.
    """
    from harness.bench.stopping import StopRule
    from harness.launch import builds
    from harness.problems.registry import resolve
    from harness.results import record
    from harness.tune.plan import Plan
    from harness.tune.prefetch import Ahead
    from harness.tune.search import Tuner

    one, space = _space(kernel, params, dtypes)
    points = options.points([one], axis, "bench_axes")
    plan = Plan(
        strategy=strategy,
        max_fevals=max_fevals,
        time_limit=time_limit,
        seed=seed,
        threshold=threshold,
        finals=not search,
    )
    cls = resolve(one)
    problems = [cls.from_axes(axes) for axes in points[cls]]
    meta = _about(one, space, plan) | {"regime": regime}
    record.check_writable(json_file, t4_file)
    if fleet.wanted(gpus, scheduler, device):
        fleet_tune.tune(ctx, plan, space, points[cls], meta)
        return
    gpu = _gpu(device)
    journal = _journal(one, gpu)
    if fresh:
        journal.clear()
    if isolate:
        raise SystemExit(isolation.tune(ctx, gpu, journal.path, kernel_timeout))
    chosen = fleet_tune.named(space, only) if only else plan.choose(space)
    what = Request(
        gpu=gpu,
        rule=StopRule(),
        regime=regime,
        seed=seed,
        baseline=None,
        threshold=threshold,
        dtypes=element_types(points),
    )
    began = time.monotonic()
    with ExitStack() as owned:
        built, timed = owned.enter_context(_bars(len(chosen), len(chosen) * len(problems)))
        if results_file is not None:
            timed = fleet_tune.telling(results_file)
        target, cache = options.one_arch(None, gpu), options.open_cache()
        arriving = owned.enter_context(builds.building(chosen, target, cache, built))
        ahead = owned.enter_context(Ahead())
        ahead.begin(problems[0], plan.seeds)
        session, meta["gpu"] = open_session(owned, what)
        identity = (gpu.uuid, meta["gpu"]["driver"], meta["gpu"].get("cublas") or "")
        tuner = Tuner(session, plan, journal, ahead, identity=identity, progress=timed)
        results, fault = running.collect(tuner.run(problems, arriving))
        if supervised and isinstance(fault, ContextLost):
            raise SystemExit(isolation.AGAIN)
        if fault is not None and (partial := tuner.interrupted()) is not None:
            results.append(partial)
    if isinstance(fault, ContextLost) and results_file is None and journal.path is not None:
        fault = _go_on(ctx, gpu, journal.path, time.monotonic() - began)
    meta["ended"] = str(fault) if fault else "complete"
    meta["skipped"] = [f"{u.variant.label}: {u.why}" for u in tuner.unfit]
    if results_file is not None:
        isolation.append(results_file, fleet_tune.told(results, tuner.unfit, meta))
    tuned.publish(results, tuner.unfit, meta, target, ctx.params)
    tuned.conclude(results, fault)


def _go_on(ctx: click.Context, gpu: Device, path: Path, spent: float) -> HarnessError:
    """Go on after a fault in processes of their own, as with --isolate, and exit as they do.

    Return the error where they could not.
    """
    from harness.support import terminal

    said = "a candidate faulted, after which this process can do no more: another one goes on without it"
    click.echo(terminal.fill(said), err=True)
    try:
        raise SystemExit(isolation.tune(ctx, gpu, path, ctx.params["kernel_timeout"], spent))
    except HarnessError as e:
        return e


def _space(kernel: str, params: Sequence[str], dtypes: Sequence[str]) -> tuple[Kernel, list[Variant]]:
    """Return the kernel with all its candidates. Raises UsageError for several, and for a broken one."""
    (one, *more), space = options.variants([kernel], params, sweep=True, dtypes=dtypes)
    if more:
        names = ", ".join(k.name for k in (one, *more))
        raise UsageError(f"{kernel!r} names several kernels: {names}", hint="tune them one at a time")
    if one.broken:
        raise UsageError(f"{one.name} is wrong on purpose: {one.broken}")
    return one, space


def _about(kernel: Kernel, space: Sequence[Variant], plan: Plan) -> Document:
    """Return what a record says of a tuning beforehand."""
    from harness.results import record

    return {
        **record.provenance(seed=plan.seed),
        "tune_params": {name: sorted({v.params[name] for v in space}) for name in kernel.params},
        "restrictions": [str(w) for w in kernel.where],
        "strategy": plan.strategy,
        "max_fevals": plan.max_fevals,
        "time_limit": plan.time_limit,
        "threshold": plan.threshold,
    }


def _gpu(name: str | None) -> Device:
    """Return the GPU to tune on. Raises NoGpu without one."""
    try:
        gpu, _ = options.open_device(name, required=True)
    except (NoGpu, MissingDependency) as e:
        raise NoGpu(
            f"tuning is timing: it needs a GPU ({e.what})",
            hint="harness sass KERNEL and harness check KERNEL tell what is known without one",
        ) from None
    if gpu is None:
        raise NoGpu("tuning is timing: the emulator has no times", hint="leave --device away")
    return gpu


def _journal(kernel: Kernel, gpu: Device) -> Journal:
    """Return the journal of this kernel on this GPU, without a file if there is no cache folder."""
    from harness.support.cache import default_root, digest
    from harness.tune.journal import Journal

    root = default_root()
    name = f"{kernel.name}-{digest(str(kernel.path.resolve()), gpu.uuid)[:16]}.jsonl"
    return Journal(root / "tune" / name if root is not None else None)


@contextmanager
def _bars(candidates: int, timings: int) -> Iterator[tuple[Callable[[], object], Callable[[str], None]]]:
    """Show two progress bars on stderr if that is a terminal; yield functions that advance them.

    The first counts builds. The second counts timings, and its total grows if there are more than expected.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield (lambda: None), (lambda _step: None)
        return
    from tqdm import tqdm

    form = "{n_fmt}/{total_fmt} {bar:20} {elapsed} {desc}"
    with (
        tqdm(total=candidates, leave=False, bar_format=form, desc="built", position=0) as builds,
        tqdm(total=timings, leave=False, bar_format=form, desc="timed", position=1) as times,
    ):

        def timed(step: str) -> None:
            times.total = max(times.total or 0, times.n + 1)
            times.update()
            times.set_description_str(step)

        yield builds.update, timed
