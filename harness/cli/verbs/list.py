"""``harness list``: list kernels, a line each; those that are named with all that their files say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from harness.cli import options
from harness.kernels import catalog
from harness.kernels.spec import Kernel
from harness.support import terminal

_GAP = 2
_LEAST = 24  # characters of a title that is cut off
_PARAMETERS = 36  # characters from which there is room for parameters


@click.command(name="list")
@options.kernels
@options.markdown
def command(kernels: tuple[str, ...], style: str | None) -> None:
    """Show the kernels there are: least architecture, element types, what each is.

    With KERNEL also parameters, and the kernel that it was derived from, as with --md and on a wide terminal.
    """
    from tabulate import tabulate

    types: dict[tuple[Path, str], list[Kernel]] = {}  # one for each file, or kernel of it
    for kernel in catalog.select(kernels) if kernels else catalog.shipped():
        types.setdefault((kernel.path.resolve(), kernel.entry), []).append(kernel)
    rows = [_row(found) for found in types.values()]
    if style is None and kernels:
        click.echo("\n".join(map(_told, rows)))
        return
    shown = dict.fromkeys(rows[0]) if style else _that_fit(rows)
    cells = [[_cut(row[name], width) for name, width in shown.items()] for row in rows]
    widths = [None if name != "parameters" else width for name, width in shown.items()]
    form = "github" if style else "simple"
    click.echo(tabulate(cells, list(shown), tablefmt=form, maxcolwidths=None if style else widths))
    if "parameters" not in shown:
        click.echo(terminal.fill("\nharness list KERNEL: its parameters, and all that its title says"))


def _row(found: Sequence[Kernel]) -> dict[str, str]:
    """Return what is said of a file's kernel, which may have several element types, by heading."""
    k = found[0]
    title = k.title or "no front matter"
    types = k.dtypes if k.dtype == k.dtypes[0] else [kernel.dtype for kernel in found]
    return {
        "kernel": k.name,
        "from": k.min_arch,
        "type": ", ".join(types),
        "what": f"{title} (broken)" if k.broken else title,
        "after": k.after or "-",
        "parameters": " ".join(f"{n}={','.join(map(str, v))}" for n, v in k.params.items()) or "-",
    }


def _told(row: Mapping[str, str]) -> str:
    """Return the lines on one kernel."""
    title = terminal.fill(f"{row['kernel']}: {row['what']}")
    more = [f"from {row['from']}, {row['type']}"]
    more += [f"after {row['after']}"] if row["after"] != "-" else []
    more += [row["parameters"]] if row["parameters"] != "-" else []
    return "\n".join([title, *(terminal.fill(text, " " * 6, start="    ") for text in more)])


def _that_fit(rows: Sequence[Mapping[str, str]]) -> dict[str, int | None]:
    """Return the columns for which the terminal has room, with the width of one that is cut or wrapped."""
    columns = terminal.columns()
    whole = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    if columns is None:
        return dict.fromkeys(whole)

    def left(*names: str) -> int:
        return columns - sum(whole[name] + _GAP for name in names)

    first = "kernel", "from", "type"
    if (room := left(*first)) < whole["what"]:
        return {**dict.fromkeys(first), "what": max(room, _LEAST)}
    shown = dict.fromkeys((*first, "what", *(["after"] if left(*first, "what") >= whole["after"] else [])))
    room = left(*shown)
    return {**shown, "parameters": room} if "after" in shown and room >= _PARAMETERS else shown


def _cut(text: str, width: int | None) -> str:
    """Return a text of at most `width` characters: up to a colon or comma if there is one, else to a word."""
    if width is None or len(text) <= width or "=" in text:
        return text
    mark = " (broken)" if text.endswith(" (broken)") else ""
    room = width - len(mark)
    ends = [at.start() for at in re.finditer(r"[:,](?= )", text) if at.start() <= room]
    if ends:
        return text[: ends[-1]] + mark
    return text[: max(room - 3, 0)].rpartition(" ")[0] + "..." + mark
