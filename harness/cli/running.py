"""Run a command: progress bar, rows with what ended them early, remarks below the table, and exit code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness.cli import streams
from harness.errors import INCONCLUSIVE_EXIT, HarnessError, Interrupted, SpecError
from harness.support import signals, terminal

if TYPE_CHECKING:
    from harness.bench.row import Measurement
    from harness.kernels.spec import Kernel, Variant
    from harness.launch.builds import Built, Skipped
    from harness.problems.protocol import Axes, Problem
    from harness.results.rows import Row

T = TypeVar("T")


@contextmanager
def progress(total: int, about: str = "") -> Iterator[Callable[[str], None]]:
    """Show a progress bar on stderr if that is a terminal, below the line `about` if there is one; yield a
    function to call with each step's name as it begins.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _step: None
        return
    from tqdm import tqdm

    if about:
        click.echo(terminal.fill(about), err=True)
    out = streams.unfiltered(sys.stderr)
    with tqdm(
        total=total, file=out, leave=False, bar_format="{n_fmt}/{total_fmt} {bar:20} {elapsed} {desc}"
    ) as bar:
        begun = False

        def step(name: str) -> None:
            nonlocal begun
            bar.update(begun)  # the step before this one is done
            begun = True
            bar.set_description_str(name)

        yield step


def steps(
    variants: Sequence[Variant],
    points: Mapping[type[Problem], Sequence[Axes]],
    rounds: int = 1,
    *,
    baseline: bool = True,
) -> int:
    """Return how many steps a run reports to `progress`.

    There is one step for each build, and in each round one for each row and two for each point: inputs and
    `baseline`, which the emulator has not.
    """
    from harness.problems.registry import resolve

    rows = sum(len(points.get(resolve(v.kernel), ())) for v in variants)
    return len(variants) + rounds * (rows + (1 + baseline) * sum(map(len, points.values())))


def collect(rows: Iterable[T]) -> tuple[list[T], HarnessError | None]:
    """Return all rows; or those before a fault or Ctrl-C, with the error."""
    found: list[T] = []
    try:
        for row in rows:
            found.append(row)  # one at a time, so that rows before an error are kept
    except HarnessError as e:
        return found, e
    except KeyboardInterrupt:
        return found, Interrupted("interrupted: these are the rows measured before", signals.exit_code())
    return found, None


def of_sizes_taken(
    rows: Iterable[Measurement], left_out: dict[str, list[str]] | None
) -> Iterator[Measurement]:
    """Yield the rows but those of sizes that a kernel's ``requires`` excludes, which go into `left_out` by
    reason; where that is None, yield all of them.

    A kernel that takes none of the sizes keeps its first row, which is an error.
    """
    from harness.launch.kernel import unmet

    if left_out is None:
        yield from rows
        return
    held: dict[str, Measurement] = {}
    run: set[str] = set()
    for row in rows:
        condition = ""
        if row.failed and row.built is not None:
            with suppress(SpecError):  # of `requires` itself: the row tells it
                condition = unmet(row.built.variant, row.problem)
        if condition:
            held.setdefault(row.label, row)
            left_out.setdefault(f"{row.label} requires {condition}", []).append(row.problem.label)
        else:
            run.add(row.label)
            yield row
    yield from (row for label, row in held.items() if label not in run)


def tell(left_out: Mapping[str, Sequence[str]], *, err: bool = False) -> None:
    """Print which of the default sizes were left out, and why."""
    for reason, shapes in left_out.items():
        click.echo(terminal.fill(f"left out: {', '.join(shapes)}: {reason}"), err=err)


def tell_templates(kernels: Sequence[Kernel]) -> None:
    """Print the templates of files without front matter of which no instance is among `kernels`."""
    from harness.kernels import text

    for source, name in {k.source: k.path.name for k in kernels if k.plain}.items():
        named = [k.entry.partition("<")[0].strip() for k in kernels if k.source == source]
        for entry in text.entries(source):
            if entry.template and entry.name not in named:
                said = (
                    f"left out: {entry} of {name}, a template; --entry '{entry.name}<...>' names an instance"
                )
                click.echo(terminal.fill(said), err=True)


def keep(
    path: Path | None, kind: str, records: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]
) -> HarnessError | None:
    """Write a record to `path`, if there is one; return the error if it cannot be written.

    Called before anything is printed, so that a full standard output does not cost the record; and the error
    is returned, for `finish` to raise, so that a full disk does not cost the table.
    """
    from harness.results import record

    if path is not None:
        try:
            record.write_json(path, record.document(kind, records, meta))
        except HarnessError as e:
            return e
    return None


