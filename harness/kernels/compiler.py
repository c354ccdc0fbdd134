"""Compile a variant for an architecture: NVRTC for CUDA C++, nvJitLink for PTX. No GPU is needed.

The result is always a cubin, because a driver refuses PTX that is newer than itself, while it loads cubins
of any toolkit of its major version.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import BuildError, MissingDependency, UsageError
from harness.kernels import includes
from harness.kernels.arch import Arch
from harness.kernels.dtypes import DTYPES
from harness.kernels.frontmatter import ELEMENT
from harness.kernels.spec import Variant
from harness.support.cache import Cache, digest
from harness.support.cache import default as default_cache

_FILES = {"kernel.cubin", "compiled.ptx", "log.txt"}  # a cache entry has these, beside the source
FORMAT = "3"  # the format of a cache entry; part of its key
# Both compilers keep a cache under the user's home. Code from there comes without ptxas's report (seen with
# 13.0), so these caches are switched off: the harness caches code and report together.
NVRTC_OPTIONS = ("-lineinfo", "--std=c++17", "--ptxas-options=-v", "--no-cache")
NVJITLINK_OPTIONS = ("-lineinfo", "-Xptxas=-v", "-no-cache")
_SERIALIZED = re.compile(r"\(C751\d\) (.*wgmma.*)")  # ptxas makes each wgmma wait for the one before it


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

    `log` is the compiler's output with its warnings, `compiler` its name and version.
    """

    variant: Variant
    arch: str
    code: bytes
    ptx: str
    log: str
    resources: Resources
    compiler: str

    @property
    def sha256(self) -> str:
        """Return the hash of the whole cubin in hexadecimal."""
        return hashlib.sha256(self.code).hexdigest()

    @property
    def shared(self) -> int:
        """Return the shared memory of a block in bytes, static and dynamic."""
        return self.resources.shared + self.variant.shared

    @property
    def warnings(self) -> str:
        """Return the log without ptxas's report."""
        lines = [s for s in self.log.splitlines() if s.strip() and not s.startswith("ptxas")]
        return "\n".join(s for s in lines if not s.startswith(("info ", "Remark: The warnings can")))


def compile_kernel(variant: Variant, arch: str, cache: Cache | None = None) -> Cubin:
    """Compile `variant` for `arch`, such as ``"sm_90a"``, or take the result from `cache`.

    Without `cache` the user's is taken. Raises BuildError with the compiler's log, and UsageError for an
    architecture that the compiler or the kernel's ``min_arch`` rules out.
    """
    _check_arch(variant, arch)
    cache = default_cache() if cache is None else cache
    kernel = variant.kernel
    compiler = compiler_version(kernel.language)
    key = digest(
        FORMAT,
        compiler,
        arch,
        kernel.entry,
        kernel.dtype,
        *(NVRTC_OPTIONS if kernel.language == "cuda" else NVJITLINK_OPTIONS),
        source_text(variant),
        *(
            part
            for path, data in includes.included(kernel.path, kernel.source).items()
            for part in (str(path), data)
        ),
    )
    entry = cache.get(key)
    if entry is None or not entry.keys() >= _FILES:
        translate = _nvrtc if kernel.language == "cuda" else _nvjitlink
        code, ptx, log = translate(variant, arch)
        entry = {
            f"kernel{kernel.path.suffix}": source_text(variant).encode(),
            "kernel.cubin": code,
            "compiled.ptx": ptx,
            "log.txt": log.encode(),
        }
        _parse_report(log, kernel.entry, str(kernel.path))  # raises before a result without one is cached
        _check_overlap(log, variant, arch)
        cache.put(key, entry)
    return Cubin(
        variant=variant,
        arch=arch,
        code=entry["kernel.cubin"],
        ptx=entry["compiled.ptx"].decode(),
        log=_as_typed(entry["log.txt"].decode(), kernel.path),
        resources=_parse_report(entry["log.txt"].decode(), kernel.entry, str(kernel.path)),
        compiler=compiler,
    )


def source_text(variant: Variant) -> str:
    """Return what the compiler reads: macros, then the file with its own line numbers.

    Each parameter is a macro, and in a file of several element types so is ``ELEMENT``, the C++ type of the
    one chosen. NVRTC would apply ``-D`` to its built-in header too, where a parameter called T breaks it.
    """
    kernel = variant.kernel
    if kernel.language == "ptx":
        return kernel.source
    path = _absolute(kernel.path)
    macros: dict[str, object] = dict(variant.params)
    if len(kernel.dtypes) > 1:
        macros[ELEMENT] = DTYPES[kernel.dtype].cpp
    prelude = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    return f'{prelude}#line 1 "{path}"\n{kernel.source}'


