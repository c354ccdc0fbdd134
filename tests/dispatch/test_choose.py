"""Which kernel for which product: the table, the model, and what both promise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.dispatch import choose, cost, traffic, user_table
from harness.errors import UsageError
from harness.kernels import catalog, spec
from harness.launch import kernel as launches
from harness.problems.gemm import GEMMS
from harness.problems.registry import resolve
from shared import tma_gemm

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a")
SIZES = (1, 2, 3, 15, 16, 17, 100, 511, 512, 513, 2048, 5000)


def label(*shape: int, sms: int = 132, arch: str = "sm_90a", gpu: str = "", dtype: str = "fp32") -> str:
    return harness.choose(*shape, sms=sms, arch=arch, gpu=gpu, dtype=dtype).label


@pytest.mark.slow
def test_every_shape_gets_a_kernel_that_can_run_there() -> None:
    seen = set()
    for arch in ARCHS:
        for shape in [(m, n, k) for m in SIZES for n in SIZES for k in (1, 16, 1000)]:
            variant = harness.choose(*shape, sms=80, arch=arch)
            assert variant.kernel.fits(arch) and not variant.kernel.broken
            seen.add(variant.kernel.name)
    seen |= {label(n, n, n).split()[0] for n in (2048, 8192)}
    assert {
        "20_stream_k",
        "33_small_tiles",
        "15_split_k",
        "14_warp_tiles",
        "17_skinny_rows",
        "18_skinny_columns",
    } <= seen


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "tf32", "3xtf32", "fp16x3", "bf16x6"])
def test_a_gpu_of_few_multiprocessors(dtype: str) -> None:
    """Fewer than the blocks of a cluster, as in small boards and slices of a card."""
    for sms in (1, 2, 3, 5, 7):
        for n in (1, 64, 5000):
            assert label(n, n, n, sms=sms, dtype=dtype)


@pytest.mark.parametrize("product", [(0, 5, 5), (5, 0, 5), (5, -1, 5), (5, 5, -1)])
def test_what_is_no_product(product: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match=r"no kernel computes a product of M=.* on 132 multiprocessors"):
        label(*product)
    with pytest.raises(UsageError, match="on 0 multiprocessors"):
        label(5, 5, 5, sms=0)
    assert label(5, 5, 0)  # beta * C


def test_what_is_known_of_the_h200() -> None:
    """Each of these choices is one that gemm.md or the ladder's measurements give."""
    assert label(8192, 8192, 8192).split(" ", 1)[1].startswith("BM=128 BN=256")
    assert label(512, 512, 16384).startswith("20_stream_k BM=128")
    assert label(128, 1024, 8192).startswith("20_stream_k")
    assert label(64, 4096, 4096).startswith("20_stream_k BM=64")
    assert label(2048, 2048, 2048).startswith(("16_pipeline BM=128 BN=256", "20_stream_k BM=128 BN=256"))
    assert label(1024, 1024, 1024).startswith("19_pipeline_split")
    assert label(512, 512, 512).startswith("15_split_k")
    assert label(1, 4096, 4096).startswith("17_skinny_rows")
    assert label(16, 8192, 8192).startswith(("17_skinny_rows", "33_small_tiles"))
    assert label(8192, 1, 8192).startswith("40_skinny_dots")
    assert label(8192, 1, 8192, arch="sm_80").startswith("18_skinny_columns")
    assert not label(17, 8192, 8192).startswith("17_skinny_rows")
    assert label(4096, 4096, 4096, arch="sm_80").startswith("14_warp_tiles")
    assert label(4096, 4096, 4096, arch="sm_75").startswith("11_conflict_free")


# Measured on an H200, cold, in microseconds. The model was fitted to other shapes, back to back in graphs.
MEASURED: dict[str, dict[int, float]] = {
    "14_warp_tiles": {512: 91.8, 1024: 179.5, 2048: 348.4, 4096: 2720},
    "13_cp_async": {512: 55.6, 1024: 107.9, 2048: 381.6, 4096: 2940},
    "12_prefetch": {512: 38.9, 1024: 72.2, 2048: 624.8, 4096: 3610},
    "11_conflict_free": {512: 71.4, 1024: 139.0, 2048: 393.8, 4096: 3060},
    "16_pipeline": {512: 90.1, 2048: 342.4},
}


@pytest.mark.parametrize("name", MEASURED)
def test_the_model_tells_measured_times(name: str) -> None:
    """Within 12%, over two orders of magnitude: waves and partly filled rounds are what makes them."""
    for n, microseconds in MEASURED[name].items():
        (cycles,) = [
            cycles
            for variant, cycles in choose.ranked(n, n, n, sms=132, arch="sm_90a")
            if variant.kernel.name == name
        ]
        assert cycles / 1980 == pytest.approx(microseconds, rel=0.12), n


