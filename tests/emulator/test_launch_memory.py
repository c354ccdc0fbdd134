"""A launch gives its memory back when it ends, not when Python looks for what refers to itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from harness.emulator.blocks.batch import Batch
from harness.emulator.executable import executable
from harness.emulator.machine import Launch
from harness.errors import EmulatorError
from shared.emulator_kernels import launch
from shared.hopper_kernels import run
from shared.sweeps import sweep

PLAIN = """extern "C" __global__ void k(float* a, float* c) {
  __shared__ float s[64];
  int t = threadIdx.x, i = blockIdx.x * 64 + t;
  s[t] = a[i];
  __syncthreads();
  if (t < 40) c[i] = s[63 - t] * s[t] FENCE;
}"""
UNITS = """float* a, float* c {
  __shared__ __align__(128) float s[64];
  const int t = threadIdx.x;
  s[t] = a[t];
  fence_async();
  cluster_sync();
  if (t == 0) { store(c + 64 * rank(), s, 256); wait_all(); }
}"""

FEW = 50  # objects: what NumPy and the test leave behind, and nothing for each block or instruction


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Launch]]]:
    """Return the launches that are made, while Python looks for none that refer to themselves."""
    made: list[weakref.ref[Launch]] = []
    begin = Launch.__init__

    def note(self: Launch, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Launch, "__init__", note)
    gc.disable()
    yield made
    gc.enable()


def launched(kind: str) -> None:
    a, c = np.ones(640, np.float32), np.zeros(640, np.float32)
    if kind == "units":
        assert not run(UNITS, a, c, block=64, grid=2, cluster=2).findings
    else:
        fence = "; __threadfence()" if kind == "fence" else ""
        assert not launch(PLAIN.replace("FENCE", fence), "k", (10,), (64,), a, c).findings


@pytest.mark.parametrize("kind", sweep(["plain", "fence", "units"], lambda kind: kind == "units"))
def test_a_launch_that_has_ended_is_gone(alive: list[weakref.ref[Launch]], kind: str) -> None:
    for _ in range(2):
        launched(kind)
    assert [one() for one in alive] == [None, None]


def test_the_control_a_batch_that_lets_go_of_nothing_keeps_it(
    alive: list[weakref.ref[Launch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batch, "end", lambda batch: None)
    launched("plain")
    assert alive[0]() is not None


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_python_looks_for_cycles_afterwards_if_it_did_before(collects: bool, ends: bool) -> None:
    """In between it does not: it would go through the instructions of a kernel over and over."""
    during: list[bool] = []
    a = np.ones(64, np.float32)
    code = PLAIN if ends else PLAIN.replace("__syncthreads();", "while (true);")
    (gc.enable if collects else gc.disable)()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Launch, "_run_batches", _noting(during, Launch._run_batches))
            if ends:
                launch(code.replace("FENCE", ""), "k", (1,), (64,), a, a.copy())
            else:
                with pytest.raises(EmulatorError):
                    launch(code.replace("FENCE", ""), "k", (1,), (64,), a, a.copy())
        assert during == [False]
        assert gc.isenabled() == collects
    finally:
        gc.enable()


def _noting(during: list[bool], run: Any) -> Any:
    def noted(self: Launch) -> None:
        during.append(gc.isenabled())
        run(self)

    return noted


def collected(kind: str) -> int:
    """Return how many objects a kernel and its launch leave for Python's collector."""
    gc.collect()
    gc.disable()
    try:
        launched(kind)
        executable.cache_clear()
        return gc.collect()
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", sweep(["plain", "fence", "units"], lambda kind: kind == "units"))
def test_neither_a_kernel_nor_its_launch_leaves_cycles(kind: str) -> None:
    """Python does not look for them, so that they would add up. Other tests leave some: the least counts."""
    launched(kind)  # so that all modules are imported
    executable.cache_clear()
    assert min(collected(kind) for _ in range(3)) < FEW


def test_a_launch_that_is_given_up_keeps_no_results(alive: list[weakref.ref[Launch]]) -> None:
    with pytest.raises(EmulatorError):
        launch(PLAIN.replace("FENCE", "; while (true)"), "k", (1,), (64,), *np.ones((2, 64), np.float32))
    kept = [found for made in alive if (found := made()) is not None]
    assert all(not found.memo._found for found in kept)
