"""How rung 20 shares tiles out: its own plan, from its file, run block by block in the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.emulator import Buffer, emulate
from harness.kernels import catalog
from shared.emulator_kernels import compile_ptx

BK, LEAST = 16, 4

KERNEL = """
%s
extern "C" __global__ void plan(int* out, int tiles, int K)
{
    Work work;
    work.plan(tiles, K);
    int* o = out + blockIdx.x * 12;
    o[0] = work.stages, o[1] = work.shared, o[2] = work.count;
    for (unsigned n = 0; n < 3; ++n) {
        Piece piece = {};
        const bool there = work.get(n, piece);
        o[3 + n * 3] = there ? (int)piece.tile : -1, o[4 + n * 3] = piece.begin, o[5 + n * 3] = piece.end;
    }
}
extern "C" __global__ void sharers(int* out, int tiles, int K)  // of the tile that is this block's number
{
    Work work;
    work.plan(tiles, K);
    const unsigned low = work.low(blockIdx.x);
    out[blockIdx.x * 3] = low, out[blockIdx.x * 3 + 1] = work.high(blockIdx.x);
    out[blockIdx.x * 3 + 2] = work.second_of(low, blockIdx.x);
}
"""


def source() -> str:
    text = catalog.kernel("20_stream_k").source
    plan = text[text.index("struct Piece {") : text.index('extern "C" __global__')]
    return f"#define BK {BK}\n#define LEAST {LEAST}\n{KERNEL % plan}"


def run(entry: str, width: int, text: str, blocks: int, tiles: int, K: int) -> np.ndarray:
    out = np.zeros((blocks, width), np.int32)
    buffer = Buffer(array=out, name="out")
    arguments = [buffer, np.int32(tiles), np.int32(K)]
    result = emulate(
        compile_ptx(text), entry, grid=(blocks, 1, 1), block=(1, 1, 1), shared=0, arguments=arguments
    )
    assert result.findings == ()
    return out


def check(text: str, blocks: int, tiles: int, K: int) -> None:
    """Every stage of every tile is somebody's, once; `low`, `high` and `second_of` name who shares a tile."""
    stages = (K - 1) // BK + 1
    times = np.zeros((tiles, stages), np.int64)
    holders: dict[int, list[tuple[int, int, int]]] = {}  # of a tile: begin, block, which of its pieces
    longest = 0
    for block, row in enumerate(run("plan", 12, text, blocks, tiles, K)):
        assert row[0] == stages and row[1] == tiles % blocks
        pieces = [tuple(map(int, row[3 + 3 * n : 6 + 3 * n])) for n in range(3) if row[3 + 3 * n] >= 0]
        shares = pieces[: row[2]]
        longest = max(longest, sum(end - begin for _, begin, end in shares))
        for n, (tile, begin, end) in enumerate(shares):
            assert tile < tiles % blocks and 0 <= begin < end <= stages
            times[tile, begin:end] += 1
            holders.setdefault(tile, []).append((begin, block, n))
        for tile in range(tiles % blocks + block, tiles, blocks):
            times[tile] += 1
            if len(pieces) < 3:
                assert (tile, 0, stages) in pieces
    assert (times == 1).all()
    shared = tiles % blocks
    if not shared:
        return
    sharers = max(shared, min(blocks, shared * stages // LEAST))
    assert longest <= -(-shared * stages // sharers) + 1
    named = run("sharers", 3, text, blocks, tiles, K)[:shared]
    for tile, (low, high, second) in enumerate(named):
        found = sorted(holders[tile])
        assert [block for _, block, _ in found] == list(range(low, high + 1))
        assert [n for _, _, n in found] == [int(second)] + [0] * (high - low)


@given(st.sampled_from([1, 2, 3, 7, 12, 132]), st.integers(1, 300), st.integers(1, 700))
@settings(max_examples=40, deadline=None)
def test_every_stage_is_somebodys_once(blocks: int, tiles: int, K: int) -> None:
    check(source(), blocks, min(tiles, 2 * blocks + 3), K)


@pytest.mark.parametrize(
    ("tiles", "K"), [(8, 8192), (16, 16384), (16, 4096), (45, 1025), (131, 17), (128, 2048)]
)
def test_the_shapes_that_were_measured(tiles: int, K: int) -> None:
    check(source(), 132, tiles, K)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("begin + each - span};", "begin + each - span + 1};"),
        ("min(stages, begin + each)}", "begin + each}"),
        ("each = (shared * stages + sharers - 1) / sharers", "each = shared * stages / sharers"),
        ("return block * each < tile * span;", "return false;"),
        ("(tile * span + stages - 1) / each", "(tile * span + stages) / each"),
    ],
)
def test_a_wrong_plan_is_seen(right: str, wrong: str) -> None:
    text = source()
    assert text.count(right) == 1
    with pytest.raises(AssertionError):
        for blocks, tiles, K in [(12, 5, 700), (12, 7, 300), (7, 4, 480), (12, 5, 17), (3, 2, 160)]:
            check(text.replace(right, wrong), blocks, tiles, K)
