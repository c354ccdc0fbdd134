"""A file of scores for a leaderboard: JSON lines, one a submission, that several judges may append to."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, UsageError
from harness.judging.verdict import Verdict
from harness.support.files import check_writable, write_file


def line(verdict: Verdict) -> dict[str, Any]:
    """Return the line of one verdict.

    It has the hash of the kernel, the verdict with the checks that failed, time and ratio at each size, seed,
    versions, GPU and clock.
    """
    return {
        "utc": verdict.about.get("utc"),
        "kernel": verdict.kernel,
        "sha256": verdict.sha256,
        "problem": verdict.problem,
        "dtype": verdict.dtype,
        "verdict": verdict.status,
        "failed": [f"{c.name}: {c.reason}" for c in verdict.failed],
        "times": [
            {
                "shape": t.shape,
                "regime": t.regime,
                "seconds": t.seconds,
                "ratio": t.ratio,
                "against": t.against,
                "sm_hz": t.sm_hz,
            }
            for t in verdict.times
        ],
        "seed": verdict.seed,
        **{key: verdict.about.get(key) for key in ("gpu", "harness", "versions")},
    }


def append(path: Path, verdict: Verdict) -> None:
    """Append the line of `verdict` to the file at `path`, which is written anew and renamed.

    Readers see it as it was or with the whole line. Judges that append at the same time wait for each other.
    Raises HarnessError if it cannot be written, and UsageError if what is there is no such file.
    """
    check_writable(path)
    with _locked(path):
        write_file(path, _contents(path) + json.dumps(line(verdict), allow_nan=False).encode() + b"\n")


def _contents(path: Path) -> bytes:
    """Return what the file holds, b"" if there is none. Raises UsageError if its last line is no JSON."""
    try:
        old = path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as e:
        raise HarnessError(f"cannot read: {e.strerror}", where=str(path)) from None
    try:
        if old and not isinstance(json.loads(old.rstrip().rpartition(b"\n")[2]), dict):
            raise ValueError
    except ValueError:
        raise UsageError(
            "not a file of scores: its last line is no JSON object", where=str(path), hint="name another"
        ) from None
    return old if not old or old.endswith(b"\n") else old + b"\n"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file at `path`, which is made, while the block runs; a process's end frees it.

    Whoever held it before has renamed another file over this one, which is then locked instead.
    """
    path = path.resolve()
    try:
        while True:
            with path.open("a") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                if path.exists() and os.path.samestat(path.stat(), os.fstat(held.fileno())):
                    yield
                    return
    except OSError as e:
        raise HarnessError(f"cannot lock: {e.strerror}", where=str(path)) from None
