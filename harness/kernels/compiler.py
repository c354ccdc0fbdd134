"""Compile a variant for an architecture: NVRTC for CUDA C++, nvJitLink for PTX. No GPU is needed.

The result is a cubin: a driver refuses PTX newer than itself, and loads any cubin of its major version.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import BuildError, SpecError, UsageError
from harness.kernels import text
from harness.kernels.arch import Arch
from harness.kernels.cpp import guesses, host_code, includes
from harness.kernels.cpp.compilers import apart, nvjitlink, nvrtc, report
from harness.kernels.cpp.compilers.nvrtc import source_text
from harness.kernels.cpp.compilers.report import Resources
from harness.kernels.cpp.includes import Included
from harness.kernels.cpp.source import errors
from harness.kernels.spec import Variant
from harness.support.cache import Cache, digest
from harness.support.cache import default as default_cache

_FILES = {"kernel.cubin", "compiled.ptx", "log.txt", "entry.txt"}  # a cache entry has these and the source
FORMAT = "4"  # the format of a cache entry; part of its key
Translated = tuple[bytes, bytes, str, str]  # machine code, PTX, log, the entry's name in the code
_LAST: list[tuple[str, Translated]] = []  # of a text with options: it has all kernels but instances


@dataclass(frozen=True, kw_only=True)
class Cubin:
    """The machine code of one variant for one architecture.

    `log` is the compiler's output with its warnings, `compiler` its name and version. `entry` is the kernel's
    name in the code, which C++ mangles unless it is ``extern "C"``.
    """

    variant: Variant
    arch: str
    code: bytes
    ptx: str
    log: str
    resources: Resources
    compiler: str
    entry: str

    @property
    def sha256(self) -> str:
        """Return the hash of the whole cubin in hexadecimal."""
        return hashlib.sha256(self.code).hexdigest()

    def __repr__(self) -> str:
        return f"<Cubin {self.variant.label}, {self.arch}: {self.resources.registers} registers>"

    @property
    def shared(self) -> int:
        """Return the shared memory of a block in bytes, static and dynamic."""
        return self.resources.shared + self.variant.shared

    def symbol(self, name: str) -> str:
        """Return what a ``__constant__`` or ``__device__`` variable is called in the code.

        C++ mangles a name that is static or in a namespace. Raises SpecError where there is no such variable:
        one that the kernel does not use is not there either.
        """
        try:
            return nvrtc.variable(self.ptx, name)
        except SpecError as e:
            raise SpecError(e.what, where=str(self.variant.kernel.path), hint=e.hint) from None

    @property
    def warnings(self) -> str:
        """Return the log without ptxas's report, and with a line for warnings of libraries alone."""
        return errors.of_own(self.log, includes.libraries())


def compile_kernel(
    variant: Variant, arch: str, cache: Cache | None = None, *, until: float = math.inf
) -> Cubin:
    """Compile `variant` for `arch`, such as ``"sm_90a"``, or take the result from `cache`.

    Without `cache` the user's is taken. A file without front matter may be anybody's: its compiler runs in
    another process, which may crash, and which is ended once the monotonic clock shows `until`. Raises
    BuildError with the compiler's log, and UsageError for an architecture that the compiler or the kernel's
    ``min_arch`` rules out.
    """
    _check_arch(variant, arch)
    cache = default_cache() if cache is None else cache
    kernel = variant.kernel
    compiler = compiler_version(kernel.language)
    found = includes.of(kernel)
    key, portable = _keys(variant, arch, compiler, found)
    entry = cache.get(key) or (None if found.libraries else cache.get(portable))
    if entry is None or not entry.keys() >= _FILES:
        code, ptx, log, name = _translated(variant, arch, found, until if kernel.plain else None)
        entry = {
            f"kernel{kernel.path.suffix}": source_text(variant).encode(),
            "kernel.cubin": code,
            "compiled.ptx": ptx,
            "log.txt": log.encode(),
            "entry.txt": name.encode(),
        }
        report.resources(log, name, str(kernel.path))  # raises before a result without one is cached
        _check_overlap(log, variant, arch)
        cache.put(key, entry)
    name = entry["entry.txt"].decode()
    return Cubin(
        variant=variant,
        arch=arch,
        code=entry["kernel.cubin"],
        ptx=entry["compiled.ptx"].decode(),
        log=_as_typed(entry["log.txt"].decode(), kernel.path),
        resources=report.resources(entry["log.txt"].decode(), name, str(kernel.path)),
        compiler=compiler,
        entry=name,
    )


