"""Kernels that a stranger might bring: how they are described, and how they are run, in all orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.emulator import TensorMap, emulate
from harness.errors import EmulatorError
from shared import styles
from shared.emulator_kernels import compile_ptx

FOLDER = Path(__file__).parents[1] / "data" / "brought"
Rng = np.random.Generator
Given = tuple[list[Any], list[tuple[np.ndarray, np.ndarray]]]
# What `check` runs a kernel in, by whether it has asynchronous units: schedules, and a look for fences.
ORDERS = {
    False: (
        ("lockstep", False),
        ("backward", False),
        ("delayed", False),
        ("held", False),
        ("lockstep", True),
    ),
    True: (("late", False), ("early", False), ("late", True)),
}


@dataclass(frozen=True, kw_only=True)
class Brought:
    """The kernel `k` of the file `name`, and what goes wrong with it.

    make: returns its arguments, and of each array that it writes what it holds then
    faults: (text, what replaces it), each of which is found by some order: a finding, wrong numbers or a hang
    missed: faults that no order shows
    units: it has asynchronous units; headers: it includes those of CUDA, which take seconds to compile
    unordered: who comes first decides where elements are
    """

    name: str
    make: Callable[[Rng], Given]
    faults: tuple[tuple[str, str], ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    missed: tuple[tuple[str, str], ...] = ()
    shared: int = 0
    units: bool = False
    headers: bool = False
    unordered: bool = False
    tolerance: float = 1e-5

    @property
    def source(self) -> str:
        return (FOLDER / f"{self.name}.cu").read_text()

    def faulty(self, fault: tuple[str, str]) -> str:
        """Return the source with a fault in it."""
        assert self.source.count(fault[0]) == 1, fault
        return self.source.replace(*fault)


BROUGHT: dict[str, Brought] = {}


def add(name: str, **parts: Any) -> None:
    BROUGHT[name] = Brought(name=name, **parts)


def whole(rng: Rng, *shape: int, high: int = 9) -> np.ndarray:
    """Return small integers as float32, of which sums are exact."""
    return rng.integers(-high, high, shape).astype(np.float32)


def outcomes(kernel: Brought, source: str) -> Iterator[tuple[str, set[str]]]:
    """Yield, order by order, its schedule and what is wrong: kinds of findings, or numbers."""
    ptx = compile_ptx(source, "compute_90a", *styles.includes(kernel))
    for schedule, fences in ORDERS[kernel.units]:
        arguments, wanted = kernel.make(np.random.default_rng(5))
        try:
            found = emulate(
                ptx,
                "k",
                grid=kernel.grid,
                block=kernel.block,
                arguments=arguments,
                shared=kernel.shared,
                schedule=schedule,
                fences=fences,
            )
        except EmulatorError as error:
            yield schedule, {"hang" if "the kernel hangs" in str(error) else str(error)}
            continue
        wrong = {f.kind for f in found.findings}
        near = {"rtol": kernel.tolerance, "atol": kernel.tolerance}
        if kernel.unordered:
            wanted = [(np.sort(array), np.sort(values)) for array, values in wanted]
        if not all(np.allclose(array, values, **near) for array, values in wanted):
            wrong.add("wrong numbers")
        yield schedule, wrong


def tensor(array: np.ndarray, element: str, box: tuple[int, ...], **parts: Any) -> TensorMap:
    """Return the map of a whole array."""
    return styles.tensor(array, element, box, **parts)
