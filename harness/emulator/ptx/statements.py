"""PTX text, split into statements with their lines; comments and debug sections are left out."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator

from harness.errors import EmulatorError

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


_SECTION = re.compile(r"\.section\b[^{};]*\{[^}]*\}")  # debug information, in a grammar of its own


_LINE_DIRECTIVE = re.compile(r"^([ \t]*\.(?:loc|file|version|target|address_size)\b[^\n;{}]*)$", re.MULTILINE)


_PIECE = re.compile(r'"[^"\n]*"|[;{}]|[^;{}"]+|"')


LABEL = re.compile(r"\s*([A-Za-z_$%][\w$%]*)\s*:(?!:)")


_LABELS = re.compile(rf"(?:{LABEL.pattern})*\s*")  # nothing but labels, which need no semicolon


_HEADER = re.compile(r"\.(entry|func)\b")


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, statement) for each statement of PTX text, without its semicolon.

    Labels and the braces of a body are statements of their own. Raises EmulatorError for a missing semicolon.
    """
    for nothing in (_COMMENT, _SECTION):
        text = nothing.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    text = _LINE_DIRECTIVE.sub(r"\1;", text)
    newlines = [match.start() for match in re.finditer("\n", text)]
    buffer, start, depth = "", 0, 0
    for match in _PIECE.finditer(text):
        piece = match[0]
        if not buffer.strip():
            blank = len(piece) - len(piece.lstrip())
            start = bisect.bisect_left(newlines, match.start() + blank) + 1
        if piece == "{" and not depth and (not buffer.strip() or _opens_block(buffer)):
            if buffer.strip():
                yield start, buffer.strip()
            yield start, "{"
            buffer = ""
        elif piece == "}" and not depth:
            if not _LABELS.fullmatch(buffer):
                raise EmulatorError(f"no semicolon after {buffer.strip()[:60]!r}", where=f"PTX line {start}")
            yield from _labels_apart(start, buffer.strip())
            yield start, "}"
            buffer = ""
        elif piece == ";":
            yield from _labels_apart(start, buffer.strip())
            buffer, depth = "", 0
        else:
            depth += (piece == "{") - (piece == "}")
            buffer += piece
    if buffer.strip():
        raise EmulatorError(f"no semicolon after {buffer.strip()[:60]!r}", where=f"PTX line {start}")


def _labels_apart(line: int, text: str) -> Iterator[tuple[int, str]]:
    """Yield ``label: statement`` as two statements.

    A label of a list, such as ``label: .branchtargets``, stays with it.
    """
    while match := LABEL.match(text):
        rest = text[match.end() :]
        if rest.lstrip().startswith((".branchtargets", ".calltargets", ".callprototype")):
            break
        yield line, match[0].strip()
        text = rest.lstrip()
        line += rest[: len(rest) - len(text)].count("\n")
    if text:
        yield line, text


def _opens_block(buffer: str) -> bool:
    """Return whether a brace after this text opens a body: after a function's header or a label."""
    return bool(_HEADER.search(buffer)) or bool(re.fullmatch(r"\s*[\w$%]+\s*:\s*", buffer))
