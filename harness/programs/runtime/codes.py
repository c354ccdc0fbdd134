"""The errors of the CUDA runtime, as programs get them (its API's cudaError), and calls that end so."""

from __future__ import annotations

SUCCESS, INVALID_VALUE, ALLOCATION, CONFIGURATION = 0, 1, 2, 9
INVALID_SYMBOL, INVALID_DIRECTION, INVALID_FUNCTION = 13, 21, 98
TIMEOUT, LAUNCH_FAILURE, COOPERATIVE, NOT_SUPPORTED, UNKNOWN = 702, 719, 720, 801, 999
CAPTURE_UNMATCHED = 904

TEXTS = {
    SUCCESS: ("cudaSuccess", "no error"),
    INVALID_VALUE: ("cudaErrorInvalidValue", "invalid argument"),
    ALLOCATION: ("cudaErrorMemoryAllocation", "out of memory"),
    CONFIGURATION: ("cudaErrorInvalidConfiguration", "invalid configuration argument"),
    INVALID_SYMBOL: ("cudaErrorInvalidSymbol", "invalid device symbol"),
    INVALID_DIRECTION: ("cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"),
    INVALID_FUNCTION: ("cudaErrorInvalidDeviceFunction", "invalid device function"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    600: ("cudaErrorNotReady", "device not ready"),
    TIMEOUT: ("cudaErrorLaunchTimeout", "the launch timed out and was terminated"),
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


def name(code: int) -> str:
    """Return the name of an error."""
    return TEXTS.get(code, (f"cudaError {code}", ""))[0]


def text(code: int) -> str:
    """Return what an error says."""
    return TEXTS.get(code, ("", f"unrecognized error code {code}"))[1]
