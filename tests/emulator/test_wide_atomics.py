"""Atomics of 128 bits, of vectors and of subnormal numbers; pairs of f32; stochastic rounding."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import emulate
from shared.emulator_kernels import launch

HEADER = ".version 8.7\n.target sm_90\n.address_size 64\n"


def wide(body: str, *arrays: np.ndarray) -> None:
    """Run PTX in four threads: %d1 and %d2 point to 16 bytes of each, `s` is shared memory."""
    ptx = f"""{HEADER}.visible .entry k(.param .u64 p, .param .u64 q)
{{
  .reg .b64 %d<9>; .reg .b128 %q<6>; .reg .b32 %r<4>; .reg .pred %p<3>; .shared .align 16 .b8 s[16];
  ld.param.u64 %d1, [p]; ld.param.u64 %d2, [q]; mov.u32 %r1, %tid.x;
  mul.wide.u32 %d3, %r1, 16; add.u64 %d1, %d1, %d3; add.u64 %d4, %d2, %d3;
  {body}
  ret;
}}"""
    run = emulate(ptx, "k", grid=(1,), block=(4,), arguments=list(arrays))
    assert run.findings == ()


def test_an_exchange_of_128_bits() -> None:
    ours, theirs = np.arange(8, dtype=np.uint64), np.arange(100, 108, dtype=np.uint64)
    swapped = "mov.b128 {%d5, %d6}, %q1; mov.b128 %q1, {%d6, %d5};"
    exchange = "atom.global.exch.b128 %q2, [%d4], %q1; st.global.b128 [%d1], %q2;"
    wide(f"ld.global.b128 %q1, [%d1]; {swapped} {exchange}", ours, theirs)
    assert ours.tolist() == list(range(100, 108))
    assert theirs.tolist() == [1, 0, 3, 2, 5, 4, 7, 6]


@pytest.mark.parametrize("space", ["global", "shared"])
def test_compare_and_swap_of_128_bits_compares_both_halves(space: str) -> None:
    expected = np.array([7, 9, 7, 8, 6, 8, 7, 8], np.uint64)  # of threads: the second is the first that fits
    cell = np.array([7, 8], np.uint64)
    place = "%d2" if space == "global" else "s"
    begin = (
        ""
        if space == "global"
        else "setp.ne.u32 %p1, %r1, 0; @!%p1 st.shared.v2.b64 [s], {7, 8}; bar.sync 0;"
    )
    swap = f"mov.b128 %q2, {{%d3, 5}}; atom.{space}.cas.b128 %q3, [{place}], %q1, %q2;"
    wide(f"{begin} ld.global.b128 %q1, [%d1]; {swap} st.global.b128 [%d1], %q3;", expected, cell)
    assert expected.reshape(4, 2).tolist() == [[7, 8], [7, 8], [16, 5], [16, 5]]
    if space == "global":
        assert cell.tolist() == [16, 5]


def test_vectors_are_added_element_by_element() -> None:
    out = np.array([1, 2, 3, 4, 0, 0, 0, 0], np.float32)
    source = """extern "C" __global__ void k(float* o) { unsigned long long policy;
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      asm volatile("red.global.add.L2::cache_hint.v4.f32 [%0], {%1, %2, %1, %2}, %3;"
        :: "l"(o), "f"(1.f), "f"(2.f), "l"(policy));
      asm volatile("red.global.add.noftz.v4.f16x2 [%0], {%1, %1, %1, %1};"
        :: "l"(o + 4), "r"(0x3c004000)); }"""
    launch(source, "k", (1,), (4,), out)
    assert out[:4].tolist() == [5, 10, 7, 12]
    assert out[4:].view(np.float16).tolist() == [8, 4] * 4


def test_sums_of_f32_are_flushed_in_global_memory_alone() -> None:
    out = np.array([0, 0, 2.0**-126, 1.0], np.float32)
    source = """extern "C" __global__ void k(float* o) { __shared__ float s; s = 0; __syncthreads();
      atomicAdd(&s, 1e-40f); atomicAdd(o, 1e-40f); if (threadIdx.x == 0) atomicAdd(o + 2, -0x1.8p-126f);
      atomicAdd(o + 3, 1e-40f); __syncthreads(); if (threadIdx.x == 0) o[1] = s; }"""
    launch(source, "k", (1,), (4,), out)
    assert out[0] == 0
    assert out[1] == np.float32(1e-40) * 4
    assert out[2] == 0
    assert np.signbit(out[2])
    assert out[3] == 1


RANDOM = np.random.default_rng(4).integers(0, 1 << 32, (3, 64), dtype=np.uint64).astype(np.uint32)


@pytest.mark.parametrize(("kind", "bits"), [("bf16x2", 16), ("f16x2", 13)])
def test_stochastic_rounding_carries_into_what_is_kept(kind: str, bits: int) -> None:
    first, second = ((v & 0x807FFFFF | 0x3F000000).view(np.float32) for v in RANDOM[:2])  # from 0.5 to 1
    out = np.zeros(64, np.uint32)
    source = f"""extern "C" __global__
      void k(const float* a, const float* b, const unsigned* r, unsigned* o) {{
      int i = threadIdx.x; asm volatile("cvt.rs.{kind}.f32 %0, %1, %2, %3;"
        : "=r"(o[i]) : "f"(a[i]), "f"(b[i]), "r"(r[i])); }}"""
    launch(source, "k", (1,), (64,), first, second, RANDOM[2], out, arch="compute_100a")
    for place, values in ((0, second), (16, first)):
        noise = RANDOM[2] >> place & ((1 << bits) - 1)
        kept = (values.view(np.uint32) + noise) >> bits << bits
        wanted = kept >> 16 if bits == 16 else kept.view(np.float32).astype(np.float16).view(np.uint16)
        assert (out >> place & 0xFFFF).tolist() == wanted.tolist()


def test_stochastic_rounding_of_four_numbers() -> None:
    numbers = np.array([1.0625, -1.0625, 1000.0, 0.0], np.float32)
    out = np.zeros(3, np.uint32)
    source = """extern "C" __global__ void k(const float* a, unsigned* o) {
      unsigned noise[3] = {0u, 0xFFFFFFFFu, 0x7FFF8000u};
      asm volatile("cvt.rs.satfinite.e4m3x4.f32 %0, {%1, %2, %3, %4}, %5;" : "=r"(o[threadIdx.x])
        : "f"(a[0]), "f"(a[1]), "f"(a[2]), "f"(a[3]), "r"(noise[threadIdx.x])); }"""
    launch(source, "k", (1,), (3,), numbers, out, arch="compute_100a")
    assert [hex(v) for v in out.tolist()] == ["0x38b87e00", "0x39b97e00", "0x38b87e00"]


def test_memory_of_several_gpus_is_that_of_one() -> None:
    values, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    source = """extern "C" __global__ void k(const float* a, float* o) {
      int i = threadIdx.x; float v;
      asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];" : "=f"(v) : "l"(a + i));
      asm volatile("multimem.st.relaxed.sys.global.f32 [%0], %1;" :: "l"(o + i), "f"(v));
      asm volatile("multimem.red.relaxed.sys.global.add.f32 [%0], %1;" :: "l"(o + i), "f"(10.f)); }"""
    launch(source, "k", (1,), (4,), values, out)
    assert out.tolist() == [10, 11, 12, 13]


def test_pairs_of_f32_and_extremes_over_a_warp() -> None:
    a, b = np.random.default_rng(9).standard_normal((2, 64)).astype(np.float32)
    a[5] = np.nan
    out = np.zeros((4, 64), np.float32)
    source = """extern "C" __global__
      void k(const double* a, const double* b, const float* x, double* o, float* p) {
      int i = threadIdx.x;
      asm volatile("add.rz.f32x2 %0, %1, %2;" : "=d"(o[i]) : "d"(a[i]), "d"(b[i]));
      asm volatile("fma.rn.f32x2 %0, %1, %2, %1;" : "=d"(o[32 + i]) : "d"(a[i]), "d"(b[i]));
      asm volatile("redux.sync.max.f32 %0, %1, -1;" : "=f"(p[i]) : "f"(x[i]));
      asm volatile("redux.sync.min.abs.NaN.f32 %0, %1, -1;" : "=f"(p[32 + i]) : "f"(x[i]));
      asm volatile("redux.sync.min.abs.f32 %0, %1, -1;" : "=f"(p[64 + i]) : "f"(x[i])); }"""
    launch(source, "k", (1,), (32,), a, b, a, out[:2], out[2:], arch="compute_100a")
    wide = a.astype(np.float64) + b
    nearest = wide.astype(np.float32)
    inward = np.where(np.abs(nearest) > np.abs(wide), np.nextafter(nearest, np.float32(0)), nearest)
    assert np.array_equal(out[0], inward, equal_nan=True)
    assert np.array_equal(out[1], (a.astype(np.float64) * b + a).astype(np.float32), equal_nan=True)
    assert (out[2, :32] == np.nanmax(a[:32])).all()
    assert np.isnan(out[2, 32:]).all()
    assert (out[3, :32] == np.nanmin(np.abs(a[:32]))).all()
