"""Rung 40 in the emulator: units of 16 bytes wherever rows and vectors allow them.

Layouts, epilogues and planted faults are among those of test_hopper_rungs.py and others.
"""

from __future__ import annotations

import numpy as np
import pytest

from harness import compile_kernel
from harness.emulator import Buffer, Counts, Record, emulate
from harness.kernels import catalog


def product(k: int, offset: int) -> Counts:
    """Multiply 16 rows by a vector that begins `offset` floats behind a unit; return what was counted."""
    variant = catalog.kernel("40_skinny_dots").variant(ROWS=8)
    rng = np.random.default_rng(k)
    a = rng.integers(-3, 4, (16, k)).astype(np.float32)
    memory = rng.integers(-3, 4, k + 4).astype(np.float32)
    c = np.zeros(16, np.float32)
    b = Buffer(array=memory, name="B")
    inside = Record(
        buffers=(b,), align=8, pack=lambda address: int(address(b) + 4 * offset).to_bytes(8, "little")
    )
    cubin = compile_kernel(variant, "sm_90a")
    found = emulate(
        cubin.ptx,
        cubin.entry,
        grid=(1, 2, 1),
        block=variant.block,
        arguments=[
            Buffer(array=a, name="A"),
            inside,
            Buffer(array=c, name="C"),
            *map(np.int32, (16, 1, k, k, 1, 1)),
            np.float32(1),
            np.float32(0),
        ],
        shared=variant.shared,
        count=True,
    )
    assert found.findings == () and np.array_equal(c, a @ memory[offset : offset + k])
    return found.total


@pytest.mark.parametrize("k", [256, 1024, 1152])
def test_each_matrix_is_read_in_units_by_itself(k: int) -> None:
    """A vector that begins anywhere takes four requests for one, and A none more, whatever is left of k."""
    units = 16 * k // 128  # requests of A: of each of the two blocks eight rows, each warp four of them
    aligned, shifted = product(k, 0), product(k, 1)
    vector = units // 4
    stores = aligned.global_requests - units - vector
    assert stores == 2
    assert shifted.global_requests == units + 4 * vector + stores
