"""A variant and an architecture -> a `Cubin`, without a GPU: NVRTC for CUDA C++, nvJitLink for PTX.

Everything becomes a cubin before it is loaded, because a driver refuses PTX newer than itself while it
loads cubins of any toolkit of its major version.
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
from harness.kernels.spec import Variant
from harness.support.cache import Cache, digest
from harness.support.cache import default as default_cache

_FILES = {"kernel.cubin", "compiled.ptx", "log.txt"}  # of a cache entry, beside the source
FORMAT = "3"  # of a cache entry; part of its key
# Both compilers keep a cache of their own, under the user's home. Code from there comes without ptxas's
# report (seen with 13.0), so it is switched off: ours holds code and report together.
NVRTC_OPTIONS = ("-lineinfo", "--std=c++17", "--ptxas-options=-v", "--no-cache")
NVJITLINK_OPTIONS = ("-lineinfo", "-Xptxas=-v", "-no-cache")
_SERIALIZED = re.compile(r"\(C751\d\) (.*wgmma.*)")  # ptxas made each wgmma wait for the one before


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What ptxas reports of one kernel; bytes are per thread, `shared` (static) per block."""

    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True, kw_only=True)
class Cubin:
    """Machine code of one variant for one architecture. `log` is the compiler's, warnings included."""

    variant: Variant
    arch: str
    code: bytes
    ptx: str
    log: str
    resources: Resources
    compiler: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.code).hexdigest()

    @property
    def shared(self) -> int:
        """Bytes of shared memory a block, static and dynamic."""
        return self.resources.shared + self.variant.shared

    @property
    def warnings(self) -> str:
        """The log without ptxas's report."""
        lines = [s for s in self.log.splitlines() if s.strip() and not s.startswith("ptxas")]
        return "\n".join(s for s in lines if not s.startswith(("info ", "Remark: The warnings can")))


def compile_kernel(variant: Variant, arch: str, cache: Cache | None = None) -> Cubin:
    """Compile, or take from the cache (None: the user's).

    Raises BuildError with the compiler's log, and UsageError for an architecture that the compiler or the
    kernel's ``min_arch`` rules out.
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
        _parse_report(log, kernel.entry, str(kernel.path))  # nothing enters the cache that has no report
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
    """What the compiler reads: params as macros, then the file with its own line numbers.

    Not by ``-D``: NVRTC applies that to its built-in header too, where a parameter called T breaks it.
    """
    kernel = variant.kernel
    if kernel.language == "ptx":
        return kernel.source
    path = _absolute(kernel.path).replace("\\", "\\\\")
    prelude = "".join(f"#define {name} {value}\n" for name, value in variant.params.items())
    return f'{prelude}#line 1 "{path}"\n{kernel.source}'


def _absolute(path: Path) -> str:
    """What the compiler is told of a file, so that profilers find it and headers beside it are found first
    (NVRTC takes those of the working directory for a file without a folder). A quotation mark becomes an
    apostrophe and a line break a space: NVRTC writes them into PTX as they are, which then does not assemble.
    """
    return str(path.resolve()).replace('"', "'").replace("\n", " ")


def _as_typed(log: str, path: Path) -> str:
    """The log with the file's name as its user gave it."""
    return log.replace(str(path.resolve()), str(path)).replace(_absolute(path), str(path))


@functools.cache
def supported_archs() -> tuple[str, ...]:
    """Plain architecture names that the installed NVRTC compiles for, oldest first."""
    numbers = _ok(_nvrtc_api(), "nvrtcGetSupportedArchs")
    return tuple(f"sm_{n}" for n in sorted(numbers))


@functools.cache
def compiler_version(language: str) -> str:
    """``NVRTC 13.5`` for CUDA C++, ``nvJitLink 13.5`` for PTX."""
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
        later = "" if str(least).endswith("a") else " or later"  # what ends in an a runs there only
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
    """NVRTC writes into the bytes object it is given, so it gets a fresh one.

    CPython shares all one-byte objects; those would be overwritten for the whole process, hence two spare
    bytes.
    """
    size = _ok(nvrtc, f"{getter}Size", program)
    buffer = bytes(size + 2)
    _ok(nvrtc, getter, program, buffer)
    return buffer[:size]


def _ok(nvrtc: Any, function: str, *args: Any) -> Any:
    """Call NVRTC; its value (a tuple where there are several). Its failures outside compilation are ours."""
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
    """PTX -> cubin and ptxas's report. Raises BuildError, with `path` for the lines that the log names."""
    linker = _nvjitlink_api()
    options = [f"-arch={arch}", *NVJITLINK_OPTIONS]
    ptx = ptx.decode(errors="replace").encode("ascii", "replace")  # comments in any language: 13.0 refuses
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
        # ptxas says "ptx input, line 7"; make it the file:line that editors and people follow
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
    """ptxas -v's lines for `entry`."""
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
    """A wgmma that ptxas makes wait is right, and slow for a reason that no line of the source shows."""
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
