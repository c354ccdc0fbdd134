"""Find in a kernel's text which strides lead through an array, and offsets: ``x[at + i * stride_m + j]``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.kernels.cpp import extents
from harness.kernels.cpp.host.values import Values

ALONE, ENDLESS = "", "..."  # what stands for an index without a stride, and one of which no end is known
_DEPTH = 3  # variables in each other
_READ = re.compile(r"\w+\s*\[(?:[^][]|\[[^][]*\])*\]|(?<=[=(,+])\s*\*\s*\w+")  # x[at[i]], *p


def layout(body: str, pointer: str, strides: Sequence[str]) -> list[str]:
    """Return those of `strides` that the indices of a pointer have, where there are two or more, in order.

    Behind them is `ALONE` or `ENDLESS` where an index is added as it is.
    """
    body = direct(body, pointer)
    used = _together(body, pointer, strides)
    found = [name for name in strides if name in used]
    return [*found, *_side_by_side(body, pointer, found)] if len(found) > 1 else []


def direct(body: str, pointer: str) -> str:
    """Return a body in which places are those of a pointer, not of another that begins at one of its places.

    ``row[j]`` is ``x[i * stride + j]`` behind ``float* row = x + i * stride;``, if nothing moves ``row``.
    """
    body = re.sub(rf"\breinterpret_cast\s*<[^<>;]*\*\s*>\s*\(\s*({re.escape(pointer)})\s*\)", r"\1", body)
    given = rf"(?<![\w.]){re.escape(pointer)}\s*(?:\+([^][;,=]*))?|&\s*{re.escape(pointer)}\s*\[([^][;]*)\]"
    alias = re.compile(rf"[\w*&>]\s*\b(\w+)\s*=\s*(?:\([\w\s]+\*\s*\)\s*)?(?:{given})\s*[;,]")
    for at in alias.finditer(body):
        name, rest = at[1], f"{body[: at.start() + 1]};{body[at.end() :]}"
        moved = rf"(?<![\w.])\b{name}\s*(?:[-+]?=(?!=)|\+\+|--)|(?:\+\+|--)\s*{name}\b|&\s*{name}\b(?!\s*\[)"
        if re.search(moved, rest):
            continue
        offset = (at[2] or at[3] or "").strip()
        rest = re.sub(rf"(?<![\w.>]){name}\s*\[", f"{pointer}[{f'{offset} + ' * bool(offset)}", rest)
        rest = re.sub(rf"(?<![\w.>]){name}\b", f"({pointer} + {offset or 0})", rest)
        return direct(rest, pointer)
    return body


def inside(layouts: Mapping[str, Sequence[str]], size: int) -> dict[str, int]:
    """Return the strides of `layouts` where each size is `size`."""
    found = dict[str, int]()
    for names in layouts.values():
        for place, name in enumerate(reversed(names)):
            found[name] = max(found.get(name, 1), size**place)
    return {name: stride for name, stride in found.items() if name not in (ALONE, ENDLESS)}


def longest(body: str, stride: str, values: Values) -> int:
    """Return the most elements of a row from one of which a stride leads to the next; 0 if no number says it.

    They are K of ``x[row * stride + c]``, where ``c < K``.
    """
    times = rf"(?:\*\s*{stride}|\b{stride}\s*\*\s*(?:\w+|\([^()]*\)))\s*\)?\s*\+\s*(\w+)\s*[\]);]"
    ends = (
        end for name in set(re.findall(times, body)) for end in re.findall(rf"\b{name}\s*<\s*(\w+)", body)
    )
    return max((number for end in ends if (number := values.number(end))), default=0)


def _together(body: str, pointer: str, strides: Sequence[str]) -> frozenset[str]:
    """Return the strides that multiply in one index of a pointer, and in what it is made of: the most.

    A variable that is set several times is one of these values, not all of them.
    """
    known, one = extents.assigned(body), "|".join(strides)
    factor = re.compile(rf"\b({one})\s*\*|\*\s*({one})\b")

    def each(written: str, depth: int) -> set[frozenset[str]]:
        found = {frozenset(name for names in factor.findall(written) for name in names if name)}
        names = {*re.findall(r"[A-Za-z_]\w*", written)} & known.keys() if depth else set[str]()
        for name in names:
            more = {inner for value in known[name] for inner in each(value, depth - 1)}
            found = {outer | inner for outer in found for inner in more}
        return found

    return max(
        (s for place in extents.places(body, pointer) for s in each(place, _DEPTH)),
        key=len,
        default=frozenset(),
    )


def multiplied(body: str, stride: str) -> bool:
    """Return True where what a stride makes is multiplied again: ``iy = oy * stride + i`` in ``iy * width``.

    That is how far a filter goes, in rows, and no step in memory.
    """
    made, known = {stride}, extents.assigned(_READ.sub(" ", body))
    for _ in range(_DEPTH):
        words = re.compile(rf"\b(?:{'|'.join(made)})\b")
        made |= {name for name, values in known.items() if any(map(words.search, values))}
    again = "|".join([*(rf"\b{name}\b" for name in made - {stride}), rf"\([^()]*\b{stride}\b[^()]*\)"])
    places = re.sub(r"\w+\s*\[", "[", body)  # what a row that begins there holds may be multiplied
    return bool(re.search(rf"(?:{again})\s*\*\s*[A-Za-z_(]|[\w)]\s*\*\s*(?:{again})(?!\s*=)", places))


def _side_by_side(body: str, pointer: str, strides: Sequence[str]) -> list[str]:
    """Return `ALONE` where what is added in an index of a pointer has no stride, nor what it is made of.

    It is `ENDLESS` where nothing is compared with it, or it is added behind a place that is handed on,
    ``f(x + i * stride)``.
    """
    known = extents.assigned(body)
    of_stride = re.compile(rf"\b(?:{'|'.join(strides)})\b")

    def strided(part: str, depth: int) -> bool:
        made = (value for name in re.findall(r"[A-Za-z_]\w*", part) for value in known.get(name, ()))
        return bool(of_stride.search(part)) or (depth > 0 and any(strided(v, depth - 1) for v in made))

    def ends(part: str) -> bool:
        names = re.findall(r"[A-Za-z_][\w.]*", part)
        return any(re.search(rf"\b{n}\b[^;&|<>?=]*[<>]=?\s*\(*[A-Za-z_]", body) for n in names)

    parts = (part for place in extents.places(body, pointer) for part in _summands(place))
    bare = [part for part in parts if re.search(r"[A-Za-z_]", part) and not strided(part, _DEPTH)]
    if re.search(rf"\b{re.escape(pointer)}\s*\+(?!=)", body) or not all(map(ends, bare)):
        return [ENDLESS]
    return [ALONE] * bool(bare)


def _summands(place: str) -> list[str]:
    """Return the parts of an index that are added, outside of parentheses."""
    flat = re.sub(r"\([^()]*\)", lambda inner: inner[0].replace("+", "\0"), place)
    return [part.replace("\0", "+") for part in flat.split("+")]


def offsets(body: str, integers: Sequence[str]) -> dict[str, int]:
    """Return 0 for those that are added in indices and stand nowhere else; none if all are: one is a size."""
    found = [name for name in integers if offset(body, name)]
    return dict.fromkeys(found, 0) if len(found) < len(integers) else {}


def steps(body: str, integers: Sequence[str]) -> dict[str, int]:
    """Return 1 for those that lead to a partner, ``x[i ^ j]``: a step of those that host code takes.

    One that ends a guard or multiplies is a size. If it would be all, one of them has to be one.
    """
    found = dict[str, int]()
    for name in integers:
        word = rf"\b{re.escape(name)}\b"
        by = rf"(?:\w\s*\^\s*\(?\s*{word}|{word}\s*\^\s*\(?\s*\w)"
        partners = "|".join(re.findall(rf"\b(\w+)\s*=\s*[^=;]*{by}", body)) or "(?!)"
        inside = re.search(rf"\[[^][;]*{by}", body) or re.search(rf"\[[^][;]*\b(?:{partners})\b", body)
        size = re.search(rf"(?:[<>]=?|\*)\s*{word}|{word}\s*(?:[<>]|\*)", body)
        if inside and not size:
            found[name] = 1
    return found if len(found) < len(integers) else {}


def offset(body: str, name: str) -> bool:
    """Return True where a parameter is added in indices, as in ``x[at + i]``, and stands nowhere else.

    That from which others are taken is a size, ``x[n - 1 - i]``, and so is one in a factor,
    ``x[i * (n + 1)]``. An ``i += offset`` is called so.
    """
    word = rf"\b{re.escape(name)}\b"
    added = re.compile(
        rf"(?<!\*\()(?<!\*\s\()(?:(?<=[-+(\[])|(?<=[-+(\[]\s)){word}(?=\s?[+)\]])(?!\s*\+\s*\w+\s*\)\s*\*)"
    )
    bare = re.sub(rf"(?<!\w)\(\s*({word})\s*\)", r"\1", body)  # of a macro's parameter, ``(i) * (n)``
    rest = re.sub(r"\[[^][;]*\]", lambda index: added.sub("0", index[0]), bare)
    if re.fullmatch(r"(?i:\w*(?:offset|begin|first|base)\w*)", name):
        rest = re.sub(
            rf"\+=\s*{word}\s*;|=\s*[\w.\s*+]+\+\s*{word}\s*[;,]|\(\s*\w+\s*-\s*{word}\s*\)", "", rest
        )
    return bool(re.search(word, body)) and not re.search(word, rest)
