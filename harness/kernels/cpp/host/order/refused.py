"""Read what host code refuses to launch: ``if (n % 4 != 0) return;``, ``TORCH_CHECK(cols == 1024, "...")``.

What is behind such a line holds for each launch, so that no other size shows a fault of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.kernels import text
from harness.kernels.cpp.host import launches, values

_IF = re.compile(r"\bif\s*(\()")
_DEMANDS = re.compile(r"\b\w*(?:assert|ASSERT|CHECK)\w*\s*(\()")
_LEAVES = re.compile(r"\s*(?:\{[^{}]*?)?(?<![\w.])(?:std\s*::\s*)?(?:return|throw|exit|abort)\b")
_PART = re.compile(r"[\s(]*(\w+)\s*(?:%\s*(\w+)[\s)]*)?([!=]=)\s*(\w+)[\s)]*")
_MOST = 2**14  # a size that is taken as it stands


def numbers(source: str, launched: launches.Launch | None, entry: text.Entry) -> dict[str, int]:
    """Return the parameters that have to be a number, by what stands before a launch in its function."""
    found = ((name, of) for name, of, rest in _sizes(source, launched, entry) if not rest)
    return {name: of for name, of in found if 0 < of <= _MOST}


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
    place = sum(len(line) + 1 for line in plain.split("\n")[: launched.line - 1])
    around = [opened for _, opened, closed, _ in values.bodies(plain) if opened < place < closed]
    known = values.Values(values.named(source))
    given = {a: p.name for p, a in zip(entry.parameters, launches.passed(launched, entry), strict=True)}
    for one in _demanded(plain[around[-1] : place]) if around else ():
        if (at := _PART.fullmatch(one)) and at[1] in given and at[3] == "==":
            of, right = known.number(at[2] or at[4]), known.number(at[4])
            if of and (right == 0 or not at[2]):
                yield given[at[1]], of, bool(at[2])


def _demanded(before: str) -> Iterator[str]:
    """Yield what has to be true behind a text, ``n % 4 == 0``."""
    for at in _DEMANDS.finditer(before):
        first = text.split(before[at.end() : text.closing(before, at.start(1))])[:1]
        yield from (part for one in first if "||" not in one for part in one.split("&&"))
    for at in _IF.finditer(before):
        closed = text.closing(before, at.start(1))
        if closed > 0 and _LEAVES.match(before, closed + 1):
            refused = before[at.end() : closed]
            yield from map(_negated, refused.split("||") if "&&" not in refused else ())


def _negated(refused: str) -> str:
    """Return the contrary of a comparison; of ``n % 4`` alone ``n % 4 == 0``."""
    if "==" in refused or "!=" in refused:
        return re.sub(r"[!=]=", lambda sign: "!=" if sign[0] == "==" else "==", refused)
    return f"{refused} == 0" if "%" in refused else ""
