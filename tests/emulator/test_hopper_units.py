"""Hopper's asynchronous units one by one, in small kernels; public bugs rebuilt in small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.emulator import TensorMap
from harness.errors import EmulatorError
from shared.hopper_kernels import kinds, run

BULK = """const float* a, float* c {
  __shared__ __align__(128) float s[256]; __shared__ u64 full;
  const int t = threadIdx.x;
  if (t == 0) { init(&full, 1); fence_init(); }
  __syncthreads();
  if (t == 0) { expect(&full, 1024); load(s, a, 1024, &full); }
  wait(&full, 0);
  const float x = s[2 * t], y = s[2 * t + 1];
  __syncthreads();
  s[2 * t] = y; s[2 * t + 1] = x;
  fence_async();
  __syncthreads();
  if (t == 0) { store(c, s, 1024); wait_read(); }
}"""
# (text, what replaces it, kinds of which one has to be found)
BUGS = [
    ("wait(&full, 0);", "", {"RAW hazard"}),
    ("wait(&full, 0);", "wait(&full, 1);", {"RAW hazard"}),
    ("  fence_async();\n", "", {"missing proxy fence"}),
    ("fence_async();\n  __syncthreads();", "fence_async();", {"RAW hazard"}),
    ("wait_read();", "", {"block has left"}),
    ("expect(&full, 1024)", "expect(&full, 512)", {"deadlock", "mbarrier misuse"}),
    ("init(&full, 1); fence_init();", "init(&full, 1);", {"missing proxy fence"}),
    ("init(&full, 1);", "init(&full, 2);", {"deadlock"}),
    ("__syncthreads();\n  if (t == 0) { expect", "if (t == 0) { expect", {"mbarrier misuse"}),
    ("load(s, a, 1024", "load(s, a + 1, 1024", {"TMA misuse"}),
    ("load(s, a, 1024", "load(s + 32, a, 1024", {"deadlock", "out of bounds"}),
]


@pytest.mark.parametrize("schedule", ["early", "late"])
def test_bulk_copies_there_and_back(schedule: str) -> None:
    a, c = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    assert kinds(run(BULK, a, c, schedule=schedule)) == set()
    assert (c == a.reshape(-1, 2)[:, ::-1].ravel()).all()


def test_copies_and_products_are_counted() -> None:
    a, c = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    total = run(BULK, a, c).total
    assert (total.boxes, total.box_sectors, total.box_bytes, total.products) == (2, 64, 2048, 0)
    shifted = run(BULK.replace("load(s, a, 1024", "load(s, a + 4, 1024"), np.zeros(260, np.float32), c).total
    assert (shifted.box_sectors, shifted.box_bytes) == (65, 2048)  # 16 bytes past a sector
    source = PRODUCT.replace("TYPE", "int").replace("+X", "+r").replace("SHAPE", "m64n8k32.s32.s8.s8")
    arguments = np.zeros(2048, np.uint8), np.zeros(256, np.uint8), np.zeros(512, np.int32)
    total = run(source.replace("TAIL", "1"), *arguments).total
    assert (total.boxes, total.products) == (0, 4)


@pytest.mark.parametrize(("old", "new", "wanted"), BUGS, ids=[f"{i}" for i in range(len(BUGS))])
def test_a_fault_of_a_bulk_copy_is_found(old: str, new: str, wanted: set[str]) -> None:
    assert old in BULK
    a, c = np.arange(512, dtype=np.float32), np.zeros(256, np.float32)
    assert kinds(run(BULK.replace(old, new, 1), a, c)) & wanted


def test_a_deadlock_names_the_barrier_the_arrivals_and_the_bytes() -> None:
    a, c = np.zeros(256, np.float32), np.zeros(256, np.float32)
    (found,) = [
        f for f in run(BULK.replace("expect(&full, 1024)", "expect(&full, 2048)"), a, c).findings
        if f.kind == "deadlock"
    ]  # fmt: skip
    assert "128 threads" in found.message and "1 of 1 arrivals, 1024 bytes expected" in found.message
    assert "parity 0" in found.message


BOX = """const __grid_constant__ Map in, const __grid_constant__ Map out {
  __shared__ __align__(1024) float s[3 * 4 * 8]; __shared__ u64 full;
  if (threadIdx.x == 0) {
    init(&full, 1); fence_init();
    expect(&full, sizeof s);
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" :: "r"(at(s)), "l"(&in), "r"(at(&full)),
                 "r"(-4), "r"(3), "r"(1) : "memory");
    wait(&full, 0);
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group "
                 "[%0, {%2, %3, %4}], [%1];"
                 :: "l"(&out), "r"(at(s)), "r"(0), "r"(0), "r"(0) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    wait_read();
  }
}"""


@pytest.mark.parametrize("swizzle", [0, 32])
def test_boxes_of_three_extents_are_clipped_filled_and_added(swizzle: int) -> None:
    a = np.arange(3 * 6 * 12, dtype=np.float32).reshape(3, 6, 12)
    c = np.ones((3, 4, 8), np.float32)

    def tensor(array: Any) -> TensorMap:
        d, r, w = array.shape
        return TensorMap(
            array=array,
            element="FLOAT32",
            extents=(w, r, d),
            strides=(4 * w, 4 * w * r),
            box=(8, 4, 3),
            swizzle=swizzle,
        )

    assert kinds(run(BOX, tensor(a), tensor(c), block=32)) == set()
    expected = np.ones((3, 4, 8), np.float32)
    expected[:2, :3, 4:] += a[1:, 3:, :4]
    assert (c == expected).all()


@pytest.mark.parametrize("at", [(-4, 0), (0, -1)])
@pytest.mark.parametrize("how", ["cp.async.bulk.tensor.2d.global.shared::cta", "REDUCE"])
def test_a_box_is_stored_at_no_negative_index(at: tuple[int, int], how: str) -> None:
    """A card takes it for an illegal instruction; at the other end a box may go beyond the tensor."""
    how = how.replace("REDUCE", "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile")
    body = """const __grid_constant__ Map out {
      __shared__ __align__(128) float s[32];
      s[threadIdx.x] = 1;
      fence_async();
      __syncthreads();
      if (threadIdx.x == 0) {
        asm volatile("HOW.bulk_group [%0, {%2, %3}], [%1];"
                     :: "l"(&out), "r"(at(s)), "r"(X), "r"(Y) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        wait_read();
      }
    }""".replace("HOW", how)
    c = np.zeros((8, 8), np.float32)
    tensor = TensorMap(array=c, element="FLOAT32", extents=(8, 8), strides=(32,), box=(8, 4), name="c")
    assert kinds(run(body.replace("X)", "4)").replace("Y", "6"), tensor, block=32)) == set()
    assert (c[6:, 4:] == 1).all() and c.sum() == 8
    x, y = map(str, at)
    found = run(body.replace("X)", f"{x})").replace("Y", y), tensor, block=32)
    assert any("only loads may" in str(f) for f in found.findings if f.kind == "TMA misuse")


def test_a_tensor_map_may_be_in_global_memory() -> None:
    """Pass the map as host code does that copies it there with cudaMemcpy."""
    body = """const Map* in, float* c {
      __shared__ __align__(128) float s[32]; __shared__ u64 full;
      if (threadIdx.x == 0) {
        init(&full, 1); fence_init(); expect(&full, sizeof s);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4}], [%2];"
                     :: "r"(at(s)), "l"(in), "r"(at(&full)), "r"(FROM), "r"(OF) : "memory");
      }
      __syncthreads();
      wait(&full, 0);
      c[threadIdx.x] = s[threadIdx.x];
    }"""
    a, c = np.arange(96, dtype=np.float32).reshape(8, 12), np.zeros(32, np.float32)
    tensor = TensorMap(
        array=a, element="FLOAT32", extents=(12, 8), strides=(48,), box=(8, 4), name="a"
    )  # fmt: skip
    body = body.replace("OF", "2")
    assert kinds(run(body.replace("FROM", "4"), tensor, c, block=32)) == set()
    assert (c.reshape(4, 8) == a[2:6, 4:]).all()
    found = run(
        body.replace("FROM", "4").replace('"l"(in)', '"l"((char*)in + 8)'), tensor, c, block=32
    )  # none is there
    assert "TMA misuse" in kinds(found)
    assert kinds(run(body.replace("FROM", "-4"), tensor, c, block=32)) == set()  # zeros first
    assert (c.reshape(4, 8) == np.pad(a[2:6, :4], ((0, 0), (4, 0)))).all()
    for begin in ("5", "6", "-1"):  # 20, 24 and -4 bytes: illegal instructions on a card
        found = run(body.replace("FROM", begin), tensor, c, block=32)
        assert any("no multiple of 16" in str(f) for f in found.findings if f.kind == "TMA misuse")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"box": (6, 4, 3)}, "multiple of 16"),
        ({"strides": (40, 288)}, "multiples of 16"),
        ({"box": (8, 4, 257)}, "1 to 256"),
        ({"box": (16, 4, 3), "swizzle": 32}, "swizzle of 32"),
        ({"element": "FLOAT7"}, "FLOAT7"),
        ({"extents": (12, 6)}, "2 extents|strides"),
    ],
)
def test_a_tensor_map_that_cuda_refuses(change: dict[str, Any], said: str) -> None:
    a = np.zeros((3, 6, 12), np.float32)
    good: dict[str, Any] = {
        "array": a, "element": "FLOAT32", "extents": (12, 6, 3), "strides": (48, 288), "box": (8, 4, 3),
    }  # fmt: skip
    TensorMap(**good).encode(1 << 40)
    with pytest.raises(EmulatorError, match=said):
        TensorMap(**(good | change)).encode(1 << 40)


SHARED_SUM = """int* c {
  __shared__ int s[128];
  const int t = threadIdx.x;
  unsigned rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  s[t] = 0;
  cluster_sync();
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at(&s[t])), "r"(t % 2));
  asm volatile("red.relaxed.cluster.shared::cluster.add.s32 [%0], %1;"
               :: "r"(there), "r"((int)rank + 1) : "memory");
  cluster_sync();
  c[blockIdx.x * 128 + t] = s[t];
}"""


def test_atomics_in_the_memory_of_another_block() -> None:
    c = np.zeros(256, np.int32)
    assert kinds(run(SHARED_SUM, c, grid=2, cluster=2)) == set()
    lanes = np.arange(128)
    assert (c.reshape(2, 128) == [np.where(lanes % 2 == rank, 3, 0) for rank in (0, 1)]).all()


@pytest.mark.parametrize("number", [0, 1])
def test_a_cluster_barrier_that_is_missing(number: int) -> None:
    pieces = SHARED_SUM.split("  cluster_sync();\n")
    barriers = ["" if i == number else "  cluster_sync();\n" for i in range(2)]
    text = pieces[0] + barriers[0] + pieces[1] + barriers[1] + pieces[2]
    found = kinds(run(text, np.zeros(256, np.int32), grid=2, cluster=2))
    assert found & {"RAW hazard", "WAR hazard", "WAW hazard"}


# m64n8k32 of 8-bit types, m64n8k16 of f16; A and B are K-major, core matrices of 8 rows of 16 bytes.
PRODUCT = """const unsigned char* a, const unsigned char* b, TYPE* c {
  __shared__ __align__(128) unsigned char as[64 * 32], bs[8 * 32];
  const int t = threadIdx.x;
  for (int i = t; i < 64 * 32; i += 128)
    as[i / 32 / 8 * 256 + i % 32 / 16 * 128 + i / 32 % 8 * 16 + i % 16] = a[i];
  for (int i = t; i < 8 * 32; i += 128) bs[i % 32 / 16 * 128 + i / 32 % 8 * 16 + i % 16] = b[i];
  fence_async();
  __syncthreads();
  const u64 da = at(as) >> 4 | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
  const u64 db = at(bs) >> 4 | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
  TYPE d[4] = {1, 1, 1, 1};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.SHAPE {%0, %1, %2, %3}, %4, %5, TAIL;"
               : "+X"(d[0]), "+X"(d[1]), "+X"(d[2]), "+X"(d[3]) : "l"(da), "l"(db));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; ++i)
    c[(t / 32 * 16 + t % 32 / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = d[i];
}"""


@pytest.mark.parametrize(
    ("shape", "tail", "kind"),
    [
        ("m64n8k32.s32.s8.s8", "1", np.int8),
        ("m64n8k32.s32.u8.u8", "1", np.uint8),
        ("m64n8k16.f32.f16.f16", "1, 1, 1, 0, 0", np.float16),
        ("m64n8k16.f32.f16.f16", "0, -1, 1, 0, 0", np.float16),
    ],
)
def test_products_of_a_warpgroup(shape: str, tail: str, kind: Any) -> None:
    rng = np.random.default_rng(1)
    size = np.dtype(kind).itemsize
    a, b = (rng.integers(0, 9, (n, 32 // size)).astype(kind) for n in (64, 8))
    integers = kind is not np.float16
    source = PRODUCT.replace("TYPE", "int" if integers else "float").replace("+X", "+r" if integers else "+f")
    source = source.replace("SHAPE", shape).replace("TAIL", tail)
    c = np.zeros((64, 8), np.int32 if integers else np.float32)
    assert kinds(run(source, a.view(np.uint8), b.view(np.uint8), c)) == set()
    product = a.astype(np.int64) @ b.astype(np.int64).T
    assert (c == (product + 1 if tail[0] == "1" else -product)).all()


def test_products_of_single_bits() -> None:
    """The sum is of ones that both have; xor is no form of wgmma."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 256, (n, 32)).astype(np.uint8) for n in (64, 8))
    source = PRODUCT.replace("TYPE", "int").replace("+X", "+r").replace("TAIL", "1")
    source = source.replace("SHAPE", "m64n8k256.s32.b1.b1.and.popc")
    c = np.zeros((64, 8), np.int32)
    found = run(source, a, b, c)
    assert kinds(found) == set() and found.total.flops >= 2 * 64 * 8 * 256
    both = np.unpackbits(a[:, None] & b[None], axis=2).sum(axis=2)
    assert (c == both + 1).all()
    with pytest.raises(Exception, match="xor"):
        run(source.replace(".and.", ".xor."), a, b, c)


@pytest.mark.parametrize(
    ("factors", "count", "expected"),
    [
        ((2.0**-12, 2.0**-13), 3, 1.0),  # 3 * 2^-25 is cut off, not rounded
        ((2.0**-12, 2.0**-13), 4, 1.0 + 2.0**-23),  # two bits below the result are kept in the sum
        ((2.0**-13, 2.0**-13), 8, 1.0),  # and no third one
        ((-(2.0**-13), 2.0**-12), 1, 1.0 - 2.0**-24),  # towards zero
    ],
)
def test_sums_are_cut_off_as_the_tensor_cores_do(
    factors: tuple[float, float], count: int, expected: float
) -> None:
    source = PRODUCT.replace("TYPE", "float").replace("+X", "+f")
    source = source.replace("SHAPE", "m64n8k16.f32.f16.f16").replace("TAIL", "1, 1, 1, 0, 0")
    a, b, c = np.zeros((64, 16), np.float16), np.zeros((8, 16), np.float16), np.zeros((64, 8), np.float32)
    a[:, :count], b[:, :count] = factors
    run(source, a.view(np.uint8), b.view(np.uint8), c)
    assert (c == np.float32(expected)).all()


def test_an_infinity_stays_in_its_row() -> None:
    source = PRODUCT.replace("TYPE", "float").replace("+X", "+f")
    source = source.replace("SHAPE", "m64n8k16.f32.f16.f16").replace("TAIL", "1, 1, 1, 0, 0")
    a, b, c = np.ones((64, 16), np.float16), np.ones((8, 16), np.float16), np.zeros((64, 8), np.float32)
    a[3, 5] = np.inf
    run(source, a.view(np.uint8), b.view(np.uint8), c)
    assert np.isinf(c[3]).all() and (np.delete(c, 3, 0) == 17).all()


def test_a_fence_that_is_missing_before_a_wgmma() -> None:
    """Writes of the threads are not visible to wgmma without it."""
    source = PRODUCT.replace("TYPE", "int").replace("+X", "+r").replace("SHAPE", "m64n8k32.s32.s8.s8")
    source = source.replace("TAIL", "1").replace("  fence_async();\n", "")
    found = run(source, np.zeros(2048, np.uint8), np.zeros(256, np.uint8), np.zeros(512, np.int32))
    assert kinds(found) == {"missing proxy fence"}


FLAG = """const float* a, float* c {
  __shared__ float s[32]; __shared__ int flag; __shared__ u64 unused;
  const int t = threadIdx.x;
  if (t == 0) { init(&unused, 1); flag = 0; }
  __syncthreads();
  if (t == 0) { s[0] = a[0]; BEFORE SET }
  if (t == 32) { int seen; do { GET } while (!seen); AFTER c[0] = s[0]; }
}"""
RELEASE = 'asm volatile("st.release.cta.shared.s32 [%0], 1;" :: "r"(at(&flag)) : "memory");'
ACQUIRE = 'asm volatile("ld.acquire.cta.shared.s32 %0, [%1];" : "=r"(seen) : "r"(at(&flag)) : "memory");'
SET, GET = "*(volatile int*)&flag = 1;", "seen = *(volatile int*)&flag;"
FENCE = "__threadfence_block();"


@pytest.mark.parametrize(
    ("before", "set_", "get", "after", "wanted"),
    [
        ("", RELEASE, ACQUIRE, "", set()),
        (FENCE, SET, GET, FENCE, set()),
        (FENCE, "atomicExch(&flag, 1);", "seen = atomicAdd(&flag, 0);", FENCE, set()),
        ("", RELEASE, GET, "", {"RAW hazard"}),
        ("", SET, GET, FENCE, {"RAW hazard"}),
        (FENCE, SET, GET, "", {"RAW hazard"}),
        (FENCE, "flag = 1;", GET, FENCE, {"RAW hazard"}),
    ],
)
def test_flags_in_shared_memory(before: str, set_: str, get: str, after: str, wanted: set[str]) -> None:
    text = FLAG.replace("BEFORE", before).replace("SET", set_).replace("GET", get).replace("AFTER", after)
    assert kinds(run(text, np.ones(1, np.float32), np.zeros(1, np.float32), block=64)) == wanted
