"""Special registers (PTX ISA, chapter "Special Registers").

A clock advances with every instruction, and faster where threads wait for it; it tells no times. Counters of
performance and registers of the driver's own read as 0, but for those that hold the address of a cooperative
grid's barrier.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.emulator.numbers.values import Array, Integer, integer_of, signed
from harness.emulator.ptx.declarations import RESERVED_BYTES
from harness.emulator.watch.patterns import WARP

if TYPE_CHECKING:
    from harness.emulator.blocks.batch import Batch
    from harness.emulator.group import Group
    from harness.emulator.machine import Launch

SMS = 132  # multiprocessors that %nsmid tells of; blocks take their numbers in turn
CYCLES = 32  # that a clock advances with each instruction
_TURN = 64  # instructions of a turn that waits for a clock, at most
_MOST = 1 << 22  # cycles that such a turn takes, at most
_CLOCKS = {  # (bits of the register, bits of the clock below it)
    "%clock": (32, 0),
    "%clock_hi": (32, 32),
    "%clock64": (64, 0),
    "%globaltimer": (64, 0),
    "%globaltimer_lo": (32, 0),
    "%globaltimer_hi": (32, 32),
}
CLUSTER = ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid")
_ZERO = {"%gridid", "%current_graph_exec"}
_VALUES = {f"%{name}.{axis}" for name in ("tid", "ctaid", "ntid", "nctaid") for axis in "xyz"} | {
    "%laneid",
    "%warpid",
    "%nwarpid",
    "WARP_SZ",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%aggr_smem_size",
    "%reserved_smem_offset_begin",
    "%reserved_smem_offset_end",
    "%reserved_smem_offset_cap",
    "%reserved_smem_offset_0",
    "%reserved_smem_offset_1",
    "%smid",
    "%nsmid",
    *(f"%lanemask_{which}" for which in ("eq", "lt", "le", "gt", "ge")),
    *(f"%{name}.{axis}" for name in CLUSTER for axis in "xyz"),
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%is_explicit_cluster",
}


class Clock:
    """The clock of a batch of blocks.

    Threads that wait until so many cycles have passed read it again and again, and the way that they go
    depends on it. To them each turn takes twice as long as the one before, up to a limit: a wait of a second
    ends after some hundred turns. Where they poll memory, too, what others change begins that anew, so that
    a timeout does not come while those go on.
    """

    def __init__(self) -> None:
        self._more = 0  # cycles that were waited for
        # By the first thread of a group and the instruction that read it: the launch's progress, the batch's
        # polls and instructions until then, and the cycles of that turn.
        self._reads: dict[tuple[int, int], tuple[int, int, int, int]] = {}

    def read(self, group: Group, at: int) -> int:
        """Return the cycles that a group sees at the instruction `at`; at -1 that is no turn of a loop."""
        launch, batch = group.launch, group.batch
        executed = launch.budget - batch.steps_left
        progress, polls, since, turn = self._reads.get((group.row, at), (-1, -1, 0, 0))
        alone = progress == launch.progress or polls == batch.polls
        if not alone or executed - since > _TURN * len(batch.runners) or not _decides(launch, at):
            turn = 0
        self._more += turn
        if at >= 0:
            turn = min(max(2 * turn, CYCLES), _MOST)
            self._reads[group.row, at] = launch.progress, batch.polls, executed, turn
        return CYCLES * executed + self._more


def _decides(launch: Launch, at: int) -> bool:
    """Return whether what an instruction writes is among what decides the way of threads."""
    return not launch.code.registers_of(at)[1].isdisjoint(launch.code.slice.registers)


def reader(name: str, at: int = -1) -> Callable[[Group], Integer] | None:
    """Return a function that reads a special register in a group; None if `name` is none.

    at: the instruction that reads it
    """
    if name in _VALUES:
        return lambda group: group.special[name]
    if name in _CLOCKS:
        bits, by = _CLOCKS[name]
        return lambda group: signed(group.batch.clock.read(group, at) >> by, bits)
    if name in ("%envreg1", "%envreg2"):  # the address of the grid's workspace, high and low
        by = 32 if name == "%envreg1" else 0
        return lambda group: signed(group.launch.workspace >> by, 32)
    if name in _ZERO or re.fullmatch(r"%pm\d(_64)?|%envreg([12]?\d|3[01])", name):
        return lambda group: 0
    return None


def values(batch: Batch, row: int, threads: int) -> dict[str, Integer]:
    """Return the values of the special registers by name (PTX ISA, chapter "Special Registers")."""
    block, grid = batch.launch.block, batch.launch.grid
    thread = np.arange(row, row + threads, dtype=np.int64).reshape(-1, 1)
    place = np.arange(batch.first, batch.first + batch.blocks, dtype=np.int64).reshape(1, -1)
    lane = thread % WARP
    found: dict[str, Any] = {
        "%tid.x": thread % block.x,
        "%tid.y": thread // block.x % block.y,
        "%tid.z": thread // (block.x * block.y),
        "%ctaid.x": place % grid.x,
        "%ctaid.y": place // grid.x % grid.y,
        "%ctaid.z": place // (grid.x * grid.y),
        "%smid": place % SMS,
        "%laneid": lane,
        "%warpid": thread // WARP,
        "%lanemask_eq": 1 << lane,
        "%lanemask_lt": (1 << lane) - 1,
        "%lanemask_le": (2 << lane) - 1,
        "%lanemask_gt": 0xFFFFFFFF ^ ((2 << lane) - 1),
        "%lanemask_ge": 0xFFFFFFFF ^ ((1 << lane) - 1),
    }
    # With one thread, or one block, an array of shape (1, 1) becomes a plain integer.
    special = {
        name: batch.launch.memo.get(("special", name, row, threads, batch.first), _maker(array))
        for name, array in found.items()
    }
    for axis, limit, count in zip("xyz", block, grid, strict=True):
        special[f"%ntid.{axis}"], special[f"%nctaid.{axis}"] = limit, count
    special["%nwarpid"] = -(-block.x * block.y * block.z // WARP)
    special["WARP_SZ"] = WARP
    special |= {f"%reserved_smem_offset_{name}": 0 for name in ("begin", "0", "1")}
    special |= {f"%reserved_smem_offset_{name}": RESERVED_BYTES for name in ("end", "cap")}
    special["%nsmid"] = SMS
    special |= _cluster(batch, special)
    special["%aggr_smem_size"] = batch.launch.shared_size
    special["%dynamic_smem_size"] = batch.launch.dynamic_shared
    special["%total_smem_size"] = batch.launch.shared_size
    return special


def _cluster(batch: Batch, special: dict[str, Integer]) -> dict[str, Integer]:
    """Return the special registers of a block's place in its cluster; a block alone is a cluster of one."""
    size = batch.launch.cluster
    found: dict[str, Integer] = {
        "%cluster_ctarank": batch.rank,
        "%cluster_nctarank": size.x * size.y * size.z,
        "%is_explicit_cluster": int(size != (1, 1, 1)),
    }
    places = batch.rank % size.x, batch.rank // size.x % size.y, batch.rank // (size.x * size.y)
    for axis, place, count in zip("xyz", places, size, strict=True):
        found[f"%cluster_ctaid.{axis}"], found[f"%cluster_nctaid.{axis}"] = place, count
        own, blocks = special[f"%ctaid.{axis}"], getattr(batch.launch.grid, axis)
        found[f"%clusterid.{axis}"] = own // count if isinstance(own, int) else own
        found[f"%nclusterid.{axis}"] = blocks // count
    return found


def _maker(array: Array) -> Any:
    """Return a function that makes the register value of `array`."""
    return lambda: _as_register(array)


def _as_register(array: Array) -> Integer:
    """Return unsigned 32-bit values as a register holds them, signed."""
    value = integer_of(np.where(array >= 1 << 31, array - (1 << 32), array))
    return signed(value, 32) if isinstance(value, int) else value
