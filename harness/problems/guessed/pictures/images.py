"""Guess textures and surfaces: how large they are, what they hold and how they are sampled.

Reading a texture outside is defined, but a surface has to be as large as its kernel goes. Each extent follows
from the size below which its coordinate stays, ``x < width``, and is an axis of its own: ``-a tex.width=64``.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.kernels import text
from harness.kernels.cpp import elements
from harness.kernels.cpp.host import values
from harness.kernels.cpp.host.samplers import Made
from harness.kernels.cpp.host.values import Values
from harness.kernels.expr import Expr, ExprError
from harness.problems.guessed.pictures import textures
from harness.problems.protocol import Argument, Image

_MOST = 2**24  # texels
_FACES = 6
_DEEPEST = 4  # variables in each other
_WORD = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*")
_BYTES = re.compile(
    r"\*\s*(?:\(\s*\w+\s*\)\s*)?\(?\s*sizeof\s*\([^()]*\)\s*\)?|\(?\s*sizeof\s*\([^()]*\)\s*\)?\s*\*"
)
_CAST = re.compile(
    r"\(\s*(?:unsigned\s+)?(?:int|unsigned|size_t|float|u?int32_t)\s*\)|\bstatic_cast\s*<[\w\s]+>"
)
_ADDED = re.compile(r"[-+]\s*\d+\b(?!\s*[*/])")
_CALLED = {  # what sizes along x, y and z are called
    "width": r"(?i:width|cols|columns)|nx|\A[wW]\Z|_w\Z|[a-z]W\Z|[xX]\Z",
    "height": r"(?i:height|rows)|ny|\A[hH]\Z|_h\Z|[a-z]H\Z|[yY]\Z",
    "depth": r"(?i:depth|slices)|nz|\A[dD]\Z|_d\Z|[a-z]D\Z|[zZ]\Z",
    "layers": r"(?i:layer|batch|slices|depth)|\An\Z",
}
_TEXELS = {"float16", "float32", *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32))}


@dataclass(frozen=True, kw_only=True)
class Images:
    """The textures and surfaces of a kernel by parameter, and what is known of each.

    body: the kernel, as `textures.whole` has it
    kinds: the type of a texel
    extents: by axis, ``tex.width``, in terms of the sizes
    """

    body: str
    used: Mapping[str, textures.Used]
    made: Mapping[str, Made]
    kinds: Mapping[str, tuple[str, int]]
    extents: Mapping[str, Expr] = field(default_factory=dict)

    @property
    def written(self) -> tuple[str, ...]:
        """Return the surfaces that the kernel writes."""
        return tuple(name for name, used in self.used.items() if used.written)

    def counted(self, axes: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int]:
        """Return every extent by axis, where `axes` are given and parameters have the values `sizes`.

        Raises UsageError for a surface that would be too large; a texture is cut.
        """
        found = dict[str, int]()
        for name, used in self.used.items():
            extents = {f"{name}.{along}": 1 for along in used.extents}
            for axis in extents:
                with contextlib.suppress(ExprError):  # a division by a size of 0
                    extents[axis] = max(1, self.extents[axis](sizes))
            extents |= {axis: int(axes[axis]) for axis in extents if axis in axes}
            if (count := math.prod(extents.values())) > _MOST:
                if used.surface:
                    longest = max(extents, key=lambda axis: extents[axis])
                    raise UsageError(
                        f"{name} would have {count:,} texels, by its kernel's sizes",
                        hint=f"say how many: -a {longest}=64",
                    )
                most = int(_MOST ** (1 / len(extents)))
                extents = {axis: n if axis in axes else min(n, most) for axis, n in extents.items()}
            found |= extents
        return found

    def drawn(
        self, sizes: Mapping[str, Any], rng: np.random.Generator, least: int
    ) -> dict[str, NDArray[Any]]:
        """Return the texels of each; integers are indices below `least`, or of a filter any."""
        found = {}
        for name in self.used:
            most = 2**16 if self.made[name].read_normalized else least
            count = math.prod(self._shape(name, sizes))
            found[name] = elements.contents(rng, self.kinds[name], count, most)
        return found

    def plain(self, body: str) -> str:
        """Return a text without what textures alone ask for, by `textures.plain`."""
        return textures.plain(body) if self.used else body

    def arguments(self, sizes: Mapping[str, Any]) -> dict[str, Argument]:
        """Return the textures and surfaces as arguments."""
        return {name: self._argument(name, sizes) for name in self.used}

    def _argument(self, name: str, sizes: Mapping[str, Any]) -> Image:
        used, made, (kind, channels) = self.used[name], self.made[name], self.kinds[name]
        whole = "float" not in kind and not made.read_normalized
        return Image(
            operand=name,
            shape=(*self._shape(name, sizes), *([channels] if channels > 1 else [])),
            channels=channels,
            layered=used.layered or used.cube,
            filter="point" if whole else made.filter,
            address=made.address,
            normalized=made.normalized,
            read_normalized=made.read_normalized,
        )

    def _shape(self, name: str, sizes: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the extents of one, outermost first."""
        used = self.used[name]
        inner = [sizes[f"{name}.{along}"] for along in used.extents]
        return tuple((inner[:1] + inner if used.cube else inner)[::-1])


def of(body: str, entry: text.Entry, texts: Sequence[str], made: Mapping[str, Made]) -> Images:
    """Return the textures and surfaces that calls in a `textures.whole` take, without their extents."""
    used = textures.of(body, entry)
    known = {name: made.get(name, Made()) for name in used}
    known |= {  # which are not sampled
        n: Made(texel=known[n].texel, extents=known[n].extents) for n, one in used.items() if one.surface
    }
    return Images(
        body=body, used=used, made=known, kinds={n: _kind(one, known[n], texts) for n, one in used.items()}
    )


