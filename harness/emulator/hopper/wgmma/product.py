"""wgmma: products of 64 x N that a warpgroup begins together, with operands in shared memory or registers.

The product is computed where it begins, as in `sums`. That nothing touches its operands and accumulators
until it is waited for is what the clocks and the marks on registers check.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from harness.emulator.decode import Attempt, Decoder, handles, unset
from harness.emulator.group import Group, spread
from harness.emulator.hopper.grid import WARPGROUP
from harness.emulator.hopper.order.races import misuse, operation
from harness.emulator.hopper.wgmma.descriptors import descriptor, elements
from harness.emulator.hopper.wgmma.warpgroup import aligned, together, warpgroup_of
from harness.emulator.instructions.matrix.sums import WGMMA, summed
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import WINDOW
from harness.emulator.numbers.formats import decode
from harness.emulator.numbers.values import Array, Lanes
from harness.emulator.ptx.program import Instruction

_SIZE = {
    "bf16": 2,
    "f16": 2,
    "tf32": 4,
    "e4m3": 1,
    "e5m2": 1,
    "s8": 1,
    "u8": 1,
    "b1": 1,
}  # of b1 eight elements
_DEPTH = 32  # bytes of k in one instruction


def _flops(ins: Instruction) -> int:
    """Return a thread's share of a product's FLOP."""
    shape = next((part for part in ins.opcode if part.startswith("m64n")), "")
    if not shape:
        return 0
    columns, depth = shape[4:].split("k")
    return 2 * 64 * int(columns) * int(depth) // WARPGROUP


@handles("wgmma", flops=_flops)
def wgmma(decoder: Decoder, ins: Instruction) -> Attempt:
    """Decode ``wgmma``: fence, commit_group, wait_group and mma_async."""
    what = ins.opcode[1]
    if what == "fence":
        return together(decoder, ins, _fence)
    if what == "commit_group":
        return together(decoder, ins, _commit)
    if what == "wait_group":
        left = int(ins.operands[0], 0)
        return together(decoder, ins, lambda group, where: _wait(group, where, left))
    if what != "mma_async" or "sp" in ins.opcode:
        raise decoder.refusal(ins)
    return _product(decoder, ins)


def _fence(group: Group, where: Lanes) -> None:
    state = warpgroup_of(group)
    state.fenced = True
    state.touched = set()
    aligned(group, where)


def _commit(group: Group, where: Lanes) -> None:
    state = warpgroup_of(group)
    state.commit()


def _wait(group: Group, where: Lanes, left: int) -> None:
    state = warpgroup_of(group)
    block: Any = group.batch
    state.wait(left)
    clocks = block.cluster.clocks
    if clocks is not None:
        aligned(group, where)
        clocks.observe(block.rows(group, where), state.column, max(0, state.count - left))


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form of a product: `columns` and `depth` of m64nNkK, types, and the operands in registers."""

    columns: int
    depth: int
    to: str
    kinds: tuple[str, str]
    accumulators: tuple[int, ...]
    fragment: tuple[int, ...]


def _product(decoder: Decoder, ins: Instruction) -> Attempt:
    """Decode ``wgmma.mma_async`` of D, A, B, scale-d, the signs of A and B, their transposes."""
    decoder.parts(
        ins,
        {
            "mma_async",
            "sync",
            "aligned",
            "f32",
            "f16",
            "s32",
            "satfinite",
            "and",
            "popc",
            *_SIZE,
            *(p for p in ins.opcode if p.startswith("m64n")),
        },
    )
    columns, depth = (
        int(text) for text in next(p for p in ins.opcode if p.startswith("m64n"))[4:].split("k")
    )
    to, *kinds = [part for part in ins.opcode if part in _SIZE or part in ("f32", "f16", "s32")][:3]
    size = _SIZE[kinds[0]]
    if kinds[0] == "b1":
        depth //= 8  # in bytes, which are taken apart where they are multiplied
    names = [name.strip() for name in ins.operands[0].strip("{}").split(",")]
    registers = ins.operands[1].startswith("{")
    a_names = [name.strip() for name in ins.operands[1].strip("{}").split(",")]
    form = Form(
        columns=columns,
        depth=depth,
        to=to,
        kinds=(kinds[0], kinds[1]),
        accumulators=tuple(decoder.register(ins, name) for name in names),
        fragment=tuple(decoder.register(ins, name) for name in a_names) if registers else (),
    )
    expected = columns // (4 if to == "f16" else 2)
    if depth * size != _DEPTH or columns % 8 or not 8 <= columns <= 256 or len(names) != expected:
        raise decoder.refusal(ins)
    if registers and len(a_names) != 4:
        raise decoder.refusal(ins)
    read_a = None if registers else decoder.integer(ins, ins.operands[1], 64)
    read_b = decoder.integer(ins, ins.operands[2], 64)
    scale = decoder.predicate(ins, ins.operands[3]) if ins.operands[3] in decoder.numbers else None
    constant = ins.operands[3] != "0" if scale is None else True
    rest = [int(text, 0) for text in ins.operands[4:]]
    signs = (rest[0], rest[1]) if len(rest) >= 2 else (1, 1)
    across = tuple(bool(flag) for flag in rest[2:]) if len(rest) > 2 else (False, False)
    if registers:
        across = (False, across[0] if len(across) == 1 else across[-1])

    def act(group: Group, where: Lanes) -> None:
        adds = constant if scale is None else _uniform(group, ins, scale(group), "scale-d")
        _check_registers(group, ins, form, adds=adds)
        a_bits = None if read_a is None else _bits(group, ins, read_a(group))
        b_bits = _bits(group, ins, read_b(group))
        left = (
            _from_registers(group, form)
            if a_bits is None
            else _operand(group, ins, a_bits, 64, form.depth, form.kinds[0], across=across[0])
        )
        right = _operand(group, ins, b_bits, form.columns, form.depth, form.kinds[1], across=across[1])
        _accumulate(group, form, left * float(signs[0] * signs[1]), right, adds=adds)

    return together(decoder, ins, act)


