"""Instructions among the lanes of a warp, and fences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group, spread
from harness.emulator.instructions.floating.arithmetic import choose
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.numbers.values import Affine, Array, Lanes, integer_of, mask_of
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.faults import fault
from harness.emulator.watch.patterns import WARP

_ALL = 0xFFFFFFFF


def warps(array: Array, fill: Any) -> Array:
    """Reshape (T, C) to (warps, 32, C); the last warp is padded with `fill`."""
    threads, blocks = array.shape
    short = -threads % WARP
    if short:
        array = np.concatenate([array, np.full((short, blocks), fill, array.dtype)])
    return array.reshape(-1, WARP, blocks)


def unwarp(array: Array, shape: tuple[int, int]) -> Array:
    """Reshape (warps, 32 or 1, C) to `shape`, (T, C), without the padding of `warps`."""
    return np.broadcast_to(array, (array.shape[0], WARP, shape[1])).reshape(-1, shape[1])[: shape[0]]


def active(group: Group, where: Lanes) -> Array:
    """Return the active lanes by warp, bool (warps, 32, C)."""
    return warps(broadcast_mask(where, group.shape), False)


def ballot(flags: Array) -> Array:
    """Return flags (warps, 32, C) as integers, int64 (warps, 1, C), with lane i at bit i."""
    weights = (np.int64(1) << np.arange(WARP)).reshape(1, WARP, 1)
    found: Array = (flags * weights).sum(1, keepdims=True)
    return found


def _as_signed(bits: Array) -> Array:
    """Return unsigned 32-bit numbers as signed ones."""
    return np.where(bits >= 1 << 31, bits - (1 << 32), bits)


@handles("shfl")
def shfl(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``shfl.sync``.

    The result of a source lane that does not take part is undefined: here it is all ones, which is NaN as a
    float, and a notice tells.
    """
    modes = decoder.parts(ins, {"sync", "up", "down", "bfly", "idx", "b32"})
    target, _, flag = ins.operands[0].partition("|")
    into = decoder.register(ins, target)
    flag_into = decoder.predicate_number(ins, flag) if flag else -1
    read = decoder.value(ins, ins.operands[1])
    by, clamp = (decoder.integer(ins, text, 32) for text in ins.operands[2:4])

    def run(group: Group, where: Lanes) -> None:
        lane = (np.arange(group.shape[0]) % WARP).reshape(-1, 1)
        b, c = spread(by(group), group.shape) & 31, spread(clamp(group), group.shape)
        segment = (c >> 8) & 31
        most = (lane & segment) | (c & 31 & ~segment)
        if "up" in modes:
            source = lane - b
            inside = source >= most
        else:
            source = (
                lane + b
                if "down" in modes
                else lane ^ b
                if "bfly" in modes
                else (lane & segment) | (b & ~segment)
            )
            inside = source <= most
        source = np.where(inside, source, lane)
        whole_rows = np.arange(group.shape[0]).reshape(-1, 1) - lane + source
        rows = np.minimum(whole_rows, group.shape[0] - 1)
        value = read(group)
        if isinstance(value, int | Affine):
            found: Any = integer_of(np.take_along_axis(spread(value, group.shape), rows, axis=0))
        else:
            whole = np.broadcast_to(group.floating(value, np.float32), group.shape)
            found = np.take_along_axis(whole, rows, axis=0)
        group.write(into, found, where)
        if flag_into >= 0:
            group.write(flag_into, mask_of(np.broadcast_to(inside, group.shape)), where)
        if where is not True or group.shape[0] % WARP:
            here = broadcast_mask(where, group.shape)
            there = np.take_along_axis(here, np.broadcast_to(rows, group.shape), axis=0)
            absent = mask_of(here & inside & ~(there & (whole_rows == rows)))
            if absent is not False:
                group.write(into, -1, absent)
                if group.launch.check:
                    said = "shfl from a lane that does not take part gives an undefined value"
                    fault(group, ins, "undefined shuffle", absent, "", 0, said, benign=True)

    return run


