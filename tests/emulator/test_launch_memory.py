"""A launch gives its memory back when it ends, not when Python looks for what refers to itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from harness.emulator.blocks.batch import Batch
from harness.emulator.machine import Launch
from shared.emulator_kernels import launch
from shared.hopper_kernels import run

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


@pytest.mark.parametrize("kind", ["plain", "fence", "units"])
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