# The same for the kernels that share tiles out along k: shape, parameters, microseconds.
SHARED: list[tuple[tuple[int, int, int], str, dict[str, int], float]] = [
    ((512, 512, 16384), "20_stream_k", {"BM": 128, "BN": 256}, 179.9),
    ((128, 1024, 8192), "20_stream_k", {"BM": 128, "BN": 256}, 59.7),
    ((1024, 3072, 768), "20_stream_k", {"BM": 128, "BN": 256}, 120),
    ((8192, 8192, 8192), "20_stream_k", {"BM": 128, "BN": 256}, 20032),
    ((2048, 2048, 2048), "20_stream_k", {"BM": 128, "BN": 256}, 345),
    ((1024, 1024, 1024), "20_stream_k", {"BM": 128, "BN": 256}, 64.5),
    ((64, 4096, 4096), "20_stream_k", {"BM": 64, "BK": 16}, 69),
    ((1024, 1024, 1024), "19_pipeline_split", {"BM": 128, "BN": 128, "SPLIT": 2}, 54.0),
    ((1024, 1024, 1024), "19_pipeline_split", {"BM": 64, "SPLIT": 2}, 54.0),
    ((1024, 3072, 768), "19_pipeline_split", {"BM": 64, "SPLIT": 2}, 120.3),
    ((8192, 256, 1024), "19_pipeline_split", {"BM": 64, "SPLIT": 1}, 98.4),
    ((2049, 2047, 2049), "19_pipeline_split", {"BM": 64, "SPLIT": 1}, 391.7),
]


@pytest.mark.parametrize(("shape", "name", "params", "microseconds"), SHARED)
def test_the_model_tells_times_of_shared_tiles(
    shape: tuple[int, int, int], name: str, params: dict[str, int], microseconds: float
) -> None:
    (cycles,) = [
        cycles
        for variant, cycles in choose.ranked(*shape, sms=132, arch="sm_90a")
        if variant.kernel.name == name and params.items() <= variant.params.items()
    ]
    assert cycles / 1980 == pytest.approx(microseconds, rel=0.17)


def candidate(kernel: str, params: dict[str, int], **constants: Any) -> cost.Candidate:
    """The shipped candidate with other constants; those that are not given count for nothing."""
    one = next(
        c
        for c in choose.candidates()
        if c.variant.kernel.name == kernel and params.items() <= c.variant.params.items()
    )
    nothing: dict[str, Any] = dict.fromkeys(
        ("start", "step", "tile", "memory", "alone", "ragged", "sharing"), 0
    )
    return replace(one, **{**nothing, "straddle": 1, "crowded": 1, "thin": 1, **constants})


def test_shared_tiles_by_hand() -> None:
    """20_stream_k on 132 SMs: 32 steps of 32 along k, each block at least LEAST=4 of them."""
    one = candidate("20_stream_k", {"BM": 128, "BN": 256, "BK": 32}, step=10, tile=100, sharing=1000)
    assert one.turns(128, 256 * 132, 1024, 132) == (32, 1, False)  # none is shared
    assert one.turns(128, 256 * 66, 1024, 132) == (16, 1, True)  # two blocks a tile
    assert one.turns(128, 256 * 198, 1024, 132) == (48, 2, True)
    assert one.turns(128, 256, 1024, 132) == (4, 1, True)
    assert one.busy(128, 256 * 132, 1024, 132) == 32 * 10 + 100
    assert one.busy(128, 256 * 198, 1024, 132) == 48 * 10 + 2 * 100 + 1000


def test_tiles_shared_by_the_grid_by_hand() -> None:
    """29_wgmma_grid_split: 16 steps of 64 along k, as many blocks a tile as there are SMs for it."""
    one = candidate("29_wgmma_grid_split", {"BM": 64, "BN": 64, "CLUSTER": 1})
    assert one.turns(64, 64 * 16, 1024, 132) == (2, 1, True)  # eight blocks a tile
    assert one.turns(64, 64, 1024, 132) == (1, 1, True)  # no more than steps
    assert one.turns(64, 64 * 133, 1024, 132) == (32, 2, False)
    pair = candidate("29_wgmma_grid_split", {"BM": 128, "BN": 128, "CLUSTER": 2})
    assert pair.turns(1, 128 * 16, 1024, 132) == (4, 1, True)  # 16 pairs of tiles, 66 pairs of SMs


