"""Find the source lines and instructions at which a kernel's warps spend most time, from ncu's samples.

While a kernel runs, the sampler of every scheduler picks one of its warps at a fixed interval and records the
warp's next instruction and the reason why it has not issued (Nsight Compute, Kernel Profiling Guide, "Warp
Sampling"). A warp that waits for a value is sampled at the instruction that needs it, not at the one that
loads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Self

from harness.errors import HarnessError

_KEPT = 12  # the lines, and the instructions, that are kept of a launch
_READY = frozenset({"selected", "not_selected"})  # not waiting: the warp could issue

Sources = Mapping[str, Mapping[int, str]]  # a file's name -> its lines, from 1


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One instruction of a launch with its samples.

    `offset` is in bytes from the kernel's first instruction. `stalls` maps each stall reason, by ncu's name,
    to the number of samples that found a warp there. `executed` counts how often warps executed the
    instruction. `line` is its line, from 1, in `file`; 0 if it is not known.
    """

    offset: int
    text: str
    stalls: Mapping[str, int]
    executed: int
    file: str = ""
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A source line (``03_tiled.cu:41``) or an instruction (``+0x3d0``), with its samples.

    `reason` is the most frequent reason why the sampled warps waited, `because` the number of samples with
    it. `executed` counts how often warps executed the instruction, or all instructions of the line.
    """

    place: str
    text: str
    samples: int
    reason: str
    because: int
    executed: int


@dataclass(frozen=True, kw_only=True)
class Hotspots:
    """The lines and instructions with the most samples of one launch, most first.

    `samples` counts all samples of the launch. `lines` is empty if the code has no line information.
    """

    samples: int
    lines: tuple[Spot, ...]
    instructions: tuple[Spot, ...]

    @classmethod
    def of(cls, sampled: Iterable[Sampled], sources: Sources | None = None) -> Self | None:
        """Rank the lines and instructions by their samples; None if there are no samples.

        `sources` maps a file's name to its lines, for the text of the spots.
        """
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
        """Rebuild hotspots from their ``dataclasses.asdict``. Raises HarnessError if it is damaged."""
        try:
            lines, instructions = (
                tuple(Spot(**spot) for spot in record[key]) for key in ("lines", "instructions")
            )
            return cls(samples=int(record["samples"]), lines=lines, instructions=instructions)
        except (KeyError, TypeError, ValueError) as e:
            raise HarnessError(f"damaged samples of a profile: {e!r}") from None


def _place(s: Sampled) -> str:
    """Return the source line of an instruction as ``03_tiled.cu:41``."""
    return f"{PurePath(s.file).name}:{s.line}"


def _text(s: Sampled, sources: Sources) -> str:
    """Return the text of the source line of an instruction, or ""."""
    return sources.get(PurePath(s.file).name, {}).get(s.line, "").strip()


def _hottest(
    found: Sequence[Sampled], place: Callable[[Sampled], str], text: Callable[[Sampled], str]
) -> tuple[Spot, ...]:
    """Add up the samples by place and return the places with most."""
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
    """Return the most frequent reason to wait, or, if no warp waited, the most frequent other one."""
    waiting = {r: n for r, n in stalls.items() if r not in _READY and n}
    return max(waiting or stalls, key=lambda r: (waiting or stalls)[r])
