"""Measuring in a child process: a kernel that faults or hangs takes nothing down but its own child.

The child is an ordinary ``harness bench`` that also writes each row to a file as soon as it has it; what it
had measured before it died is kept.
"""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.support import tools

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`about` is what the child said of the GPU before its first row; `error` why it did not finish, and
    `interrupted` whether Ctrl-C was why.
    """

    rows: tuple[Record, ...]
    about: Record
    error: str
    interrupted: bool = False


def run_child(command: Sequence[str], timeout: float) -> Outcome:
    """Run `command` with ``--rows FILE`` appended, and kill it after `timeout` seconds, or on Ctrl-C."""
    interrupted = False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows")
        path.touch()
        with subprocess.Popen(
            [*command, "--rows", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=tools.environment(),
        ) as child:
            try:
                _, said = child.communicate(timeout=timeout)
                error = _verdict(child.returncode, said)
            except subprocess.TimeoutExpired:
                child.kill()
                error = (
                    f"not done after {timeout:g} s, and killed: it hangs, or needs a longer --kernel-timeout"
                )
            except KeyboardInterrupt:
                child.kill()
                error, interrupted = "interrupted", True
        about, *rows = _lines(path) or [{}]
    return Outcome(rows=tuple(rows), about=about, error=error, interrupted=interrupted)


def append(path: Path, line: Record) -> None:
    """One line of the file that `run_child` reads."""
    with path.open("a") as file:
        file.write(json.dumps(line, allow_nan=False) + "\n")


def _lines(path: Path) -> list[Record]:
    """Whole lines; the last may be torn, if the child was killed while it wrote."""
    text = path.read_text()
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _verdict(code: int, said: str) -> str:
    """Why a child did not finish; empty where it did, failed kernels included."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    if code == 0 or (code in (1, 3) and not errors and not any("Traceback" in s for s in lines)):
        return ""
    return (
        errors[0] if errors else f"its process ended with code {code}: {lines[-1] if lines else 'silently'}"
    )
