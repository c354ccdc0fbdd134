"""``harness tune --isolate``: the tuning in a process of its own, begun again without whoever ended it.

A fault ends CUDA in its process for good, and a hang all of it. The journal has each candidate's name before
it is launched: whoever was in flight is written off there, and the next process goes on with the others.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.driver import Device

FLAG = "--supervised"
AGAIN = 75  # the child's exit code after a fault, which its journal has
_LOOK = 0.2  # seconds between looks at the child
_FORWARDED = ("strategy", "max_fevals", "seed", "regime", "json_file", "t4_file")


def run(ctx: click.Context, gpu: Device, path: Path | None, timeout: float) -> int:
    """The exit code of the child that came to the end. `path` is the journal's."""
    from harness.tune.journal import Journal

    if path is None:
        raise HarnessError(
            "--isolate needs a place to keep what is measured",
            hint="set HARNESS_CACHE_DIR to a directory that can be written",
        )
    began = time.monotonic()
    while True:
        known, size = Journal(path).count, _size(path)
        code, why = _watch(command(ctx, gpu, time.monotonic() - began), path, timeout)
        journal = Journal(path)
        if why and journal.unfinished is not None and _size(path) > size:
            key, row = journal.unfinished
            journal.put(key, {**row, "detail": why, "hung": "hangs" in why})
        elif why:
            raise HarnessError(f"the tuning's process: {why}")
        if code != AGAIN and not why:
            return code
        if Journal(path).count <= known:
            raise HarnessError("the tuning ended twice at the same place", hint="run it without --isolate")


def command(ctx: click.Context, gpu: Device, spent: float) -> list[str]:
    """The child's, which has less time by what its predecessors have spent."""
    given = ctx.params
    found = [sys.executable, "-m", "harness", "tune", given["kernel"], FLAG, f"--device={gpu.uuid}"]
    found += [f"--param={text}" for text in given["params"]]
    found += [f"--axis={text}" for text in given["axis"]]
    found += [f"--dtype={name}" for name in given["dtypes"]]
    for name in _FORWARDED:
        if given[name] is not None:
            option = {"json_file": "json", "t4_file": "t4"}.get(name, name.replace("_", "-"))
            found.append(f"--{option}={given[name]}")
    found.append(f"--threshold={100 * given['threshold']!r}")
    if given["time_limit"] is not None:
        found.append(f"--budget={max(given['time_limit'] - spent, 0.001)!r}")
    return found + ([f"--{given['style']}"] if given["style"] else [])


def _watch(arguments: list[str], path: Path, timeout: float) -> tuple[int, str]:
    """Its exit code, and why it ended if not by itself."""
    size, since = _size(path), time.monotonic()
    first = size
    with subprocess.Popen(arguments) as child:
        while True:
            try:
                code = child.wait(_LOOK)
                break
            except subprocess.TimeoutExpired:
                pass
            except KeyboardInterrupt:  # the terminal has told the child, too
                return _ended(child), ""
            now = _size(path)
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > timeout and size != first and _in_flight(path):
                child.kill()
                return child.wait(), f"not done after {timeout:g} s, and killed: it hangs"
    if code < 0:
        return code, f"its process was ended by {signal.Signals(-code).name}"
    return code, ""


def _ended(child: subprocess.Popen[Any]) -> int:
    try:
        return child.wait(10)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()
        child.wait()
        return 130


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _in_flight(path: Path) -> bool:
    from harness.tune.journal import Journal

    return Journal(path).unfinished is not None
