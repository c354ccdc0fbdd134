"""The format strings of ``printf`` on the device (CUDA Programming Guide, "Formatted Output")."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

PIECE = re.compile(r"%([-+ #0]*)(\d+|\*)?(?:\.(\d+|\*))?(hh|h|ll|l|j|z|t|L)?([a-zA-Z%])")
_SIZE = {"ll": 8, "l": 8, "j": 8, "z": 8, "t": 8}


class _Values:
    """The values passed to printf, one after the other, each aligned to its size."""

    def __init__(self, fetch: Callable[[int, int], bytes]) -> None:
        self._fetch = fetch
        self._offset = 0

    def take(self, size: int) -> bytes:
        """Return the bytes of the next value; zeros where the memory ends."""
        start = -(-self._offset // size) * size
        self._offset = start + size
        return self._fetch(start, size).ljust(size, b"\0")

    def whole(self, size: int, *, signed: bool) -> int:
        """Return the next value as an integer."""
        return int.from_bytes(self.take(size), "little", signed=signed)


def formatted(text: str, fetch: Callable[[int, int], bytes], string: Callable[[int], str]) -> str:
    """Return what ``printf(text, ...)`` prints.

    fetch(offset, size): bytes of the passed values
    string(address): the string at a device address
    """
    values = _Values(fetch)

    def one(match: re.Match[str]) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        width = str(values.whole(4, signed=True)) if width == "*" else width or ""
        precision = str(values.whole(4, signed=True)) if precision == "*" else precision
        shape = f"%{flags}{width}" + (f".{precision}" if precision is not None else "")
        size = _SIZE.get(length or "", 4)
        if kind in "di":
            return f"{shape}d" % _narrowed(values.whole(size, signed=True), length)
        if kind in "uoxX":
            return f"{shape}{kind}" % (values.whole(size, signed=False) & _mask(length))
        if kind in "eEfFgG":
            return f"{shape}{kind}" % float(struct.unpack("<d", values.take(8))[0])
        if kind in "aA":
            return float.hex(struct.unpack("<d", values.take(8))[0])
        if kind == "c":
            return f"%{flags.replace('0', '')}{width}c" % chr(values.whole(4, signed=False) & 0xFF)
        if kind == "s":
            return f"{shape}s" % string(values.whole(8, signed=False))
        if kind == "p":
            return f"%{flags}{width}s" % hex(values.whole(8, signed=False))
        return match[0]

    return PIECE.sub(one, text)


def _mask(length: str | None) -> int:
    """Return the bits that a length keeps of an unsigned value."""
    return {"hh": 0xFF, "h": 0xFFFF}.get(length or "", (1 << 64) - 1)


def _narrowed(value: int, length: str | None) -> int:
    """Return a signed value narrowed as ``%hd`` and ``%hhd`` do."""
    bits = {"hh": 8, "h": 16}.get(length or "", 64)
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half
