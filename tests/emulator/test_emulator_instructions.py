"""Instruction by instruction: what NVRTC makes of C++ expressions, against NumPy and Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.emulator import Buffer
from harness.errors import EmulatorError
from shared.emulator_kernels import launch

RNG = np.random.default_rng(7)
EDGES = np.array(
    [0, 1, -1, 2, 31, 32, 33, 63, 255, -128, 2**31 - 1, -(2**31), 12345678, -987654321], np.int64
)
ARCHS = [pytest.param("compute_80", marks=pytest.mark.slow), "compute_100"]


def integers(dtype: Any, count: int = 256) -> np.ndarray:
    random = RNG.integers(0, 1 << 63, count, dtype=np.int64) * RNG.choice([-1, 1], count)
    shifted = random >> RNG.integers(0, 62, count)
    shifted[: len(EDGES)] = EDGES
    return shifted.astype(dtype)


def floats(dtype: Any, count: int = 256) -> np.ndarray:
    found = (RNG.standard_normal(count) * 10.0 ** RNG.integers(-8, 9, count)).astype(dtype)
    found[:10] = [0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, np.inf, np.nan]
    return found


C_TYPES = {
    "int": np.int32,
    "unsigned": np.uint32,
    "long long": np.int64,
    "unsigned long long": np.uint64,
    "short": np.int16,
    "unsigned short": np.uint16,
    "signed char": np.int8,
    "unsigned char": np.uint8,
    "float": np.float32,
    "double": np.float64,
}


def elementwise(expression: str, out: str, *arrays: np.ndarray, arch: str = "compute_80") -> np.ndarray:
    """`expression` of x, y and z, one thread an element."""
    names = "xyz"[: len(arrays)]
    types = [next(c for c, t in C_TYPES.items() if t == a.dtype) for a in arrays]
    parameters = ", ".join(f"const {t}* p{n}" for n, t in zip(names, types, strict=True))
    loads = " ".join(f"{t} {n} = p{n}[i];" for n, t in zip(names, types, strict=True))
    source = (
        f'extern "C" __global__ void k({parameters}, {out}* out) {{ int i = blockIdx.x * 64 + threadIdx.x; '
        f"{loads} out[i] = {expression}; }}"
    )
    result = np.zeros(len(arrays[0]), C_TYPES[out])
    run = launch(source, "k", (len(result) // 64,), (64,), *arrays, result, arch=arch)
    assert run.findings == ()
    return result


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    return np.array_equal(found, wanted, equal_nan=np.issubdtype(found.dtype, np.inexact))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    "name", ["int", "unsigned", "long long", "unsigned long long", "short", "unsigned char"]
)
def test_integer_arithmetic(name: str, arch: str) -> None:
    dtype = C_TYPES[name]
    x, y = integers(dtype), integers(dtype)[::-1].copy()
    bits = np.dtype(dtype).itemsize * 8
    with np.errstate(all="ignore"):
        cases: dict[str, np.ndarray] = {
            "x + y": x + y,
            "x - y": x - y,
            "x * y": x * y,
            "x * 7 + y": (x * dtype(7) + y).astype(dtype),
            "x & y": x & y,
            "x | y": x | y,
            "x ^ y": x ^ y,
            "~x": ~x,
            "-x": (-x).astype(dtype),
            "x < y ? x : y": np.minimum(x, y),
            "x > y ? x : y": np.maximum(x, y),
            "x << 3": (x << dtype(3)).astype(dtype),
            "x >> 3": x >> dtype(3),
            f"x << (y & {min(bits, 32) - 1})": (x << (y & dtype(min(bits, 32) - 1))).astype(dtype),
            f"x >> (y & {min(bits, 32) - 1})": x >> (y & dtype(min(bits, 32) - 1)),
            "x == y": (x == y).astype(dtype),
            "x <= y": (x <= y).astype(dtype),
            "(x > 5) != (y > 5)": ((x > 5) != (y > 5)).astype(dtype),
        }
    for expression, wanted in cases.items():
        assert same(elementwise(expression, name, x, y, arch=arch), wanted), expression


@pytest.mark.parametrize("name", ["int", "unsigned", "long long", "unsigned long long"])
def test_integer_division_towards_zero(name: str) -> None:
    x, y = integers(C_TYPES[name]), integers(C_TYPES[name])[::-1].copy()
    y[y == 0] = 3
    y[(y == -1) & (x == np.iinfo(x.dtype).min)] = 3
    quotients = [
        abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)
        for p, q in zip(x.tolist(), y.tolist(), strict=True)
    ]
    wanted = np.array(quotients, x.dtype)
    assert same(elementwise("x / y", name, x, y), wanted)
    with np.errstate(all="ignore"):
        assert same(elementwise("x % y", name, x, y), x - wanted * y)
    assert same(elementwise("x / 7", name, x), elementwise("x / y", name, x, np.full_like(x, 7)))


def test_high_halves_and_bit_tricks() -> None:
    x, y = integers(np.uint32), integers(np.uint32)[::-1].copy()
    a, b = x.astype(object), y.astype(object)
    cases = {
        "__umulhi(x, y)": [p * q >> 32 for p, q in zip(a, b, strict=True)],
        "__popc(x)": [bin(p).count("1") for p in a],
        "__clz(x)": [32 - int(p).bit_length() for p in a],
        "__brev(x)": [int(f"{int(p):032b}"[::-1], 2) for p in a],
        "__ffs(x)": [(int(p) & -int(p)).bit_length() for p in a],
        "__byte_perm(x, y, 0x5140)": [
            (p & 255) | (q & 255) << 8 | (p >> 8 & 255) << 16 | (q >> 8 & 255) << 24
            for p, q in zip(a, b, strict=True)
        ],
        "__funnelshift_l(x, y, 5)": [((q << 5) | (p >> 27)) & 0xFFFFFFFF for p, q in zip(a, b, strict=True)],
        "__funnelshift_r(x, y, 5)": [((q << 27) | (p >> 5)) & 0xFFFFFFFF for p, q in zip(a, b, strict=True)],
        "(x >> 5) & 0x3ff": [p >> 5 & 0x3FF for p in a],
        "(x & y) ^ (~x | 12345u)": [(p & q) ^ ((~p & 0xFFFFFFFF) | 12345) for p, q in zip(a, b, strict=True)],
    }
    for expression, wanted in cases.items():
        assert same(
            elementwise(expression, "unsigned", x, y), np.array(wanted, np.uint64).astype(np.uint32)
        ), expression
    long_x, long_y = integers(np.int64), integers(np.int64)[::-1].copy()
    high = [p * q >> 64 for p, q in zip(long_x.tolist(), long_y.tolist(), strict=True)]
    assert same(elementwise("__mul64hi(x, y)", "long long", long_x, long_y), np.array(high, np.int64))
    assert same(
        elementwise("__popcll(x)", "int", long_x),
        np.array([bin(p & (2**64 - 1)).count("1") for p in long_x.tolist()]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("source", list(C_TYPES))
@pytest.mark.parametrize("to", ["int", "unsigned", "long long", "unsigned char", "short", "float", "double"])
def test_conversions(source: str, to: str) -> None:
    dtype, target = C_TYPES[source], C_TYPES[to]
    if np.issubdtype(dtype, np.floating):
        x = floats(dtype)
        if not np.issubdtype(target, np.floating):  # beyond the range C++ leaves it open
            x = np.nan_to_num(np.where(np.abs(x) < 100, x, 5))
            x = np.abs(x) if np.issubdtype(target, np.unsignedinteger) else x
    else:
        x = integers(dtype)
    assert same(elementwise(f"({to})x", to, x), x.astype(target))


@pytest.mark.parametrize(
    ("expression", "low", "high", "nan"),
    [("__float2int_rz(x)", -(2**31), 2**31 - 1, 0), ("__float2uint_rz(x)", 0, 2**32 - 1, 0)],
)
def test_conversions_saturate(expression: str, low: int, high: int, nan: int) -> None:
    x = np.array([1e20, -1e20, np.inf, -np.inf, np.nan, 3.9, -0.5, 2147483520.0] * 8, np.float32)
    wanted = [
        nan if np.isnan(v) else min(max(int(v) if abs(v) < 1e30 else int(np.sign(v)) << 40, low), high)
        for v in x.tolist()
    ]
    out = "int" if low else "unsigned"
    assert same(elementwise(expression, out, x), np.array(wanted, np.int64).astype(C_TYPES[out]))


@pytest.mark.parametrize("mode", ["rn", "rz", "ru", "rd"])
def test_roundings_to_integers_and_floats(mode: str) -> None:
    function = {"rn": np.rint, "rz": np.trunc, "ru": np.ceil, "rd": np.floor}[mode]
    x = floats(np.float32)
    x = np.where(np.abs(x) < 1e6, x, np.float32(1.5))
    assert same(elementwise(f"__float2int_{mode}(x)", "int", x), function(x).astype(np.int32))
    whole = integers(np.int32)
    near = whole.astype(np.float32).astype(np.float64)
    step = {
        "rn": 0,
        "rz": np.abs(near) > np.abs(whole.astype(np.int64)),
        "ru": near < whole,
        "rd": near > whole,
    }[mode]
    way = {"rn": 0, "rz": 0, "ru": np.inf, "rd": -np.inf}[mode]
    wanted = np.where(step, np.nextafter(near.astype(np.float32), np.float32(way)), near.astype(np.float32))
    assert same(elementwise(f"__int2float_{mode}(x)", "float", whole), wanted)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["float", "double"])
def test_float_arithmetic(name: str, arch: str) -> None:
    dtype = C_TYPES[name]
    x, y = floats(dtype), floats(dtype)[::-1].copy()
    with np.errstate(all="ignore"):
        cases = {
            "x + y": x + y,
            "x - y": x - y,
            "x * y": x * y,
            "-x": -x,
            "x / y": x / y,
            "x < y ? x : y": np.where(x < y, x, y),
            "fmin(x, y)": np.fmin(x, y),
            "fmax(x, y)": np.fmax(x, y),
            "fabs(x)": np.abs(x),
            "sqrt(fabs(x))": np.sqrt(np.abs(x)),
            "x != y": (x != y).astype(dtype),
            "!(x < y)": (~(x < y)).astype(dtype),
            "!(x >= y) || x == 1": (~(x >= y) | (x == 1)).astype(dtype),
            "isnan(x)": np.isnan(x).astype(dtype),
            "floor(x)": np.floor(x),
            "rint(x)": np.rint(x),
        }
    for expression, wanted in cases.items():
        text = expression
        if name == "float":
            for f in ("fmin", "fmax", "fabs", "sqrt", "floor", "rint"):
                text = text.replace(f"{f}(", f"{f}f(")
        assert same(elementwise(text, name, x, y, arch=arch), wanted), expression


def test_directed_rounding_of_sums_and_products() -> None:
    x, y = floats(np.float32)[10:202], floats(np.float32)[10:202][::-1].copy()
    x, y = (np.where(np.isfinite(v), v, 1).astype(np.float32) for v in (x, y))
    exact = x.astype(np.longdouble) + y.astype(np.longdouble)
    down = elementwise("__fadd_rd(x, y)", "float", x, y)
    up = elementwise("__fadd_ru(x, y)", "float", x, y)
    assert (down <= exact).all() and (np.nextafter(down, np.float32(np.inf)) > exact).all()
    assert (up >= exact).all() and (np.nextafter(up, np.float32(-np.inf)) < exact).all()
    product = x.astype(np.float64) * y
    assert (np.abs(elementwise("__fmul_rz(x, y)", "float", x, y)) <= np.abs(product)).all()


def test_approximate_functions_within_a_tolerance() -> None:
    x = np.linspace(0.1, 9, 128).astype(np.float32)
    for expression, wanted in {
        "__expf(x)": np.exp(x),
        "__logf(x)": np.log(x),
        "rsqrtf(x)": x**-0.5,
        "__sinf(x)": np.sin(x),
        "__fdividef(x, 3.f)": x / 3,
    }.items():
        assert np.allclose(elementwise(expression, "float", x), wanted, rtol=1e-5, atol=1e-5), expression


def test_flushing_subnormals() -> None:
    x = np.array([1e-40, -1e-40, 1e-38, 1.0] * 16, np.float32)
    source = """extern "C" __global__ void k(const float* x, float* out) {
      float r; asm("add.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(x[threadIdx.x]), "f"(0.f));
      out[threadIdx.x] = r; }"""
    out = np.ones(64, np.float32)
    launch(source, "k", (1,), (64,), x, out)
    assert (out == np.where(np.abs(x) < 2.0**-126, 0, x)).all()
    assert np.signbit(out[0]) == np.signbit(np.float32(0) + 0)


def test_shuffles() -> None:
    source = """extern "C" __global__ void k(int* out) {
      int t = threadIdx.x, v = 100 + t;
      out[t] = __shfl_sync(~0u, v, 5);
      out[t + 64] = __shfl_up_sync(~0u, v, 3);
      out[t + 128] = __shfl_down_sync(~0u, v, 4, 16);
      out[t + 192] = __shfl_xor_sync(~0u, v, 9);
      float s = t; for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
      out[t + 256] = (int)s;
    }"""
    out = np.zeros(320, np.int32)
    run = launch(source, "k", (1,), (64,), out)
    assert run.findings == ()
    t = np.arange(64)
    lane, warp = t % 32, t // 32 * 32
    down = np.where(lane % 16 + 4 < 16, t + 4, t)
    for place, wanted in enumerate(
        (100 + warp + 5, 100 + np.where(lane >= 3, t - 3, t), 100 + down, 100 + (t ^ 9), None)
    ):
        sums = np.repeat([t[:32].sum(), t[32:].sum()], 32)
        assert (out[64 * place : 64 * place + 64] == (sums if wanted is None else wanted)).all(), place


def test_votes() -> None:
    source = """extern "C" __global__ void k(unsigned* out) {
      int t = threadIdx.x;
      out[t] = __ballot_sync(~0u, t % 3 == 0);
      out[t + 40] = __any_sync(~0u, t == 37) + 2 * __all_sync(~0u, t < 32);
      if (t & 1) out[t + 80] = __activemask();
      out[t + 120] = __match_any_sync(__activemask(), t / 4);
    }"""
    out = np.zeros(160, np.uint32)
    launch(source, "k", (1,), (40,), out)
    ballots = [sum(1 << i for i in range(32) if (w + i) % 3 == 0 and w + i < 40) for w in (0, 32)]
    assert (out[:40] == np.repeat(ballots, [32, 8])).all()
    assert (out[40:80] == np.repeat([2, 1], [32, 8])).all()
    assert (out[80:120] == np.where(np.arange(40) & 1, np.repeat([0xAAAAAAAA, 0xAA], [32, 8]), 0)).all()
    assert (out[120:] == (15 << (np.arange(40) % 32 // 4 * 4))).all()


def test_one_thread_is_elected() -> None:
    """The first lane of the mask, also in the last, short warp; the mask's other lanes are not."""
    source = """extern "C" __global__ void k(unsigned* out) {
      int t = threadIdx.x;
      unsigned leads, leader, half, mask = t % 32 < 16 ? 0xffff : 0xffff0000;
      asm volatile("{ .reg .pred p; elect.sync %0|p, 0xffffffff; selp.u32 %1, 1, 0, p; }"
                   : "=r"(leader), "=r"(leads));
      asm volatile("{ .reg .pred p; elect.sync _|p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(half) : "r"(mask));
      out[t] = leads, out[t + 40] = leader, out[t + 80] = half;
    }"""
    out = np.full(120, 7, np.uint32)
    launch(source, "k", (1,), (40,), out, arch="compute_90")
    t = np.arange(40)
    assert (out[:40] == (t % 32 == 0)).all()
    assert (out[40:80] == 0).all()
    assert (out[80:] == (t % 16 == 0)).all()


def test_atomics() -> None:
    source = """extern "C" __global__ void k(int* sums, float* floats, unsigned* old, unsigned* more,
      long long* wide) {
      __shared__ int counts[8];
      int t = threadIdx.x;
      if (t < 8) counts[t] = 0;
      __syncthreads();
      atomicAdd(&counts[t % 8], t);
      __syncthreads();
      if (t < 8) atomicAdd(&sums[t], counts[t]);
      atomicAdd(floats, 0.5f);
      old[blockIdx.x * 64 + t] = atomicAdd(more, 1u);
      atomicMax(more + 1, 1000u + t); atomicMin(more + 2, 10u + t); atomicOr(more + 3, 1u << (t % 32));
      atomicInc(more + 4, 9u); atomicExch(more + 5, 7u);
      atomicCAS(more + 6, 0u, 42u);
      atomicAdd((unsigned long long*)wide, (unsigned long long)-1);
    }"""
    sums, half, old = np.zeros(8, np.int32), np.zeros(1, np.float32), np.zeros(192, np.uint32)
    more, wide = np.array([0, 0, 99, 0, 0, 0, 0], np.uint32), np.array([5], np.int64)
    run = launch(source, "k", (3,), (64,), sums, half, old, more, wide)
    assert run.findings == ()
    assert (sums == [3 * sum(range(i, 64, 8)) for i in range(8)]).all()
    assert half[0] == 96
    assert sorted(old) == list(range(192))
    assert more.tolist() == [192, 1063, 10, 0xFFFFFFFF, 192 % 10, 7, 42]
    assert wide[0] == 5 - 192
    assert run.total.atomics > 0


def test_local_memory_and_a_switch() -> None:
    source = """extern "C" __global__ void k(const int* x, int* out) {
      int t = threadIdx.x, a[16];
      for (int i = 0; i < 16; i++) a[i] = x[(t + i) % 64];
      for (int i = 0; i < 8; i++) { int j = x[i + t % 8] & 15; a[j] += i * t; }
      int s = a[x[t] & 15];
      switch (x[t] & 7) { case 0: s += 1; break; case 1: s ^= 22; break; case 2: s -= 3; break;
        case 3: s *= 5; break; case 4: s += 9; case 5: s = ~s; break; default: s = -s; }
      out[t] = s;
    }"""
    x, out = integers(np.int32, 64), np.zeros(64, np.int32)
    run = launch(source, "k", (1,), (64,), x, out)
    assert run.findings == ()
    with np.errstate(all="ignore"):
        for t in range(64):
            a = [x[(t + i) % 64] for i in range(16)]
            for i in range(8):
                a[x[i + t % 8] & 15] += np.int32(i * t)
            s = a[x[t] & 15]
            case = x[t] & 7
            s = [s + 1, s ^ 22, s - 3, s * np.int32(5), ~(s + 9), ~s, -s, -s][case]
            assert out[t] == np.int32(s), t


def test_sub_word_shared_memory_doubles_and_dynamic_shared() -> None:
    source = """extern "C" __global__ void k(const unsigned char* x, const double* d, unsigned char* out,
      double* e) {
      extern __shared__ double big[]; __shared__ unsigned char s[64]; __shared__ short h[64];
      int t = threadIdx.x;
      s[63 - t] = x[t]; h[t ^ 1] = -(short)x[t]; big[t] = d[t];
      __syncthreads();
      out[t] = s[t] + h[t]; e[t] = big[63 - t] * 2;
    }"""
    x, d = integers(np.uint8, 64), floats(np.float64, 64)
    out, e = np.zeros(64, np.uint8), np.zeros(64)
    run = launch(source, "k", (1,), (64,), x, d, out, e, shared=512)
    assert run.findings == ()
    with np.errstate(all="ignore"):
        assert same(e, d[::-1] * 2)
    assert (out == (x[::-1] - x[np.arange(64) ^ 1]).astype(np.uint8)).all()
    run = launch(source, "k", (1,), (64,), x, d, out, e, shared=256)
    assert "out of bounds" in {f.kind for f in run.findings}


def test_generic_pointers_and_constants() -> None:
    source = """__constant__ float table[4] = {1.f, 2.f, 4.f, 8.f}; __device__ int seed[2] = {7, -9};
    extern "C" __global__ void k(const float* x, float* out, int n) {
      __shared__ float s[32]; int t = threadIdx.x; s[t] = 3 * x[t]; __syncwarp();
      const float* p = n ? s : x; out[t] = p[t] + table[t & 3] + seed[t & 1];
    }"""
    x = floats(np.float32, 32)
    for n in (0, 1):
        out = np.zeros(32, np.float32)
        assert launch(source, "k", (1,), (32,), x, out, np.int32(n)).findings == ()
        t = np.arange(32)
        base = x * np.float32(3) if n else x
        wanted = (base + np.float32(2) ** (t & 3)).astype(np.float32) + np.where(t & 1, -9, 7).astype(
            np.float32
        )
        assert same(out, wanted.astype(np.float32))


def test_copies_that_fill_with_zeros() -> None:
    source = r"""extern "C" __global__ void k(const float* x, float* out) {
      __shared__ __align__(16) float s[128]; int t = threadIdx.x;
      unsigned p = (unsigned)__cvta_generic_to_shared(s + 4 * t);
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(p), "l"(x + 4 * t), "r"(t % 5 * 4));
      asm volatile("cp.async.wait_all;"); __syncwarp();
      for (int i = 0; i < 4; i++) out[4 * t + i] = s[4 * t + i];
    }"""
    x, out = floats(np.float32, 128), np.ones(128, np.float32)
    run = launch(source, "k", (1,), (32,), x, out)
    assert run.findings == ()
    kept = np.arange(128) % 4 < np.arange(128) // 4 % 5
    assert same(out, np.where(kept, x, 0))


def test_a_copy_reads_no_byte_beyond_those_that_it_is_told() -> None:
    """The last lane's source ends with the buffer, after 1 to 15 bytes; one byte more is out of bounds."""
    source = r"""extern "C" __global__ void k(const unsigned char* x, unsigned char* out, int last,
                                                       int there) {
      __shared__ __align__(16) unsigned char s[512]; int t = threadIdx.x;
      unsigned p = (unsigned)__cvta_generic_to_shared(s + 16 * t);
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                   :: "r"(p), "l"(x + 16 * t), "r"(t < last ? 16 : t == last ? there : 0));
      asm volatile("cp.async.wait_all;"); __syncwarp();
      for (int i = 0; i < 16; i++) out[16 * t + i] = s[16 * t + i];
    }"""
    for there in range(1, 16):
        x, out = np.arange(1, 16 * 5 + there + 1, dtype=np.uint8), np.ones(512, np.uint8)
        run = launch(source, "k", (1,), (32,), x, out, np.int32(5), np.int32(there))
        assert run.findings == ()
        assert same(out, np.concatenate([x, np.zeros(512 - len(x), np.uint8)]))
        more = launch(source, "k", (1,), (32,), x, out, np.int32(5), np.int32(there + 1))
        assert [found.kind for found in more.findings] == ["out of bounds"]


@pytest.mark.parametrize("schedule", ["lockstep", "warp-serial", "backward", "random"])
def test_lanes_that_part_commit_a_copy_one_after_the_other(schedule: str) -> None:
    """Lanes from 8 on, which copy once, are ahead of the others: each lane waits for its own groups."""
    source = r"""extern "C" __global__ void k(const float* x, float* out) {
      __shared__ __align__(16) float s[2][128], more[2][32]; int t = threadIdx.x;
      for (int i = 0; i < 2; ++i) {
        unsigned p = (unsigned)__cvta_generic_to_shared(s[i] + 4 * t);
        unsigned q = (unsigned)__cvta_generic_to_shared(more[i] + 4 * t);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(p), "l"(x + 128 * i + 4 * t));
        if (t < 8)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(q), "l"(x + 32 * i + 4 * t));
        asm volatile("cp.async.commit_group;" ::: "memory");
      }
      for (int i = 0; i < 2; ++i) {
        if (i) asm volatile("cp.async.wait_group 0;" ::: "memory");
        else asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncwarp();
        for (int j = 0; j < 4; ++j) out[128 * i + 32 * j + t] = s[i][32 * j + t] + more[i][t];
      }
    }"""
    x, out = floats(np.float32, 256), np.zeros(256, np.float32)
    run = launch(source, "k", (1,), (32,), x, out, schedule=schedule)
    assert run.findings == ()
    extra = np.concatenate([np.tile(x[:32], 4), np.tile(x[32:64], 4)])
    assert same(out, x + extra)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_precision_pairs(kind: str) -> None:
    source = f"""extern "C" __global__ void k(const unsigned* x, unsigned* out) {{
      unsigned a = x[threadIdx.x], b = x[threadIdx.x + 32], c = x[threadIdx.x + 64], r;
      asm("fma.rn.{kind}x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); out[threadIdx.x] = r; }}"""
    values = RNG.standard_normal(192).astype(np.float32)
    if kind == "f16":
        packed = values.astype(np.float16).view(np.uint32)
        whole = packed.view(np.float16).astype(np.float64)
    else:
        top = (values.view(np.uint32) >> 16).astype(np.uint16)
        packed = top.view(np.uint32)
        whole = (top.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    out = np.zeros(32, np.uint32)
    launch(source, "k", (1,), (32,), packed, out)
    exact = whole[:64] * whole[64:128] + whole[128:]
    if kind == "f16":
        assert (out.view(np.float16) == exact.astype(np.float16)).all()
    else:
        found = (out.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        assert (np.abs(found - exact) <= np.abs(exact) * 2.0**-8).all()


@pytest.mark.parametrize(("kind", "k"), [("f16", 16), ("bf16", 16), ("tf32", 8)])
def test_tensor_core_products(kind: str, k: int) -> None:
    """One warp: C (16 x 8) = A (16 x k) B (k x 8), fragments loaded by the layout of the PTX ISA."""
    size = 4 if kind == "tf32" else 2
    element = "unsigned" if size == 4 else "unsigned short"
    per = 4 // size
    source = f"""typedef {element} E;
    __device__ unsigned pack(const E* p, int step) {{
      unsigned r = p[0]; if ({per} == 2) r |= (unsigned)p[step] << 16; return r; }}
    extern "C" __global__ void k(const E* a, const E* b, float* c) {{
      int l = threadIdx.x, g = l / 4, w = l % 4 * {per}; unsigned A[4], B[2]; float C[4] = {{0, 0, 0, 0}};
      for (int i = 0; i < 4; i++) A[i] = pack(a + (g + i % 2 * 8) * {k} + w + i / 2 * {4 * per}, 1);
      for (int i = 0; i < 2; i++) B[i] = pack(b + (w + i * {4 * per}) * 8 + g, 8);
      asm("mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32 {{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, "
        "{{%8,%9}}, {{%0,%1,%2,%3}};"
        : "+f"(C[0]), "+f"(C[1]), "+f"(C[2]), "+f"(C[3])
        : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
      for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + l % 4 * 2 + i % 2] = C[i];
    }}"""
    a, b = (RNG.integers(-8, 9, shape).astype(np.float32) for shape in ((16, k), (k, 8)))

    def raw(values: np.ndarray) -> np.ndarray:
        if kind == "tf32":
            return values.view(np.uint32)
        return (
            values.astype(np.float16).view(np.uint16)
            if kind == "f16"
            else (values.view(np.uint32) >> 16).astype(np.uint16)
        )

    c = np.zeros((16, 8), np.float32)
    run = launch(source, "k", (1,), (32,), raw(a), raw(b), c)
    assert run.findings == ()
    assert (c == a @ b).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(transposed: bool) -> None:
    how = ".trans" if transposed else ""
    source = f"""extern "C" __global__ void k(const unsigned short* x, unsigned* out) {{
      __shared__ __align__(16) unsigned short s[256]; int t = threadIdx.x; unsigned r[4];
      for (int i = 0; i < 8; i++) s[8 * t + i] = x[8 * t + i];
      __syncwarp();
      unsigned p = (unsigned)__cvta_generic_to_shared(s + 8 * t);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4{how}.shared.b16 {{%0,%1,%2,%3}}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p));
      for (int i = 0; i < 4; i++) out[32 * i + t] = r[i];
    }}"""
    x, out = np.arange(256, dtype=np.uint16), np.zeros(128, np.uint32)
    assert launch(source, "k", (1,), (32,), x, out).findings == ()
    matrices = x.reshape(4, 8, 8)
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    assert (out.view(np.uint16) == matrices.reshape(-1)).all()


def test_signed_atomics() -> None:
    source = """extern "C" __global__ void k(int* x, long long* y, int* old) {
      __shared__ int low[1]; __shared__ long long high[1];
      int t = threadIdx.x;
      if (t == 0) { low[0] = 5; high[0] = -5; }
      __syncthreads();
      atomicMin(low, 3 - t); atomicMax(high, (long long)t - 3);
      atomicMax(x, t - 40); atomicMin(y, -(1ll << 40) - t);
      old[t] = atomicMin(x + 1, -t);
      __syncthreads();
      if (t == 0) { x[2] = low[0]; y[1] = high[0]; }
    }"""
    x, y, old = np.array([-100, 7, 0], np.int32), np.zeros(2, np.int64), np.zeros(32, np.int32)
    assert launch(source, "k", (1,), (32,), x, y, old).findings == ()
    assert x.tolist() == [-9, -31, -28]
    assert y.tolist() == [-(1 << 40) - 31, 28]
    assert old.tolist() == [7, *(-t for t in range(31))]


def test_atomics_on_vectors_and_small_types() -> None:
    source = r"""extern "C" __global__ void k(float4* four, float2* two, float2* before,
      unsigned short* small, unsigned short* half, unsigned* pairs, unsigned short* was) {
      int t = threadIdx.x;
      atomicAdd(four, make_float4(1, 2, 3, t));
      before[t] = atomicAdd(two, make_float2(1, -1));
      was[t] = atomicCAS(small, (unsigned short)t, (unsigned short)(t + 1));
      asm volatile("red.global.add.noftz.f16 [%0], %1;" :: "l"(half), "h"((unsigned short)0x3C00));
      asm volatile("red.global.add.noftz.bf16 [%0], %1;" :: "l"(half + 1), "h"((unsigned short)0x3F80));
      asm volatile("red.global.add.noftz.f16x2 [%0], %1;" :: "l"(pairs), "r"(0x40003C00u));
      asm volatile("red.global.add.noftz.bf16x2 [%0], %1;" :: "l"(pairs + 1), "r"(0x40003F80u));
    }"""
    four, two, before = np.zeros(4, np.float32), np.zeros(2, np.float32), np.zeros((8, 2), np.float32)
    small, half = np.zeros(2, np.uint16), np.zeros(2, np.uint16)
    pairs, was = np.zeros(2, np.uint32), np.zeros(8, np.uint16)
    launch(source, "k", (1,), (8,), four, two, before, small, half, pairs, was)
    assert four.tolist() == [8, 16, 24, 28]
    assert two.tolist() == [8, -8] and before.tolist() == [[t, -t] for t in range(8)]
    assert small.tolist() == [8, 0] and was.tolist() == list(range(8))
    assert half.tolist() == [0x4800, 0x4100]  # 8 as f16 and as bf16
    assert pairs.tolist() == [0x4C004800, 0x41804100]  # 16 and 8


def test_a_variable_of_the_module_lives_from_launch_to_launch() -> None:
    source = """__device__ int counter = 3; __device__ float table[4] = {1, 2, 3, 4};
    __constant__ float scale;
    extern "C" __global__ void k(float* out) {
      if (threadIdx.x == 0) { atomicAdd(&counter, 1); table[1] += 10; }
      out[threadIdx.x] = scale * threadIdx.x + counter * 0;
    }"""
    out = np.zeros(4, np.float32)
    module = {"scale": np.array([2], np.float32).view(np.uint8)}
    for launches in (1, 2):
        launch(source, "k", (1,), (4,), out, variables=module)
        assert module["counter"].view(np.int32)[0] == 3 + launches
        assert module["table"].view(np.float32).tolist() == [1, 2 + 10 * launches, 3, 4]
        assert out.tolist() == [0, 2, 4, 6]
    with pytest.raises(EmulatorError, match="scale has 4 bytes, not 8"):
        launch(source, "k", (1,), (4,), out, variables={"scale": np.zeros(8, np.uint8)})


def test_variables_that_nothing_reaches_have_no_place() -> None:
    """Thousands of a template's would take more addresses than a machine gives."""
    source = """
    __device__ float read[4] = {1, 2, 3, 4}, behind[4] = {5, 6, 7, 8}, other[4] = {1};
    __device__ float* pointer = behind;
    extern "C" __global__ void k(float* out) { out[threadIdx.x] = read[threadIdx.x] + pointer[threadIdx.x]; }
    extern "C" __global__ void l(float* out) { out[threadIdx.x] = other[threadIdx.x]; }"""
    out, held = np.zeros(4, np.float32), dict[str, NDArray[np.uint8]]()
    launch(source, "k", (1,), (4,), out, variables=held)
    assert out.tolist() == [6, 8, 10, 12] and held.keys() == {"read", "behind", "pointer"}
    launch(source, "l", (1,), (4,), out, variables=held)
    assert out.tolist() == [1, 0, 0, 0] and held["read"].view(np.float32).tolist() == [1, 2, 3, 4]


def test_a_buffer_may_have_the_name_of_a_variable_that_nothing_reaches() -> None:
    source = """
    __device__ int cell; __device__ int* table = &cell;
    extern "C" __global__ void other(int* out) { out[0] = *table; }
    extern "C" __global__ void k(int* table) { table[threadIdx.x] = threadIdx.x; }"""
    table = np.zeros(4, np.int32)
    launch(source, "k", (1,), (4,), Buffer(array=table, name="table"))
    assert table.tolist() == [0, 1, 2, 3]
