from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import children, matmul_option, options
from harness.cli.session import Points, Request, element_types, open_session
from harness.cli.views import emulated, timed
from harness.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from harness.kernels.spec import Variant
    from harness.results.record import Record
    from harness.sass.builds import Built

_SECONDS = options.Finite(min=0)


def _enough(_ctx: click.Context, _param: click.Parameter, rounds: int) -> int:
    from harness.bench.rounds import LEAST, MOST

    if rounds != 1 and not LEAST <= rounds <= MOST:
        raise UsageError(
            f"--rounds {rounds}: 1, or {LEAST} to {MOST}", hint="fewer may all lie in one mode of a time"
        )
    return rounds


@click.command(name="bench")
@options.kernels
@options.params
@options.sweep
@options.axis
@matmul_option.dtype
@options.device
@options.arch
@options.seed
@click.option(
    "--regime",
    type=click.Choice(["cold", "hot", "graph"]),
    default="cold",
    show_default=True,
    help="cold: operands rotate, none found in L2; hot: always the same; graph: cold, without launch gaps.",
)
@click.option(
    "--ref", metavar="KERNEL", help="Time in turn with this kernel, not with cuBLAS, and say which wins."
)
@click.option(
    "--cublaslt",
    is_flag=True,
    help="A row more: cuBLASLt, by the fastest of the algorithms that its heuristic names.",
)
@click.option(
    "--alone",
    is_flag=True,
    help="Each kernel, cuBLAS too, by itself and not in turn: clock and power are its own.",
)
@click.option(
    "--rounds",
    default=1,
    show_default=True,
    type=int,
    callback=_enough,
    help="Everything this often (5 to 20 times), from the operands on: the interval is of the rounds.",
)
@click.option(
    "--threshold",
    type=options.Percent(min=0),
    default="0.5%",
    show_default=True,
    help="With --ref: what difference counts.",
)
@click.option("--min-samples", default=10, show_default=True, type=click.IntRange(min=1), help="Of each row.")
@click.option("--min-time", default=0.2, show_default=True, type=_SECONDS, help="Seconds of samples.")
@click.option(
    "--stopping-criterion",
    type=click.Choice(["stdrel", "entropy"]),
    default="stdrel",
    show_default=True,
    help="When there are enough samples, as in nvbench.",
)
@click.option(
    "--max-noise",
    default="0.5%",
    show_default=True,
    type=options.Percent(min=0),
    help="Relative standard deviation for stdrel; sampling goes on above it.",
)
@click.option(
    "--timeout",
    default=2.0,
    show_default=True,
    type=_SECONDS,
    help="Seconds of samples after which the criterion no longer matters.",
)
@click.option(
    "--throttle-threshold",
    default="60%",
    show_default=True,
    type=options.Percent(min=0),
    help="Discard samples below this share of the rated SM clock; power caps alone go down to 70% or so.",
)
@click.option(
    "--isolate", is_flag=True, help="Each kernel in a process of its own: faults and hangs stay there."
)
@click.option(
    "--kernel-timeout",
    default=300.0,
    show_default=True,
    type=_SECONDS,
    help="With --isolate: seconds after which a kernel's process is killed.",
)
@options.require_gpu
@click.option("--wide", is_flag=True, help="Also CPU time, cycles, clock, power and throttling of each row.")
@options.markdown
@options.comma
@options.json_file
@click.option("--rows", type=click.Path(path_type=Path), hidden=True)
@click.pass_context
def command(
    ctx: click.Context,
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    sweep: bool,
    axis: tuple[str, ...],
    dtypes: tuple[str, ...],
    device: str | None,
    arch: str | None,
    seed: int,
    regime: str,
    ref: str | None,
    cublaslt: bool,
    alone: bool,
    rounds: int,
    threshold: float,
    min_samples: int,
    min_time: float,
    stopping_criterion: str,
    max_noise: float,
    timeout: float,
    throttle_threshold: float,
    isolate: bool,
    kernel_timeout: float,
    require_gpu: bool,
    wide: bool,
    style: str | None,
    json_file: Path | None,
    rows: Path | None,
) -> None:
    """Time kernels in turn with cuBLAS, each verified before and after. The kernel `matmul` is what
    harness.matmul runs at each size.

    Without a GPU the emulator runs them at a small size: verified, checked for races and memory faults, with
    counts in place of times. Exit code 1 where a kernel failed, except one that its file marks as broken;
    with --ref also where one is slower, and 3 where that cannot be told.
    """
    from harness.bench import emulation, stats
    from harness.bench.stopping import StopRule
    from harness.results import encode as report
    from harness.results import record
    from harness.sass import builds

    variants, points = matmul_option.select(kernels, params, axis, "bench_axes", dtypes, sweep=sweep)
    matmul_option.refuse(kernels, isolate, "--isolate")
    reference = _reference(ref, points, alone, cublaslt) if ref else None
    gpu, absent = options.open_device(device, required=require_gpu)
    if gpu is None and not axis:
        # A tile or two: what takes a GPU a second takes the emulator an hour.
        points = {cls: list(cls.verify_axes[:1]) for cls in points}
    rule = StopRule(
        criterion=stopping_criterion,
        min_samples=min_samples,
        min_time=min_time,
        max_noise=max_noise,
        timeout=timeout,
        throttle_threshold=throttle_threshold,
    )
    if json_file is not None:
        record.check_writable(json_file)  # now, not after minutes of measuring
    meta = {
        **record.provenance(seed=seed),
        "rule": asdict(rule),
        "regime": regime,
        "threshold": threshold,
        "rounds": rounds if gpu else 1,
    }
    fault: HarnessError | None = None
    with ExitStack() as owned:
        step = owned.enter_context(options.progress(options.steps(variants, points if gpu else {}, rounds)))
        target = options.one_arch(arch, gpu)
        cache = options.open_cache()
        built, skipped = matmul_option.build(
            variants, matmul_option.named(kernels), dtypes, points, target, gpu, cache, step
        )
        static = [report.static_record(b) for b in built]
        if gpu is None:
            rows_of = emulation.rows(built, points, emulation.Options(seed=seed), step)
            run, fault = options.collect(rows_of)
            records = [report.emulated_record(r) for r in run]
        else:
            baseline = builds.build_all([reference], [target], cache, step)[0][0] if reference else None
            what = Request(
                gpu=gpu,
                rule=rule,
                regime=regime,
                seed=seed,
                baseline=baseline,
                alone=alone,
                rounds=rounds,
                cublaslt=cublaslt,
                threshold=threshold,
                dtypes=element_types(points),
            )
            if isolate:
                source = children.rows(ctx, what, built, points, meta, kernel_timeout)
            else:
                source = _measured(what, owned, built, points, meta, rows, step)
            records, fault = options.collect(source)
            if isolate:
                records = children.in_order(records, points)
    meta["ended"] = str(fault) if fault else "complete"
    meta["skipped"] = [f"{s.variant.label}, {s.arch}: {s.error}" for s in skipped]
    unwritten: HarnessError | None = None
    if json_file is not None:
        try:  # before anything is printed: a closed or full standard output must not cost the record
            record.write_json(json_file, record.document("bench", records, meta))
        except HarnessError as e:
            unwritten = e
    timed.bench(static, records, meta, style, wide=wide)
    if gpu is None:
        emulated.explain(absent, ctx.params, err=style == "csv")
    options.explain(records, skipped, err=style == "csv")
    options.finish(records, skipped, fault or unwritten)
    if ref:
        compared = [r for r in records if r["status"] == "ok" and not r.get("baseline")]
        options.conclude(r.get("decision") or stats.INCONCLUSIVE for r in compared)


