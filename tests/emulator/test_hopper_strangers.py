"""Hopper kernels as strangers bring them: right where they are right, and their planted faults are found."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from harness.emulator import Emulation, emulate
from harness.kernels import catalog
from harness.support import tools
from shared.emulator_kernels import compile_ptx
from shared.hopper_kernels import kinds
from shared.hopper_strangers import BROUGHT, FOLDER, WRONG, Brought, wide

LONGEST = 10  # seconds of a processor until anything is told, a hang too
FEW = [name for name, one in BROUGHT.items() if not one.headers][::3]


def marked(name: str, *more: Any, slow: bool = False) -> Any:
    """A case. A newcomer runs every third kernel that needs no headers, once right and once wrong."""
    return pytest.param(name, *more, marks=[pytest.mark.slow] if slow or name not in FEW else [])


def run(brought: Brought, source: str, schedule: str = "late") -> tuple[Emulation, bool]:
    """Run a kernel; return what was found, and whether its numbers are right."""
    folders = [f"--include-path={FOLDER}"]
    if brought.headers:
        installed = tools.headers("cudart")
        if installed is None:
            pytest.skip("CUDA's headers are not here")
        own = (
            next(folder for folder in catalog.folders() if (folder / "include").is_dir()) / "include" / "std"
        )
        folders += [f"--include-path={folder}" for folder in (own, installed, installed / "cccl")]
    arguments, wanted = brought.make(np.random.default_rng(5))
    ptx, began = compile_ptx(source, "compute_90a", *folders), time.process_time()
    found = emulate(
        ptx,
        "k",
        grid=brought.grid,
        block=(brought.block,),
        arguments=arguments,
        shared=brought.shared,
        schedule=schedule,
    )
    assert time.process_time() - began < LONGEST
    got = [(wide(array) if brought.bf16 else array, values) for array, values in wanted]
    near = {"rtol": brought.tolerance, "atol": brought.tolerance, "equal_nan": True}
    return found, all(np.allclose(array, values, **near) for array, values in got)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [marked(name, order, slow=order == "early") for name in BROUGHT for order in ("late", "early")],
)
def test_a_right_kernel_has_no_finding(name: str, schedule: str) -> None:
    found, right = run(BROUGHT[name], BROUGHT[name].source, schedule)
    assert [str(f) for f in found.findings] == [] and right
    # NVIDIA's own examples of cuda::memcpy_async have no proxy fence after `init` either.
    assert {f.kind for f in found.notices} == ({"missing proxy fence"} if name == "memcpy_async" else set())


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        marked(name, fault, slow=fault != one.faults[0])
        for name, one in BROUGHT.items()
        for fault in one.faults
    ],
)
def test_a_planted_fault_is_found(name: str, fault: tuple[str, str, str]) -> None:
    old, new, kind = fault
    assert BROUGHT[name].source.count(old) == 1
    found, right = run(BROUGHT[name], BROUGHT[name].source.replace(old, new))
    assert kind in kinds(found) or (kind == WRONG and not right), [str(f) for f in found.findings]
