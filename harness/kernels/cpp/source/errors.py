"""Read the errors in NVRTC's log: where each stands, who asked for what has it, and which names it misses."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_ERROR = re.compile(r"^(?:(.+)\((\d+)\)|At end of source): ((?:catastrophic )?error\b[^\n]*)", re.MULTILINE)
_OPENED = re.compile(r"^(.+)\((\d+)\): note[^\n]* to match this", re.MULTILINE)
_NO_FILE = re.compile(r'(?:cannot|could not) open source file "([^"]+)"')
_UNDEFINED = re.compile(
    r'"(\w+)"(?=[^\n]* (?:undefined|has no member))|has no member "(\w+)"'
    r'|error: (\w+) is not a template|incomplete type "(\w+)"'
)
_ASKED = re.compile(r'\bat line (\d+)(?: of "([^"]+)")?[ \t]*$')
_BEGINS = re.compile(r"^(?=\S[^\n]*\(\d+\): (?:warning|remark)\b)", re.MULTILINE)
_FILES = re.compile(r'^(\S[^\n]*)\(\d+\): (?:warning|remark|note)\b|\bat line \d+ of "([^"]+)"', re.MULTILINE)
_REPORT = ("ptxas", "info ", "Remark: The warnings can")
_NAMES = "__nv_name_map"  # the file in which NVRTC looks up the name of a kernel


@dataclass(frozen=True, kw_only=True)
class Error:
    """An error in a line of a file. `said` is its first line, and `text` all that the log says of it.

    `places` are the (file, line) that ask for the instance of a template that has it, the outermost last,
    and none where nothing but the name of a kernel does; the line itself where it is in no instance.
    """

    file: str
    line: int
    said: str
    text: str
    places: tuple[tuple[str, int], ...]

    @property
    def absent(self) -> str:
        """Return the header that is not there, if that is the error; else ""."""
        found = _NO_FILE.search(self.said)
        return found[1] if found else ""


def read(log: str) -> list[Error]:
    """Return the errors of a log, in its order."""
    found = []
    for at in _ERROR.finditer(log):
        end = log.find("\n\n", at.end())
        whole = log[at.start() : end if end >= 0 else len(log)]
        if (where := at if at[1] else _OPENED.search(whole)) is None:
            continue
        file, line = where[1], int(where[2])
        places: tuple[tuple[str, int], ...] = ((file, line),)
        if during := whole.partition("detected during")[2]:
            asked = [_ASKED.search(step) for step in during.strip(": \n").splitlines()]
            named = asked[-1:] == [None]
            places = () if named else tuple((step[2] or file, int(step[1])) for step in asked if step)
        found.append(Error(file=file, line=line, said=f"{file}({line}): {at[3]}", text=whole, places=places))
    return found


def unknown(log: str) -> set[str]:
    """Return the names that a log says are not defined."""
    return {name for found in _UNDEFINED.findall(log) for name in found if name}


def of_name_alone(log: str) -> bool:
    """Return True where all errors of a log are due to the name of a kernel, or to its instance."""
    return all(error.file == _NAMES or not error.places for error in read(log))


def of_own(log: str, libraries: Iterable[Path]) -> str:
    """Return a log's warnings without those that name files of `libraries` alone, which a line counts.

    One in an instance that another file asks for is that file's, too. What ptxas reports is left out.
    """
    lines = (line for line in log.splitlines() if line.strip() and not line.startswith(_REPORT))
    folders = tuple(f"{folder}{os.sep}" for folder in libraries)
    first, *others = _BEGINS.split("".join(f"{line}\n" for line in lines))
    files = ([a or b for a, b in _FILES.findall(one)] for one in others)
    shown = [one for one, names in zip(others, files, strict=True) if not all(map(_starts(folders), names))]
    rest = len(others) - len(shown)
    said = f"{rest} warning{'s' * (rest > 1)} in headers of libraries not shown\n" * bool(rest)
    return "".join([first, *shown, said]).rstrip("\n")


def _starts(folders: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda name: name.startswith(folders)
