"""Build a program for the emulator: nvcc compiles it, and the runtime it is linked with is harness' own."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BuildError, MissingDependency, UsageError
from harness.kernels.cpp import includes
from harness.support import cache, files, tools

_NATIVE = Path(__file__).with_name("native")
OLDER = _NATIVE / "older"  # headers
_JUMP = "jmp" if platform.machine() == "x86_64" else "b"  # to a function, as its caller's call
_NEWER = re.compile(r'namespace "std|\bconcept\b|\brequires\b|\bconst(?:init|eval)\b')  # of what C++20 brings
NAME, MISSING = "libharness_cudart.so", "libharness_missing.so"
_DEFINED = re.compile(r"^(?:API|NOTHING|MAKES|TO_ARRAY|FROM_ARRAY)\((\w+)|CUDARTAPI (\w+)\(", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Compilers:
    """The tools that build a program.

    include: the folder with CUDA's headers
    library: the CUDA runtime of NVIDIA, of which the functions are known
    """

    nvcc: Path
    host: Path
    include: Path
    library: Path | None


@functools.cache
def compilers() -> Compilers:
    """Find nvcc, its headers and the host's compiler. Raises MissingDependency if one is not there."""
    host = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
    if host is None:
        raise MissingDependency(
            "no C++ compiler for host code", hint="install g++, or name one in the variable CXX"
        )
    nvcc = tools.find("nvcc")
    include = tools.headers("cudart")
    if nvcc is None or include is None:
        raise MissingDependency(
            "nvcc is not installed, which compiles host code",
            hint="pip install 'cuda-harness[programs]', or put a CUDA toolkit's nvcc on the PATH",
        )
    found = sorted((*include.parent.glob("lib*/libcudart.so.*"), *include.parent.glob("lib*/libcudart.so")))
    return Compilers(nvcc=nvcc, host=Path(host), include=include, library=found[0] if found else None)


def program(
    sources: Sequence[Path], folder: Path, *, include: Sequence[str] = (), flags: Sequence[str] = ()
) -> Path:
    """Compile a program's sources to a shared library in `folder` and return its path.

    include: folders of headers, before those of the sources' repository that have what is not in these
    flags: more of nvcc's arguments, such as ``-DN=64``; with no standard among them it is C++17 or 20

    Raises BuildError with nvcc's output, and UsageError for a program without ``main``.
    """
    found = compilers()
    library, target = folder / NAME, folder / "program.so"
    files.write_file(library, runtime())
    names = [str(path.resolve()) for path in sources]
    command = [
        *(found.nvcc, "-ccbin", found.host, "-arch=compute_90a", "-code=compute_90a"),
        *("-std=c++17", "-O2", "-lineinfo", "-no-compress", "-cudart", "none", "-shared"),
        *("--expt-relaxed-constexpr", "--extended-lambda"),
        "-allow-unsupported-compiler",  # a newer one mostly works, and says itself where it does not
        *("-Xlinker", "-Bsymbolic"),  # a variable y1 of the program's is not the function of libm
        *("-Xcompiler", "-fPIC,-g1,-fno-optimize-sibling-calls"),
        *(("-Xcompiler", "-fopenmp") if _threaded(sources) else ()),
        *("-include", OLDER / "older.h"),
        *(f"-I{folder}" for folder in include),
        *("-isystem", OLDER),
        # After the system's: a repository may have a header of such a name for another compiler.
        *(x for folder in _of_repository(sources, include) for x in ("-Xcompiler", f"-idirafter{folder}")),
        *flags,
        *names,
        *("-o", target, library),
    ]
    done = tools.run([str(part) for part in command], sources[0].name, timeout=600)
    log = done.stderr or done.stdout
    if (
        done.returncode
        and (_NEWER.search(log) or any("<=>" in path.read_text("utf-8", "replace") for path in sources))
        and not any(flag.lstrip("-").startswith("std") for flag in flags)
    ):
        done = tools.run([*map(str, command), "-std=c++20"], sources[0].name, timeout=600)
    if done.returncode:
        raise BuildError("nvcc does not compile the program", where=sources[0].name, log=_shortened(log))
    if "main" not in _symbols(target, "T"):
        raise UsageError(
            "there is no main in it, so it is no program",
            where=", ".join(path.name for path in sources),
            hint="`harness check` runs kernels of files without one",
        )
    missing = sorted(called(target) - defined())
    if missing:
        files.write_file(folder / MISSING, _library({"missing.cpp": _refusing(missing)}, MISSING))
    return target


