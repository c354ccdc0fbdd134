"""Kernels on a real GPU, held to the reference of their problem, and which of many are enough."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from harness.bench import measure
from harness.driver import Context, Stream
from harness.kernels.compiler import Cubin
from harness.kernels.spec import LAYOUT, Variant
from harness.launch import kernel as launch
from harness.launch.operands import Operands
from harness.problems.protocol import Problem


def verified(gpu: Context, cubin: Cubin, problem: Problem) -> None:
    """Fail unless two data sets are computed within bounds, and the inputs stay as they were."""
    with (
        Stream(gpu) as stream,
        Operands(gpu, problem, stream, seed=1, sets=2) as operands,
        launch.prepare(cubin, operands) as run,
    ):
        verdict = measure.check(run, stream, sets=2)
        assert verdict.ok, f"{cubin.variant.label} {problem.label}: {verdict}"
        assert not operands.damaged_inputs(stream)


def covering(variants: Sequence[Variant]) -> list[Variant]:
    """Return some of one kernel's variants, so that each value of a parameter and each two switches occur.

    A switch is a parameter of at most four values. To compile hundreds of tiles takes longer than all else
    that is tested on a GPU; what tells them from each other beside their extents is in a few.
    """
    names = [name for name in variants[0].params if name not in LAYOUT]
    values = {name: {variant.params[name] for variant in variants} for name in names}
    pairs = list(itertools.combinations((name for name in names if len(values[name]) <= 4), 2))

    def shown(variant: Variant) -> set[tuple[object, ...]]:
        single = {(name, variant.params[name]) for name in names}
        return single | {(*pair, *(variant.params[name] for name in pair)) for pair in pairs}

    left, found = set().union(*map(shown, variants)), []
    while left:
        found.append(max(variants, key=lambda variant: len(left & shown(variant))))
        left -= shown(found[-1])
    return found
