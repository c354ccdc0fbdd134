"""Guard the command line's streams: no control character, none that the terminal lacks, and no full disk.

Titles, labels, file names and what a kernel prints come from files that somebody else wrote. In them ESC and
its like could recolour a terminal, rewrite lines above or answer for the user; they are written as text.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

# C0 and C1 controls except line break and tab, DEL, and the characters that turn the direction of writing.
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F))
_CONTROLS = (*_CONTROLS, *range(0x2066, 0x206A))
_VISIBLE = {c: f"\\x{c:02x}" if c < 0x100 else f"\\u{c:04x}" for c in _CONTROLS if chr(c) not in "\n\t"}


def visible(text: str) -> str:
    """Return the text with its control characters written as text."""
    return text.translate(_VISIBLE)


class Plain:
    """A text stream that writes control characters as text, ``\\x1b``; all else goes to the one inside."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def write(self, text: str) -> int:
        """Write `text` without control characters; return how many characters it has."""
        self.inside.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)


def unfiltered(stream: Any) -> Any:
    """Return the stream inside `Plain`, for a progress bar, which moves the cursor, and for colours."""
    return stream.inside if isinstance(stream, Plain) else stream


@contextmanager
def plain() -> Iterator[None]:
    """Let both standard streams be `Plain`, and write ``?`` for characters that their encoding lacks."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if hasattr(stream, "reconfigure") and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    sys.stdout, sys.stderr = (s if s is None or isinstance(s, Plain) else Plain(s) for s in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def lost(error: OSError) -> int | None:
    """Tell why nothing more can be written to standard output, and return the exit code.

    Return None for an error that has nothing to do with it. What is left in the stream's buffer is dropped,
    or Python would try again at its end.
    """
    if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG, errno.EBADF):
        return None
    with suppress(OSError, ValueError, AttributeError):  # it has no file, or is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:  # the reader, such as `head`, has closed the pipe: nothing has failed
        return 141  # 128 + SIGPIPE, as other tools exit
    click.echo(f"error: cannot write the output: {error.strerror}", err=True)
    return 1


def or_stdout(ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Return the value of --json; for ``-`` a file that goes to standard output when the command ends."""
    return ctx.with_resource(_record_on_stdout()) if path == Path("-") else path


@contextmanager
def _record_on_stdout() -> Iterator[Path]:
    """Yield a file whose content goes to standard output at the end; until then output goes to stderr."""
    stdout = sys.stdout
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        path = Path(folder, "record.json")
        sys.stdout = sys.stderr
        try:
            yield path
        finally:
            sys.stdout = stdout
            if path.exists():
                stdout.write(path.read_text(encoding="utf-8"))
                stdout.flush()
