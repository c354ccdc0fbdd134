"""How compilers pass what PTX does not know: arrays with lengths and strides, and how far a launch goes.

Numba, Warp and CuTe are told by the names of their entries. Of their arrays the lengths are free, and all
else follows from these: the strides are those of rows that lie one after another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.kernels.cpp.source.ptx import assembly
from harness.kernels.cpp.source.ptx.assembly import Entry, Parameter

_NUMBA = re.compile(r"5ArrayI(\d*)([a-z]\w*?)Li(\d)E1([CFA])7mutable7alignedE")
_ITEMS = {  # bytes by the names of types in those of entries
    "f": 4, "d": 8, "i": 4, "j": 4, "x": 8, "y": 8, "l": 8, "m": 8, "s": 2, "t": 2, "a": 1, "h": 1, "b": 1,
    "complex64": 8, "complex128": 16, "float16": 2,
}  # fmt: skip
_SCALARS = re.compile(r"(?:\d*complex\d+|[a-z])*")
_BOUNDS, _ARRAY = (24, 32), 56  # bytes of Warp's structs
_WORDS = ("u64", "b64", "s64")
_CUTE = re.compile(r"_tensorptr\w+?gmem(?:align\d+)?o((?:i64|1)+)(?=_)")

THREADS = "blockDim.x"  # stands for the threads of a block among what others follow from


@dataclass(frozen=True, kw_only=True)
class Part:
    """A number or a pointer in a parameter, at a byte of it.

    What follows from others has no name: it is `factor` times the product of those that are called `over`. So
    are the bytes behind a pointer, where `factor` is that of an element, or 0.
    """

    at: int
    type: str = "u64"
    name: str = ""
    pointer: bool = False
    over: tuple[str, ...] = ()
    factor: int = 0


Parts = dict[str, tuple[Part, ...]]  # by the names of parameters in their entry


def of(entry: Entry, items: Mapping[str, int]) -> Parts:
    """Return the parts of the parameters that a compiler is known to pass, by their names in the entry.

    `items` are the bytes of an element by the name of its pointer. Where they are not known yet, Warp's
    strides have names.
    """
    if found := _NUMBA.findall(entry.name):
        return dict(_of_numba(entry, found))
    if re.search(r"_cuda_kernel_(?:forward|backward)\Z", entry.name):
        return dict(_of_warp(entry, items))
    if entry.name.startswith("kernel_cutlass_"):
        return dict(_of_cute(entry))
    return {}


def _of_numba(entry: Entry, arrays: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, tuple[Part, ...]]]:
    """Yield the parameters of arrays: two pointers of Python, items, bytes of one, data, lengths, strides."""
    between = [_SCALARS.sub(_one_each, part) for part in _NUMBA.split(entry.name)[5::5]]
    rest = [len(part) if re.fullmatch("s*", part) else -1 for part in between]
    own = sum(5 + 2 * int(rank) for _, _, rank, _ in arrays)
    place = len(entry.parameters) - own - sum(rest)  # numbers in front of the first array
    if place < 0 or -1 in rest or any(kind not in _ITEMS for _, kind, *_ in arrays):
        return
    found = list[tuple[str, tuple[Part, ...]]]()
    for (_, kind, rank, layout), numbers in zip(arrays, rest, strict=True):
        several, item = int(rank), _ITEMS[kind]
        of_array = entry.parameters[place : place + 5 + 2 * several]
        lengths = [p.name for p in of_array[5 : 5 + several]]
        inner = [tuple(lengths[d + 1 :] if layout != "F" else lengths[:d]) for d in range(several)]
        parts = [
            Part(at=0),
            Part(at=0),
            Part(at=0, over=tuple(lengths), factor=1),
            Part(at=0, factor=item),
            Part(at=0, name=of_array[4].name, pointer=True, over=tuple(lengths), factor=item),
            *(Part(at=0, name=length) for length in lengths),
            *(Part(at=0, over=over, factor=item) for over in inner),
        ]
        if any(p.type not in _WORDS for p in of_array):
            return
        found += ((p.of_entry, (part,)) for p, part in zip(of_array, parts, strict=True))
        place += len(parts) + numbers
    yield from found


def _one_each(letters: re.Match[str]) -> str:
    """Return an ``s`` for each type among those of numbers; a complex one is two parameters."""
    return "".join("ss" if "c" in t else "s" for t in re.findall(r"\d*complex\d+|[a-z]", letters[0]))


def _of_warp(entry: Entry, items: Mapping[str, int]) -> Iterator[tuple[str, tuple[Part, ...]]]:
    """Yield the bounds of a launch, lengths and their product, and arrays of up to four dimensions."""
    for n, p in enumerate(entry.parameters):
        if (loaded := assembly.loaded(entry, p)) is None:
            continue
        if n == 0 and p.bytes in _BOUNDS:
            older = p.bytes == _BOUNDS[1] and _older(loaded)
            yield p.of_entry, _older_bounds(p, loaded) if older else _bounds(entry, p, loaded)
        elif n and p.bytes == _ARRAY and _is_array(loaded):
            yield p.of_entry, _array(p, loaded, items)


def _bounds(entry: Entry, p: Parameter, loaded: Mapping[int, str]) -> tuple[Part, ...]:
    """Return one to four lengths, the product of all, and how many threads each place has."""
    few, many = ((1, 2), (3, 4))[p.bytes == _BOUNDS[1]]
    lengths = tuple(f"{p.name}_m{4 * d}" for d in range(many if 4 * (many - 1) in loaded else few))
    together = (THREADS,) if re.search(r"\bbar(?:rier)?\.", entry.body) else ()  # tiles are a block's
    return (
        *(Part(at=4 * d, type="u32", name=n) for d, n in enumerate(lengths)),
        Part(at=p.bytes - 16, over=(*lengths, *together), factor=1),
        Part(at=p.bytes - 8, over=together, factor=1),
    )


def _older_bounds(p: Parameter, loaded: Mapping[int, str]) -> tuple[Part, ...]:
    """Return four lengths, how many count, and their product."""
    count = max((d + 1 for d in range(4) if 4 * d in loaded), default=1)
    lengths = tuple(f"{p.name}_m{4 * d}" for d in range(count))
    return (
        *(Part(at=4 * d, type="u32", name=n) for d, n in enumerate(lengths)),
        *(Part(at=4 * d, type="u32", factor=1) for d in range(count, 4)),
        Part(at=16, type="u32", factor=count),
        Part(at=24, over=lengths, factor=1),
    )


def _array(p: Parameter, loaded: Mapping[int, str], items: Mapping[str, int]) -> tuple[Part, ...]:
    """Return a pointer, lengths, strides in bytes, and how many of both there are."""
    rank = max((at % 16 // 4 + 1 for at in loaded if 16 <= at < 48), default=1)
    names, data = [f"{p.name}_m{16 + 4 * d}" for d in range(rank)], f"{p.name}_m0"
    item = items.get(data, 4 if items else 0)
    steps = (
        Part(at=32 + 4 * d, type="u32", over=tuple(names[d + 1 :]), factor=item)
        if item
        else Part(at=32 + 4 * d, type="u32", name=f"{p.name}_m{32 + 4 * d}")
        for d in range(rank)
    )
    return (
        Part(at=0, name=data, pointer=True, over=tuple(names), factor=item),
        *(Part(at=16 + 4 * d, type="u32", name=n) for d, n in enumerate(names)),
        *steps,
        Part(at=48, type="u32", factor=rank),
    )


def _older(loaded: Mapping[int, str]) -> bool:
    """Return True for bounds as Warp had them for long: four lengths, how many count, and their product."""
    return assembly.bytes_of(loaded.get(16, "u64")) == 4 or (24 in loaded and 16 not in loaded)


def _is_array(loaded: Mapping[int, str]) -> bool:
    """Return True if all that is loaded from a struct by value is where Warp's arrays have such a number."""
    return all(
        (at in (0, 8) and assembly.bytes_of(kind) == 8)
        or (16 <= at < _ARRAY and at % 4 == 0 and assembly.bytes_of(kind) == 4)
        for at, kind in loaded.items()
    )


