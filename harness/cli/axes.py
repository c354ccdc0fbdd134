"""Parse axes such as ``-a N=[512,1024]`` into the points to visit, in nvbench's notation.

``N=512``, ``N=[256,512]``, ``N=[512:4096:512]`` (start, inclusive end, step), ``N[pow2]=[9:12]`` (512 to
4096). Several axes give their cross product, the first varying slowest. Axes that vary together are joined by
an x: ``MxNxK=[64x4096x4096,512x512x16384]`` is two points.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.errors import UsageError
from harness.kernels.cpp.compilers.nvrtc import RESERVED
from harness.kernels.spec import Kernel

Point = dict[str, int | float]

_AXIS = re.compile(r"\s*(\w+(?:\.\w+)*)\s*(?:\[\s*(pow2)?\s*\])?\s*=\s*(.*?)\s*\Z", re.DOTALL)
_MAX_VALUES = 10_000  # a longer list is a typing error
_FORMS = "as in -a N=512, -a N=[512:4096:512], -a 'N[pow2]=[9:12]', -p TILE=32 or -p TILE=[8,16]"


def parse_axis(text: str, what: str = "axis") -> tuple[str, tuple[int | float, ...]]:
    """Return the name and the values of one axis.

    Raises UsageError that quotes the text, calls it a `what`, and shows the accepted forms.
    """
    match = _AXIS.match(text)
    if not match or not match[3]:
        raise UsageError(f"cannot read the {what} {text!r}", hint=_FORMS)
    name, power, body = match[1], match[2] is not None, match[3]
    if body.startswith("[") and body.endswith("]"):
        body = body[1:-1]
    values = tuple(v for part in body.split(",") for v in _expand(part.strip(), text))
    if power:
        if any(not isinstance(v, int) or not 0 <= v <= 62 for v in values):
            raise UsageError(f"a [pow2] axis takes exponents from 0 to 62: {text!r}", hint=_FORMS)
        values = tuple(2 ** int(v) for v in values)
    return name, values


def parse_params(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the values of each parameter in texts such as ``TILE=[16,32]``.

    Raises UsageError for values that are not integers, and for a parameter that is given twice.
    """
    chosen: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, values = parse_axis(text, "parameter")
        if "." in name:
            raise UsageError(f"parameter {name} is no name of a macro", hint=_FORMS)
        if any(not isinstance(v, int) for v in values):
            raise UsageError(f"parameter {name} takes integers: {text!r}")
        if name in chosen:
            raise UsageError(f"parameter {name} is given twice", hint=f"-p {name}=[first,second]")
        chosen[name] = tuple(dict.fromkeys(int(v) for v in values))
    return chosen


def with_macros(kernels: Sequence[Kernel], chosen: Mapping[str, tuple[int, ...]]) -> list[Kernel]:
    """Return the kernels; those without front matter have every parameter in `chosen`, as by ``nvcc -D``."""
    for name in (set(chosen) & RESERVED) if any(k.plain for k in kernels) else ():
        raise UsageError(f"a macro called {name} would change the language")
    return [replace(k, params={**k.params, **chosen}) if k.plain else k for k in kernels]


def points(texts: Sequence[str], known: Mapping[str, int | float | None]) -> list[Point]:
    """Return the cross product of the axes in `texts`.

    `known` has the problem's axes with their defaults; an axis takes integers unless its default is a float.
    Raises UsageError for an unknown axis, one that is given twice, a wrong value, or more than 10,000 points.
    """
    chosen: dict[tuple[str, ...], list[tuple[int | float, ...]]] = {}
    for text in texts:
        names, rows = _joined(text, known)
        for place, (name, values) in enumerate(zip(names, zip(*rows, strict=True), strict=True)):
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"axes: {', '.join(known)}"
                raise UsageError(f"no axis {name!r}", hint=hint)
            if any(name in others for others in (*chosen, names[:place])):
                raise UsageError(f"axis {name} is given twice", hint=f"-a {name}=[first,second]")
            if not isinstance(known[name], float) and any(not isinstance(v, int) for v in values):
                raise UsageError(f"axis {name} takes integers: {text!r}")
        chosen[names] = list(dict.fromkeys(rows))
    if math.prod(map(len, chosen.values())) > _MAX_VALUES:
        raise UsageError(f"more than {_MAX_VALUES} points")
    flat = list(itertools.chain.from_iterable(chosen))
    return [
        dict(zip(flat, itertools.chain.from_iterable(values), strict=True))
        for values in itertools.product(*chosen.values())
    ]


def _joined(
    text: str, known: Mapping[str, int | float | None]
) -> tuple[tuple[str, ...], list[tuple[int | float, ...]]]:
    """Return the names and the rows of values of one text: one name, or several joined by an x.

    Raises UsageError for a text that cannot be read, and where a point has not a value for each name.
    """
    match = _AXIS.match(text)
    names = tuple(match[1].split("x")) if match and match[3] and match[1] not in known else ()
    if match is None or len(names) < 2 or known.keys().isdisjoint(names):
        name, values = parse_axis(text)
        return (name,), [(value,) for value in values]
    form = f"as in -a {match[1]}=[{'x'.join('1' * len(names))},{'x'.join('2' * len(names))}]"
    if match[2]:
        raise UsageError(f"axes that vary together take no [pow2]: {text!r}", hint=form)
    rows = []
    for part in match[3].removeprefix("[").removesuffix("]").split(","):
        numbers = part.split("x")
        if len(numbers) != len(names):
            raise UsageError(f"{part.strip()!r} in {text!r} is not a value for each of {match[1]}", hint=form)
        rows.append(tuple(_number(n, text) for n in numbers))
    return names, rows


def _expand(part: str, text: str) -> Sequence[int | float]:
    """Return the values of one item of a list, a number or a range."""
    numbers = [_number(s, text) for s in part.split(":")]
    if len(numbers) == 1:
        return numbers
    if len(numbers) > 3:
        raise UsageError(f"cannot read the range {part!r} in {text!r}", hint=_FORMS)
    start, end, step = (*numbers, 1)[:3]
    if step == 0 or (end - start) * step < 0:
        raise UsageError(f"the range {part!r} in {text!r} is empty", hint="start:end:step, the end included")
    try:
        steps = (end - start) / step * (1 + 1e-12)
    except OverflowError:
        steps = math.inf
    if not steps < _MAX_VALUES:
        raise UsageError(f"the range {part!r} in {text!r} has more than {_MAX_VALUES} values")
    count = math.floor(steps) + 1
    return [start + i * step for i in range(count)]


def _number(s: str, text: str) -> int | float:
    """Return a finite number, as int where it is written as one. Raises UsageError."""
    try:
        value = float(s) if s.isascii() else math.nan
        if math.isfinite(value):
            return int(s) if re.fullmatch(r"\s*[+-]?[0-9]+\s*", s) else value
    except (ValueError, OverflowError):
        pass
    raise UsageError(f"{s.strip()!r} in {text!r} is not a number", hint=_FORMS)
