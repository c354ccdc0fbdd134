"""Instructions on texture and surface objects: ``tex``, ``tld4``, ``txq``, ``suq``, ``suld`` and ``sust``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from harness.emulator.decode import FLOAT, Decoder, Run, handles
from harness.emulator.group import Group, spread
from harness.emulator.instructions.load_store import stored
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.instructions.texture.objects import Texture
from harness.emulator.numbers.values import Array, Lanes, integer_of, mask_of
from harness.emulator.ptx.declarations import BYTES, OPAQUE
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.faults import fault

_AXES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2, "cube": 3, "acube": 3}
_RESULTS = {"s32", "u32", "f32", "v2", "v4", "b8", "b16", "b32", "b64"}
_QUERIES = {"width": 3, "height": 2, "depth": 1, "array_size": 0}  # axis of `Texture.texels`
_VALUES = {"num_samples": 1, "memory_layout": 0, "force_unnormalized_coords": 0}

_OF_OBJECT: dict[str, Callable[[Texture], int]] = {
    "normalized_coords": lambda texture: int(texture.normalized),
    "num_mipmap_levels": lambda texture: 1 + len(texture.levels),
}


def _names(text: str) -> list[str]:
    """Return the operands of ``[handle, {x, y}]`` or ``{a, b}``, apart."""
    apart = text.strip("[] ").replace("{", ",").replace("}", ",").split(",")
    return [name.strip() for name in apart if name.strip()]


def _objects(group: Group, ins: Instruction, handle: Any, where: Lanes) -> Iterator[tuple[Texture, Array]]:
    """Yield each object that the lanes name, with its lanes, bool (T, C); report what names none."""
    values = spread(handle, group.shape)
    active = broadcast_mask(where, group.shape)
    for value in np.unique(values[active]).tolist():
        lanes = active & (values == value)
        found = group.launch.textures.get(value)
        if found is None:
            what = f"{value:#x} is no texture or surface object"
            fault(group, ins, "bad texture", mask_of(lanes), "", 0, what)
        else:
            yield found, lanes


def _coordinates(
    decoder: Decoder, ins: Instruction, names: list[str], geometry: str
) -> Callable[[Group], Any]:
    """Return a reader of (layer, coordinates), each (T, C); coordinates are float64."""
    layered = geometry.startswith("a")
    single = ins.opcode[-1] == "f32"
    axes = names[layered : layered + _AXES[geometry]]
    if len(axes) != _AXES[geometry]:
        raise IndexError(geometry)
    first = decoder.integer(ins, names[0], 32) if layered else None
    read = [
        decoder.floating(ins, name, np.float32) if single else decoder.integer(ins, name, 32) for name in axes
    ]

    def coordinates(group: Group) -> tuple[Array, list[Array]]:
        layer = spread(first(group), group.shape) if first is not None else np.zeros(group.shape, np.int64)
        found = []
        for one in read:
            value = one(group)
            whole = value if single else spread(value, group.shape)
            found.append(np.broadcast_to(np.asarray(whole, np.float64), group.shape))
        return layer, found

    return coordinates


def _face(coordinates: list[Array]) -> tuple[Array, list[Array]]:
    """Return (face, coordinates on it from 0 to 1) of a direction (CUDA Programming Guide, "Cubemaps")."""
    x, y, z = coordinates
    ax, ay, az = np.abs(x), np.abs(y), np.abs(z)
    major = np.where((ax >= ay) & (ax >= az), 0, np.where(ay >= az, 1, 2))
    size = np.choose(major, [ax, ay, az])
    negative = np.choose(major, [x, y, z]) < 0
    s = np.choose(major, [np.where(negative, z, -z), x, np.where(negative, -x, x)])
    t = np.choose(major, [-y, np.where(negative, -z, z), -y])
    size = np.where(size == 0, 1.0, size)
    return 2 * major + negative, [(s / size + 1) / 2, (t / size + 1) / 2]


@handles("tex", "tld4")
def tex(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``tex`` and ``tld4``. Without ``.level`` or ``.grad`` the finest level is read.

    Raises NeedsGpu for textures of several samples, and for samplers apart from their textures.
    """
    decoder.parts(ins, {*_AXES, *_RESULTS, "level", "grad", "base", "r", "g", "b", "a"})
    geometry = next(part for part in ins.opcode if part in _AXES)
    names = _names(ins.operands[1])
    named = decoder.entry.variables.get(names[0])
    if names[0] not in decoder.numbers and (named is None or named.type not in OPAQUE):
        raise decoder.refusal(ins, f"textures in {names[0]}, which is no texture reference")
    if len(names) > 1 and names[1] in decoder.entry.variables:
        raise decoder.refusal(ins, "samplers apart from textures")
    into = [decoder.register(ins, name) for name in _names(ins.operands[0])]
    handle = decoder.integer(ins, names[0], 64)
    where_to = _coordinates(decoder, ins, names[1:], geometry)
    to = ins.opcode[-2]
    channel = next(("rgba".index(p) for p in ins.opcode[1:] if p in ("r", "g", "b", "a")), -1)
    whole = ins.opcode[-1] == "s32"
    detail = _detail(decoder, ins)

    def run(group: Group, where: Lanes) -> None:
        results = np.zeros((*group.shape, 4))
        layer, coordinates = where_to(group)
        for texture, lanes in _objects(group, ins, handle(group), where):
            texel_layer, at = layer, coordinates
            if "cube" in geometry:
                face, at = _face(coordinates)
                texel_layer = layer * 6 + face
            if ins.opcode[0] == "tld4":
                found = texture.gather(texel_layer, at, channel)
            elif whole:
                found = texture.fetch(texel_layer, [texture.wrapped(c, i) for i, c in enumerate(at)])
            elif texture.levels and detail is not None:
                found = texture.sample_level(texel_layer, at, detail(group, texture))
            else:
                found = texture.sample(texel_layer, at)
            results[lanes, : found.shape[-1]] = found[lanes]
        for i, register in enumerate(into):
            _write(group, register, results[..., i], to, where)

    return run


