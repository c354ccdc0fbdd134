"""Take in a kernel file by a stranger: what it may include and how large it may be, and a copy of it alone.

Nothing is compiled where the file lies. Its text and the headers from its own folder are read once, checked,
and copied into a private folder, so that nothing can change between a check and a compilation, and the
compiler finds nothing else. Includes are checked wherever they stand, comments and strings too: a text
that a lexer other than the compiler's takes for a comment cannot hide one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.errors import SpecError, UsageError
from harness.kernels import catalog

MOST_BYTES = 4 << 20  # of the kernel and its headers together
MOST_FILES = 64
_SUFFIXES = (".cu", ".ptx")
_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t]*\r?\n")
_BLANK = r"(?:[ \t\f\v]|/\*.*?\*/)*"
_DIRECTIVE = re.compile(
    rf"(?:\#|%:|\?\?=){_BLANK}(?P<word>include_next|include|import|embed)\b{_BLANK}(?P<operand>[^\n]*)",
    re.DOTALL,
)
_LITERAL = re.compile(r'"(?P<quoted>[^"\n]+)"|<(?P<angled>[^>\n]+)>')
_PROBES = re.compile(r"\b__has_(?:include|include_next|embed)\b|\.incbin\b|\.include\b")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A kernel file and the headers that it includes from its own folder, by their paths relative to it.

    `name` is that of the kernel file, a key of `files`.
    """

    name: str
    files: dict[str, bytes]

    @property
    def sha256(self) -> str:
        """Return the SHA-256, in hexadecimal, of the names and contents of all files."""
        found = hashlib.sha256()
        for name, data in sorted(self.files.items()):
            found.update(f"{name}\0{len(data)}\0".encode() + data)
        return found.hexdigest()

    def copy(self, folder: Path) -> Path:
        """Write all files below `folder`, and return the path of the kernel there."""
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder / self.name


def read(path: Path) -> Submission:
    """Read the kernel at `path` and what it includes from its folder.

    Raises UsageError if there is no such kernel file, and SpecError, with file and line, for a text that
    reaches outside its folder or is too large.
    """
    if path.suffix not in _SUFFIXES:
        raise UsageError("not a kernel file", where=str(path), hint="kernels end in .cu or .ptx")
    try:
        folder = path.absolute().parent.resolve()
        if not path.is_file():
            raise UsageError("no such file" if not path.exists() else "not a regular file", where=str(path))
        if not path.resolve().is_relative_to(folder):
            raise SpecError("a link that leaves its folder", where=str(path))
        return Submission(name=path.name, files=dict(_closure(folder, path.name)))
    except (OSError, ValueError) as e:
        raise UsageError(f"cannot be read: {e}", where=str(path)) from None


def _closure(folder: Path, kernel: str) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the bytes of the kernel and of every header below `folder` that it includes."""
    todo, seen, room = [PurePosixPath(kernel)], {PurePosixPath(kernel)}, MOST_BYTES
    while todo:
        name = todo.pop()
        with (folder / name).open("rb") as file:
            data = file.read(room + 1)
        room -= len(data)
        if room < 0:
            raise SpecError(f"more than {MOST_BYTES >> 20} MiB of text", where=str(name))
        yield str(name), data
        for header in _included(folder, name, data.decode(errors="replace")):
            if header not in seen:
                if len(seen) == MOST_FILES:
                    raise SpecError(f"more than {MOST_FILES} files", where=str(name))
                seen.add(header)
                todo.append(header)


def _included(folder: Path, name: PurePosixPath, text: str) -> Iterator[PurePosixPath]:
    """Yield the headers below `folder` that a text includes. Raises SpecError for any other but ours."""
    text = _SPLICE.sub("", text)
    if probe := _PROBES.search(text):
        raise SpecError(f"{probe[0]}: it looks at files", where=_place(name, text, probe.start()))
    for found in _DIRECTIVE.finditer(text):
        where = _place(name, text, found.start())
        literal = _LITERAL.match(found["operand"])
        if found["word"] == "embed" or not literal:
            what = "embeds a file" if found["word"] == "embed" else "includes by a macro, or in a comment"
            raise SpecError(
                f"#{found['word']}: it {what}", where=where, hint='only #include "a file beside it"'
            )
        wanted = PurePosixPath(literal["quoted"] or literal["angled"])
        if wanted.is_absolute() or ".." in wanted.parts or "\\" in str(wanted):
            raise SpecError(f"includes {wanted}, outside its folder", where=where)
        for beside in dict.fromkeys((name.parent, PurePosixPath())):
            header = folder / beside / wanted
            if not header.is_file():
                continue
            if not header.resolve().is_relative_to(folder):
                raise SpecError(f"includes {wanted}, a link that leaves its folder", where=where)
            yield beside / wanted


def _place(name: PurePosixPath, text: str, at: int) -> str:
    """Return ``file:line``. Lines that the text continues by a backslash count as one."""
    return f"{name}:{text.count(chr(10), 0, at) + 1}"


def shipped_headers() -> Path:
    """Return the folder of harness's own headers, which a submission may include."""
    return catalog.folders()[0].resolve() / "include"