def _kind(used: textures.Used, made: Made, texts: Sequence[str]) -> tuple[str, int]:
    """Return the type of a texel: what the kernel reads, or the host says of one that is converted."""
    read, stored = (elements.of(one, texts) if one else None for one in (used.kind, made.texel))
    if made.read_normalized:
        lanes = read[1] if isinstance(read, tuple) else 1
        whole = isinstance(stored, tuple) and stored[0] in ("int8", "uint8", "int16", "uint16")
        read = (str(stored[0]), lanes) if isinstance(stored, tuple) and whole else ("uint8", lanes)
    for found in (read, stored):
        if isinstance(found, tuple) and found[1] in (1, 2, 4) and (used.surface or found[0] in _TEXELS):
            return found
    return "float32", 1


def extents(images: Images, sizes: Sequence[str], numbers: Values, size: int) -> dict[str, Expr]:
    """Return the extents of textures and surfaces by axis, over `sizes`; `size` is one without these."""
    found = {}
    for name, used in images.used.items():
        texel = elements.size(images.kinds[name]) if used.surface else 1
        host = images.made[name].extents
        for place, along in enumerate(used.extents):
            places = used.places[-1 if along == "layers" else place]
            bounds = (
                bound(written, images.body, sizes, numbers, 1 if place else texel) for written in places
            )
            known = list(dict.fromkeys(filter(None, bounds)))
            if not known and not sizes and place < len(host):
                known = [str(host[place])]
            most = values.largest(known or [_by_name(along, place, sizes) or str(size)])
            if used.cube and along == "layers":
                most = f"{_FACES} * ({most})" if used.layered else str(_FACES)
            found[f"{name}.{along}"] = Expr.parse(size)
            with contextlib.suppress(ExprError):  # of a size that is called as a word of expressions
                found[f"{name}.{along}"] = Expr.parse(most)
    return found


def bound(written: str, body: str, sizes: Sequence[str], numbers: Values, texel: int = 1) -> str:
    """Return how large an extent is whose coordinate is `written`, in terms of `sizes`; "" if nothing says.

    That is the size with which a part of it is compared; one more than its largest value where it is a
    product, or made of what stays below numbers; and one more than a parameter that is the whole coordinate.
    `texel` is the bytes by which the coordinate counts.
    """
    limits = dict[str, str]()
    for _ in range(_DEEPEST):
        written = _plain(written, texel)
        words = dict.fromkeys(_WORD.findall(written))
        limits = {word: limit for word in words if (limit := _limit(word, body, sizes, numbers))}
        if any(not limit.isdecimal() for limit in limits.values()):
            break
        given = {word: _given(word, body) for word in words if word not in (*limits, *sizes)}
        written = textures.replaced(written, {word: f"({value})" for word, value in given.items() if value})
    first = next((limit for limit in limits.values() if not limit.isdecimal()), "")
    if "*" not in written and first:
        return first
    # What is added leads outside, or to the rest of a part: all of 2 * x + 1 is 2 * width.
    plain = _ADDED.sub("", written).replace("/", "//")
    alone = len(limits) == 1 and "/" not in plain
    most = {word: limit if alone else f"({limit} - 1)" for word, limit in limits.items()}
    plain = _WORD.sub(lambda word: most.get(word[0], word[0]), plain)
    with contextlib.suppress(ExprError):
        whole = Expr.parse(plain if alone else f"({plain}) + 1")
        return whole.text if whole.names <= {*sizes} else first
    return first


def _plain(written: str, texel: int) -> str:
    """Return a coordinate without casts, and in texels where it counts bytes."""
    plain = _CAST.sub("", _BYTES.sub("", written))
    if texel > 1:
        plain = re.sub(rf"\*\s*{texel}u?\b|\b{texel}u?\s*\*|<<\s*{texel.bit_length() - 1}\b", "", plain)
    return " ".join(plain.split())


def _limit(word: str, body: str, sizes: Sequence[str], numbers: Values) -> str:
    """Return the size that a word is compared with, the largest one; else the number below which it stays."""
    name, other = rf"(?<![\w.]){re.escape(word)}\s*", r"(?:\(\s*\w+\s*\)\s*)?([A-Za-z_]\w*|\d+)"
    after = re.findall(rf"{name}(?<![-<>])([<>]=?|!=)(?![<>])\s*{other}", body)
    before = re.findall(rf"{other}(?:\.\w+)?\s*(?<![-<>])[<>]=?(?![<>])\s*{name}(?![\w.(])", body)
    found = dict.fromkeys(size for size in (*(size for _, size in after), *before) if size in sizes)
    found.pop(word, None)
    below = [(part, mark == "<=" and part.isdecimal()) for mark, part in after if mark[0] == "<"]
    known = ((numbers.number(part) or 0) + last for part, last in below)
    return values.largest([*found]) if found else str(max(known, default=0) or "")


def _given(word: str, body: str) -> str:
    """Return what a variable is first set to, or ""."""
    at = re.search(rf"(?<![\w.]){re.escape(word)}\s*=(?!=)([^;{{}}=]*)", body)
    return "".join(text.split(at[1])[:1]) if at else ""


def _by_name(along: str, place: int, sizes: Sequence[str]) -> str:
    """Return the size that is called as an extent is, else that which has its place; "" if there are none."""
    named = (name for name in sizes if re.search(_CALLED[along], name))
    if found := next(named, ""):
        return found
    return values.largest(sizes[place : place + 1] or sizes) if sizes else ""
