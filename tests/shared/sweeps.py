"""Sweeps over all shipped kernels: a plain run visits representatives, `pytest -m slow` the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from harness.kernels import catalog

# Every architecture, and every way to read shared memory and to multiply.
FAST_BUILDS = {
    ("03_tiled", "sm_75"): "reads of shared memory that the compiler makes wide",
    ("03_tiled", "sm_120"): "the newest architecture",
    ("08_tiled_v4", "sm_90a"): "PTX",
    ("13_cp_async", "sm_80"): "copies that go on beside the loop",
    ("21_mma_sync", "sm_100"): "mma.sync",
    ("22_wgmma", "sm_90a"): "wgmma and the TMA",
    ("copy", "sm_75"): "no arithmetic",
    ("ffma", "sm_80"): "nothing but arithmetic",
}


def sweep(
    values: Iterable[Any], fast: Callable[..., bool], exhaustive: Callable[..., bool] = lambda *_: False
) -> list[Any]:
    """Return `values` for parametrize, a tuple for each where there are several names; all are slow but those
    of which `fast` holds, and those that take too long for CI, of which `exhaustive` holds. Raise LookupError
    where no value is fast: a plain run would not see the test.
    """

    def marks(row: tuple[Any, ...]) -> Any:
        return () if fast(*row) else pytest.mark.exhaustive if exhaustive(*row) else pytest.mark.slow

    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    if not any(fast(*row) for row in rows):
        raise LookupError(f"every one of these is slow: {rows}")
    return [pytest.param(*row, marks=marks(row)) for row in rows]


def builds(archs: Sequence[str], each: int = 0) -> list[Any]:
    """Return each shipped kernel with each of `archs` that it can be built for, for ("name", "arch").

    With `each`, CI takes so many architectures of a kernel, other ones for the next: enough for what reads
    any machine code.
    """
    fitting = {k.name: [arch for arch in archs if k.fits(arch)] for k in catalog.shipped()}
    pairs = [(name, arch) for name, own in fitting.items() for arch in own]
    taken = {
        (name, own[(number + turn) % len(own)])
        for number, (name, own) in enumerate(fitting.items())
        for turn in range(each or len(archs))
    }
    return sweep(pairs, lambda *pair: pair in FAST_BUILDS, lambda *pair: pair not in taken)


def builds_and_sets(archs: Sequence[str]) -> list[Any]:
    """Return the same for ("name", "arch", "sets"): "default" stands for the default set of parameters, "all"
    for every set that `shared.kernels.parameter_sets` visits, which is exhaustive.
    """
    rows = builds(archs)
    everywhere = os.environ.get("HARNESS_ALL_SETS") == "1"
    several = [row.values for row in rows if everywhere or row.values[1] == "sm_90a"]
    return [
        *(pytest.param(*row.values, "default", marks=row.marks) for row in rows),
        *(pytest.param(*v, "all", marks=pytest.mark.exhaustive) for v in several),
    ]


def archs(names: Sequence[str], *fast: str) -> list[Any]:
    """Return the architectures `names`, slow but for `fast`, the oldest and Hopper where none is given."""
    return sweep(names, lambda arch: arch in (fast or ("sm_75", "sm_90a")))
