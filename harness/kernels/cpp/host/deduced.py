"""Deduce what launches leave to be deduced of a kernel template: the classes of functors, and types of data.

``transform<<<grid, block>>>(x, y, n, Square{})`` tells it, where x is declared as ``float* x``. A functor
that is a parameter of a function of the host is what calls of that function pass.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from harness.kernels import text
from harness.kernels.cpp.host import calling, launches, values
from harness.kernels.cpp.source import items

_MADE = re.compile(r"([A-Za-z_][\w:]*\s*(?:<[^;(){}]*>)?)\s*[({]")  # Square(), Scale<float>{2}
_CAST = re.compile(
    r"\(\s*(?:const\s+)?([\w ]+?)\s*(?:const\s*)?\*\s*\)|\w+_cast\s*<\s*(?:const\s+)?([\w ]+?)\s*\*\s*>"
)
UNKNOWN = "?"  # what a pack is that has something
_DEEPEST, _MOST = 3, 8  # functions in each other, and instances of one launch
_NEAR, _LONGEST = 20_000, 300  # characters before a launch, and of a function's name
_bodies = functools.lru_cache(maxsize=1)(values.bodies)


def launched(source: str, entry: text.Entry) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield (template arguments, types of further ones by their names) for the launches of a template."""
    plain = text.blank(source)
    base = entry.name.rpartition("::")[2]
    classes = launches.given_types(plain)
    own = {parameter.split()[-1] for parameter in entry.template}
    for launch, (place, name, *_) in zip(launches.launches(source), calling.calls(plain), strict=True):
        if name.rpartition("::")[2] != base:
            continue
        given = text.split(launch.entry.partition("<")[2].rpartition(">")[0])
        found: dict[str, list[str]] = {}
        for at, (parameter, written) in enumerate(zip(entry.parameters, launch.arguments, strict=False)):
            if "..." in parameter.type:
                pack, rest = parameter.type.replace("...", "").strip(), launch.arguments[at:]
                found[pack] = _packs(plain, rest, place, classes, pointer=parameter.pointer) or [UNKNOWN]
            elif parameter.type in own and not found.get(parameter.type):
                types = kinds_of(plain, written, place, pointer=parameter.pointer)
                known = (_known(plain, kind, classes) for kind in types)
                found[parameter.type] = list(dict.fromkeys(filter(None, known)))
        sure = {name: kinds for name, kinds in found.items() if kinds}
        for kinds in itertools.islice(itertools.product(*sure.values()), _MOST):
            yield given, dict(zip(sure, kinds, strict=True))


def _packs(
    plain: str, given: Sequence[str], place: int, classes: Mapping[str, str], *, pointer: bool, depth: int = 0
) -> list[str]:
    """Return what the arguments of a pack are at a place, ``float, int``, for each way to pass it."""
    if len(given) == 1 and given[0].endswith("...") and depth < _DEEPEST:
        name, found = given[0].rstrip(". "), list[str]()
        for begin, opened, _, _ in (f for f in _bodies(plain) if f[1] < place < f[2]):
            for at, passed in _calls(plain, rf"\.\.\.\s*{re.escape(name)}", begin, opened):
                found += _packs(plain, passed, at, classes, pointer=pointer, depth=depth + 1)
        return list(dict.fromkeys(found))
    types = (kinds_of(plain, written, place, pointer=pointer) for written in given)
    known = [_known(plain, kinds[0], classes) if kinds else "" for kinds in types]
    return [", ".join(known)] if all(known) else []


