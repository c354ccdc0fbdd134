"""Literals of PTX: integers and floating-point numbers (PTX ISA, "Constants")."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np

from harness.errors import EmulatorError

_SINGLE = re.compile(r"0[fF]([0-9a-fA-F]{8})")
_DOUBLE = re.compile(r"0[dD]([0-9a-fA-F]{16})")
_DECIMAL = re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?")
_INTEGER = re.compile(r"(-?)(0[xX][0-9a-fA-F]{1,16}|0[bB][01]{1,64}|0[0-7]{0,22}|[1-9]\d{0,19})U?")


def literal(text: str) -> Any:
    """Return the value of a literal, an int or a NumPy float; None for any other text."""
    if match := _SINGLE.fullmatch(text):
        return np.array(int(match[1], 16), np.uint32).view(np.float32)[()]
    if match := _DOUBLE.fullmatch(text):
        return np.array(int(match[1], 16), np.uint64).view(np.float64)[()]
    if _DECIMAL.fullmatch(text):
        return np.float64(text)
    if match := _INTEGER.fullmatch(text):
        return integer(match[1] + match[2])
    return None


def integer(digits: str) -> int:
    """Read the digits of an integer: ``16``, ``-3``, ``0x10``, ``0b11``, or ``020``, which is octal."""
    plain = digits.lstrip("-")
    octal = len(plain) > 1 and plain[0] == "0" and plain.isdecimal()
    return int(digits, 8 if octal else 0)


def is_float(text: str) -> bool:
    """Return whether an operand is a floating-point literal such as ``0f3F800000``."""
    return bool(_SINGLE.fullmatch(text) or _DOUBLE.fullmatch(text) or _DECIMAL.fullmatch(text))


def declared_integer(text: str) -> int:
    """Read an integer of a declaration, such as ``16U``. Raises ValueError."""
    return integer(text.removesuffix("U"))


def initial_values(text: str) -> list[str]:
    """Return the values of an initialiser as texts, without its braces."""
    return re.findall(r"[^\s,{}]+", text)


_FLOATS = {"f32": "<f", "f64": "<d"}


def value_bytes(token: str, size: int, kind: str, name: str) -> bytes:
    """Return the `size` bytes of one initial value of the variable `name`, of type `kind`; little-endian."""
    if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})", token):
        return int(match[1] or match[2], 16).to_bytes(size, "little")
    if kind in _FLOATS and re.fullmatch(r"[-+]?(\d+\.\d*|\.\d+)([eE][-+]?\d+)?", token):
        return struct.pack(_FLOATS[kind], float(token))
    if re.fullmatch(r"[-+]?(0[xX][0-9a-fA-F]{1,16}|\d{1,20})U?", token):
        value = int(token.rstrip("U"), 0 if "x" in token.lower() else 10)
        return (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    raise EmulatorError(
        f"the initial value {token!r} of variable {name}", hint="The emulator knows numbers only."
    )
