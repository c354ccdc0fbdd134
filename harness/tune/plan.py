"""Which candidates of a parameter space a tuning visits, and how often each is sampled. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from harness.driver import Device
from harness.errors import UsageError
from harness.launch.builds import Built, unmet
from harness.tune.race import RUNGS

EXHAUSTIVE, RANDOM, HALVING = "exhaustive", "random", "halving"
STRATEGIES = {
    HALVING: "all candidates, few samples first, more for those that may be the fastest",
    EXHAUSTIVE: "all candidates, each sampled in full",
    RANDOM: "max_fevals candidates drawn at random, each sampled in full",
}
_FULL = 20  # ABBA blocks of the one rung of a strategy that does not halve

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to search and for how long, by the names that Kernel Tuner's users know.

    `max_fevals` candidates at most are visited at each size; `time_limit` seconds pass in all, exceeded by
    one candidate's time at most. `seed` draws candidates; it is that of the rungs' data, and the next one
    that of the finals'. Candidates closer than `threshold` (0.005: half a percent) count as tied.
    """

    strategy: str = HALVING
    max_fevals: int | None = None
    time_limit: float | None = None
    seed: int = 1
    threshold: float = 0.005

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise UsageError(f"no strategy {self.strategy!r}", hint=" or ".join(STRATEGIES))
        if self.strategy == EXHAUSTIVE and self.max_fevals is not None:
            raise UsageError("exhaustive visits every candidate", hint="--strategy random --max-fevals N")

    def choose(self, space: Iterable[T]) -> list[T]:
        """The candidates, in the order in which they are visited: drawn where not all may be."""
        found = list(space)
        if self.strategy == RANDOM or self.max_fevals is not None or self.time_limit is not None:
            order = np.random.default_rng(self.seed).permutation(len(found))
            found = [found[i] for i in order] if self.strategy != EXHAUSTIVE else found
        return found[: self.max_fevals]

    @property
    def seeds(self) -> tuple[int, int]:
        """Of the rungs' data, and of the finals'."""
        return self.seed, self.seed + 1

    @property
    def rungs(self) -> tuple[int, ...]:
        """ABBA blocks of each."""
        return RUNGS if self.strategy == HALVING else (_FULL,)


def unfit(one: Built, device: Device) -> str:
    """In one sentence; empty for a candidate that is worth a launch."""
    resources, variant, shared = one.cubin.resources, one.variant, one.cubin.shared
    if shared > device.shared_per_block_optin:
        return f"{shared} B of shared memory a block; this GPU has {device.shared_per_block_optin} B at most"
    if one.occupancy.blocks == 0:
        return (
            f"not one block fits on an SM ({one.occupancy.limiter}): {variant.threads} threads of "
            f"{resources.registers} registers, {shared} B of shared memory"
        )
    if resources.spill_stores or resources.spill_loads:
        return f"spills: {resources.spill_stores} B stored, {resources.spill_loads} B loaded, a thread"
    if missing := unmet(one):
        return f"its machine code is not as the file expects: {missing}"
    return ""
