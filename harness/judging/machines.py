"""Machines on which a submission is launched again and again: the emulator, and a GPU.

What a kernel keeps from launch to launch, in variables of its module or in its workspace, stays from one
`run` to the next, and the operands have the same addresses, as in a loop that calls it. `forget` loads the
module anew.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.bench import emulation
from harness.driver import Buffer as DeviceBuffer
from harness.driver import Context, Module, Stream
from harness.emulator import Counts, Finding
from harness.errors import UsageError
from harness.judging.verdict import EMULATOR, GPU
from harness.launch import kernel as launch
from harness.launch.builds import Built
from harness.problems.protocol import Problem
from harness.support.resources import Closing

_ZONE = 4096  # bytes before and behind each buffer that no kernel may write
_ALIGN = 256  # bytes, as cuMemAlloc aligns
_ORDERS = ("lockstep", "warp-serial", "backward")  # schedules of repeats in the emulator, in turn
_BUDGET = 400_000  # instructions of a batch of blocks in the emulator: some seconds
MOST_WORKSPACE = 1 << 30  # bytes
_FLUSHES = re.compile(
    r"\b(?:red|atom)\.(?!(?:\w+\.)*shared)[\w.:]*\badd\b[\w.:]*f32|\bcp\.reduce\.async\.bulk\b[\w.:]*\badd\b"
)
_SHAPE = re.compile(r"\.m(\d+)n(\d+)k(\d+)\b")  # of a matrix instruction


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The outcome of a launch.

    `output` is the output afterwards and `before` what it held at the launch. `damaged` names inputs that
    were overwritten, `stray` says where else was written. `findings`, `notices` and `counts` are the
    emulator's.
    """

    output: NDArray[Any]
    before: NDArray[Any]
    damaged: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    notices: tuple[Finding, ...] = ()
    counts: tuple[Counts, ...] = ()


class Machine(Protocol):
    """A place to launch one kernel: `where` is EMULATOR or GPU; `sms` is its number of multiprocessors."""

    where: str
    sms: int
    flushes: bool  # the kernel adds up by atomics that flush subnormal results to zero

    def run(
        self, problem: Problem, inputs: Mapping[str, NDArray[Any]], *, watched: bool = False, turn: int = 0
    ) -> Ran:
        """Launch once on copies of `inputs`, the output included.

        `watched` asks for findings and counts. `turn` numbers repeats, which a machine may schedule in
        another order. Raises HarnessError if the launch fails.
        """
        ...

    def forget(self) -> None:
        """Load the module anew, and zero the workspaces."""
        ...


class Emulated:
    """The emulator as a `Machine`."""

    where, sms = EMULATOR, emulation.SMS

    def __init__(self, built: Built) -> None:
        self._built, self.flushes = built, flushes(built.cubin.ptx)
        self.forget()

    def forget(self) -> None:
        self._memory = emulation.Memory()

    def run(
        self, problem: Problem, inputs: Mapping[str, NDArray[Any]], *, watched: bool = False, turn: int = 0
    ) -> Ran:
        _workspace(self._built, problem, self.sms)
        options = emulation.Options(
            schedule=_ORDERS[turn % len(_ORDERS)], check=watched, count=watched, budget=_BUDGET
        )
        found, arrays = emulation.launch(self._built, problem, inputs, options, self._memory)
        return Ran(
            output=arrays[problem.output],
            before=inputs[problem.output],
            damaged=_damaged(problem, arrays, inputs),
            findings=found.findings,
            notices=found.notices,
            counts=found.instructions,
        )