def _detail(decoder: Decoder, ins: Instruction) -> Callable[[Group, Texture], Array] | None:
    """Return a reader of the level of detail, (T, C): of ``.level`` an operand, of ``.grad`` from two."""
    if "level" not in ins.opcode and "grad" not in ins.opcode:
        return None
    single = ins.opcode[-1] == "f32"
    read = [
        [
            decoder.floating(ins, name, np.float32) if single else decoder.integer(ins, name, 32)
            for name in _names(text)
        ]
        for text in ins.operands[2 : 3 if "level" in ins.opcode else 4]
    ]

    def values(group: Group) -> list[list[Array]]:
        found = [[one(group) for one in step] for step in read]
        return [
            [
                np.broadcast_to(np.asarray(v if single else spread(v, group.shape), float), group.shape)
                for v in step
            ]
            for step in found
        ]

    if "level" in ins.opcode:
        return lambda group, texture: values(group)[0][0]
    return lambda group, texture: texture.detail(values(group))


def _write(group: Group, register: int, values: Array, to: str, where: Lanes) -> None:
    """Write values, float64, to a register of type f32, s32 or u32."""
    if register < 0:
        return
    if to == "f32":
        group.write(register, values.astype(np.float32), where)
    else:
        group.write(register, integer_of(values.astype(np.int64).astype(np.int32).astype(np.int64)), where)


@handles("txq", "suq")
def query(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``txq`` and ``suq``: extents and properties of an object."""
    name = ins.opcode[1]
    if name not in _QUERIES and name not in _VALUES and name not in _OF_OBJECT:
        raise decoder.refusal(ins)
    into = decoder.register(ins, ins.operands[0])
    handle = decoder.integer(ins, _names(ins.operands[1])[0], 64)

    def run(group: Group, where: Lanes) -> None:
        found = np.zeros(group.shape, np.int64)
        for texture, lanes in _objects(group, ins, handle(group), where):
            if name in _QUERIES:
                found[lanes] = texture.texels.shape[_QUERIES[name]]
            else:
                found[lanes] = _OF_OBJECT[name](texture) if name in _OF_OBJECT else _VALUES[name]
        group.write(into, integer_of(found), where)

    return run


@handles("suld", "sust")
def surface(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``suld.b`` and ``sust.b``, in which x counts bytes.

    Outside the surface ``.clamp`` takes the nearest element, ``.zero`` gives zeros and stores nothing, and
    ``.trap`` is a finding.
    """
    modes = {"trap", "clamp", "zero", "ca", "cg", "cs", "cv", "wb", "wt"}
    parts = decoder.parts(ins, {"b", *_AXES, *_RESULTS, *modes})
    geometry = next(part for part in ins.opcode if part in _AXES)
    size = BYTES[next(part for part in reversed(ins.opcode) if part in BYTES)]
    loads = ins.opcode[0] == "suld"
    registers, place = ins.operands if loads else ins.operands[::-1]
    names = _names(place)
    handle = decoder.integer(ins, names[0], 64)
    where_to = _coordinates(decoder, ins, names[1:], geometry)
    values = [] if loads else [stored(decoder, ins, name, size) for name in _names(registers)]
    into = [decoder.register(ins, name) for name in _names(registers)] if loads else []
    count = len(into) or len(values)

    def run(group: Group, where: Lanes) -> None:
        layer, coordinates = where_to(group)
        results = np.zeros((*group.shape, count), f"u{size}")
        for texture, lanes in _objects(group, ins, handle(group), where):
            octets = texture.texels.view(np.uint8).reshape(*texture.texels.shape[:3], -1)
            index, inside = _index(layer, coordinates, octets.shape, size * count)
            if "clamp" not in parts:
                if "trap" in parts:
                    outside = mask_of(lanes & ~inside)
                    if outside is not False:
                        fault(group, ins, "out of bounds", outside, texture.name, 0, "outside of the surface")
                lanes = lanes & inside  # noqa: PLW2901
            chosen = tuple(one[lanes] for one in index)
            for i in range(count):
                for byte in range(size):
                    at = (*chosen[:3], chosen[3] + i * size + byte)
                    if loads:
                        results.view(np.uint8).reshape(*group.shape, count, size)[lanes, i, byte] = octets[at]
                    else:
                        whole = np.ascontiguousarray(np.broadcast_to(values[i](group), group.shape))
                        octets[at] = whole.view(np.uint8).reshape(*group.shape, size)[lanes, byte]
        for i, register in enumerate(into):
            found = np.ascontiguousarray(results[..., i])
            if size >= 4:
                group.write(register, found.view(FLOAT[f"f{8 * size}"]), where)
            else:
                group.write(register, integer_of(found.astype(np.int64)), where)

    return run


def _index(
    layer: Array, coordinates: list[Array], shape: tuple[int, ...], size: int
) -> tuple[list[Array], Array]:
    """Return clamped indices of layer, z, y and byte, and which lanes are inside, of `size` bytes."""
    places = [layer, *[np.zeros_like(layer)] * (3 - len(coordinates))]
    places += [c.astype(np.int64) for c in reversed(coordinates)]
    limits = [*(n - 1 for n in shape[:3]), shape[3] - size]
    inside = np.ones(layer.shape, np.bool_)
    for place, limit in zip(places, limits, strict=True):
        inside &= (place >= 0) & (place <= limit)
    clamped = [np.clip(place, 0, max(limit, 0)) for place, limit in zip(places, limits, strict=True)]
    return clamped, inside
