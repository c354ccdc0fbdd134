"""Record files: what was measured, under which circumstances, written whole or not at all."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from harness.errors import HarnessError, UsageError

SCHEMA = 1

Record = dict[str, Any]  # one flat row: JSON-ready, None where there is no value


def document(kind: str, records: Sequence[Record], meta: Mapping[str, Any]) -> Record:
    """A record file: what was measured, and what is needed to know what it was."""
    content = {"schema": SCHEMA, "kind": kind, "meta": dict(meta), "rows": list(records)}
    return cast(Record, _without_folders(content))


def _without_folders(value: Any) -> Any:
    """Messages name files by their path; records travel, and keep the file's name."""
    if isinstance(value, str):
        return re.sub(r"(?<![\w.])/(?:[^\s/:'\"]+/)+", "", value)
    if isinstance(value, Mapping):
        return {key: _without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list) and not (value and isinstance(value[0], float)):
        return [_without_folders(inner) for inner in value]
    return value


def provenance(*, seed: int | None = None) -> Record:
    """Command, time, versions and commit. No paths: folders are taken off the arguments."""
    return {
        "argv": ["harness", *(re.sub(r"(^|=)[^=]*/", r"\1", argument) for argument in sys.argv[1:])],
        "utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "harness": _version("cuda-harness"),
        "commit": _commit(),
        "code_sha256": _code_sha256(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("cuda-bindings", "numpy", "nvmath-python")},
    }


def write_json(path: Path, content: Record) -> None:
    """One record file, a line a row, so that raw samples stay out of the way; see `write_file`."""
    head = json.dumps({**content, "rows": []}, indent=1, allow_nan=False)
    rows = ",\n".join("  " + json.dumps(row, allow_nan=False) for row in content["rows"])
    write_file(path, head.replace('"rows": []', f'"rows": [\n{rows}\n ]').encode() + b"\n")


def check_writable(path: Path) -> None:
    """For a record's path: raises HarnessError where `write_file` would, UsageError for a kernel's name."""
    if {path.suffix, Path(os.path.realpath(path)).suffix} & {".cu", ".ptx"}:
        raise UsageError("that is a kernel's name, not a record's", where=str(path), hint="--json r.json")
    try:
        path = _target(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as e:
        raise HarnessError(f"cannot write: {e.strerror}", where=str(path)) from None


def _target(path: Path) -> Path:
    """What `path` leads to. Renaming over a device or a pipe would destroy it."""
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file():
        raise HarnessError("cannot write: not a regular file", where=str(path))
    return real


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_file(path: Path, data: bytes) -> None:
    """Whole or not at all: written beside `path` (or what it links to) and renamed.

    Raises HarnessError where that fails, and for a target that is a device or a pipe.
    """
    try:
        path = _target(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            mode = path.stat().st_mode if path.exists() else 0o666 & ~_umask()
            Path(temporary).chmod(mode & 0o777)  # mkstemp makes it readable by its owner alone
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as e:
        raise HarnessError(f"cannot write: {e.strerror}", where=str(path)) from None


def sha256(data: bytes) -> str:
    """In hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _code_sha256() -> str:
    """Of the package's own modules: says which code ran where there is no checkout to ask."""
    folder = Path(__file__).parent
    files = sorted(folder.rglob("*.py"), key=lambda p: p.relative_to(folder).as_posix())
    return sha256(b"".join(f.read_bytes() for f in files))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit, with "+" where tracked files differ from it; None outside a checkout."""
    folder = Path(__file__).parent

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", folder, *args], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != folder.parent.resolve():
            return None  # installed somewhere inside another project's checkout
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
