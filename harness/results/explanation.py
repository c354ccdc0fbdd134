"""Compare two kernels in figures: times, resources, opcodes, counts and counters, from records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from harness.bench.stats import Interval, unpaired_ratio
from harness.errors import SpecError, UsageError
from harness.instruments import counters
from harness.kernels import catalog
from harness.kernels.prediction import FIGURES, RACES, SECONDS, Figures
from harness.kernels.spec import Variant
from harness.results import tables
from harness.results.record import Document
from harness.results.rows import ProfileRow, Row, seconds

T = TypeVar("T", bound=Mapping[str, Any])
Side = Variant | Row | ProfileRow  # a kernel, or a row of a record file that names one


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Recorded times of two kernels, A and B, at one size.

    `seconds` are A's and B's median times at `shape`. `ratio` is B's time over A's, None without samples; the
    two were not timed in turn.
    """

    shape: str
    seconds: tuple[float, float]
    ratio: Interval | None

    @property
    def speed(self) -> str:
        """The speed of B as a multiple of A's, with its interval if there is one: ``1.45 (1.44 to 1.46)``."""
        if self.ratio is None:
            return f"{self.seconds[0] / self.seconds[1]:.2f}"
        return interval(self.ratio.inverse)


def interval(ratio: Interval) -> str:
    """Return the interval as text, ``1.45 (1.44 to 1.46)``."""
    return f"{ratio.estimate:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def recorded(a: Side, b: Side, rows: Sequence[Row]) -> Recorded | None:
    """Return the times of both kernels at the largest size at which rows of ``harness bench`` have both.

    The largest is the one at which A takes the longest. None without such a size.
    """
    timed: dict[str, dict[int, Row]] = {}
    for row in rows:
        for side, key in enumerate((_key(a), _key(b))):
            if _key(row) == key and row.get("seconds"):
                timed.setdefault(row["shape"], {})[side] = row
    both = [(shape, sides) for shape, sides in timed.items() if len(sides) == 2]
    if not both:
        return None
    shape, sides = max(both, key=lambda item: seconds(item[1][0]))
    return Recorded(
        shape=shape,
        seconds=(seconds(sides[0]), seconds(sides[1])),
        ratio=unpaired_ratio(sides[1]["times"], sides[0]["times"], seed=0),
    )


def find(side: Side | Mapping[str, Any], rows: Sequence[T]) -> T | None:
    """Return the first of `rows` with the kernel and parameters of `side`, or with its label; None without
    one.

    Profiles that were read from a report made elsewhere have no more than a label.
    """
    label = side.label if isinstance(side, Variant) else side.get("label")
    return next((r for r in rows if _key(r) == _key(side) or (label and r.get("label") == label)), None)


