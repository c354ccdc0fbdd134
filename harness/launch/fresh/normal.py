"""The random numbers of ``fresh.cu`` in NumPy, bit for bit.

Numbers are made by position, not in sequence: element i of a matrix is a function of i and a key, as in
counter-based generators (Salmon et al., SC 2011). The function is splitmix64 (Steele, Lea, Flood, OOPSLA
2014). Four of its 16-bit words are added up (Irwin and Hall), which is close to a normal distribution: the
excess kurtosis is -0.3, and no number exceeds 3.5 in magnitude. A sum of integers has the same bits on every
machine, which the logarithm and the cosine of Box and Muller's method have not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.kernels.dtypes import DType

GAMMA = 0x9E3779B97F4A7C15
LARGEST = 3.47  # in magnitude, of `normal`
_MASK = 2**64 - 1
_CENTRE = 2147459072  # the mean of the integers that `normal` scales
_SCALE = np.float32(1.61309798e-09)  # 1 over their standard deviation


def mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64's finalizer of each element."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def key_of(key: int, set_: int, operand: int) -> int:
    """Return the key of one operand of one set. `operand` is 0 for A, 1 for B, 2 for C."""
    return int(mix(np.array([(key + (8 * set_ + operand + 1) * GAMMA) & _MASK], np.uint64))[0])


def sequence(key: int, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the 64-bit numbers at these places of a key's sequence."""
    return mix(np.uint64(key) + (places + np.uint64(1)) * np.uint64(GAMMA))


def normal(key: int, places: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Return nearly normal deviates, of mean 0 and deviation 1, at these places of a key's sequence."""
    z = sequence(key, places)
    low, high = z.astype(np.uint32), (z >> np.uint64(32)).astype(np.uint32)
    half = np.uint32(0xFFFF)
    total = (low & half) + (low >> np.uint32(16)) + (high & half) + (high >> np.uint32(16))
    fine = ((low ^ high) * np.uint32(0x9E3779B9)) >> np.uint32(18)
    whole = ((total << np.uint32(14)) + fine - np.uint32(_CENTRE)).view(np.int32)
    found: NDArray[np.float32] = whole.astype(np.float32) * _SCALE
    return found


def matrix(
    dtype: DType,
    key: int,
    *,
    rows: int,
    columns: int,
    ld: int,
    scale: float = 1.0,
    of: NDArray[np.int64] | None = None,
) -> NDArray[Any]:
    """Return a matrix as the kernel ``fill`` writes it, as it is stored: rows x ld.

    Elements from `columns` on are NaN. `key` is that of the operand (`key_of`); `of` picks some rows.
    """
    picked = np.arange(rows, dtype=np.int64) if of is None else of
    places = np.add.outer(picked.astype(np.uint64) * np.uint64(ld), np.arange(ld, dtype=np.uint64))
    found = dtype.encode(normal(key, places) * np.float32(scale))
    found[:, columns:] = dtype.encode(np.full(1, np.nan, np.float32))
    return found


def signs(key: int, count: int) -> NDArray[np.float64]:
    """Return the vector x of random signs, 1 or -1, as the kernel ``signs`` draws it."""
    words = (sequence(key, np.arange(-(-count // 32), dtype=np.uint64)) >> np.uint64(32)).astype(np.uint32)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:count]
    found: NDArray[np.float64] = np.where(bits, -1.0, 1.0)
    return found
