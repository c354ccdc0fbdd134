"""``harness profile``: count kernels with Nsight Compute, or show reports of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from harness.cli import options, publishing, running
from harness.errors import CountersDenied, HarnessError, MissingDependency, NoGpu, UsageError
from harness.kernels import catalog

if TYPE_CHECKING:
    from harness.driver import Device
    from harness.instruments.ncu_reports import Profile
    from harness.kernels.spec import Variant
    from harness.problems.protocol import Axes, Problem
    from harness.results.html.annotated import Annotated
    from harness.results.rows import ProfileRow


@click.command(name="profile")
@options.kernels
@options.params
@options.axis
@options.dtype
@click.option(
    "--set",
    "sections",
    type=click.Choice(["basic", "detailed", "full"]),
    default="basic",
    show_default=True,
    help="Of ncu's sections, beside the metrics that are printed.",
)
@click.option("--metrics", default="", metavar="A,B", help="Print these of ncu's metrics, too.")
@click.option(
    "--clock-control",
    "clocks",
    type=click.Choice(["none", "base"]),
    default="none",
    show_default=True,
    help="base: ncu holds the clocks at the rated ones.",
)
@click.option(
    "--from",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read a report in place of running: ncu's raw page as CSV, an .ncu-rep, a --json file of this.",
)
@options.seed
@options.require_gpu
@options.markdown
@options.comma
@options.json_file
@publishing.html_file
def command(
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    axis: tuple[str, ...],
    dtypes: tuple[str, ...],
    sections: str,
    metrics: str,
    clocks: str,
    files: tuple[Path, ...],
    seed: int,
    require_gpu: bool,
    style: str | None,
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Count one launch of each kernel with Nsight Compute, side by side, and say what holds each back.

    Metrics carry ncu's own names; harness/instruments/diagnosis.py holds the rules and their thresholds.
    Without a GPU, ncu or the right to read counters: machine code, occupancy and the emulator's counts.
    """
    from harness.cli.views import profiled
    from harness.results import record

    more = [name.strip() for name in metrics.split(",") if name.strip()]
    record.check_writable(json_file, page=html_file, read=files)
    gpu: Device | None = None
    fault: HarnessError | None = None
    if files:
        if (kernels and html_file is None) or params or axis or dtypes:
            raise UsageError(
                "--from reads reports: no kernel, -p, -a or --dtype with it",
                hint="with --html, a KERNEL names the source of what was profiled",
            )
        variants = options.variants(kernels, ())[1] if kernels else []
        rows = [row for path in files for row in _load(path, more)]
    else:
        selected, variants = options.variants(kernels, params, dtypes=dtypes)
        points = options.points(selected, axis, "bench_axes")
        if axis and any(len(listed) != 1 for listed in points.values()):
            raise UsageError("one launch of each kernel is profiled: one size, such as -a N=2048")
        at = {cls: listed[0] if axis else options.typical(listed) for cls, listed in points.items()}
        how = {"sections": sections, "metrics": more, "clocks": clocks, "seed": seed}
        try:
            gpu, _ = options.open_device(None, required=True)
            rows, fault = _measure(gpu, variants, at, how)
        except (NoGpu, MissingDependency, CountersDenied) as e:
            if require_gpu:
                raise
            _without(e, variants, axis, seed, style, html_file)
            return
    if json_file is not None:
        meta = record.provenance(seed=seed) | ({"gpu": options.about(gpu)} if gpu else {})
        fault = fault or running.keep(json_file, "profile", [r for _, r in rows], meta)
    if html_file is not None:
        shown = [_annotated(p, row, variants) for p, row in rows]
        unwritten = publishing.keep_page(html_file, shown, "profile")
        fault = fault or unwritten
    if rows:
        profiled.print_profiles([p for p, _ in rows], more, style)
    if fault is not None:
        raise fault


def _load(path: Path, more: Sequence[str]) -> list[tuple[Profile, ProfileRow]]:
    """Return the profiles in a report of ncu or a record, with their rows. Raises UsageError if there is
    none.
    """
    from harness.instruments import ncu_reports
    from harness.results import encode, record

    if path.suffix != ".json":
        return [(p, encode.profile_record(p, more)) for p in ncu_reports.load(path)]
    content = record.load(path)
    if content.get("kind") != "profile" or not content["rows"]:
        raise UsageError("no profile in it", where=str(path), hint="harness profile --json writes one")
    return [(encode.profile_of(row), row) for row in content["rows"]]


