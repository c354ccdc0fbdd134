"""Arguments of an emulated launch: the buffers among them, and the bytes of the parameter space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator.hopper.tma.tensormap import BYTES, TensorMap
from harness.emulator.instructions.texture.objects import Texture, handles_of
from harness.emulator.memory import GLOBAL_BASE, Arena, Buffer
from harness.emulator.ptx.program import Entry
from harness.errors import EmulatorError

_POINTER = 8
_MOST = 32_764  # bytes of a kernel's parameters, on sm_70 and later


@dataclass(frozen=True, kw_only=True)
class Record:
    """A struct passed by value, with pointers to `buffers` in it.

    `pack` returns its bytes; it takes a function that gives the address of a buffer.
    """

    buffers: tuple[Buffer, ...]
    align: int
    pack: Callable[[Callable[[Buffer], int]], bytes]

    @property
    def nbytes(self) -> int:
        """Return the size of the struct."""
        return len(self.pack(lambda _: 0))


Argument = Buffer | Record | TensorMap | Texture | NDArray[Any] | np.generic


def bind(
    kernel: Entry,
    arguments: Sequence[Argument] | bytes,
    records: Mapping[str, Record] = MappingProxyType({}),
    memory: Sequence[Buffer] = (),
) -> tuple[list[Buffer], Callable[[Arena], bytes]]:
    """Return the buffers among the arguments, and a function that makes the parameter space.

    Behind them are those of `records`, which are what variables hold. One that is given twice is one and the
    same. Bytes are the parameters as they are, with addresses in `memory`, whose buffers are returned.

    That function takes the arena in which the buffers have their addresses, and returns the bytes of the
    ``.param`` space. A tensor map, or a struct with several, may also be passed as a pointer to it: it then
    has a buffer of its own.
    Raises EmulatorError if the number, a size or the layout of the arguments does not fit.
    """
    whole = max((p.offset + p.size for p in kernel.parameters), default=0)
    if whole > _MOST:
        raise EmulatorError(
            f"the parameters of {kernel.name} take {whole:,} bytes; PTX has {_MOST:,} for them"
        )
    if not isinstance(arguments, bytes):
        return _bind(kernel, arguments, records, whole)
    if len(arguments) != whole:
        raise EmulatorError(f"the parameters of {kernel.name} take {whole} bytes, not {len(arguments)}")
    return [*memory], lambda _: arguments


def _bind(
    kernel: Entry, arguments: Sequence[Argument], records: Mapping[str, Record], whole: int
) -> tuple[list[Buffer], Callable[[Arena], bytes]]:
    """Return what `bind` does, of arguments whose parameters take `whole` bytes."""
    if len(arguments) != len(kernel.parameters):
        raise EmulatorError(f"{kernel.name} takes {len(kernel.parameters)} arguments, not {len(arguments)}")
    handles = {id(texture): np.uint64(handle) for handle, texture in handles_of(arguments).items()}
    given: list[Buffer | Record | TensorMap | np.generic] = []
    arrays: dict[int, Buffer] = {}
    for parameter, argument in zip(kernel.parameters, arguments, strict=True):
        if isinstance(argument, np.ndarray):
            given.append(arrays.setdefault(id(argument), Buffer(array=argument, name=parameter.name)))
        else:
            given.append(handles[id(argument)] if isinstance(argument, Texture) else argument)
    buffers = [*{id(one): one for one in given if isinstance(one, Buffer)}.values()]
    for one in given:
        # A buffer that is an argument by itself, too, is one and the same.
        inside = one.buffers if isinstance(one, Record) else ()
        inside = tuple(b for _, b in one.pointers) if isinstance(one, Buffer) else inside
        known = {id(b.array) for b in buffers}
        buffers += {id(b.array): b for b in inside if id(b.array) not in known}.values()
        if isinstance(one, TensorMap) and not any(b.array is one.array for b in buffers):
            buffers.append(Buffer(array=one.array, name=one.name or "tensor"))
    pointed = {
        p.name: Buffer(array=np.zeros(size, np.uint8), name=p.name)
        for p, one in zip(kernel.parameters, given, strict=True)
        if p.size == _POINTER != (size := BYTES if isinstance(one, TensorMap) else _nbytes(one))
    }
    buffers += pointed.values()
    known = {id(b.array) for b in buffers}
    further = {id(b.array): b for record in records.values() for b in record.buffers}
    buffers += (buffer for key, buffer in further.items() if key not in known)
    for buffer in buffers:
        if not buffer.array.flags.c_contiguous or buffer.array.dtype.hasobject:
            raise EmulatorError(f"array {buffer.name} is not contiguous", hint="Pass a contiguous copy.")
    for parameter, argument in zip(kernel.parameters, given, strict=True):
        size = (
            _POINTER
            if isinstance(argument, Buffer) or parameter.name in pointed
            else BYTES
            if isinstance(argument, TensorMap)
            else argument.nbytes
        )
        if size != parameter.size:
            raise EmulatorError(
                f"parameter {parameter.name} of {kernel.name} takes {parameter.size} bytes, not {size}"
            )
    places = {id(b.array): i for i, b in reversed([*enumerate(buffers)])}

    def parameters(arena: Arena) -> bytes:
        def address(buffer: Buffer) -> int:
            return arena.allocations[places[id(buffer.array)]].start

        for allocation, holder in zip(arena.allocations, buffers, strict=False):
            for at, behind in holder.pointers:
                arena.point(allocation, at, address(behind))
        space = bytearray(whole)
        for parameter, argument in zip(kernel.parameters, given, strict=True):
            if isinstance(argument, np.generic):
                raw = argument.tobytes()
            elif isinstance(argument, Record):
                raw = argument.pack(address)
            else:
                place = next(i for i, buffer in enumerate(buffers) if buffer.array is argument.array)
                if isinstance(argument, Buffer):
                    place = next(i for i, buffer in enumerate(buffers) if buffer is argument)
                start = arena.allocations[place].start
                raw = (
                    argument.encode(start) if isinstance(argument, TensorMap) else start.to_bytes(8, "little")
                )
            if parameter.name in pointed:
                to = address(pointed[parameter.name])
                arena.view(1)[to - GLOBAL_BASE :][: len(raw)] = np.frombuffer(raw, np.uint8)
                raw = to.to_bytes(_POINTER, "little")
            space[parameter.offset : parameter.offset + len(raw)] = raw
        return bytes(space)

    return buffers, parameters


def _nbytes(given: Buffer | Record | TensorMap | np.generic) -> int:
    """Return the bytes of a struct with pointers, and those of a pointer for anything else."""
    return given.nbytes if isinstance(given, Record) else _POINTER


def hold(
    records: Mapping[str, Record], arena: Arena, symbols: Mapping[str, int], buffers: Sequence[Buffer]
) -> None:
    """Fill variables with `records`, whose buffers have addresses in the arena."""
    starts = {id(b.array): a.start for b, a in zip(buffers, arena.allocations, strict=False)}
    octets = arena.view(1)
    for name, record in records.items():
        raw = np.frombuffer(record.pack(lambda buffer: starts[id(buffer.array)]), np.uint8)
        begin = symbols[name] - GLOBAL_BASE
        octets[begin : begin + len(raw)] = raw
