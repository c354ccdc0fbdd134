"""Bytes and halves within a register, carries, and conversions of NaN, against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from shared.emulator_kernels import launch

RNG = np.random.default_rng(8)
X, Y = (RNG.integers(0, 1 << 32, 64, dtype=np.uint64).astype(np.uint32) for _ in range(2))


def parts(value: int, width: int, signed: bool) -> list[int]:
    found = [int(value) >> place & (1 << width) - 1 for place in range(0, 32, width)]
    return [v - (1 << width) if signed and v >> (width - 1) else v for v in found]


def clipped(low: int, high: int) -> Callable[[int], int]:
    return lambda v: max(low, min(high, v))


# C++ of a and b -> (bits of an element, signed, function of two elements)
SIMD: dict[str, tuple[int, bool, Callable[[int, int], int]]] = {
    "__vadd2(a, b)": (16, False, lambda p, q: p + q),
    "__vaddss2(a, b)": (16, True, lambda p, q: clipped(-(1 << 15), (1 << 15) - 1)(p + q)),
    "__vsubus4(a, b)": (8, False, lambda p, q: clipped(0, 255)(p - q)),
    "__vmaxs2(a, b)": (16, True, max),
    "__vminu2(a, b)": (16, False, min),
    "__vabsdiffu4(a, b)": (8, False, lambda p, q: abs(p - q)),
    "__vavgu4(a, b)": (8, False, lambda p, q: (p + q + 1) >> 1),
    "__vcmpgtu4(a, b)": (8, False, lambda p, q: 255 * (p > q)),
}


@pytest.mark.parametrize("arch", ["compute_80", "compute_100"])
def test_elements_of_a_register(arch: str) -> None:
    lines = "".join(f"o[{64 * i} + i] = {text};" for i, text in enumerate(SIMD))
    out = np.zeros(64 * len(SIMD), np.uint32)
    source = f"""extern "C" __global__ void k(const unsigned* pa, const unsigned* pb, unsigned* o) {{
      int i = threadIdx.x; unsigned a = pa[i], b = pb[i]; {lines} }}"""
    launch(source, "k", (1,), (64,), X, Y, out, arch=arch)
    for row, (text, (width, signed, function)) in zip(out.reshape(-1, 64), SIMD.items(), strict=True):
        for found, x, y in zip(row, X, Y, strict=True):
            pairs = zip(parts(x, width, signed), parts(y, width, signed), strict=True)
            wanted = sum((function(p, q) & (1 << width) - 1) << width * i for i, (p, q) in enumerate(pairs))
            assert found == wanted, text


# PTX of a and b (%1, %2) into %0 -> the same in Python
TEXT: dict[str, Callable[[int, int], int]] = {
    "dp4a.u32.u32 %0, %1, %2, 5;": lambda a, b: (
        5 + sum(p * q for p, q in zip(parts(a, 8, False), parts(b, 8, False), strict=True))
    ),
    "{.reg.b32 t; add.cc.u32 t, %1, %2; addc.u32 %0, %1, 0;}": lambda a, b: a + (a + b >> 32),
    "{.reg.b32 t; sub.cc.u32 t, %1, %2; subc.u32 %0, %1, 0;}": lambda a, b: a - (a < b),
    "{.reg.b32 t; mad.lo.cc.u32 t, %1, %2, %1; madc.hi.u32 %0, %1, %2, 0;}": lambda a, b: (a * b + a) >> 32,
    "bmsk.clamp.b32 %0, 5, 9;": lambda a, b: 0x1FF << 5,
    "szext.wrap.u32 %0, %1, 12;": lambda a, b: a & 0xFFF,
    "prmt.b32.b4e %0, %1, %2, 1;": lambda a, b: (
        (a >> 8 & 255) | (a & 255) << 8 | (b >> 24) << 16 | (b >> 16 & 255) << 24
    ),
    "sad.u32 %0, %1, %2, 3;": lambda a, b: abs(a - b) + 3,
    "vabsdiff4.u32.u32.u32.add %0, %1, %2, 1;": lambda a, b: (
        1 + sum(abs(p - q) for p, q in zip(parts(a, 8, False), parts(b, 8, False), strict=True))
    ),
    "vadd.s32.s32.u32.sat %0, %1.h1, %2.b3;": lambda a, b: parts(a, 16, True)[1] + parts(b, 8, False)[3],
    "vadd.u32.u32.u32.sat %0.b1, %1.b0, %2.b0, %2;": lambda a, b: (
        b & ~0xFF00 | min(255, (a & 255) + (b & 255)) << 8
    ),
    "vsub.s32.u32.u32.max %0, %1.h0, %2.h0, -9;": lambda a, b: max((a & 0xFFFF) - (b & 0xFFFF), -9),
    "vset.u32.u32.lt.add %0, %1, %2, 7;": lambda a, b: 7 + (a < b),
    "vshl.u32.u32.u32.wrap %0, %1, %2;": lambda a, b: a << (b & 31),
    "vshr.s32.s32.u32.clamp %0, %1, %2.b0;": lambda a, b: (a ^ 1 << 31) - (1 << 31) >> min(b & 255, 32),
    "vmad.u32.u32.u32.sat %0, %1, %2, 5;": lambda a, b: min(a * b + 5, 0xFFFFFFFF),
    "vmad.s32.s32.s32.shr7 %0, %1.h0, -%2.h1, %1;": lambda a, b: (
        parts(a, 16, True)[0] * -parts(b, 16, True)[1] + parts(a, 32, True)[0] >> 7
    ),
    "vmad.u32.u32.u32.po.shr15 %0, %1.h0, %2.h0, %2;": lambda a, b: (a & 0xFFFF) * (b & 0xFFFF) + b + 1 >> 15,
    "vadd2.u32.u32.u32 %0.h1, %1.h02, %2.h31, %2;": lambda a, b: (
        b & 0xFFFF | ((a & 0xFFFF) + (b >> 16) & 0xFFFF) << 16
    ),
    "vmax4.s32.s32.s32.add %0.b20, %1, %2, 3;": lambda a, b: (
        3 + sum(max(p, q) for p, q in list(zip(parts(a, 8, True), parts(b, 8, True), strict=True))[::2])
    ),
    "slct.u32.s32 %0, %1, %2, %2;": lambda a, b: a if b < 1 << 31 else b,
    "cvt.rzi.s32.f64 %0, 0d7FF8000000000000;": lambda a, b: 1 << 31,
    "cvt.rzi.s32.f32 %0, 0f7FC00000;": lambda a, b: 0,
}


@pytest.mark.parametrize("text", TEXT)
def test_instructions_by_themselves(text: str) -> None:
    out = np.zeros(64, np.uint32)
    source = f"""extern "C" __global__ void k(const unsigned* a, const unsigned* b, unsigned* o) {{
      int i = threadIdx.x; unsigned r;
      asm volatile("{text}" : "=r"(r) : "r"(a[i]), "r"(b[i])); o[i] = r; }}"""
    run = launch(source, "k", (1,), (64,), X, Y, out)
    assert run.findings == ()
    assert out.tolist() == [
        TEXT[text](a, b) & 0xFFFFFFFF for a, b in zip(X.tolist(), Y.tolist(), strict=True)
    ]
