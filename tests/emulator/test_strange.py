"""Kernels as strangers bring them: right where they are right, and their planted faults are found."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import shared.strange_programs
import shared.strange_units  # noqa: F401 - they add to STRANGE
from harness.emulator import Buffer, Emulation, emulate
from harness.errors import EmulatorError
from harness.support import tools
from shared.emulator_kernels import compile_ptx
from shared.strange_kernels import STRANGE, Strange

HEADS = ("#include", "namespace cg")
# CUDA's headers take seconds to compile: of those kernels, some stand for the others in CI.
SLOW = (
    "tiles of", "cuda::pipeline", "half2", "atomics of pairs", "alignment", "lists", "recursion",
    "sparse", "mean and variance", "Fourier", "one producer", "bitonic",
)  # fmt: skip
# And of the others a newcomer runs every third.
FEW = [name for name, one in STRANGE.items() if not one.headers and not name.startswith(SLOW)][::3]


def marked(name: str) -> Any:
    marks = [pytest.mark.exhaustive] if STRANGE[name].headers else []
    slow = name.startswith(SLOW) or (name not in FEW and not marks)
    return pytest.param(name, marks=[pytest.mark.slow] if slow else marks)


def ptx_of(kernel: Strange) -> str:
    """Compile a kernel and, as the entry `wrong`, the one with its fault."""
    assert kernel.source.count(kernel.fault[0]) == 1
    faulty = kernel.source.replace(*kernel.fault)
    body = [line for line in faulty.splitlines() if not line.startswith(HEADS)]
    second = re.sub(r"\bk\(", "wrong(", "\n".join(body))
    folder = tools.headers("cudart") if kernel.headers else None
    if kernel.headers and folder is None:
        pytest.skip("CUDA's headers are not here")
    more = [f"--include-path={folder}", f"--include-path={folder}/cccl"] if kernel.headers else []
    return compile_ptx(f"{kernel.source}\nnamespace faulty {{\n{second}\n}}", "compute_90", *more)


def run(kernel: Strange, entry: str, schedule: str) -> tuple[Emulation, bool]:
    """Run an entry; return what was found, and whether the results are right."""
    given = kernel.given(np.random.default_rng(5))
    right = kernel.right(*(g.copy() if isinstance(g, np.ndarray) else g for g in given))
    arguments = [
        Buffer(array=g, name="abcdefgh"[i]) if isinstance(g, np.ndarray) else g for i, g in enumerate(given)
    ]
    found = emulate(
        ptx_of(kernel),
        entry,
        grid=np.atleast_1d(kernel.grid).tolist(),
        block=np.atleast_1d(kernel.block).tolist(),
        arguments=arguments,
        shared=kernel.shared,
        schedule=schedule,
    )
    return found, all(wanted is None or same(g, wanted) for g, wanted in zip(given, right, strict=False))


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Return whether results are equal; those of float32 but for its rounding."""
    if found.dtype != np.float32:
        return bool(np.array_equal(found, wanted))
    return bool(np.allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max()))


@pytest.mark.parametrize("name", [marked(name) for name in STRANGE])
def test_a_kernel_is_right_and_its_fault_is_found(name: str) -> None:
    kernel = STRANGE[name]
    for schedule in ("lockstep", "backward"):
        found, right = run(kernel, "k", schedule)
        assert (found.findings, right) == ((), True)
    try:
        found, right = run(kernel, "wrong", "lockstep")
    except EmulatorError:
        return
    assert found.findings or not right