def test_tiles_shared_by_as_many_as_fill_the_gpu_by_hand() -> None:
    """33_small_tiles with four blocks for each of 132 SMs: a part is 128 of k at least, and steps are 32."""
    constants = {"resident": 4, "step": 10, "alone": 15, "tile": 100, "sharing": 1000}
    one = candidate("33_small_tiles", {"BM": 64, "BN": 64, "BLOCKS": 4}, **constants)
    assert one.turns(64, 64, 127, 132) == one.turns(1, 1, 128, 132) == (4, 1, False)
    assert one.turns(64, 64, 255, 132) == (8, 1, False)  # two would have fewer than 128
    assert one.turns(64, 64, 256, 132) == (4, 1, True)
    assert one.turns(64, 64, 1024, 132) == (4, 1, True)  # eight blocks
    assert one.turns(64, 64, 65536, 132) == (256, 1, True)  # eight, not 512
    assert one.turns(64, 64 * 100, 4096, 132) == (4 * 26, 4, True)  # five a tile: 500 blocks of at most 528
    assert one.turns(64, 64 * 265, 4096, 132) == (3 * 128, 3, False)  # two a tile would be 530
    assert one.turns(65, 64 * 264, 4096, 132) == (4 * 128, 4, False)
    assert one.turns(64, 64 * 529, 4096, 132) == (8 * 128, 8, False)  # a second round
    assert one.turns(64, 64 * 7, 4096, 2) == (4 * 128, 4, False)  # of a small GPU
    assert one.turns(64, 64 * 2, 4096, 2) == (4 * 32, 4, True)
    assert one.busy(64, 64, 1024, 132) == 4 * 15 + 100 + 1000
    assert one.busy(64, 64 * 100, 4096, 132) == 4 * 26 * 10 + 4 * 100 + 1000
    assert one.busy(64, 64 * 529, 64, 132) == 8 * 2 * 10 + 8 * 100
    clusters = replace(one, variant=one.variant.kernel.variant(BLOCKS=4, SPLIT=8))
    assert clusters.turns(64, 64, 2047, 132) == (8, 1, False)  # a cluster of eight blocks
    assert clusters.turns(64, 64, 16384, 132) == (8, 1, True)  # eight clusters of eight: 64 blocks
    assert clusters.turns(64, 64 * 20, 16384, 132) == (4 * 22, 4, True)  # three a tile: 480 of at most 528


