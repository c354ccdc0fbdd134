"""TMA: ``cp.async.bulk`` and ``cp.async.bulk.tensor``, to and from shared memory, and their groups.

A copy to shared memory completes at an mbarrier, by the bytes of its whole box; a copy from shared memory in
the bulk group that its thread commits. What a copy does it does when it lands, see `Cluster.begin`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator.decode import Attempt, Decoder, Reader, Run, handles
from harness.emulator.group import Group, spread
from harness.emulator.hopper.grid import Cluster
from harness.emulator.hopper.order.global_memory import STORES
from harness.emulator.hopper.order.races import misuse
from harness.emulator.hopper.tma import tensormap
from harness.emulator.hopper.tma.boxes import gather
from harness.emulator.hopper.tma.transfer import Transfer, groups_of, unaligned
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import SHARED_BASE, WINDOW
from harness.emulator.numbers.values import Integer, Lanes, mask_of
from harness.emulator.ptx.program import Instruction

_REDUCTIONS = {"add", "min", "max", "and", "or", "xor", "inc", "dec"}
_BOX = re.compile(r"\[\s*([\w$%.]+)\s*,\s*\{([^}]*)\}\s*\]")  # a tensor map and the indices of a box
_ELEMENTS = {
    "f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "s32": "INT32", "s64": "INT64",
}  # fmt: skip


@handles("cp.bulk")
def cp_bulk(decoder: Decoder, ins: Instruction) -> Run | Attempt:
    """Decode ``cp.async.bulk``, ``cp.reduce.async.bulk``, their prefetches, and their groups."""
    parts = ins.opcode
    if "commit_group" in parts:
        return _commit
    if "wait_group" in parts:
        return _wait(int(ins.operands[0], 0), "read" in parts)
    if {"im2col::w", "im2col::w::128", "tile::gather4", "tile::scatter4"} & set(parts):
        raise decoder.refusal(ins)
    if "prefetch" in parts:
        return _prefetch(decoder, ins)
    return _copy(decoder, ins)


def _prefetch(decoder: Decoder, ins: Instruction) -> Run:
    """Decode a prefetch to L2, which moves nothing here: it keeps the rules of a load but its bounds."""
    match = _BOX.fullmatch(ins.operands[0]) if "tensor" in ins.opcode else None
    if match is None:
        if "tensor" in ins.opcode:
            raise decoder.refusal(ins)
        return _prefetch_bytes(
            decoder.address(ins, ins.operands[0]), decoder.integer(ins, ins.operands[1], 32), ins
        )
    im2col = "im2col" in ins.opcode
    texts = _list(ins.operands[1]) if im2col and len(ins.operands) > 1 else []
    pointer = decoder.integer(ins, match[1], 64)
    indices = [decoder.integer(ins, text, 32) for text in _list(match[2])]
    offsets = [decoder.integer(ins, text, 16) for text in texts]
    if len(offsets) != (len(indices) - 2 if im2col else 0):
        raise decoder.refusal(ins)

    def begin(group: Group, lane: int) -> None:
        map_ = _map(group, ins, _value(group, pointer(group), lane), len(indices))
        if map_ is None:
            return
        at = tuple(_value(group, index(group), lane) for index in indices)
        away = tuple(_value(group, offset(group), lane) & 0xFFFF for offset in offsets)
        if what := map_.stray(at, away) if map_.im2col else unaligned(map_, at):
            misuse(group, ins, what, kind="TMA misuse")

    return _each(begin)


def _prefetch_bytes(far: Callable[[Group], tuple[Integer, int]], size: Reader, ins: Instruction) -> Run:
    """Return a prefetch of plain bytes: address and size are multiples of 16."""

    def begin(group: Group, lane: int) -> None:
        address, count = _address(group, far, lane), _value(group, size(group), lane)
        if address % 16 or count % 16:
            what = (
                f"a prefetch of {count} bytes from {address % 16} past a multiple of 16: PTX wants multiples"
            )
            misuse(group, ins, what, kind="TMA misuse")

    return _each(begin)


def _each(begin: Callable[[Group, int], None]) -> Run:
    """Return what begins something in each lane by itself."""

    def run(group: Group, where: Lanes) -> None:
        for lane in np.nonzero(broadcast_mask(where, group.shape)[:, 0])[0].tolist():
            begin(group, lane)

    return run


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The operands of a copy, as readers.

    shared: the address in shared memory; `far` the other one, of plain bytes
    pointer, indices: of a tensor copy its map and the indices of the box; `offsets` of one in im2col mode
    size: bytes of a plain copy; `barrier` and `mask` of a copy to shared memory
    """

    shared: Callable[[Group], tuple[Integer, int]]
    far: Callable[[Group], tuple[Integer, int]] | None
    pointer: Reader | None
    indices: tuple[Reader, ...]
    offsets: tuple[Reader, ...]
    size: Reader | None
    barrier: Callable[[Group], tuple[Integer, int]] | None
    mask: Reader | None


