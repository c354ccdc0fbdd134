"""Irregular graph kernels: every planted race and access out of bounds is found, no sound one accused."""

from __future__ import annotations

import pytest

from shared.irregular import Variant, variants

RACES = {"global race", "RAW hazard", "WAR hazard", "WAW hazard"}
ALL = list(variants())
FEW = ALL[:: len(ALL) // 7]
SEEDS = (1, 2, 3)


@pytest.mark.parametrize(
    "variant", [pytest.param(v, marks=() if v in FEW else pytest.mark.slow, id=str(v)) for v in ALL]
)
def test_a_graph_kernel(variant: Variant) -> None:
    kinds = {finding.kind for seed in SEEDS for finding in variant.run(seed).findings}
    if variant.bug == "bounds":
        assert kinds and kinds <= {"out of bounds"}
    elif variant.sound:
        assert kinds == set()
    else:
        assert kinds and kinds <= RACES


def test_how_many_there_are() -> None:
    assert sum(v.sound for v in ALL) >= 60 and sum(not v.sound for v in ALL) >= 120
