"""Tensor maps that a kernel makes or changes: ``tensormap.replace`` and ``tensormap.cp_fenceproxy``.

A map is made of 128 zero bytes, or of a copy of another map, in shared or global memory; TMA takes it from
global memory. What is not replaced stays as it was, and what a map lacks is reported where TMA takes it.
Numbers of fields: PTX ISA, "tensormap.replace".
"""

from __future__ import annotations

import re

import numpy as np

from harness.emulator.access import Place, check_written, load, observe, place, store
from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import BITS_OF, Group, spread
from harness.emulator.hopper.tma import tensormap
from harness.emulator.instructions.load_store import low_bytes
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.numbers.values import Integer, Lanes, mask_of, shift
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.touches import READ, WRITE

_NUMBERS = {  # what fields hold by the numbers that PTX has for it
    "elemtype": range(len(tensormap.SIZES)),
    "swizzle_mode": (0, 32, 64, 128),
    "fill_mode": (0, 1),
}
_PLAIN = {"interleave_layout", "swizzle_atomicity"}  # of which there is the first kind only
_ORDERED = {"box_dim": 5, "global_dim": 5, "global_stride": 4, "element_stride": 5}
_WHOLE = {"global_address", "rank"}


@handles("tensormap")
def tensormap_(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``tensormap.replace`` and ``tensormap.cp_fenceproxy``."""
    if "cp_fenceproxy" in ins.opcode and len(ins.operands) == 3:
        return _copy(decoder, ins)
    name = ins.opcode[3] if len(ins.opcode) > 5 and ins.opcode[1:3] == ("replace", "tile") else ""
    known = name in _ORDERED or name in _NUMBERS or name in _PLAIN or name in _WHOLE
    if not known or len(ins.operands) != 2 + (name in _ORDERED):
        raise decoder.refusal(ins)
    return _replace(decoder, ins, name)


def _replace(decoder: Decoder, ins: Instruction, name: str) -> Run:
    """Decode the replacement of one field."""
    address, *order, value = ins.operands
    read = decoder.address(ins, address)
    if name in _PLAIN:
        _literal(decoder, ins, value, range(1))
        return lambda group, where: None
    at, size = tensormap.field(name, _literal(decoder, ins, order[0], range(_ORDERED[name])) if order else 0)
    numbers = _NUMBERS.get(name)
    if numbers is not None:
        value = str(numbers[_literal(decoder, ins, value, range(len(numbers)))])
    new = decoder.integer(ins, value, 8 * size)
    more = 1 if name == "rank" else 0  # PTX counts extents from 0
    space = next((part.partition("::")[0] for part in ins.opcode if part in ("global", "shared::cta")), "")

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        found = place(group, ins, space, shift(base, offset + at), where, size)
        values = [low_bytes(shift(group.integer(new(group), 64), more), size)]
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
            check_written(group, ins, found, 8)
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
    if not ins.operands:
        raise decoder.refusal(ins)
    read = decoder.address(ins, ins.operands[0])

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        places = spread(shift(base, offset), group.shape)[broadcast_mask(where, group.shape)]
        for found in np.unique(places).tolist():
            group.launch.made_maps.get(found, set()).add(group.batch.first)

    return run


def _literal(decoder: Decoder, ins: Instruction, text: str, known: range) -> int:
    """Return the value of an operand that is a literal among `known`; refuses any other."""
    found = int(text, 0) if re.fullmatch(r"0[xX][\da-fA-F]+|\d+", text) else -1
    if found not in known:
        raise decoder.refusal(ins)
    return found
