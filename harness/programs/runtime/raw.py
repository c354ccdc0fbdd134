"""Host memory as C has it: numbers and texts at addresses."""

from __future__ import annotations

import ctypes


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
