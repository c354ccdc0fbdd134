"""Find the headers that a kernel includes. What they are is part of the key of a cached build.

There are two kinds. The kernel's own lie beside it, in the folders that it names, or among harness's, and are
part of the key by their contents. Those of libraries (CUDA's runtime, CCCL, CUTLASS) come from packages or a
toolkit: thousands of files, of which only the place and the date are looked at.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import SpecError
from harness.support import files, tools
from harness.support.files import SHIPPED

if TYPE_CHECKING:
    from harness.kernels.spec import Kernel

_INCLUDE = re.compile(r'#[ \t]*include[ \t]*["<]([^">\n]+)[">]')
# The libraries, as cuda-pathfinder calls them, in the order in which their folders are searched.
_LIBRARIES = ("cccl", "cudart", "cutlass", "curand")
_TOOLKIT = ("nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")
_PACKAGES = (  # what to install for a header that is not there
    (r"(cute|cutlass)/.*", ("nvidia-cutlass", "nvidia-cuda-cccl==13.0.*", *_TOOLKIT[:2])),
    (r"curand\w*\.h", ("nvidia-curand",)),
    (r"(cuda|cub|nv|thrust)/.*", _TOOLKIT),
    (r"(cuda|cooperative_groups|crt|sm_|vector_|device_|math_|mma)[\w/]*\.(h|hpp)", _TOOLKIT),
)
_SHOWN = 3  # headers in a hint
_ABOVE, _NEAR = 16, 6  # folders above a kernel that are searched, in a repository and without one
_STD = "cuda/std/type_traits"  # where it is, the rest of CUDA's standard library is
ACCESSORS = "tensor_accessors.h"  # stands in for those of PyTorch, in files that take them and have them not
DEVICE = "tensor_device.h"  # stands in for what else device code takes of PyTorch
_OF_DEVICE = re.compile(
    r"\b(CUDA_KERNEL_(?:LOOP(?:_TYPE)?|ASSERT)|gpuAtomicAdd(?:NoReturn)?|GPU_LAMBDA|WARP_(?:SHFL(?:_\w+)?|BALLOT)"
    r"|THCCeilDiv|C10_(?:WARP_SIZE|(?:HOST_)?DEVICE|LAUNCH_BOUNDS_\d|RESTRICT|ALWAYS_INLINE)|opmath_type|acc_type|OpMathType"
    r"|(?:at|c10)::(?:Half|BFloat16)|c10::cuda::compat)\b"
)
_GIVEN = re.compile(
    r"#[ \t]*define[ \t]+(\w+)|\b(?:struct|class|using)\s+(opmath_type|acc_type|OpMathType)\b"
)
_TAKES = re.compile(r"\bPackedTensorAccessor(?:32|64)?\b|\bGenericPackedTensorAccessor\b")
_DEFINES = re.compile(r"\b(?:struct|class|using)\s+(?:Generic)?PackedTensorAccessor\w*\s*[:={<]")
_TEXTS = 64
_READ = 400_000  # bytes of headers that are read as text: a library in the repository may have megabytes
_MOST = 3000  # folders of a repository that are searched
_STANDARD = re.compile(r"[a-z_]+")  # <vector>, <type_traits>


@dataclass(frozen=True, kw_only=True)
class Included:
    """The headers that a source includes, directly or not.

    `own` has the contents of the kernel's own headers by path. `libraries` has the names of the headers of
    libraries, as they are written, and `folders` those in which they were found. `stamps` tells one state of
    these files from another. `missing` has the names that are nowhere.
    """

    own: dict[Path, bytes]
    libraries: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    stamps: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @functools.cached_property
    def read(self) -> tuple[bytes, ...]:
        """The kernel's own headers that are read for what they say, those that it includes itself first."""
        left, found = _READ, []
        for data in self.own.values():
            if len(data) <= left:
                left -= len(data)
                found.append(data)
        return tuple(found)


def folders(kernel: Path, more: Sequence[str] = ()) -> list[Path]:
    """Return the folders of the kernel's own headers, in the order in which they are searched.

    These are the kernel's own folder, those in `more`, relative to it, ``cu/include``, so that a copy of a
    shipped kernel compiles wherever it lies, and its folder ``std``, with what stands in for headers of the
    host.
    """
    beside = kernel.resolve().parent
    shipped = SHIPPED / "cu" / "include"
    return [beside, *(beside / folder for folder in more), shipped, shipped / "std"]


def of(kernel: Kernel) -> Included:
    """Return what a kernel includes; nvcc brings its library for one without front matter.

    That has stand-ins for PyTorch's accessors and device code, too, where it names them and no header defines
    them.
    """
    brought = f"\n#include <{_STD}>" if kernel.plain else ""
    found = included(kernel.path, kernel.source + brought, kernel.include)
    texts = [kernel.source, *(data.decode(errors="replace") for data in found.read)]
    takes, defines, taken, given = zip(*map(_of_pytorch, texts), strict=True)
    if kernel.plain and any(takes) and not any(defines):
        brought += f"\n#include <{ACCESSORS}>"
    if kernel.plain and frozenset().union(*taken) - frozenset().union(*given):
        brought += f"\n#include <{DEVICE}>"
    return included(kernel.path, kernel.source + brought, kernel.include) if "<tensor_" in brought else found


@functools.lru_cache(maxsize=_TEXTS)  # of a file with hundreds of kernels each asks for all
def _of_pytorch(text: str) -> tuple[bool, bool, frozenset[str], frozenset[str]]:
    """Return whether a text takes and defines PyTorch's accessors, and what else of it."""
    defined = frozenset(name for at in _GIVEN.findall(text) for name in at)
    taken = frozenset(_OF_DEVICE.findall(text))
    return bool(_TAKES.search(text)), bool(_DEFINES.search(text)), taken, defined


