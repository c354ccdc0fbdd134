"""Smaller instructions of Hopper: fences, ``setmaxnreg``, ``elect``, dependent grids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.decode import Attempt, Decoder, Run, handles
from harness.emulator.group import Group
from harness.emulator.hopper.grid import WARPGROUP, Operation
from harness.emulator.hopper.mbarrier import each
from harness.emulator.hopper.order.clocks import Known
from harness.emulator.hopper.order.races import misuse
from harness.emulator.hopper.phases import Mbarrier, arrive, find
from harness.emulator.hopper.tma.made import acquire
from harness.emulator.hopper.wgmma.warpgroup import converged
from harness.emulator.instructions.cp_async import land_later
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.instructions.warp import active, ballot, named_lanes, unwarp
from harness.emulator.memory import SHARED_BASE
from harness.emulator.numbers.values import Array, Lanes, integer_of, mask_of, shift
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.patterns import WARP


@handles("fence.proxy", "fence.mbarrier_init")
def fence(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``fence.proxy`` and ``fence.mbarrier_init``.

    The former orders accesses through different proxies, the latter makes the thread's initialised mbarriers
    visible to the async proxy and to other blocks.
    """
    if "tensormap::generic" in ins.opcode and "acquire" in ins.opcode:
        return acquire(decoder, ins)
    init = "mbarrier_init" in ins.opcode
    shared = "async" in ins.opcode and "global" not in ins.opcode
    far = "async" in ins.opcode and not any(part.startswith("shared") for part in ins.opcode)

    def run(group: Group, where: Lanes) -> None:
        block: Any = getattr(group.batch, "cluster", None) and group.batch
        if not block or block.cluster.clocks is None:
            return
        rows = block.rows(group, where)
        if init:
            mine = set(rows.tolist())
            for barrier in block.cluster.barriers.values():
                barrier.visible |= barrier.by in mine
        if shared:
            block.cluster.clocks.fence(rows)
        if far and block.cluster.memory is not None:
            block.cluster.memory.fence(rows)

    return run


UNBOUND = (
    "ptxas leaves it out, since nothing says how many registers a thread begins with: a second argument of "
    "__launch_bounds__, such as __launch_bounds__(384, 1), would"
)


@handles("setmaxnreg")
def setmaxnreg(decoder: Decoder, ins: Instruction) -> Attempt:
    """Decode ``setmaxnreg``; inc waits until the block's share of the register file has so many left.

    ptxas leaves it out of kernels that do not say how many registers a thread begins with.
    """
    count = int(ins.operands[0], 0)
    raises = "inc" in ins.opcode

    def attempt(group: Group, where: Lanes) -> Lanes:
        block: Any = group.batch
        if not converged(group, where):
            return False
        if not group.launch.entry.blocks and not group.launch.entry.most:
            misuse(group, ins, UNBOUND, benign=True)
            return where
        if not 24 <= count <= 256 or count % 8:
            misuse(group, ins, f"{count} registers: 24 to 256, a multiple of 8")
        start = block.registers // group.launch.threads
        held = block.held.setdefault(group.row, start)
        if (count < held) == raises and count != held:
            misuse(group, ins, f"{'raises' if raises else 'lowers'} the registers from {held} to {count}")
        taken = sum(
            block.held.get(row, start) * WARPGROUP for row in range(0, group.launch.threads, WARPGROUP)
        )
        if raises and taken + (count - held) * WARPGROUP > block.registers:
            return False
        block.held[group.row] = count
        return where

    def describe(group: Group, where: Lanes) -> str:
        return f"waits for {count} registers a thread, which the other warpgroups hold"

    return Attempt(run=attempt, describe=describe)


@handles("elect")
def elect(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``elect.sync``: the lowest active lane of those that its mask names is elected."""
    target, _, flag = ins.operands[0].partition("|")
    into = decoder.register(ins, target)
    flag_into = decoder.predicate_number(ins, flag)
    named = named_lanes(decoder, ins, 1)

    def run(group: Group, where: Lanes) -> None:
        members = ballot(active(group, where)) & named(group)
        first = np.log2(np.maximum(members & np.negative(members), 1)).astype(np.int64)
        chosen = np.arange(WARP).reshape(1, WARP, 1) == first
        if into >= 0:
            group.write(into, integer_of(np.array(unwarp(first, group.shape)).astype(np.int64)), where)
        group.write(flag_into, mask_of(np.array(unwarp(chosen, group.shape))), where)

    return run


@handles("griddepcontrol")
def griddepcontrol(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``griddepcontrol``: a grid runs alone here, those that it depends on have ended."""
    waits = "wait" in decoder.parts(ins, {"launch_dependents", "wait"})

    def wait(group: Group, where: Lanes) -> None:
        races = group.launch.races
        if waits and races is not None and races.reach is not None:
            races.reach.wait(group, broadcast_mask(where, group.shape))

    return wait


@handles("createpolicy")
def createpolicy(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``createpolicy``: a policy for caches, which do not exist here."""
    into = decoder.register(ins, ins.operands[0])
    return lambda group, where: group.write(into, 0, where)


@handles("prefetch.tensormap")
def prefetch_tensormap(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``prefetch.tensormap``, which does nothing here."""
    return lambda group, where: None


@handles("cp.mbarrier")
def cp_async_mbarrier_arrive(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``cp.async.mbarrier.arrive``: it arrives when the thread's cp.async so far have landed.

    Without ``.noinc`` the phase expects one arrival more, so the arrival is not one of those it was made for.
    """
    read = decoder.address(ins, ins.operands[0])
    extra = "noinc" not in ins.opcode

    def run(group: Group, where: Lanes) -> None:
        block: Any = group.batch
        base, offset = read(group)
        for address, lanes in each(group, shift(base, offset), where):
            barrier = find(group, ins, address & (SHARED_BASE - 1), np.nonzero(lanes)[0])
            if barrier is None:
                continue
            count = int(lanes.sum())
            if extra:
                barrier.pending += count
            clocks, known = block.cluster.clocks, None
            if clocks is not None:
                rows = np.nonzero(lanes)[0] + block.rank * group.launch.threads + group.row
                column, copies = block.cluster.copies()
                known = clocks.release(rows)
                clocks.land(rows, column, copies[rows], known)
            block.cluster.begin(Operation(land=_landing(group, ins, barrier, lanes, known), source=ins))
        group.launch.progress += 1

    return run


def _landing(
    group: Group, ins: Instruction, barrier: Mbarrier, lanes: Array, known: Known | None
) -> Callable[[], None]:
    """Return what lands the cp.async of the threads `lanes` and then arrives at the barrier for each."""
    copies = land_later(group, mask_of(lanes.reshape(-1, 1)))

    def land() -> None:
        copies()
        arrive(group, ins, barrier, int(lanes.sum()), known)

    return land
