"""Find kernels by the words that name them: file stems, numbers, globs, paths and former names.

The files in `folders` are all there is to it; no list of kernels is kept anywhere. A file that lists several
element types gives a `Kernel` for each of them.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.errors import HarnessError, SpecError, UsageError
from harness.kernels import spec, text
from harness.kernels.cpp import calls, guesses, includes
from harness.kernels.cpp.source.anew import instances, lambdas, overloads
from harness.kernels.cpp.source.ptx import decompiled
from harness.kernels.expr import Expr
from harness.kernels.spec import Kernel, Variant
from harness.support import files as files_of

_MORE = {"matmul": "it is a choice among kernels: `harness bench matmul`, `harness verify matmul`"}
_NUMBER = re.compile(r"(\d+[a-z]?)_")  # 22a_ is a rung between 22_ and 23_


def folders() -> list[Path]:
    """Return where shipped kernels lie: inside an installed wheel, or at the top of a checkout."""
    return [files_of.SHIPPED / "cu", files_of.SHIPPED / "ptx"]


def files() -> list[Path]:
    """Return every shipped kernel file, sorted by stem: first the numbered rungs, then the others."""
    below = (p for folder in folders() for p in folder.rglob("*") if p.suffix in (".cu", ".ptx"))
    found = [p for p in below if not p.name.startswith(".") and p.is_file()]  # editors leave links
    return sorted(found, key=lambda p: (not _NUMBER.match(p.stem), p.stem))


def shipped() -> list[Kernel]:
    """Return every shipped kernel, for each element type of its file, in the order of `files`."""
    return [k for p in files() for k in spec.load(p).each_dtype()]


def ladder() -> list[Kernel]:
    """Return the numbered kernels, which commands take when none is named."""
    return [k for p in files() if _NUMBER.match(p.stem) for k in spec.load(p).each_dtype()]


def find(pattern: str, folder: Path | None = None) -> list[Kernel]:
    """Return the kernels that one word of a command line names.

    The word is a path, a stem (``03_tiled``), its number or the rest (``03``, ``tiled``), a former name
    (``24_wgmma_fp16``, and its number or rest), or a glob (``0[1-3]*``, ``cu/**/*.cu``). A path, a stem or
    its parts give the file's default element type; ``23_wgmma_pipeline_fp16`` is another one, and a glob
    matches the kernels of every type. A relative path starts at `folder`, else at the working directory.

    Raises UsageError where nothing matches, with the nearest names.
    """
    if Path(pattern).suffix in text.SUFFIXES or "/" in pattern or "\\" in pattern:
        if globbed := files_of.globbed(pattern, folder, (".cu", ".ptx")):
            return [k for p in globbed for one in load_each(p) for k in one.each_dtype()]
        return load_each(pattern if folder is None else folder / pattern)
    paths = files()
    if exact := [p for p in paths if pattern in _names(p.stem)]:
        return [spec.load(p) for p in exact]
    named = [(name, p, dtype) for p in paths for name, dtype in _all_names(p)]
    matches = {(p, dtype): None for name, p, dtype in named if fnmatch.fnmatchcase(name, pattern)}
    if not matches:
        close = difflib.get_close_matches(pattern, [name for name, _, _ in named], n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else _MORE.get(pattern, "see `harness list`")
        raise UsageError(f"no kernel {pattern!r}", hint=f"{hint} (a file of your own is given by its path)")
    kernels = ((spec.load(p), dtype) for p, dtype in matches)
    return [k.with_dtype(dtype) if dtype else k for k, dtype in kernels]


def kernel(pattern: str) -> Kernel:
    """Return the one kernel that `pattern` names, as in `find`. Raises UsageError where it names several."""
    return _single(find(pattern), pattern)


def select(patterns: Sequence[str], dtypes: Sequence[str] = (), *, strict: bool = True) -> list[Kernel]:
    """Return the kernels for all words of a command line, each once; the ladder where there are no words.

    With `dtypes` a kernel is taken for those of them that its file lists. `strict` raises UsageError for a
    kernel that is written for none of them, and for a type that no kernel here is written for; a glob, and
    the ladder, leave out such kernels. Otherwise such a kernel keeps its default type.
    """
    if not patterns:
        found = [k for k in ladder() if k.dtype in dtypes or not dtypes]
    elif dtypes:
        found = [k for pattern in patterns for k in _of_types(pattern, dtypes, strict)]
    else:
        found = [k for pattern in patterns for k in find(pattern)]
    if strict and (absent := [d for d in dtypes if d not in {k.dtype for k in found}]):
        raise UsageError(
            f"no kernel here is written for {', '.join(absent)}",
            hint="`harness list` shows the element types of each",
        )
    return _each_once(found)


def load_each(path: Path | str) -> list[Kernel]:
    """Read and check the kernels at `path`: one where there is front matter, else each that the text has.

    A template stands for the instances that host code in the text launches, or for one that can be tried;
    without any it counts as one, if there is nothing else. Raises as `spec.load` does.
    """
    if text.has_front_matter(source := text.read(path := Path(path))):
        return [spec.parse(source, path)]
    source = overloads.apart(source)
    include = includes.of_repository(path, source)
    headers = includes.included(path, source, include).read
    known = calls.listed(decompiled.of(source, path), headers)
    if not known:
        includes.without_kernels(path, source)
        return [spec.parse(source, path)]
    source = lambdas.with_classes(source)
    whole = instances.listed(calls.seen(source, headers).texts[0], known)
    return [_guessed(source, path, name, include, headers, len(whole) == len(known) == 1) for name in whole]


def chosen(kernels: Sequence[Kernel], entry: str | None, include: Sequence[str]) -> list[Kernel]:
    """Return the kernels with another `entry` of their files, and further folders of headers.

    The entry may have template arguments. Raises UsageError for one that a text does not have.
    """
    found = list(kernels)
    if entry is not None:
        each = {k.path: k for k in kernels}.values()
        found = [one for k in each for one in _with_entries(k, kernels, entry)]
    folders = tuple(str(Path(folder).absolute()) for folder in include)
    if not folders:
        return found
    wider = [replace(k, include=(*folders, *k.include)) for k in found]
    return [_with_entry(k, k.entry) if k.plain else k for k in wider]  # by the headers that are there


def _with_entries(kernel: Kernel, kernels: Sequence[Kernel], entry: str) -> list[Kernel]:
    """Return the kernels of a file that `entry` means, those of `kernels` where it is several."""
    named = overloads.selected(calls.entries(kernel), entry)
    listed = [k for k in kernels if k.path == kernel.path and k.entry.partition("<")[0] in named]
    return listed or [_with_entry(kernel, name) for name in named or [entry]]


def _with_entry(kernel: Kernel, entry: str) -> Kernel:
    """Return another kernel of a file, with what the front matter says, or new guesses without."""
    known = calls.entries(kernel)
    base = entry.partition("<")[0].rpartition("::")[2].strip()
    made = kernel.language == "cuda" and base in re.findall(r"\w+", kernel.source)  # by a macro
    if text.find(known, entry) is None and not made:
        have = ", ".join(map(str, known)) or "none"
        raise UsageError(f"no kernel {entry!r}", where=str(kernel.path), hint=f"it has {have}")
    if not kernel.plain:
        return replace(kernel, entry=entry)
    headers = includes.included(kernel.path, kernel.source, kernel.include).read
    return _guessed(kernel.source, kernel.path, entry, kernel.include, headers, len(known) == 1)


def _guessed(
    source: str, path: Path, entry: str, include: tuple[str, ...], headers: tuple[bytes, ...], alone: bool
) -> Kernel:
    """Return a kernel without front matter as it may be launched; `include` are the folders of `headers`."""
    whole = decompiled.of(source, path)
    known = text.find(listed := calls.listed(whole, headers), entry)
    block = decompiled.block(source, entry) if path.suffix == ".ptx" else None
    guess = guesses.of(calls.of_host(whole, headers), known, entry, ptx=block)
    return Kernel(
        path=path,
        source=source,
        language=text.SUFFIXES[path.suffix],
        title="",
        entry=entry,
        problem=spec.GUESSED,
        min_arch=decompiled.target(source, path),
        block=tuple(map(Expr.parse, guess.block)),
        tile=tuple(map(Expr.parse, guess.tile)),
        grid=guess.grid,
        shared=Expr.parse(guess.shared),
        params={},
        include=include,
        plain=path.stem if alone else f"{path.stem}:{overloads.label(listed, entry)}",
    )


def _of_types(pattern: str, dtypes: Sequence[str], strict: bool) -> list[Kernel]:
    """Return what `pattern` names for those of `dtypes` that there are."""
    found: list[Kernel] = []
    wildcard = any(c in pattern for c in "*?[") and not os.path.isfile(pattern)  # noqa: PTH113
    for k in find(pattern):
        # A name (or former name) of a type other than the file's default selects that type; any other name
        # selects all types of the file.
        known = k.dtypes if k.dtype == k.dtypes[0] else (k.dtype,)
        typed = [k.with_dtype(d) for d in dtypes if d in known]
        if not typed and strict and not wildcard:
            if len(known) < len(k.dtypes):
                raise UsageError(
                    f"{pattern!r} is {k.dtype}, not {' or '.join(dtypes)}", hint=f"name {k.path.stem} instead"
                )
            k.with_dtype(dtypes[0])  # raises, and says which types there are
        found += typed or ([] if strict else [k])
    if not found:
        raise UsageError(f"none of {pattern!r} is written for {' or '.join(dtypes)}")
    return found


def arguments(kernel: Kernel) -> list[str]:
    """Return the command-line words by which another process finds exactly this kernel.

    The path is not resolved: a symbolic link has a name of its own.
    """
    words = [str(kernel.path.absolute())]
    return words if kernel.dtype == kernel.dtypes[0] else [*words, f"--dtype={kernel.dtype}"]


def former_names() -> Mapping[str, str]:
    """Return the name of today for each former name of a shipped kernel (``aliases`` in front matter)."""
    return {old: new for p in files() for _, new, old in _further(p) if old}


def canonical(name: str) -> str:
    """Return today's name of the shipped kernel that `name` is a former name of; any other name as it is."""
    return former_names().get(name, name)


