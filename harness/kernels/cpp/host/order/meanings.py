"""Say what names of host code mean at a place of a function: others, of which they are composed, or numbers.

``blocks`` is composed of ``n`` and ``threads`` in ``int blocks = (n + threads - 1) / threads;``. What a call
gives, ``atoi(argv[1])``, is composed of nothing: such a name stands for itself.
"""

from __future__ import annotations

import bisect
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.kernels.cpp.host import values

Function = tuple[int, int, int, tuple[str, ...]]  # as `values.bodies` has them
FIRST = operator.itemgetter(0)
_COMPOSED = re.compile(r"[\w\s+\-*/%()<>&|,.:]+")
_CALLED = re.compile(r"\b(?!dim3|min|max|sizeof|static_cast|\w*(?:ceil|up|Up|div|Div))[A-Za-z_]\w*\s*\(")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Meant:
    """Tell what names mean at a place: `composed` ones of others, which `known` has; `whole` has all.

    times: how often the function has given them a value
    """

    known: values.Values
    whole: values.Values
    composed: frozenset[str]
    times: Mapping[str, int]

    def names(
        self, written: str, passed: Mapping[str, str], own: Callable[[str], str], numbers: dict[str, int]
    ) -> dict[str, str]:
        """Return what the names of an expression mean that are composed of nothing.

        Parameters of the function are what it was `passed`, others what `own` calls them, and anew each time
        that they are given a value. The numbers of these go to `numbers`.
        """
        found = dict[str, str]()
        for word in self.known.words(written) - self.composed - {"min", "max"}:
            changed = self.times.get(word, 0)
            if word in passed and not changed:
                meaning = passed[word] or own(word)
                found[word] = meaning if meaning.isidentifier() else f"({meaning})"
                continue
            found[word] = own(word) + (f"__v{changed}" if changed > 1 else "")
            if (number := self.whole.number(word)) is not None:
                numbers[found[word]] = number
        return found


class Meanings:
    """The meanings of names in a text, by its functions."""

    def __init__(
        self, source: str, given: Sequence[tuple[int, str, str]], functions: Sequence[Function]
    ) -> None:
        self._given, self._defined = given, values.defined(source)
        self._outside = [one for one in given if not any(f[1] < one[0] < f[2] for f in functions)]
        self._known: dict[tuple[int, int], Meant] = {}

    def at(self, function: Function, place: int) -> Meant:
        """Return what names mean at a place of a function."""
        first, end = (bisect.bisect_left(self._given, at, key=FIRST) for at in (function[1], place))
        if (key := (first, end)) not in self._known:
            inside = self._given[first:end]
            before = [one for one in self._outside if one[0] < place]
            known = self._defined | {name: value for _, name, value in (*before, *inside)}
            known = {name: value for name, value in known.items() if value}
            composed = {n: v for n, v in known.items() if _WORD.search(v) and _COMPOSED.fullmatch(v)}
            composed = {n: v for n, v in composed.items() if not _CALLED.search(v)}
            self._known[key] = Meant(
                known=values.Values(composed),
                whole=values.Values(known),
                composed=frozenset(composed),
                times=Counter(name for _, name, _ in inside),
            )
        return self._known[key]
