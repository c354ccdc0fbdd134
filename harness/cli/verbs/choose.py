"""``harness choose``: show the fastest kernels in result files.

With ``--write`` it makes `harness.matmul` use them.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import click

from harness.errors import UsageError

_FILE = click.Path(dir_okay=False, path_type=Path)
_WIDTH = 18  # columns of a variant's name in the table


@click.command(name="choose")
@click.argument("files", metavar="RESULT.json...", type=_FILE, nargs=-1)
@click.option("--write", is_flag=True, help="Let harness.matmul take the fastest of each size from now on.")
@click.option("--forget", is_flag=True, help="Remove what --write has written: back to the shipped table.")
def command(files: tuple[Path, ...], write: bool, forget: bool) -> None:
    """Say what is the fastest at each size in results of `harness bench --sweep` or `harness tune`, and what
    harness.matmul takes there now.

    With --write it takes the fastest on that kind of GPU, at these sizes and those that have as many tiles;
    only where what it takes now was timed as well, as the kernel `matmul` or by name. The table of your own
    lies in ~/.config/harness/matmul.json (HARNESS_TABLE names another).
    """
    from harness.results import fastest, tables

    if forget:
        if files or write:
            raise UsageError("--forget goes by itself")
        gone = fastest.forget()
        click.echo(f"removed {gone}" if gone else "there is no table of your own")
        return
    if not files:
        raise UsageError(
            "no result files", hint="harness bench matmul KERNEL... --sweep -a N=512 --json FILE"
        )
    measured = fastest.measured(files)
    judged = list(fastest.judged(measured))
    cells = []
    several = len({found.point[:2] for found in judged}) > 1  # as of the records of a fleet
    for found in judged:
        gpu, sms, dtype, m, n, k = found.point
        now = "the same" if found.today.label == found.fastest.label else found.today.brief
        loses = "-" if found.regret is None else f"{found.regret:.1%}"
        quickest = textwrap.fill(found.fastest.brief, _WIDTH)
        size = str(n) if m == n == k else f"{m}x{n}x{k}"
        where = [textwrap.fill(f"{gpu}, {sms} SMs", _WIDTH)] if several else []
        time = tables.seconds(found.seconds)
        cells.append([*where, size, dtype, quickest, time, textwrap.fill(now, _WIDTH), loses])
    headings = ["n, or MxNxK", "type", "fastest", "time", "taken now", "loses"]
    headings = ["GPU", *headings] if several else headings
    click.echo(tables.plain_table(cells, headings))
    if not write:
        return
    known = {f.point: measured[f.point] for f in judged if f.regret is not None}
    if len(known) < len(judged):
        click.echo(f"{len(judged) - len(known)} left out: what is taken now was not timed there")
    if known:
        click.echo(f"written to {fastest.keep(fastest.entries(known))}")