def predecessor(kernel: Kernel) -> Kernel | None:
    """Return the kernel that `kernel` was derived from, as ``after`` in its front matter says; else None.

    A name is looked up as in `related`. Raises SpecError for a name that is no kernel, or several.
    """
    if not kernel.after:
        return None
    try:
        found = related(kernel, kernel.after)
    except HarnessError as e:
        raise SpecError(f"after = {kernel.after!r}: {e.what}", where=str(kernel.path), hint=e.hint) from None
    if found.path.resolve() == kernel.path.resolve():
        raise SpecError(f"after = {kernel.after!r}: a kernel does not follow itself", where=str(kernel.path))
    return found


def ancestors(kernel: Kernel) -> Iterator[Kernel]:
    """Yield the predecessor of `kernel`, then that one's, and so on. Raises SpecError for a circle."""
    seen = {kernel.path.resolve()}
    current: Kernel | None = kernel
    while current and (current := predecessor(current)):
        if current.path.resolve() in seen:
            raise SpecError(
                f"after = {kernel.after!r}: following it leads back to {current.name}", where=str(kernel.path)
            )
        seen.add(current.path.resolve())
        yield current


def related(kernel: Kernel, name: str) -> Kernel:
    """Return the kernel that `name` means in the front matter of `kernel`.

    A path starts at the folder of `kernel`. If `kernel`'s file lists several element types, another kernel is
    returned in `kernel`'s type where it has that type, unless `name` selects a type that is not its default.
    Raises UsageError for a name that is no kernel, or several.
    """
    found = _single(find(name, kernel.path.parent), name)
    own = len(kernel.dtypes) > 1 and found.path.stem != kernel.path.stem
    plain = found.dtype == found.dtypes[0]
    return found.with_dtype(kernel.dtype) if own and plain and kernel.dtype in found.dtypes else found


