"""Forms of PTX that no compiler makes and inline assembly has, against plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import Buffer, emulate
from harness.errors import NeedsGpu
from shared.emulator_kernels import compile_ptx

RNG = np.random.default_rng(3)
NUMBERS = np.concatenate(
    [[0, 1, -1, 127, 128, -129, 255, 256, 70000, -70000, 2**31 - 1, -(2**31)], RNG.integers(-300, 300, 20)]
).astype(np.int32)
A, B, C = NUMBERS, np.roll(NUMBERS, 5), np.roll(NUMBERS, 11)


def outcome(text: str, registers: str = "") -> np.ndarray:
    """Run instructions that make %0 of %1, %2 and %3, one thread an element."""
    source = f"""extern "C" __global__ void k(const int* a, const int* b, const int* c, int* y) {{
      int t = threadIdx.x, r = 0;
      asm volatile("{{ {registers} {text} }}" : "+r"(r) : "r"(a[t]), "r"(b[t]), "r"(c[t]) : "memory");
      y[t] = r;
    }}"""
    y = np.zeros(32, np.int32)
    arguments = [Buffer(array=x.copy(), name=n) for n, x in zip("abc", (A, B, C), strict=True)]
    ptx = compile_ptx(source, "compute_90a")
    run = emulate(ptx, "k", grid=(1,), block=(32,), arguments=[*arguments, Buffer(array=y, name="y")])
    assert run.findings == ()
    return y


@pytest.mark.parametrize("to", ["u2", "s2", "u4", "s4", "u8", "s8", "u16", "s16"])
def test_two_integers_are_packed(to: str) -> None:
    bits, signed = int(to[1:]), to[0] == "s"
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def cut(value: int) -> int:
        return min(max(value, least), most) & (1 << bits) - 1

    wide = bits < 16
    found = outcome(f"cvt.pack.sat.{to}.s32{'.b32' if wide else ''} %0, %1, %2{', %3' if wide else ''};")
    wanted = [
        ((int(c) << 2 * bits if wide else 0) | cut(int(a)) << bits | cut(int(b))) & 0xFFFFFFFF
        for a, b, c in zip(A, B, C, strict=True)
    ]
    assert found.view(np.uint32).tolist() == wanted


@pytest.mark.parametrize(
    "text",
    [
        "cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;",
        *("cvt.pack.sat.u16.s32 %0, %1, %2;", "mov.b32 %0, w+0x8;", "mov.b32 %0, w+-4;", "mov.b32 %0, w-4;"),
    ],
)
def test_a_form_is_read(text: str) -> None:
    emulated(text)


@pytest.mark.parametrize(
    "text",
    [
        "cvt.pack.u8.s32.b32 %0, %1, %2, %3;",
        "cvt.pack.sat.u8.s32 %0, %1, %2;",
        "cvt.pack.sat.u16.s32.b32 %0, %1, %2, %3;",
        "cvt.pack.s32.sat.u16 %0, %1, %2;",
        "mov.b32 %0, %1+4;",
    ],
)
def test_a_form_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(NeedsGpu, match="does not know"):
        emulated(text)


def emulated(text: str) -> None:
    """Emulate an instruction of PTX: NVRTC need not take it."""
    for place in range(4):
        text = text.replace(f"%{place}", f"%r{place}")
    ptx = f""".version 8.3
.target sm_90a
.address_size 64
.visible .entry k() {{
.reg .b32 %r<4>; .shared .align 8 .b8 w[16];
mov.u32 %r1, 1; mov.u32 %r2, 2; mov.u32 %r3, 3;
{text}
ret; }}"""
    emulate(ptx, "k", grid=(1,), block=(1,), arguments=[])


@pytest.mark.parametrize("sign", ["u32", "s32"])
def test_the_upper_part_of_24_bit_products(sign: str) -> None:
    def low(value: int) -> int:
        bits = value & 0xFFFFFF
        return bits - (1 << 24) if sign == "s32" and bits >> 23 else bits

    high = [low(int(a)) * low(int(b)) >> 16 & 0xFFFFFFFF for a, b in zip(A, B, strict=True)]
    assert outcome(f"mul24.hi.{sign} %0, %1, %2;").view(np.uint32).tolist() == high
    summed = [(h + int(c)) & 0xFFFFFFFF for h, c in zip(high, C, strict=True)]
    assert outcome(f"mad24.hi.{sign} %0, %1, %2, %3;").view(np.uint32).tolist() == summed


@pytest.mark.parametrize("joins", ["and", "or"])
def test_a_predicate_of_lop3(joins: str) -> None:
    text = f"setp.gt.s32 q, %3, 0; lop3.{joins}.b32 r|p, %1, %2, %3, 0x80, q; selp.b32 %0, 1, 0, p;"
    found = outcome(text + f" lop3.{joins}.b32 _|p, %1, %2, %3, 0x80, !q;", ".reg .pred p, q; .reg .b32 r;")
    some, given = (A & B & C) != 0, C > 0
    assert found.tolist() == (some & given if joins == "and" else some | given).astype(int).tolist()


def test_addresses_with_an_offset_and_loads_of_devices() -> None:
    text = (
        "mov.u32 s, words+8; st.mmio.relaxed.sys.global.u32 [g], %1; ld.mmio.relaxed.sys.global.u32 r, [g];"
        " st.shared.u32 [s], r; ld.shared.u32 %0, [words+8];"
        " fence.acquire.sync_restrict::shared::cluster.cluster;"
        " fence.release.sync_restrict::shared::cta.cluster;"
    )
    source = f"""extern "C" __global__ void k(int* y) {{
      int r;
      asm volatile("{{ .shared .align 8 .b8 words[16]; .reg .u32 s, r; .reg .u64 g;"
                   " cvta.to.global.u64 g, %2; {text} }}"
                   : "=r"(r) : "r"(7), "l"(y) : "memory");
      y[1] = r;
    }}"""
    y = np.zeros(2, np.int32)
    run = emulate(
        compile_ptx(source, "compute_90a"), "k", grid=(1,), block=(1,), arguments=[Buffer(array=y, name="y")]
    )
    assert run.findings == () and y.tolist() == [7, 7]