def included(kernel: Path, source: str, more: Sequence[str] = ()) -> Included:
    """Return what `source` includes.

    A name is looked for beside the including file and in `folders`. Where several folders hold it, all of
    these files are taken, and so are includes in comments: that may cost a needless rebuild, but a build is
    never stale. An include by macro (``#include FILE``) is not seen. A name that is in none of these folders
    is looked for in the libraries, whose own includes are not followed.
    """
    everywhere = folders(kernel, more)
    found: dict[Path, bytes] = {}
    others: dict[str, None] = {}
    todo = [(everywhere[0], source)]
    while todo:
        beside, text = todo.pop(0)
        for name in _INCLUDE.findall(text):
            known = False
            for folder in dict.fromkeys((beside, *everywhere)):
                try:
                    if not (folder / name).exists():
                        continue
                    header = Path(os.path.realpath(folder / name))
                    known = known or is_file(header)
                    if header in found or header.is_dir():
                        continue
                    found[header] = files.read(header).replace(b"\r\n", b"\n")  # as the kernel's own text
                except (OSError, ValueError):
                    continue  # no file can have such a name; the compiler reports it if it matters
                todo.append((header.parent, found[header].decode(errors="replace")))
            if not known:
                others[name] = None
    return _of_libraries(found, tuple(others))


def without_kernels(path: Path, source: str) -> None:
    """Raise SpecError for a file without front matter and kernels whose own headers, .cuh, have kernels."""
    if path.suffix == ".ptx" or re.search(r"(?m)^//\s*///", source):
        return
    own = included(path, source, of_repository(path, source)).own
    found = [header.name for header, data in own.items() if header.suffix == ".cuh" and b"__global__" in data]
    if found:
        more = " and others" * (len(found) > _SHOWN)
        raise SpecError(
            "no front matter, and no __global__ function to guess it from",
            where=str(path),
            hint=f"{', '.join(found[:_SHOWN])}{more} have kernels: `harness check` takes such a header, too",
        )


def _of_libraries(own: dict[Path, bytes], names: tuple[str, ...]) -> Included:
    """Return `own` with the headers in `names` that libraries have."""
    if not names:
        return Included(own=own)
    there = libraries()
    held = tuple(name for name in names if any(is_file(folder / name) for folder in there))
    missing = tuple(name for name in names if name not in held)
    if not held:
        return Included(own=own, missing=missing)
    stamps = []
    for path in (*there, *(folder / name for name in held for folder in there)):
        if path.exists():
            state = path.stat()
            stamps.append(f"{path} {state.st_mtime_ns} {state.st_size}")
    return Included(own=own, libraries=held, folders=there, stamps=tuple(stamps), missing=missing)


@functools.cache
def libraries() -> tuple[Path, ...]:
    """Return the folders with headers of CUDA's libraries: from packages, conda or a toolkit, if any."""
    found = (tools.headers(name) for name in _LIBRARIES)
    return tuple(dict.fromkeys(folder for folder in found if folder is not None))


def hint(name: str) -> str:
    """Return what to do where no file of this name is found."""
    for pattern, packages in _PACKAGES:
        if re.fullmatch(pattern, name):
            wanted = " ".join(f"'{p}'" if "*" in p else p for p in packages)
            return f"pip install {wanted}, or a CUDA toolkit (CUDA_PATH)"
    if _STANDARD.fullmatch(name):
        return f"NVRTC has no C++ standard library: try <cuda/std/{name}>, namespace cuda::std"
    return "headers are looked for beside the kernel, in include = [...] of its front matter, and in -I"


def elsewhere(name: str, file: Path) -> Path | None:
    """Return the folder where a header is: one above `file`, beside those, or any of its repository.

    Without a repository only a few folders above are searched, and with one nothing outside it.
    """
    root = _root(file)

    def holds(folder: Path) -> bool:
        file = folder / name
        return is_file(file) and (root is None or Path(os.path.realpath(file)).is_relative_to(root))

    for above in file.parents[: _ABOVE if root else _NEAR]:
        beside: list[Path] = []
        with contextlib.suppress(OSError):  # a folder that may not be read
            beside = sorted(folder for folder in above.iterdir() if folder.is_dir())
        if found := next(filter(holds, (above, *beside)), None):
            return found
        if above == root:
            held = filter(holds, _within(root))
            return max(held, key=lambda folder: len(os.path.commonpath((folder, file))), default=None)
    return None


def _root(file: Path) -> Path | None:
    """Return the folder of the repository that a file is in, if it is in one."""
    return next((above for above in file.parents[:_ABOVE] if (above / ".git").exists()), None)


def of_repository(kernel: Path, source: str, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the folders of a kernel's repository with headers that `source` includes and nobody else has.

    Those in the folders `more` are there. A build passes what is found as -I. These headers may need further
    folders. Without a repository there are none.
    """
    file = kernel.resolve()
    if _root(file) is None:
        return ()
    found: list[str] = []
    while True:
        missing = included(kernel, source, [*more, *found]).missing
        wanted = (n for n in missing if not _STANDARD.fullmatch(n))
        there = dict.fromkeys(str(folder) for n in wanted if (folder := elsewhere(n, file)) is not None)
        others = [folder for folder in there if folder not in found]
        if not others:
            return tuple(found)
        found += others


@functools.cache
def _within(root: Path) -> tuple[Path, ...]:
    """Return the folders of a repository, but for hidden ones, up to `_MOST`."""
    found: list[Path] = []
    for folder, inner, _ in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        found.append(Path(folder))
        if len(found) == _MOST:
            break
    return tuple(found)


def is_file(path: Path) -> bool:
    """Return True for a file; False also where no file can have such a name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
