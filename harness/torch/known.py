"""Products that were called before, without Python: known.cpp, compiled on this machine when first needed.

A Python function in place of a kernel of PyTorch costs some microseconds of the host at each call, also where
it only calls the kernel that was there before, and `harness.matmul` costs more. The library remembers what
was decided for each product, and launches those of harness itself.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shlex
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from harness.dispatch.prepared import GemmImage
from harness.driver import api
from harness.errors import BuildError, HarnessError
from harness.support import cache, tools

SOURCE = Path(__file__).with_name("known.cpp")
SECONDS = 120  # that a compiler may take; it takes some five
FULL = -1  # what `stay` and `launch` return where there is no room for a further product
HEADERS = tuple(SOURCE.with_name(name) for name in ("launches.h", "table.h"))
BLOCK, STANDING = range(2)  # the tables: of a block of `replace`, and of the registered operators
_NAME = "known.so"
_MOST = 4096  # bytes of a kernel's arguments, as in launches.h
_STREAM = "_ZNK3c104cuda10CUDAStream6streamEv"  # c10::cuda::CUDAStream::stream() const
_FUNCTIONS = (  # in the order of `Driver`
    "cuLaunchKernelEx",
    "cuTensorMapReplaceAddress",
    "cuCtxGetCurrent",
    "cuStreamGetId",
    "cuStreamIsCapturing",
)


class _Place(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_int64), ("operand", ctypes.c_int64))


class _Image(ctypes.Structure):
    """`harness::Image` of launches.h."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("config", ctypes.c_void_p),
        ("memory", ctypes.c_char_p),
        ("size", ctypes.c_int64),
        ("arguments", ctypes.c_int64),
        ("offsets", ctypes.POINTER(ctypes.c_int64)),
        ("pointers", ctypes.c_int64),
        ("pointer", ctypes.POINTER(_Place)),
        ("maps", ctypes.c_int64),
        ("map", ctypes.POINTER(_Place)),
        ("aligned", ctypes.c_int64),
        ("own", ctypes.c_int64),
        ("stream", ctypes.c_ulonglong),
        ("room", ctypes.c_uint64),
    )


