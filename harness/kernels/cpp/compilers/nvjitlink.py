"""Assemble PTX with nvJitLink, whose ptxas reports the resources."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from harness.errors import BuildError, MissingDependency, UsageError
from harness.kernels.cpp.compilers import nvrtc

OPTIONS = ("-lineinfo", "-Xptxas=-v", "-no-cache")  # without the linker's cache: see nvrtc.OPTIONS


@functools.cache
def api() -> Any:
    """Return the bindings of nvJitLink. Raises MissingDependency where it cannot be loaded."""
    linker = nvrtc.bindings("nvjitlink")
    try:
        linker.version()
    except RuntimeError as e:
        driver = "cuda-bindings 13.0.0 needs a driver for this: pip install --upgrade cuda-bindings"
        hint = driver if "driver" in str(e) else "pip install 'nvidia-nvjitlink>=13,<14'"
        raise MissingDependency(f"nvJitLink cannot be loaded: {e}", hint=hint) from None
    return linker


def version() -> str:
    """Return the linker with its version: ``nvJitLink 13.5``."""
    return "nvJitLink {}.{}".format(*api().version())


def link_ptx(ptx: bytes, arch: str, path: Path, what: str) -> tuple[bytes, str]:
    """Assemble `ptx` and return the cubin and ptxas's report.

    Raises BuildError with a log in which `path` names the lines, and UsageError for an unknown architecture.
    """
    linker = api()
    options = [f"-arch={arch}", *OPTIONS]
    ptx = ptx.decode(errors="replace").encode("ascii", "replace")  # 13.0 refuses comments that are not ASCII
    try:
        handle = linker.create(len(options), options)
    except linker.nvJitLinkError as e:
        raise UsageError(
            f"{version()} does not assemble for {arch} ({e})",
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
