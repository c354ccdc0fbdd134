"""Compile and count the kernels of a git revision, or of the working tree, without a GPU."""

from __future__ import annotations

import fnmatch
import io
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.bench import emulation
from harness.bench.row import ERROR
from harness.errors import HarnessError, UsageError
from harness.kernels import catalog
from harness.kernels.spec import Kernel
from harness.launch import builds
from harness.launch.builds import Built
from harness.problems.protocol import Axes, Problem
from harness.results import encode
from harness.results.record import Document
from harness.results.rows import Row
from harness.support import tools
from harness.support.cache import Cache

_KERNELS = (".cu", ".ptx")
_NEEDED = (*_KERNELS, ".cuh", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".py")  # what a kernel may read
_MARK = b"/// kernel"


def commit(revision: str) -> str:
    """Return the full hash of the commit that `revision` names. Raises UsageError if it names none."""
    done = tools.run(
        ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"], "git"
    )
    if done.returncode:
        if Path(revision).suffix in _KERNELS:
            raise UsageError(
                f"{revision!r} is a kernel file, not a revision of this repository",
                hint=f"harness compare HEAD --kernel {Path(revision).name}",
            )
        raise UsageError(
            f"{revision!r} is neither a result file nor a revision of this repository",
            hint="a --json file, or a commit, branch or tag, such as main or HEAD~1",
        )
    return done.stdout.strip()


@contextmanager
def tree(revision: str | None) -> Iterator[Path]:
    """Yield a folder with the files of a revision that kernels are made from; None is the working tree.

    Raises UsageError outside a repository, and for a revision that does not exist.
    """
    top = tools.run(["git", "rev-parse", "--show-toplevel"], "git")
    if top.returncode:
        raise UsageError(
            "not in a git repository", hint="compare two result files: harness compare a.json b.json"
        )
    root = Path(top.stdout.strip())
    if revision is None:
        yield root
        return
    sha = commit(revision)
    listed = (
        _git(root, "ls-tree", "-r", "--name-only", "-z", sha).decode(errors="surrogateescape").split("\0")
    )
    present = sorted({s for s in _NEEDED if any(name.endswith(s) for name in listed)})
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        if present:  # git archive fails for a pattern without a file
            data = _git(root, "archive", "--format=tar", sha, "--", *(f":(top)*{s}" for s in present))
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # 3.11.4 has it
                archive.extractall(folder, **safely)
        yield Path(folder)


def _git(root: Path, *arguments: str) -> bytes:
    """Return what git prints. Raises HarnessError if it fails."""
    done = tools.run_bytes(["git", "-C", str(root), *arguments], "git")
    if done.returncode:
        raise HarnessError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def files(root: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the kernel files below `root` whose relative path, name or stem matches one of `patterns`.

    Without patterns: those with front matter.
    """
    found = []
    for path in sorted(p for s in _KERNELS for p in root.rglob(f"*{s}") if p.is_file()):
        inner = path.relative_to(root)
        if any(part.startswith(".") for part in inner.parts):
            continue
        names = (inner.as_posix(), path.name, path.stem)
        wanted = (
            any(fnmatch.fnmatchcase(n, p) for n in names for p in patterns) if patterns else _marked(path)
        )
        if wanted:
            found.append(path)
    return found


def plain(revision: str | None) -> tuple[list[str], bool]:
    """Return the paths of the files of a revision with kernels without front matter, and if any has it."""
    with tree(revision) as root:
        marked = set(files(root, ()))
        others = [path for path in files(root, ("*.cu",)) if path not in marked]
        found = [path.relative_to(root).as_posix() for path in others if b"__global__" in path.read_bytes()]
        return found, bool(marked)


def _marked(path: Path) -> bool:
    """Return True if the file has harness's front matter."""
    with path.open("rb") as file:
        return _MARK in file.read(1 << 16)


Sizes = Callable[[Kernel], Mapping[type[Problem], Sequence[Axes]]]  # the sizes at which a kernel is counted


def document(
    revision: str | None,
    patterns: Sequence[str],
    sizes: Sizes,
    arch: str,
    cache: Cache,
    step: Callable[[str], None],
) -> Document:
    """Return the static figures of a revision's kernels, as `harness check` records them.

    Each is compiled for `arch` with its default parameters, and emulated at its `sizes` in the widths of the
    machine code; what the emulator refuses has the figures of the code only. A kernel that cannot be built
    has a row with the status of an error. Raises UsageError if there is no kernel.
    """
    with tree(revision) as root:
        rows: list[Row | dict[str, Any]] = []
        for path in files(root, patterns):
            step(path.name)
            rows += _rows(path, root, sizes, arch, cache)
    if not rows:
        named = f" that matches {', '.join(patterns)}" if patterns else ""
        raise UsageError(
            f"no kernel file{named} in {revision or 'the working tree'}", hint="--kernel 'cu/*.cu'"
        )
    return {"kind": "check", "meta": {"revision": revision}, "rows": rows}


def _rows(path: Path, root: Path, sizes: Sizes, arch: str, cache: Cache) -> Iterator[Row | dict[str, Any]]:
    """Yield the rows of one file, one for each element type, named with their folder in the repository."""
    inner = path.relative_to(root)
    name = inner.with_suffix("").as_posix()
    try:
        variants = [kernel.variant() for kernel in catalog.select([str(path)])]
        built, _ = builds.build_all(
            [v for v in variants if v.kernel.fits(arch)], [arch], cache, lambda _: None
        )
    except HarnessError as e:
        yield {"kernel": name, "params": {}, "arch": arch, "status": ERROR, "detail": e.what}
        return
    for one in built:
        whole = (inner.parent / one.variant.kernel.name).as_posix()
        for row in _counted(one, sizes, cache):
            yield {**row, "kernel": whole}


def _counted(built: Built, sizes: Sizes, cache: Cache) -> Iterator[Row]:
    """Yield the records of a build with the emulator's counts, or one without where it has no problem."""
    how = emulation.Options(check=False, as_compiled=True, cache=cache)
    try:
        rows = list(emulation.rows([built], sizes(built.variant.kernel), how, lambda _: None))
    except HarnessError:  # no problem of its own, or one that is not there
        yield encode.static_record(built)
        return
    for row in rows:
        found = encode.emulated_record(row)
        del found["findings"]  # nothing was looked for
        yield found
