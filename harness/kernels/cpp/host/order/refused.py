"""Read what host code refuses to launch: ``if (n % 4 != 0) return;``, ``TORCH_CHECK(cols == 1024, "...")``.

What is behind such a line holds for each launch, so that no other size shows a fault of the kernel.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from harness.kernels import text
from harness.kernels.cpp.host import launches, values

_IF = re.compile(r"(?<![\w)])(?<!else )if\s*(\()")  # no branch of another one
_DEMANDS = re.compile(r"\b\w*(?:assert|ASSERT|CHECK)(?!\w*(?:FALSE|WARN|_NE|_LT|_GT|_LE|_GE))\w*\s*(\()")
_LEAVES = re.compile(r"\s*(?:std\s*::\s*)?(?:return|throw|exit|abort)\b")
_INNER = re.compile(r"\b(?:if|for|while|do|switch|case)\b|[{}]|#")
_LAST = re.compile(r"(?:\A|[;{}])\s*(?:std\s*::\s*)?(?:return|throw|exit|abort)\b[^;]*;\s*\Z")
_PART = re.compile(r"[\s(]*(\w+)\s*(?:%\s*(\w+)[\s)]*)?([!=]=)\s*(\w+)[\s)]*")
_MOST = 2**14  # a size that is taken as it stands


def numbers(source: str, launched: launches.Launch | None, entry: text.Entry) -> dict[str, int]:
    """Return the parameters that have to be a number, by what stands before a launch in its function."""
    found = ((name, of) for name, of, rest in _sizes(source, launched, entry) if not rest)
    numbers: dict[str, int] = {}
    for name, of in found:
        numbers[name] = of if numbers.get(name, of) == of else 0
    return {name: of for name, of in numbers.items() if of}


def asserted(source: str, launched: launches.Launch | None, entry: text.Entry) -> text.Entry:
    """Return a kernel that asserts what its host code does: the parameters that have to be multiples."""
    found = [f"assert({name} % {of} == 0);" for name, of, rest in _sizes(source, launched, entry) if rest]
    return entry.with_body(entry.body + "".join(found)) if found else entry


def _sizes(
    source: str, launched: launches.Launch | None, entry: text.Entry
) -> Iterator[tuple[str, int, bool]]:
    """Yield (parameter, number, whether it has to be a multiple of that, or equal)."""
    if launched is None:
        return
    plain = values.sized(text.blank(source))
    first = sum(len(line) + 1 for line in plain.split("\n")[: launched.line - 1])
    name = entry.name.partition("<")[0].rpartition("::")[2]
    at = re.compile(rf"\b{name}\b[^;{{}}]*?<<<").search(plain, first)
    place = at.start() if at else first
    around = [opened for _, opened, closed, _ in values.bodies(plain) if opened < place < closed]
    known = values.Values(values.named(source))
    given = {a: p.name for p, a in zip(entry.parameters, launches.passed(launched, entry), strict=True)}
    before = plain[around[-1] + 1 : place] if around else ""
    for one, end in _demanded(before):
        if (said := _PART.fullmatch(one)) and said[1] in given and said[3] == "==":
            of, right = known.number(said[2] or said[4]), known.number(said[4])
            if of and 0 < of <= _MOST and not _changed(before[end:], said[1]) and (right == 0 or not said[2]):
                yield given[said[1]], of, bool(said[2])


def _changed(behind: str, name: str) -> bool:
    """Return True where a text gives a variable another value."""
    return bool(
        re.search(rf"\b{name}\s*(?:[-+*/%&|^]?=(?!=)|<<=|>>=|\+\+|--)|(?:\+\+|--)\s*{name}\b", behind)
    )


def _demanded(before: str) -> Iterator[tuple[str, int]]:
    """Yield what has to be true behind a text, ``n % 4 == 0``, and where that is said.

    Blocks that are closed before its end are other branches, loops and functions: nothing in them counts.
    """
    if "#" in before:  # which lines are compiled is not known
        return
    depths, depth = list[int](), 0
    for letter in before:
        depth += (letter == "{") - (letter == "}")
        depths.append(depth)
    # The least depth from a place on: what is deeper lies in a block that is closed.
    least = [*itertools.accumulate(reversed(depths), min)][::-1]
    for at in _DEMANDS.finditer(before):
        if depths[at.start()] == least[at.start()]:
            first = text.split(before[at.end() : text.closing(before, at.start(1))])[:1]
            yield from ((part, at.end()) for one in first if "||" not in one for part in one.split("&&"))
    for at in _IF.finditer(before):
        closed = text.closing(before, at.start(1))
        if closed > 0 and depths[at.start()] == least[at.start()] and _leaves(before[closed + 1 :]):
            refused = before[at.end() : closed]
            parts = refused.split("||") if "&&" not in refused else ()
            yield from ((_negated(part), closed) for part in parts)


def _leaves(behind: str) -> bool:
    """Return True where the statement behind an ``if`` leaves the function, whatever else holds."""
    if _LEAVES.match(behind):
        return True
    opened = behind.lstrip()
    if not opened.startswith("{") or (closed := text.closing(opened, 0)) < 0:
        return False
    inside = opened[1:closed]
    return not _INNER.search(inside) and bool(_LAST.search(inside))


def _negated(refused: str) -> str:
    """Return the contrary of a comparison; of ``n % 4`` alone ``n % 4 == 0``."""
    if "==" in refused or "!=" in refused:
        return re.sub(r"[!=]=", lambda sign: "!=" if sign[0] == "==" else "==", refused)
    return f"{refused} == 0" if "%" in refused else ""
