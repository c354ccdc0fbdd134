"""Tensor maps of the emulator: what cuTensorMapEncodeTiled would be told, in the same 128 bytes.

The layout of a real map is not documented, and no driver is needed for this one. All rules of the function
are checked (CUDA driver API, "Tensor Map Object Management").
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import EmulatorError

BYTES = 128
MAGIC = b"harness\x01"
_FORMAT = "<8sQ5I4x4Q5I5I4I"  # 128 bytes
_FIELDS = {  # of `tensormap.replace`: where each begins, and its bytes
    "global_address": (8, 8), "global_dim": (16, 4), "global_stride": (40, 8), "box_dim": (72, 4),
    "element_stride": (92, 4), "rank": (112, 4), "elemtype": (116, 4), "swizzle_mode": (120, 4),
    "fill_mode": (124, 4),
}  # fmt: skip
SIZES = {
    "UINT8": 1, "UINT16": 2, "UINT32": 4, "INT32": 4, "UINT64": 8, "INT64": 8, "FLOAT16": 2, "FLOAT32": 4,
    "FLOAT64": 8, "BFLOAT16": 2, "FLOAT32_FTZ": 4, "TFLOAT32": 4, "TFLOAT32_FTZ": 4,
}  # fmt: skip
_ELEMENTS = tuple(SIZES)
FLOATS = frozenset(name for name in SIZES if "FLOAT" in name)


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """A tensor map as an argument of `emulate`; extents, strides and boxes begin with the innermost.

    array: the tensor, one of the buffers that the kernel gets, or an array of its own
    element: CUDA's name of the element type, ``"BFLOAT16"``
    extents: elements, 1 to 5 of them
    strides: bytes from one index to the next, without that of the innermost
    box: elements that one copy moves
    steps: distance of the elements that are copied, ``elementStrides``
    swizzle: 0, 32, 64 or 128 bytes
    nan: what is outside reads as NaN, not as zero
    """

    array: NDArray[Any]
    element: str
    extents: Sequence[int]
    strides: Sequence[int]
    box: Sequence[int]
    steps: Sequence[int] = ()
    swizzle: int = 0
    nan: bool = False
    name: str = ""

    def encode(self, address: int) -> bytes:
        """Return the map of a tensor at a device address. Raises EmulatorError for what CUDA would refuse."""
        steps = tuple(self.steps) or (1,) * len(self.extents)
        map_ = Map(
            address=address,
            element=self.element,
            extents=tuple(self.extents),
            strides=tuple(self.strides),
            box=tuple(self.box),
            steps=steps,
            swizzle=self.swizzle,
            nan=self.nan,
        )
        map_.check()
        return map_.encode()


@dataclass(frozen=True, kw_only=True)
class Map:
    """The contents of an encoded map, as in `TensorMap`, with the tensor's address."""

    address: int
    element: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int = 0
    nan: bool = False

    @property
    def size(self) -> int:
        """Return the bytes of an element."""
        return SIZES[self.element]

    @property
    def total(self) -> int:
        """Return the bytes that a box takes in shared memory."""
        return int(np.prod(self.counts)) * self.size

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the elements of a box in shared memory, innermost first."""
        return tuple(-(-extent // step) for extent, step in zip(self.box, self.steps, strict=True))

    def check(self) -> None:
        """Raise EmulatorError for a map that cuTensorMapEncodeTiled refuses."""
        if self.element not in SIZES:
            raise EmulatorError(f"no tensor map element {self.element!r}", hint=", ".join(SIZES))
        if what := self.fault():
            raise EmulatorError(f"cuTensorMapEncodeTiled refuses this tensor map: {what}")

    def fault(self) -> str:
        """Return what no map may have, such as a stride that is no multiple of 16; "" if it is right."""
        rank = len(self.extents)
        inner = self.box[0] * self.size if self.box else 0
        faults = [
            (not 1 <= rank <= 5, f"{rank} extents, not 1 to 5"),
            (len(self.strides) != rank - 1, f"{len(self.strides)} strides for {rank} extents"),
            (len(self.box) != rank or len(self.steps) != rank, "a box or steps of another rank"),
            (self.address % 16 != 0, f"an address that is {self.address % 16} past a multiple of 16"),
            (not all(1 <= e <= 1 << 32 for e in self.extents), f"extents {self.extents}, not 1 to 2^32"),
            (
                not all(s % 16 == 0 and 0 <= s < 1 << 40 for s in self.strides),
                f"strides of {self.strides} bytes, not multiples of 16 below 2^40",
            ),
            (not all(1 <= b <= 256 for b in self.box), f"a box of {self.box}, not 1 to 256 each"),
            (not all(1 <= s <= 8 for s in self.steps), f"element strides {self.steps}, not 1 to 8"),
            (inner % 16 != 0, f"a box whose rows have {inner} bytes, not a multiple of 16"),
            (self.swizzle not in (0, 32, 64, 128), f"a swizzle of {self.swizzle} bytes"),
            (
                bool(self.swizzle) and inner > self.swizzle,
                f"a box whose rows have {inner} bytes with a swizzle of {self.swizzle}",
            ),
            (self.nan and self.element not in FLOATS, f"a NaN fill of {self.element}"),
        ]
        return next((what for wrong, what in faults if wrong), "")

    def encode(self) -> bytes:
        """Return the 128 bytes."""

        def five(values: Sequence[int], count: int = 5) -> list[int]:
            return [*values, *[0] * count][:count]

        return struct.pack(
            _FORMAT,
            MAGIC,
            self.address,
            *(extent & 0xFFFFFFFF for extent in five(self.extents)),
            *five(self.strides, 4),
            *five(self.box),
            *five(self.steps),
            len(self.extents),
            _ELEMENTS.index(self.element),
            self.swizzle,
            self.nan,
        )


def field(name: str, number: int) -> tuple[int, int]:
    """Return where a field of a map begins, or that of extent or stride `number`, and its bytes."""
    begins, size = _FIELDS[name]
    return begins + number * size, size


def decode(raw: bytes) -> Map | None:
    """Return the contents of a map; None if these bytes are none."""
    if len(raw) < BYTES or raw[:8] != MAGIC:
        return None
    fields = struct.unpack_from(_FORMAT, raw)
    rank, element, swizzle, nan = fields[-4:]
    return Map(
        address=fields[1],
        element=_ELEMENTS[min(element, len(_ELEMENTS) - 1)],
        extents=tuple(extent or 1 << 32 for extent in fields[2 : 2 + rank]),
        strides=tuple(fields[7 : 7 + rank - 1]),
        box=tuple(fields[11 : 11 + rank]),
        steps=tuple(fields[16 : 16 + rank]),
        swizzle=swizzle,
        nan=bool(nan),
    )
