"""Read the tensor maps that host code encodes with cuTensorMapEncodeTiled, or a pointer to it."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from harness.kernels import text
from harness.kernels.cpp.host import launches
from harness.kernels.cpp.host.values import constants

_ELEMENTS = {  # bytes of CUDA's element types
    "UINT8": 1, "UINT16": 2, "FLOAT16": 2, "BFLOAT16": 2, "FLOAT32": 4, "UINT32": 4, "INT32": 4,
    "FLOAT64": 8, "UINT64": 8, "INT64": 8,
}  # fmt: skip
_CALL = re.compile(r"\b\w+\s*(\(\s*&?\s*(\w+)\s*,\s*(?:\w+::)?CU_TENSOR_MAP_DATA_TYPE_(\w+)\s*,)")
_FUNCTION = re.compile(r"(\w+)\s*\(([^(){};]*)\)\s*\{")
_WORDS = ("if", "while", "switch")
_ARGUMENTS = 12  # of cuTensorMapEncodeTiled
_EXTENTS, _BOX, _SWIZZLE = 4, 6, 9  # which of them these are
_BOXES = 4  # along an extent: a longer tensor is cut
_ROW = 16  # bytes of which strides are multiples
_DEEPEST, _MOST = 5, 256  # extents, and elements of a box along one of them


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A dense tensor in the boxes of host code, innermost first, under the `name` of its map there.

    `size` is the bytes of an element.
    """

    name: str
    element: str
    size: int
    extents: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @property
    def strides(self) -> tuple[int, ...]:
        """Return the bytes from one index to the next, without that of the innermost."""
        row = -(-self.extents[0] * self.size // _ROW) * _ROW
        return tuple(itertools.accumulate(self.extents[1:-1], int.__mul__, initial=row))[: len(self.box) - 1]

    @property
    def bytes(self) -> int:
        """Return the bytes of the whole tensor."""
        return (self.strides or (self.size,))[-1] * self.extents[-1]


def of(source: str, entry: text.Entry, name: str) -> dict[str, Encoded]:
    """Return the tensor maps of the kernel `name` by its parameters, where they are known.

    One is that whose name host code passes, or the parameter has, or the only one of the text.
    """
    known = {found.name: found for found in _encoded(source)}
    launched = launches.of(source, name)
    passed = (*(launched.arguments if launched else ()), *[""] * len(entry.parameters))
    only = next(iter(known.values()), None) if len(_CALL.findall(text.blank(source))) == 1 else None
    found = {
        p.name: known.get(argument.strip("&* ")) or known.get(p.name) or only
        for p, argument in zip(entry.parameters, passed, strict=False)
        if p.type == "CUtensorMap"
    }
    return {parameter: tensor for parameter, tensor in found.items() if tensor is not None}


def _encoded(source: str) -> list[Encoded]:
    """Return the tensor maps of a text whose boxes are numbers. An extent that is none is of some boxes."""
    plain = text.blank(source)
    found = []
    for at in _CALL.finditer(plain):
        headers = [
            parameters for name, parameters in _FUNCTION.findall(plain[: at.start()]) if name not in _WORDS
        ]
        own = {words[-1] for p in text.split("".join(headers[-1:])) if (words := re.findall(r"\w+", p))}
        values = constants([source], own, {})  # but for what the function around it is given
        given = text.split(plain[at.start(1) + 1 : text.closing(plain, at.start(1))])
        if len(given) != _ARGUMENTS or at[3] not in _ELEMENTS:
            continue
        lists = [_list(plain[: at.start()], given[n]) for n in (_EXTENTS, _BOX)]
        extents, box = ([values.number(part) or 0 for part in parts] for parts in lists)
        swizzle = re.search(r"SWIZZLE_(32|64|128)B\b", given[_SWIZZLE])
        if 0 < len(extents) == len(box) <= _DEEPEST and all(0 < n <= _MOST for n in box):
            found.append(
                Encoded(
                    name=at[2],
                    element=at[3],
                    size=_ELEMENTS[at[3]],
                    extents=tuple(
                        min(e if e > 0 else n * _BOXES, n * _BOXES) for e, n in zip(extents, box, strict=True)
                    ),
                    box=tuple(box),
                    swizzle=int(swizzle[1]) if swizzle else 0,
                )
            )
    return found


def _list(before: str, name: str) -> list[str]:
    """Return what a text lists last for an array, ``uint32_t box[2] = {64, 32}``."""
    given = re.findall(rf"\b{re.escape(name)}\s*(?:\[[^]]*\])?\s*=?\s*\{{([^{{}}]*)\}}", before)
    return text.split(given[-1]) if given else []
