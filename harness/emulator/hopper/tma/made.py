"""Tensor maps that a kernel makes or changes: ``tensormap.replace`` and ``tensormap.cp_fenceproxy``.

A map is made of 128 zero bytes, or of a copy of another map, in shared or global memory; TMA takes it from
global memory. What is not replaced stays as it was, and what a map lacks is reported where TMA takes it.
Numbers of fields: PTX ISA, "tensormap.replace".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.access import Place, load, observe, place, store
from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import BITS_OF, Group, spread
from harness.emulator.hopper.tma import tensormap
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.numbers.values import Integer, Lanes, mask_of, shift
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.touches import READ, WRITE

_NUMBERS = {  # what fields hold by the numbers that PTX has for it
    "elemtype": {number: number for number in range(len(tensormap.SIZES))},
    "swizzle_mode": {0: 0, 1: 32, 2: 64, 3: 128},
    "fill_mode": {0: 0, 1: 1},
}
_PLAIN = {"interleave_layout", "swizzle_atomicity"}  # of which there is the first kind only
_ORDERED = {"box_dim", "global_dim", "global_stride", "element_stride"}


@handles("tensormap")
def tensormap_(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``tensormap.replace`` and ``tensormap.cp_fenceproxy``."""
    if ins.opcode[1] == "cp_fenceproxy":
        return _copy(decoder, ins)
    if ins.opcode[1:3] != ("replace", "tile") or len(ins.opcode) < 6:
        raise decoder.refusal(ins)
    return _replace(decoder, ins, ins.opcode[3])


def _replace(decoder: Decoder, ins: Instruction, name: str) -> Run:
    """Decode the replacement of one field."""
    address, *order, value = ins.operands
    read = decoder.address(ins, address)
    if name in _PLAIN:
        if decoder.value(ins, value) is None or _literal(decoder, ins, value) != 0:
            raise decoder.refusal(ins)
        return lambda group, where: None
    at, size = tensormap.field(name, _literal(decoder, ins, order[0]) if name in _ORDERED else 0)
    new: Callable[[Group], Any]
    if name in _NUMBERS:
        number = _NUMBERS[name].get(_literal(decoder, ins, value))
        if number is None:
            raise decoder.refusal(ins)
        new = lambda group: number  # noqa: E731
    else:
        new = decoder.integer(ins, value, 8 * size)
    more = 1 if name == "rank" else 0  # PTX counts extents from 0
    space = next((part.partition("::")[0] for part in ins.opcode if part in ("global", "shared::cta")), "")

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        found = place(group, ins, space, shift(base, offset + at), where, size)
        values = [_bits(group, new(group), size, more)]
        observe(group, ins, found, WRITE, size, values)
        store(group, found, size, values)
        begins = place(group, ins, space, shift(base, offset), where, 8)
        store(group, begins, 8, [np.frombuffer(tensormap.MAGIC, BITS_OF[8])[0]])
        if begins.space == "global":
            _made(group, shift(base, offset), where)

    return run


def _copy(decoder: Decoder, ins: Instruction) -> Run:
    """Decode the copy of a map from shared to global memory, which one lane of the warp makes here."""
    into, source = (decoder.address(ins, text) for text in ins.operands[:2])

    def run(group: Group, where: Lanes) -> None:
        lanes = broadcast_mask(where, group.shape)
        one: Lanes = mask_of(lanes & (np.cumsum(lanes, axis=0) == 1))
        for begin in range(0, tensormap.BYTES, 8):
            base, offset = source(group)
            found: Place = place(group, ins, "shared", shift(base, offset + begin), one, 8)
            observe(group, ins, found, READ, 8)
            if found.where is False:
                return
            value = load(group, found, 8)
            base, offset = into(group)
            target = place(group, ins, "global", shift(base, offset + begin), one, 8)
            observe(group, ins, target, WRITE, 8, [value])
            store(group, target, 8, [value])
        base, offset = into(group)
        _made(group, shift(base, offset), one)

    return run


def _made(group: Group, address: Integer, where: Lanes) -> None:
    """Note that a map in global memory is another one: TMA sees it behind a fence of its proxy only."""
    for found in np.unique(spread(address, group.shape)[broadcast_mask(where, group.shape)]).tolist():
        group.launch.made_maps[found] = set()


def acquire(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``fence.proxy.tensormap::generic.acquire``: the block has what is at an address now."""
    read = decoder.address(ins, ins.operands[0])

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        places = spread(shift(base, offset), group.shape)[broadcast_mask(where, group.shape)]
        for found in np.unique(places).tolist():
            group.launch.made_maps.get(found, set()).add(group.batch.first)

    return run


def _literal(decoder: Decoder, ins: Instruction, text: str) -> int:
    """Return the value of an operand that is a literal; refuses any other."""
    try:
        return int(text, 0)
    except ValueError:
        raise decoder.refusal(ins) from None


def _bits(group: Group, value: Any, size: int, more: int) -> Any:
    """Return an integer, with `more` added, in the type of `memory.UNIT`."""
    whole = group.integer(value, 64)
    if isinstance(whole, int):
        return np.array((whole + more) & ((1 << 8 * size) - 1), f"u{size}").view(BITS_OF[size])[()]
    return (whole.array() + more).astype(f"i{size}").view(BITS_OF[size])
