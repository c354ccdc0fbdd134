"""Read machine code that harness did not build: cubins, PTX, and files in which cuobjdump finds cubins.

Executables, libraries, objects and fat binaries hold one cubin for each architecture they were built for.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import InspectError, UsageError
from harness.kernels.arch import Arch
from harness.kernels.cpp.compilers.nvjitlink import link_ptx
from harness.sass import nvdisasm
from harness.sass.code import Code
from harness.sass.instructions import disassemble_all
from harness.support import files, tools
from harness.support.cache import Cache

_MOST = 2**33  # bytes of a file
_TIMEOUT = 30  # seconds of cuobjdump
_PER_GB = 300  # seconds more for each 2**30 bytes: NVIDIA's larger libraries hold gigabytes
# Matches kernels only: device functions have no CONSTANT[0], the constant bank of kernel parameters.
_RESOURCES = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:\d+ CONSTANT\[0\]")
_NUMBERED = re.compile(r"\.(\d+)\.(sm_\w+)\.cubin$")
_RESERVED = 1024  # bytes of shared memory per block for the system, which SHARED includes from sm_90 on
_TARGET = re.compile(r"^\s*\.target\s+(sm_\w+)", re.MULTILINE)


def is_binary(name: str) -> bool:
    """Tell whether `name` is a file of device code rather than a kernel of harness.

    It is one if its suffix says so, or if it exists and is neither a ``.cu`` file nor PTX with harness's
    front matter. A word without a suffix or a folder is always a kernel's name, whatever the working
    directory holds.
    """
    path = Path(name)
    if not path.suffix and path.name == name:
        return False
    if path.suffix == ".cu" or not os.path.isfile(path):  # noqa: PTH113 - Path's raises for odd names
        return path.suffix in {".cubin", ".fatbin", ".so", ".o", ".a", ".exe", ".dll"}
    try:
        return path.suffix != ".ptx" or b"/// kernel" not in files.read(path)
    except (OSError, UsageError):
        return True  # `read` reports why it cannot be read


def read(
    path: Path,
    cache: Cache,
    *,
    archs: tuple[str, ...] = (),
    function: str = "*",
    threads: int | None = None,
    shared: int = 0,
) -> list[Code]:
    """Return every kernel and device function in the file whose name matches the glob pattern `function`.

    C++ names match as they are and demangled, and are shown demangled.
    Only code for `archs` is returned, all if that is empty. PTX is assembled for each of `archs`, or for its
    own ``.target``. No cubin tells how it is launched: `threads` per block and the bytes of dynamic `shared`
    memory per block are the caller's.

    Raises UsageError for a file that cannot be read or holds nothing that was asked for, InspectError if its
    device code is damaged.
    """
    found: list[Code] = []
    names: dict[str, None] = {}
    have: dict[str, None] = {}
    for cubin in _cubins(path, archs):
        for code in _functions(cubin, path, cache, threads, shared):
            have[code.arch] = None
            if archs and code.arch not in archs:
                continue
            names[code.sass.function] = None
            if any(fnmatch.fnmatchcase(name, function) for name in (code.sass.function, code.variant)):
                found.append(code)
    if not have:
        raise UsageError("no function in its device code", where=str(path))
    if archs and not names:
        raise UsageError(f"no code for {', '.join(archs)}", where=str(path), hint=f"it has {', '.join(have)}")
    if not found:
        some = [*names][:20]
        more = f" and {len(names) - len(some)} more" if len(names) > len(some) else ""
        raise UsageError(
            f"no function {function!r}", where=str(path), hint=f"functions: {', '.join(some)}{more}"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A kernel of a file, as cuobjdump lists it: demangled name, registers a thread, bytes of memory.

    `stack` is per thread, `shared` the static shared memory of a block.
    """

    name: str
    arch: str
    registers: int
    stack: int
    shared: int


def listed(path: Path) -> list[Listed]:
    """Return the kernels in a file of machine code, for every architecture, without disassembling it.

    Raises UsageError for a file without any.
    """
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        report = _cuobjdump(["-res-usage", path.resolve()], path, folder)
    only = architectures(path)
    arch, found = only[0] if len(only) == 1 else "", []
    for line in re.split(r"(?=arch = sm_|Function )", report):
        if told := re.match(r"arch = (sm_\w+)", line):
            arch = told[1]
        for name, registers, stack, shared in _RESOURCES.findall(line):
            reserved = _RESERVED if arch and Arch.parse(arch).number >= 90 else 0
            used = max(0, int(shared) - reserved)
            found.append(
                Listed(name=name, arch=arch, registers=int(registers), stack=int(stack), shared=used)
            )
    if not found:
        raise UsageError("no kernel in its device code", where=str(path))
    names = demangled([one.name for one in found])
    return [replace(one, name=names[one.name]) for one in found]


def architectures(path: Path) -> list[str]:
    """Return the architectures that a file has machine code for, in ascending order; none for PTX."""
    if path.suffix == ".ptx" or not path.is_file():
        return []
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        report = _cuobjdump(["-lelf", path.resolve()], path, folder)
    found = dict.fromkeys(re.findall(r"^ELF file.*\.(sm_\w+)\.cubin$", report, re.MULTILINE))
    return sorted(found, key=lambda arch: (Arch.parse(arch).number, arch))


