"""Wrap text and tables to the width of the terminal.

In a file or a pipe, where other programs search it, no line is wrapped unless COLUMNS is set.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence

_LEAST = 20, 8  # least width, in characters, of the first column and of any other column of text
_GAP = 2  # spaces between two columns of a table
_PIECE = re.compile(r"\S+?(?:[./_,](?![./_,])|$)")  # part of a word too long for a line (an ncu metric, say)

_INDEX = re.compile(r"\(\d+, \d+, \d+\)")  # of a thread or block

Rows = Sequence[Sequence[str]]


def columns() -> int | None:
    """Return the width to wrap at: COLUMNS if it is set, or else the terminal's width.

    Return None if COLUMNS is not set and standard output is not a terminal.
    """
    return shutil.get_terminal_size((0, 0)).columns or None


def fill(text: str, hanging: str = "  ", *, start: str = "") -> str:
    """Return `start` + `text` with lines that are too long wrapped at spaces.

    Continuation lines begin with `hanging`. No line is broken at a no-break space, within the index of a
    thread, ``(1, 0, 0)``, nor between `start` and the first word. Without a width (see `columns`) the text
    is returned as it is.
    """
    width = columns()
    if width is None:
        return start + text
    first, *others = text.split("\n")
    return "\n".join(
        [_wrapped(start, first, width, hanging), *(_wrapped("", s, width, hanging) for s in others)]
    )


def _wrapped(start: str, line: str, width: int, hanging: str) -> str:
    """Return `start` + `line`, wrapped to `width` columns if it is longer."""
    if len(start) + len(line) <= width:
        return start + line
    whole = _INDEX.sub(lambda at: at[0].replace(" ", "\0"), line)
    wrapped = textwrap.fill(
        whole,
        width,
        initial_indent=start,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped.replace("\0", " ")


def fit(rows: Rows, texts: Sequence[bool], keys: int) -> Iterator[Rows]:
    """Yield a table as one or more tables that fit the width of the terminal.

    `rows` holds the headings first. Headings, and the cells of those columns whose entry in `texts` is True,
    are wrapped within their cell; other cells are kept whole. If the columns still do not fit side by side,
    they are spread over several tables, each beginning with the first `keys` columns.
    """
    width = columns()
    whole = [max(len(line) for row in rows for line in row[i].split("\n")) for i in range(len(texts))]
    if width is None or _total(whole) <= width:
        yield rows
        return
    least = [_least(rows if text else rows[:1], rows, i) for i, text in enumerate(texts)]
    narrow = _narrowed(whole, least, width)
    if _total(narrow) > width and len(narrow) > keys + 1:
        narrow = [*_narrowed(whole[:keys], least[:keys], width // 2), *narrow[keys:]]
    broken, left = _broken(rows, narrow), list(range(keys, len(narrow)))
    while left:
        shown = [*range(keys), left.pop(0)]
        while left and _total([narrow[i] for i in (*shown, left[0])]) <= width:
            shown.append(left.pop(0))
        yield [[row[i] for i in shown] for row in broken]


def _least(breaking: Rows, rows: Rows, i: int) -> int:
    """Return the least width of column `i`, in characters.

    `breaking` is the leading part of `rows` whose cells may be wrapped; the rest must fit as they are. A
    wrapped cell keeps a width that is still readable (`_LEAST`).
    """
    room = _LEAST[i > 0] if len(breaking) > 1 else 1
    pieces = (p.rstrip() for row in breaking for line in row[i].split("\n") for p in _pieces(line, room))
    kept = (row[i] for row in rows[len(breaking) :])
    return max((room, *map(len, pieces), *map(len, kept)))


def _total(widths: Sequence[int]) -> int:
    """Return the width of a table with columns of these widths, gaps included."""
    return sum(widths) + _GAP * (len(widths) - 1)


def _narrowed(widths: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Shrink the columns until the table fits `width` or every column has its least width.

    Each step takes one character from the widest column that can still shrink.
    """
    found = list(widths)
    while _total(found) > width:
        able = [i for i, n in enumerate(found) if n > least[i]]
        if not able:
            break
        found[max(able, key=lambda i: found[i])] -= 1
    return found


def _broken(rows: Rows, widths: Sequence[int]) -> list[list[str]]:
    """Wrap each cell to its column's width.

    Continuation lines in the first column are indented, so that they do not look like rows.
    """
    return [
        ["\n".join(_lines(cell, widths[i], "" if i else "  ")) for i, cell in enumerate(row)] for row in rows
    ]


def _lines(cell: str, width: int, hanging: str) -> Iterator[str]:
    """Yield `cell` wrapped to `width`; continuation lines begin with `hanging`."""
    for line in cell.split("\n"):
        if len(line) <= width:
            yield line
            continue
        begun = ""
        for piece in _pieces(line, width - len(hanging)):
            if begun and len(begun) + len(piece.rstrip()) > width:
                yield begun.rstrip()
                begun = hanging
            begun += piece
        yield begun.rstrip()


def _pieces(line: str, width: int) -> Iterator[str]:
    """Split `line` where it may be wrapped.

    That is at spaces and, in words longer than `width`, behind the characters ``. / _ ,``.
    """
    for word in line.split():
        *parts, last = [word] if len(word) <= width else _PIECE.findall(word)
        yield from parts
        yield f"{last} "
