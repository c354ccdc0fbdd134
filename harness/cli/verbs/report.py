"""``harness report``: make an HTML page of record files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.results.html.page import Part


@click.command(name="report")
@click.argument("files", metavar="RECORD.json...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    metavar="FILE",
)
@click.option("--title", default="CUDA kernels, measured", show_default=True)
@click.option(
    "--plots",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Also write each chart there as SVG and PNG.",
)
def command(files: tuple[Path, ...], output: Path, title: str, plots: Path | None) -> None:
    """Make one page of what was recorded: charts, tables, findings, provenance. No GPU, no network.

    Takes the --json files of bench, profile, check, verify, sass and explain --claims. Records of different
    GPUs are kept apart. Needs matplotlib: pip install '.[report]' from a checkout.
    """
    from harness.results import record
    from harness.results.html import charts, page
    from harness.support.files import write_file

    if not files:
        raise UsageError("no record files", hint="harness report records/*/*/*.json -o report.html")
    record.check_writable(page=output, read=files)
    contents = {name: record.load(path) for name, path in zip(_names(files), files, strict=True)}
    if len(contents) < len(files):
        raise UsageError("two of the files have the same name", hint="a page names its sources by it")
    write_file(output, page.page(contents, title).encode(errors="replace"))
    found = page.parts(contents)
    if plots is not None:
        for i, part in enumerate(found):
            for chart in page.figures(part, page.palette(found), few=True):
                charts.save(chart.figure, plots, chart.name if len(found) == 1 else f"{chart.name}-{i + 1}")
    click.echo(f"{output}: {output.stat().st_size / 1e6:.2f} MB, {_cards(found) or 'no GPU'}")


def _names(files: Sequence[Path]) -> list[str]:
    """Return what a page calls its sources: their file names, with the folder where two are alike."""
    names = [path.name for path in files]
    return [n if names.count(n) == 1 else f"{p.parent.name}/{n}" for n, p in zip(names, files, strict=True)]


def _cards(found: Sequence[Part]) -> str:
    """Return the number of cards of each model, ``4 x NVIDIA H200``."""
    return ", ".join(f"{n} x {gpu}" if n > 1 else gpu for gpu, n in Counter(p.gpu for p in found).items())