def portable(variant: Variant, arch: str, cache: Cache) -> tuple[str, dict[str, bytes]] | None:
    """Return a cached build as another machine may have it: a key without folders, and the entry.

    In the cache of a machine with the same compiler it is found wherever the kernel lies there. None if the
    kernel was not built for `arch`, or if nothing is cached, or if it includes headers of libraries: the
    other machine may have other ones.
    """
    found = includes.of(variant.kernel)
    key, portable = _keys(variant, arch, compiler_version(variant.kernel.language), found)
    entry = cache.get(key)
    return None if entry is None or found.libraries else (portable, entry)


def _keys(variant: Variant, arch: str, compiler: str, found: includes.Included) -> tuple[str, str]:
    """Return the key of a build in the cache, and the key that it has on every machine.

    The first depends on the folders of kernel and headers, which the code's line table names, and on the
    state of the libraries' headers.
    """
    kernel = variant.kernel
    what = (
        FORMAT,
        compiler,
        arch,
        variant.entry,
        kernel.dtype,
        *(nvrtc.options(kernel.options) if kernel.language == "cuda" else nvjitlink.OPTIONS),
    )
    text, own = source_text(variant), found.own.items()
    key = digest(*what, text, *(part for path, data in own for part in (str(path), data)), *found.stamps)
    bare = text.replace(nvrtc.absolute(kernel.path), kernel.path.name, 1)
    return key, digest("portable", *what, bare, *(part for path, data in own for part in (path.name, data)))


def _as_typed(log: str, path: Path) -> str:
    """Return the log with the file's name as the user gave it."""
    return log.replace(str(path.resolve()), str(path)).replace(nvrtc.absolute(path), str(path))


@functools.cache
def supported_archs() -> tuple[str, ...]:
    """Return the architectures that the installed NVRTC compiles for, oldest first, without suffixes."""
    numbers = nvrtc.ok(nvrtc.api(), "nvrtcGetSupportedArchs")
    return tuple(f"sm_{n}" for n in sorted(numbers))


@functools.cache
def compiler_version(language: str) -> str:
    """Return the compiler of a language with its version: ``NVRTC 13.5`` or ``nvJitLink 13.5``."""
    if language == "cuda":
        return "NVRTC {}.{}".format(*nvrtc.ok(nvrtc.api(), "nvrtcVersion"))
    return nvjitlink.version()


def _check_arch(variant: Variant, arch: str) -> None:
    wanted = Arch.parse(arch)
    known = supported_archs()
    if f"sm_{wanted.number}" not in known:
        raise UsageError(
            f"{compiler_version('cuda')} does not know {arch}", hint=f"known: {', '.join(known)}"
        )
    least = Arch.parse(variant.kernel.min_arch)
    if not wanted.satisfies(least):
        later = "" if str(least).endswith("a") else " or later"  # code for sm_90a runs on 9.0 only
        raise UsageError(
            f"needs {least}, asked for {arch}", where=str(variant.kernel.path), hint=f"--arch {least}{later}"
        )


def _translated(variant: Variant, arch: str, found: Included, until: float | None) -> Translated:
    """Compile or assemble; with `until` in another process. Raises BuildError where that process ends."""
    kernel = variant.kernel
    try:
        if kernel.language == "cuda":
            return _nvrtc(variant, arch, found, until)
        return _nvjitlink(variant, arch, until)
    except apart.Ended as e:
        compiler = compiler_version(kernel.language)
        what = f"{variant.label} does not compile for {arch} ({compiler} {e.what})"
        raise BuildError(what, where=str(kernel.path), hint=e.hint) from None