def _of_cute(entry: Entry) -> Iterator[tuple[str, tuple[Part, ...]]]:
    """Yield tensors in global memory: a pointer, lengths, and the strides but for that of 1."""
    structs = [p for p in entry.parameters if p.bytes]
    layouts = [re.findall("i64|1", strides) for strides in _CUTE.findall(entry.name)]
    for p, strides in zip(structs, layouts, strict=False):
        free = [d for d, stride in enumerate(strides) if stride == "i64"]
        lengths = [f"{p.name}_m{8 + 4 * d}" for d in range(len(strides))]
        begin = -(-(8 + 4 * len(lengths)) // 8) * 8
        if (
            p.bytes != begin + 8 * len(free)
            or assembly.loaded(entry, p) is None
            or len(layouts) != len(structs)
        ):
            return
        # From the innermost on: the one whose stride is 1, then the others, of rows the last ones first.
        order = sorted(free, reverse=strides[-1] == "1")
        order = [d for d in range(len(strides)) if d not in free] + order
        inner = [tuple(lengths[n] for n in sorted(order[: order.index(d)])) for d in free]
        yield (
            p.of_entry,
            (
                Part(at=0, name=f"{p.name}_m0", pointer=True, over=tuple(lengths)),
                *(Part(at=8 + 4 * d, type="u32", name=n) for d, n in enumerate(lengths)),
                *(Part(at=begin + 8 * n, over=over, factor=1) for n, over in enumerate(inner)),
            ),
        )
