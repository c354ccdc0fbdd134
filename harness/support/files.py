"""Where the package is installed, and functions that write a file completely or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness.errors import HarnessError

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent  # the checkout's root, or the site-packages folder of an installed package


def check_writable(path: Path) -> None:
    """Raise HarnessError if `write_file` would fail for `path`. Missing parent folders are created."""
    try:
        path = _target(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as e:
        raise HarnessError(f"cannot write: {e.strerror}", where=str(path)) from None


def write_file(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file beside `path` and rename it, so that readers never see a part of it.

    Links are followed, the file's mode is kept. Raises HarnessError if it fails, or for a device or a pipe.
    """
    try:
        path = _target(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            mode = path.stat().st_mode if path.exists() else 0o666 & ~_umask()
            Path(temporary).chmod(mode & 0o777)  # mkstemp makes files that only the owner can read
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as e:
        raise HarnessError(f"cannot write: {e.strerror}", where=str(path)) from None


def _target(path: Path) -> Path:
    """Resolve links. A device or a pipe is refused, since renaming over it would destroy it."""
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file():
        raise HarnessError("cannot write: not a regular file", where=str(path))
    return real


def _umask() -> int:
    mask = os.umask(0)  # it can only be read by setting it
    os.umask(mask)
    return mask
