"""``harness bench``: verify and time kernels in turn with cuBLAS, or emulate them without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import matmul_option, options, running
from harness.cli.children import apart, fleet, fleet_bench, isolation
from harness.cli.session import Points, Request, element_types, open_session
from harness.cli.views import emulated, timed
from harness.errors import ContextLost, UsageError

if TYPE_CHECKING:
    from harness.kernels.spec import Variant
    from harness.launch.builds import Built, Progress
    from harness.problems.protocol import Axes, Problem
    from harness.results.record import Document
    from harness.results.rows import Row
    from harness.support.cache import Cache


def _enough(_ctx: click.Context, _param: click.Parameter, rounds: int) -> int:
    """Return the value of --rounds. Raises UsageError for a number of rounds that is neither 1 nor enough."""
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
@options.dtype
@options.entry
@options.include
@options.device
@options.arch
@options.seed
@options.regime(
    "cold: operands rotate, none found in L2; hot: always the same; graph: cold, without launch gaps."
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
@options.threshold("0.5%", "With --ref: what difference counts.")
@options.rule
@click.option(
    "--isolate", is_flag=True, help="Each kernel in a process of its own: faults and hangs stay there."
)
@click.option(
    "--kernel-timeout",
    default=300.0,
    show_default=True,
    type=options.Finite(min=0),
    help="With --isolate, and after a fault: seconds after which a kernel's process is killed.",
)
@fleet.options
@options.require_gpu
@click.option("--wide", is_flag=True, help="Also CPU time, cycles, clock, power and throttling of each row.")
@options.markdown
@options.comma
@options.json_file
@click.option("--rows", type=click.Path(path_type=Path), hidden=True)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    sweep: bool,
    axis: tuple[str, ...],
    dtypes: tuple[str, ...],
    entry: str | None,
    include: tuple[str, ...],
    device: str | None,
    arch: str | None,
    seed: int,
    regime: str,
    ref: str | None,
    cublaslt: bool,
    alone: bool,
    rounds: int,
    threshold: float,
    isolate: bool,
    kernel_timeout: float,
    gpus: str | None,
    scheduler: str | None,
    require_gpu: bool,
    wide: bool,
    style: str | None,
    json_file: Path | None,
    rows: Path | None,
    **stop: Any,
) -> None:
    """Time kernels in turn with cuBLAS, each verified before and after. The kernel `matmul` is what
    harness.matmul runs at each size.

    Without a GPU the emulator runs them at a small size: verified, checked for races and memory faults, with
    counts in place of times. Exit code 1 where a kernel failed, except one that its file marks as broken;
    with --ref also where one is slower, and 3 where that cannot be told.
    """
    from harness.bench.stats import INCONCLUSIVE
    from harness.bench.stopping import StopRule
    from harness.results import encode, record

    # Find, compile, measure (prepare, verify, sample, verify: `harness.bench.measure`), record, show.
    variants, points = matmul_option.select(
        kernels, params, axis, "bench_axes", dtypes, sweep=sweep, entry=entry, include=include
    )
    matmul_option.refuse(kernels, isolate, "--isolate")
    reference = _reference(ref, points, alone, cublaslt) if ref else None
    if json_file is not None:
        record.check_writable(json_file)  # now, not after minutes of measuring
    rule = StopRule(**stop)
    meta = {
        **record.provenance(seed=seed),
        "rule": asdict(rule),
        "regime": regime,
        "threshold": threshold,
        "rounds": rounds,
    }
    if fleet.wanted(gpus, scheduler, device):
        fleet_bench.bench(ctx, variants, points, meta)
        return
    gpu, absent = options.open_device(device, required=require_gpu)
    if gpu is None:
        meta["rounds"] = 1
        if not axis:  # one small size only: what takes a GPU a second takes the emulator an hour
            points = {cls: _first(cls, variants) for cls in points}
    left_out: dict[str, list[str]] | None = None if axis else {}
    with ExitStack() as owned:
        step = owned.enter_context(
            running.progress(
                running.steps(variants, points, meta["rounds"], baseline=gpu is not None),
                "" if gpu else _ahead(absent, len(variants)),
            )
        )
        target, cache = options.one_arch(arch, gpu), options.open_cache()
        built, skipped = matmul_option.build(
            variants, matmul_option.named(kernels), dtypes, points, target, gpu, cache, step
        )
        if gpu is None:
            measured = _emulated(built, points, seed, step, left_out)
        else:
            what = Request(
                gpu=gpu,
                rule=rule,
                regime=regime,
                seed=seed,
                baseline=_built(reference, target, cache, step) if reference else None,
                alone=alone,
                rounds=rounds,
                cublaslt=cublaslt,
                threshold=threshold,
                dtypes=element_types(points),
            )
            if isolate:
                measured = _children(ctx, what, meta).each(built, points, left_out)
            else:
                measured = _measured(what, owned, built, points, meta, rows, step, left_out)
        records, fault = running.collect(measured)
    if isolate and gpu is not None:
        records = isolation.in_order(records, points)
    elif isinstance(fault, ContextLost) and rows is None:  # the context is closed: other processes can go on
        again = _children(ctx, what, meta)
        records, fault = apart.go_on(again, built, points, records, left_out, fault)
    meta["ended"] = str(fault) if fault else "complete"
    meta["skipped"] = [f"{s.variant.label}, {s.arch}: {s.error}" for s in skipped]
    unwritten = running.keep(json_file, "bench", records, meta)
    timed.bench([encode.static_record(b) for b in built], records, meta, style, wide=wide)
    if gpu is None:
        emulated.explain(absent, ctx.params, err=style == "csv")
    running.tell(left_out or {}, err=style == "csv")
    running.explain(records, skipped, err=style == "csv")
    running.warn(built)
    running.finish(records, skipped, fault or unwritten)
    if ref:
        compared = [r for r in records if r["status"] == "ok" and not r.get("baseline")]
        running.conclude(r.get("decision") or INCONCLUSIVE for r in compared)


def _ahead(absent: str, count: int) -> str:
    """Return what is said before kernels are run without a GPU: how many there are, and what that takes."""
    return f"{absent}, {'1 kernel' if count == 1 else f'{count} kernels'}, each some seconds"


def _children(ctx: click.Context, what: Request, meta: Document) -> apart.Children:
    """Return the processes that measure for this command. What they say of the GPU goes into `meta`."""
    about = meta.setdefault("gpu", options.about(what.gpu))
    timeout = ctx.params["kernel_timeout"]
    return apart.Children(ctx=ctx, gpu=what.gpu, record=what.record, about=about, timeout=timeout)


def _reference(word: str, points: Points, alone: bool, cublaslt: bool) -> Variant:
    """Return the kernel of --ref.

    Raises UsageError if it solves another problem than the others, or with options that exclude it.
    """
    from harness.kernels import catalog
    from harness.problems.registry import resolve

    if alone:
        raise UsageError("--ref times kernels in turn, --alone does not: one of the two")
    if cublaslt:
        raise UsageError("--cublaslt is timed in turn with cuBLAS, whose place --ref takes: one of the two")
    kernel = catalog.kernel(word)
    if kernel.dtype == kernel.dtypes[0]:  # the name gives no type: take that of the other kernels
        kernel = next((k for k in kernel.each_dtype() if set(points) == {resolve(k)}), kernel)
    if set(points) != {resolve(kernel)}:
        raise UsageError(f"--ref {kernel.name} and the kernels compared with it solve different problems")
    return kernel.variant()


def _built(variant: Variant, arch: str, cache: Cache, step: Progress) -> Built:
    """Build one variant."""
    from harness.launch.builds import build_all

    return build_all([variant], [arch], cache, step)[0][0]


def _first(cls: type[Problem], variants: Sequence[Variant]) -> list[Axes]:
    """Return the first size at which a problem is verified that one of the variants takes."""
    from harness.launch.kernel import unmet
    from harness.problems import checks
    from harness.problems.registry import resolve

    own = [v for v in variants if resolve(v.kernel) is cls]
    able = [a for a in cls.verify_axes if any(not unmet(v, checks.instance(cls, a)) for v in own)]
    return list((able or cls.verify_axes)[:1])


def _emulated(
    built: Sequence[Built], points: Points, seed: int, step: Progress, left_out: dict[str, list[str]] | None
) -> Iterator[Row]:
    """Yield each row from the emulator, as it is done; sizes that a kernel does not take go to `left_out`."""
    from harness.bench import emulation
    from harness.results import encode

    rows = emulation.rows(built, points, emulation.Options(seed=seed), step)
    for row in running.of_sizes_taken(rows, left_out):
        yield encode.emulated_record(row)


def _measured(
    what: Request,
    owned: ExitStack,
    built: Sequence[Built],
    points: Points,
    meta: Document,
    file: Path | None,
    step: Progress,
    left_out: dict[str, list[str]] | None,
) -> Iterator[Row]:
    """Yield each row from the GPU, as it is done, and append it to `file`.

    What was found out about the GPU goes into `meta`, and first into `file`; sizes that a kernel does not
    take go to `left_out`, if there is one.
    """
    session, meta["gpu"] = open_session(owned, what)
    if file is not None:
        isolation.append(file, meta["gpu"])
    rows = session.rows(built, points, step)
    for row in running.of_sizes_taken(rows, left_out):
        line = what.record(row)
        if file is not None:
            isolation.append(file, line)
        yield line
    meta["gpu"]["no_telemetry"] = session.sensor.unavailable