def _reference(word: str, points: Points, alone: bool, cublaslt: bool) -> Variant:
    """The kernel of --ref; UsageError where it computes something else than the others, and beside options
    that go without it.
    """
    from harness.kernels import catalog
    from harness.problems.registry import resolve

    if alone:
        raise UsageError("--ref times kernels in turn, --alone does not: one of the two")
    if cublaslt:
        raise UsageError("--cublaslt is timed in turn with cuBLAS, whose place --ref takes: one of the two")
    kernel = catalog.kernel(word)
    if kernel.dtype == kernel.dtypes[0]:  # a name that does not tell the type: the one of the others
        kernel = next((k for k in kernel.each_dtype() if set(points) == {resolve(k)}), kernel)
    if set(points) != {resolve(kernel)}:
        raise UsageError(f"--ref {kernel.name} and the kernels compared with it solve different problems")
    return kernel.variant()


def _measured(
    what: Request,
    owned: ExitStack,
    built: Sequence[Built],
    points: Points,
    meta: Record,
    rows: Path | None,
    step: Any,
) -> Iterator[Record]:
    """Each row as it is done; what was found out about the GPU goes into `meta`, and both to `rows`."""
    from harness.cli import isolate

    session, meta["gpu"] = open_session(owned, what)
    if rows is not None:
        isolate.append(rows, meta["gpu"])
    for row in session.rows(built, points, step):
        line = what.record(row)
        if rows is not None:
            isolate.append(rows, line)
        yield line
    meta["gpu"]["no_telemetry"] = session.sensor.unavailable
