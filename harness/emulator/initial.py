"""The initial values of a PTX module's variables."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator.declarations import BYTES, Variable, initial_values
from harness.errors import EmulatorError

_FLOATS = {"f32": "<f", "f64": "<d"}


def values_of(variable: Variable) -> NDArray[Any]:
    """The variable's bytes: its initialiser, flattened, and zeros after it."""
    size = BYTES[variable.type]
    data = bytearray(variable.size)
    for place, token in enumerate(initial_values(variable.values)):
        raw = _bytes(token, size, variable)
        if (place + 1) * size > len(data):
            raise EmulatorError(f"variable {variable.name} has more values than room")
        data[place * size : (place + 1) * size] = raw
    return np.frombuffer(bytes(data), np.uint8).copy()


def _bytes(token: str, size: int, variable: Variable) -> bytes:
    if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})", token):
        return int(match[1] or match[2], 16).to_bytes(size, "little")
    if variable.type in _FLOATS and re.fullmatch(r"[-+]?(\d+\.\d*|\.\d+)([eE][-+]?\d+)?", token):
        return struct.pack(_FLOATS[variable.type], float(token))
    if re.fullmatch(r"[-+]?(0[xX][0-9a-fA-F]{1,16}|\d{1,20})U?", token):
        value = int(token.rstrip("U"), 0 if "x" in token.lower() else 10)
        return (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    raise EmulatorError(
        f"the initial value {token!r} of variable {variable.name}", hint="The emulator knows numbers only."
    )
