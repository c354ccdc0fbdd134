"""Compile a variant for an architecture: NVRTC for CUDA C++, nvJitLink for PTX. No GPU is needed.

The result is a cubin: a driver refuses PTX newer than itself, and loads any cubin of its major version.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import BuildError, MissingDependency, SpecError, UsageError
from harness.kernels import text
from harness.kernels.arch import Arch
from harness.kernels.cpp import guesses, host_code, includes, nvrtc
from harness.kernels.cpp.includes import Included
from harness.kernels.cpp.nvrtc import source_text
from harness.kernels.cpp.source import errors
from harness.kernels.spec import Variant
from harness.support.cache import Cache, digest
from harness.support.cache import default as default_cache

_FILES = {"kernel.cubin", "compiled.ptx", "log.txt", "entry.txt"}  # a cache entry has these and the source
FORMAT = "4"  # the format of a cache entry; part of its key
NVJITLINK_OPTIONS = ("-lineinfo", "-Xptxas=-v", "-no-cache")  # without the linker's cache: see nvrtc.OPTIONS
Translated = tuple[bytes, bytes, str, str]  # machine code, PTX, log, the entry's name in the code
_SERIALIZED = re.compile(r"\(C751\d\) (.*wgmma.*)")  # ptxas makes each wgmma wait for the one before it
_LAST: list[tuple[str, Translated]] = []  # of a text with options: it has all kernels but instances


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources of one kernel as ptxas reports them.

    `shared` is static shared memory in bytes per block; the other sizes are bytes per thread.
    """

    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int


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


def compile_kernel(variant: Variant, arch: str, cache: Cache | None = None) -> Cubin:
    """Compile `variant` for `arch`, such as ``"sm_90a"``, or take the result from `cache`.

    Without `cache` the user's is taken. Raises BuildError with the compiler's log, and UsageError for an
    architecture that the compiler or the kernel's ``min_arch`` rules out.
    """
    _check_arch(variant, arch)
    cache = default_cache() if cache is None else cache
    kernel = variant.kernel
    compiler = compiler_version(kernel.language)
    found = includes.of(kernel)
    key, portable = _keys(variant, arch, compiler, found)
    entry = cache.get(key) or (None if found.libraries else cache.get(portable))
    if entry is None or not entry.keys() >= _FILES:
        translated = _nvrtc(variant, arch, found) if kernel.language == "cuda" else _nvjitlink(variant, arch)
        code, ptx, log, name = translated
        entry = {
            f"kernel{kernel.path.suffix}": source_text(variant).encode(),
            "kernel.cubin": code,
            "compiled.ptx": ptx,
            "log.txt": log.encode(),
            "entry.txt": name.encode(),
        }
        _parse_report(log, name, str(kernel.path))  # raises before a result without one is cached
        _check_overlap(log, variant, arch)
        cache.put(key, entry)
    name = entry["entry.txt"].decode()
    return Cubin(
        variant=variant,
        arch=arch,
        code=entry["kernel.cubin"],
        ptx=entry["compiled.ptx"].decode(),
        log=_as_typed(entry["log.txt"].decode(), kernel.path),
        resources=_parse_report(entry["log.txt"].decode(), name, str(kernel.path)),
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
        *(nvrtc.options(kernel.options) if kernel.language == "cuda" else NVJITLINK_OPTIONS),
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
    return "nvJitLink {}.{}".format(*_nvjitlink_api().version())


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


def _nvrtc(variant: Variant, arch: str, found: Included) -> Translated:
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
    if known and (name := nvrtc.lowered(variant.entry, known[2])):
        return *known[:3], name
    try:
        made = host_code.translate(
            source_text(variant), kernel.path, variant.entry, options, found.own, partly=bool(kernel.plain)
        )
    except nvrtc.CompileError as e:
        if e.code == "NVRTC_ERROR_INVALID_OPTION":
            what = " ".join([arch, *kernel.options])
            raise UsageError(f"{compiler_version('cuda')} refuses {what}", hint=e.log) from None
        if nvrtc.names_nothing(e.log):
            return _by_report(variant, options, found.own)
        raise BuildError(
            f"{variant.label} does not compile for {arch} ({e.code})",
            where=str(kernel.path),
            log=_as_typed(e.log, kernel.path),
            hint=nvrtc.hint(e.log),
        ) from None
    translated = made.code, made.ptx, made.log, made.entry
    _LAST[:] = [(whole, translated)]  # at once: other threads compile, too
    return translated


def _by_report(variant: Variant, options: Sequence[str], own: Mapping[Path, bytes]) -> Translated:
    """Compile a source in which the entry's name means no single function, and look it up in the code.

    A kernel called ``norm`` shares that name with CUDA's functions. Raises BuildError, with the kernels that
    there are, for an entry that is none.
    """
    kernel, entry = variant.kernel, variant.entry
    partly = bool(kernel.plain)
    made = host_code.translate(source_text(variant), kernel.path, "", options, own, partly=partly)
    if found := nvrtc.lowered(entry, made.log):
        return made.code, made.ptx, made.log, found
    names = ", ".join(dict.fromkeys(e.name for e in text.entries(kernel.source))) or "none"
    raise BuildError(
        f"no kernel called {entry!r} in the compiled code (in the text: {names})",
        where=str(kernel.path),
        hint=guesses.absent(kernel.source, entry, kernel.params),
    )


def _nvjitlink(variant: Variant, arch: str) -> Translated:
    data = variant.kernel.source.encode()
    code, log = link_ptx(data, arch, variant.kernel.path, what=variant.label)
    return code, data, log, variant.entry


def link_ptx(ptx: bytes, arch: str, path: Path, *, what: str) -> tuple[bytes, str]:
    """Assemble `ptx` and return the cubin and ptxas's report.

    Raises BuildError with a log in which `path` names the lines, and UsageError for an unknown architecture.
    """
    linker = _nvjitlink_api()
    options = [f"-arch={arch}", *NVJITLINK_OPTIONS]
    ptx = ptx.decode(errors="replace").encode("ascii", "replace")  # 13.0 refuses comments that are not ASCII
    try:
        handle = linker.create(len(options), options)
    except linker.nvJitLinkError as e:
        raise UsageError(
            f"{compiler_version('ptx')} does not assemble for {arch} ({e})",
            where=str(path),
            hint="name another with --arch; `harness doctor` lists them",
        ) from None
    try:
        linker.add_data(handle, linker.InputType.PTX, ptx, len(ptx), path.name)
        linker.complete(handle)
        code = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, code)
    except linker.nvJitLinkError as e:
        log = _linker_log(linker.get_error_log_size, linker.get_error_log, handle)
        # ptxas says "ptx input, line 7"; editors and people follow file:line
        log = re.sub(r"ptxas application ptx input, line (\d+)", rf"{path}:\1", log)
        raise BuildError(f"{what} does not assemble for {arch} ({e})", where=str(path), log=log) from None
    else:
        return bytes(code), _linker_log(linker.get_info_log_size, linker.get_info_log, handle)
    finally:
        linker.destroy(handle)