@pytest.mark.parametrize("sms", [1, 20, 132])
def test_the_model_shares_tiles_as_the_grid_does(sms: int) -> None:
    filling = [c for c in choose.candidates() if c.shares == "fill"]
    assert {c.variant.kernel.name for c in filling} == {
        "33_small_tiles",
        "34_small_tiles_tf32",
        "37_small_tiles_16_bits",
        "37_small_tiles_16_bits_fp16",
        "39_bf16x6_tiles",
    }
    for c in filling:
        for m, n, k in [(1, 1, 1), (20, 3000, 300), (200, 200, 5000), (64, 64, 100_000), (3000, 3000, 700)]:
            problem = resolve(c.variant.kernel).from_axes({"M": m, "N": n, "K": k})
            _, parts, _ = launches.grid(c.variant, problem, sms=sms)
            steps, tiles, shared = c.turns(m, n, k, sms)
            assert shared == (parts > c.split)
            assert steps == tiles * math.ceil(
                math.ceil(math.ceil(k / c.split) / c.depth) / (parts // c.split)
            )


def test_the_model_by_hand() -> None:
    """13_cp_async: two blocks at once, 16 steps of 16 along k."""
    one = candidate("13_cp_async", {}, step=10, alone=15, tile=100, straddle=2)
    assert one.busy(128, 128, 250, 132) == 16 * 15 + 100  # K to whole steps; one is slower than half of two
    assert one.busy(128, 128 * 132, 256, 132) == 16 * 15 + 100
    assert one.busy(128, 128 * 133, 256, 132) == 2 * (16 * 10 + 100)
    assert one.busy(128, 128 * 264, 256, 132) == 2 * (16 * 10 + 100)
    assert one.busy(129, 128 * 133, 256, 132) == 4 * (16 * 10 + 100)  # a second round
    assert one.busy(1, 1, 250, 132) == one.busy(128, 128, 256, 132)
    assert one.busy(128, 128, 250, 132, straddled=True) == 2 * 16 * 15 + 100


def test_a_start_and_dram_by_hand() -> None:
    """Each matrix is read or written once, at 15.5 bytes a cycle and SM; copies come before."""
    one = candidate("13_cp_async", {}, start=5000, step=100, memory=2)
    size = 4 * (128 * 256 + 256 * 128 + 128 * 128)
    waiting = 2 * size / (132 * 15.5)
    assert one.cycles(128, 128, 256, 132) == pytest.approx(5000 + math.hypot(16 * 100, waiting))
    assert replace(one, memory=0).cycles(128, 128, 256, 132) == 5000 + 16 * 100
    size = 4 * (1280 * 16 + 16 * 1280 + 1280 * 1280)
    waiting = 2 * size / (132 * 15.5)
    assert replace(one, step=0).cycles(1280, 1280, 16, 132) == pytest.approx(5000 + waiting)
    copied = one.cycles(128, 128, 256, 132, "NT") - one.cycles(128, 128, 256, 132)
    assert copied == pytest.approx(4000 + 2 * 4 * 256 * 128 / (132 * 13.4))


def test_rows_that_threads_copy_by_hand() -> None:
    """23_wgmma_pipeline: ten steps of 64 along k; as many rows of a tile as there are, and 96 more."""
    params = {"BM": 128, "BN": 192, "CLUSTER": 1}
    one = candidate("23_wgmma_pipeline", params, step=500, tile=100, ragged=1000, fed=1)
    assert one.busy(128, 192, 640, 132) == 10 * 500 + 100
    assert one.busy(128, 192, 640, 132, fed="A") == 10 * 500 + 100  # while others multiply
    assert one.busy(128, 192, 640, 132, fed="AB") == 10 * 500 + 100
    slow = replace(one, fed=20)
    assert slow.busy(128, 192, 640, 132, fed="A") == 10 * 20 * (128 + 96) + 100
    assert slow.busy(128, 192, 640, 132, fed="B") == 10 * 20 * (192 + 96) + 100
    assert slow.busy(50, 56, 640, 132, fed="AB") == 10 * 20 * (50 + 56 + 96) + 100
    assert slow.cycles(128, 192, 64, 132, unmapped="A") == slow.busy(128, 192, 64, 132, fed="A")
    copies = slow.cycles(4096, 4096, 4096, 132, unmapped="AB") - slow.cycles(4096, 4096, 4096, 132)
    assert copies == pytest.approx(2 * (4000 + 2 * 2 * 4096 * 4096 / (132 * 6.5)))  # in place of that


@pytest.mark.parametrize("kernel", ["23_wgmma_pipeline", "39_bf16x6_tiles", "13_cp_async"])
def test_rows_of_c_that_begin_anywhere_by_hand(kernel: str) -> None:
    """Each tile takes `ragged` longer, whether or not the kernel stores by TMA."""
    one = candidate(kernel, {}, step=10, tile=100, ragged=1000)
    units = 16 // one.dtype.itemsize
    assert one.busy(16, 2 * units, 64, 132) + 1000 == one.busy(16, 2 * units - 1, 64, 132)


def test_clusters_one_above_the_other_and_side_by_side() -> None:
    above = candidate("23_wgmma_pipeline", {"BM": 128, "BN": 256, "CLUSTER": 2, "ALONG_N": 0})
    beside = candidate("23_wgmma_pipeline", {"BM": 128, "BN": 256, "CLUSTER": 2, "ALONG_N": 1})
    assert above.count(129, 257) == beside.count(129, 257) == 4
    assert above.count(1, 256 * 3) == 6 and beside.count(1, 256 * 3) == 4  # a tile of a pair is empty
    assert above.count(128 * 3, 1) == 4 and beside.count(128 * 3, 1) == 6
    assert replace(beside, batch=5).count(129, 257) == 20


def test_the_grids_kernel_is_for_tiles_that_are_shared() -> None:
    def names(*shape: int) -> set[str]:
        return {v.kernel.name for v, _ in choose.ranked(*shape, sms=132, arch="sm_90a", dtype="bf16")}

    assert "29_wgmma_grid_split" in names(512, 512, 16384)
    assert "29_wgmma_grid_split" not in names(4096, 4096, 4096)
    assert "29_wgmma_grid_split" not in names(512, 512, 64)  # one step of k


def test_clusters_need_room_by_hand() -> None:
    """Clusters of five blocks: 22 fit on 132 SMs of an H200."""
    one = candidate("26_wgmma_split", {"SPLIT": 5, "BM": 64, "BN": 64})
    assert one.turns(64, 64 * 22, 640, 132) == (2, 1, False)
    assert one.turns(64, 64 * 23, 640, 132) == (4, 2, False)
    assert one.turns(64, 64 * 20, 640, 100) == (2, 1, False)  # of another GPU that is not known


@pytest.mark.slow
def test_the_choice_is_a_function_of_the_shape() -> None:
    """Deterministic, also from a cold start; and ties go by what is busy least, then by the table's order."""
    shapes = [(m, n, k) for m in SIZES for n in SIZES for k in SIZES]
    first = [label(*s) for s in shapes]
    choose._choose.cache_clear()
    assert [label(*s) for s in reversed(shapes)] == first[::-1]
    cycles = [c for _, c in choose.ranked(777, 888, 999, sms=132, arch="sm_90a")]
    assert cycles == sorted(cycles) and len(cycles) > 5


def test_grids_stay_within_their_limits() -> None:
    rows = 65535 * 128 + 1
    persistent, flat = ("16_pipeline", "20_stream_k"), ("33_small_tiles",)  # no block a tile; all along x
    assert label(rows, 8, 8).startswith((*persistent, *flat))
    with pytest.raises(UsageError, match=f"no kernel for {rows}x8x8 in fp32 on sm_80"):
        label(rows, 8, 8, arch="sm_80")
    assert label(rows - 1, 32, 8, arch="sm_80")


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "gpu": "NVIDIA H200", "sms": 132, "M": [500, 600], "N": [500, 600], "K": [100, 700],
        "kernel": "03_tiled", "params": {"TILE": 32}, **changes,
    }  # fmt: skip


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    entries: list[dict[str, Any]] = []
    table = {**choose.table(), "tuned": entries}
    monkeypatch.setattr(choose, "table", lambda: table)
    choose._choose.cache_clear()
    yield entries
    choose._choose.cache_clear()


