"""Operands of wgmma as matrices: from shared memory by a descriptor, or from the registers of a warpgroup."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from harness.emulator.group import Group
from harness.emulator.hopper.grid import WARPGROUP
from harness.emulator.hopper.order.races import misuse, operation
from harness.emulator.hopper.wgmma.descriptors import descriptor, elements
from harness.emulator.hopper.wgmma.warpgroup import warpgroup_of
from harness.emulator.memory import WINDOW
from harness.emulator.numbers.formats import decode
from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction
from harness.errors import NeedsGpu

# The bytes of an element; of b1 eight elements.
SIZE = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1, "b1": 1}


def from_shared(
    group: Group, ins: Instruction, bits: int, rows: int, depth: int, kind: str, *, across: bool
) -> Array:
    """Return an operand in shared memory, float64 (rows, depth), and record that it is read."""
    block: Any = group.batch
    launch, cluster, size = group.launch, block.cluster, SIZE[kind]
    if across and size != 2:
        misuse(group, ins, f"a transposed operand of {kind}; only 16-bit elements can be")
    swizzle = descriptor(bits).swizzle
    if not across and 0 < swizzle < depth * size:
        raise NeedsGpu(
            f"the emulator does not know how {depth * size} bytes of k lie in a swizzle of {swizzle} bytes",
            hint=f"{ins.source} (PTX line {ins.ptx_line}): one of {depth * size} or more has them in a row",
        )
    least, end, index, places = _located(bits, rows, depth, size, across, block.rank, launch.grain)
    if end > launch.shared_size or least < 0:
        misuse(
            group,
            ins,
            f"an operand reaches byte {end} of shared memory, of which there are {launch.shared_size:,}",
            kind="out of bounds",
        )
        return np.zeros((rows, depth))
    memory = cluster.shared.flat().view(f"u{size}")
    written = cluster.shared.written().view(f"u{size}")[index]
    if launch.check and not written.all():
        misuse(group, ins, "reads shared memory that was never written", kind="uninitialised read")
    if cluster.clocks is not None:
        state = warpgroup_of(group)
        rows_ = block.rows(group, True).reshape(-1, 32)
        operation(
            block,
            ins,
            "read",
            places,
            cluster.clocks.shared(rows_),
            (state.column, state.count + 1),
            what="a wgmma",
        )
    return widened(memory[index], kind)


@lru_cache(maxsize=256)
def _located(
    bits: int, rows: int, depth: int, size: int, across: bool, rank: int, grain: int
) -> tuple[int, int, Array, Array]:
    """Return (first byte, end, index, places) of an operand: its bytes in the shared memory of its block,
    the place of each element, (rows, depth), in that of the cluster, and all its places there, of `grain`
    bytes each. Loops come to the same operands again and again.
    """
    address = elements(descriptor(bits), rows, depth, size, across=across)
    least, end = int(address.min()), int(address.max()) + size
    address = address + (rank << WINDOW)
    places = np.unique(address.ravel() // grain)
    if size > grain:
        places = np.unique(places[:, None] + np.arange(size // grain))
    index = address // size
    for kept in (index, places):
        kept.flags.writeable = False
    return least, end, index, places


def widened(bits: Array, kind: str) -> Array:
    """Return elements given by their bits as float64; of tf32 the upper 19 bits count."""
    if kind in ("s8", "u8", "b1"):
        return np.ascontiguousarray(bits).view("i1" if kind == "s8" else "u1").astype(np.float64)
    if kind == "tf32":
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if kind == "f16":
        return np.ascontiguousarray(bits).view(np.float16).astype(np.float64)
    return decode(bits, kind)


def from_registers(group: Group, fragment: tuple[int, ...], depth: int, kind: str) -> Array:
    """Return A from registers, float64 (64, depth) (PTX ISA, "Register Fragments for wgmma")."""
    packed = 4 // SIZE[kind]
    thread = np.arange(WARPGROUP)
    row, within = thread // 32 * 16 + thread % 32 // 4, thread % 4
    found = np.zeros((64, depth))
    for i, register in enumerate(fragment):
        whole = np.broadcast_to(group.floating(value_of(group, register), np.float32), group.shape)
        bits = np.ascontiguousarray(whole).view(f"u{SIZE[kind]}").reshape(WARPGROUP, packed)
        values = widened(bits, kind)
        for j in range(packed):
            found[row + i % 2 * 8, within * packed + j + i // 2 * 4 * packed] = values[:, j]
    return found


def value_of(group: Group, register: int) -> Any:
    """Return the value of a register, 0 of one that nothing has written."""
    value = group.registers[register]
    return 0 if value is None else value
