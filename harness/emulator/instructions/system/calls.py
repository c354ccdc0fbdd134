"""Calls of the system: ``vprintf``, ``__assertfail``, ``malloc`` and ``free``."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from harness.emulator.access import check_written, load, observe, place, store
from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.instructions.system.printf import PIECE, formatted
from harness.emulator.instructions.system.stack import lanes_of, octets, pop, push
from harness.emulator.memory import HEAP
from harness.emulator.numbers.values import Array, Lanes, mask_of
from harness.emulator.ptx.calls import ASSERTION, parts
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.faults import fault
from harness.emulator.watch.touches import READ, WRITE

_LONGEST = 4096  # bytes of a string
_MOST = 1 << 20  # characters that are kept of a launch's output; the device has a buffer of 1 MiB, too


@handles("call")
def call(decoder: Decoder, ins: Instruction) -> Run:
    """Decode a call of the system, or a part of another call, see `ptx.calls`."""
    if ins.opcode[1:] == ("push",):
        return push(decoder, ins)
    if ins.opcode[1:] == ("pop",):
        return pop(decoder, ins)
    if ins.opcode[1:] == ("nowhere",):
        return lambda group, where: fault(
            group, ins, "bad call", where, "", 0, "calls an address at which no function begins"
        )
    returned, callee, passed = parts(ins)
    known = {"vprintf": (_print, 2), ASSERTION: (_assert, 5), "malloc": (_allocate, 1), "free": (_free, 1)}
    maker, count = known.get(callee, (None, 0))
    if maker is None or len(passed) != count:
        from_device = callee.startswith(("cudaLaunch", "cudaGetParameterBuffer", "cudaCDP", "__cudaCDP"))
        what = f"calls of {callee}" + (", which this PTX only declares" if maker is None else "")
        what = f"launches from the device ({callee})" if from_device else what
        raise decoder.refusal(ins, what)
    arguments = [_argument(decoder, ins, name) for name in passed]
    return maker(decoder, ins, arguments, returned)


Arguments = list[Callable[[Group, Lanes], Array]]


def _argument(decoder: Decoder, ins: Instruction, name: str) -> Callable[[Group, Lanes], Array]:
    """Return a reader of what is passed in a parameter: int64 (T, C)."""
    address = decoder.integer(ins, name, 64)
    size = decoder.entry.variables[name].size if name in decoder.entry.variables else 8

    def read(group: Group, where: Lanes) -> Array:
        where_from = place(group, ins, "", address(group), where, size)
        found: list[Array] = []
        if where_from.where is not False:
            observe(group, ins, where_from, READ, size)
            check_written(group, ins, where_from, size)
            found.append(np.array(load(group, where_from, size)))
        if not found:
            return np.zeros(group.shape, np.int64)
        return np.ascontiguousarray(np.broadcast_to(found[0], group.shape)).view(f"i{size}").astype(np.int64)

    return read


def _give(decoder: Decoder, ins: Instruction, returned: list[str], size: int) -> Callable[..., None]:
    """Return a function that stores a result of `size` bytes in the parameter for it, if there is one."""
    if not returned:
        return lambda group, value, where: None
    address = decoder.integer(ins, returned[0], 64)

    def give(group: Group, value: Array, where: Lanes) -> None:
        into = place(group, ins, "", address(group), where, size)
        observe(group, ins, into, WRITE, size)
        kind = np.float32 if size == 4 else np.float64
        store(group, into, size, [np.ascontiguousarray(value.astype(f"i{size}")).view(kind)])

    return give


def _string(group: Group, address: int, thread: int, column: int) -> str:
    """Return the string at a generic address, up to its zero."""
    return octets(group, address, _LONGEST, thread, column).partition(b"\0")[0].decode(errors="replace")


def _print(decoder: Decoder, ins: Instruction, arguments: Arguments, returned: list[str]) -> Run:
    """Return the function of ``vprintf``: it adds to the launch's output, thread by thread."""
    give = _give(decoder, ins, returned, 4)

    def run(group: Group, where: Lanes) -> None:
        texts, values = (read(group, where) for read in arguments)
        counts = np.zeros(group.shape, np.int64)
        for thread, column in lanes_of(group, where):
            text = _string(group, int(texts[thread, column]), thread, column)
            base = int(values[thread, column])
            counts[thread, column] = len(PIECE.findall(text))
            if group.launch.printed.tell() < _MOST:
                group.launch.printed.write(
                    formatted(
                        text,
                        lambda offset, size: octets(group, base + offset, size, thread, column),  # noqa: B023
                        lambda address: _string(group, address, thread, column),  # noqa: B023
                    )
                )
        give(group, counts, where)

    return run


def _assert(decoder: Decoder, ins: Instruction, arguments: Arguments, returned: list[str]) -> Run:
    """Return the function of ``__assertfail``: a finding for each assertion that fails."""

    def run(group: Group, where: Lanes) -> None:
        message, file, line, _, _ = (read(group, where) for read in arguments)
        thread, column = lanes_of(group, where)[0]
        text = _string(group, int(message[thread, column]), thread, column)
        name = _string(group, int(file[thread, column]), thread, column)
        place_of = f"{re.split(r'[/]', name)[-1]}:{int(line[thread, column])}"
        fault(group, ins, "assertion", where, "", 0, f"{place_of}: assertion `{text}` failed")

    return run


def _allocate(decoder: Decoder, ins: Instruction, arguments: Arguments, returned: list[str]) -> Run:
    """Return the function of ``malloc``: the heap's next bytes, or a null pointer once it is full."""
    give = _give(decoder, ins, returned, 8)

    def run(group: Group, where: Lanes) -> None:
        chosen = broadcast_mask(where, group.shape)
        sizes = np.where(chosen, -(-arguments[0](group, where) // 16) * 16, 0)
        heap = next(a for a in group.launch.arena.allocations if a.name == HEAP)
        ends = np.cumsum(sizes.ravel()).reshape(group.shape) + group.launch.heap_used
        fits = ends <= heap.end - heap.start
        give(group, np.where(fits, heap.start + ends - sizes, 0), where)
        group.launch.heap_used = int(ends.max(initial=0, where=fits))

    return run


def _free(decoder: Decoder, ins: Instruction, arguments: Arguments, returned: list[str]) -> Run:
    """Return the function of ``free``: it reports a pointer that is not the heap's. Nothing is used again."""

    def run(group: Group, where: Lanes) -> None:
        pointers = arguments[0](group, where)
        heap = next((a for a in group.launch.arena.allocations if a.name == HEAP), None)
        low, high = (heap.start, heap.end) if heap is not None else (0, 0)
        wrong = (pointers != 0) & ((pointers < low) | (pointers >= high)) & broadcast_mask(where, group.shape)
        if wrong.any():
            fault(group, ins, "bad free", mask_of(wrong), "", 0, "frees what malloc has not given")

    return run
