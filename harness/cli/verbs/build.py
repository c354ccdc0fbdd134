"""``harness build``: compile kernels, show their resources, and export them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import options, running
from harness.errors import UsageError
from harness.kernels import arch as archs
from harness.support import terminal

if TYPE_CHECKING:
    from harness.kernels.compiler import Cubin


@click.command(name="build")
@options.kernels
@options.params
@options.sweep
@options.dtype
@options.entry
@options.include
@options.arch
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write .cubin, .ptx and .log here.",
)
@options.markdown
def command(
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    sweep: bool,
    dtypes: tuple[str, ...],
    entry: str | None,
    include: tuple[str, ...],
    arch: str | None,
    output: Path | None,
    style: str | None,
) -> None:
    """Compile kernels to cubins and show what ptxas says: registers, shared memory, spills.

    CUDA C++ goes through NVRTC, PTX through nvJitLink; neither needs a GPU. A .cu file needs no front matter.
    """
    from harness.launch import builds
    from harness.results import tables

    _, variants = options.variants(kernels, params, sweep=sweep, dtypes=dtypes, entry=entry, include=include)
    targets = options.archs(arch) or [archs.DEFAULT]
    with running.progress(len(variants) * len(targets)) as step:
        built, skipped = builds.build_all(variants, targets, options.open_cache(), step, depth="cubin")
    cubins = [b.cubin for b in built]
    if output is not None:
        stems = [_stem(cubin) for cubin in cubins]
        if len(set(stems)) < len(stems):
            raise UsageError("two of these kernels share a name: -o would lose one", hint="export them apart")
        for stem, cubin in zip(stems, cubins, strict=True):
            _export(output / stem, cubin)
    for cubin in cubins:
        if cubin.warnings:
            click.echo(cubin.warnings, err=True)
    rows = [_row(cubin) for cubin in cubins]
    headings = ["kernel", "params", "arch", "regs", "shared", "stack", "spills", "cubin"]
    click.echo(tables.plain_table(rows, headings, style))
    compilers = " and ".join(dict.fromkeys(c.compiler for c in cubins))
    click.echo(terminal.fill(f"{compilers}; shared: bytes a block, stack, spills: bytes a thread."))
    running.explain([], skipped, err=True)
    running.finish([], skipped)


def _row(cubin: Cubin) -> list[str]:
    """Return the table row of one cubin."""
    name, params = cubin.variant.kernel.name, cubin.variant.params_label
    r = cubin.resources
    numbers = (r.registers, cubin.shared, r.stack, r.spill_stores + r.spill_loads, len(cubin.code))
    return [name, params or "-", cubin.arch, *map(str, numbers)]


def _stem(cubin: Cubin) -> str:
    """Return the stem of the exported files, ``03_tiled-TILE16-sm_90a``."""
    name = re.sub(r"[^\w.+-]+", "_", cubin.variant.label.replace(" ", "-").replace("=", ""))
    return f"{name.rstrip('_')}-{cubin.arch}"


def _export(stem: Path, cubin: Cubin) -> None:
    """Write the cubin, its PTX and the compiler's log."""
    from harness.support import files

    for suffix, data in ((".cubin", cubin.code), (".ptx", cubin.ptx.encode()), (".log", cubin.log.encode())):
        files.write_file(stem.with_name(stem.name + suffix), data)
