"""The headers that a kernel includes: where they lie, and what is in them, which is part of its code."""

from __future__ import annotations

import os
import re
from pathlib import Path

from harness.kernels import catalog

_INCLUDE = re.compile(r'#[ \t]*include[ \t]*["<]([^">\n]+)[">]')


def folders(kernel: Path) -> list[Path]:
    """Where they are looked for: beside the kernel, then where those of the shipped kernels lie, so that a
    copy of one finds what it includes.
    """
    return [kernel.resolve().parent, catalog.folders()[0].resolve() / "include"]


def included(kernel: Path, source: str) -> dict[Path, bytes]:
    """Files that `source` includes, directly or not, from beside the including file or from `folders`.

    All places count where several hold the name, and so does a commented include: that costs a needless
    rebuild, never a stale kernel. (A name that a macro makes, ``#include FILE``, is not seen.)
    """
    everywhere = folders(kernel)
    found: dict[Path, bytes] = {}
    todo = [(everywhere[0], source)]
    while todo:
        beside, text = todo.pop()
        for name in _INCLUDE.findall(text):
            for header in (Path(os.path.realpath(folder / name)) for folder in (beside, *everywhere)):
                try:
                    if header in found or not header.is_file():
                        continue
                    found[header] = header.read_bytes()
                except (OSError, ValueError):
                    continue  # a name that no file can have: the compiler will say so, if it reads it at all
                todo.append((header.parent, found[header].decode(errors="replace")))
    return found