def _nvrtc(variant: Variant, arch: str, found: Included, until: float | None) -> Translated:
    kernel = variant.kernel
    where = [*includes.folders(kernel.path, kernel.include), *found.folders]
    wide = any(b"__int128" in content for content in (kernel.source.encode(), *found.own.values()))
    options = [
        f"--gpu-architecture={arch}",
        *(f"--include-path={folder}" for folder in where),
        *nvrtc.options(kernel.options, found.libraries, wide=wide),
    ]
    whole, _ = _keys(replace(variant, kernel=replace(kernel, entry="")), arch, "", found)
    known = next((translated for key, translated in tuple(_LAST) if key == whole), None)
    if known and (name := report.lowered(variant.entry, known[2])):
        return *known[:3], name
    try:
        made = host_code.translate(
            source_text(variant),
            kernel.path,
            variant.entry,
            options,
            found.own,
            partly=bool(kernel.plain),
            until=until,
        )
    except nvrtc.CompileError as e:
        if e.code == "NVRTC_ERROR_INVALID_OPTION":
            what = " ".join([arch, *kernel.options])
            raise UsageError(f"{compiler_version('cuda')} refuses {what}", hint=e.log) from None
        if nvrtc.names_nothing(e.log):
            return _by_report(variant, options, found.own, until)
        raise BuildError(
            f"{variant.label} does not compile for {arch} ({e.code})",
            where=str(kernel.path),
            log=_as_typed(e.log, kernel.path),
            hint=nvrtc.hint(e.log),
        ) from None
    translated = made.code, made.ptx, made.log, made.entry
    _LAST[:] = [(whole, translated)]  # at once: other threads compile, too
    return translated


def _by_report(
    variant: Variant, options: Sequence[str], own: Mapping[Path, bytes], until: float | None
) -> Translated:
    """Compile a source in which the entry's name means no single function, and look it up in the code.

    A kernel called ``norm`` shares that name with CUDA's functions. Raises BuildError, with the kernels that
    there are, for an entry that is none.
    """
    kernel, entry = variant.kernel, variant.entry
    partly = bool(kernel.plain)
    made = host_code.translate(
        source_text(variant), kernel.path, "", options, own, partly=partly, until=until
    )
    if found := report.lowered(entry, made.log):
        return made.code, made.ptx, made.log, found
    names = ", ".join(dict.fromkeys(e.name for e in text.entries(kernel.source))) or "none"
    raise BuildError(
        f"no kernel called {entry!r} in the compiled code (in the text: {names})",
        where=str(kernel.path),
        hint=f"{several} kernels are called {entry!r}: give each a name of its own"
        if (several := len(report.alike(entry, made.log))) > 1
        else guesses.absent(kernel.source, entry, kernel.params),
    )


def _nvjitlink(variant: Variant, arch: str, until: float | None) -> Translated:
    data, path, label = variant.kernel.source.encode(), variant.kernel.path, variant.label
    if until is None:
        code, log = nvjitlink.link_ptx(data, arch, path, label)
    else:
        code, log = apart.call(nvjitlink.link_ptx, data, arch, path, label, until=until)
    return code, data, log, variant.entry


def _check_overlap(log: str, variant: Variant, arch: str) -> None:
    """Raise BuildError where ptxas serialized wgmma instructions, but for files without front matter.

    Such code is correct, and slow for a reason that no line of the source shows.
    """
    if (said := report.serialized(log)) and not variant.kernel.plain:
        raise BuildError(
            f"{variant.label} for {arch}: wgmma serialized: {said}",
            where=str(variant.kernel.path),
            hint="touch no accumulator between wgmma.fence and wait_group; use fewer registers",
            log=_as_typed(log, variant.kernel.path),
        )