def _key(side: Side | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kernel's name and parameters."""
    if isinstance(side, Variant):
        return side.kernel.name, side.stated
    return side.get("kernel", ""), dict(side.get("params") or {})


# Keys of a row of ``harness bench`` that `changed` compares, with their names; the counts of opcodes follow.
_RESOURCES = {
    "block": "threads",
    "registers": "registers",
    "shared": "shared bytes",
    "occupancy": "occupancy",
    "occupancy_limiter": "limited by",
    "spills": "spills",
    "intensity": "FLOP a byte loaded",
}
_COUNTERS = (
    counters.TIME,
    counters.L1,
    counters.L2,
    counters.DRAM,
    counters.ISSUED,
    counters.L1_HIT,
    counters.SHARED_STAGE,
    counters.ELIGIBLE,
    counters.ACHIEVED,
)
_LONG = 0.05  # stalls that take at least this share of a warp's time are shown


def changed(a: Row, b: Row) -> list[tuple[str, str, str]]:
    """Return the resources and opcodes in which two rows of ``harness bench`` differ: name, A's value,
    B's.
    """
    pairs: list[tuple[str, object, object]] = [
        (name, a.get(key), b.get(key)) for key, name in _RESOURCES.items()
    ]
    mixes = [row.get("sass") or {} for row in (a, b)]
    pairs += [
        (f"{name} in the code", mixes[0].get(name, 0), mixes[1].get(name, 0)) for name in mixes[0] | mixes[1]
    ]
    return [(name, _text(x), _text(y)) for name, x, y in pairs if x != y]


def _text(value: Any) -> str:
    """Return a value as text; a block's dimensions as its number of threads."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return str(math.prod(value))  # a block's threads
    return value if isinstance(value, str) else tables.number(value)


def counted(a: Figures, b: Figures) -> list[tuple[str, str, str, str, str]]:
    """Return the emulator's counts of both: figure, A's value, B's, B's over A's, what the figure means.

    What neither has is left out.
    """
    others = ("registers", "shared", "occupancy", RACES, SECONDS)
    return [
        (
            name,
            tables.number(a.get(name)),
            tables.number(b.get(name)),
            f"{b[name] / a[name]:.3g}" if a.get(name) and name in b else "-",
            FIGURES[name],
        )
        for name in FIGURES
        if (a.get(name) or b.get(name)) and name not in others
    ]


_EFFECTS = (
    "flops",
    "global_requests",
    "sectors",
    "global_bytes",
    "shared_requests",
    "wavefronts",
    "conflicts",
    "barriers",
)
_RESOURCES_OF_CODE = ("registers", "shared bytes", "spills", "occupancy", "loop instructions")
_TOLD, _NOTABLE = 3, 1.1  # how many figures a conclusion names, and by which factor they have to differ


def conclusion(
    a: str,
    b: str,
    code: Mapping[str, tuple[Any, Any]],
    figures: tuple[Figures, Figures],
    times: Sequence[str],
    bound: Sequence[str],
) -> str:
    """Return in a sentence what changed from `a` to `b`, what that did to counts and time, what binds B now.

    `code` maps figures of the machine code to both values, `figures` are the emulator's counts, `times` says
    how fast B is in each record, and `bound` what B's profile says holds it back. The sentence has no number
    that these do not have; what is not known, it names.
    """
    moved = [
        f"{tables.number(y)} {name} instead of {tables.number(x)}"
        for name in _RESOURCES_OF_CODE
        for x, y in [code.get(name, (None, None))]
        if x is not None and y is not None and x != y
    ]
    first, second = figures
    both = [(name, first[name], second[name]) for name in _EFFECTS if name in first and name in second]
    appeared = [f"{name} where there were none" for name, x, y in both if not x and y]
    vanished = [f"no {name} any more" for name, x, y in both if x and not y]
    scaled = [(name, y / x) for name, x, y in both if x and y and max(x / y, y / x) >= _NOTABLE]
    scaled.sort(key=lambda item: -abs(math.log(item[1])))
    counts = [*vanished, *(f"{ratio:.3g} times the {name}" for name, ratio in scaled), *appeared][:_TOLD]
    parts = [
        f"{b} takes {_listed(moved)}"
        if moved
        else f"{b} takes as many registers and as much shared memory as {a}"
    ]
    if first and second:
        parts.append(f"has {_listed(counts)}" if counts else "asks for the same memory")
    else:
        parts.append("was not counted")
    parts.append(f"is {_listed(times)}" if times else "was not timed here (--record, or a GPU)")
    binds = (
        f"what holds it back now: {_listed(bound)}"
        if bound
        else "what holds it back now only a profile can tell (--record)"
    )
    return f"{', '.join(parts[:-1])}, and {parts[-1]}; {binds}."


def _listed(texts: Sequence[str]) -> str:
    """Return texts as a list in words: ``a, b and c``."""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def compared(a: ProfileRow, b: ProfileRow) -> list[tuple[str, str, str]]:
    """Return ncu's counters of two profiles, and the stalls that are long in one of them: name, A's value,
    B's.
    """
    values = [row["counters"] for row in (a, b)]
    shares = [counters.stalls(v) for v in values]
    worst = {r: max(s[r][1] for s in shares if r in s) for r in shares[0] | shares[1]}
    long = [r for r in sorted(worst, key=lambda r: -worst[r]) if worst[r] >= _LONG]
    found = [(m, *(tables.number(v.get(m)) for v in values)) for m in _COUNTERS]
    found += [
        (counters.stall(r), *(f"{s[r][0]:.2f} ({s[r][1]:.0%})" if r in s else "-" for s in shares))
        for r in long
    ]
    return [(name, x, y) for name, x, y in found]


def _before(i: int, steps: Sequence[Row]) -> Row | None:
    """Return the rung among `steps` that the one at `i` was derived from.

    This is its nearest measured ancestor by the front matter's ``after``. If that has several parameter sets,
    the last one before it is taken, or else the last one after it. A kernel that is not shipped, or has no
    measured ancestor, is compared with the row before it. None if there is no such row.
    """
    for ancestor in _ancestors(steps[i]["kernel"]):
        rows = [r for r in (*steps[i + 1 :], *steps[:i]) if r["kernel"] == ancestor]
        if rows:
            return rows[-1]
    return steps[i - 1] if i else None


def _ancestors(name: str) -> list[str]:
    """Return the names of a shipped kernel's ancestors, the nearest first; none for any other kernel."""
    try:
        kernel = catalog.kernel(name)
        return [k.name for k in catalog.ancestors(kernel)] if kernel.name == name else []
    except (UsageError, SpecError):  # a kernel of somebody's own, or one with a wrong `after`
        return []


@dataclass(frozen=True, kw_only=True)
class Card:
    """A rung `b` and the one it was derived from, `a`, of the same records.

    Both are rows of ``harness bench``. `profiles` and `claims` hold their rows of ``harness profile`` and of
    ``harness explain --claims``. `profiles` is None unless both were profiled; a claim is None if it is not
    recorded.
    """

    a: Row
    b: Row
    times: Recorded
    profiles: tuple[ProfileRow, ProfileRow] | None
    claims: tuple[Document | None, Document | None]


def rungs(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of ``harness bench`` that are right and timed at the largest size, in their order.

    The largest size is that of the row that takes the longest.
    """
    found = [r for r in rows if r.get("registers") is not None and r.get("seconds") and r["status"] == "ok"]
    if not found:
        return []
    shape = max(found, key=seconds)["shape"]
    return [r for r in found if r["shape"] == shape]


def cards(steps: Sequence[Row], profiles: Sequence[ProfileRow], claims: Sequence[Document]) -> list[Card]:
    """Return a card for each of `rungs` that has another one to be compared with, as `_before` says."""
    found = []
    for i, b in enumerate(steps):
        a = _before(i, steps)
        times = recorded(a, b, (a, b)) if a is not None else None
        if a is None or times is None:  # the same kernel twice
            continue
        pair = find(a, profiles), find(b, profiles)
        found.append(
            Card(
                a=a,
                b=b,
                times=times,
                profiles=(pair[0], pair[1]) if pair[0] and pair[1] else None,
                claims=(find(a, claims), find(b, claims)),
            )
        )
    return found
