"""Find the headers that a kernel includes. Their contents are part of the key of a cached build."""

from __future__ import annotations

import os
import re
from pathlib import Path

from harness.kernels import catalog
from harness.support import files

_INCLUDE = re.compile(r'#[ \t]*include[ \t]*["<]([^">\n]+)[">]')


def folders(kernel: Path) -> list[Path]:
    """Return the folders in which headers are looked for: beside the kernel, then ``cu/include``.

    The second lets a copy of a shipped kernel compile wherever it lies.
    """
    return [kernel.resolve().parent, catalog.folders()[0].resolve() / "include"]


def included(kernel: Path, source: str) -> dict[Path, bytes]:
    """Return the contents, by path, of the files that `source` includes, directly or not.

    A name is looked for beside the including file and in `folders`. Where several folders hold it, all of
    these files are taken, and so are includes in comments: that may cost a needless rebuild, but a build is
    never stale. An include by macro (``#include FILE``) is not seen.
    """
    everywhere = folders(kernel)
    found: dict[Path, bytes] = {}
    todo = [(everywhere[0], source)]
    while todo:
        beside, text = todo.pop()
        for name in _INCLUDE.findall(text):
            for header in (Path(os.path.realpath(folder / name)) for folder in (beside, *everywhere)):
                try:
                    if header in found or header.is_dir() or not header.exists():
                        continue
                    found[header] = files.read(header)
                except (OSError, ValueError):
                    continue  # no file can have such a name; the compiler reports it if it matters
                todo.append((header.parent, found[header].decode(errors="replace")))
    return found
