"""The plan of a tuning: the candidates to visit, how often to sample each, and which to leave out.

Nothing here runs on a GPU.
"""

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
_FULL = 20  # ABBA blocks per candidate in the only rung of a strategy without halving

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The strategy, limits and seed of a tuning, named as Kernel Tuner names them where it has the same.

    `strategy` is a key of `STRATEGIES`. At each size at most `max_fevals` candidates are visited.
    `time_limit` is in seconds, for all sizes together; a tuning exceeds it by at most one candidate's
    measurement. `seed` draws the candidates and the data of the search; the finals use data of ``seed + 1``.
    Candidates whose times differ by less than the fraction `threshold` (0.005 is half a percent) count as
    tied. Without `finals` a size ends with its search, and those that are ahead then are its winners.

    Raises UsageError for an unknown strategy, and for ``exhaustive`` with `max_fevals`.
    """

    strategy: str = HALVING
    max_fevals: int | None = None
    time_limit: float | None = None
    seed: int = 1
    threshold: float = 0.005
    finals: bool = True

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise UsageError(f"no strategy {self.strategy!r}", hint=" or ".join(STRATEGIES))
        if self.strategy == EXHAUSTIVE and self.max_fevals is not None:
            raise UsageError("exhaustive visits every candidate", hint="--strategy random --max-fevals N")

    def choose(self, space: Iterable[T]) -> list[T]:
        """Return the candidates to visit, in that order.

        It is the order of `space`, unless the strategy is random or a limit may leave some out; then they are
        shuffled by `seed` (except by the exhaustive strategy) and cut to `max_fevals`.
        """
        found = list(space)
        if self.strategy == RANDOM or self.max_fevals is not None or self.time_limit is not None:
            order = np.random.default_rng(self.seed).permutation(len(found))
            found = [found[i] for i in order] if self.strategy != EXHAUSTIVE else found
        return found[: self.max_fevals]

    @property
    def seeds(self) -> tuple[int, int]:
        """The seeds of the data: for the search, and for the finals."""
        return self.seed, self.seed + 1

    @property
    def rungs(self) -> tuple[int, ...]:
        """For each rung, the number of ABBA blocks by which it samples a candidate.

        A block times candidate, reference, reference, candidate in turn (or BAAB, the reverse).
        """
        return RUNGS if self.strategy == HALVING else (_FULL,)


def unfit(one: Built, device: Device) -> str:
    """Return why a candidate is not worth a launch on `device`, in one sentence, or "" if it is.

    It is not if it needs too much shared memory, if no block fits on an SM, if it spills registers, or if its
    machine code does not meet the expectations of its file.
    """
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
