"""What one memory instruction of a warp costs: sectors of global memory, wavefronts of shared memory.

Wavefronts follow the rule calibrated on an H200 with ncu: 32 banks of 4 bytes; up to 4 bytes a lane, the
warp goes at once; 8 bytes go in two halves and 16 bytes in four quarters, unless the lanes agree in pairs (T
with T^1, or T with T^2, throughout the warp), which halves the number of parts. A part takes as many
wavefronts as the busiest bank has different words. Of 8 bytes the rule is an extrapolation.
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
    """(T, C) -> (warps, 32), the last warp of a block filled up."""
    threads, blocks = values.shape
    short = -threads % WARP
    if short:
        values = np.concatenate([values, np.full((short, blocks), fill, values.dtype)])
    return np.ascontiguousarray(values.T).reshape(-1, WARP)


def _warps(addresses: Array, active: Array | None) -> tuple[Array, Array]:
    lanes = np.ones(addresses.shape, np.bool_) if active is None else active
    rows, alive = by_warp(addresses, 0), by_warp(lanes, False)
    some = alive.any(1)
    return rows[some], alive[some]


def sectors(addresses: Array, active: Array | None, size: int) -> tuple[int, int]:
    """(requests, sectors) of `size` bytes a lane at byte `addresses` (T, C); `active` None: all lanes."""
    rows, alive = _warps(addresses, active)
    if not len(rows):
        return 0, 0
    first, last = rows // SECTOR, (rows + size - 1) // SECTOR
    touched = np.where(np.concatenate([alive, alive], 1), np.concatenate([first, last], 1), _NOWHERE)
    touched.sort(axis=1)
    new = np.diff(touched, axis=1) != 0
    return len(rows), int(new.sum()) + len(rows) - int((touched[:, -1] == _NOWHERE).sum())


def wavefronts(addresses: Array, active: Array | None, size: int) -> tuple[int, int, int]:
    """(requests, wavefronts, wavefronts beyond one a part) of `size` bytes a lane at byte `addresses`."""
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
    other = np.arange(WARP) ^ apart
    agree: Array = ((rows == rows[:, other]) | ~(alive & alive[:, other])).all(1)
    return agree


def _busiest(rows: Array, alive: Array, words: int, parts: int | None = None) -> tuple[int, int]:
    """(wavefronts, parts with a lane in them) of warps split into `parts`."""
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
