"""The one entry to ``cuda.bindings.driver``: C calls go through `call` or `check`.

So every error names the function, the code and its meaning, and codes become exceptions in one place. Nothing
is imported from CUDA until the first call: ``import harness.driver`` works on a machine without the package,
and ``harness --help`` stays fast.
"""

from __future__ import annotations

import functools
from typing import Any

from harness.errors import (
    ContextLost,
    DriverError,
    HarnessError,
    MissingDependency,
    NoDevice,
    NoDriver,
    OutOfMemory,
)

MINIMUM_DRIVER = (13, 0)

# After one of these the driver answers every further call with the same code, even those that would make
# a new context, primary or not (measured: driver 580, codes 700 and 716). CUDA's manual says so too.
_STICKY = {
    214,  # ECC_UNCORRECTABLE
    220,  # NVLINK_UNCORRECTABLE
    226,  # CONTAINED
    700,  # ILLEGAL_ADDRESS
    702,  # LAUNCH_TIMEOUT
    709,  # CONTEXT_IS_DESTROYED
    710,  # ASSERT
    714,  # HARDWARE_STACK_ERROR
    715,  # ILLEGAL_INSTRUCTION
    716,  # MISALIGNED_ADDRESS
    717,  # INVALID_ADDRESS_SPACE
    718,  # INVALID_PC
    719,  # LAUNCH_FAILED
    721,  # TENSOR_MEMORY_LEAK
}
_NO_DEVICE = {100, 101}  # NO_DEVICE, INVALID_DEVICE
_NO_DRIVER = {34, 803, 804}  # STUB_LIBRARY, SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED_ON_DEVICE
_OUT_OF_MEMORY = 2
_ALLOCATIONS = {"cuMemAlloc", "cuMemHostAlloc"}  # the first argument of each is the size in bytes

_INSTALL_DRIVER = "install the NVIDIA driver, R580 or newer (CUDA 13): `nvidia-smi` must work"
_DRIVER_HINTS = {
    34: "a stub libcuda.so (for linking only) comes first on LD_LIBRARY_PATH: remove that directory",
    802: "the GPUs are still starting: on NVSwitch machines check `systemctl status nvidia-fabricmanager`",
    803: "libcuda and the kernel module are of different versions: reboot, or reload the nvidia module",
    804: "the forward-compatibility libcuda serves data-centre GPUs only: take it off LD_LIBRARY_PATH",
}
_HINTS = {
    1: "one of the arguments is out of range",
    46: "another process holds this GPU in exclusive mode: `nvidia-smi -q -d COMPUTE`",
    200: "the bytes are not a cubin, or are cut short",
    201: "no context is current in this thread: call it inside `with context:` or `with context.current():`",
    209: "the cubin was built for another architecture: compile it for this GPU (Device.arch)",
    218: "the PTX does not assemble: link it to a cubin first, whose log names the line",
    222: "the PTX's .version is newer than the driver: lower it, or link to a cubin first (nvJitLink)",
    701: "too many registers or too much shared memory for a block of that size: a smaller block, "
    "__launch_bounds__ or fewer registers a thread",
    720: "a cooperative grid must fit on the GPU at once",
    912: "the cluster does not fit: fewer blocks in a cluster, or less shared memory a block",
}
_LAUNCH_HINT = "check the grid, block and cluster sizes and the dynamic shared memory"
_LOST_HINT = (
    "the context is lost: nothing in it works any more, its memory included, nor will a new Context in "
    "this process. Run the kernel under `compute-sanitizer` to find the fault, and go on in a new process"
)