def test_what_was_measured_comes_before_the_model(tuned: list[dict[str, Any]]) -> None:
    tuned += [entry(), entry(params={"TILE": 8}), entry(M=[1, 2**31], kernel="02_coalesced", params={})]
    assert label(512, 512, 512, gpu="NVIDIA H200") == "03_tiled TILE=32"  # the first range that holds it
    assert label(600, 500, 700, gpu="NVIDIA H200") == "03_tiled TILE=32"
    assert label(601, 500, 700, gpu="NVIDIA H200").startswith("02_coalesced")
    for shape, more in [
        ((512, 512, 701), {"gpu": "NVIDIA H200"}),
        ((512, 512, 512), {"gpu": "NVIDIA H100"}),
        ((512, 512, 512), {"gpu": "NVIDIA H200", "sms": 16}),  # a slice of one
        ((512, 512, 512), {}),
    ]:
        assert label(*shape, **more).split("_")[0] not in ("03", "02")


def test_a_measured_kernel_for_another_architecture_is_passed_over(tuned: list[dict[str, Any]]) -> None:
    tuned.append(entry(kernel="16_pipeline", params={}))
    assert label(512, 512, 512, gpu="NVIDIA H200") == "16_pipeline BM=128 BN=256 BK=32 WM=64 WN=64 " + (
        "STAGES=4 CHUNK=8 GROUP=8"
    )
    assert label(512, 512, 512, gpu="NVIDIA H200", arch="sm_80").startswith("12_prefetch")


def test_the_range_of_a_measurement() -> None:
    """A range has as many tiles each way, and is as wide as they are or a factor of two."""
    assert choose.ranges(512, 513, 1000, (64, 128)) == {"M": [449, 512], "N": [513, 640], "K": [708, 1414]}
    assert choose.ranges(1, 1, 1, (64, 64)) == {"M": [1, 2], "N": [1, 2], "K": [1, 1]}
    assert choose.ranges(64, 4096, 4096, (64, 256))["M"] == [32, 64]  # not for a single row
    for size in range(1, 300):
        low, high = choose.ranges(size, 1, 1, (48, 1))["M"]
        assert low <= size <= high and math.ceil(low / 48) == math.ceil(high / 48)
        tiles = math.ceil(size / 48)
        assert low in (48 * (tiles - 1) + 1, math.ceil(size / 2)) and high in (48 * tiles, 2 * size)
        assert size < 48 or (low, high) == (48 * (tiles - 1) + 1, 48 * tiles) or tiles < 3


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32"])
def test_every_shape_of_each_type_gets_a_kernel_of_that_type(dtype: str) -> None:
    seen = set()
    for m in SIZES:
        for shape in [(m, n, k) for n in SIZES for k in (1, 16, 1000, 20000)]:
            variant = harness.choose(*shape, sms=132, arch="sm_90a", dtype=dtype)
            thin = dtype == "tf32" and min(shape[:2]) <= 16 and "skinny" in variant.kernel.name
            assert (variant.kernel.dtype == dtype or thin) and not variant.kernel.broken
            seen.add(variant.label)
    assert len(seen) >= 4  # not one for all
    assert " BM=128 " in label(8192, 8192, 8192, dtype=dtype) or dtype == "tf32"
    with pytest.raises(UsageError, match=f"in {dtype} on sm_75"):
        label(64, 64, 64, arch="sm_75", dtype=dtype)