def _uniform(group: Group, ins: Instruction, value: Lanes, what: str) -> bool:
    lanes = broadcast_mask(value, group.shape)
    if lanes.any() != lanes.all():
        misuse(group, ins, f"{what} differs among the threads of the warpgroup")
    return bool(lanes.all())


def _bits(group: Group, ins: Instruction, value: Any) -> int:
    """Return the descriptor that all threads of the warpgroup have."""
    if isinstance(value, int):
        return value & ((1 << 64) - 1)
    lanes = spread(value, group.shape)
    if (lanes != lanes[0, 0]).any():
        misuse(group, ins, "the descriptor differs among the threads of the warpgroup")
    return int(lanes[0, 0]) & ((1 << 64) - 1)


def _check_registers(group: Group, ins: Instruction, form: Form, *, adds: bool) -> None:
    """Report registers that were written after the last ``wgmma.fence``, or have no fence before them."""
    state = warpgroup_of(group)
    read = (*(form.accumulators if adds else ()), *form.fragment)
    late = [r for r in read if r in state.touched]
    if (never := next((r for r in read if group.registers[r] is None), None)) is not None:
        unset(group, ins, list(group.launch.entry.registers)[never])
    if not state.fenced:
        misuse(
            group, ins, "no wgmma.fence before the first product of the warpgroup", kind="missing wgmma.fence"
        )
    elif late:
        name = list(group.launch.entry.registers)[late[0]]
        misuse(
            group,
            ins,
            f"register {name} was written after the last wgmma.fence",
            kind="missing wgmma.fence",
        )
    state.begin(form.accumulators, form.fragment)


def _operand(
    group: Group, ins: Instruction, bits: int, rows: int, depth: int, kind: str, *, across: bool
) -> Array:
    """Return an operand in shared memory, float64 (rows, depth), and record that it is read."""
    block: Any = group.batch
    launch, cluster, size = group.launch, block.cluster, _SIZE[kind]
    if across and size != 2:
        misuse(group, ins, f"a transposed operand of {kind}; only 16-bit elements can be")
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


def _from_registers(group: Group, form: Form) -> Array:
    """Return A from registers, float64 (64, depth) (PTX ISA, "Register Fragments for wgmma")."""
    kind = form.kinds[0]
    packed = 4 // _SIZE[kind]
    thread = np.arange(WARPGROUP)
    row, within = thread // 32 * 16 + thread % 32 // 4, thread % 4
    found = np.zeros((64, form.depth))
    for i, register in enumerate(form.fragment):
        whole = np.broadcast_to(group.floating(_held(group, register), np.float32), group.shape)
        bits = np.ascontiguousarray(whole).view(f"u{_SIZE[kind]}").reshape(WARPGROUP, packed)
        values = widened(bits, kind)
        for j in range(packed):
            found[row + i % 2 * 8, within * packed + j + i // 2 * 4 * packed] = values[:, j]
    return found


def _held(group: Group, register: int) -> Any:
    value = group.registers[register]
    return 0 if value is None else value


@cache
def _places(columns: int) -> tuple[Array, Array]:
    """Return (rows, columns) of the accumulators of each thread, (128, columns / 2)."""
    thread, i = np.arange(WARPGROUP)[:, None], np.arange(columns // 2)[None, :]
    return thread // 32 * 16 + thread % 32 // 4 + i % 4 // 2 * 8, i // 4 * 8 + thread % 4 * 2 + i % 2


def _accumulate(group: Group, form: Form, left: Array, right: Array, *, adds: bool) -> None:
    """Add the products of (64, depth) and (columns, depth) to the accumulators, or set them."""
    rows, columns = _places(form.columns)
    old = np.zeros((64, form.columns))
    if adds:
        old[rows, columns] = _sums(group, form)
    if form.kinds[0] == "b1":
        left, right = (np.unpackbits(x.astype(np.uint8), axis=1).astype(np.float64) for x in (left, right))
    if form.to == "s32":
        total = np.matmul(left, right.T) + old
        found = (total[rows, columns].astype(np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    else:
        mine = summed(left, right.T, old, form.kinds, form.to, WGMMA[form.kinds[0]])[rows, columns]
        with np.errstate(over="ignore"):  # to infinity
            found = mine.astype(np.float16 if form.to == "f16" else np.float32)
        found = np.ascontiguousarray(found).view(np.float32)
    views = [found[:, i : i + 1] for i in range(found.shape[1])]
    for register, view in zip(form.accumulators, views, strict=True):
        group.registers[register] = view
    group.sums[form.accumulators] = (found, views)


def _sums(group: Group, form: Form) -> Array:
    """Return the accumulators of each thread, (128, columns / 2): float64, or of s32 its values."""
    held, views = group.sums.get(form.accumulators, (None, ()))
    registers = group.registers
    if held is None or any(registers[r] is not v for r, v in zip(form.accumulators, views, strict=True)):
        held = np.concatenate(
            [
                np.broadcast_to(group.floating(_held(group, r), np.float32), group.shape)
                for r in form.accumulators
            ],
            axis=1,
        )
    if form.to == "s32":
        return np.ascontiguousarray(held).view(np.int32).astype(np.float64)
    if form.to == "f16":
        return np.ascontiguousarray(held).view(np.float16).astype(np.float64)
    found: Array = held.astype(np.float64)
    return found
