"""Guess sizes, and strides that lead from one row or one item to the next.

A stride is no size: it is multiplied and compared with nothing. Beside two sizes or more an item may be
a whole matrix, as all heads of a token: with a stride of one size items would overlap. A pitch that is added
to a pointer to bytes is in bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from harness.kernels import text
from harness.kernels.cpp import elements, extents, guesses
from harness.kernels.cpp.host.values import Values
from harness.kernels.spec import Kernel

# A size by default, by the dimensions of the arrays. That of one dimension divides by no block, so that a
# missing guard shows. With more than three dimensions an array has up to so many elements.
_SIZES = {1: 1000, 2: 64, 3: 32}
_MOST = 2**16
_TILED = 2**18  # as many as arrays may have so that sizes are no less than a tile
_BYTES = r"\(\s*(?:const\s+)?(?:unsigned\s+)?(?:char|u?int8_t|uchar|Npp8u)\s*(?:const\s*)?\*\s*\)"
_WHOLE = re.compile(  # what takes several elements at once
    r"\b(?:u?(?:char|short|int|long)[234]|float[234]|double2|half2|__half2|__nv_bfloat162|reinterpret_cast|wmma|mma|asm"
    r"|__shfl\w*|cooperative_groups|cg|cp_async\w*|__pipeline\w*|CUtensorMap)\b"
)
_FEW, _UNEQUAL, _APART = 16, 3, 5
_LOOP = re.compile(r"\b(?:for|while)\s*\([^{}]*?\)\s*(?=[{\w*])")
_CALLED = re.compile(r"\w*stride\w*", re.IGNORECASE)


def each(
    kernel: Kernel, entry: text.Entry, whole: Sequence[str], dimensions: int, alone: int
) -> tuple[int, int]:
    """Return how many sizes an array is the product of, and each; `alone` is one that no parameter says."""
    over = 3 if entry.threads == 3 <= len(whole) else min(dimensions, 2)  # a block's z may be a batch
    depth = max(over, 1 + extents.factors(entry.body, whole))
    size = _SIZES.get(depth, max(2, round(_MOST ** (1 / depth)))) if whole or depth > 1 else alone
    if depth > 1:  # a tile that nothing guards is whole; that of one dimension may have a rest
        size = max([size, *(n for e in kernel.tile if (n := e({})) ** depth <= _TILED)])
    return depth, size


def usual(
    entry: text.Entry, whole: Sequence[str], size: int, threads: int, numbers: Values
) -> dict[str, int]:
    """Return what each of the sizes `whole` is by default: `size`, or what the text makes of it."""
    divided = guesses.divided(entry, threads, numbers)
    found = {n: math.ceil(size / divided.get(n, 1)) * divided.get(n, 1) for n in whole}
    found |= {n: min(found[n], most) for n in whole if (most := extents.room(entry.body, n, numbers))}
    return found | {n: leaves for n, leaves in guesses.halved(entry, threads).items() if n in whole}


def strides(
    entry: text.Entry, whole: Sequence[str], types: Mapping[str, elements.Type], size: int
) -> dict[str, int]:
    """Return the strides among the parameters `whole`, where a size is `size`: what one is to be."""
    pointers = [types[p.name] for p in entry.parameters if p.pointer]
    widest = max((elements.size(kind) for kind in pointers), default=1)
    found = {name: size * widest for name in whole if in_bytes(entry.body, name)}
    alone = [name for name in whole if name not in found and apart(entry.body, name)]
    together = (
        s for s in re.split(r"[;{},]", entry.body) if len(set(re.findall(r"\w+", s)) & set(alone)) > 1
    )
    several = {name for statement in together for name in re.findall(r"\w+", statement)}
    if len(set(whole) - found.keys() - set(alone)) > 1:
        found |= {name: size * size for name in alone if name not in several}
    return found


def in_bytes(body: str, name: str) -> bool:
    """Return True for a pitch in bytes: ``(float*)((char*)image + y * pitch)``."""
    factor = rf"(?:\*\s*{name}\b|\b{name}\s*\*)"
    return bool(re.search(rf"{_BYTES}\s*\(?\s*[\w.>-]+\s*\)?\s*\+[^;]*?{factor}", body))


def apart(body: str, name: str) -> bool:
    """Return True where a parameter that is called a stride is a factor, and compared with nothing."""
    if not _CALLED.fullmatch(name):
        return False
    factor = rf"[\w)\]]\s*\*\s*{name}\b|\b{name}\s*\*\s*[\w(]"
    compared = rf"[<>=!]=?\s*{name}\b|\b{name}\s*[<>=!/%]|\+=\s*{name}\b"
    return bool(re.search(factor, body)) and not re.search(compared, body)


def ragged(entry: text.Entry, usual: Mapping[str, int], depth: int) -> list[dict[str, int]]:
    """Return other sizes for a text that guards its indices, none of them a multiple of a block; or nothing.

    Up to three are unequal, so that rows taken for columns show, too; what is compared with nothing may be a
    pitch, and is as long as the longest. A text that divides a size, or reads vectors, may want a multiple,
    and so may one of which something else is known than one `usual` number for all sizes.
    """
    bounds = r"[<>]=?\s*\(?\s*(?:int\s*\)\s*)?(\w+)\b"
    compared = {*re.findall(bounds, entry.body)} & usual.keys()
    guarded = {*re.findall(bounds, _LOOP.sub(" ", entry.body))} & compared
    parts = "|".join(rf"\b{n}\s*(?:/|%|>>|-\s*1\s*\))|[/%]\s*{n}\b" for n in usual)
    if depth < 2 or not guarded or len({*usual.values()}) > 1 or re.search(parts, entry.body):
        return []
    size = next(iter(usual.values()))
    if _WHOLE.search(entry.body) or size <= _FEW:
        return []
    least = size - size // 4 + 2
    if len(compared) > _UNEQUAL:
        return [dict.fromkeys(usual, least)]
    # What only loops end at, else the last, is the least: the product of the others is a whole array.
    ordered = sorted((n for n in usual if n in compared), key=lambda n: n in guarded)
    if len(ordered) == _UNEQUAL and guarded >= compared:
        ordered = [*ordered[2:], *ordered[:2]]
    unequal = {n: least + _APART * at for at, n in enumerate(ordered)}
    return [{n: unequal.get(n, max(unequal.values())) for n in usual}]
