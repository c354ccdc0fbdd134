"""Which kernels there are: discovery by file. Nothing else lists kernels."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Sequence
from pathlib import Path

from harness import spec
from harness.errors import UsageError
from harness.spec import Kernel

_PACKAGE = Path(__file__).parent
_NUMBER = re.compile(r"\d+_")


def folders() -> list[Path]:
    """Where shipped kernels lie: inside an installed wheel, or at the top of a checkout."""
    inside = [_PACKAGE / "cu", _PACKAGE / "ptx"]
    return inside if inside[0].is_dir() else [_PACKAGE.parent / "cu", _PACKAGE.parent / "ptx"]


def files() -> list[Path]:
    """Every shipped kernel file, by stem: numbered rungs climb, the rest follows."""
    found = [p for folder in folders() for p in folder.glob("*") if p.suffix in (".cu", ".ptx")]
    return sorted(found, key=lambda p: (not _NUMBER.match(p.stem), p.stem))


def ladder() -> list[Kernel]:
    """The numbered kernels: what commands work on when none is named."""
    return [spec.load(p) for p in files() if _NUMBER.match(p.stem)]


def find(pattern: str) -> list[Kernel]:
    """Kernels for one command-line word: a path, a stem (``03_tiled``, ``tiled``) or a glob (``0[1-3]*``).

    Raises UsageError where nothing matches, with the nearest names.
    """
    if Path(pattern).suffix in (".cu", ".ptx") or "/" in pattern or "\\" in pattern:
        return [spec.load(pattern)]
    shipped = files()
    matches = [p for p in shipped if any(fnmatch.fnmatchcase(name, pattern) for name in _names(p))]
    if not matches:
        names = [name for p in shipped for name in _names(p)]
        close = difflib.get_close_matches(pattern, names, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "`harness list` shows what there is"
        raise UsageError(f"no kernel {pattern!r}", hint=f"{hint} (a file of your own is given by its path)")
    return [spec.load(p) for p in matches]


def kernel(pattern: str) -> Kernel:
    """The one kernel that `pattern` names, as in `find`. Raises UsageError where it names several."""
    found = find(pattern)
    if len(found) > 1:
        raise UsageError(f"{pattern!r} names {len(found)} kernels: {', '.join(k.name for k in found)}")
    return found[0]


def select(patterns: Sequence[str]) -> list[Kernel]:
    """Kernels for all words of a command line, each once; the ladder where there is none."""
    if not patterns:
        return ladder()
    return list({k.path.resolve(): k for pattern in patterns for k in find(pattern)}.values())


def _names(path: Path) -> tuple[str, str]:
    return path.stem, _NUMBER.sub("", path.stem, count=1)