def kinds_of(plain: str, written: str, place: int, *, pointer: bool, depth: int = 0) -> list[str]:
    """Return the types that an argument may have at a place, or what it leads to, as they are written."""
    if pointer and (cast := _CAST.match(written)):
        return [cast[1] or cast[2]]
    if not pointer and (made := _MADE.match(written)):
        return [made[1].strip()]
    if not re.fullmatch(r"[A-Za-z_]\w*", written) or depth == _DEEPEST:
        return []
    around = (f for f in _bodies(plain) if f[1] < place < f[2] and written in f[3])
    for begin, opened, _, _ in around:
        if passed := list(_passed(plain, written, begin, opened, pointer=pointer, depth=depth)):
            return passed
    star = r"[*\s]*\*\s*(?:__restrict__\s*)?" if pointer else r"\s+"
    declared = rf"([A-Za-z_][\w:]*(?:\s*<[^;(){{}}]{{0,100}}>)?){star}{written}\s*[;,=({{)]"
    near, begin = max(0, place - _NEAR), 0  # the last one counts, and a file may have hundreds of kernels
    if found := list(re.finditer(declared, plain[near:place])):
        begin = near
    elif not (found := list(re.finditer(declared, plain[:place]))):
        more = rf"([A-Za-z_]\w*)\s*\*[^;(){{}}]{{0,300}}\*\s*{written}\s*[;,=]" if pointer else "(?!)"
        found = list(re.finditer(more, plain[:place]))
    if found and found[-1][1] == "auto":
        value = values.value_at(plain, begin + found[-1].end())
        return kinds_of(plain, value, begin + found[-1].start(), pointer=pointer, depth=depth + 1)
    return [found[-1][1].strip()] if found else []


def _passed(plain: str, name: str, begin: int, opened: int, *, pointer: bool, depth: int) -> Iterator[str]:
    """Yield the types that calls pass for the parameter `name` of the function whose head is there."""
    for at, given in _calls(plain, rf"\b{name}", begin, opened):
        yield from kinds_of(plain, given[0], at, pointer=pointer, depth=depth + 1)


def _calls(plain: str, name: str, begin: int, opened: int) -> Iterator[tuple[int, list[str]]]:
    """Yield (place, what is passed) for a parameter and those behind it, of the function whose head is there.

    That is done once for each caller that passes something else; `name` is a pattern.
    """
    function = re.search(r"(\w+)\s*\Z", plain[max(0, begin - _LONGEST) : begin])
    parameters = text.split(plain[begin + 1 : plain.rfind(")", begin, opened)])
    index = next((i for i, p in enumerate(parameters) if re.search(rf"{name}\s*\Z", p)), None)
    if function is None or index is None:
        return
    seen = set[tuple[int, str]]()
    called = rf"{function[1]}(?<=\b{function[1]})"  # letters first, which are found faster
    for call in re.finditer(rf"{called}\s*(?:<[^;(){{}}]*>)?\s*\(", plain):
        closed = text.closing(plain, call.end() - 1)
        given = text.split(plain[call.end() : closed]) if call.end() - 1 != begin else []
        caller = next((f[0] for f in _bodies(plain) if f[1] < call.start() < f[2]), 0)
        if index < len(given) and (caller, given[index]) not in seen:
            seen.add((caller, given[index]))
            yield call.start(), given[index:]


def _known(plain: str, kind: str, types: Mapping[str, str]) -> str:
    """Return a type by its whole name, ``ops::Scale<float>``; "" for one that is not known."""
    name, begun, inner = kind.partition("<")
    base = name.strip().rpartition("::")[2]
    if values.TYPE.fullmatch(kind):
        return kind
    if not (at := re.search(rf"\b(?:struct|class)\s+{base}\s*(?:final\s*)?(?::[^;{{}}()]*)?\{{", plain)):
        return types.get(kind, "")
    whole = "::".join([*items.namespaces(plain[: at.start()]), base])
    if not begun:
        return whole
    given = [
        _known(plain, part, types) or values.Values({}).arguments(f"<{part}>", types)[1:-1]
        for part in text.split(inner.rpartition(">")[0])
    ]
    return f"{whole}<{', '.join(given)}>" if all(given) else ""


def default(written: str, template: Sequence[str], given: Sequence[str]) -> str:
    """Return a default with what is given to the parameters before it: ``A::kRows`` of ``Tile::kRows``."""
    known = {p.split()[-1]: value for p, value in zip(template, given, strict=False)}
    return re.sub(r"[A-Za-z_]\w*", lambda word: known.get(word[0], word[0]), written)
