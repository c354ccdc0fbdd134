"""Where the rows of a product's operands begin: at multiples of 16 bytes, as TMA wants them, or of 32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.problems.gemm import Gemm

_SECTOR, _MAPPED = 32, 16  # bytes: of the L2 cache; at whose multiples rows begin that TMA reads


def without_maps(problem: Gemm, steps: Sequence[int] = (0, 0)) -> str:
    """Return which operands have rows that do not begin where TMA reads: "", "A", "B" or "AB".

    Of a batch `steps` are the elements from one matrix of A, and of B, to the next.
    """
    return "".join(x for x, each in zip("AB", _pitches(problem, steps), strict=True) if each % _MAPPED)


def straddles(problem: Gemm, steps: Sequence[int] = (0, 0)) -> bool:
    """Return True if rows of A or B begin elsewhere than at multiples of 32 bytes, and TMA can read both."""
    return not without_maps(problem, steps) and any(x % _SECTOR for x in _pitches(problem, steps))


def _pitches(problem: Gemm, steps: Sequence[int]) -> list[int]:
    """Return the bytes at whose multiples the rows of A and B begin, if the first does."""
    both = zip((problem.lda, problem.ldb), steps, strict=True)
    return [math.gcd(ld, step) * problem.dtype.itemsize for ld, step in both]
