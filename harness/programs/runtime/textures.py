"""Arrays, textures, surfaces and tensor maps of a program, as the emulator reads them."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.emulator import Texture
from harness.emulator.hopper.tma.tensormap import BYTES, SIZES, Map
from harness.errors import EmulatorError
from harness.programs.runtime import host
from harness.programs.runtime.host import ALLOCATION, INVALID_VALUE, Misuse
from harness.programs.runtime.memory import ARRAY, DeviceMemory

_LAYERED, _CUBE = 1, 4  # cudaArrayLayered, cudaArrayCubemap
_KINDS = "iuf"  # cudaChannelFormatKind: signed, unsigned, float
_MODES = ("wrap", "clamp", "mirror", "border")  # cudaTextureAddressMode
_SWIZZLES = (0, 32, 64, 128)  # CUtensorMapSwizzle
_HANDLES = 6 << 32


@dataclass(frozen=True, kw_only=True)
class Texels:
    """What lies where a texture reads: a ``cudaChannelFormatDesc`` and extents, 0 for those it lacks.

    pitch: bytes from row to row
    """

    start: int
    bits: tuple[int, int, int, int]
    kind: int
    extents: tuple[int, int, int]
    pitch: int
    flags: int = 0

    @property
    def channels(self) -> int:
        """Return the numbers of a texel."""
        return sum(b > 0 for b in self.bits)

    @property
    def element(self) -> int:
        """Return the bytes of a texel."""
        return sum(self.bits) // 8

    @property
    def size(self) -> int:
        """Return the bytes of all of them."""
        rows = max(self.extents[1], 1) * max(self.extents[2], 1)
        return self.pitch * (rows - 1) + self.extents[0] * self.element

    def view(self, memory: NDArray[np.uint8]) -> NDArray[np.generic]:
        """Return them as `Texture` takes them, (layers, depth, height, width, channels) without what is not
        there.
        """
        width, height, depth = self.extents
        one = np.dtype(f"{_KINDS[self.kind]}{self.bits[0] // 8}")
        shape = [n for n in (depth, height) if n] + [width]
        strides = [self.pitch * max(height, 1)] * (depth > 0) + [self.pitch] * (height > 0) + [self.element]
        if self.channels > 1:
            shape, strides = [*shape, self.channels], [*strides, one.itemsize]
        return np.ndarray(shape, one, memory.data, 0, strides)


class Textures:
    """The functions of CUDA's runtime for arrays, and for the objects that read and write them."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._handles = itertools.count(_HANDLES, 64)
        self._arrays: dict[int, Texels] = {}
        self._objects: dict[int, Callable[[], Texture]] = {}

    def bound(self) -> dict[str | int, Texture]:
        """Return all objects by their handles, for one launch."""
        return {handle: make() for handle, make in self._objects.items()}

    # -- arrays

    def cudaMalloc3DArray(
        self, caller: int, to: int, format_: int, width: int, height: int, depth: int, flags: int
    ) -> None:
        extents = (width, height, depth)
        one = self._texels(0, format_, extents, 0, flags)
        size = width * one.element * max(height, 1) * max(depth, 1)
        found = self._memory.allocate(size, ARRAY, "", caller)
        if found is None:
            raise Misuse(ALLOCATION, f"an array of {size:,} bytes")
        self._arrays[found.start] = self._texels(found.start, format_, extents, width * one.element, flags)
        host.put(to, found.start)

    def cudaFreeArray(self, caller: int, array: int) -> None:
        if array and (self._arrays.pop(array, None) is None or self._memory.free(array) is None):
            raise Misuse(INVALID_VALUE, "what is no array")

    def what_an_array_is(self, caller: int, array: int, to: int) -> None:
        """Fill a struct with the extents and the format of an array."""
        one = self._array(array)
        (ctypes.c_uint64 * 5).from_address(to)[:] = [*one.extents, one.element, one.flags]
        (ctypes.c_int * 5).from_address(to + 40)[:] = [*one.bits, one.kind]

    def _array(self, array: int) -> Texels:
        if array not in self._arrays:
            raise Misuse(INVALID_VALUE, "what is no array, or was freed")
        return self._arrays[array]

    # -- objects

    def cudaCreateTextureObject(
        self,
        caller: int,
        to: int,
        start: int,
        format_: int,
        width: int,
        height: int,
        pitch: int,
        modes: int,
        filter_: int,
        read: int,
        normalized: int,
    ) -> None:
        one = self._texels(start, format_, (width, height, 0), pitch) if format_ else self._array(start)
        address = tuple(_MODES[m] for m in (ctypes.c_int * 3).from_address(modes))
        found = self._memory.at(start)
        if found is None or start + one.size > found.end:
            raise Misuse(INVALID_VALUE, f"a texture of {one.size:,} bytes that are not allocated")

        def made() -> Texture:
            return Texture(
                array=self._view(one, writeable=False),
                name=found.name or "texture",
                channels=one.channels,
                layered=bool(one.flags & (_LAYERED | _CUBE)),
                filter="linear" if filter_ else "point",
                address=address,
                normalized=bool(normalized),
                read_normalized=bool(read),
            )

        self._create(to, made)

    def cudaCreateSurfaceObject(self, caller: int, to: int, array: int) -> None:
        one, found = self._array(array), self._memory.at(array)
        name, layered = found.name if found else "", bool(one.flags & (_LAYERED | _CUBE))
        self._create(
            to,
            lambda: Texture(
                array=self._view(one, writeable=True),
                name=name or "surface",
                channels=one.channels,
                layered=layered,
            ),
        )

    def cudaDestroyTextureObject(self, caller: int, handle: int) -> None:
        self._objects.pop(handle, None)

    cudaDestroySurfaceObject = cudaDestroyTextureObject

    def cuTensorMapEncodeTiled(
        self,
        caller: int,
        to: int,
        type_: int,
        rank: int,
        address: int,
        extents: int,
        strides: int,
        box: int,
        steps: int,
        swizzle: int,
        fill: int,
    ) -> None:
        one = _map(type_, rank, address, extents, strides, steps, swizzle, fill)
        _encode(to, replace(one, box=tuple((ctypes.c_uint32 * rank).from_address(box))))

    def cuTensorMapEncodeIm2col(
        self,
        caller: int,
        to: int,
        type_: int,
        rank: int,
        address: int,
        extents: int,
        strides: int,
        lower: int,
        upper: int,
        channels: int,
        pixels: int,
        steps: int,
        swizzle: int,
        fill: int,
    ) -> None:
        one = _map(type_, rank, address, extents, strides, steps, swizzle, fill)
        if rank < 3:
            raise Misuse(INVALID_VALUE, f"{rank} extents of an im2col map, not 3 to 5")
        near, far = (tuple((ctypes.c_int32 * (rank - 2)).from_address(corner)) for corner in (lower, upper))
        _encode(to, replace(one, box=(channels, pixels), lower=near, upper=far))

    def _create(self, to: int, made: Callable[[], Texture]) -> None:
        handle = next(self._handles)
        self._objects[handle] = made
        host.put(to, handle)

    def _view(self, one: Texels, *, writeable: bool) -> NDArray[np.generic]:
        """Return the texels themselves. What a launch writes goes back into those that are writeable."""
        found = one.view(self._memory.view(one.start, one.size))
        found.flags.writeable = writeable
        return found

    @staticmethod
    def _texels(
        start: int, format_: int, extents: tuple[int, int, int], pitch: int, flags: int = 0
    ) -> Texels:
        *bits, kind = (ctypes.c_int * 5).from_address(format_)
        channels = [b for b in bits if b]
        if kind not in range(len(_KINDS)) or len(channels) not in (1, 2, 4) or len(set(channels)) > 1:
            raise Misuse(INVALID_VALUE, f"a channel format of {tuple(bits)} bits")
        one = Texels(
            start=start,
            bits=(bits[0], bits[1], bits[2], bits[3]),
            kind=kind,
            extents=extents,
            pitch=pitch,
            flags=flags,
        )
        if not extents[0]:
            raise Misuse(INVALID_VALUE, f"texels of {extents}")
        return one


def _map(
    type_: int, rank: int, address: int, extents: int, strides: int, steps: int, swizzle: int, fill: int
) -> Map:
    """Return the map that host code asks for, without its box."""
    if type_ >= len(SIZES) or swizzle >= len(_SWIZZLES) or not 1 <= rank <= 5:
        raise EmulatorError(f"a tensor map of type {type_} and rank {rank} with swizzle {swizzle}")
    return Map(
        address=address,
        element=list(SIZES)[type_],
        extents=tuple((ctypes.c_uint64 * rank).from_address(extents)),
        strides=tuple((ctypes.c_uint64 * (rank - 1)).from_address(strides)) if rank > 1 else (),
        box=(),
        steps=tuple((ctypes.c_uint32 * rank).from_address(steps)),
        swizzle=_SWIZZLES[swizzle],
        nan=bool(fill),
    )


def _encode(to: int, one: Map) -> None:
    """Write a map to where host code wants it, or tell what the driver refuses."""
    if what := one.fault():
        raise Misuse(INVALID_VALUE, what)
    ctypes.memmove(to, one.encode(), BYTES)
