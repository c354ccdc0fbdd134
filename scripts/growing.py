"""A record that grows by a row at a time: for scripts that run on a card which may be taken away.

The file is written anew, whole, after each row, and names the rows that are still to come. A script ends by
itself in the seconds that it is given, and goes on with `--resume`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import ContextLost, HarnessError, UsageError
from harness.results import record

Row = dict[str, Any]
_SAME = ("gpu", "code_sha256")  # of the meta data: what a run must share with the one that it goes on with


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that these scripts have in common."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("file", type=Path, metavar="FILE.json")
    made.add_argument("kernels", nargs="*", metavar="KERNEL", help="default: all")
    made.add_argument("--seconds", type=float, default=540.0, help="to end in (default: %(default)s)")
    made.add_argument("--resume", action="store_true", help="go on with FILE.json")
    return made


def fill(
    given: argparse.Namespace,
    kind: str,
    meta: Mapping[str, Any],
    steps: Mapping[str, Callable[[], Row]],
    show: Callable[[Row], str],
) -> int:
    """Make the row of each step that the record lacks, while there is time; return the script's exit status.

    A step that raises HarnessError leaves a row with `error`, and is not tried again. No step begins that
    would end too late if it took as long as the longest before it. The status is 1 if a row has an error or
    steps are left, which a line says.
    """
    began = time.monotonic()
    rows = kept(given.file, kind, meta) if given.resume else []
    longest, lost = 0.0, False
    done = {row["step"] for row in rows}
    left = [name for name in steps if name not in done]
    if not given.resume:
        record.check_writable(given.file)
    while left and not lost and time.monotonic() - began + longest <= given.seconds:
        start, name = time.monotonic(), left.pop(0)
        try:
            row = {"step": name, **steps[name]()}
        except HarnessError as e:
            row, lost = {"step": name, "error": str(e)}, isinstance(e, ContextLost)
        rows.append(row)
        record.write_json(given.file, record.document(kind, rows, {**meta, "left": left}))
        longest = max(longest, time.monotonic() - start)
        print(f"{name}: {row.get('error') or show(row)}", flush=True)
    if left:
        why = "the GPU's context is lost" if lost else "no time is left"
        print(f"{why} for {len(left)} of {len(steps)} rows: go on with --resume", file=sys.stderr)
    return int(bool(left) or any(row.get("error") for row in rows))


def kept(file: Path, kind: str, meta: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a record to go on with.

    Raises UsageError for a record that another script, GPU or version of harness made.
    """
    found = record.load(file)
    if found.get("kind") != kind:
        raise UsageError("not a record of this script", where=str(file), hint="leave out --resume")
    for name in _SAME:
        if found["meta"].get(name) != meta.get(name):
            raise UsageError(
                f"its {name} is {found['meta'].get(name)}, here it is {meta.get(name)}",
                where=str(file),
                hint="rows of both do not belong into one record: leave out --resume",
            )
    return list(found["rows"])


def selected(named: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the known names that were asked for; all if none was. Raises UsageError for an unknown one."""
    if unknown := [name for name in named if name not in known]:
        raise UsageError(f"no kernel {unknown[0]!r}", hint=f"one of: {', '.join(known)}")
    return [name for name in known if not named or name in named]