class Driver(ctypes.Structure):
    """The functions that launches.h calls, `harness::Driver` there: their addresses."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("launch", "move", "current", "identify", "capturing", "stream")
    )


def functions() -> Driver | None:
    """Return the functions for launches on a GPU, or None without PyTorch for CUDA or without a driver."""
    try:
        cuda: Any = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10_cuda.so"))
        stream = ctypes.cast(cuda[_STREAM], ctypes.c_void_p).value
        return Driver(*(api.address(name) for name in _FUNCTIONS), stream)
    except (OSError, AttributeError, HarnessError):
        return None


class Known:
    """A table of known products and the kernels that read it: a block's of `replace`, or the operators'.

    `open` begins. `hold` and `put` go before and after the registration of a Python function for an operator.
    While such a function runs, `stay` and `launch` keep the product that it decides. `close` ends; the counts
    can still be drained.
    """

    def __init__(self, library: ctypes.CDLL, which: int = BLOCK) -> None:
        self._library, self._which, self._most = library, which, 0
        self.launches = False  # whether it can: while it is open, with the functions of CUDA
        for name in ("harness_hold", "harness_put"):
            getattr(library, name).restype = ctypes.c_char_p
        for name in ("harness_stay", "harness_launch", "harness_rooms", "harness_drain"):
            getattr(library, name).restype = ctypes.c_int64

    def standing(self) -> Known:
        """Return the table of the registered operators."""
        return Known(self._library, STANDING)

    def open(self, most: int, by_setting: bool, driver: Driver | None) -> None:
        """Begin with at most `most` products.

        `by_setting` says that PyTorch's setting decides how float32 is multiplied. Without the functions of
        a `driver` nothing is launched.
        """
        self._most, self.launches = most, driver is not None
        given = ctypes.byref(driver or Driver())
        self._library.harness_open(self._which, ctypes.c_int64(most), int(by_setting), given)

    def stay(self) -> int:
        """Keep the product that this thread decides as PyTorch's; return its place, or `FULL`."""
        return int(self._library.harness_stay(self._which))

    def launch(self, read: Callable[[], GemmImage | None]) -> Callable[[], int] | None:
        """Return what keeps the launch that `read` returns: it returns the product's place, or `FULL`.

        None if there is no such launch, or if its arguments are too many.
        """
        since, image = self._rooms(), read()
        if image is not None and image.own is not None and image.watch(self.forget_rooms):
            since, image = self._rooms(), read()  # its room may have been freed before anybody was told
        if image is None or len(image.launch.memory) > _MOST or len(image.launch.offsets) > _MOST // 4:
            return None
        return functools.partial(self._keep, image, since)

    def _rooms(self) -> int:
        """Return how often all rooms were forgotten."""
        return int(self._library.harness_rooms(self._which))

    def _keep(self, image: GemmImage, since: int) -> int:
        """Keep a launch, with its room if none was forgotten since there were so many `_rooms`."""
        launch = image.launch
        room = image.room or (0, 0)
        given = _Image(
            launch.function,
            launch.context,
            int(launch.config.getPtr()),
            launch.memory,
            len(launch.memory),
            len(launch.offsets),
            (ctypes.c_int64 * len(launch.offsets))(*launch.offsets),
            len(image.pointers),
            (_Place * len(image.pointers))(*(_Place(*one) for one in image.pointers)),
            len(image.maps),
            (_Place * len(image.maps))(*(_Place(*one) for one in image.maps)),
            image.aligned,
            -1 if image.own is None else image.own,
            *room,
        )
        return int(self._library.harness_launch(self._which, ctypes.byref(given), ctypes.c_int64(since)))

    def forget_rooms(self) -> None:
        """Forget all rooms: when it returns, nothing more is queued that uses one."""
        self._library.harness_forget_rooms(self._which)

    def hold(self, name: str, overload: str, key: str) -> None:
        """Remember the kernel that an operator has for a dispatch key. Raises HarnessError without one."""
        given = name.encode(), overload.encode(), key.encode()
        self._check(self._library.harness_hold(self._which, *given))

    def put(self, name: str, overload: str) -> None:
        """Put a kernel before the one that the operator of `hold` has by now."""
        self._check(self._library.harness_put(self._which, name.encode(), overload.encode()))

    def drain(self, *, forget: bool = False) -> Iterable[tuple[int, int]]:
        """Return places and their calls since the last time. With `forget` all products are forgotten."""
        calls = (ctypes.c_int64 * self._most)()
        return enumerate(calls[: self._library.harness_drain(self._which, calls, int(forget))])

    def close(self) -> None:
        """End: the operators have the kernels again that they had at `put`."""
        self.launches = False
        self._library.harness_close(self._which)

    @staticmethod
    def _check(error: bytes | None) -> None:
        if error is not None:
            raise HarnessError(error.decode(errors="replace").splitlines()[0])


@functools.cache
def loaded() -> tuple[Known | None, str]:
    """Return the table of this process, or None and the reason why there is none.

    The first call compiles it, which takes some seconds, unless it was compiled before on this machine.
    """
    try:
        return Known(_library()), ""
    except (HarnessError, OSError) as e:  # no compiler, a full disk, a folder that runs no programs
        why = e.what if isinstance(e, HarnessError) else str(e)
        return None, f"products cost the host more, for compiling {SOURCE.name} failed: {why}"


def _library() -> ctypes.CDLL:
    """Return the library, from the cache of compiled kernels or compiled now, loaded into this process."""
    command = _command()
    versions = [torch.__version__, str(torch.version.git_version), platform.machine(), *platform.libc_ver()]
    key = cache.digest(*(path.read_bytes() for path in (SOURCE, *HEADERS)), *versions, *command)
    store = cache.default()
    known = store.get(key)
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        path = Path(folder, _NAME)
        if known is not None and _NAME in known:
            path.write_bytes(known[_NAME])
            with suppress(OSError):  # compiled by another machine that shares this folder
                return ctypes.CDLL(str(path))
            path.unlink()
        _compile(command, path)
        library = ctypes.CDLL(str(path))
        store.put(key, {_NAME: path.read_bytes()})
        return library


def _command() -> list[str]:
    """Return the compiler's command line without its output: ``$CXX``, or else the system's ``c++``.

    It is written out here because torch.utils.cpp_extension needs setuptools, which may not be installed.
    """
    home = Path(torch.__file__).parent
    libraries = [f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    flags = ["-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-shared", abi, "-isystem", str(home / "include")]
    return [*(shlex.split(os.environ.get("CXX", "")) or ["c++"]), *flags, str(SOURCE), *libraries]


def _compile(command: list[str], path: Path) -> None:
    """Compile the library to `path`. Raises BuildError with the compiler's first error."""
    where = SOURCE.name
    done: Any = tools.run([*command, "-o", str(path)], where, timeout=SECONDS, raises=HarnessError)
    if done.returncode:
        lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise BuildError(first.strip(), where=where)
