from __future__ import annotations

import click

from harness import catalog, spec
from harness.cli import options


@click.command(name="list")
@options.kernels
@options.markdown
def command(kernels: tuple[str, ...], style: str | None) -> None:
    """Show the kernels there are: least architecture, element type, parameters, what each is."""
    from tabulate import tabulate

    found = catalog.select(kernels) if kernels else [spec.load(p) for p in catalog.files()]
    rows = []
    for k in found:
        params = " ".join(f"{n}={','.join(map(str, v))}" for n, v in k.params.items())
        title = f"{k.title} (broken)" if k.broken else k.title
        rows.append([k.name, k.min_arch, k.dtype, params or "-", title])
    widths = None if style else [24, None, None, 20, 20]
    headings = ["kernel", "from", "type", "parameters", "what"]
    click.echo(tabulate(rows, headings, tablefmt=_style(style), maxcolwidths=widths))


def _style(style: str | None) -> str:
    return "github" if style == "md" else "simple"