def _annotated(p: Profile, row: ProfileRow, variants: Sequence[Variant]) -> Annotated:
    """Return the source that a profile is of, with its samples.

    The source is that of the variant with the profile's label, of the only one with its function, or of a
    shipped kernel. Without any of these, the lines that the profile quotes take its place.
    """
    from harness.kernels.arch import Arch
    from harness.launch import builds
    from harness.results.html.annotated import Annotated, quotes

    own = [v for v in variants if v.label == p.label] or [
        v for v in variants if v.kernel.entry == p.function.partition("(")[0]
    ]
    if not own and not variants and row.get("kernel"):
        with contextlib.suppress(UsageError):  # a kernel of somebody's own, or of another version
            own = [catalog.kernel(row["kernel"]).variant(**row.get("params", {}))]
    if len(own) != 1:
        return Annotated.of_profile(p)
    kernel = own[0].kernel
    if p.hotspots is not None and not quotes(p.hotspots, kernel.path.name, kernel.source):
        return Annotated.of_profile(p)  # the file was changed since: samples would stand at other lines
    arch = str(Arch.of_capability(*map(int, p.capability.split("."))))
    (built,), _ = builds.build_all(own, [arch], options.open_cache(), lambda _: None, depth="live")
    return Annotated.of_built(built, p.hotspots)


def _measure(
    gpu: Device | None, variants: Sequence[Variant], at: Mapping[type[Problem], Axes], how: Mapping[str, Any]
) -> tuple[list[tuple[Profile, ProfileRow]], HarnessError | None]:
    """Profile one launch of each kernel; return the profiles with their rows, and the first fault.

    A kernel that fails does not cost the others. Raises CountersDenied without the right to read counters.
    """
    from harness.instruments import ncu
    from harness.launch import builds
    from harness.problems.registry import resolve
    from harness.results import encode
    from harness.support import tools

    tools.require("ncu")
    rows: list[tuple[Profile, ProfileRow]] = []
    fault: HarnessError | None = None
    with running.progress(2 * len(variants)) as step:
        target = [options.one_arch(None, gpu)]
        built, skipped = builds.build_all(variants, target, options.open_cache(), step)
        fault = next((s.error for s in skipped if s.failed), None)
        for one in built:
            step(f"ncu {one.variant.label}")
            cls = resolve(one.variant.kernel)
            try:
                p = ncu.profile(one.variant, at[cls], **how)
            except CountersDenied:
                raise
            except HarnessError as e:
                fault = fault or e
                continue
            found = encode.profile_record(p, how["metrics"])
            found |= {"shape": cls.from_axes(at[cls]).label, "axes": dict(at[cls])}
            rows.append((p, cast("ProfileRow", {**encode.static_record(one), **found})))
    return rows, fault


def _without(
    reason: HarnessError,
    variants: Sequence[Variant],
    axis: Sequence[str],
    seed: int,
    style: str | None,
    html_file: Path | None,
) -> None:
    """Print what is known of the kernels without counters: machine code, occupancy and the emulator's
    counts.
    """
    from harness.bench import emulation
    from harness.cli.views import emulated, machine_code
    from harness.launch import builds
    from harness.results import encode
    from harness.sass.code import Code

    click.echo(f"no counters: {reason}\n{_HOW}\n")
    with running.progress(3 * len(variants)) as step:
        target = [options.one_arch(None, None)]
        built, skipped = builds.build_all(variants, target, options.open_cache(), step, depth="live")
        points = options.points([v.kernel for v in variants], axis, "verify_axes")
        small = {cls: listed if axis else listed[:1] for cls, listed in points.items()}
        rows, fault = running.collect(emulation.rows(built, small, emulation.Options(seed=seed), step))
    unwritten = publishing.Wanted(html_file=html_file).write(rows, [], skipped)
    fault = fault or unwritten
    codes = [Code.of(b.cubin, b.sass) for b in built if b.sass is not None]
    if codes:
        machine_code.print_summary(codes, style)
        click.echo()
    machine_code.print_occupancy(codes, style)
    click.echo()
    emulated.print_rows(rows, style)
    running.name_shapes(small)
    click.echo(emulated.NOTE)
    records = [encode.emulated_record(row) for row in rows]
    running.explain(records, skipped)
    running.finish(records, skipped, fault)


_HOW = (
    "ncu comes with the CUDA toolkit; reading counters takes root, or the nvidia\n"
    "module loaded with NVreg_RestrictProfilingToAdminUsers=0; a report made\n"
    "elsewhere is read with --from."
)