def variant(
    kernel: str | os.PathLike[str] | Kernel | Variant, params: Mapping[str, int], folder: Path
) -> Variant:
    """Return a variant of a kernel, which may be named, loaded or already a variant.

    `params` replace those of a variant, or the defaults. Paths start at `folder`. Raises UsageError for a
    value that is no integer, and where `kernel` names no kernel or several.
    """
    for name, value in params.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise UsageError(f"the parameter {name} is an integer, not {value!r}")
    if isinstance(kernel, Variant):
        return kernel.kernel.variant(**{**kernel.params, **params})
    return _single(named(kernel, folder), str(kernel)).variant(**params)


def variants(kernels: object, sweep: bool, folder: Path) -> list[Variant]:
    """Return the default variant, or with `sweep` every one, of one kernel or several, each kernel once."""
    words = [kernels] if isinstance(kernels, str | os.PathLike | Kernel) else kernels
    if not isinstance(words, list | tuple) or not words:
        raise UsageError(f"no kernels: {kernels!r}", hint="such as ['tiled', 'cu/*.cu']")
    found = _each_once([k for word in words for k in named(word, folder)])
    return [v for k in found for v in k.variants(defaults=not sweep)]


def named(kernel: str | os.PathLike[str] | Kernel, folder: Path) -> list[Kernel]:
    """Return a kernel itself, or those that a word or path names, as in `find`."""
    if isinstance(kernel, Kernel):
        return [kernel]
    if not isinstance(kernel, str | os.PathLike):
        raise UsageError(f"a kernel is a stem, a path, a Kernel or a Variant, not {kernel!r}")
    return find(kernel if isinstance(kernel, str) else str(folder / kernel), folder)


