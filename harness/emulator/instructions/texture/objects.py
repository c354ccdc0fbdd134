"""Texture and surface objects, and how they are sampled (CUDA Programming Guide, "Texture Fetching")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator.numbers.values import Array
from harness.errors import EmulatorError

FIRST = 5 << 32  # handle of the first object of a launch; they are `STEP` apart
STEP = 64
_MODES = ("wrap", "clamp", "mirror", "border")


@dataclass(frozen=True, kw_only=True)
class Texture:
    """An array that a kernel gets as a ``cudaTextureObject_t`` or ``cudaSurfaceObject_t``.

    array: (width,), (height, width) or (depth, height, width); with `layered` its first axis is the layers,
      with `channels` over 1 its last axis has them. A surface's stores change it
    filter: ``point`` or ``linear``
    address: what lies outside: wrap, clamp, mirror or border; one for all axes, or one for each of x, y, z
    normalized: coordinates run from 0 to 1; wrap and mirror need that, otherwise they clamp
    read_normalized: integers of 8 and 16 bits are read as floats, up to 1
    levels: the coarser levels of a mipmap, arrays like the first one with half its extents each time
    mip_filter: ``point``, the nearest level, or ``linear``, between two
    """

    array: NDArray[Any]
    name: str = "texture"
    channels: int = 1
    layered: bool = False
    filter: str = "point"
    address: str | tuple[str, ...] = "clamp"
    normalized: bool = False
    read_normalized: bool = False
    levels: tuple[NDArray[Any], ...] = ()
    mip_filter: str = "point"

    def __post_init__(self) -> None:
        modes = (self.address,) if isinstance(self.address, str) else self.address
        filters = {self.filter, self.mip_filter}
        if not filters <= {"point", "linear"} or not modes or not set(modes) <= set(_MODES):
            raise EmulatorError(
                f"texture {self.name} with filter {self.filter!r} and address {self.address!r}",
                hint=f"Filters are point and linear, address modes {', '.join(_MODES)}.",
            )
        axes = self.array.ndim - (self.channels > 1) - self.layered
        fits = self.channels in (1, 2, 4) and (self.channels == 1 or self.array.shape[-1] == self.channels)
        if not 1 <= axes <= 3 or not fits or not self.array.size:
            raise EmulatorError(
                f"an array of shape {self.array.shape} as texture {self.name}",
                hint="It has 1 to 3 axes, a first one for layers, and a last one for 2 or 4 channels.",
            )

        alike = (
            isinstance(one, np.ndarray) and one.size and one.ndim == self.array.ndim for one in self.levels
        )
        if not all(alike):
            raise EmulatorError(
                f"levels of texture {self.name} that are not arrays like the first one",
                hint=f"Each of them is an array with {self.array.ndim} axes.",
            )

    @property
    def texels(self) -> Array:
        """Return the array as (layers, depth, height, width, channels); a view."""
        shape = self.array.shape[:-1] if self.channels > 1 else self.array.shape
        layers = shape[0] if self.layered else 1
        axes = shape[1:] if self.layered else shape
        return self.array.reshape(layers, *([1] * (3 - len(axes))), *axes, self.channels)

    def mode(self, axis: int) -> str:
        """Return the address mode of an axis: 0 is x."""
        modes = (self.address,) if isinstance(self.address, str) else self.address
        mode = modes[min(axis, len(modes) - 1)]
        return mode if self.normalized or mode in ("clamp", "border") else "clamp"

    # -- sampling

    def fetch(self, layer: Array, places: list[Array]) -> Array:
        """Return the texels at whole coordinates (x, y, z), any shape; zeros outside."""
        texels = self.texels
        inside = np.ones(np.broadcast(layer, *places).shape, np.bool_)
        index = [np.clip(layer, 0, texels.shape[0] - 1)]
        for axis, extent in ((2, texels.shape[1]), (1, texels.shape[2]), (0, texels.shape[3])):
            place = places[axis] if axis < len(places) else np.int64(0)
            inside &= (place >= 0) & (place < extent)
            index.append(np.clip(place, 0, extent - 1))
        found = self._converted(texels[tuple(np.broadcast_arrays(*index))])
        return np.where(inside[..., None], found, found.dtype.type(0))

    def _converted(self, texels: Array) -> Array:
        """Return texels as they are read: integers as int64, or all as float64."""
        if texels.dtype.kind == "f":
            return texels.astype(np.float64)
        whole = texels.astype(np.int64)
        if not self.read_normalized or texels.dtype.itemsize > 2:
            return whole
        return np.maximum(whole / np.iinfo(texels.dtype).max, -1.0)

    def sample(self, layer: Array, coordinates: list[Array]) -> Array:
        """Return the filtered texels at coordinates (x, y, z) in float64: (..., channels).

        A linear filter's weights have 8 fractional bits, as on the hardware.
        """
        extents = self.texels.shape[3:0:-1]
        scaled = [
            np.nan_to_num(c * n if self.normalized else c, nan=0.0, posinf=1e9, neginf=-1e9)
            for c, n in zip(coordinates, extents, strict=False)
        ]
        if self.filter == "point":
            return self.fetch(layer, [self.wrapped(np.floor(c), axis) for axis, c in enumerate(scaled)])
        lower = [np.floor(c - 0.5) for c in scaled]
        weights = [np.rint((c - 0.5 - low) * 256) / 256 for c, low in zip(scaled, lower, strict=True)]
        total: Any = 0.0
        for corner in range(1 << len(scaled)):
            steps = [corner >> axis & 1 for axis in range(len(scaled))]
            share: Any = 1.0
            for weight, step in zip(weights, steps, strict=True):
                share = share * (weight if step else 1 - weight)
            place = [self.wrapped(low + steps[axis], axis) for axis, low in enumerate(lower)]
            total = total + np.asarray(share)[..., None] * self.fetch(layer, place)
        return np.asarray(total)

    def sample_level(self, layer: Array, coordinates: list[Array], level: Array) -> Array:
        """Return what `sample` does, from the level of detail `level` of each lane, 0 for the finest."""
        level = np.clip(np.nan_to_num(level), 0, len(self.levels))
        if self.mip_filter == "point":
            lower, share = np.floor(level + 0.5).astype(np.int64), np.zeros(level.shape)
        else:
            lower = np.floor(level).astype(np.int64)
            share = np.rint((level - lower) * 256) / 256
        upper = np.minimum(lower + 1, len(self.levels))
        shape = (*np.broadcast_shapes(layer.shape, level.shape), self.channels)
        found = np.zeros(shape)
        for number in np.unique([lower, upper]).tolist():
            texels = np.broadcast_to(self._level(number).sample(layer, coordinates), shape)
            weight = (lower == number) * (1 - share) + (upper == number) * share
            found += np.where(weight[..., None] > 0, weight[..., None] * texels, 0)
        return found

    def detail(self, steps: list[list[Array]]) -> Array:
        """Return the level of detail of gradients: for each direction on the screen the change of x, y, z."""
        extents = self.texels.shape[3:0:-1]
        scales = extents if self.normalized else (1, 1, 1)
        lengths = [np.sqrt(sum((d * n) ** 2 for d, n in zip(step, scales, strict=False))) for step in steps]
        return np.asarray(np.log2(np.maximum(np.maximum(*lengths), 1e-30)))

    def _level(self, number: int) -> Texture:
        """Return a level of a mipmap as a texture."""
        return replace(self, array=self.levels[number - 1], levels=()) if number else self

    def gather(self, layer: Array, coordinates: list[Array], channel: int) -> Array:
        """Return one channel of the four texels that a linear filter of two axes would use (``tld4``).

        They come in the order (0, 1), (1, 1), (1, 0), (0, 0) of steps in x and y: (..., 4).
        """
        extents = self.texels.shape[3:1:-1]
        scales = extents if self.normalized else (1, 1)
        lower = [np.floor(c * n - 0.5) for c, n in zip(coordinates, scales, strict=True)]
        found = [
            self.fetch(layer, [self.wrapped(lower[0] + x, 0), self.wrapped(lower[1] + y, 1)])[..., channel]
            for x, y in ((0, 1), (1, 1), (1, 0), (0, 0))
        ]
        return np.stack(found, axis=-1)

    def wrapped(self, place: Array, axis: int) -> Array:
        """Return whole coordinates by the address mode of their axis, int64; border leaves them outside."""
        extent = self.texels.shape[3 - axis]
        whole = np.asarray(place, np.float64).astype(np.int64)
        mode = self.mode(axis)
        if mode == "clamp":
            whole = np.clip(whole, 0, extent - 1)
        elif mode == "wrap":
            whole = whole % extent
        elif mode == "mirror":
            folded = whole % (2 * extent)
            whole = np.minimum(folded, 2 * extent - 1 - folded)
        return whole


def handles_of(arguments: Iterable[Any]) -> dict[int, Texture]:
    """Return the textures among the arguments of a launch by their handles, each once."""
    found: dict[int, Texture] = {}
    for argument in arguments:
        if isinstance(argument, Texture) and all(argument is not t for t in found.values()):
            found[FIRST + STEP * len(found)] = argument
    return found
