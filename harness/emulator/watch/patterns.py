"""The cost of a warp's memory instruction: sectors of global memory, wavefronts of shared memory.

Wavefronts follow the rule calibrated on an H200 with ncu. Shared memory has 32 banks of 4 bytes. A request of
up to 4 bytes per lane is one part, one of 8 bytes two halves of the warp and one of 16 bytes four quarters;
if the lanes agree in pairs (lane T has the address of lane T^1, or of T^2, throughout the warp), there are
half as many parts. A part takes as many wavefronts as its busiest bank has different words. For 8 bytes the
rule is an extrapolation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
WARP = 32
SECTOR = 32
_NOWHERE = np.int64(1 << 62)


def by_warp(values: Array, fill: Any) -> Array:
    """Reshape values (T, C) to (warps, 32); the last warp of a block is padded with `fill`."""
    threads, blocks = values.shape
    short = -threads % WARP
    if short:
        values = np.concatenate([values, np.full((short, blocks), fill, values.dtype)])
    return np.ascontiguousarray(values.T).reshape(-1, WARP)


def _warps(addresses: Array, active: Array | None) -> tuple[Array, Array]:
    """Return addresses and active lanes as (warps, 32), without warps in which no lane is active."""
    lanes = np.ones(addresses.shape, np.bool_) if active is None else active
    rows, alive = by_warp(addresses, 0), by_warp(lanes, False)
    some = alive.any(1)
    return rows[some], alive[some]


def sectors(addresses: Array, active: Array | None, size: int) -> tuple[int, int]:
    """Return (requests, sectors) of a global access: warps that take part, 32-byte sectors that they touch.

    addresses: byte addresses, (T, C)
    active: the active lanes, bool (T, C); None for all
    size: bytes per lane
    """
    rows, alive = _warps(addresses, active)
    if not len(rows):
        return 0, 0
    first, last = rows // SECTOR, (rows + size - 1) // SECTOR
    touched = np.where(np.concatenate([alive, alive], 1), np.concatenate([first, last], 1), _NOWHERE)
    touched.sort(axis=1)
    new = np.diff(touched, axis=1) != 0
    return len(rows), int(new.sum()) + len(rows) - int((touched[:, -1] == _NOWHERE).sum())


def wavefronts(addresses: Array, active: Array | None, size: int) -> tuple[int, int, int]:
    """Return (requests, wavefronts, conflicts) of a shared access.

    A wavefront is one pass over the banks; a conflict is one beyond the first of its part, see the module.
    The arguments are those of `sectors`.
    """
    rows, alive = _warps(addresses, active)
    if not len(rows):
        return 0, 0, 0
    words = max(1, size // 4)
    if words == 1:
        total, parts = _busiest(rows, alive, 1)
        return len(rows), total, total - parts
    paired = _paired(rows, alive, 1) | _paired(rows, alive, 2)
    total, parts = _busiest(rows[~paired], alive[~paired], words)
    merged, merged_parts = _busiest(rows[paired], alive[paired], words, parts=words // 2)
    return len(rows), total + merged, total + merged - parts - merged_parts


def _paired(rows: Array, alive: Array, apart: int) -> Array:
    """Return, per warp, whether the lanes T and T ^ `apart` agree wherever both are active: bool (warps,)."""
    other = np.arange(WARP) ^ apart
    agree: Array = ((rows == rows[:, other]) | ~(alive & alive[:, other])).all(1)
    return agree


def _busiest(rows: Array, alive: Array, words: int, parts: int | None = None) -> tuple[int, int]:
    """Return (wavefronts, parts with an active lane) of warps that access `words` words per lane.

    Each warp is split into `parts` parts, one per word unless it is given.
    """
    if not len(rows):
        return 0, 0
    lanes = WARP // (words if parts is None else parts)
    first = rows.reshape(-1, lanes, 1) >> 2
    word = (first + np.arange(words)).reshape(len(first), -1)
    word = np.where(np.repeat(alive.reshape(-1, lanes), words, axis=1), word, _NOWHERE)
    word.sort(axis=1)
    new = np.ones(word.shape, np.bool_)
    new[:, 1:] = word[:, 1:] != word[:, :-1]
    new &= word != _NOWHERE
    part = np.broadcast_to(np.arange(len(word))[:, None], word.shape)
    load = np.bincount((part * 32 + (word & 31))[new], minlength=len(word) * 32).reshape(-1, 32).max(1)
    return int(load.sum()), int((load > 0).sum())
