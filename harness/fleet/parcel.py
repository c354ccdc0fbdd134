"""Pack what a unit of work takes to another machine: a kernel's own files, and what was compiled from it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.fleet.units import FOLDER
from harness.kernels.compiler import portable
from harness.kernels.cpp import includes
from harness.kernels.spec import Variant
from harness.support.cache import Cache
from harness.support.files import SHIPPED


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """`word` names the kernel in a command, `include` its folders of headers beside the front matter's.

    `files` and `cubins` are those of a `Unit`.
    """

    word: str
    include: tuple[str, ...]
    files: Mapping[str, bytes]
    cubins: Mapping[str, Mapping[str, bytes]]


def parcel(variants: Sequence[Variant], arch: str, cache: Cache, include: Sequence[str] = ()) -> Parcel:
    """Pack the kernel that these are variants of, with its headers, its problem's file and its builds.

    A kernel that harness ships is there already, and goes by its name. `include` are the folders that were
    given on the command line. Headers of libraries stay: the machines have their own, and need none where the
    kernel has been compiled.
    """
    kernel = variants[0].kernel
    built = (portable(variant, arch, cache) for variant in variants)
    cubins = dict(entry for entry in built if entry is not None)
    path = kernel.path.resolve()
    if _ships(path):
        return Parcel(word=kernel.name, include=(), files={}, cubins=cubins)
    own = includes.of(kernel).own
    files = {path: kernel.source.encode(), **{p: data for p, data in own.items() if not _ships(p)}}
    module, _, cls = kernel.problem.rpartition(":")
    if module.endswith(".py") and cls:
        beside = path.parent / module
        files[beside.resolve()] = beside.read_bytes()
    # Without front matter they are all folders: those of its repository were found, and are not there.
    named = kernel.include if kernel.plain else tuple(str(Path(folder).absolute()) for folder in include)
    folders = [(path.parent / folder).resolve() for folder in named]
    root = Path(os.path.commonpath([path.parent, *(p.parent for p in files), *folders]))
    return Parcel(
        word=f"{FOLDER}/{path.relative_to(root).as_posix()}",
        include=tuple(f"{FOLDER}/{folder.relative_to(root).as_posix()}" for folder in folders),
        files={p.relative_to(root).as_posix(): data for p, data in files.items()},
        cubins=cubins,
    )


def _ships(path: Path) -> bool:
    """Return True for a file that comes with harness."""
    return any(path.is_relative_to((SHIPPED / folder).resolve()) for folder in ("cu", "ptx"))
