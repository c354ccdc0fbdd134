"""Memory as C has it, and the errors of CUDA's runtime API: both pass between host code and the runtime."""

from __future__ import annotations

import ctypes

SUCCESS, INVALID_VALUE, ALLOCATION, CONFIGURATION = 0, 1, 2, 9
INVALID_SYMBOL, INVALID_DIRECTION, INVALID_FUNCTION = 13, 21, 98
INVALID_HANDLE = 400
TIMEOUT, LAUNCH_FAILURE, COOPERATIVE, NOT_SUPPORTED, UNKNOWN = 702, 719, 720, 801, 999
ALREADY_REGISTERED, NOT_REGISTERED, CAPTURE_UNMATCHED = 712, 713, 904

TEXTS = {
    SUCCESS: ("cudaSuccess", "no error"),
    INVALID_VALUE: ("cudaErrorInvalidValue", "invalid argument"),
    ALLOCATION: ("cudaErrorMemoryAllocation", "out of memory"),
    3: ("cudaErrorInitializationError", "initialization error"),
    CONFIGURATION: ("cudaErrorInvalidConfiguration", "invalid configuration argument"),
    INVALID_SYMBOL: ("cudaErrorInvalidSymbol", "invalid device symbol"),
    INVALID_DIRECTION: ("cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"),
    INVALID_FUNCTION: ("cudaErrorInvalidDeviceFunction", "invalid device function"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    INVALID_HANDLE: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    600: ("cudaErrorNotReady", "device not ready"),
    TIMEOUT: ("cudaErrorLaunchTimeout", "the launch timed out and was terminated"),
    ALREADY_REGISTERED: (
        "cudaErrorHostMemoryAlreadyRegistered",
        "part or all of the requested memory range is already mapped",
    ),
    NOT_REGISTERED: (
        "cudaErrorHostMemoryNotRegistered",
        "pointer does not correspond to a registered memory region",
    ),
    LAUNCH_FAILURE: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    COOPERATIVE: ("cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"),
    NOT_SUPPORTED: ("cudaErrorNotSupported", "operation not supported"),
    CAPTURE_UNMATCHED: ("cudaErrorStreamCaptureUnmatched", "capture was not initiated in this stream"),
    UNKNOWN: ("cudaErrorUnknown", "unknown error"),
}


class Misuse(Exception):
    """A call that a GPU's runtime refuses: the error that it returns, and what is told of it."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.code, self.what = code, what

    def __str__(self) -> str:
        return f"{self.what}: {TEXTS[self.code][0]}"


def error_name(code: int) -> str:
    """Return the name of an error."""
    return TEXTS.get(code, (f"cudaError {code}", ""))[0]


def error_text(code: int) -> str:
    """Return what an error says."""
    return TEXTS.get(code, ("", f"unrecognized error code {code}"))[1]


# -- numbers and texts at addresses


def pointer(at: int) -> int:
    """Return the 8 bytes at an address as a number."""
    return ctypes.c_uint64.from_address(at).value


def put(at: int, value: int) -> None:
    """Write 8 bytes at an address."""
    ctypes.c_uint64.from_address(at).value = value


def text(at: int) -> str:
    """Return the text at an address, which ends with a zero."""
    return (ctypes.string_at(at) if at else b"").decode(errors="replace")


def extents(at: int) -> tuple[int, int, int]:
    """Return the dim3 at an address."""
    x, y, z = (ctypes.c_uint32 * 3).from_address(at)
    return x, y, z


def signed(value: int) -> int:
    """Return an argument of type int, of which 64 bits were handed over."""
    return ctypes.c_int32(value & 0xFFFFFFFF).value
