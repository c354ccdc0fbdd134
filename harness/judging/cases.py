"""Draw the sizes at which a submission is tried, anew from each seed, among those that it says it takes.

A kernel that knows the sizes of `harness verify` is not tried at these. The sizes are of the kinds at which
kernels go wrong: tiny, a single row or column, ragged, in wide matrices (padded leading dimensions), with
alpha and beta, aligned, with a long sum, tall, wide, of many elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.errors import HarnessError, UsageError
from harness.kernels.spec import Variant
from harness.launch.kernel import grid
from harness.problems import checks
from harness.problems.gemm import Gemm
from harness.problems.protocol import Problem

_TRIES = 1500  # draws for one kind before it is given up: the kernel takes no such size
_STEPS = (1, 1, 1, 2, 4, 8, 16, 32, 64, 128)  # a size is a multiple of one of these
Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of size: the range of each axis, and whether matrices lie in wider ones.

    `scaled` has alpha and beta: any, "alpha" or "beta" 1, "large" or "small" ones, alpha "zero". All sizes
    are multiples of `step`. One that is `late` is tried last, and if it is padded, in much wider matrices.
    """

    name: str
    m: Range
    n: Range
    k: Range
    padded: bool = False
    scaled: str = ""
    odd: bool = False
    step: int = 0
    late: bool = False


def kinds(variant: Variant, *, large: bool) -> tuple[Kind, ...]:
    """Return the kinds of sizes for a kernel, `large` for a GPU and else for the emulator.

    Small ones still have more than one tile in either direction, unless its tiles are large themselves.
    """
    rows, columns = (*variant.tile, 1, 1)[:2]
    m, n = (700, 700) if large else (min(2 * rows + 5, 150), min(2 * columns + 5, 150))
    k, deep, deepest, long = (900, 20_000, 20_000, 16_000) if large else (90, 1500, 5000, 2500)
    many, whole = ((700, 1500), (256, 1024)) if large else ((180, 260), (128, 128))
    some = Kind(name="ragged", m=(m // 2, m), n=(n // 2, n), k=(k // 2, k), odd=True)
    return (
        some,
        Kind(name="scaled and padded", m=(3, m), n=(3, n), k=(3, k), padded=True, scaled="any"),
        Kind(name="tiny", m=(1, 5), n=(1, 5), k=(1, 5)),
        Kind(name="a long sum", m=(2, 40), n=(2, 40), k=(deep // 2, deep), odd=True),
        Kind(name="one row", m=(1, 1), n=(2, 2 * n), k=(2, k), padded=True, scaled="alpha"),
        Kind(name="one column", m=(2, 2 * m), n=(1, 1), k=(2, k), scaled="beta"),
        Kind(name="padded", m=(3, m), n=(3, n), k=(3, k), padded=True),
        Kind(name="whole tiles", m=whole, n=whole, k=whole, step=128, late=True),
        Kind(name="no product", m=(2, 40), n=(2, 40), k=(2, 40), scaled="zero", late=True),
        Kind(name="large scalars", m=(2, 40), n=(2, 40), k=(2, 40), scaled="large", late=True),
        Kind(name="small scalars", m=(2, 40), n=(2, 40), k=(2, 40), scaled="small", late=True),
        Kind(name="a very long sum", m=(1, 3), n=(1, 3), k=(deepest // 2, deepest), odd=True, late=True),
        Kind(name="tall", m=(long // 4, long), n=(1, 4), k=(5, 20), padded=True, late=True),
        Kind(name="wide", m=(1, 4), n=(long // 4, long), k=(5, 20), padded=True, late=True),
        Kind(
            name="many elements",
            m=many,
            n=many,
            k=(200, 500) if large else (2, 12),
            scaled="any",
            odd=True,
            late=True,
        ),
    )


def drawn(
    rng: np.random.Generator, variant: Variant, cls: type[Problem], kind: Kind, *, sms: int = 1
) -> Problem | None:
    """Draw a size of this kind that the kernel takes; None if it seems to take none."""
    for attempt in range(_TRIES):
        axes = _axes(rng, cls, kind, plain=attempt % 4 == 3)
        try:
            problem = checks.instance(cls, axes)
            grid(variant, problem, sms=sms)
        except UsageError:  # the kernel, or the problem, does not take it
            continue
        except HarnessError:
            return None
        return problem
    return None


def takes(variant: Variant, problem: Problem, sms: int) -> bool:
    """Return True if the kernel takes this size."""
    try:
        grid(variant, problem, sms=sms)
    except HarnessError:
        return False
    return True


def _axes(rng: np.random.Generator, cls: type[Problem], kind: Kind, *, plain: bool) -> dict[str, int | float]:
    """Draw the axes of one problem; a `plain` size has neither padding nor scalars, for some kernels
    take no other. Of an `odd` kind all sizes are odd, unless it is plain.
    """

    def size(low: int, high: int) -> int:
        step, low = kind.step or int(rng.choice(_STEPS)), min(low, high)
        return int(np.clip(step * round(rng.uniform(low, high) / step), max(1, low), max(high, step)))

    if not issubclass(cls, Gemm):
        limits = {name: max(int(a.get(name, 1)) for a in cls.verify_axes) for name in cls.axes}
        return {name: size(1, min(most, 40 * kind.n[1])) for name, most in limits.items()}
    found: dict[str, int | float] = {"M": size(*kind.m), "N": size(*kind.n), "K": size(*kind.k)}
    if kind.odd and not plain:
        found = {name: int(value) | 1 for name, value in found.items()}
    if kind.padded and not plain:
        for name, least in (("lda", "K"), ("ldb", "N"), ("ldc", "N")):
            found[name] = int(found[least]) + (size(50, 400) if kind.late else size(1, 24))
    if kind.scaled and not plain:
        found["alpha"], found["beta"] = _scalars(rng, kind.scaled)
    return found


def _scalars(rng: np.random.Generator, which: str) -> tuple[float, float]:
    """Draw alpha and beta, which are float32 without a pattern; beta is not 0."""
    low, high = {"large": (50, 2000), "small": (1e-6, 1e-3)}.get(which, (0.01, 2))
    alpha, beta = (float(np.float32(rng.uniform(low, high) * rng.choice((-1, 1)))) for _ in range(2))
    if which in ("alpha", "beta"):
        return (1.0, beta) if which == "alpha" else (alpha, 1.0)
    return 0.0 if which == "zero" else alpha, beta


def sequence_size(
    rng: np.random.Generator, variant: Variant, cls: type[Problem], *, large: bool, sms: int
) -> Problem | None:
    """Draw the size at which launch follows launch: ragged, without beta, so that C is written only."""
    ragged = kinds(variant, large=large)[0]
    m, n, k = (min(most, 250) for _, most in (ragged.m, ragged.n, ragged.k))  # many launches
    kind = Kind(name=ragged.name, m=(8, m), n=(8, n), k=(8, k))
    return drawn(rng, variant, cls, kind, sms=sms)


def seeds(rng: np.random.Generator) -> Iterator[int]:
    """Yield seeds of input data without end."""
    while True:
        yield int(rng.integers(1 << 31))