class OnGpu(Closing):
    """A GPU as a `Machine`: the operands lie in one piece of memory, between zones of random bytes."""

    where = GPU

    def __init__(self, context: Context, built: Built) -> None:
        self._context, self._built, self.sms = context, built, context.device.sms
        self.flushes = flushes(built.cubin.ptx)
        self._rng = np.random.default_rng()
        self._memory: DeviceBuffer | None = None
        self._module: Module | None = None
        self._owned = ExitStack()
        self._stream = self._owned.enter_context(Stream(context))
        self.forget()

    def forget(self) -> None:
        if self._module is not None:
            self._module.close()
        self._module = Module(self._context, self._built.cubin.code)
        self._scratch: dict[int, NDArray[np.uint8]] = {}

    def run(
        self, problem: Problem, inputs: Mapping[str, NDArray[Any]], *, watched: bool = False, turn: int = 0
    ) -> Ran:
        size = _workspace(self._built, problem, self.sms)
        parts = {name: array.reshape(-1).view(np.uint8) for name, array in inputs.items()}
        if size:
            parts["workspace"] = self._scratch.setdefault(size, np.zeros(size, np.uint8))
        places, end = {}, _ZONE
        for name, data in parts.items():
            places[name] = slice(end, end + data.nbytes)
            end = math.ceil((end + data.nbytes + _ZONE) / _ALIGN) * _ALIGN
        image = self._rng.integers(0, 256, end, np.uint8)
        for name, place in places.items():
            image[place] = parts[name]
        memory = self._room(end)
        memory.upload(image, self._stream)
        self._call(problem, {name: memory.ptr + place.start for name, place in places.items()})(self._stream)
        after = np.empty_like(image)
        memory.download(after, self._stream)
        arrays = {
            name: after[p].view(a.dtype).reshape(a.shape)
            for (name, a), p in zip(inputs.items(), places.values(), strict=False)
        }
        if size:
            self._scratch[size] = after[places["workspace"]].copy()
        return Ran(
            output=arrays[problem.output],
            before=inputs[problem.output],
            damaged=_damaged(problem, arrays, inputs),
            stray=_stray(image, after, places),
        )

    def _room(self, size: int) -> DeviceBuffer:
        """Return memory of that many bytes, the same as before where the size is the same."""
        if self._memory is None or self._memory.nbytes != size:
            if self._memory is not None:
                self._memory.close()
            self._memory = None
            self._memory = DeviceBuffer(self._context, size)
        return self._memory

    def _call(self, problem: Problem, addresses: Mapping[str, int]) -> Any:
        """Return the launch with its parameters: tensor maps, the problem's arguments, the workspace."""
        variant = self._built.variant
        assert self._module is not None
        mapped = launch.maps(variant, problem)
        own = [np.uint64(addresses.get("workspace", launch.NULL))]
        return self._module.function(self._built.cubin.entry).prepare(
            launch.grid(variant, problem, sms=self.sms),
            variant.block,
            [
                *(launch.tensor_map(self._context, addresses[m.operand], m) for m in mapped),
                *(np.uint64(addresses[a]) if isinstance(a, str) else a for a in problem.arguments()),
                *(own if variant.kernel.workspace else ()),
            ],
            shared=variant.shared,
            cooperative=variant.kernel.cooperative,
        )

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
        if self._module is not None:
            self._module.close()
        self._memory = self._module = None
        self._owned.close()


def flushes(ptx: str) -> bool:
    """Return True where a kernel adds up float32 by atomics outside of shared memory (PTX ISA, "atom")."""
    return _FLUSHES.search(ptx) is not None


def matrix_products(counts: Iterable[Counts]) -> float:
    """Return how many products of elements the executed matrix instructions make.

    Infinite where some make a number that their names do not tell.
    """
    total = 0.0
    for one in counts:
        if one.opcode.startswith(emulation.MATRIX) and one.executions:
            shape = _SHAPE.search(one.opcode)
            share = 4 if one.opcode.startswith("wgmma") else 1  # each of the four warps counts
            total += one.products * math.prod(map(int, shape.groups())) / share if shape else math.inf
    return total


def _workspace(built: Built, problem: Problem, sms: int) -> int:
    """Return the bytes of the kernel's workspace. Raises UsageError above `MOST_WORKSPACE`."""
    size = launch.workspace(built.variant, problem, sms=sms)
    if size > MOST_WORKSPACE:
        raise UsageError(f"a workspace of {size:,} bytes for {problem.label}; {MOST_WORKSPACE:,} are allowed")
    return size


def _damaged(
    problem: Problem, after: Mapping[str, NDArray[Any]], before: Mapping[str, NDArray[Any]]
) -> tuple[str, ...]:
    """Return the names of the inputs whose bits have changed."""
    names = (name for name in before if name != problem.output)
    return tuple(n for n in names if not np.array_equal(after[n].view(np.uint8), before[n].view(np.uint8)))


def _stray(
    image: NDArray[np.uint8], after: NDArray[np.uint8], places: Mapping[str, slice]
) -> tuple[str, ...]:
    """Return, for each zone that has changed, how many bytes of it and where the first one lies."""
    changed = image != after
    for place in places.values():
        changed[place] = False
    found, ends = [], [0, *(p.stop for p in places.values())]
    for (name, place), start in zip(places.items(), ends, strict=False):
        zone = np.flatnonzero(changed[start : place.start])
        middle = start if start == 0 else start + (place.start - start) // 2
        for side, hits in (("behind", zone[zone + start < middle]), ("before", zone[zone + start >= middle])):
            if not len(hits):
                continue
            whose = name if side == "before" else list(places)[list(places).index(name) - 1]
            at = int(hits[0]) + start - (place.start if side == "before" else start)
            found.append(f"{len(hits)} bytes {side} {whose}, the first at byte {at} of it")
    last = np.flatnonzero(changed[ends[-1] :])
    if len(last):
        found.append(
            f"{len(last)} bytes behind {list(places)[-1]}, the first {int(last[0])} bytes behind its end"
        )
    return tuple(found)
