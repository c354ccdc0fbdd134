"""Check values that were read from a file against the types that the code gives them.

JSON has no types of its own: a file that was edited, cut or made up can hold a list where a number belongs.
`damage` compares a value with a type once, where it is read; from there on the code may trust it.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

MOST = 10**300  # numbers beyond this overflow in the first sum of squares
_SHOWN = 40  # characters of a wrong value in a message
_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}


@dataclass(frozen=True)
class Above:
    """The bounds of a number, as in ``Annotated[float, Above(0)]``: more than `least`, at most `most`."""

    least: float
    most: float = math.inf


def damage(value: object, expected: Any, where: str = "") -> str:
    """Return the first place at which `value`, read from JSON, is not of the type `expected`.

    `expected` is made of TypedDicts, lists, dictionaries, unions, literals and scalars; keys that a TypedDict
    does not name may hold anything. A whole number counts as a float, true and false count as no number, and
    no number may be infinite. The text is as ``times[3] is 'a', not a number``; empty for a sound value.
    """
    return next(_damages(value, expected, where), "")


def _damages(value: object, expected: Any, where: str) -> Iterator[str]:  # noqa: PLR0912
    """Yield every place where the value is not of the type."""
    origin, inner = get_origin(expected), get_args(expected)
    if expected in (Any, object):
        return
    if is_typeddict(expected):
        yield from _keys(value, expected, where)
    elif origin in (Required, NotRequired):
        yield from _damages(value, inner[0], where)
    elif origin is Annotated:
        yield from _damages(value, inner[0], where)
        for bound in inner[1:]:
            if _is_number(value) and not value > bound.least:
                yield f"{where} is {_shown(value)}, not more than {bound.least:g}"
            elif _is_number(value) and value > bound.most:
                yield f"{where} is {_shown(value)}, more than {bound.most:g}"
    elif origin in (Union, types.UnionType):
        found = [next(_damages(value, one, where), "") for one in inner]
        if all(found):  # that of the member which has the value's shape says most
            shaped = (f for f, one in zip(found, inner, strict=True) if f != _wrong(value, one, where))
            yield next(shaped, _wrong(value, expected, where))
    elif origin is Literal:
        if value not in inner:
            yield f"{where} is {_shown(value)}, not one of {', '.join(map(repr, inner))}"
    elif origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            yield _wrong(value, expected, where)
        elif inner[1] not in (Any, object):
            for key, one in value.items():
                yield from _damages(one, inner[1], f"{where}.{key}" if where else str(key))
    elif origin is not None and issubclass(origin, Sequence):
        if not isinstance(value, list | tuple):
            yield _wrong(value, expected, where)
        elif inner[0] not in (Any, object):
            for i, one in enumerate(value):
                yield from _damages(one, inner[0], f"{where}[{i}]")
    elif expected in (int, float):
        if not _is_number(value) or (expected is int and not isinstance(value, int)):
            yield _wrong(value, expected, where)
    elif not isinstance(value, expected):
        yield _wrong(value, expected, where)


def _keys(value: object, expected: Any, where: str) -> Iterator[str]:
    """Yield the damages of an object whose keys a TypedDict names."""
    if not isinstance(value, Mapping):
        yield _wrong(value, expected, where)
        return
    known = hints(expected)
    # Not `__required_keys__`: where annotations are postponed, it does not see Required and NotRequired.
    said = {key: get_origin(kind) for key, kind in known.items()}
    needed = [k for k, o in said.items() if o is Required or (expected.__total__ and o is not NotRequired)]
    for key in (k for k in needed if k not in value):
        yield f"{where or 'it'} has no {key!r}"
    for key, one in value.items():
        if key in known:
            yield from _damages(one, known[key], f"{where}.{key}" if where else str(key))


@functools.cache
def hints(expected: Any) -> dict[str, Any]:
    """Return the types of a TypedDict's keys, with their annotations."""
    return get_type_hints(expected, include_extras=True)


def _is_number(value: object) -> bool:
    """Return True for a finite number that a float can hold; False for true and false."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= MOST if isinstance(value, int) else math.isfinite(value)


def _wrong(value: object, expected: Any, where: str) -> str:
    """Return the sentence about a value of another type."""
    return f"{where or 'it'} is {_shown(value)}, not {_named(expected)}"


def _named(expected: Any) -> str:
    """Return a type in words."""
    origin, inner = get_origin(expected), get_args(expected)
    if origin in (Annotated, Required, NotRequired):
        return _named(inner[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_named(one) for one in inner)
    if is_typeddict(expected) or (origin is not None and issubclass(origin, Mapping)):
        return "an object"
    if origin is not None and issubclass(origin, Sequence):
        return "a list"
    return _NAMES.get(expected, str(expected))


def _shown(value: object) -> str:
    """Return a value as text, cut where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
