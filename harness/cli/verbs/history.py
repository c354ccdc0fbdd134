"""``harness history``: find where times changed over many result files, and pass them on to services."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import options
from harness.errors import UsageError
from harness.support import terminal

if TYPE_CHECKING:
    from harness.results.gates.history import ChangePoint, Series

_FORMATS = click.Choice(["github-action-benchmark", "bencher", "asv"])


@click.command(name="history")
@click.argument("files", metavar="RESULT.json...", nargs=-1, type=click.Path(path_type=Path))
@options.threshold("2%", "What difference counts.")
@click.option("--fail", is_flag=True, help="Exit 1 where the newest change of some series is SLOW.")
@click.option("--all", "every", is_flag=True, help="Also print series that did not change.")
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write a page with a chart of each series.",
)
@click.option(
    "--export",
    "exported",
    multiple=True,
    type=(_FORMATS, click.Path(path_type=Path)),
    metavar="FORMAT PATH",
    help="Also write for github-action-benchmark or bencher (the newest run), or asv (its folder results).",
)
@options.markdown
@options.json_file
def command(
    files: tuple[Path, ...],
    threshold: float,
    fail: bool,
    every: bool,
    html_file: Path | None,
    exported: tuple[tuple[str, Path], ...],
    style: str | None,
    json_file: Path | None,
) -> None:
    """Say since when kernels are faster or slower, from many files that `harness bench --json` wrote.

    Results of one kernel, size and GPU are a series, in the order in which they were made. A change is where
    a permutation test finds one at 99%, which takes eleven results; its place and its size have intervals of
    95%. SLOW or FAST where that of the size lies outside the threshold.
    """
    from harness.results import record
    from harness.results.gates import exports, history
    from harness.results.html import history_page
    from harness.support.files import write_file

    if not files:
        raise UsageError("no result files", hint="harness history results/*.json")
    others = [path for form, path in exported if form != "asv"]  # which is a folder
    record.check_writable(json_file, *others, page=html_file, read=files)
    contents = {str(path): record.load(path) for path in files}
    contents = {name: c for name, c in contents.items() if c.get("kind", "bench") == "bench"}
    found = history.series(contents, threshold=threshold)
    meta = record.provenance()
    if json_file is not None:
        rows = history.history_record(found)
        record.write_json(json_file, record.document("history", rows, meta | {"threshold": threshold}))
    if html_file is not None:
        write_file(html_file, history_page.page(found, meta).encode(errors="replace"))
    for form, path in exported:
        exports.write(form, contents, path)
    _print(found, style, every=every)
    if fail and any(s.changes and s.changes[-1].status == "SLOW" for s in found):
        raise SystemExit(1)


def _print(found: Sequence[Series], style: str | None, *, every: bool) -> None:
    """Print a line for each change, and how many series have none."""
    from harness.results import tables
    from harness.results.gates.history import LEAST

    rows = [[s.name, *_cells(s, c)] for s in found for c in s.changes]
    if every:
        rows += [[s.name, "-", "-", "-", "no change"] for s in found if not s.changes]
    if rows:
        click.echo(tables.plain_table(rows, ["series", "since", "between", "time", "status"], style))
    still = sum(not s.changes for s in found)
    short = sum(len(s.points) < LEAST for s in found)
    said = f"{len(found)} series of {min(len(s.points) for s in found)} to "
    said += f"{max(len(s.points) for s in found)} results; {still} without a change"
    said += f", of which {short} have fewer than {LEAST} results: too few to tell" if short else ""
    click.echo(terminal.fill(said))


def _cells(s: Series, c: ChangePoint) -> list[str]:
    """Return when and how a series changed: the first result after it, the bounds of its place, the ratio."""
    first, last = s.points[c.first - 1], s.points[c.last]
    r = c.ratio
    percent = f"{100 * (r.estimate - 1):+.1f}% ({100 * (r.low - 1):+.1f} to {100 * (r.high - 1):+.1f})"
    return [_when(s, c.at), f"{first.utc[:10]} and {last.utc[:10]}", percent, c.status]


def _when(s: Series, at: int) -> str:
    """Return the date and the commit of a point."""
    point = s.points[at]
    return " ".join(filter(None, (point.utc[:16].replace("T", " "), point.commit[:10]))) or point.file
