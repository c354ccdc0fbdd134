"""The output of every rung on a card and in the emulator: what is compared, and how it is kept."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

import harness
from harness.bench import emulation
from harness.driver import Context, Stream
from harness.kernels import catalog
from harness.kernels.spec import Kernel
from harness.launch.builds import Built
from harness.problems import checks
from harness.problems.registry import resolve

RECORD = "h200/scripts/card_bits"
# Ragged in every extent; rows that have tensor maps, and rows that have none.
SHAPES: tuple[dict[str, float], ...] = (
    {"M": 200, "N": 328, "K": 277, "lda": 280, "beta": 0.5},
    {"M": 131, "N": 259, "K": 190, "ldb": 261, "ldc": 263, "alpha": -0.75},
)
SEED = 1
MANTISSA = dict.fromkeys(("fp32", "tf32", "3xtf32", "fp16x3", "bf16x6"), 23) | {
    "bf16": 7,
    "fp16": 10,
}  # bits stored


def rungs() -> list[Kernel]:
    """Return the kernels of products that are not wrong on purpose."""
    return [k for k in catalog.shipped() if not k.broken and k.problem == "gemm"]


def built(kernel: Kernel) -> Built:
    variant = kernel.variant()
    return Built(variant=variant, cubin=harness.compile_kernel(variant, "sm_90a"), sass=None)


def problem_of(one: Built, axes: dict[str, float]) -> Any:
    return checks.instance(resolve(one.variant.kernel), axes)


def fixed(one: Built) -> bool:
    """Return whether PTX fixes the bits: no tensor core adds up products."""
    return not any(word in one.cubin.ptx for word in ("wgmma.mma_async", "mma.sync"))


def emulated(one: Built, axes: dict[str, float], sms: int) -> NDArray[Any]:
    """Return what the emulator computes on a GPU of `sms` multiprocessors, which divide the work of some."""
    problem = problem_of(one, axes)
    options = emulation.Options(check=False, count=False, sms=sms)
    _, arrays = emulation.launch(one, problem, problem.inputs(SEED), options)
    return arrays[problem.output][:, : problem.N]


def on_the_card(gpu: Context, stream: Stream, one: Built, axes: dict[str, float]) -> NDArray[Any]:
    """Return what the card computes from the same inputs."""
    problem = problem_of(one, axes)
    with (
        harness.Operands(gpu, problem, stream, seed=SEED, sets=1) as operands,
        harness.prepare(one.cubin, operands) as launch,
    ):
        launch(stream)
        (output,) = (o.copy() for o in operands.outputs(stream))
        inputs = problem.inputs(SEED)
        assert all(operands.host[n].tobytes() == inputs[n].tobytes() for n in inputs), "other inputs"
    found: NDArray[Any] = output.reshape(inputs["C"].shape)[:, : problem.N]
    return found


def digest(output: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(output).tobytes()).hexdigest()


def distance(one: Built, axes: dict[str, float], ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return the largest difference of two outputs, in what a tensor core may differ by.

    That is two units in the last place of the stored element, and of float32 at the sum of the products'
    magnitudes for each 32 bytes of k, which one instruction adds.
    """
    problem = problem_of(one, axes)
    inputs, dtype = problem.inputs(SEED), problem.dtype
    a, b = (np.abs(dtype.decode(inputs[n]).astype(np.float64)) for n in "AB")
    size = np.abs(a[:, : problem.K] @ b[:, : problem.N] * problem.alpha)
    steps = -(-problem.K * dtype.itemsize // 32)
    x, y = (dtype.decode(o).astype(np.float64) for o in (ours, theirs))
    allowed = 2.0 ** (1 - MANTISSA[dtype.name]) * np.abs(y) + steps * 2.0**-22 * size
    return float((np.abs(x - y) / allowed).max())


def row(gpu: Context, stream: Stream, kernel: Kernel, axes: dict[str, float], sms: int) -> dict[str, Any]:
    """Return the comparison of one rung at one shape."""
    one = built(kernel)
    theirs, ours = on_the_card(gpu, stream, one, axes), emulated(one, axes, sms)
    bits = f"u{ours.dtype.itemsize}"
    differ = int(np.count_nonzero(ours.view(bits) != theirs.view(bits)))
    return {
        "kernel": kernel.name,
        "axes": axes,
        "fixed": fixed(one),
        "elements": int(ours.size),
        "differ": differ,
        "distance": distance(one, axes, ours, theirs),
        "card": digest(theirs),
        "emulated": digest(ours),
    }