def _single(found: Sequence[Kernel], pattern: str) -> Kernel:
    if len(found) > 1:
        raise UsageError(f"{pattern!r} names {len(found)} kernels: {', '.join(k.name for k in found)}")
    return found[0]


def _each_once(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels without those of the same file, entry and element type as one before."""
    return list({(k.path.resolve(), k.entry, k.dtype): k for k in kernels}.values())


def _names(stem: str) -> tuple[str, ...]:
    """Return a stem and, where it is numbered, its rest and its number."""
    number = _NUMBER.match(stem)
    return (stem, stem[number.end() :], number[1]) if number else (stem,)


def _all_names(path: Path) -> Iterator[tuple[str, str]]:
    """Yield every word for the kernels of a file and the element type it means, "" for the default."""
    yield from ((name, "") for name in _names(path.stem))
    for dtype, name, old in _further(path):
        words = _names(name)[:2] if dtype else ()  # the number alone is the default type's
        yield from ((word, dtype) for word in (*words, *(_names(old) if old else ())))


def _further(path: Path) -> tuple[tuple[str, str, str], ...]:
    """Return (element type, name, former name) of a file's kernels; "" for the default type, and for none."""
    return _read_further(path, path.stat().st_mtime_ns)


@functools.cache
def _read_further(path: Path, _changed: int) -> tuple[tuple[str, str, str], ...]:
    try:
        loaded = spec.load(path)
    except HarnessError:
        return ()  # `find` reports what is wrong with this file if a word names it
    kernels = enumerate(loaded.each_dtype())
    return tuple((k.dtype if i else "", k.name, loaded.aliases.get(k.dtype, "")) for i, k in kernels)
