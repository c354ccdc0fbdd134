"""The folders of the package, and functions that read and write files whole or not at all."""

from __future__ import annotations

import errno
import glob
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from harness.errors import HarnessError, UsageError

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent  # the checkout's root, or the site-packages folder of an installed package
SHIPPED = PACKAGE if (PACKAGE / "cu").is_dir() else ROOT  # the folder of cu and ptx, likewise
MOST = 2**30  # bytes of a file that is read whole, if its reader names no other limit


def opened(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises UsageError for anything else: a pipe would wait for a writer that never comes, and a device such as
    /dev/zero has no end. Raises OSError where the file cannot be opened.
    """
    # O_NONBLOCK: opening a pipe does not wait; it means nothing for a regular file.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise UsageError(
        "cannot be read: not a regular file",
        where=str(path),
        hint="write what it holds to a file, and name that",
    )


def read(path: Path, *, most: int = MOST) -> bytes:
    """Return the content of a regular file of at most `most` bytes; raises as `opened` does."""
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UsageError(f"more than the {most:,} bytes that are read of such a file", where=str(path))
    return content


def text(path: Path, *, most: int = MOST, errors: str = "strict") -> str:
    """Return the UTF-8 text of a regular file with line breaks as in Python; raises as `read` does."""
    whole = read(path, most=most).decode("utf-8-sig", errors)
    return whole.replace("\r\n", "\n").replace("\r", "\n")


def globbed(pattern: str, folder: Path | None, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files with suffixes that a path with wildcards matches; none where one has that very name.

    This uses functions of `os` and `glob`, not methods of Path: os.path.exists never raises for a name that
    is too long, and glob.glob takes absolute patterns.
    """
    base = folder or Path()
    if not any(c in pattern for c in "*?[") or os.path.exists(base / pattern):  # noqa: PTH110
        return []
    found = glob.glob(pattern, root_dir=base, recursive=True)  # noqa: PTH207
    named = [name for name in sorted(found) if Path(name).suffix in suffixes]
    return named if folder is None else [str(folder / name) for name in named]


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
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:80]}-", dir=path.parent)
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
