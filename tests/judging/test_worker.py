"""The child that runs a submission on a GPU, in this process, with a fake GPU whose kernels are NumPy."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes import gemm as fake_gemm
from harness.bench.stopping import StopRule
from harness.judging import cases, times, trials, worker
from harness.judging.verdict import FAILED, PASSED
from harness.judging.worker import RUN, Request
from harness.kernels import catalog, spec
from harness.support.cache import Cache


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, cache: Cache, tmp_path: Path) -> Any:
    """Run the child on a kernel of the fake GPU; return the contents of its lines by kind."""
    fake = fake_gemm.gpu(monkeypatch)
    for module in (cases, trials):
        monkeypatch.setattr(
            module, "kinds", lambda variant, large, small=cases.kinds: small(variant, large=False)
        )
    monkeypatch.setattr(trials, "_LAUNCHES", {"GPU": 3})
    monkeypatch.setattr(trials, "_REPEATS", {"GPU": 2})
    monkeypatch.setattr(
        times, "RULE", StopRule(min_time=0, warmup=1e-6, settle=1e-6, max_samples=100, min_blocks=2)
    )
    monkeypatch.setattr(worker, "_confine", lambda *_: None)

    def run(kernel: Any, **how: Any) -> dict[str, list[Any]]:
        fake.execute = kernel
        found: dict[str, list[Any]] = defaultdict(list)
        request = Request(
            task=RUN,
            kernel=str(catalog.kernel("naive").path),
            cache=str(cache.root),
            out=str(tmp_path / "out"),
            problem="gemm",
            dtype="fp32",
            seed=4,
            arch="sm_90",
            axes=[{"N": 96}],
            ref="tiled",
            **how,
        )
        worker._run(request, lambda kind, content: found[kind].append(content))
        return found

    return run


def test_a_submission_does_not_begin_under_the_launch_before(tmp_path: Path) -> None:
    """Launches that overlap would share the time of one."""
    text = catalog.kernel("naive").path.read_text()
    file = tmp_path / "early.cu"
    file.write_text(text.replace("// block", "// programmatic = 1\n// block", 1))
    assert spec.load(file).variant().programmatic
    about: Any = {"task": RUN, "cache": "", "out": "", "problem": "gemm", "dtype": "fp32", "seed": 1}
    assert not worker._kernel(Request(kernel=str(file), **about)).variant().programmatic


def outcome(told: dict[str, list[Any]], name: str) -> str:
    return [c["outcome"] for c in told["check"] if c["name"] == name][-1]


def test_trials_then_times(told: Any) -> None:
    found = told(fake_gemm.gemm)
    assert {c["outcome"] for c in found["check"]} <= {PASSED}, found["check"]
    (timed,) = found["timed"]
    assert timed["shape"] == "96" and timed["against"].startswith("03_tiled")
    assert timed["seconds"] > 0 and timed["ratio"] is not None
    assert timed["protections"], "what kept the times honest is said"
    assert found["shapes"][0] and found["step"]


def test_launches_that_are_wrong_only_while_they_are_timed(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(launch: SimpleNamespace) -> None:
        fake_gemm.gemm(launch)
        c = fake_gemm.parameters(launch)[2]
        if c.shape == (96, 96):
            c[-1, -1] += 1

    found = told(kernel)
    assert outcome(found, "timed launches") == FAILED
    assert found["timed"][0]["seconds"] is None


def test_a_kernel_that_writes_nothing_fails(told: Any) -> None:
    assert told(fake_gemm.no_write)["check"][0]["outcome"] == FAILED
