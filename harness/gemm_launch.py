"""A prepared GEMM that follows its operands: what `harness.matmul` keeps for each shape."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Sequence

import numpy as np

from harness import launch
from harness.arrays import Matrix
from harness.driver import Context, Function, PreparedLaunch, RowCopy, Stream, Struct, tensormap
from harness.gemm import Gemm
from harness.launch import Mapped
from harness.problem import Layout
from harness.spec import Variant
from harness.workspaces import Need, Workspaces

Operands = tuple[Matrix, Matrix, Matrix]  # a, b and out
_OPERANDS = "ABC"
_MOST_MAPS = 64  # an operand of a launch; beyond that all go, and are made again as they are needed
_SCALARS = 9  # alpha's place among the plain arguments, and beta behind it


class GemmLaunch:
    """One shape's launch. Its parameters are its own, so one thread at a time writes and launches them.

    `copied` names the operands (of "A" and "B") that it copies first, to where they can have a tensor map.
    """

    def __init__(
        self,
        function: Function,
        variant: Variant,
        problem: Gemm,
        *,
        sms: int,
        workspaces: Workspaces,
        copied: str = "",
    ) -> None:
        self.copied = copied
        self._copies = [_Copy(name, problem.layouts()[name]) for name in copied]
        problem = dataclasses.replace(problem, **{f"ld{c.name.lower()}": c.ld for c in self._copies})
        mapped = launch.maps(variant, problem)
        none = Struct(bytes(tensormap.BYTES), tensormap.ALIGN)
        arguments = [np.uint64(0) if isinstance(a, str) else a for a in problem.arguments()]
        size = launch.workspace(variant, problem, sms=sms)
        self.variant = variant
        self._workspaces = workspaces
        own = [Need(user=variant.label, size=size, zeroed=True)] if size else []
        self._needs = [c.need for c in self._copies] + own
        self._launch = function.prepare(
            launch.grid(variant, problem, sms=sms),
            variant.block,
            [none] * len(mapped) + arguments + [np.uint64(0)] * len(own),
            shared=variant.shared,
        )
        first, last = len(mapped), len(mapped) + len(arguments)
        self._pointers = [self._launch.argument(first + i, ctypes.c_uint64) for i in range(3)]
        self._scalars = [self._launch.argument(first + _SCALARS + i, ctypes.c_float) for i in range(2)]
        self._own = [self._launch.argument(last + i, ctypes.c_uint64) for i in range(len(own))]
        self._maps = [_Map(function.context, self._launch, i, m) for i, m in enumerate(mapped)]
        self._lock = threading.Lock()

    def __call__(self, operands: Operands, scalars: tuple[float, float], stream: Stream) -> None:
        with self._lock:
            for scalar, value in zip(self._scalars, scalars, strict=True):
                scalar.value = value
            addresses = [matrix.address for matrix in operands]
            if not self._needs:
                self._run(addresses, stream)
                return
            with self._workspaces.lent(self._needs, stream) as lent:
                for copy, target in zip(self._copies, lent, strict=False):  # those come first
                    copy.run(addresses[copy.operand], target, stream)
                    addresses[copy.operand] = target
                for argument, address in zip(self._own, lent[len(self._copies) :], strict=True):
                    argument.value = address
                self._run(addresses, stream)

    def _run(self, addresses: Sequence[int], stream: Stream) -> None:
        for pointer, address in zip(self._pointers, addresses, strict=True):
            pointer.value = address
        for one in self._maps:
            one.move(addresses)
        self._launch(stream)


class _Copy:
    """An operand's way to where it can have a map."""

    def __init__(self, name: str, layout: Layout) -> None:
        size = layout.dtype.itemsize
        width = layout.columns * size
        pitch = -(-width // tensormap.UNIT) * tensormap.UNIT
        self.name, self.operand, self.ld = name, _OPERANDS.index(name), pitch // size
        self.need = Need(user=f"copy of {name}", size=layout.rows * pitch, zeroed=False)
        self.run = RowCopy(rows=layout.rows, width=width, source_pitch=layout.ld * size, target_pitch=pitch)


class _Map:
    """A tensor map among a launch's parameters, made anew for each address that it has not seen lately."""

    def __init__(self, context: Context, prepared: PreparedLaunch, index: int, mapped: Mapped) -> None:
        self._context, self._mapped = context, mapped
        self._operand = _OPERANDS.index(mapped.operand)
        self._memory = prepared.argument(index, ctypes.c_char * tensormap.BYTES)
        self._made: dict[int, bytes] = {}
        self._address = 0  # the memory holds no map, as for an address without one

    def move(self, addresses: Sequence[int]) -> None:
        address = addresses[self._operand]
        if address == self._address:
            return
        made = self._made.get(address)
        if made is None:
            if len(self._made) >= _MOST_MAPS:
                self._made.clear()
            made = launch.tensor_map(self._context, address, self._mapped).data
            self._made[address] = made
        ctypes.memmove(self._memory, made, tensormap.BYTES)
        self._address = address
