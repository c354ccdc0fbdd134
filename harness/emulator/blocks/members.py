"""Members of warp instructions: who is named in the mask has to come, and who comes has to be named.

Lanes wait for the others that their mask names, unless those have ended, as on the hardware since Volta.
Lanes that come to a ``bar.warp.sync`` at different instructions meet all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.group import spread
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.instructions.warp import ballot, unwarp, warps
from harness.emulator.numbers.values import Array, Lanes, mask_of
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.faults import fault
from harness.emulator.watch.patterns import WARP

if TYPE_CHECKING:
    from harness.emulator.blocks.runner import Runner
    from harness.emulator.decode import Step

_ALL = 0xFFFFFFFF
_BITS = (np.int64(1) << np.arange(WARP)).reshape(1, WARP, 1)  # of each lane in a mask
_BARRIERS = ("bar", "barrier")


class Members:
    """The lanes of a runner's warps, as warp instructions see them.

    ended: the lanes that have ended
    forced: nobody else can move, so that the lanes that wait go on, and those they wait for are reported
    moved: some lanes went on
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._group = runner.group
        self.ended: Lanes = False
        self.forced = False
        self.moved = False
        self._awaited: dict[int, Array] = {}  # by instruction the lanes that someone waits for there, by bit

    def admit(self, step: Step, pc: int, active: Lanes) -> tuple[Lanes, Lanes]:
        """Return the lanes of `active` that go on from the instruction `pc`, and all that execute it.

        The others are parked. Those parked at another ``bar.warp.sync`` that meet lanes here go on there.
        """
        group, ins = self._group, step.instruction
        mask = step.members(group) if step.members is not None else -1
        if active is True and isinstance(mask, int) and mask & _ALL == _ALL:
            self.moved = True
            return True, True
        here, named = self._by_warp(active), warps(spread(mask, group.shape) & _ALL, 0)
        elsewhere = self._elsewhere(ins, pc)
        present = ballot(here)
        for lanes in elsewhere.values():
            present = present | ballot(lanes)
        missing = named & ballot(self._alive()) & ~present
        go = here & (missing == 0)
        skipped = named & self._awaited.get(pc, np.int64(0)) & ballot(self._by_warp(self.ended))
        if self.forced:
            skipped, go = skipped | missing, here
        self._report(ins, go & (skipped != 0), skipped, "is named in the mask and never comes")
        self._report(ins, go & (named & _BITS == 0), None, "executes it and is not named in its own mask")
        self._agree(ins, go, named)
        chosen = self._park(pc, active, here & ~go, missing)
        if pc not in self._runner.parked:
            self._awaited.pop(pc, None)
        together = chosen
        for other, lanes in elsewhere.items():
            union = np.bitwise_or.reduce(np.where(go, named, 0), axis=1, keepdims=True)
            met = self._lanes(lanes & (union & _BITS != 0))
            if met is not False:
                self._park(other, self._runner.parked.pop(other), lanes & (union & _BITS == 0), missing)
                self._runner.join(other + 1, met)
                together = group.algebra.either(together, met)
        self.moved |= chosen is not False
        return chosen, together

    def _elsewhere(self, ins: Instruction, pc: int) -> dict[int, Array]:
        """Return the lanes parked at other barriers of warps, by instruction; none unless `ins` is one."""
        if ins.opcode[0] not in _BARRIERS:
            return {}
        steps = self._runner.steps
        return {
            other: self._by_warp(lanes)
            for other, lanes in self._runner.parked.items()
            if other != pc and steps[other].instruction.opcode[0] in _BARRIERS
        }

    def _alive(self) -> Array:
        """Return the lanes that have not ended and are not about to, bool (warps, 32, C)."""
        gone, steps = self.ended, self._runner.steps
        for pc, lanes in self._runner.ready.items():
            if pc >= len(steps) or (steps[pc].kind == "exit" and steps[pc].guard < 0):
                gone = self._group.algebra.either(gone, lanes)
        return warps(~broadcast_mask(gone, self._group.shape), False)

    def _park(self, pc: int, active: Lanes, stay: Array, missing: Array) -> Lanes:
        """Park the lanes `stay`, which wait for those of `missing`; return the others of `active`."""
        algebra, staying = self._group.algebra, self._lanes(stay)
        if staying is not False:
            parked = self._runner.parked
            parked[pc] = algebra.either(parked.get(pc, False), staying)
            wanted = np.bitwise_or.reduce(np.where(stay, missing, 0), axis=1, keepdims=True)
            self._awaited[pc] = self._awaited.get(pc, np.int64(0)) | wanted
        return algebra.both(active, algebra.negate(staying))

    def _by_warp(self, lanes: Lanes) -> Array:
        """Return lanes as bool (warps, 32, C)."""
        return warps(broadcast_mask(lanes, self._group.shape), False)

    def _lanes(self, by_warp: Array) -> Lanes:
        """Return bool (warps, 32, C) as lanes of the group."""
        return mask_of(np.array(unwarp(by_warp, self._group.shape)))

    def _agree(self, ins: Instruction, go: Array, named: Array) -> None:
        """Report lanes whose mask names a lane here that has another mask."""
        if not (go & (named != np.where(go, named, _ALL).min(1, keepdims=True))).any():
            return
        other = (named[:, :, None] != named[:, None]) & go[:, :, None] & go[:, None]
        names = (named[:, :, None] >> np.arange(WARP).reshape(1, 1, WARP, 1) & 1).astype(np.bool_)
        self._report(ins, (other & names).any(2), None, "names lanes whose mask is another one")

    def _report(self, ins: Instruction, bad: Array, missing: Array | None, what: str) -> None:
        """Report the lanes `bad`; `missing` are the lanes that they wait for, by bit."""
        where = self._lanes(bad)
        if where is False or not self._group.launch.check:
            return
        who = "a lane"
        if missing is not None:
            first = int(missing[bad][0])
            who = f"lane {(first & -first).bit_length() - 1}"
        fault(self._group, ins, "warp mask", where, "", 0, f"{ins.opcode[0]}: {who} {what}")
