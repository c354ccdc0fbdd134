"""``harness selftest``: find out which differences in time this machine can detect.

It also compares harness's times with those of nvbench and ncu.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import options, running
from harness.errors import HarnessError, NoGpu

if TYPE_CHECKING:
    from harness.bench.stopping import StopRule
    from harness.driver import Device
    from harness.instruments.calibration import Case
    from harness.problems.protocol import Axes, Problem
    from harness.results.record import Document


@click.command(name="selftest")
@click.argument("kernels", metavar="[KERNEL|cuBLAS]...", nargs=-1)
@options.axis
@options.a_gpu
@options.seed
@click.option(
    "--runs",
    default=20,
    show_default=True,
    type=click.IntRange(min=2),
    help="Comparisons with itself; half as many with slower kernels.",
)
@options.threshold("0.5%", "What difference counts, as in bench --ref.")
@click.option(
    "--only",
    type=click.Choice(["noise", "data", "calibration"]),
    help="One part: comparisons, what new data does to times, or other instruments.",
)
@options.json_file
def command(
    kernels: tuple[str, ...],
    axis: tuple[str, ...],
    device: str,
    seed: int,
    runs: int,
    threshold: float,
    only: str | None,
    json_file: Path | None,
) -> None:
    """Find out which differences this machine can detect, and compare harness's times with nvbench's and
    ncu's.

    A kernel is compared with itself, and with the same slowed by 1% and by 3%, as `bench` compares kernels
    with cuBLAS, at -a N=2048 or as given. KERNELs (default: tiled) are timed by cuda-bench and ncu too,
    where those are installed. Exit code 1 where comparisons do not hold what they promise.
    """
    from harness.bench.stopping import StopRule
    from harness.cli import axes
    from harness.problems.gemm import Gemm
    from harness.results import record

    rule = StopRule()
    sizes = (
        [Gemm.from_axes(point) for point in axes.points(axis, Gemm.axes)]
        if axis
        else [Gemm.from_axes({"N": 2048})]
    )
    gpu, why = options.open_device(device, required=True)
    if gpu is None:
        raise NoGpu(why)
    if json_file is not None:
        record.check_writable(json_file)
    meta = {
        **record.provenance(seed=seed),
        "rule": asdict(rule),
        "gpu": options.about(gpu),
    }
    click.echo(f"{gpu.name}, {gpu.uuid}")
    rows: list[Document] = []
    wrong: list[str] = []
    if only in (None, "noise"):
        for problem in sizes:
            wrong += _noise(gpu, problem, rule, seed, runs, threshold, rows)
    if only in (None, "data"):
        for problem in sizes:
            wrong += _data(gpu, problem, rule, seed, runs, threshold, rows)
    if only in (None, "calibration"):
        from harness.instruments.calibration import Case

        cases = [Case(kernel=k, n=problem.N) for k in kernels or ("tiled",) for problem in sizes]
        _calibration(gpu, cases, rule, seed, rows)
    if json_file is not None:
        unwritten = running.keep(json_file, "selftest", rows, meta)
        wrong += [str(unwritten)] if unwritten else []
    for line in wrong:
        click.echo(f"FAILED: {line}")
    if wrong:
        raise SystemExit(1)


_SLOWED = (0, 10, 30)  # slowdowns in thousandths: values of the parameter SLOW in cu/reference/slowed.cu


def _noise(
    gpu: Device, problem: Any, rule: StopRule, seed: int, runs: int, threshold: float, rows: list[Document]
) -> list[str]:
    """Compare a kernel with itself and with slower versions; print the outcome, and append a record to
    `rows`.

    Returns what is wrong, in words.
    """
    from harness.bench import selftest
    from harness.driver import Context
    from harness.kernels import catalog
    from harness.launch import builds
    from harness.results import tables

    kernel, cache = catalog.kernel("slowed"), options.open_cache()
    variants = [kernel.variant(SLOW=slow) for slow in _SLOWED]
    with ExitStack() as owned:
        step = owned.enter_context(running.progress(len(variants) + len(variants)))
        built, _ = builds.build_all(variants, [options.one_arch(None, gpu)], cache, step)
        context = owned.enter_context(Context(gpu))
        test = owned.enter_context(selftest.SelfTest(context, built[0].cubin, problem, rule=rule, seed=seed))
        settling, overhead = test.settling(idle=2.0), test.timer.overhead()
        found = []
        for slow, one in zip(_SLOWED, built, strict=True):
            step(f"{runs} comparisons at {slow / 10:g}%")
            count = (
                max(2, runs // 2) if slow else runs
            )  # false positives are rarer, and take more runs to see
            found.append(test.trials(one.cubin, count, slowdown=slow / 1000, threshold=threshold))
    state = {True: "settles in", False: "has not settled in", None: "cannot be measured; warmed up"}
    click.echo(f"an empty pair of events takes {overhead * 1e6:.2f} us")
    click.echo(f"the SM clock {state[settling.settled]} {settling.seconds:.2f} s of work after 2 s without")
    click.echo(
        f"\n{runs} comparisons of a tiled kernel with itself, {len(found[1].intervals)} with slower ones: "
        f"gemm {problem.label}, threshold {threshold:.1%}\n"
    )
    cells = [
        [
            f"{t.slowdown:.0%}" if t.slowdown else "itself",
            f"{100 * t.estimate:+.2f}%",
            f"{100 * t.half_width:.2f}%",
            f"{t.called:.1%}",
            f"{t.excluded:.1%}",
        ]
        for t in found
    ]
    click.echo(tables.plain_table(cells, ["against", "estimate", "+-", "called", "interval misses"]))
    click.echo(f"\nsmallest difference told from none in 95% of such runs: {found[0].detectable:.2%}")
    rows.append(
        {
            "what": "noise",
            "shape": problem.label,
            "event_overhead": overhead,
            "settling": asdict(settling),
            "detectable": found[0].detectable,
            "threshold": threshold,
            "trials": [
                {
                    "slowdown": t.slowdown,
                    "runs": len(t.intervals),
                    "called": t.called,
                    "interval_misses": t.excluded,
                    "estimate": t.estimate,
                    "half_width": t.half_width,
                    "intervals": [[i.low, i.estimate, i.high] for i in t.intervals],
                }
                for t in found
            ],
        }
    )
    return selftest.worst(found)


def _data(
    gpu: Device, problem: Any, rule: StopRule, seed: int, runs: int, threshold: float, rows: list[Document]
) -> list[str]:
    """Compare a kernel on new data with itself on the same data; print it, and append a record.

    Returns in words that the difference exceeds the threshold, if it does.
    """
    from harness.bench import selftest
    from harness.driver import Context
    from harness.kernels import catalog
    from harness.launch import builds

    with ExitStack() as owned:
        variant = catalog.kernel("tiled").variant()
        (built,), _ = builds.build_all(
            [variant], [options.one_arch(None, gpu)], options.open_cache(), lambda _: None
        )
        context = owned.enter_context(Context(gpu))
        test = owned.enter_context(selftest.SelfTest(context, built.cubin, problem, rule=rule, seed=seed))
        found = test.data(built.cubin, max(2, runs // 2), threshold=threshold)
    trials = found.trials
    click.echo(
        f"\nnew data in each launch changes the times of a tiled kernel by {trials.estimate:+.2%} "
        f"+-{trials.half_width:.2%}: gemm {problem.label}, {len(trials.intervals)} comparisons"
    )
    click.echo(
        f"on the host's clock it takes {found.fresh:.2f} s to sample with new data, {found.same:.2f} s with "
        f"the same data verified as often, {found.bare:.2f} s with neither"
    )
    rows.append(
        {
            "what": "data",
            "shape": problem.label,
            "estimate": trials.estimate,
            "half_width": trials.half_width,
            "threshold": threshold,
            "intervals": [[i.low, i.estimate, i.high] for i in trials.intervals],
            "wall": {"new": found.fresh, "same": found.same, "bare": found.bare},
        }
    )
    if abs(trials.estimate) <= threshold:
        return []
    return [f"new data changes times by {trials.estimate:+.2%}, more than {threshold:.1%}"]


def _calibration(gpu: Device, cases: list[Case], rule: StopRule, seed: int, rows: list[Document]) -> None:
    """Time each case with `bench`, nvbench and ncu; print a table, and append a record of each to `rows`.

    Our times are cold and in a graph. An instrument that cannot be used gives its reason instead.
    """
    from harness.instruments import calibration
    from harness.results import tables

    others = {"cuda-bench": calibration.nvbench_seconds, "ncu": calibration.ncu_seconds}
    cells, reasons = [], []
    for case in cases:
        row: Document = {"what": "calibration", "kernel": case.kernel, "shape": str(case.n)}
        row |= _ours(gpu, case, rule, seed)
        for name, ask in others.items():
            try:
                row[name] = ask(case, gpu)
            except HarnessError as e:
                row[name] = None
                reasons.append(f"{name}: {e}")
        rows.append(row)
        ours, graph = row["cold"], row["graph"]
        cells.append([case.kernel, str(case.n), tables.seconds(ours), tables.seconds(graph)])
        for name in others:
            cells[-1] += _beside(ours, row[name])
    headings = ["kernel", "N", "cold", "graph", *(h for name in others for h in (name, "ours"))]
    click.echo(f"\n{tables.plain_table(cells, headings)}")
    for reason in dict.fromkeys(reasons):
        click.echo(reason)


def _beside(ours: float, theirs: float | None) -> list[str]:
    """Return another instrument's time, and by how much ours differs."""
    from harness.results import tables

    return [tables.seconds(theirs), f"{100 * (ours / theirs - 1):+.1f}%"] if theirs else ["-", "-"]


