"""Text in the columns that a terminal has. In a file or a pipe, where others search it, no line is broken,
unless COLUMNS says how long one may be.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence

_LEAST = 20, 8  # columns that the first cell of a row keeps, and any other of text
_GAP = 2  # between two columns of a table
_PIECE = re.compile(r"\S+?(?:[./_,](?![./_,])|$)")  # of a word too long for a line, such as an ncu metric

Rows = Sequence[Sequence[str]]


def columns() -> int | None:
    """As COLUMNS says, or those of the terminal; None where standard output is no terminal."""
    return shutil.get_terminal_size((0, 0)).columns or None


def fill(text: str, hanging: str = "  ", *, start: str = "") -> str:
    """Lines that are too long, broken at spaces and continued after `hanging`. A no-break space holds; and
    what comes first stays beside `start`.
    """
    width = columns()
    if width is None:
        return start + text
    first, *others = text.split("\n")
    return "\n".join(
        [_wrapped(start, first, width, hanging), *(_wrapped("", s, width, hanging) for s in others)]
    )


def _wrapped(start: str, line: str, width: int, hanging: str) -> str:
    if len(start) + len(line) <= width:
        return start + line
    return textwrap.fill(
        line,
        width,
        initial_indent=start,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def fit(rows: Rows, texts: Sequence[bool], keys: int) -> Iterator[Rows]:
    """A table as one or more that fit: `rows`, headings first, with all headings and the cells of columns of
    text (`texts`) broken into lines; and where there are too many columns, several tables that all begin with
    the `keys` first ones.
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
    """What column `i` needs when `breaking`, some of its `rows`, are broken as far as is still readable."""
    room = _LEAST[i > 0] if len(breaking) > 1 else 1
    pieces = (p.rstrip() for row in breaking for line in row[i].split("\n") for p in _pieces(line, room))
    kept = (row[i] for row in rows[len(breaking) :])
    return max((room, *map(len, pieces), *map(len, kept)))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _narrowed(widths: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """The widest that can gives way first."""
    found = list(widths)
    while _total(found) > width:
        able = [i for i, n in enumerate(found) if n > least[i]]
        if not able:
            break
        found[max(able, key=lambda i: found[i])] -= 1
    return found


def _broken(rows: Rows, widths: Sequence[int]) -> list[list[str]]:
    """What goes on in the first column is indented: it is no row of its own."""
    return [
        ["\n".join(_lines(cell, widths[i], "" if i else "  ")) for i, cell in enumerate(row)] for row in rows
    ]


def _lines(cell: str, width: int, hanging: str) -> Iterator[str]:
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
    """Between which a line may be broken."""
    for word in line.split():
        *parts, last = [word] if len(word) <= width else _PIECE.findall(word)
        yield from parts
        yield f"{last} "
