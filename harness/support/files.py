"""Where the package lies, and files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness.errors import HarnessError

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent  # of a checkout; of an installed package, the folder that packages are installed in


def check_writable(path: Path) -> None:
    """Raise HarnessError where `write_file` would fail; the folders on the way are made."""
    try:
        path = _target(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as e:
        raise HarnessError(f"cannot write: {e.strerror}", where=str(path)) from None


def write_file(path: Path, data: bytes) -> None:
    """Write `data` beside `path` (or beside what it links to) and rename: readers see all of it or nothing.

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


def _target(path: Path) -> Path:
    """Follow links. Renaming over a device or a pipe would destroy it, and is refused."""
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file():
        raise HarnessError("cannot write: not a regular file", where=str(path))
    return real


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
