"""wgmma: products of 64 x N that a warpgroup begins together, with operands in shared memory or registers.

The product is computed where it begins, as in `sums`. That nothing touches its operands and accumulators
until it is waited for is what the clocks and the marks on registers check.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from harness.emulator.decode import Attempt, Decoder, handles, unset
from harness.emulator.group import Group, spread
from harness.emulator.hopper.grid import WARPGROUP
from harness.emulator.hopper.order.races import misuse
from harness.emulator.hopper.wgmma.operands import SIZE, from_registers, from_shared, value_of
from harness.emulator.hopper.wgmma.sparse import Metadata, metadata_of
from harness.emulator.hopper.wgmma.warpgroup import aligned, together, warpgroup_of
from harness.emulator.instructions.matrix.sums import WGMMA, summed
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.numbers.values import Array, Lanes
from harness.emulator.ptx.program import Instruction

_DEPTH = 32  # bytes of k in one instruction, of those that are stored of A


def _flops(ins: Instruction) -> int:
    """Return a thread's share of a product's FLOP; of a sparse one those of the elements that are stored."""
    shape = next((part for part in ins.opcode if part.startswith("m64n")), "")
    if not shape:
        return 0
    columns, depth = shape[4:].split("k")
    return 2 * 64 * int(columns) * int(depth) // WARPGROUP // (2 if "sp" in ins.opcode else 1)


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
    if what != "mma_async":
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
    """The form of a product: `columns` and `depth` of m64nNkK, types, and the operands in registers.

    metadata: of a sparse product, where the elements lie that are stored of A
    """

    columns: int
    depth: int
    to: str
    kinds: tuple[str, str]
    accumulators: tuple[int, ...]
    fragment: tuple[int, ...]
    satfinite: bool
    metadata: Metadata | None

    @property
    def stored(self) -> int:
        """Return how many elements of a row of A are stored."""
        return self.depth if self.metadata is None else self.depth // 2


def _product(decoder: Decoder, ins: Instruction) -> Attempt:
    """Decode ``wgmma.mma_async`` of D, A, B, scale-d, the signs of A and B, their transposes.

    A sparse one, ``.sp``, has metadata and a selector behind B.
    """
    decoder.parts(
        ins,
        {
            "mma_async",
            "sp",
            "sync",
            "aligned",
            "f32",
            "f16",
            "s32",
            "satfinite",
            "and",
            "popc",
            *SIZE,
            *(p for p in ins.opcode if p.startswith("m64n")),
        },
    )
    columns, depth = (
        int(text) for text in next(p for p in ins.opcode if p.startswith("m64n"))[4:].split("k")
    )
    to, *kinds = [part for part in ins.opcode if part in SIZE or part in ("f32", "f16", "s32")][:3]
    size = SIZE[kinds[0]]
    if kinds[0] == "b1":
        depth //= 8  # in bytes, which are taken apart where they are multiplied
    metadata = metadata_of(decoder, ins, kinds[0]) if "sp" in ins.opcode else None
    given = ins.operands if metadata is None else (*ins.operands[:3], *ins.operands[5:])
    names = [name.strip() for name in given[0].strip("{}").split(",")]
    registers = given[1].startswith("{")
    a_names = [name.strip() for name in given[1].strip("{}").split(",")]
    form = Form(
        columns=columns,
        depth=depth,
        to=to,
        kinds=(kinds[0], kinds[1]),
        accumulators=tuple(decoder.register(ins, name) for name in names),
        fragment=tuple(decoder.register(ins, name) for name in a_names) if registers else (),
        satfinite="satfinite" in ins.opcode,
        metadata=metadata,
    )
    expected = columns // (4 if to == "f16" else 2)
    if form.stored * size != _DEPTH or columns % 8 or not 8 <= columns <= 256 or len(names) != expected:
        raise decoder.refusal(ins)
    if registers and len(a_names) != 4:
        raise decoder.refusal(ins)
    read_a = None if registers else decoder.integer(ins, given[1], 64)
    read_b = decoder.integer(ins, given[2], 64)
    scale = decoder.predicate(ins, given[3]) if given[3] in decoder.numbers else None
    constant = given[3] != "0" if scale is None else True
    rest = [int(text, 0) for text in given[4:]]
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
            from_registers(group, form.fragment, form.stored, form.kinds[0])
            if a_bits is None
            else from_shared(group, ins, a_bits, 64, form.stored, form.kinds[0], across=across[0])
        )
        right = from_shared(group, ins, b_bits, form.columns, form.depth, form.kinds[1], across=across[1])
        kept = None
        if form.metadata is not None:
            if not np.isfinite(right).all():
                kept = form.metadata.expanded(group, ins, np.ones_like(left)) != 0
            left = form.metadata.expanded(group, ins, left)
        _accumulate(group, form, left * float(signs[0] * signs[1]), right, kept, adds=adds)

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


@cache
def _places(columns: int) -> tuple[Array, Array]:
    """Return (rows, columns) of the accumulators of each thread, (128, columns / 2)."""
    thread, i = np.arange(WARPGROUP)[:, None], np.arange(columns // 2)[None, :]
    return thread // 32 * 16 + thread % 32 // 4 + i % 4 // 2 * 8, i // 4 * 8 + thread % 4 * 2 + i % 2


def _accumulate(
    group: Group, form: Form, left: Array, right: Array, kept: Array | None, *, adds: bool
) -> None:
    """Add the products of (64, depth) and (columns, depth) to the accumulators, or set them.

    kept: which elements of `left` are stored, see `summed`
    """
    rows, columns = _places(form.columns)
    old = np.zeros((64, form.columns))
    if adds:
        old[rows, columns] = _sums(group, form)
    if form.kinds[0] == "b1":
        left, right = (np.unpackbits(x.astype(np.uint8), axis=1).astype(np.float64) for x in (left, right))
    if form.to == "s32":
        total = np.matmul(left, right.T) + old
        if form.satfinite:
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        found = (total[rows, columns].astype(np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    else:
        model = WGMMA[form.kinds[0]]
        if form.metadata is not None:  # half of the products are zero and no terms of a sum
            model = replace(model, terms=2 * model.terms)
        mine = summed(left, right.T, old, form.kinds, form.to, model, kept)[rows, columns]
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
                np.broadcast_to(group.floating(value_of(group, r), np.float32), group.shape)
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