def called(program: Path) -> set[str]:
    """Return the functions of CUDA's libraries that a program calls."""
    wanted = re.compile(r"cu[A-Za-z]|__cudaRegisterLinked|__cudaLaunchKernel")
    return {name for name in _symbols(program, "U") if wanted.match(name)}


def _of_repository(sources: Sequence[Path], include: Sequence[str]) -> dict[str, None]:
    """Return the folders of the sources' repository with headers that they include and `include` has not."""
    found = dict[str, None]()
    given = [str(Path(folder).resolve()) for folder in include]
    for path in sources:
        with contextlib.suppress(OSError):  # which nvcc will say
            text = files.text(path, errors="replace")
            found |= dict.fromkeys(includes.of_repository(path, text, given))
    return found


def _threaded(sources: Sequence[Path]) -> bool:
    """Return whether host code uses OpenMP."""
    try:
        return any("omp.h>" in files.text(path, errors="replace") for path in sources)
    except OSError:
        return False  # which nvcc will say


def _shortened(log: str, most: int = 40) -> str:
    """Return the first lines of a log."""
    lines = log.strip().splitlines()
    return "\n".join(lines[:most] + [f"... and {len(lines) - most} more lines"] * (len(lines) > most))


@functools.cache
def runtime() -> bytes:
    """Return the runtime library, compiled once for all programs. Raises BuildError if that fails."""
    found, parts = compilers(), _native() | {"others.cpp": _refusing(sorted(set(_exported()) - _own()))}
    version = tools.run([str(found.host), "--version"], "the C++ compiler").stdout
    headers = files.read(found.include / "cuda_runtime_api.h")
    store, key = cache.default(), cache.digest(*parts.values(), version, headers)
    known = store.get(key)
    if known is not None:
        return known[NAME]
    data = _library(parts, NAME)
    store.put(key, {NAME: data})
    return data


def _library(parts: Mapping[str, str], library: str) -> bytes:
    """Return a shared library of C++ sources. Raises BuildError if that fails."""
    found = compilers()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in parts.items():
            Path(folder, name).write_text(text)
        command = [str(found.host), "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{found.include}"]
        command += [f"-Wl,-soname,{library}", "-o", str(Path(folder, library))]
        command += [str(Path(folder, name)) for name in parts if name.endswith(".cpp")]
        done = tools.run(command, "the runtime")
        if done.returncode:
            raise BuildError("the C++ compiler does not compile the runtime", log=_shortened(done.stderr))
        return Path(folder, library).read_bytes()


@functools.cache
def defined() -> frozenset[str]:
    """Return the names of the functions that the runtime library has."""
    with tempfile.NamedTemporaryFile(suffix=".so") as library:
        library.write(runtime())
        library.flush()
        return frozenset(_symbols(Path(library.name), "T"))


@functools.cache
def _native() -> dict[str, str]:
    """Return the sources of the runtime library by their names."""
    return {
        path.name: path.read_text() for path in sorted(_NATIVE.iterdir()) if path.suffix in (".h", ".cpp")
    }


def _own() -> set[str]:
    found = _DEFINED.finditer("\n".join(_native().values()))
    return {name for match in found for name in match.groups() if name}


@functools.cache
def _exported() -> tuple[str, ...]:
    """Return the functions of NVIDIA's runtime; none where its library is not there."""
    library = compilers().library
    if library is None:
        return ()
    return tuple(sorted(name for name in _symbols(library, "T") if name.startswith("cuda")))


def _symbols(library: Path, kind: str) -> set[str]:
    """Return the functions that a library has (T), or wants (U)."""
    text = tools.run(["nm", "-D", str(library)], library.name).stdout
    return set(re.findall(rf" {kind} (\w+)", text))


def _refusing(names: Iterable[str]) -> str:
    """Return definitions of functions that nobody has: they say so when they are called."""
    text = (
        'extern "C" {\nlong harness_refused(const char*, const void*);\n'
        "typedef void (*Rest)(void**);\nvoid harness_linked(Rest, const void*);\n"
    )
    for name in names:
        said = f'harness_refused("{name}", __builtin_return_address(0))'
        if (plain := re.sub(r"_pt[ds][sz]$", "", name)) in _own():  # for the default stream of a thread
            text += f'asm(".globl {name}\\n.type {name}, @function\\n{name}: {_JUMP} {plain}");\n'
        elif name.startswith("__cudaRegisterLinked"):  # nvcc's linker would define it
            text += f"void {name}(Rest rest, void* of, void*, void*) {{ harness_linked(rest, of); }}\n"
        elif name.endswith(("String", "Name")):
            text += f'const char* {name}() {{ {said}; return "?"; }}\n'
        else:
            text += f"long {name}() {{ return {said}; }}\n"
    return text + "}\n"