def by_kernel(rows: Iterable[Measurement]) -> list[tuple[str, list[Measurement]]]:
    """Group rows by what was built, and return each group with its label. Two files may have the same
    name.
    """
    groups: dict[int, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(id(row.built), []).append(row)
    return [(group[0].label, group) for group in groups.values()]


def name_shapes(points: Mapping[type[Problem], Sequence[Axes]], rows: Sequence[Measurement] = ()) -> None:
    """Print all shapes, below a table that has no room for them; those of `rows` where a guess was mended."""
    from harness.problems.protocol import unverified

    said = []
    for cls, axes_list in points.items():
        found = [row.problem for row in rows if type(row.problem) is cls and unverified(row.problem)]
        found = found or [cls.from_axes(a) for a in axes_list]
        whole = [problem.label.replace(" ", "\N{NO-BREAK SPACE}") for problem in found]
        said.append(terminal.fill(f"shapes: {', '.join(whole)}", " " * 8))
    for text in dict.fromkeys(said):  # kernels without front matter have a problem each
        click.echo(text.replace("\N{NO-BREAK SPACE}", " "))


def explain(rows: Sequence[Row], skipped: Sequence[Skipped], *, err: bool = False) -> None:
    """Print, below a table, why rows are not ok and why kernels were skipped. A reason that several share is
    printed once.
    """
    from harness.bench.row import REFUSED
    from harness.results.rows import label

    said: dict[str, list[Row]] = {}
    for row in rows:
        if row["status"] != "ok" and row["detail"]:
            # Refusals are grouped by their first line, what the emulator lacks: the line of source differs.
            reason = row["detail"].split("\n")[0] if row["status"] == REFUSED else row["detail"]
            said.setdefault(reason, []).append(row)
    for reason, group in said.items():
        where = f"{label(group[0])}, {group[0]['shape']}" if len(group) == 1 else _where(group, rows)
        whole = {row["detail"] for row in group}
        click.echo(terminal.fill(f"{where}: {whole.pop() if len(whole) == 1 else reason}"), err=err)
    why: dict[str, list[str]] = {}
    for s in skipped:
        name, error = (s.variant.label, str(s.error)) if s.failed else (s.variant.kernel.name, s.error.what)
        why.setdefault(f"{s.arch}: {error}", []).append(name)
    for error, names in why.items():
        click.echo(terminal.fill(f"skipped {', '.join(dict.fromkeys(names))}, {error}"), err=err)


def _where(group: Sequence[Row], rows: Sequence[Row]) -> str:
    """Return the kernels of a group of rows, with how many of their rows if not all: ``22_wgmma (2 of
    5)``.
    """
    hit, all_ = (Counter(row["kernel"] for row in listed) for listed in (group, rows))
    return ", ".join(name if n == all_[name] else f"{name} ({n} of {all_[name]})" for name, n in hit.items())


def warn(built: Iterable[Built]) -> None:
    """Print the compiler's warnings on stderr, each once.

    A variable that is read before it is set shows nowhere else: the compiler takes it for 0.
    """
    for text in dict.fromkeys(one.cubin.warnings for one in built if one.cubin.warnings):
        click.echo(text, err=True)


def finish(
    rows: Sequence[Row],
    skipped: Sequence[Skipped],
    fault: HarnessError | None = None,
    late: str = "",
    *,
    allow_refused: bool = True,
) -> None:
    """Exit as the run ended: raise `fault`, or exit with code 1 if a row or the build of a kernel failed.

    Exit with code 3 if nothing failed, but the emulator refused a row, or had no time for what the remark
    `late` names, and `allow_refused` is False: these were not verified.
    """
    from harness.bench.row import FAILURES, REFUSED

    if late:
        click.echo(terminal.fill(late), err=True)
    if fault is not None:
        raise fault
    if any(r["status"] in FAILURES for r in rows) or any(s.failed for s in skipped):
        raise SystemExit(1)
    refused = [r for r in rows if r["status"] == REFUSED]
    if refused and not allow_refused:
        said = f"{len(refused)} of {len(rows)} not verified: they need a GPU; exit code {INCONCLUSIVE_EXIT}"
        click.echo(terminal.fill(f"{said} (--allow-refused: 0)"), err=True)
        raise SystemExit(INCONCLUSIVE_EXIT)
    if late and not allow_refused:
        raise SystemExit(INCONCLUSIVE_EXIT)


def conclude(decisions: Iterable[str | None]) -> None:
    """Exit with code 1 if something is slower, with 3 if something is inconclusive; else return."""
    from harness.bench.stats import INCONCLUSIVE, SLOW

    found = set(decisions)
    if SLOW in found:
        raise SystemExit(1)
    if INCONCLUSIVE in found:
        raise SystemExit(INCONCLUSIVE_EXIT)
