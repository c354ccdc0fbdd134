"""Kernels in the styles of known libraries: how they are described, and how they are run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.emulator import TensorMap, emulate
from harness.errors import EmulatorError
from harness.kernels import catalog
from harness.support import tools
from shared.emulator_kernels import compile_ptx

FOLDER = Path(__file__).parents[1] / "data" / "styles"
Rng = np.random.Generator
Given = tuple[list[Any], list[tuple[np.ndarray, np.ndarray]]]
f16, f32, i32, u32 = np.float16, np.float32, np.int32, np.uint32
WRONG = "wrong numbers"
RAW, WAR, WAW, HANG = "RAW hazard", "WAR hazard", "WAW hazard", "deadlock"
RACE, BOUNDS, NEVER = "global race", "out of bounds", "uninitialised read"
PROXY, LEFT, MISUSE, OVERRUN = "missing proxy fence", "block has left", "mbarrier misuse", "mbarrier overrun"


CORES = ("lockstep", "backward", "delayed")  # the schedules of kernels without asynchronous units


@dataclass(frozen=True, kw_only=True)
class Styled:
    """The kernel `k` of the file `name`, CUDA C++ or PTX.

    make: returns its arguments at a shape, and of each array that it writes what it holds then
    shapes: what `make` and `grid` are called with
    faults: (text, what replaces it, the kind of a finding that is wanted, or `WRONG`)
    shared: bytes of dynamic shared memory
    headers: it includes those of CUDA, which take seconds to compile
    schedules: those that it is run with; a fault is run with the first, at the first shape
    """

    name: str
    make: Callable[..., Given]
    shapes: tuple[tuple[int, ...], ...]
    faults: tuple[tuple[str, str, str], ...]
    grid: Callable[..., tuple[int, ...]]
    block: int
    shared: int = 0
    headers: bool = False
    schedules: tuple[str, ...] = ("late", "early")
    tolerance: float = 1e-5

    @property
    def source(self) -> str:
        found = FOLDER / f"{self.name}.cu"
        return (found if found.exists() else found.with_suffix(".ptx")).read_text()


STYLED: dict[str, Styled] = {}


def add(name: str, **parts: Any) -> None:
    STYLED[name] = Styled(name=name, **parts)


def tensor(array: np.ndarray, element: str, box: tuple[int, ...], **parts: Any) -> TensorMap:
    """Return the map of a whole array."""
    strides = tuple(int(stride) for stride in array.strides[-2::-1])
    return TensorMap(
        array=array, element=element, extents=array.shape[::-1], strides=strides, box=box, **parts
    )


def whole(rng: Rng, *shape: int, high: int = 9) -> np.ndarray:
    """Return small integers as float32, of which sums are exact."""
    return rng.integers(-high, high, shape).astype(f32)


def run(
    kernel: Styled, source: str, schedule: str, shape: tuple[int, ...]
) -> tuple[set[str], set[str], bool]:
    """Run a kernel; return the kinds of findings and of notices, and whether its numbers are right."""
    arguments, wanted = kernel.make(np.random.default_rng(5), *shape)
    try:
        found = emulate(
            source if ".entry" in source else compile_ptx(source, "compute_90a", *includes(kernel)),
            "k",
            grid=kernel.grid(*shape),
            block=(kernel.block,),
            arguments=arguments,
            shared=kernel.shared,
            schedule=schedule,
        )
    except EmulatorError as error:
        assert "the kernel hangs" in str(error)
        return {HANG}, set(), False
    near = {"rtol": kernel.tolerance, "atol": kernel.tolerance}
    right = all(np.allclose(array, values, **near) for array, values in wanted)
    return {f.kind for f in found.findings}, {f.kind for f in found.notices}, right


def includes(kernel: Styled) -> list[str]:
    """Return the options by which NVRTC finds the headers of a kernel."""
    folders = [FOLDER]
    if kernel.headers:
        installed = tools.headers("cudart")
        if installed is None:
            pytest.skip("CUDA's headers are not here")
        own = next(folder for folder in catalog.folders() if (folder / "include").is_dir())
        folders += [own / "include" / "std", installed, installed / "cccl"]
    return [f"--include-path={folder}" for folder in folders]
