"""Stand-ins for compilers that end their process, or never end; a process of its own imports them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from harness.errors import BuildError
from harness.kernels.cpp.compilers import nvrtc

REAL = nvrtc._translated


def translated(source: str, *rest: Any) -> nvrtc.Translation:
    """Compile as NVRTC does, but for a text that has one of two words."""
    if "CRASHES" in source:
        crash()
    if "ENDLESS" in source:
        time.sleep(600)
    return REAL(source, *rest)


def crash(*_: Any) -> None:
    """End this process as a fault does."""
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    """End this process as a library may that calls exit()."""
    os.write(2, b"terminate called\n")
    os._exit(3)


def sleep(path: Path) -> None:
    """Write which process this is, and stay."""
    path.write_text(str(os.getpid()))
    time.sleep(600)


def refuse() -> None:
    """Raise an error with all that it can have."""
    raise BuildError("no", where="here", hint="do", log="line 1")


def full() -> bytes:
    """Take more memory than there is."""
    return bytes(2**50)
