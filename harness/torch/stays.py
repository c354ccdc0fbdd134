"""Products that stay PyTorch's, without Python: stays.cpp, compiled on this machine when it is first needed.

A Python function in place of a kernel of PyTorch costs some microseconds of the host at each call, also where
it only calls the kernel that was there before. The library remembers which products those are.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shlex
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from harness.errors import BuildError, HarnessError
from harness.support import cache, tools

SOURCE = Path(__file__).with_name("stays.cpp")
SECONDS = 120  # that a compiler may take; it takes some five
FULL = -1  # what `stay` returns where there is no room for a further product
_NAME = "stays.so"


class Stays:
    """The table of products that stay PyTorch's within a block of `replace`, and the kernels that read it.

    `open` begins a block. `hold` and `put` go before and after the registration of a Python function for an
    operator. While such a function runs, `stay` keeps the product that it decides. `close` ends the block;
    the counts can still be drained.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self._most = library, 0
        for name in ("harness_hold", "harness_put"):
            getattr(library, name).restype = ctypes.c_char_p
        for name in ("harness_stay", "harness_drain"):
            getattr(library, name).restype = ctypes.c_int64
        self.stay = library.harness_stay  # returns the product's place, or FULL

    def open(self, most: int, by_setting: bool) -> None:
        """Begin a block with at most `most` products.

        `by_setting` says that PyTorch's setting decides how float32 is multiplied.
        """
        self._most = most
        self._library.harness_open(ctypes.c_int64(most), int(by_setting))

    def hold(self, name: str, overload: str, key: str) -> None:
        """Remember the kernel that an operator has for a dispatch key. Raises HarnessError without one."""
        self._check(self._library.harness_hold(name.encode(), overload.encode(), key.encode()))

    def put(self, name: str, overload: str) -> None:
        """Put a kernel before the one that the operator of `hold` has by now."""
        self._check(self._library.harness_put(name.encode(), overload.encode()))

    def drain(self, *, forget: bool = False) -> Iterable[tuple[int, int]]:
        """Return places and their calls since the last time. With `forget` all products are forgotten."""
        calls = (ctypes.c_int64 * self._most)()
        return enumerate(calls[: self._library.harness_drain(calls, int(forget))])

    def close(self) -> None:
        """End the block: the operators have the kernels again that they had at `put`."""
        self._library.harness_close()

    @staticmethod
    def _check(error: bytes | None) -> None:
        if error is not None:
            raise HarnessError(error.decode(errors="replace").splitlines()[0])


@functools.cache
def loaded() -> tuple[Stays | None, str]:
    """Return the table of this process, or None and the reason why there is none.

    The first call compiles it, which takes some seconds, unless it was compiled before on this machine.
    """
    try:
        return Stays(_library()), ""
    except (HarnessError, OSError) as e:  # no compiler, a full disk, a folder that runs no programs
        why = e.what if isinstance(e, HarnessError) else str(e)
        return None, f"PyTorch's products cost the host more, for compiling {SOURCE.name} failed: {why}"


def _library() -> ctypes.CDLL:
    """Return the library, from the cache of compiled kernels or compiled now, loaded into this process."""
    command = _command()
    versions = [torch.__version__, str(torch.version.git_version), platform.machine(), *platform.libc_ver()]
    key = cache.digest(SOURCE.read_bytes(), *versions, *command)
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
