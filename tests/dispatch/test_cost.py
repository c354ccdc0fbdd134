"""The cost model by hand: what its constants mean, with numbers small enough to add up."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from harness.dispatch import choose
from harness.dispatch.call import batch
from harness.dispatch.model import cost
from harness.dispatch.model.traffic import DRAM_BYTES, Pitches
from harness.kernels import catalog
from harness.kernels.epilogue import PLAIN
from harness.launch import kernel as launches
from harness.problems.registry import resolve


@pytest.fixture(autouse=True)
def no_limit_of_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constants of these tests are too small for what the L2 cache delivers."""
    monkeypatch.setattr(cost, "_L2_BYTES", math.inf)


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
    turned = pair.variant.kernel.variant(**{**pair.variant.params, "ACROSS": 1})
    across = replace(pair, variant=turned)
    assert across.turns(1, 128 * 16, 1024, 132) == (2, 1, True)  # 8 pairs: of neighbours along N


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
        "41_turned_tiles",
        "42_single_floats",
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


@pytest.mark.parametrize("sms", [1, 20, 78, 114, 132])
def test_the_model_shares_tiles_among_clusters_as_the_grid_does(sms: int) -> None:
    """25_wgmma_tf32 with SHARE=1, with room for no cluster, too; TT has its tile from the other side."""
    sharing = [c for c in choose.candidates() if c.shares == "clusters"]
    assert {(c.variant.kernel.name, c.variant.params["SHARE"]) for c in sharing} == {("25_wgmma_tf32", 1)}
    turned = [
        replace(c, variant=replace(c.variant, params={**c.variant.params, "TRANSA": 1, "TRANSB": 1}))
        for c in sharing
    ]
    shared = 0
    for c in (*sharing, *turned):
        for m, n, k in [(1, 1, 1), (64, 32, 20544), (416, 224, 12672), (253, 355, 1847), (3000, 3000, 9000)]:
            layout = {"transa": c.variant.params["TRANSA"], "transb": c.variant.params["TRANSB"]}
            problem = resolve(c.variant.kernel).from_axes({"M": m, "N": n, "K": k, **layout})
            blocks, _, _ = launches.grid(c.variant, problem, sms=sms)
            assert blocks == c.split * c.count(m, n) * c.parts(m, n, k, sms)
            shared += c.turns(m, n, k, sms)[2]
    assert (shared > 0) == (sms > 1)


def test_clusters_that_share_nothing_are_no_candidates() -> None:
    """Neither of a product nor of each of a batch, whose launches count as many times."""
    tf32 = [c for c in choose.candidates() if c.dtype.name == "tf32"]
    shape = 3264, 520, 27312, 132
    ranked = cost.ranked(tf32, shape, layout="NN", pitches=Pitches())
    assert any(c.shares == "clusters" for c in tf32)
    assert not any(c.shares == "clusters" for c, _ in ranked)
    able = choose.able(*shape, "sm_90a", "tf32", "NN", PLAIN, "", DRAM_BYTES)
    alone = cost.ranked(able, shape, layout="NN", pitches=Pitches())[0][1]
    found = batch.fastest(3, *shape[:3], sms=132, arch="sm_90a", dtype="tf32")
    assert found.cycles <= 3 * alone
    assert found.cycles == 3 * alone or found.variant is not None


def test_the_model_by_hand() -> None:
    """13_cp_async: two blocks at once, 16 steps of 16 along k."""
    one = candidate("13_cp_async", {}, step=10, alone=15, tile=100, straddle=2)
    assert one.busy(128, 128, 250, 132) == 16 * 15 + 100  # K to whole steps; one is slower than half of two
    assert one.busy(128, 128 * 132, 256, 132) == 16 * 15 + 100
    assert one.busy(128, 128 * 133, 256, 132) == 2 * (16 * 10 + 100)
    assert one.busy(128, 128 * 264, 256, 132) == 2 * (16 * 10 + 100)
    assert one.busy(129, 128 * 133, 256, 132) == 4 * (16 * 10 + 100)  # a second round
    assert one.busy(1, 1, 250, 132) == one.busy(128, 128, 256, 132)
    assert one.busy(128, 128, 250, 132, straddled="AB") == 2 * 16 * 15 + 100


def test_the_end_of_a_tile_passes_under_the_next_one_by_hand() -> None:
    """PINGPONG: four steps of 100 cycles a tile, 132 tiles at once."""
    given = {"step": 100, "tile": 300}
    one = candidate("23_wgmma_pipeline", {"BM": 128, "BN": 128, "CLUSTER": 1, "PINGPONG": 1}, **given)
    assert [one.busy(128, 128 * 132 * tiles, 256, 132) for tiles in (1, 2, 3)] == [700, 1100, 1500]
    apart = candidate("23_wgmma_pipeline", {"BM": 128, "BN": 128, "CLUSTER": 1, "PINGPONG": 0}, **given)
    assert [apart.busy(128, 128 * 132 * tiles, 256, 132) for tiles in (1, 2, 3)] == [700, 1400, 2100]
    # One step a tile: a warpgroup's end takes longer than the other one's steps, and then that one waits.
    of_one_step = [one.busy(128, 128 * 132 * tiles, 64, 132) for tiles in (1, 2, 3, 4, 5)]
    assert of_one_step == [400, 500, 800, 900, 1200]