def _linker_log(size: Any, get: Any, handle: Any) -> str:
    buffer = bytearray(size(handle) + 1)
    get(handle, buffer)
    return buffer.decode(errors="replace").strip("\0 \n")


def _parse_report(log: str, entry: str, where: str) -> Resources:
    """Read the resources of `entry` from what ``ptxas -v`` printed. Raises BuildError without such lines."""
    sections = re.split(r"Compiling entry function '([^']+)'", log)
    reports = dict(zip(sections[1::2], sections[2::2], strict=True))
    if entry not in reports:
        have = ", ".join(reports) or "none"
        raise BuildError(
            f"no kernel called {entry!r} in the compiled code (kernels: {have})",
            where=where,
            hint='entry must name an extern "C" __global__ function',
        )
    text = reports[entry]

    def number(pattern: str) -> int:
        match = re.search(pattern, text)
        return int(match[1]) if match else 0

    return Resources(
        registers=number(r"Used (\d+) registers"),
        shared=number(r"(\d+) bytes smem"),
        stack=number(r"(\d+) bytes stack frame"),
        spill_stores=number(r"(\d+) bytes spill stores"),
        spill_loads=number(r"(\d+) bytes spill loads"),
    )


def _check_overlap(log: str, variant: Variant, arch: str) -> None:
    """Raise BuildError where ptxas serialized wgmma instructions, but for files without front matter.

    Such code is correct, and slow for a reason that no line of the source shows.
    """
    if (found := _SERIALIZED.search(log)) and not variant.kernel.plain:
        raise BuildError(
            f"{variant.label} for {arch}: wgmma serialized: {found[1]}",
            where=str(variant.kernel.path),
            hint="touch no accumulator between wgmma.fence and wait_group; use fewer registers",
            log=_as_typed(log, variant.kernel.path),
        )


@functools.cache
def _nvjitlink_api() -> Any:
    linker = nvrtc.bindings("nvjitlink")
    try:
        linker.version()
    except RuntimeError as e:
        driver = "cuda-bindings 13.0.0 needs a driver for this: pip install --upgrade cuda-bindings"
        hint = driver if "driver" in str(e) else "pip install 'nvidia-nvjitlink>=13,<14'"
        raise MissingDependency(f"nvJitLink cannot be loaded: {e}", hint=hint) from None
    return linker
