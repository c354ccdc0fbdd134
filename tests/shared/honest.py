"""The honest kernels of tests/data, changed and run in the emulator as `harness check` and `verify` do."""

from __future__ import annotations

import functools
from dataclasses import replace

from harness import compile_kernel
from harness.bench import emulation
from harness.bench.row import Measurement
from harness.kernels import spec
from harness.launch.builds import Built
from harness.problems.gemm import GEMMS
from shared.corpus import HONEST


@functools.cache
def honest(name: str) -> spec.Kernel:
    """Return the honest kernel of this file."""
    return spec.load(next(path for path in HONEST if path.stem == name))


def checked(name: str, *changes: tuple[str, str]) -> Measurement:
    """Return what is measured of an honest kernel, in whose text each change has one place."""
    kernel = honest(name)
    text = kernel.source
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    variant = replace(next(iter(kernel.variants())), kernel=replace(kernel, source=text))
    problem = GEMMS["fp32"].from_axes({"M": 20, "N": 37, "K": 40, "beta": 0.5})
    inputs = problem.inputs(1)
    built = Built(variant=variant, cubin=compile_kernel(variant, "sm_90"), sass=None)
    return emulation.row(built, problem, inputs, problem.reference(inputs), emulation.Options())
