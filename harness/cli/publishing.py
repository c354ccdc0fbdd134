"""Options that write what a command found for other eyes than a terminal: pages, and files for CI servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness.cli import running
from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.bench.row import Measurement
    from harness.launch.builds import Skipped
    from harness.results.gates.findings import Reported
    from harness.results.html.annotated import Annotated

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)

html_file = click.option(
    "--html",
    "html_file",
    type=_FILE,
    metavar="FILE",
    help="Also write a page: the source with its instructions, counts and findings beside it.",
)

sarif_file = click.option(
    "--sarif", "sarif_file", type=_FILE, metavar="FILE", help="Also write the findings as SARIF 2.1.0."
)
github = click.option("--github", is_flag=True, help="Also print findings as annotations of GitHub Actions.")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The outputs beside the tables: files by their options' names, and whether to print annotations."""

    html_file: Path | None = None
    sarif_file: Path | None = None
    junit_file: Path | None = None
    github: bool = False

    def check(self, json_file: Path | None) -> None:
        """Raise HarnessError if a file or the record could not be written, before anything is computed."""
        from harness.results import record

        record.check_writable(json_file, self.sarif_file, self.junit_file, page=self.html_file)

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))

    def write(
        self, rows: Sequence[Measurement], compiled: Sequence[Measurement], skipped: Sequence[Skipped]
    ) -> HarnessError | None:
        """Write and print what is wanted of the emulator's rows; return the error if that fails.

        `compiled` has the same rows with accesses in the widths of the machine code, as far as they are
        known. An error is returned for `running.finish` to raise: a full disk does not cost the table.
        """
        from harness.cli.views import emulated
        from harness.results.gates import findings
        from harness.results.html.annotated import Annotated
        from harness.support import files

        unwritten = told(findings.reported(rows, skipped), self.sarif_file, github=self.github)
        shown: list[Annotated] = []
        if self.html_file is not None:
            widths = {(id(row.built), row.problem.label): row for row in compiled}
            groups = [group for _, group in running.by_kernel(r for r in rows if r.built is not None)]
            shown = [Annotated.of_rows(g, widths.get((id(g[0].built), g[0].problem.label))) for g in groups]
        try:
            if self.junit_file is not None:
                files.write_file(self.junit_file, findings.junit(rows, skipped).encode(errors="replace"))
        except HarnessError as e:
            unwritten = unwritten or e
        return unwritten or keep_page(self.html_file, shown, "check", emulated.guesses_of(rows))


def told(found: Sequence[Reported], sarif_file: Path | None, *, github: bool) -> HarnessError | None:
    """Write and print findings for CI servers; return the error if the file cannot be written."""
    from harness.results import record
    from harness.results.gates import findings
    from harness.support import files

    for line in findings.workflow_commands(found) if github else ():
        click.echo(line)
    if sarif_file is not None:
        log = findings.sarif(found, str(record.provenance()["harness"] or "0"))
        try:
            files.write_file(sarif_file, json.dumps(log, indent=1).encode() + b"\n")
        except HarnessError as e:
            return e
    return None


def options(command: F) -> F:
    """Add ``--html``, ``--sarif``, ``--junit`` and ``--github``; the command gets them as ``wanted``."""

    def collected(**given: Any) -> Any:
        own = {f.name: given.pop(f.name) for f in fields(Wanted)}
        return command(wanted=Wanted(**own), **given)

    collected.__doc__ = command.__doc__
    collected.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        github,
        click.option(
            "--junit", "junit_file", type=_FILE, metavar="FILE", help="Also write JUnit XML, a case a row."
        ),
        sarif_file,
        html_file,
    ):
        collected = option(collected)
    return collected  # type: ignore[return-value]


def keep_page(
    path: Path | None, kernels: Sequence[Annotated], verb: str, notes: Sequence[str] = ()
) -> HarnessError | None:
    """Write the page of annotated source to `path`, if there is one; return the error if that fails.

    `notes` stand below the source, before how the page was made.
    """
    from harness.results import record
    from harness.results.html import annotated
    from harness.support import files

    if path is not None:
        meta = record.provenance()
        content = annotated.page(kernels, annotated.title_of(kernels, verb), [*notes, annotated.made(meta)])
        try:
            files.write_file(path, content.encode(errors="replace"))
        except HarnessError as e:
            return e
    return None
