"""TMA's im2col mode: columns of pixels against a plain walk, and mistakes that are told."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from harness.emulator import TensorMap, emulate
from harness.emulator.hopper.tma.tensormap import Map, decode
from harness.errors import EmulatorError, NeedsGpu, UsageError
from shared.hopper_kernels import kinds, run

COLUMN = """const __grid_constant__ Map in, float* out, int c, int w, int h, int n, int ow, int oh {
  __shared__ __align__(1024) float s[24 * 8]; __shared__ u64 full;
  const int t = threadIdx.x;
  if (t == 0) { init(&full, 1); fence_init(); }
  __syncthreads();
  if (t == 0) {
    expect(&full, sizeof s);
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.im2col [%0, {%1, %2, %3, %4}], {%5, %6};"
                 :: "l"(&in), "r"(c), "r"(w), "r"(h), "r"(n), "h"((short)ow), "h"((short)oh) : "memory");
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
                 :: "r"(at(s)), "l"(&in), "r"(at(&full)), "r"(c), "r"(w), "r"(h), "r"(n), "h"((short)ow),
                 "h"((short)oh) : "memory");
  }
  wait(&full, 0);
  for (int i = t; i < 24 * 8; i += blockDim.x) out[i] = s[i];
}"""
BACK = """const __grid_constant__ Map out, const float* x {
  __shared__ __align__(128) float s[24 * 8];
  for (int i = threadIdx.x; i < 24 * 8; i += blockDim.x) s[i] = x[i];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.im2col_no_offs.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];" :: "l"(&out), "r"(at(s)), "r"(0), "r"(-1), "r"(0), "r"(0)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    wait_read();
  }
}"""


def image(n: int = 3, h: int = 5, w: int = 6, c: int = 12) -> np.ndarray:
    return np.arange(1, n * h * w * c + 1, dtype=np.float32).reshape(n, h, w, c)


def map_of(array: np.ndarray, lower: tuple[int, ...], upper: tuple[int, ...], **parts: Any) -> TensorMap:
    given = {"box": (8, 24), "element": "FLOAT32"} | parts
    strides = tuple(int(s) for s in array.strides[-2::-1])
    return TensorMap(
        array=array, extents=array.shape[::-1], strides=strides, lower=lower, upper=upper, **given
    )


def walked(
    array: np.ndarray, map_: TensorMap, at: tuple[int, ...], offsets: tuple[int, ...], outside: float
) -> np.ndarray:
    """Return the column, pixel by pixel, by a walk over bases."""
    channels, pixels = map_.box
    steps = tuple(map_.steps) or (1,) * array.ndim
    spaces, base = array.shape[-2:0:-1], [*at[1:]]
    rows = []
    for _ in range(pixels):
        place = [base[-1], *[b + o for b, o in zip(base[:-1], offsets, strict=True)][::-1]]
        row = []
        for channel in range(at[0], at[0] + channels):
            index = (*place, channel)
            within = all(0 <= i < e for i, e in zip(index, array.shape, strict=True))
            row.append(array[index] if within else outside)
        rows.append(row)
        for axis, extent in enumerate(spaces):
            base[axis] += steps[axis + 1]
            if base[axis] <= extent - 1 + map_.upper[axis]:
                break
            base[axis] = map_.lower[axis]
        else:
            base[-1] += 1  # PTX: along D, H and W the traversal stride counts
    return np.array(rows, np.float32)


CASES = [
    ((-1, -1), (-1, -1), (0, -1, -1, 0), (0, 0), {}),
    ((-1, -1), (-1, -1), (4, 2, 1, 0), (1, 2), {}),
    ((0, 0), (0, 0), (0, 5, 4, 1), (0, 0), {}),
    ((0, 0), (-2, -2), (8, 3, 2, 2), (2, 1), {}),
    ((-1, -1), (-1, -1), (0, 1, 3, 0), (2, 2), {"steps": (1, 2, 2, 2)}),
    ((-2, -1), (-1, 0), (0, 1, 4, 0), (0, 1), {"steps": (1, 3, 2, 1), "nan": True}),
    ((-2, -1), (-1, 0), (0, 0, -1, 1), (3, 0), {"steps": (8, 1, 5, 1), "swizzle": 32}),
]


@pytest.mark.parametrize(("lower", "upper", "at", "offsets", "parts"), CASES)
def test_a_column_is_what_a_walk_finds(
    lower: tuple[int, ...],
    upper: tuple[int, ...],
    at: tuple[int, ...],
    offsets: tuple[int, ...],
    parts: dict[str, Any],
) -> None:
    array, out = image(), np.zeros((24, 8), np.float32)
    map_ = map_of(array, lower, upper, **parts)
    found = run(COLUMN, map_, out, *map(np.int32, (*at, *offsets)), block=32)
    assert kinds(found) == set()
    if parts.get("swizzle"):  # rows of 32 bytes: four to each 128, by which units of 16 change places
        out = np.where((np.arange(24) // 4 % 2 == 1)[:, None], np.roll(out, 4, 1), out)
    wanted = walked(array, map_, at, offsets, np.nan if parts.get("nan") else 0)
    assert np.array_equal(out, wanted, equal_nan=True)


def test_what_is_outside_is_not_written() -> None:
    array, x = np.zeros((2, 4, 4, 8), np.float32), np.ones((24, 8), np.float32)
    map_ = map_of(array, (-1, -1), (-1, -1))
    assert kinds(run(BACK, map_, x, block=32)) == set()
    # 12 bases of the first image from the second row of its pixel box on, then the first 12 of the second one
    wanted = np.zeros_like(array)
    wanted[0, :3, :3] = 1
    wanted[1, :2, :3] = 1
    assert np.array_equal(array, wanted)


@pytest.mark.parametrize(
    ("new", "wanted"),
    [
        (("sizeof s", "sizeof s - 32"), {"deadlock", "mbarrier misuse"}),
        (("wait(&full, 0);", ""), {"RAW hazard", "uninitialised read"}),
        (("s[24 * 8];", "s[23 * 8];"), {"out of bounds"}),
        (("global.im2col.mb", "global.tile.mb"), {"TMA misuse"}),
        (('"r"(at(&full)), "r"(c), "r"(w)', '"r"(at(&full)), "r"(c), "r"(w + 6)'), {"TMA misuse"}),
        (('"h"((short)ow),\n', '"h"((short)(ow + 256)),\n'), {"TMA misuse"}),
        (("[%0], [%1", "[%0 + 16], [%1"), {"TMA misuse", "out of bounds"}),
    ],
)
def test_a_mistake_is_told(new: tuple[str, str], wanted: set[str]) -> None:
    source = COLUMN.replace(*new)
    assert source != COLUMN
    if "tile.mb" in new[1]:
        source = source.replace(", {%7, %8};", ";")
    map_ = map_of(image(), (-1, -1), (-1, -1))
    found = run(source, map_, np.zeros((24, 8), np.float32), *map(np.int32, (0, 0, 0, 0, 1, 1)), block=32)
    assert kinds(found) & wanted


MULTICAST = """const __grid_constant__ Map in, float* out {
  __shared__ __align__(128) float s[24 * 8]; __shared__ u64 full;
  const int t = threadIdx.x;
  if (t == 0) { init(&full, 1); fence_init(); expect(&full, sizeof s); }
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  if (t == 0 && blockIdx.x == 0)
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %3, %3, %3}], [%2], {%4, %4}, %5;"
                 :: "r"(at(s)), "l"(&in), "r"(at(&full)), "r"(0), "h"((short)1), "h"((short)3) : "memory");
  wait(&full, 0);
  for (int i = t; i < 24 * 8; i += blockDim.x) out[blockIdx.x * 24 * 8 + i] = s[i];
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}"""


def test_numbers_that_are_not_whole_and_offsets_that_are_not_there() -> None:
    with pytest.raises(UsageError, match="not whole"):
        map_of(image(), (0.5, 0), (0, 0)).encode(1024)  # type: ignore[arg-type]
    ptx = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry k() { .reg .b32 %r<4>; .reg .b64 %rd<4>;
cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes
  [%r1], [%rd1, {%r1, %r1, %r1}], [%r2];
ret; }"""
    with pytest.raises(NeedsGpu, match="without im2col offsets"):
        emulate(ptx, "k", grid=(1,), block=(32,), arguments=[])


