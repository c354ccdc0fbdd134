"""Read the tensor maps that host code encodes with cuTensorMapEncodeTiled or -Im2col, or a pointer to them.

A function may encode them that the text calls for each operand: ``create_map<BM, BK>(&map, A, M, K)``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.kernels import text
from harness.kernels.cpp.host import launches
from harness.kernels.cpp.host.frames import Frame, Host, host
from harness.kernels.cpp.host.passed import Passed, base

_ELEMENTS = {  # bytes of CUDA's element types
    "UINT8": 1, "UINT16": 2, "FLOAT16": 2, "BFLOAT16": 2, "FLOAT32": 4, "UINT32": 4, "INT32": 4,
    "FLOAT64": 8, "UINT64": 8, "INT64": 8, "FLOAT32_FTZ": 4, "TFLOAT32": 4, "TFLOAT32_FTZ": 4,
}  # fmt: skip
_TYPES = {  # of C++
    **dict.fromkeys(("__nv_fp8_e4m3", "__nv_fp8_e5m2", "uint8_t", "int8_t"), "UINT8"),
    **dict.fromkeys(("half", "__half"), "FLOAT16"),
    **dict.fromkeys(("nv_bfloat16", "__nv_bfloat16"), "BFLOAT16"),
    **{"float": "FLOAT32", "double": "FLOAT64", "int": "INT32", "int32_t": "INT32", "uint32_t": "UINT32"},
}
_TYPE = re.compile(r"\bCU_TENSOR_MAP_DATA_TYPE_(\w+)")
_CALL = re.compile(r"\b(?!if\b|while\b|switch\b)\w+\s*(?:\(\s*\)\s*)?(\()")
_VARIABLE = re.compile(r"\b__(?:constant|device)__\s+(?:static\s+|const\s+)*CUtensorMap\s+(\w+)\s*[;\[{=]")
_ARGUMENTS, _COLUMNS = 12, 15  # of cuTensorMapEncodeTiled and of cuTensorMapEncodeIm2col
_NAME, _KIND, _RANK, _EXTENTS, _BOX, _SWIZZLE = 0, 1, 2, 4, 6, 9  # which of the first one's these are
_LOWER, _UPPER, _CHANNELS, _PIXELS, _STEPS = 6, 7, 8, 9, 10  # and of the second one's, whose swizzle is 12th
_IMAGE = 1 << 26  # elements of a tensor that is taken as it is
_BOXES = 4  # along an extent: a longer tensor is cut
_ROW = 16  # bytes of which strides are multiples
_DEEPEST, _MOST = 5, 256  # extents, and elements of a box along one of them
_LONGEST = 2000  # characters of a call


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A dense tensor in the boxes of host code, innermost first, under the `name` of its map there.

    `size` is the bytes of an element. `written` has the extents as host code has them, with their frames.
    An im2col map has corners, `lower` and `upper`, and steps, and its box is channels and pixels.
    """

    name: str
    element: str
    size: int
    extents: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    written: tuple[tuple[Frame, str], ...] = field(default=(), compare=False, repr=False)

    @property
    def strides(self) -> tuple[int, ...]:
        """Return the bytes from one index to the next, without that of the innermost."""
        row = -(-self.extents[0] * self.size // _ROW) * _ROW
        return tuple(itertools.accumulate(self.extents[1:-1], int.__mul__, initial=row))[
            : len(self.extents) - 1
        ]

    @property
    def bytes(self) -> int:
        """Return the bytes of the whole tensor."""
        return (self.strides or (self.size,))[-1] * self.extents[-1]


def of(source: str, entry: text.Entry, name: str, members: Sequence[str] = ()) -> dict[str, Encoded]:
    """Return the tensor maps of the kernel `name` by its parameters, where they are known.

    So it is with those in structs by value, whose `members` are named ``params.map_a``. One is that whose
    name host code passes, or the parameter or member has, or the only one of the text. Where all of them have
    other names they are in the order of the parameters, if they are as many.
    """
    wanted = [p.name for p in entry.parameters if p.type == "CUtensorMap"] + [*members]
    if not wanted:
        return {}
    code = host(source)
    made = list(_encoded(code))
    passed = Passed(code, [(frame, given) for frame, given, _ in made])
    launched = launches.of(source, name)
    around = code.function(code.place(launched.line)) if launched else None
    found = dict[str, Encoded]()
    arguments = {p.name: a for p, a in zip(entry.parameters, launches.passed(launched, entry), strict=True)}
    for one in wanted:
        for called in (arguments.get(one, ""), one):
            if one not in found and called and (n := passed.which(around, called)) is not None:
                found[one] = made[n][2]
    distinct = list({encoded: None for *_, encoded in made if encoded not in found.values()})
    missing = [name for name in wanted if name not in found]
    if len({(e.element, e.extents, e.box, e.swizzle, e.lower, e.upper) for e in distinct}) == 1 and not found:
        return dict.fromkeys(wanted, distinct[0])
    return found | (dict(zip(missing, distinct, strict=True)) if len(missing) == len(distinct) else {})


def variables(texts: Sequence[str], called: str) -> Iterator[str]:
    """Yield the tensor maps among variables that a kernel reads, ``__constant__ CUtensorMap map;``."""
    for one in texts:
        for name in _VARIABLE.findall(one):
            if re.search(rf"\b{name}\b", called):
                yield name


def longest(maps: Mapping[str, Encoded]) -> int:
    """Return the longest extent of some tensors; 1024 of none."""
    return max((extent for tensor in maps.values() for extent in tensor.extents), default=1024)


def _encoded(code: Host) -> Iterator[tuple[Frame, str, Encoded]]:
    """Yield (frame, name there, tensor) of the maps of a text whose boxes are numbers, for each way there."""
    kinds = {*_TYPE.findall(code.plain)}
    for at in _CALL.finditer(code.plain):
        closed = text.closing(code.plain, at.start(1))
        call = code.plain[at.start(1) + 1 : closed] if closed < at.end() + _LONGEST else ""
        if "CU_TENSOR_MAP" not in call or len(given := text.split(call)) not in (_ARGUMENTS, _COLUMNS):
            continue
        read = _read if len(given) == _ARGUMENTS else _columns
        for frame in code.frames(at.start()):
            if (found := read(frame, given, kinds)) is not None:
                yield frame, base(given[_NAME]), found


def _read(frame: Frame, given: Sequence[str], kinds: set[str]) -> Encoded | None:
    """Return the tensor of a call in a frame. An extent that is no number is of some boxes."""
    kind = _element(frame, given, kinds)
    box = [there.number(part) or 0 for there, part in _list(frame, given[_BOX])]
    rank = frame.number(given[_RANK]) or len(box)
    written = _list(frame, given[_EXTENTS])[:rank]
    extents = [there.number(part) or 0 for there, part in written]
    box = box[:rank]
    if kind not in _ELEMENTS or not 0 < len(box) == len(extents) <= _DEEPEST:
        return None
    if not all(0 < n <= _MOST for n in box):
        return None
    return Encoded(
        name=base(given[_NAME]),
        element=kind,
        size=_ELEMENTS[kind],
        extents=tuple(min(e if e > 0 else n * _BOXES, n * _BOXES) for e, n in zip(extents, box, strict=True)),
        box=tuple(box),
        swizzle=_swizzle(frame, given[_SWIZZLE]),
        written=tuple(written),
    )


def _element(frame: Frame, given: Sequence[str], kinds: set[str]) -> str:
    """Return the element type of a call in a frame, or ""."""
    element = _TYPE.search(_chosen(frame, given[_KIND]))
    return element[1] if element else next(iter(kinds)) if len(kinds) == 1 else _of_type(frame)


def _columns(frame: Frame, given: Sequence[str], kinds: set[str]) -> Encoded | None:
    """Return the tensor of an im2col map. Its extents have to be numbers: bases lie within the image."""

    def numbers(place: int, count: int) -> tuple[int, ...]:
        found = [there.number(part) for there, part in _list(frame, given[place])[:count]]
        return tuple(n for n in found if n is not None)

    kind, rank = _element(frame, given, kinds), frame.number(given[_RANK]) or 0
    extents, lower, upper = (
        numbers(place, count) for place, count in ((_EXTENTS, rank), (_LOWER, rank - 2), (_UPPER, rank - 2))
    )
    box = tuple(frame.number(given[place]) or 0 for place in (_CHANNELS, _PIXELS))
    known = (
        len(extents) == rank and len(lower) == len(upper) == rank - 2 and min(*extents, *box, rank - 2) > 0
    )
    if not known or kind not in _ELEMENTS or math.prod(extents) > _IMAGE:
        return None
    steps = numbers(_STEPS, rank)
    return Encoded(
        name=base(given[_NAME]),
        element=kind,
        size=_ELEMENTS[kind],
        extents=extents,
        box=box,
        swizzle=_swizzle(frame, given[_SWIZZLE + len(given) - _ARGUMENTS]),
        lower=lower,
        upper=upper,
        steps=steps if len(steps) == rank else (),
    )


def _of_type(frame: Frame) -> str:
    """Return the element type of the only type among what a function's template is given, or ""."""
    own = frame.function
    types = {frame.value(name) for name in (own.template if own else ())} & _TYPES.keys()
    return _TYPES[types.pop()] if len(types) == 1 else ""


def _chosen(frame: Frame, written: str) -> str:
    """Return what an enumerator is: of ``a ? b : c`` that which a number chooses."""
    meant, frame = frame.meant(written)
    while at := re.fullmatch(r"\(?([^?]*)\?([^:?]*(?:::[^:?]*)*):((?!:).*?)\)?", meant, re.DOTALL):
        taken = frame.number(at[1].strip().strip("()"))
        meant, frame = frame.meant(at[3] if taken == 0 else at[2])
    return meant


def _swizzle(frame: Frame, written: str) -> int:
    """Return the bytes of a swizzle: of an enumerator, or of the only number that a function is given."""
    meant = _chosen(frame, written)
    if named := re.search(r"SWIZZLE_(?:(32|64|128)B|NONE)\b", meant):
        return int(named[1] or 0)
    call = re.search(r"\w*[sS]wizzle\w*\s*(?:<([^<>]*)>)?\s*\((.*)\)\Z", meant, re.DOTALL)
    numbers = (
        [frame.number(frame.meant(part)[0]) for part in text.split(f"{call[1] or ''},{call[2]}")]
        if call
        else []
    )
    return next((n for n in numbers if n in (32, 64, 128)), 0)


def _list(frame: Frame, written: str) -> list[tuple[Frame, str]]:
    """Return what a list has that an array was given last, ``uint32_t box[2] = {64, 32}``, with its frame.

    So are the places that were set one by one, ``box[0] = 64;``, and a list in place of a name.
    """
    meant, frame = frame.meant(re.sub(r"\.\s*(?:data|begin)\s*\(\s*\)|\+\s*[01]\s*\Z|\A\s*&", "", written))
    name = meant.lstrip("& (").rstrip(") ")
    own = frame.function
    before = frame.host.plain[own.opened if own else 0 : frame.place]
    if "{" in meant:
        return [(frame, part) for part in text.split(meant[meant.rindex("{") + 1 : meant.index("}")])]
    if not name.isidentifier():
        return []
    listed = (
        rf"\b{name}\s*(?:\[[^]]*\])?\s*=?\s*(?:\w+\s*)?\{{\s*\{{?([^{{}}]*(?:\{{[^{{}}]*\}}[^{{}}]*)*)\}}"
    )
    given = [*re.finditer(listed, before)] or [*re.finditer(listed, frame.host.plain[: frame.place])]
    found = dict(enumerate(text.split(given[-1][1]))) if given else {}
    for at in re.finditer(rf"\b{name}\s*\[\s*(\d)\s*\]\s*=(?!=)\s*([^;{{\s][^;]*);", before):
        found[int(at[1])] = at[2]
    return [(frame, found[n]) for n in range(len(found)) if n in found]
