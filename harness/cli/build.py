from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness import arch as archs
from harness.cli import options

if TYPE_CHECKING:
    from harness.build import Cubin


@click.command(name="build")
@options.kernels
@options.params
@options.sweep
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
    arch: str | None,
    output: Path | None,
    style: str | None,
) -> None:
    """Compile kernels to cubins and show what ptxas says: registers, shared memory, spills.

    CUDA C++ goes through NVRTC, PTX through nvJitLink; neither needs a GPU.
    """
    from harness import build, report

    _, variants = options.variants(kernels, params, sweep=sweep)
    targets = options.archs(arch) or [archs.DEFAULT]
    cache = options.open_cache()
    rows = []
    with options.progress(len(variants) * len(targets)) as step:
        for target in targets:
            for variant in variants:
                step(f"{variant.label} {target}")
                cubin = build.compile_kernel(variant, target, cache)
                rows.append(_row(variant.kernel.name, variant.params_label, cubin))
                if output is not None:
                    _export(output, cubin)
                if cubin.warnings:
                    click.echo(cubin.warnings, err=True)
    headings = ["kernel", "params", "arch", "regs", "shared", "stack", "spills", "cubin"]
    click.echo(report.plain_table(rows, headings, style))
    click.echo(f"{cubin.compiler}; shared in bytes a block, stack and spills in bytes a thread.")


def _row(name: str, params: str, cubin: Cubin) -> list[str]:
    r = cubin.resources
    numbers = (r.registers, cubin.shared, r.stack, r.spill_stores + r.spill_loads, len(cubin.code))
    return [name, params or "-", cubin.arch, *map(str, numbers)]


def _export(folder: Path, cubin: Cubin) -> None:
    from harness import report

    stem = "-".join([cubin.variant.label.replace(" ", "-").replace("=", ""), cubin.arch])
    for suffix, data in ((".cubin", cubin.code), (".ptx", cubin.ptx.encode()), (".log", cubin.log.encode())):
        report.write_file(folder / f"{stem}{suffix}", data)
