"""Operands that cannot have a tensor map: which of them are copied first."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness
from harness.dispatch import traffic
from harness.kernels import catalog, spec
from shared import tma_gemm


def copied(dtype: str, *shape: int, unmapped: str = "AB") -> str:
    variant = harness.choose(*shape, sms=132, arch="sm_90a", dtype=dtype)
    return traffic.copied(variant, *shape, sms=132, unmapped=unmapped)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32"])
def test_operands_without_a_map_are_copied_where_that_pays(dtype: str) -> None:
    assert copied(dtype, 2049, 2047, 2049) == "AB"  # 5 times as long where it is not: measured
    assert copied(dtype, 2049, 2047, 2049, unmapped="A") == "A"
    assert copied(dtype, 2049, 2047, 2049, unmapped="B") == "B"
    assert copied(dtype, 2049, 2047, 2049, unmapped="") == ""
    assert copied(dtype, 50, 50, 50) == ""  # over before a copy has begun
    assert copied(dtype, 8191, 8191, 9) == ""  # nothing to load: all of it is writing
    assert "B" not in copied(dtype, 1, 8191, 8191)  # each element of B is used once
    assert "A" in copied(dtype, 301, 16383, 4001)  # small, and read for each column of tiles


def test_a_kernel_whose_blocks_share_tiles_loads_less_each() -> None:
    """16 tiles on 132 SMs: eight blocks load a tile's operands, not one."""
    shape, where = (512, 512, 512), {"sms": 132, "unmapped": "AB"}
    sharing = catalog.kernel("29_wgmma_grid_split").variant()
    alone = catalog.kernel("26_wgmma_split").variant(BM=128, BN=128, STAGES=4, SPLIT=1)
    split = catalog.kernel("26_wgmma_split").variant(BM=128, BN=128, STAGES=4, SPLIT=8)
    assert traffic.copied(alone, *shape, **where) == "AB"
    assert traffic.copied(sharing, *shape, **where) == traffic.copied(split, *shape, **where) == ""


def test_what_a_kernel_takes_no_map_of_is_not_copied(tmp_path: Path) -> None:
    assert copied("fp32", 2049, 2047, 2049) == copied("3xtf32", 2049, 2047, 2049) == ""
    of_a = spec.load(tma_gemm.write(tmp_path)).variant()
    assert traffic.copied(of_a, 2049, 2047, 2049, sms=132, unmapped="AB") == "A"


def test_a_copy_by_hand() -> None:
    """One block of 128 x 256 on one SM, a third of its loads of A."""
    variant = harness.kernel("23_wgmma_pipeline").variant()
    assert variant.tile == (128, 256)

    def copied(N: int, unmapped: str) -> str:
        return traffic.copied(variant, 128, N, 4096, sms=1, unmapped=unmapped)

    # Cycles at N = 256: 131,072 for the loads of A, 262,144 for those of B, 65,536 for the products, 207,000
    # for all traffic; 147,000 to copy A and 291,000 to copy B: on one SM copying is no gain.
    assert copied(256, "A") == copied(256, "B") == copied(256, "AB") == ""
    # On 132 of them, with a tile each, every copy serves many.
    assert traffic.copied(variant, 128 * 11, 256 * 12, 4096, sms=132, unmapped="AB") == "AB"


def test_a_copy_pays_from_some_size_on() -> None:
    """The rule has one threshold along the squares, where a launch takes about as long as two copies."""
    variant = catalog.kernel("23_wgmma_pipeline").variant(BM=64, BN=64, STAGES=8)
    kinds = [traffic.copied(variant, n, n, n, sms=132, unmapped="AB") for n in range(50, 1200, 50)]
    first = kinds.index("AB")
    assert set(kinds[first:]) == {"AB"} and 150 <= 50 * (first + 1) <= 600, kinds
