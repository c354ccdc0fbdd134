"""Take the file system away from this process: Landlock, of Linux 5.13 and later, which needs no rights.

`confine` holds for the calling thread and for all threads and processes that it starts from then on. It
cannot be undone. See landlock(7).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from harness.support.files import PACKAGE, ROOT

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same on all architectures but alpha
_NO_NEW_PRIVS, _PATH_BENEATH = 38, 1
_EVERY = (
    1 << 13
) - 1  # the rights of the first version of Landlock: execute, write, read, list, make, remove
_READ = 1 | 1 << 2 | 1 << 3  # execute, read files, list folders
_OF_A_FILE = 1 | 1 << 1 | 1 << 2
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/opt", "/proc", "/sys", "/run", "/nix", "/gnu")
_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/random", "/dev/zero")


def confine(readable: Iterable[Path], writable: Iterable[Path]) -> bool:
    """Leave this process the system's libraries, Python's, harness itself, and these folders.

    `writable` may be read, too. Return False where the system has no Landlock; nothing has changed then.
    """
    if platform.system() != "Linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = struct.pack("Q", _EVERY)
    ruleset = libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    try:
        for path in (*map(Path, _SYSTEM + _FILES), *_python(), *readable):
            _allow(libc, ruleset, path, _READ)
        for path in (Path("/dev/null"), Path("/dev/shm"), *writable):
            _allow(libc, ruleset, path, _EVERY)
        if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _python() -> Iterable[Path]:
    """Return where this interpreter, its packages and the libraries that it was told of lie."""
    yield from (Path(sys.prefix), Path(sys.base_prefix), PACKAGE, ROOT / "cu", ROOT / "ptx")
    yield from (Path(p) for p in sysconfig.get_paths().values())
    yield from (Path(p) for p in sys.path if p)
    yield from (Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    """Allow `rights` below a path; one that does not exist, or cannot be opened, is left out."""
    with suppress(OSError):
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rights = rights if path.is_dir() else rights & _OF_A_FILE
            libc.syscall(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, opened), 0)
        finally:
            os.close(opened)


def temporary(folder: Path) -> None:
    """Put temporary files of this process, and of what it starts, into `folder`."""
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = str(folder)
