"""Samples of where a kernel's warps stand -> the source lines and instructions that they stand at most.

While a kernel runs, every scheduler's sampler picks one of its warps at a fixed interval and notes its next
instruction and why it has not issued (Nsight Compute, Kernel Profiling Guide, "Warp Sampling"). A warp that
waits for a value stands at the instruction that needs it, not at the one that asked for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Self

from harness.errors import HarnessError

_KEPT = 12  # lines, and instructions, of a launch
_READY = frozenset({"selected", "not_selected"})  # no waiting: the warp could issue

Sources = Mapping[str, Mapping[int, str]]  # a file's name -> its lines, from 1


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One instruction of a launch, `offset` bytes behind the kernel's first: how many samples found a warp
    there, by ncu's reason, and how often warps executed it. `line` is 1-based in `file`, 0 where not known.
    """

    offset: int
    text: str
    stalls: Mapping[str, int]
    executed: int
    file: str = ""
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A source line (``03_tiled.cu:41``) or an instruction (``+0x3d0``); `reason`: why most of the
    samples' warps did not issue, and how many of them `because` of it.
    """

    place: str
    text: str
    samples: int
    reason: str
    because: int
    executed: int


@dataclass(frozen=True, kw_only=True)
class Hotspots:
    """The spots of one launch with the most of its `samples`; no `lines` where the code tells none."""

    samples: int
    lines: tuple[Spot, ...]
    instructions: tuple[Spot, ...]

    @classmethod
    def of(cls, sampled: Iterable[Sampled], sources: Sources | None = None) -> Self | None:
        """None without samples. `sources` by file name, for the text of lines."""
        found = [s for s in sampled if s.stalls]
        total = sum(sum(s.stalls.values()) for s in found)
        if not total:
            return None
        return cls(
            samples=total,
            lines=_hottest([s for s in found if s.line], _place, lambda s: _text(s, sources or {})),
            instructions=_hottest(found, lambda s: f"+{s.offset:#x}", lambda s: s.text),
        )

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """From ``dataclasses.asdict``. Raises HarnessError for what is damaged."""
        try:
            lines, instructions = (
                tuple(Spot(**spot) for spot in record[key]) for key in ("lines", "instructions")
            )
            return cls(samples=int(record["samples"]), lines=lines, instructions=instructions)
        except (KeyError, TypeError, ValueError) as e:
            raise HarnessError(f"damaged samples of a profile: {e!r}") from None


def _place(s: Sampled) -> str:
    return f"{PurePath(s.file).name}:{s.line}"


def _text(s: Sampled, sources: Sources) -> str:
    return sources.get(PurePath(s.file).name, {}).get(s.line, "").strip()


def _hottest(
    found: Sequence[Sampled], place: Callable[[Sampled], str], text: Callable[[Sampled], str]
) -> tuple[Spot, ...]:
    stalls: dict[str, Counter[str]] = {}
    executed: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for s in found:
        key = place(s)
        stalls.setdefault(key, Counter()).update(s.stalls)
        executed[key] += s.executed
        texts.setdefault(key, text(s))
    ranked = sorted(stalls, key=lambda key: -stalls[key].total())[:_KEPT]
    return tuple(
        Spot(
            place=key,
            text=texts[key],
            samples=stalls[key].total(),
            reason=_reason(stalls[key]),
            because=stalls[key][_reason(stalls[key])],
            executed=executed[key],
        )
        for key in ranked
    )


def _reason(stalls: Counter[str]) -> str:
    """The most frequent one to wait; of warps that never waited, what they did."""
    waiting = {r: n for r, n in stalls.items() if r not in _READY and n}
    return max(waiting or stalls, key=lambda r: (waiting or stalls)[r])