def _ours(gpu: Device, case: Case, rule: StopRule, seed: int) -> Document:
    """Return the median times of ``bench`` in the cold and the graph regime, in seconds, with clock and event
    overhead.

    Raises HarnessError if the kernel has no time.
    """
    from harness.bench.session import Bench
    from harness.driver import Context
    from harness.kernels import catalog
    from harness.launch import builds, cublas
    from harness.problems.gemm import Gemm

    found: Document = {}
    points: dict[type[Problem], list[Axes]] = {Gemm: [{"N": case.n}]}
    for regime in ("cold", "graph"):
        with ExitStack() as owned:
            context = owned.enter_context(Context(gpu))
            baseline: Any = None
            name = "naive" if case.kernel == cublas.LABEL else case.kernel
            variant = catalog.kernel(name).variant()
            built, _ = builds.build_all(
                [variant], [options.one_arch(None, gpu)], options.open_cache(), lambda _: None
            )
            if case.kernel == cublas.LABEL:
                baseline = owned.enter_context(cublas.CuBlas(context))
            session = owned.enter_context(
                Bench(context, rule=rule, regime=regime, baseline=baseline, seed=seed)
            )
            row = next(session.rows(built, points, lambda _: None))
            if row.samples is None:
                raise HarnessError(f"{row.label}, {case.n}: {row.detail}")
            found[regime], found[f"{regime}_mean"] = row.seconds, row.samples.summary.mean
            found["sm_hz"] = row.samples.sm_hz
            found["event_overhead"] = session.method.overhead if session.method else None
    return found