def test_bf16_is_served_wherever_there_are_tensor_cores_for_it() -> None:
    """By mma.sync where there is no wgmma; on Hopper it is never expected to be the faster one."""
    for shape in [(m, n, 1000) for m in (17, 512, 5000) for n in (64, 2048)]:
        for arch in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100a", "sm_120a"):
            assert label(*shape, sms=80, arch=arch, dtype="bf16").startswith("21_mma_sync")
        assert not label(*shape, dtype="bf16").startswith("21_mma_sync")
    with pytest.raises(UsageError, match="in bf16 on sm_75") as refused:
        label(64, 64, 64, arch="sm_75", dtype="bf16")
    assert "sm_80 and newer" in refused.value.hint
    with pytest.raises(UsageError, match="in fp16 on sm_80"):
        label(64, 64, 64, arch="sm_80", dtype="fp16")


def test_types_have_entries_of_their_own(tuned: list[dict[str, Any]]) -> None:
    tuned += [entry(dtype="bf16", kernel="23_wgmma_pipeline", params={"BN": 128, "STAGES": 4}), entry()]
    assert label(512, 512, 512, gpu="NVIDIA H200") == "03_tiled TILE=32"
    assert "BN=128 STAGES=4" in label(512, 512, 512, gpu="NVIDIA H200", dtype="bf16")
    assert label(512, 512, 512, gpu="NVIDIA H200", dtype="fp16").startswith("2")


def test_steps_of_the_types() -> None:
    """Tensor cores take 128 bytes of k at a step, other kernels BK elements."""
    depths = {
        (c.dtype.name, c.depth)
        for c in choose.candidates()
        if "wgmma" in c.variant.kernel.name and "BK" not in c.variant.params
    }
    assert depths == {("bf16", 64), ("fp16", 64), ("tf32", 32)}


def copied(dtype: str, *shape: int, unmapped: str = "AB") -> str:
    variant = harness.choose(*shape, sms=132, arch="sm_90a", dtype=dtype)
    return traffic.copied(variant, *shape, sms=132, unmapped=unmapped)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32"])
def test_operands_without_a_map_are_copied_where_that_pays(dtype: str) -> None:
    assert copied(dtype, 2049, 2047, 2049) == "AB"  # 5 times as long where it is not: measured
    assert copied(dtype, 2049, 2047, 2049, unmapped="A") == "A"
    assert copied(dtype, 2049, 2047, 2049, unmapped="B") == "B"
    assert copied(dtype, 2049, 2047, 2049, unmapped="") == ""
    assert copied(dtype, 100, 100, 100) == ""  # over before a copy has begun
    assert copied(dtype, 8191, 8191, 9) == ""  # nothing to load: all of it is writing
    assert "B" not in copied(dtype, 1, 8191, 8191)  # each element of B is used once
    assert "A" in copied(dtype, 301, 16383, 4001)  # small, and read for each column of tiles


def test_a_kernel_whose_blocks_share_tiles_loads_less_each() -> None:
    """16 tiles on 132 SMs: eight blocks load a tile's operands, not one."""
    shape, where = (512, 512, 1024), {"sms": 132, "unmapped": "AB"}
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
    # for all traffic; 160,500 to copy A and 317,000 to copy B: on one SM copying is no gain.
    assert copied(256, "A") == copied(256, "B") == copied(256, "AB") == ""
    # On 132 of them, with a tile each, every copy serves many.
    assert traffic.copied(variant, 128 * 11, 256 * 12, 4096, sms=132, unmapped="AB") == "AB"


def test_a_copy_pays_from_some_size_on() -> None:
    """The rule has one threshold along the squares, where a launch takes about as long as two copies."""
    variant = catalog.kernel("23_wgmma_pipeline").variant(BM=64, BN=64, STAGES=8)
    kinds = [traffic.copied(variant, n, n, n, sms=132, unmapped="AB") for n in range(50, 1200, 50)]
    first = kinds.index("AB")
    assert set(kinds[first:]) == {"AB"} and 150 <= 50 * (first + 1) <= 600, kinds


def test_shares_of_one_line() -> None:
    """35_wgmma_stream_k: all blocks have as many steps, wherever tiles end."""
    one = next(c for c in choose.candidates() if c.shares == "even" and c.variant.tile == (128, 64))
    assert one.depth == 64
    assert one.turns(128 * 132, 64, 64 * 16, 132) == (16, 1, 0)  # a tile each
    assert one.turns(128 * 264, 64, 64 * 16, 132) == (32, 2, 0)
    assert one.turns(128 * 66, 64, 64 * 16, 132) == (8, 1, 1.5)  # two blocks a tile: 8 of 16, and one between
    assert one.turns(128 * 99, 64, 64 * 16, 132) == (12, 1, 1.5)
    assert one.turns(128, 64, 64 * 16, 132) == (4, 1, 2.5)  # at least four steps for a block
    assert one.turns(128, 64, 64 * 3, 132) == (3, 1, 0)


