"""Run kernels in child processes, so that a fault or a hang ends such a process only: with ``--isolate`` from
the beginning, without it for what is left after a fault.

A child runs the same command once more, and writes its measurements to a file as it goes: ``harness bench``
and ``harness verify`` the rows of one kernel, ``harness tune`` its journal. What it had measured before it
died is kept, and the next child goes on with the others.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import options
from harness.errors import HarnessError
from harness.support import tools
from harness.support.children import Ended, failure, lines, watch

if TYPE_CHECKING:
    from harness.cli.session import Points
    from harness.driver import Device
    from harness.launch.builds import Built
    from harness.results.record import Document
    from harness.results.rows import Row

SUPERVISED = "--supervised"
AGAIN = 75  # exit code of a child tuning after a fault that is in its journal: run it again
_GRACE = 10  # seconds for a tuning to write down what it has, after Ctrl-C


def command_line(
    ctx: click.Context, word: str, changes: Mapping[str, Any], *, without: Collection[str] = ()
) -> list[str]:
    """Return the command that runs this command again in a child, on the kernel `word`.

    Options are as they were given here, except for `changes` (by parameter name) and those in `without`.
    """
    given = {**ctx.params, **changes}
    found = [sys.executable, "-m", "harness", str(ctx.command.name), word]
    for param in ctx.command.params:
        if isinstance(param, click.Option) and param.name is not None and param.name not in without:
            found += _spelled(param, given[param.name])
    return found


def _spelled(option: click.Option, value: Any) -> list[str]:
    """Return an option with its value as words of a command line; nothing if it has no value."""
    name = next(o for o in option.opts if o.startswith("--"))
    if option.is_flag:
        wanted = option.flag_value if isinstance(option.flag_value, str) else True  # --md gives "md"
        return [name] if value == wanted else []
    if value is None:
        return []
    listed = value if option.multiple else [value]
    percent = isinstance(option.type, options.Percent)
    return [f"{name}={100 * one!r}" if percent else f"{name}={one}" for one in listed]


# ---- bench and verify


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a child.

    `about` is what it wrote about the GPU before its first row. `error` says why it did not finish, empty if
    it did; `interrupted` is True if the reason was Ctrl-C, `hung` if its time was over.
    """

    rows: tuple[Row, ...]
    about: Document
    error: str
    interrupted: bool = False
    hung: bool = False


def of_kernel(one: Built) -> dict[str, Any]:
    """Return the options of ``harness bench``, by parameter name, that name just this build."""
    kernel = one.variant.kernel
    return {
        "entry": kernel.entry if kernel.plain else None,
        "dtypes": [kernel.dtype] if len(kernel.dtypes) > 1 else [],
        "params": [f"{name}={value}" for name, value in one.variant.params.items()],
        "arch": one.cubin.arch,
        "require_gpu": True,
    }


def in_order(records: Iterable[Row], points: Points) -> list[Row]:
    """Sort rows by size, as they are without --isolate; rows of the same size keep their order."""
    shapes = [cls.from_axes(axes).label for cls, listed in points.items() for axes in listed]
    return sorted(records, key=lambda r: shapes.index(r["shape"]))


def run_child(command: Sequence[str], timeout: float) -> Outcome:
    """Run `command` with ``--rows FILE`` appended, and return what it wrote.

    It is killed after `timeout` seconds, or on Ctrl-C.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows")
        path.touch()
        ended = watch([*command, "--rows", str(path)], timeout, env=tools.environment(), captured=True)
        about, *rows = lines(path.read_text()) or [{}]
    return Outcome(
        rows=tuple(rows),
        about=about,
        error=failure(ended),
        interrupted=ended.interrupted,
        hung=ended.hung,
    )


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Append one line to the file that `run_child` reads."""
    with path.open("a") as file:
        file.write(json.dumps(line, allow_nan=False) + "\n")


# ---- tune


def tune(ctx: click.Context, gpu: Device, path: Path | None, timeout: float, spent: float = 0.0) -> int:
    """Run the tuning in a child, and again without the candidate that ended it; return the last child's exit
    code.

    This process has `spent` seconds on it before.

    `path` is the journal's. A candidate's name is written there before it is launched, so the one that was in
    flight when the child ended is known, and gets an error row. `timeout` is in seconds without progress.
    Raises HarnessError if there is no journal, or if a child ends without having begun another candidate.
    """
    from harness.tune.journal import Journal

    if path is None:
        raise HarnessError(
            "--isolate needs a place to keep what is measured",
            hint="set HARNESS_CACHE_DIR to a directory that can be written",
        )
    began = time.monotonic() - spent
    while True:
        known, size = Journal(path).count, _size(path)
        ended = _tuned(ctx, gpu, path, timeout, time.monotonic() - began)
        if ended.interrupted:
            return ended.code
        journal = Journal(path)
        if ended.why and journal.unfinished is not None and _size(path) > size:
            key, row = journal.unfinished
            journal.put(key, {**row, "detail": ended.why, "hung": ended.hung})
        elif ended.why:
            raise HarnessError(f"the tuning's process: {ended.why}")
        if ended.code != AGAIN and not ended.why:
            return ended.code
        if Journal(path).count <= known:
            # After a fault it goes on here without --isolate, too.
            hint = "" if spent else "run it without --isolate"
            raise HarnessError("the tuning ended twice at the same place", hint=hint)


def _tuned(ctx: click.Context, gpu: Device, path: Path, timeout: float, spent: float) -> Ended:
    """Run one child. It hangs if its journal stops growing while a candidate is in flight."""
    from harness.tune.journal import Journal

    first = _size(path)
    return watch(
        tune_command(ctx, gpu, spent),
        timeout,
        progress=lambda: _size(path),
        hangs=lambda: _size(path) != first and Journal(path).unfinished is not None,
        grace=_GRACE,
    )


def tune_command(ctx: click.Context, gpu: Device, spent: float) -> list[str]:
    """Return the child's command; its time limit is reduced by the seconds that earlier children have
    `spent`.
    """
    limit = ctx.params["time_limit"]
    left = None if limit is None else max(limit - spent, 0.001)
    changes = {"device": gpu.uuid, "time_limit": left, "supervised": True}
    return command_line(ctx, ctx.params["kernel"], changes, without=("isolate", "kernel_timeout", "fresh"))


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0
