"""Which kernels there are: discovery by file. Nothing else lists kernels."""

from __future__ import annotations

import difflib
import fnmatch
import glob
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.kernels import spec
from harness.kernels.spec import Kernel, Variant
from harness.support.files import PACKAGE, ROOT

_NUMBER = re.compile(r"(\d+[a-z]?)_")  # 22a_ is a rung between 22_ and 23_


def folders() -> list[Path]:
    """Where shipped kernels lie: inside an installed wheel, or at the top of a checkout."""
    base = PACKAGE if (PACKAGE / "cu").is_dir() else ROOT
    return [base / "cu", base / "ptx"]


def files() -> list[Path]:
    """Every shipped kernel file, by stem: numbered rungs climb, the rest follows."""
    found = [p for folder in folders() for p in folder.rglob("*") if p.suffix in (".cu", ".ptx")]
    return sorted(found, key=lambda p: (not _NUMBER.match(p.stem), p.stem))


def ladder() -> list[Kernel]:
    """The numbered kernels: what commands work on when none is named."""
    return [spec.load(p) for p in files() if _NUMBER.match(p.stem)]


def find(pattern: str, folder: Path | None = None) -> list[Kernel]:
    """Kernels for one command-line word: a path, a stem (``03_tiled``), its number or the rest (``03``,
    ``tiled``) or a glob (``0[1-3]*``, ``cu/*.cu``). A relative path starts at `folder`, else at the working
    directory.

    Raises UsageError where nothing matches, with the nearest names.
    """
    if Path(pattern).suffix in (".cu", ".ptx") or "/" in pattern or "\\" in pattern:
        path = pattern if folder is None else str(folder / pattern)
        return [spec.load(p) for p in _globbed(pattern, folder) or [path]]
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


def variant(
    kernel: str | os.PathLike[str] | Kernel | Variant, params: Mapping[str, int], folder: Path
) -> Variant:
    """A kernel however it is named, with `params` chosen (over those of a variant, or the defaults)."""
    for name, value in params.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise UsageError(f"the parameter {name} is an integer, not {value!r}")
    if isinstance(kernel, Variant):
        return kernel.kernel.variant(**{**kernel.params, **params})
    found = named(kernel, folder)
    if len(found) > 1:
        raise UsageError(f"{str(kernel)!r} names {len(found)} kernels: {', '.join(k.name for k in found)}")
    return found[0].variant(**params)


def variants(kernels: object, sweep: bool, folder: Path) -> list[Variant]:
    """The default variant, or with `sweep` every one, of one kernel or several, each kernel once."""
    words = [kernels] if isinstance(kernels, str | os.PathLike | Kernel) else kernels
    if not isinstance(words, list | tuple) or not words:
        raise UsageError(f"no kernels: {kernels!r}", hint="such as ['tiled', 'cu/*.cu']")
    found = {k.path.resolve(): k for word in words for k in named(word, folder)}.values()
    return [v for k in found for v in k.variants(defaults=not sweep)]


def named(kernel: str | os.PathLike[str] | Kernel, folder: Path) -> list[Kernel]:
    """A kernel itself, or those that a word or path names, as in `find`."""
    if isinstance(kernel, Kernel):
        return [kernel]
    if not isinstance(kernel, str | os.PathLike):
        raise UsageError(f"a kernel is a stem, a path, a Kernel or a Variant, not {kernel!r}")
    return find(kernel if isinstance(kernel, str) else str(folder / kernel), folder)


def _globbed(pattern: str, folder: Path | None) -> list[str]:
    """The kernel files that a path with wildcards matches; none where it is the name of a file itself.

    By functions, not by methods of Path: exists() of a name too long never raises, and an absolute pattern
    is taken too.
    """
    base = folder or Path()
    if not any(c in pattern for c in "*?[") or os.path.exists(base / pattern):  # noqa: PTH110
        return []
    found = glob.glob(pattern, root_dir=base, recursive=True)  # noqa: PTH207
    kernels = [name for name in sorted(found) if Path(name).suffix in (".cu", ".ptx")]
    return kernels if folder is None else [str(folder / name) for name in kernels]


def _names(path: Path) -> tuple[str, ...]:
    number = _NUMBER.match(path.stem)
    return (path.stem, path.stem[number.end() :], number[1]) if number else (path.stem,)
