"""The kernel that takes fingerprints, in the emulator: what it adds up, and that every changed bit shows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from harness import compile_kernel
from harness.emulator import Buffer, emulate
from harness.kernels import spec
from harness.launch.fingerprint import SOURCE
from harness.support.cache import Cache

MIXES = (
    (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 30, 27, 31),
    (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 33, 33, 33),
)
WORDS = np.random.default_rng(1).integers(0, 2**32, 700, dtype=np.uint32)


def taken(cache: Cache, data: NDArray[np.uint32], nbytes: int, blocks: int = 2) -> tuple[int, ...]:
    sums = np.zeros(2, np.uint64)
    kernel = spec.load(SOURCE)
    result = emulate(
        compile_kernel(kernel.variant(), "sm_90a", cache).ptx,
        kernel.entry,
        grid=(blocks, 1, 1),
        block=(256, 1, 1),
        arguments=[
            Buffer(array=data, name="data", initialised=True),
            np.uint64(nbytes),
            Buffer(array=sums, name="sums", initialised=True),
        ],
    )
    assert result.findings == ()
    return int(sums[0]), int(sums[1])


def expected(words: list[int]) -> tuple[int, ...]:
    """By the formulas, in integers of any size."""
    found = []
    for a, b, r, s, t in MIXES:
        total = 0
        for i, word in enumerate(words):
            z = word ^ ((i + 1) * 0x9E3779B97F4A7C15 % 2**64)
            z = (z ^ (z >> r)) * a % 2**64
            z = (z ^ (z >> s)) * b % 2**64
            total += z ^ (z >> t)
        found.append(total % 2**64)
    return tuple(found)


@pytest.mark.parametrize("count", [1, 31, 512, 700])
def test_it_is_the_sum_of_the_mixed_words(cache: Cache, count: int) -> None:
    """More words than threads, fewer, and neither whole warps nor blocks; however many threads there are."""
    words = WORDS[:count].copy()
    found = taken(cache, words, words.nbytes)
    assert found == expected(words.tolist()) == taken(cache, words, words.nbytes, blocks=1)


@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_part_of_a_word_at_the_end_counts(cache: Cache, left: int) -> None:
    """Every byte of it, and none beyond: outputs of a user's own problem may be bytes."""
    words = WORDS[:5].copy()
    parted = [*words[:4].tolist(), int(words[4]) & (1 << 8 * left) - 1]
    assert taken(cache, words, 16 + left) == expected(parted)
    words[4] ^= 1 << 8 * left  # beyond the end
    assert taken(cache, words, 16 + left) == expected(parted)
    words[4] ^= 1 << 8 * left - 1
    assert taken(cache, words, 16 + left) != expected(parted)


def test_every_bit_and_every_place_counts() -> None:
    """On the formula that the kernel is held to above."""
    words = WORDS[:40].tolist()
    seen = {expected(words)}
    for place in range(40):
        for bit in range(32):
            changed = [w ^ (1 << bit if i == place else 0) for i, w in enumerate(words)]
            seen.add(expected(changed))
    assert len(seen) == 1 + 40 * 32
    assert expected(words[1:2] + words[:1] + words[2:]) not in seen