def test_the_l2_cache_limits_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 168 x 64 ask for 30 KB a step, more than 400 cycles deliver; two blocks of a cluster share."""
    small = candidate("23_wgmma_pipeline", {"BM": 168, "BN": 64, "CLUSTER": 1}, step=404, tile=100)
    # 100 tiles down read B, 4 read A.
    assert small.l2_bytes(16800, 256, 640) == (16800 * 4 + 256 * 100) * 640 * 2
    pair = candidate("23_wgmma_pipeline", {"BM": 168, "BN": 128, "CLUSTER": 1})
    below = replace(pair, variant=pair.variant.kernel.variant(**{**pair.variant.params, "CLUSTER": 2}))
    assert pair.l2_bytes(16800, 256, 640) == (16800 * 2 + 256 * 100) * 640 * 2
    assert below.l2_bytes(16800, 256, 640) == (16800 * 2 + 256 * 50) * 640 * 2
    assert replace(small, batch=3).l2_bytes(16800, 256, 640) == 3 * small.l2_bytes(16800, 256, 640)
    steps, tiles = 4 * 10, 4  # of the busiest SM
    assert small.busy(16800, 256, 640, 132) == steps * 404 + tiles * 100
    monkeypatch.setattr(cost, "_L2_BYTES", 40)
    bound = small.l2_bytes(16800, 256, 640) / (132 * 40)
    assert bound > steps * 404 and small.busy(16800, 256, 640, 132) == bound + tiles * 100
    without = candidate("42_single_floats", {"BM": 32, "BN": 128}, step=1)  # tensor maps
    taken = without.busy(16800, 256, 640, 132)
    monkeypatch.setattr(cost, "_L2_BYTES", 60)
    assert taken == without.busy(16800, 256, 640, 132) < 400 * 640
    assert small.busy(16800, 256, 640, 132) == steps * 404 + tiles * 100


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


def test_other_dram_by_hand() -> None:
    """Count what is slower than an H200's DRAM in full, and what is faster as much as there."""
    shape, size = (1280, 1280, 16, 132), 4 * (1280 * 16 + 16 * 1280 + 1280 * 1280)
    waiting = size / (132 * 15.5)
    one = candidate("13_cp_async", {}, start=5000, step=0, memory=0.5)
    slow, fast = replace(one, dram=15.5 / 3), replace(one, dram=31)
    assert one.cycles(*shape) == pytest.approx(5000 + waiting / 2)
    assert slow.cycles(*shape) == pytest.approx(5000 + waiting / 2 + 2 * waiting)
    assert fast.cycles(*shape) == pytest.approx(5000 + waiting / 4)
    twice = replace(slow, memory=2)
    assert twice.cycles(*shape) == pytest.approx(5000 + 6 * waiting)
    copied = slow.cycles(*shape, "NT") - slow.cycles(*shape)
    assert copied == pytest.approx(4000 + 3 * 2 * 4 * 16 * 1280 / (132 * 13.4))


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
    neither, only_b = Pitches(unmapped="AB"), Pitches(unmapped="A")
    assert slow.cycles(128, 192, 64, 132, pitches=only_b) == slow.busy(128, 192, 64, 132, fed="A")
    large = 4096, 4096, 4096, 132
    copies = slow.cycles(*large, pitches=neither) - slow.cycles(*large)
    assert copies == pytest.approx(2 * (2000 + 2 * 2 * 4096 * 4096 / (132 * 14.5)))  # in place of that


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


def test_clusters_need_room_by_hand() -> None:
    """Clusters of five blocks: 22 fit on 132 SMs of an H200."""
    one = candidate("26_wgmma_split", {"SPLIT": 5, "BM": 64, "BN": 64})
    assert one.turns(64, 64 * 22, 640, 132) == (2, 1, False)
    assert one.turns(64, 64 * 23, 640, 132) == (4, 2, False)
    assert one.turns(64, 64 * 20, 640, 100) == (2, 1, False)  # of another GPU that is not known


def test_steps_of_the_types() -> None:
    """Tensor cores take 128 bytes of k at a step, other kernels BK elements."""
    depths = {
        (c.dtype.name, c.depth)
        for c in choose.candidates()
        if "wgmma" in c.variant.kernel.name and "BK" not in c.variant.params
    }
    assert depths == {("bf16", 64), ("fp16", 64), ("tf32", 32)}


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


@pytest.mark.parametrize(
    ("name", "parameters", "depth"),
    [("42_single_floats", {}, 8), ("41_turned_tiles", {"BK": 16}, 16), ("33_small_tiles", {}, 32)],
)
def test_the_k_of_a_stage_are_those_that_the_kernel_copies(
    name: str, parameters: dict[str, int], depth: int
) -> None:
    """Rung 42 was taken for one with stages of 32 k, as long as its 8 were no parameter."""
    assert cost.depth(catalog.kernel(name).variant(**parameters)) == depth


def test_what_straddles_counts_by_its_bytes_by_hand() -> None:
    """23 in clusters of two, one above the other: a step takes `straddle` times as long for A and B."""
    one = candidate(
        "23_wgmma_pipeline", {"BM": 128, "BN": 128, "CLUSTER": 2, "ALONG_N": 0}, step=1000, straddle=2
    )
    shape = 1024, 512, 64 * 10  # four clusters of 256 rows, four tiles side by side
    assert one.share(1024, 512, "A") == pytest.approx(1024 * 4 / (1024 * 4 + 512 * 4))
    plain = one.busy(*shape, 132)
    assert plain == 10 * 1000
    assert one.busy(*shape, 132, straddled="AB") == pytest.approx(2 * plain)
    assert one.busy(*shape, 132, straddled="A") == pytest.approx(plain * (1 + 2 / 3))
    assert one.busy(*shape, 132, straddled="B") == pytest.approx(plain * (1 + 1 / 3))
