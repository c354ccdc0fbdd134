"""Kernels in a straight line, each memory access with its own source line, and what each thread does there.

A kernel is a list of `Step`s, which `ptx` writes down. From the same list, in plain Python, tests find what
each thread of each block accesses, and compare what the emulator says with what follows from that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator import Buffer, Emulation, emulate

Extents = tuple[int, int, int]
ORDERS = {"bar": "bar.sync 0;", "warp": "bar.warp.sync -1;", "wait": "cp.async.wait_all;"}


@dataclass(frozen=True)
class Step:
    """One access, a barrier (``bar`` of the block, ``warp`` of each warp) or a ``wait`` for all copies.

    kind: ``ld``, ``st``, ``atom``, or ``cp`` for a cp.async of 4, 8 or 16 bytes into shared memory
    size: bytes per thread, 1 to 16; 16 is a vector of four words
    thread, block, start, wrap: thread t of block b accesses byte ``(t thread + b block + start) % wrap``,
      without the remainder where `wrap` is 0
    limit, blocks: only threads and blocks below them take part, in a barrier all threads of those blocks
    value: what a store writes; None for a number of each thread's own, see `own`
    """

    kind: str
    size: int = 4
    thread: int = 4
    block: int = 0
    start: int = 0
    wrap: int = 0
    limit: int = 1024
    blocks: int = 1 << 30
    value: int | None = None

    def address(self, thread: int, block: int) -> int:
        found = thread * self.thread + block * self.block + self.start
        return found % self.wrap if self.wrap else found

    def bytes(self, thread: int, block: int) -> range:
        """Return the bytes that a thread accesses; none for a barrier or a wait, or if it takes no part."""
        if self.kind in ORDERS or thread >= self.limit or block >= self.blocks:
            return range(0)
        first = self.address(thread, block)
        return range(first, first + self.size)


def own(thread: int, block: int) -> int:
    """Return the number that a thread stores where a step has no value: another one in each of 64 threads."""
    return thread + 64 * block + 1


HEAD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b) {{
.reg .pred %p<2>;
.reg .b16 %h<2>;
.reg .b32 %r<16>;
.reg .b64 %rd<9>;
.shared .align 16 .b8 s[{shared}];
.local .align 16 .b8 l[{local}];
.file 1 "k.cu"
mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z;
mov.u32 %r3, %ntid.x; mov.u32 %r4, %ntid.y;
mad.lo.u32 %r1, %r2, %r4, %r1; mad.lo.u32 %r0, %r1, %r3, %r0;
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;
mov.u32 %r4, %nctaid.x; mov.u32 %r5, %nctaid.y;
mad.lo.u32 %r2, %r3, %r5, %r2; mad.lo.u32 %r1, %r2, %r4, %r1;
ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];
mov.u32 %r13, 0; mad.lo.u32 %r14, %r1, 64, %r0; add.u32 %r14, %r14, 1;
"""
# What follows a load: the words that it gave are folded into the thread's sum.
FOLD = {
    1: "cvt.u32.u16 %r9, %h1;",
    2: "cvt.u32.u16 %r9, %h1;",
    4: "",
    8: "mov.b64 {%r9, %r10}, %rd4;",
    16: "",
}
WORDS = {1: 1, 2: 1, 4: 1, 8: 2, 16: 4}
# At the end each thread stores its sum: thread t of block b as element b T + t of the buffer b.
TAIL = """
mov.u32 %r3, %ntid.x; mov.u32 %r4, %ntid.y; mul.lo.u32 %r3, %r3, %r4;
mov.u32 %r4, %ntid.z; mul.lo.u32 %r3, %r3, %r4; mad.lo.u32 %r3, %r1, %r3, %r0;
mul.wide.u32 %rd3, %r3, 4; add.s64 %rd2, %rd2, %rd3;
.loc 1 99 0
st.global.u32 [%rd2], %r13;
ret;
}
"""
TYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "v4.u32"}
DATA = {1: "%h1", 2: "%h1", 4: "%r9", 8: "%rd4", 16: "{%r9, %r9, %r9, %r9}"}
LOADED = DATA | {16: "{%r9, %r10, %r11, %r12}"}


def ptx(space: str, steps: Sequence[Step], room: int = 256) -> str:
    """Write a kernel down: step i is of line i + 1. In shared and local memory it has `room` bytes."""
    out = [HEAD.format(shared=room if space == "shared" else 16, local=room if space == "local" else 16)]
    for line, step in enumerate(steps, 1):
        out.append(f".loc 1 {line} 0")
        out.append(f"setp.lt.u32 %p0, %r1, {step.blocks};")
        if step.kind in ORDERS:
            out.append(f"@%p0 {ORDERS[step.kind]}")
            continue
        value = "%r14" if step.value is None else step.value
        out.append(f"mul.lo.s32 %r6, %r0, {step.thread}; mad.lo.s32 %r6, %r1, {step.block}, %r6;")
        out.append(
            f"add.s32 %r6, %r6, {step.start};" + (f" rem.s32 %r6, %r6, {step.wrap};" if step.wrap else "")
        )
        out.append(f"mov.u32 %r9, {value}; cvt.u16.u32 %h1, %r9; cvt.u64.u32 %rd4, %r9;")
        if space == "global":
            out.append("cvt.s64.s32 %rd3, %r6; add.s64 %rd3, %rd1, %rd3;")
        else:
            out.append(f"mov.u32 %r7, {space[0]}; add.s32 %r7, %r7, %r6;")
        at = "[%rd3]" if space == "global" else "[%r7]"
        out.append(f"setp.lt.u32 %p1, %r0, {step.limit}; and.pred %p1, %p1, %p0;")
        if step.kind == "ld":
            out.append(f"@%p1 ld.{space}.{TYPES[step.size]} {LOADED[step.size]}, {at};")
            out.append(FOLD[step.size])
            folded = [f"@%p1 mad.lo.u32 %r13, %r13, 3, %r{9 + i};" for i in range(WORDS[step.size])]
            out += folded
        elif step.kind == "cp":
            out.append(f"@%p1 cp.async.ca.shared.global {at}, [%rd1], {step.size};")
        elif step.kind == "st":
            out.append(f"@%p1 st.{space}.{TYPES[step.size]} {at}, {DATA[step.size]};")
        else:
            out.append(f"@%p1 atom.{space}.add.u32 %r10, {at}, %r9;")
    return "\n".join([*out, TAIL])


def run(
    space: str,
    steps: Sequence[Step],
    *,
    grid: Extents = (1, 1, 1),
    block: Extents = (32, 1, 1),
    room: int = 256,
    a: Buffer | None = None,
    b: Buffer | None = None,
    **options: Any,
) -> Emulation:
    """Run the kernel, whose global accesses are to the buffer `a`, and whose sums go to `b`."""
    none = Buffer(array=np.zeros(4, np.uint32), name="none")
    sums = Buffer(array=np.zeros(math.prod(grid) * math.prod(block), np.uint32), name="sums")
    return emulate(
        ptx(space, steps, room),
        "k",
        grid=grid,
        block=block,
        arguments=[a or none, b or sums],
        **options,
    )