@handles("vote")
def vote(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``vote.sync`` with all, any, uni and ballot."""
    modes = decoder.parts(ins, {"sync", "all", "any", "uni", "ballot", "pred", "b32"})
    read = decoder.predicate(ins, ins.operands[1])
    into = decoder.register(ins, ins.operands[0])
    named = named_lanes(decoder, ins)

    def run(group: Group, where: Lanes) -> None:
        here, mask = active(group, where), named(group)
        says = warps(broadcast_mask(read(group), group.shape), False)
        yes, no = ballot(here & says) & mask, ballot(here & ~says) & mask
        if "ballot" in modes:
            bits = unwarp(_as_signed(yes), group.shape)
            group.write(into, integer_of(np.array(bits)), where)
            return
        found: Any = yes != 0 if "any" in modes else no == 0 if "all" in modes else (no == 0) | (yes == 0)
        group.write(into, mask_of(np.array(unwarp(found, group.shape))), where)

    return run


@handles("activemask")
def activemask(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``activemask``: the active lanes of the warp, lane i at bit i."""
    into = decoder.register(ins, ins.operands[0])

    def run(group: Group, where: Lanes) -> None:
        bits = unwarp(_as_signed(ballot(active(group, where))), group.shape)
        group.write(into, integer_of(np.array(bits)), where)

    return run


@handles("match")
def match(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``match.sync``: the lanes with the same value; with all, every active lane or none."""
    modes = decoder.parts(ins, {"any", "all", "sync", "b32", "b64"})
    target, _, flag = ins.operands[0].partition("|")
    into = decoder.register(ins, target)
    flag_into = decoder.predicate_number(ins, flag) if flag else -1
    read = decoder.integer(ins, ins.operands[1], int(ins.opcode[-1][1:]))
    named = named_lanes(decoder, ins)

    def run(group: Group, where: Lanes) -> None:
        here, mask = active(group, where), named(group)
        values = warps(spread(read(group), group.shape), 0)
        same = (values[:, :, None, :] == values[:, None, :, :]) & here[:, None, :, :]
        bits = (same * (np.int64(1) << np.arange(WARP)).reshape(1, 1, WARP, 1)).sum(2) & mask
        if "all" in modes:
            agreed = bits == (ballot(here) & mask)
            bits = np.where(agreed, bits, 0)
            if flag_into >= 0:
                group.write(flag_into, mask_of(np.array(unwarp(agreed, group.shape))), where)
        group.write(into, integer_of(np.array(unwarp(_as_signed(bits), group.shape))), where)

    return run


def named_lanes(decoder: Decoder, ins: Instruction, place: int = 2) -> Callable[[Group], Array]:
    """Return a reader of the mask of members, operand `place` or all lanes: int64 (warps, 32, C)."""
    if place >= len(ins.operands):
        return lambda group: np.full((-(-group.shape[0] // WARP), WARP, group.shape[1]), _ALL, np.int64)
    read = decoder.integer(ins, ins.operands[place], 32)
    return lambda group: warps(spread(read(group), group.shape) & _ALL, 0)


_REDUCE: dict[str, Any] = {
    "add": (np.add, 0),
    "and": (np.bitwise_and, -1),
    "or": (np.bitwise_or, 0),
    "xor": (np.bitwise_xor, 0),
    "min": (np.minimum, (1 << 63) - 1),
    "max": (np.maximum, -(1 << 63)),
}


@handles("redux", family="integer")
def redux(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``redux.sync``: the sum, extreme or bitwise combination over the active lanes of a warp."""
    modes = decoder.parts(ins, {"sync", *_REDUCE, "s32", "u32", "b32"})
    function, neutral = next(_REDUCE[name] for name in _REDUCE if name in modes)
    read = decoder.integer(ins, ins.operands[1], 32)
    into = decoder.register(ins, ins.operands[0])
    named = named_lanes(decoder, ins)

    def run(group: Group, where: Lanes) -> None:
        value = read(group)
        if "u32" in modes:
            value = group.algebra.unsigned(value, 32)
        lanes = np.where(active(group, where), warps(spread(value, group.shape), 0), neutral)
        masks = named(group)
        found = np.zeros(lanes.shape, np.int64)
        for mask in np.unique(masks):
            members = (mask >> np.arange(WARP) & 1).astype(np.bool_).reshape(1, WARP, 1)
            combined = function.reduce(np.where(members, lanes, neutral), axis=1, keepdims=True)
            found = np.where(masks == mask, combined, found)
        result = integer_of(np.array(unwarp(found, group.shape)))
        group.write(into, group.algebra.wrap(result, 32), where)

    return run


@handles("redux", family="float")
def extreme(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``redux.sync`` of f32: the extreme over the mask. A NaN loses, with ``.NaN`` it wins."""
    modes = decoder.parts(ins, {"sync", "min", "max", "abs", "NaN", "f32"})
    largest = "max" in modes
    neutral = np.float32(np.nan if "NaN" not in modes else -np.inf if largest else np.inf)
    read = decoder.floating(ins, ins.operands[1], np.float32)
    into = decoder.register(ins, ins.operands[0])
    named = named_lanes(decoder, ins)

    def run(group: Group, where: Lanes) -> None:
        values = np.broadcast_to(np.asarray(read(group)), group.shape)
        values = np.abs(values) if "abs" in modes else values
        lanes = np.where(active(group, where), warps(values, neutral), neutral)
        masks = named(group)
        found = np.zeros(lanes.shape, np.float32)
        for mask in np.unique(masks):
            members = (mask >> np.arange(WARP) & 1).astype(np.bool_).reshape(1, WARP, 1)
            total = np.full((lanes.shape[0], lanes.shape[2]), neutral)
            for lane in np.where(members, lanes, neutral).transpose(1, 0, 2):
                total = choose(total, lane, largest, "NaN" in modes)
            found = np.where(masks == mask, total[:, None, :], found)
        group.write(into, np.array(unwarp(found, group.shape)), where)

    return run


@handles("bar.warp")
def warp_barrier(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``bar.warp.sync``: it orders the lanes in its mask, see `order`."""
    named = named_lanes(decoder, ins, 0)

    def run(group: Group, where: Lanes) -> None:
        group.epoch += 1
        group.batch.gathered(group, where)
        if group.launch.races is None:
            return
        here, masks = active(group, where), named(group)
        absent = ~warps(np.ones(group.shape, np.bool_), False)  # lanes that no block has
        for mask in np.unique(masks[here]):
            group.launch.races.warp_barrier(group, (here & (masks == mask)) | absent)

    return run


@handles("membar", "fence")
def fence(decoder: Decoder, ins: Instruction) -> Run:
    """Decode fences, which order memory accesses, see `order`."""
    decoder.parts(
        ins,
        {"cta", "cluster", "gl", "gpu", "sys", "acq_rel", "sc", "acquire", "release"}
        # Narrower in what they order; taken for the whole fence.
        | {"sync_restrict::shared::cta", "sync_restrict::shared::cluster"},
    )
    beyond = "cta" not in ins.opcode

    def run(group: Group, where: Lanes) -> None:
        group.batch.fenced(group, where)
        if beyond and group.launch.delays is not None:
            group.launch.delays.fence(group, where)
        if group.launch.races is not None:
            group.launch.races.fence(group, ins, broadcast_mask(where, group.shape))

    return run


@handles("nanosleep")
def nanosleep(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``nanosleep``, which does nothing here."""
    return lambda group, where: None
