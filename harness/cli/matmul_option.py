"""Accept ``matmul`` among the kernels of a command line: what `harness.matmul` runs at each size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.cli import options
from harness.dispatch import choose
from harness.dispatch.model import cost, traffic
from harness.errors import UsageError
from harness.kernels.cpp import calls

if TYPE_CHECKING:
    from harness.driver import Device
    from harness.kernels.spec import Variant
    from harness.launch.builds import Built, Skipped
    from harness.problems.gemm import Gemm
    from harness.problems.protocol import Axes, Problem
    from harness.support.cache import Cache


def named(kernels: Sequence[str]) -> bool:
    """Return True if ``matmul`` is among the kernels."""
    return choose.NAME in kernels


def refuse(kernels: Sequence[str], given: bool, option: str) -> None:
    """Raise UsageError if `option`, which needs a single kernel, is `given` together with ``matmul``."""
    if given and named(kernels):
        raise UsageError(f"{option} takes a kernel, and matmul is several", hint="name one that it chooses")


def select(
    kernels: Sequence[str],
    params: Sequence[str],
    axis: Sequence[str],
    default: str,
    dtypes: Sequence[str],
    *,
    sweep: bool,
    entry: str | None = None,
    include: Sequence[str] = (),
) -> tuple[list[Variant], dict[type[Problem], list[Axes]]]:
    """Return the variants of all other words, and the sizes of every problem.

    These are `options.variants` and `options.points`. Beside ``matmul``, whose types `dtypes` are, a kernel
    that is written for none of them keeps its own.
    """
    also = _products(dtypes) if named(kernels) else []
    others = [word for word in kernels if word != choose.NAME]
    refuse(kernels, entry is not None, "--entry")
    if named(kernels) and not others:
        refuse(kernels, bool(params), "-p")
        return [], options.points([], axis, default, also=also)
    selected, variants = options.variants(
        others,
        params,
        sweep=sweep,
        dtypes=dtypes,
        strict=not named(kernels),
        entry=entry,
        include=include,
    )
    selected = [calls.launchable(kernel) for kernel in selected]
    variants = [replace(v, kernel=calls.launchable(v.kernel)) for v in variants]
    return variants, options.points(selected, axis, default, also=also)


def _products(dtypes: Sequence[str]) -> list[type[Gemm]]:
    """Return the GEMM problem of each element type, fp32's if there is none."""
    from harness.problems.gemm import GEMMS, Gemm

    return [GEMMS[name] for name in dict.fromkeys(dtypes)] or [Gemm]


def build(
    variants: Sequence[Variant],
    dispatched: bool,
    dtypes: Sequence[str],
    points: Mapping[type[Problem], Sequence[Axes]],
    arch: str,
    gpu: Device | None,
    cache: Cache,
    step: Callable[[str], None],
) -> tuple[list[Built], list[Skipped]]:
    """Build the variants and, if `dispatched`, the kernels that the dispatcher chooses for each product.

    Without a GPU it chooses as on an H200. Returns what was built, and what was skipped.
    """
    from harness.dispatch.chosen import build_chosen
    from harness.launch import builds

    built, skipped = builds.build_all(variants, [arch], cache, step)
    if dispatched:
        card: Any = {"sms": gpu.sms if gpu else cost.H200_SMS, "dram": traffic.dram_bytes(gpu)}
        products = [cls.from_axes(axes) for cls in _products(dtypes) for axes in points[cls]]
        chosen, missed = build_chosen(products, arch, cache, step, gpu=gpu.name if gpu else "", **card)
        built, skipped = [*built, *chosen], skipped + missed
    return built, skipped
