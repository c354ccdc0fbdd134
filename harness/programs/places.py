"""Places in a program's sources: its calls of the runtime, and what it calls what it allocates there."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.errors import HarnessError
from harness.support import files, tools

_NAME = re.compile(
    r"(?:cuda(?:Malloc|HostAlloc|StreamCreate)\w*)\s*(?:<[^;(]*>)?\s*\(\s*(?:\(\s*void\s*\*\s*\*\s*\)|reinterpret_cast<[^>]*>\s*\()?"
    r"[\s(&]*(?P<name>[A-Za-z_][\w.\[\]>-]*)"
)
_MADE = re.compile(r"tmpxft_\w+-\d+_(.*)\.cudafe1\.cpp$")


class Place(NamedTuple):
    """A line of a source file; line 0 is unknown."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}" if self.line else "an unknown line"


class Places:
    """Finds the lines of addresses in a program, each once.

    program: the shared library that it was built as
    base: returns where that is loaded
    sources: the program's own files
    foreign: folders of headers that are not the program's own
    """

    def __init__(
        self, program: Path, base: Callable[[], int], sources: Sequence[str], foreign: Sequence[str]
    ) -> None:
        self._program, self._base = program, base
        self._sources = {Path(source).stem: source for source in sources}
        self._foreign = tuple(map(os.path.normpath, foreign))
        self._known: dict[int, Place] = {}
        self._names: set[int] = set()  # calls that give something a name

    def learn(self, callers: Iterable[int]) -> None:
        """Look up addresses together, which takes no longer than one of them."""
        new = sorted({c for c in callers if c and c not in self._known})
        tool = shutil.which("addr2line") if new else None
        self._known |= dict.fromkeys(new, Place())
        if tool is None:
            return
        base = self._base()
        offsets = [hex(caller - base - 1) for caller in new if caller > base > 0]
        if not offsets:
            return
        try:
            done = tools.run([tool, "-a", "-i", "-e", str(self._program), *offsets], "addr2line", timeout=60)
        except HarnessError:
            return  # lines are a help, and no more
        for block in re.split(r"^(?=0x)", done.stdout, flags=re.MULTILINE)[1:]:
            head, *lines = block.split()[:1] + block.splitlines()[1:]
            found = [re.match(r"(.*):(\d+)", line) for line in lines]
            read = [Place(self._source(m[1]), int(m[2])) for m in found if m and m[1][0] != "?"]
            own = [place for place in read if not place.file.startswith(self._foreign)]
            self._known[int(head, 16) + base + 1] = next(iter(own), Place())

    def _source(self, file: str) -> str:
        """Return the source for a file that nvcc makes of one: it may name that, with the source's lines."""
        made = _MADE.search(file)
        return self._sources.get(made[1], file) if made else os.path.normpath(file)

    def of(self, caller: int) -> Place:
        """Return the line of the call that returns to this address."""
        self.learn([caller])
        return self._known.get(caller, Place())

    def names(self, caller: int) -> None:
        """Note that a call allocates, or creates a stream."""
        self._names.add(caller)

    def named(self, caller: int) -> str:
        """Return what the line of an allocation, or a stream's, calls it; empty if it does not say.

        Of several such calls in a line the first has the lowest address.
        """
        self.names(caller)
        self.learn(self._names)
        place = self.of(caller)
        try:
            lines = files.text(Path(place.file), errors="replace").splitlines() if place.line else []
        except (HarnessError, OSError):
            return ""
        found = [
            m["name"] for m in _NAME.finditer(lines[place.line - 1] if 0 < place.line <= len(lines) else "")
        ]
        alike = sorted(one for one in self._names if self._known.get(one) == place)
        return found[alike.index(caller) % len(found)].rstrip("->.") if found else ""