def _operands(decoder: Decoder, ins: Instruction, *, loads: bool) -> Operands:
    """Return the operands: target, source, bytes (without a map), mbarrier, offsets, multicast mask."""
    tensor = "tensor" in ins.opcode
    target, source, *rest = ins.operands
    mapped, plain = (source, target) if loads else (target, source)
    match = _BOX.fullmatch(mapped) if tensor else None
    if tensor and match is None:
        raise decoder.refusal(ins)
    size = None if tensor else decoder.integer(ins, rest.pop(0), 32)
    completes = loads or "mbarrier::complete_tx::bytes" in ins.opcode
    barrier = decoder.address(ins, rest.pop(0)) if completes else None
    if "im2col" in ins.opcode and not rest:
        raise decoder.refusal(ins, f"{ins} without im2col offsets")
    offsets = _list(rest.pop(0)) if "im2col" in ins.opcode else []
    indices = _list(match[2]) if match else []
    if "im2col" in ins.opcode and len(offsets) != len(indices) - 2:
        raise decoder.refusal(ins)
    return Operands(
        shared=decoder.address(ins, plain),
        far=None if tensor else decoder.address(ins, mapped),
        pointer=decoder.integer(ins, match[1], 64) if match else None,
        indices=tuple(decoder.integer(ins, text, 32) for text in indices),
        offsets=tuple(decoder.integer(ins, text, 16) for text in offsets),
        size=size,
        barrier=barrier,
        mask=decoder.integer(ins, rest.pop(0), 16) if "multicast::cluster" in ins.opcode else None,
    )


def _list(text: str) -> list[str]:
    """Return the names of a vector operand, ``{%r1, %r2}``."""
    return [name.strip() for name in text.strip("{} ").split(",")]


def _copy(decoder: Decoder, ins: Instruction) -> Run:
    """Decode a copy between global and shared memory, or from a block's shared memory to another's."""
    spaces = [part for part in ins.opcode if part in ("global", "shared::cta", "shared::cluster")]
    loads = spaces[0] != "global"
    reduction = (
        next((part for part in ins.opcode if part in _REDUCTIONS), "") if "reduce" in ins.opcode else ""
    )
    given = _operands(decoder, ins, loads=loads)
    element = _ELEMENTS.get(ins.opcode[-1], "UINT32" if "32" in ins.opcode[-1] else "UINT64")

    def begin(group: Group, lane: int) -> None:
        block: Any = group.batch
        start = _address(group, given.shared, lane) & (SHARED_BASE - 1)
        map_ = None
        if given.pointer is not None:
            map_ = _map(group, ins, _value(group, given.pointer(group), lane), len(given.indices))
            if map_ is None:
                return
        at = tuple(_value(group, index(group), lane) for index in given.indices)
        offsets = tuple(_value(group, offset(group), lane) & 0xFFFF for offset in given.offsets)
        if map_ is not None and map_.im2col and (what := map_.stray(at, offsets)):
            misuse(group, ins, what, kind="TMA misuse")
            return
        transfer = Transfer(
            group=group,
            ins=ins,
            block=block,
            row=block.rank * group.launch.threads + group.row + lane,
            start=start,
            map=map_,
            at=at,
            offsets=offsets,
            far=_address(group, given.far, lane) if given.far is not None else 0,
            size=_value(group, given.size(group), lane)
            if given.size is not None
            else map_.total
            if map_
            else 0,
            reduction=reduction,
            element=map_.element if map_ else element,
        )
        if not transfer.aligned():
            return
        if given.barrier is None:
            transfer.store()
            return
        ranks = [start >> WINDOW if spaces[0] == "shared::cluster" else block.rank]
        if given.mask is not None:
            chosen = _value(group, given.mask(group), lane)
            ranks = [rank for rank in range(len(block.cluster.blocks)) if chosen >> rank & 1]
        barrier = _address(group, given.barrier, lane) & (SHARED_BASE - 1)
        multicast, near = given.mask is not None, spaces[1] == "shared::cta"
        transfer.load(barrier, ranks, multicast=multicast, lane=lane, near=near)

    def run(group: Group, where: Lanes) -> None:
        for lane in np.nonzero(broadcast_mask(where, group.shape)[:, 0])[0].tolist():
            begin(group, lane)
        group.launch.progress += 1

    return run


