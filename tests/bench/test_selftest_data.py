"""New data against the same data, on a fake GPU whose kernels take as long as they are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fakes import gemm as fake_gemm
from harness.bench import selftest
from harness.bench.stopping import StopRule
from harness.driver import Context, Device
from harness.kernels import catalog
from harness.launch import builds
from harness.problems.gemm import Gemm
from harness.support.cache import Cache

RULE = StopRule(min_time=0.01, warmup=0.01, settle=0.01, max_samples=40, min_blocks=2)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    monkeypatch.setattr(selftest, "launches", lambda *_: 4)
    fake = fake_gemm.gpu(monkeypatch)
    seen: set[bytes] = set()

    def slow_on_new(run: Any) -> None:
        """Take 2% longer on data that no launch had before."""
        a = fake_gemm.parameters(run)[0].tobytes()
        fake.milliseconds = 1.5 if a in seen else 1.53
        seen.add(a)
        fake_gemm.gemm(run)

    fake.execute = slow_on_new
    with Context(Device.open()) as context:
        yield context


def test_what_new_data_does_to_times_is_measured(context: Context, cache: Cache) -> None:
    variant = catalog.kernel("tiled").variant()
    (kernel,), _ = builds.build_all([variant], ["sm_90a"], cache, lambda _: None)
    with selftest.SelfTest(context, kernel.cubin, Gemm(M=16, N=16, K=8), rule=RULE, seed=1) as test:
        found = test.data(kernel.cubin, 2, threshold=0.005)
    assert len(found.trials.intervals) == 2
    # The fake's clock is one number, read after the whole batch: what counts is that both sides ran.
    assert found.trials.estimate == pytest.approx(0.02, abs=0.001)
    assert min(found.fresh, found.same, found.bare) > 0
