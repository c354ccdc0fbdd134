"""``harness list``: list kernels."""

from __future__ import annotations

import textwrap
from pathlib import Path

import click

from harness.cli import options
from harness.kernels import catalog
from harness.kernels.spec import Kernel
from harness.support import terminal

_COLUMN = 19
_WIDE = 110  # columns from which there is room for what a kernel was derived from


@click.command(name="list")
@options.kernels
@options.markdown
def command(kernels: tuple[str, ...], style: str | None) -> None:
    """Show the kernels there are: least architecture, element types, parameters, what each is.

    With --md, or on a wide terminal, also the kernel that each was derived from.
    """
    from tabulate import tabulate

    types: dict[tuple[Path, str], list[Kernel]] = {}  # a line for each file, or kernel of it
    for kernel in catalog.select(kernels) if kernels else catalog.shipped():
        types.setdefault((kernel.path.resolve(), kernel.entry), []).append(kernel)
    after = style == "md" or (terminal.columns() or 0) >= _WIDE
    rows = []
    for k, *others in types.values():
        params = " ".join(f"{n}={','.join(map(str, v))}" for n, v in k.params.items())
        title = f"{k.title} (broken)" if k.broken else k.title or "no front matter"
        texts = [params or "-", title] if style else map(_wrapped, (params or "-", title))
        names = (", " if style else "\n").join([k.dtype, *(other.dtype for other in others)])
        rows.append([k.name, k.min_arch, names, *([k.after or "-"] if after else []), *texts])
    headings = ["kernel", "from", "type", *(["after"] if after else []), "parameters", "what"]
    widths = None if style else [24, *[None] * (len(headings) - 1)]
    click.echo(tabulate(rows, headings, tablefmt=_style(style), maxcolwidths=widths))


def _wrapped(text: str) -> str:
    """Wrap a text to `_COLUMN` characters; a longer word stays whole."""
    return textwrap.fill(text, _COLUMN, break_long_words=False, break_on_hyphens=False)


def _style(style: str | None) -> str:
    """Return tabulate's name of a table style."""
    return "github" if style == "md" else "simple"