def _absolute(path: Path) -> str:
    """Return the file's name for the compiler: absolute, so that profilers find the file.

    NVRTC would look in the working directory first for the headers of a file without a folder. A quotation
    mark becomes an apostrophe, and what ends a line or a statement of PTX a space: NVRTC writes the name into
    PTX unchanged, which then does not assemble, and nvdisasm a backslash into its JSON.
    """
    return re.sub(r"[\n\r;{}\\]", " ", str(path.resolve()).replace('"', "'"))


def _as_typed(log: str, path: Path) -> str:
    """Return the log with the file's name as the user gave it."""
    return log.replace(str(path.resolve()), str(path)).replace(_absolute(path), str(path))


@functools.cache
def supported_archs() -> tuple[str, ...]:
    """Return the architectures that the installed NVRTC compiles for, oldest first, without suffixes."""
    numbers = _ok(_nvrtc_api(), "nvrtcGetSupportedArchs")
    return tuple(f"sm_{n}" for n in sorted(numbers))


@functools.cache
def compiler_version(language: str) -> str:
    """Return the compiler of a language with its version: ``NVRTC 13.5`` or ``nvJitLink 13.5``."""
    if language == "cuda":
        return "NVRTC {}.{}".format(*_ok(_nvrtc_api(), "nvrtcVersion"))
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


def _nvrtc(variant: Variant, arch: str) -> tuple[bytes, bytes, str]:
    nvrtc = _nvrtc_api()
    kernel = variant.kernel
    name = str(kernel.path.resolve())
    program = _ok(nvrtc, "nvrtcCreateProgram", source_text(variant).encode(), name.encode(), 0, None, None)
    try:
        options = [
            f"--gpu-architecture={arch}".encode(),
            *(f"--include-path={folder}".encode() for folder in includes.folders(kernel.path)),
            *(o.encode() for o in NVRTC_OPTIONS),
        ]
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _fetch(nvrtc, "nvrtcGetProgramLog", program).decode(errors="replace").strip("\0 \n")
        if code == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
            raise UsageError(f"{compiler_version('cuda')} refuses {arch}", hint=log)
        if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(
                f"{variant.label} does not compile for {arch} ({code.name})",
                where=str(kernel.path),
                log=_as_typed(log, kernel.path),
            )
        ptx = _fetch(nvrtc, "nvrtcGetPTX", program).rstrip(b"\0")
        return _fetch(nvrtc, "nvrtcGetCUBIN", program), ptx, log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _fetch(nvrtc: Any, getter: str, program: Any) -> bytes:
    """Return the bytes that an NVRTC getter writes.

    NVRTC writes into the bytes object it is given, which must therefore be a fresh one. CPython shares all
    objects of one byte, and writing there would change them for the whole process: hence two spare bytes.
    """
    size = _ok(nvrtc, f"{getter}Size", program)
    buffer = bytes(size + 2)
    _ok(nvrtc, getter, program, buffer)
    return buffer[:size]


def _ok(nvrtc: Any, function: str, *args: Any) -> Any:
    """Call NVRTC and return its value, a tuple where there are several. Raises BuildError on failure."""
    try:
        code, *values = getattr(nvrtc, function)(*args)
    except RuntimeError as e:  # cuda.pathfinder raises when it finds no library
        raise MissingDependency(
            f"NVRTC cannot be loaded: {e}", hint="pip install 'nvidia-cuda-nvrtc>=13,<14'"
        ) from None
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildError(f"{function} failed: {code.name}")
    return values[0] if len(values) == 1 else tuple(values)


def _nvjitlink(variant: Variant, arch: str) -> tuple[bytes, bytes, str]:
    data = variant.kernel.source.encode()
    code, log = link_ptx(data, arch, variant.kernel.path, what=variant.label)
    return code, data, log


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
    """Raise BuildError where ptxas serialized wgmma instructions.

    Such code is correct, and slow for a reason that no line of the source shows.
    """
    if found := _SERIALIZED.search(log):
        raise BuildError(
            f"{variant.label} for {arch}: wgmma serialized: {found[1]}",
            where=str(variant.kernel.path),
            hint="touch no accumulator between wgmma.fence and wait_group; use fewer registers",
            log=_as_typed(log, variant.kernel.path),
        )


@functools.cache
def _nvrtc_api() -> Any:
    return _bindings("nvrtc")


@functools.cache
def _nvjitlink_api() -> Any:
    linker = _bindings("nvjitlink")
    try:
        linker.version()
    except RuntimeError as e:
        hint = "pip install 'nvidia-nvjitlink>=13,<14'"
        if "driver" in str(e):
            hint = "cuda-bindings 13.0.0 needs a driver for this: pip install --upgrade cuda-bindings"
        raise MissingDependency(f"nvJitLink cannot be loaded: {e}", hint=hint) from None
    return linker


def _bindings(name: str) -> Any:
    try:
        return __import__(f"cuda.bindings.{name}", fromlist=[name])
    except ImportError as e:
        raise MissingDependency(
            f"cuda.bindings cannot be imported: {e}", hint="pip install 'cuda-python>=13,<14'"
        ) from None
