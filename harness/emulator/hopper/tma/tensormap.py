"""Tensor maps of the emulator: what cuTensorMapEncodeTiled or -Im2col would be told, in the same 128 bytes.

The layout of a real map is not documented, and no driver is needed for this one. All rules of the functions
are checked (CUDA driver API, "Tensor Map Object Management").
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import EmulatorError, UsageError

BYTES = 128
MAGIC = b"harness\x01"
_IM2COL = b"harness\x02"  # in place of the last three extents of the box it has the corners, 16 bits each
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
_CORNERS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}  # by the number of extents, what corners are below


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
    lower, upper: of an im2col map the corners of the pixel box, along W, H and D; its `box` is then the
      channels of a pixel and the pixels of a column
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
    lower: Sequence[int] = ()
    upper: Sequence[int] = ()

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
            lower=tuple(self.lower),
            upper=tuple(self.upper),
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
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()

    @property
    def im2col(self) -> bool:
        """Return whether it is a map for copies in im2col mode."""
        return bool(self.lower or self.upper)

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
        if self.im2col:  # steps do not make a column shorter
            return self.box
        return tuple(-(-extent // step) for extent, step in zip(self.box, self.steps, strict=True))

    def check(self) -> None:
        """Raise EmulatorError for a map that cuTensorMapEncodeTiled, or -Im2col, refuses."""
        if self.element not in SIZES:
            raise EmulatorError(f"no tensor map element {self.element!r}", hint=", ".join(SIZES))
        numbers = (*self.extents, *self.strides, *self.box, *self.steps, *self.lower, *self.upper)
        if not all(isinstance(number, int | np.integer) for number in numbers):
            raise UsageError("a tensor map of numbers that are not whole")
        if what := self.fault():
            function = f"cuTensorMapEncode{'Im2col' if self.im2col else 'Tiled'}"
            raise EmulatorError(f"{function} refuses this tensor map: {what}")

    def fault(self) -> str:
        """Return what no map may have, such as a stride that is no multiple of 16; "" if it is right."""
        rank = len(self.extents)
        inner = self.box[0] * self.size if self.box else 0
        shape = self._shape_of_columns() if self.im2col else self._shape_of_boxes()
        faults = [
            (not 1 <= rank <= 5, f"{rank} extents, not 1 to 5"),
            (len(self.strides) != rank - 1, f"{len(self.strides)} strides for {rank} extents"),
            *shape,
            (len(self.steps) != rank, "steps of another rank"),
            (self.address % 16 != 0, f"an address that is {self.address % 16} past a multiple of 16"),
            (not all(1 <= e <= 1 << 32 for e in self.extents), f"extents {self.extents}, not 1 to 2^32"),
            (
                not all(s % 16 == 0 and 0 <= s < 1 << 40 for s in self.strides),
                f"strides of {self.strides} bytes, not multiples of 16 below 2^40",
            ),
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

    def _shape_of_boxes(self) -> list[tuple[bool, str]]:
        """Return what may be wrong with the shape of a tiled map: (whether it is, what)."""
        rank = len(self.extents)
        return [
            (len(self.box) != rank, "a box of another rank"),
            (not all(1 <= b <= 256 for b in self.box), f"a box of {self.box}, not 1 to 256 each"),
        ]

    def _shape_of_columns(self) -> list[tuple[bool, str]]:
        """Return what may be wrong with the shape of an im2col map: (whether it is, what)."""
        rank, least = len(self.extents), -_CORNERS.get(len(self.extents), 0)
        if rank not in _CORNERS or not len(self.lower) == len(self.upper) == rank - 2 or len(self.box) != 2:
            corners = f"corners of {len(self.lower)} and {len(self.upper)}"
            given = f"{rank} extents, {corners}, a box of {len(self.box)}"
            return [(True, f"{given}; an im2col map has 3 to 5 of them, two fewer in corners, a box of two")]
        channels, pixels = self.box
        last = [extent - 1 + upper for extent, upper in zip(self.extents[1:-1], self.upper, strict=True)]
        return [
            (not 1 <= channels <= 256, f"{channels} channels a pixel, not 1 to 256"),
            (not 1 <= pixels <= 1024, f"{pixels} pixels a column, not 1 to 1024"),
            (
                not all(least <= corner < -least for corner in (*self.lower, *self.upper)),
                f"corners {self.lower} and {self.upper}, not {least} to {-least - 1} of {rank} extents",
            ),
            (
                not all(first <= end for first, end in zip(self.lower, last, strict=True)),
                f"corners {self.lower} and {self.upper}, with no pixel between them",
            ),
        ]

    def stray(self, at: tuple[int, ...], offsets: tuple[int, ...]) -> str:
        """Return what is wrong with the base and the offsets of a copy in im2col mode; "" if all is right."""
        most = 2 * _CORNERS[len(self.extents)]
        if any(offset >= most for offset in offsets):
            return f"im2col offsets {offsets}, of which each is below {most} with {len(self.extents)} extents"
        last = tuple(extent - 1 + upper for extent, upper in zip(self.extents[1:-1], self.upper, strict=True))
        bases = zip(self.lower, at[1:-1], last, strict=True)
        if not all(low <= base <= high for low, base, high in bases):
            return f"a base {at[1:-1]} outside the pixel box, from {self.lower} to {last}"
        return ""

    def encode(self) -> bytes:
        """Return the 128 bytes."""

        def five(values: Sequence[int], count: int = 5) -> list[int]:
            return [*values, *[0] * count][:count]

        corners = zip(self.lower, self.upper, strict=True)
        box = (*self.box, *(low & 0xFFFF | (high & 0xFFFF) << 16 for low, high in corners))
        return struct.pack(
            _FORMAT,
            _IM2COL if self.im2col else MAGIC,
            self.address,
            *(extent & 0xFFFFFFFF for extent in five(self.extents)),
            *five(self.strides, 4),
            *five(box),
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
    if len(raw) < BYTES or raw[:8] not in (MAGIC, _IM2COL):
        return None
    fields = struct.unpack_from(_FORMAT, raw)
    rank, element, swizzle, nan = fields[-4:]
    box = fields[11 : 11 + rank]
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    if raw[:8] == _IM2COL:
        box, corners = fields[11:13], fields[13 : 13 + rank - 2]
        lower, upper = (tuple(_signed(corner >> shift) for corner in corners) for shift in (0, 16))
    return Map(
        address=fields[1],
        element=_ELEMENTS[min(element, len(_ELEMENTS) - 1)],
        extents=tuple(extent or 1 << 32 for extent in fields[2 : 2 + rank]),
        strides=tuple(fields[7 : 7 + rank - 1]),
        box=tuple(box),
        steps=tuple(fields[16 : 16 + rank]),
        swizzle=swizzle,
        nan=bool(nan),
        lower=lower,
        upper=upper,
    )


def _signed(bits: int) -> int:
    """Return what the lowest 16 bits are as a signed number."""
    return ((bits & 0xFFFF) ^ 0x8000) - 0x8000