def test_steps_are_slower_on_many_sms() -> None:
    """Blocks share the L2 cache: with half of the SMs busy a step takes the root of what it does."""
    listed = next(c for c in choose.candidates() if "23_" in c.variant.label and c.variant.tile == (128, 128))
    one = replace(listed, start=0, step=100, tile=0, memory=0, crowded=4.0)
    assert one.busy(128 * 132, 128, 64 * 10, 132) == pytest.approx(4000)
    assert one.busy(128 * 66, 128, 64 * 10, 132) == pytest.approx(2000)
    assert replace(one, crowded=1.0).busy(128 * 132, 128, 64 * 10, 132) == pytest.approx(1000)


def test_steps_are_slower_where_a_tile_is_not_filled() -> None:
    """A step has 128 + 64 rows, of which 32 + 64 are half: these are not in the L2 cache."""
    one = candidate("23_wgmma_pipeline", {"BM": 128, "BN": 64, "CLUSTER": 1}, step=100, thin=4)
    assert one.busy(128, 64, 640, 132) == one.busy(256, 640, 640, 132) == 1000
    assert one.busy(32, 64, 640, 132) == pytest.approx(2000)
    assert one.busy(128 + 128, 32, 640, 132) == pytest.approx(1000 * 4 ** (1 / 6))
    assert replace(one, thin=1).busy(32, 64, 640, 132) == 1000


def test_a_step_of_few_rows_is_that_of_all_warps() -> None:
    """40_skinny_dots: of eight warps four divide k with ROWS=8, and a lane loads 16 bytes."""
    named = {"40_skinny_dots": {4: 1024, 8: 512, 16: 256}, "40_skinny_dots_bf16": {4: 2048, 8: 1024}}
    for kernel, depths in named.items():
        for rows, depth in depths.items():
            one = candidate(kernel, {"ROWS": rows, "FEW": 1, "FEW_ROWS": 1}, step=100)
            assert one.depth == depth and one.busy(1, rows, depth + 1, 132) == 2 * one.busy(1, rows, 64, 132)


def test_few_tiles_of_panels_are_shared_by_blocks_with_enough_of_k() -> None:
    """Stages have 32 k, or 64 with BM=64; a block that shares a tile has eight of them."""
    kinds = {c.variant.params["BM"]: c for c in choose.candidates() if c.variant.kernel.name[:2] == "32"}
    assert kinds[256].turns(512, 512, 16384, 132) == (32, 1, True)  # 8 tiles, 16 blocks each
    assert kinds[256].turns(512, 512, 512, 132) == (8, 1, True)  # 16 stages for two
    assert kinds[64].turns(512, 512, 512, 132) == (16, 1, False)  # 8 stages are not enough for two
    assert kinds[256].turns(4096, 4096, 4096, 132) == (4 * 128, 4, False)
    kinds = {c.variant.params["BM"]: c for c in choose.candidates() if c.variant.kernel.name[:2] == "38"}
    assert kinds[256].turns(512, 512, 512, 132) == (4, 1, True)  # 32 stages of 16 k for four
    assert kinds[64].turns(512, 512, 512, 132) == (8, 1, True)  # 16 of 32 k for two