@functools.cache
def bindings() -> Any:
    """Import and return the ``cuda.bindings.driver`` module; tests replace this function by a fake driver.

    Raises MissingDependency if the package cannot be imported.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingDependency(
            f"the CUDA driver bindings cannot be imported ({error})",
            hint="pip install 'cuda-python>=13.0,<14'",
        ) from error
    return driver


def call(name: str, *args: Any) -> Any:
    """Call the driver function `name` and return None, its one value, or a tuple of its values.

    Raises NoDriver, NoDevice, OutOfMemory, ContextLost, or DriverError for every other code. A kernel's fault
    is asynchronous: the call that raises ContextLost is seldom the one that caused it.
    """
    try:
        found: tuple[Any, ...] = getattr(bindings(), name)(*args)
    except RuntimeError as error:
        # Without libcuda, or with one that lacks the function, the bindings raise instead of returning a
        # code (DynamicLibNotFoundError from 13.1 on, plain RuntimeError in 13.0).
        absent = type(error).__name__ == "DynamicLibNotFoundError" or "dlopen" in str(error)
        what = "libcuda was not found" if absent else f"the CUDA driver cannot be used: {error}"
        raise NoDriver(what, hint=_INSTALL_DRIVER) from error
    if found[0] != 0:
        check(name, found[0], args)
    if len(found) == 2:
        return found[1]
    return found[1:] if len(found) > 2 else None


def check(name: str, result: Any, args: tuple[Any, ...] = ()) -> None:
    """Raise the exception for the code `result` that ``name(*args)`` returned; do nothing on success."""
    if int(result) != 0:
        raise _translate(name, result, args)


def address(name: str) -> int:
    """Return the address of a function of the driver, of CUDA 12.0 or earlier, for callers in C."""
    found = call("cuGetProcAddress", name.encode(), 12_000, 0)
    return int(found[0])


def init() -> None:
    """Start the driver (``cuInit``), once per process.

    Raises NoDriver if it is absent, broken or older than CUDA 13.0.
    """
    _init(bindings())


@functools.cache  # a failure is not cached: the next call tries again
def _init(_driver: Any) -> None:
    """Start the driver once for each bindings module (tests use several fakes)."""
    call("cuInit", 0)
    found = driver_version()
    if found < MINIMUM_DRIVER:
        raise NoDriver(
            "the installed driver supports CUDA {}.{} only".format(*found),
            hint=_INSTALL_DRIVER,
        )


def driver_version() -> tuple[int, int]:
    """Return the newest CUDA version that the installed driver supports, as ``(13, 0)``."""
    version = int(call("cuDriverGetVersion"))
    return version // 1000, version % 1000 // 10


def _translate(name: str, result: Any, args: tuple[Any, ...]) -> HarnessError:
    """Return the exception for an error code, with its name, its meaning and a hint."""
    code = int(result)
    code_name, meaning = _text("cuGetErrorName", result), _text("cuGetErrorString", result)
    what = f"{name} failed: {code_name} ({code}): {meaning}"
    if code in _NO_DEVICE:
        return NoDevice(what, hint="`nvidia-smi -L` lists the GPUs; CUDA_VISIBLE_DEVICES may hide them")
    if code == _OUT_OF_MEMORY:
        hint = "free buffers or shrink the problem; `nvidia-smi` shows who else holds memory"
        return OutOfMemory(what + _memory_asked(name, args), call=name, code=code, name=code_name, hint=hint)
    if code in _NO_DRIVER or name == "cuInit":
        return NoDriver(what, hint=_DRIVER_HINTS.get(code, _INSTALL_DRIVER))
    if code in _STICKY:
        what += f"; reported by {name}; the fault came from an earlier launch"
        return ContextLost(what, call=name, code=code, name=code_name, hint=_LOST_HINT)
    hint = _LAUNCH_HINT if code == 1 and name == "cuLaunchKernelEx" else _HINTS.get(code, "")
    return DriverError(what, call=name, code=code, name=code_name, hint=hint)


def _memory_asked(name: str, args: tuple[Any, ...]) -> str:
    """Return how many bytes an allocation asked for and how many were free, as far as known, as text."""
    if name not in _ALLOCATIONS or not args:
        return ""
    text = f"; {int(args[0]):,} bytes asked"
    if name == "cuMemAlloc":  # free device memory says nothing about page-locked host memory
        result, *values = bindings().cuMemGetInfo()
        text += f", {values[0]:,} of {values[1]:,} free" if int(result) == 0 else ""
    return text


def _text(lookup: str, result: Any) -> str:
    """Return the driver's own name or description of a code, or "unknown"."""
    error, text = getattr(bindings(), lookup)(result)
    return text.decode() if int(error) == 0 and text else "unknown"