def test_a_column_comes_to_all_blocks_of_a_mask() -> None:
    array, out = image(), np.zeros((2, 24, 8), np.float32)
    map_ = map_of(array, (-1, -1), (-1, -1))
    assert kinds(run(MULTICAST, map_, out, block=32, grid=2, cluster=2)) == set()
    assert np.array_equal(out, np.stack(2 * [walked(array, map_, (0, 0, 0, 0), (1, 1), 0)]))
    fault = MULTICAST.replace('"h"((short)3)', '"h"((short)1)')
    assert kinds(run(fault, map_, out, block=32, grid=2, cluster=2)) & {"deadlock"}


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_maps_of_all_ranks_survive_their_bytes(rank: int) -> None:
    bound = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}[rank]
    lower, upper = (-bound,) * (rank - 2), (bound - 1, -1, -2)[: rank - 2]
    one = Map(
        address=16,
        element="FLOAT16",
        extents=(64, 1 << 16, 8, 9, 2)[:rank],
        strides=(128, 256, 512, 1024)[: rank - 1],
        box=(16, 1024),
        steps=(1,) * rank,
        lower=lower,
        upper=upper,
    )
    one.check()
    assert decode(one.encode()) == one
    assert one.total == 16 * 1024 * 2
    for wrong in itertools.chain(
        [{"lower": (-bound - 1, *lower[1:])}, {"upper": (bound, *upper[1:])}, {"upper": upper[1:]}],
        [{"box": (257, 8)}, {"box": (16, 1025)}, {"box": (4, 8)}, {"box": (16, 8, 8)}, {"swizzle": 16}],
        [{"lower": (8,) * (rank - 2), "upper": (0,) * (rank - 2), "extents": (64, *(8,) * (rank - 1))}],
    ):
        with pytest.raises(EmulatorError, match="cuTensorMapEncodeIm2col refuses"):
            Map(**(vars(one) | wrong)).check()
