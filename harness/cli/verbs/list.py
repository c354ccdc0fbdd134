"""``harness list``: list kernels."""

from __future__ import annotations

import textwrap

import click

from harness.cli import options
from harness.kernels import catalog, spec

_COLUMN = 20


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
        texts = [params or "-", title] if style else map(_wrapped, (params or "-", title))
        rows.append([k.name, k.min_arch, k.dtype, *texts])
    widths = None if style else [24, None, None, None, None]
    headings = ["kernel", "from", "type", "parameters", "what"]
    click.echo(tabulate(rows, headings, tablefmt=_style(style), maxcolwidths=widths))


def _wrapped(text: str) -> str:
    """Wrap a text to `_COLUMN` characters; a longer word stays whole."""
    return textwrap.fill(text, _COLUMN, break_long_words=False, break_on_hyphens=False)


def _style(style: str | None) -> str:
    """Return tabulate's name of a table style."""
    return "github" if style == "md" else "simple"