@pytest.mark.parametrize("dtype", ["bf16x6", "fp16x3", "3xtf32"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
def test_thin_products_as_exact_as_fp32_are_in_fp32(dtype: str, layout: str) -> None:
    """Splitting a weight takes longer than multiplying it by a row, and tensor cores read it no faster."""
    about: dict[str, Any] = {"sms": 132, "arch": "sm_90a", "layout": layout}
    chosen = choose.choose(1, 4096, 4096, dtype=dtype, **about)
    assert chosen == choose.choose(1, 4096, 4096, dtype="fp32", **about)
    thin = choose.choose(1, 4096, 4096, dtype="tf32", **about)
    assert thin.kernel.dtype == "tf32" or (thin == chosen and "skinny" in thin.kernel.name)
    assert choose.choose(1, 4096, 4096, dtype="tf32", **{**about, "layout": "NT"}) == choose.choose(
        1, 4096, 4096, dtype="fp32", **{**about, "layout": "NT"}
    )
    assert choose.choose(40, 4096, 4096, dtype="tf32", **about).kernel.dtype == "tf32"
    entry = {"kernel": chosen.kernel.name, "params": dict(chosen.params)}
    assert user_table.serves(entry, dtype) and not user_table.serves(entry, "bf16")
    assert user_table.serves(entry, "tf32") == ("skinny" in chosen.kernel.name)
    assert choose.choose(1024, 4096, 130, dtype=dtype, **about).kernel.dtype in ("bf16x6", dtype)
    entry = {"kernel": "39_bf16x6_tiles", "params": {}}
    assert user_table.serves(entry, dtype) and not user_table.serves(entry, "fp32")
    assert choose.choose(4096, 4096, 4096, dtype=dtype, **about).kernel.dtype in ("bf16x6", dtype)
    (panels,) = [c for c in choose.candidates() if c.dtype.name == dtype and c.variant.tile == (256, 128)]
    other = replace(panels, variant=choose.laid_out(panels.variant, "TT", "A"))
    across = other.cycles(4096, 4096, 4096, 132, "TT") - panels.cycles(4096, 4096, 4096, 132, "NN")
    # What lies across takes three times as long; 38 transposes it.
    bytes_moved = 2 * 4096 * 4096 * {"bf16x6": 2 * 10, "fp16x3": 2 * 12, "3xtf32": 0}[dtype]
    assert across == pytest.approx(bytes_moved / (132 * traffic.DRAM_BYTES))


def test_the_shipped_table() -> None:
    """Every entry names a kernel and parameters that there are, and a range."""
    assert len(choose.candidates()) == len(choose.table()["candidates"])
    for c in choose.candidates():
        assert min(c.start, c.step) > 0 <= c.tile and min(c.memory, c.straddle) >= 0.5, c.variant.label
        assert c.resident >= 1 and c.variant.kernel.problem == "gemm"
        assert min(c.crowded, c.unmapped) > 0
        assert bool(c.sharing) == bool(c.shares) and c.shares in (
            "",
            "stream",
            "grid",
            "fill",
            "even",
            "panels",
        )
        assert c.variant.kernel.dtype == c.dtype.name
        listed = c.variant.kernel.params  # what is verified on every GPU that runs the tests
        assert all(value in listed[name] for name, value in c.variant.params.items()), c.variant.label
    for found in choose.table()["tuned"]:
        kernel = choose._variant(found).kernel
        assert (kernel.problem, kernel.dtype) == ("gemm", choose._dtype(found))
        assert all(found[axis][0] <= found[axis][1] for axis in "MNK")


def test_a_kernel_without_maps_is_chosen_where_no_map_can_be() -> None:
    """Rows that begin anywhere: TMA kernels load by threads there or copy first, and the model counts it."""
    shape, about = (10351, 51, 83), {"sms": 132, "arch": "sm_90a", "dtype": "tf32"}
    cycles = {v.label: c for v, c in choose.ranked(*shape, **about)}
    slower = {v.label: c for v, c in choose.ranked(*shape, **about, unmapped="AB")}
    with_maps = [v for v, _ in choose.ranked(*shape, **about) if v.boxes]
    assert with_maps and all(slower[v.label] > cycles[v.label] for v in with_maps)
    assert choose.choose(*shape, **about, unmapped="AB").kernel.name == "34_small_tiles_tf32"
    assert choose.ranked(4096, 4096, 4096, **about, unmapped="A")[0][0].kernel.name == "25_wgmma_tf32"
    about["dtype"] = "bf16"
    cycles = {v.label: c for v, c in choose.ranked(*shape, **about)}
    slower = {v.label: c for v, c in choose.ranked(*shape, **about, unmapped="AB")}
    assert cycles and all(slower[label] > cycles[label] for label in cycles if "mma_sync" not in label)


def test_which_operands_have_no_map() -> None:
    def names(lda: int, ldb: int, dtype: str = "tf32") -> str:
        return GEMMS[dtype](M=8, N=8, K=8, lda=lda, ldb=ldb).without_maps()

    assert [names(8, 8), names(9, 8), names(8, 11), names(13, 9)] == ["", "A", "B", "AB"]
    assert names(12, 12, "bf16") == "AB" and names(16, 8, "bf16") == ""
    assert choose.about(GEMMS["tf32"](M=8, N=8, K=8, lda=9))["unmapped"] == "A"


def test_clusters_of_a_turned_kernel_lie_along_the_other_side() -> None:
    """25_wgmma_tf32 computes TT from the other side: four blocks "along N" then have rows of C apart."""
    listed = next(
        c
        for c in choose.candidates()
        if "25_" in c.variant.label and (c.variant.params["CLUSTER"], c.variant.params["ALONG_N"]) == (4, 1)
    )
    flipped = replace(listed.variant, params={**listed.variant.params, "TRANSA": 1, "TRANSB": 1})
    rows, columns = listed.variant.tile
    assert listed.count(rows, 4 * columns) == 4 and listed.count(4 * rows, columns) == 16
    turned, (down, across) = replace(listed, variant=flipped), flipped.tile
    assert turned.count(4 * down, across) == 4 and turned.count(down, 4 * across) == 16