def _value(group: Group, of: Integer, lane: int) -> int:
    """Return an integer's value in one lane."""
    return int(spread(of, group.shape)[lane, 0])


def _address(group: Group, read: Callable[[Group], tuple[Integer, int]], lane: int) -> int:
    """Return the address that an operand has in one lane."""
    base, offset = read(group)
    return _value(group, base, lane) + offset


def _map(group: Group, ins: Instruction, pointer: int, rank: int) -> tensormap.Map | None:
    """Return the map that a generic pointer points to, or report that there is none and return None."""
    raw = _bytes_at(group, pointer, tensormap.BYTES)
    found = tensormap.decode(raw)
    what = ""
    if pointer % 64:
        what = f"a tensor map at an address that is {pointer % 64} past a multiple of 64"
    elif found is None:
        what = "the 128 bytes it is given are no tensor map"
    elif len(found.extents) != rank:
        what = f"a tensor map of {len(found.extents)} extents, and {rank} indices"
    elif found.im2col != bool({"im2col", "im2col_no_offs"} & set(ins.opcode)):
        of = "an im2col" if found.im2col else "a tiled"
        what = f"{of} tensor map, and a copy in the other mode"
    else:
        what = found.fault()  # one that the kernel made itself may have one
    if what:
        misuse(group, ins, what, kind="TMA misuse")
        return None
    if group.batch.first not in group.launch.made_maps.get(pointer, {group.batch.first}):
        what = "a tensor map that the kernel has made, with no fence.proxy.tensormap of the block since then"
        misuse(group, ins, what, kind="missing proxy fence")
    return found


def _bytes_at(group: Group, pointer: int, size: int) -> bytes:
    """Return bytes of global memory, where parameters lie too; b"" for an address that is in no buffer."""
    launch = group.launch
    if launch.arena.holding(pointer, pointer + size) is None:
        return b""
    return bytes(gather(launch.arena, pointer + np.arange(size), 1))


def _commit(group: Group, where: Lanes) -> None:
    """Close the open bulk group of each thread of `where`."""
    block: Any = group.batch
    for row in block.rows(group, where).tolist():
        if ("bulk", row) in block.cluster.streams:
            groups = groups_of(block.cluster, row)
            groups.committed.append(groups.open)
            groups.open, groups.count = [], groups.count + 1


def _wait(left: int, read: bool) -> Attempt:
    """Return ``wait_group``: it waits until all but the last `left` groups are complete, or `read`."""

    def attempt(group: Group, where: Lanes) -> Lanes:
        block: Any = group.batch
        cluster: Cluster = block.cluster
        passed = np.zeros(group.shape, np.bool_)
        first = block.rank * group.launch.threads + group.row
        for row in block.rows(group, where).tolist():
            if ("bulk", row) in cluster.streams:
                groups = groups_of(cluster, row)
                due = groups.committed[: max(0, len(groups.committed) - left)]
                if any(one in cluster.pending for committed in due for one in committed):
                    continue
                if cluster.clocks is not None:
                    cluster.clocks.observe(np.array([row]), groups.column, groups.count - left)
                if cluster.memory is not None and not read:
                    told = cluster.memory.complete(row, STORES, groups.count - left)
                    cluster.memory.learn(np.array([row]), told)
                groups.committed = groups.committed[len(due) :]
                # Groups are numbered from 1: those that are complete stay so for a later wait.
            passed[row - first] = True
        return group.algebra.both(where, mask_of(passed))

    def describe(group: Group, where: Lanes) -> str:
        return f"waits for bulk groups, all but {left}"

    return Attempt(run=attempt, describe=describe)
