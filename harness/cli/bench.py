from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import options
from harness.errors import ContextLost, HarnessError, MissingDependency, NoGpu

if TYPE_CHECKING:
    from harness.bench import Bench
    from harness.driver import Device
    from harness.measure import Measurement
    from harness.record import Record
    from harness.timing import StopRule


class _Finite(click.FloatRange):
    """click lets NaN and infinity through its ranges."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


_SECONDS = _Finite(min=0)


@click.command(name="bench")
@options.kernels
@options.params
@options.sweep
@options.axis
@options.device
@options.arch
@options.seed
@click.option("--min-samples", default=10, show_default=True, type=click.IntRange(min=1), help="Of each row.")
@click.option("--min-time", default=0.2, show_default=True, type=_SECONDS, help="Seconds of samples.")
@click.option(
    "--max-noise", default=0.5, show_default=True, type=_SECONDS, help="Percent; sampling goes on above it."
)
@click.option(
    "--timeout",
    default=2.0,
    show_default=True,
    type=_SECONDS,
    help="Seconds of samples after which noise no longer matters.",
)
@options.require_gpu
@options.markdown
@options.comma
@options.json_file
def command(
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    sweep: bool,
    axis: tuple[str, ...],
    device: str | None,
    arch: str | None,
    seed: int,
    min_samples: int,
    min_time: float,
    max_noise: float,
    timeout: float,
    require_gpu: bool,
    style: str | None,
    json_file: Path | None,
) -> None:
    """Time kernels beside cuBLAS, each verified before and after.

    Without a GPU the kernels are compiled and inspected all the same, and the columns that need one say
    so. Exit code 1 where a kernel failed, except one that its file marks as broken.
    """
    from harness import builds, record, report
    from harness.driver import Device
    from harness.timing import StopRule

    selected, variants = options.variants(kernels, params, sweep=sweep)
    points = options.points(selected, axis, "bench_axes")
    gpu: Device | None = None
    absent = ""
    try:
        gpu = Device.open(device or "0")
    except (NoGpu, MissingDependency) as e:
        if require_gpu:
            raise
        absent = f"No GPU ({e.what}): nothing verified or timed; see `harness doctor`."
    rule = StopRule(min_samples=min_samples, min_time=min_time, max_noise=max_noise / 100, timeout=timeout)
    if json_file is not None:
        record.check_writable(json_file)  # now, not after minutes of measuring
    rows: list[Measurement] = []
    fault: HarnessError | None = None
    meta = record.provenance(seed=seed)
    with ExitStack() as owned:
        step = owned.enter_context(options.progress(options.steps(variants, points if gpu else {})))
        target = options.one_arch(arch, gpu)
        built, skipped = builds.build_all(variants, [target], options.open_cache(), step)
        if gpu is not None:
            session, meta["gpu"] = _open(owned, gpu, rule, seed)
            rows, fault = options.collect(session.rows(built, points, step))
    meta["ended"] = str(fault) if fault else "complete"
    meta["skipped"] = [f"{s.variant.label}, {s.arch}: {s.error}" for s in skipped]
    static = [report.static_record(b) for b in built]
    records = [report.timed_record(r, gpu.peak_fp32) for r in rows] if gpu else static
    unwritten: HarnessError | None = None
    if json_file is not None:
        try:  # before anything is printed: a closed or full standard output must not cost the record
            record.write_json(json_file, record.document("bench", records, meta))
        except HarnessError as e:
            unwritten = e
    if style == "csv":
        click.echo(report.csv_table(records))
    else:
        _print(static, records if gpu else [], meta.get("gpu"), style)
    options.explain(rows, skipped, err=style == "csv")
    if absent:
        click.echo(f"\n{absent}", err=style == "csv")
    options.finish(rows, skipped, fault or unwritten)


def _open(owned: ExitStack, gpu: Device, rule: StopRule, seed: int) -> tuple[Bench, dict[str, Any]]:
    """A session on this GPU, closed with `owned`, and what a record should say about the two."""
    from harness import cublas
    from harness.bench import Bench
    from harness.driver import Context, driver_version

    context = owned.enter_context(Context(gpu))
    about = {**asdict(gpu), "driver": "{}.{}".format(*driver_version())}
    baseline = None
    try:
        baseline = owned.enter_context(cublas.CuBlas(context))
        about |= {"cublas": baseline.version, "math_mode": cublas.MATH_MODE}
    except ContextLost:
        raise
    except HarnessError as e:
        about["no_cublas"] = str(e)
    session = owned.enter_context(Bench(context, rule=rule, baseline=baseline, seed=seed))
    about["no_telemetry"] = session.sensor.unavailable
    return session, about


def _print(
    static: list[Record], timed: list[Record], about: Mapping[str, Any] | None, style: str | None
) -> None:
    """One table of what the kernels are, and one for each size of how they did."""
    from harness import report

    several = len({r["kernel"] for r in static}) < len(static)
    for row in [*static, *timed]:
        row["name"] = f"{row['kernel']} {report.params_text(row)}" if several else row["kernel"]
    if about is None:
        columns = (*(c for c in report.STATIC if c[0] != "params"), *report.GPU_ONLY)
        click.echo(report.table(static, columns, style))
        return
    click.echo(f"{about['name']}, {static[0]['arch']}, {static[0]['compiler']}, driver {about['driver']}")
    if "cublas" in about:
        click.echo(f"cuBLAS {about['cublas']}, {about['math_mode']}")
    for note in ("no_cublas", "no_telemetry"):
        if about.get(note):
            click.echo(about[note])
    click.echo()
    click.echo(report.table(static, [c for c in report.STATIC if not several or c[0] != "params"], style))
    for (_, shape), group in itertools.groupby(timed, key=lambda r: (r["problem"], r["shape"])):
        rows = list(group)
        click.echo(f"\n{_headline(shape, rows)}\n")
        click.echo(report.table(rows, report.TIMED, style))


def _headline(shape: str, rows: list[Record]) -> str:
    """``gemm 2048: cold (3 sets of operands, 151 MB), 1980 MHz, 310-640 W``."""
    text = f"{rows[0]['problem']} {shape}"
    measured = [r for r in rows if r["sets"]]
    if measured:
        sets, touched = measured[0]["sets"], measured[0]["bytes_touched"]
        text += f": {measured[0]['regime']} ({sets} sets of operands, {touched / 1e6:.0f} MB)"
    for key, unit in (("sm_mhz", "MHz"), ("power", "W")):
        seen = [round(r["device"][key]) for r in rows if r["device"]]
        if seen:
            low, high = min(seen), max(seen)
            text += f", {low} {unit}" if low == high else f", {low}-{high} {unit}"
    return text