def demangled(names: Sequence[str]) -> dict[str, str]:
    """Return C++ names as they are written in source, by mangled name.

    The package cxxfilt does it, or else c++filt of binutils or LLVM. Without either names stay as they are.
    """
    mangled = [name for name in names if name.startswith("_Z")]
    plain = {name: name for name in names}
    if not mangled:
        return plain
    try:
        import cxxfilt
    except ImportError:
        tool = tools.find("c++filt") or tools.find("cu++filt")
        if tool is None:
            return plain
        done = tools.run([tool, *mangled], "c++filt")
        texts = done.stdout.splitlines()
        return plain | (dict(zip(mangled, texts, strict=True)) if len(texts) == len(mangled) else {})
    for name in mangled:
        with contextlib.suppress(cxxfilt.Error):
            plain[name] = cxxfilt.demangle(name)
    return plain


def _cubins(path: Path, archs: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the cubins in the file; PTX is assembled for `archs`, or for its own ``.target``.

    Raises UsageError for a file that cannot be read or holds no device code, InspectError for a damaged one.
    """
    try:
        data = files.read(path, most=_MOST)
    except FileNotFoundError:
        raise UsageError("no such file", where=str(path)) from None
    except (OSError, ValueError) as e:
        raise UsageError(f"cannot be read: {e}", where=str(path)) from None
    if path.suffix == ".ptx":
        target = _TARGET.search(data.decode(errors="replace"))
        if target is None:
            raise UsageError("no .target line: not PTX", where=str(path))
        for arch in archs or (target[1],):
            yield link_ptx(data, arch, path, path.name)[0]
    elif nvdisasm.is_cubin(data):
        yield data
    elif path.suffix == ".cubin":
        raise InspectError("not a cubin: no CUDA ELF header", where=str(path))
    else:
        yield from _extracted(path, archs)


def _extracted(path: Path, archs: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the cubins that cuobjdump extracts, in their order in the file.

    It names them ``<file>.<number>.<arch>.cubin``. If none is for `archs`, all are yielded, so that the error
    can say which architectures there are.
    """
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        log = _cuobjdump(["-xelf", "all", path.resolve()], path, folder)
        files = {file: _NUMBERED.search(file.name) for file in Path(folder).glob("*.cubin")}
        if not files:
            why = log or "cuobjdump finds none"
            if "nvalid ELF" in log:
                raise InspectError(f"its device code is damaged ({why})", where=str(path))
            raise UsageError(f"no device code in it ({why})", where=str(path))
        wanted = [file for file, match in files.items() if match and match[2] in archs]
        numbers = {file: int(match[1]) if match else 0 for file, match in files.items()}
        for file in sorted(wanted or files, key=lambda file: (numbers[file], file.name)):
            yield file.read_bytes()


def _functions(cubin: bytes, path: Path, cache: Cache, threads: int | None, dynamic: int) -> Iterator[Code]:
    """Yield the code of each function in the cubin, in the cubin's order.

    A device function has no resources of its own: registers, stack and shared memory are None.
    """
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        file = Path(folder) / "code.cubin"
        file.write_bytes(cubin)
        report = _cuobjdump(["-res-usage", file], path, folder)
    resources = {name: tuple(map(int, numbers)) for name, *numbers in _RESOURCES.findall(report)}
    functions = disassemble_all(cubin, cache, where=str(path))
    names = demangled(list(functions))
    for name, sass in functions.items():
        registers, stack, shared = resources.get(name, (None, None, None))
        if shared is not None:
            reserved = _RESERVED if Arch.parse(sass.arch).number >= 90 else 0
            shared = max(0, shared - reserved) + dynamic
        yield Code(
            origin=path.name,
            variant=names[name],
            sass=sass,
            registers=registers,
            shared=shared,
            stack=stack,
            threads=threads,
            source=_source(sass.file),
            file=Path(sass.file).name,
            compiler=sass.compiler,
        )


def _cuobjdump(arguments: list[str | Path], path: Path, folder: str) -> str:
    """Run cuobjdump and return what it prints, whatever its exit code.

    It exits with 255 for files that it does not understand and with 0 for those without device code.
    """
    tool = tools.require("cuobjdump")
    command = [tool, *arguments]
    limit = round(_TIMEOUT + _PER_GB * path.stat().st_size / 2**30, 1)
    done = tools.run_bytes(command, str(path), timeout=limit, cwd=folder, raises=InspectError)
    return (
        (done.stdout + done.stderr).decode(errors="replace").replace(str(path.resolve()), path.name).strip()
    )


def _source(file: str) -> str:
    """Return the text of the source file that the line table names, or "" if it cannot be read.

    The name comes from whoever built the cubin: relative paths, pipes and devices are not opened.
    """
    try:
        path = Path(file)
        return files.read(path).decode(errors="replace") if path.is_absolute() else ""
    except (OSError, ValueError, UsageError):
        return ""
