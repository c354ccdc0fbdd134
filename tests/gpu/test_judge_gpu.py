"""`harness judge` on a GPU: every exploit is rejected by its check, no honest kernel and no rung is.

The trials run in this process on one context, but for the kernels that hang or fault, which a child runs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from harness.driver import Context
from harness.judging.machines import OnGpu
from harness.judging.session import Limits, judge
from harness.judging.trials import Trials
from harness.judging.verdict import ACCEPTED, FAILED, GPU, REJECTED, Check
from harness.kernels import catalog, spec
from harness.kernels.arch import Arch
from harness.kernels.spec import Kernel, Variant
from harness.launch.builds import build_all
from harness.problems.registry import resolve
from harness.support.cache import Cache
from shared.corpus import DATA, EXPLOITS, HONEST, Exploit

pytestmark = pytest.mark.gpu

SECONDS = 6.0  # for the trials of one kernel; most take less than one


def tried(gpu: Context, variant: Variant, cache: Cache) -> list[Check]:
    arch = str(Arch.of_capability(*gpu.device.capability))
    (built,), _ = build_all([variant], [arch], cache, lambda _: None)
    with OnGpu(gpu, built) as machine:
        trials = Trials(machine, variant, resolve(variant.kernel), 11, time.monotonic() + SECONDS)
        return list(trials.run())


def failed(checks: list[Check]) -> dict[str, str]:
    return {c.name: c.reason for c in checks if c.outcome == FAILED}


@pytest.mark.parametrize(
    "exploit", [e for e in EXPLOITS if e.gpu not in ("", "ends", "ceiling")], ids=lambda e: e.name
)
def test_an_exploit_is_rejected(gpu: Context, cache: Cache, exploit: Exploit) -> None:
    found = failed(tried(gpu, spec.load(exploit.path).variant(), cache))
    assert exploit.gpu in found
    assert len(found[exploit.gpu]) > 20


@pytest.mark.parametrize(
    "kernel", [k for path in HONEST for k in spec.load(path).each_dtype()], ids=lambda k: k.name
)
def test_an_honest_kernel_is_not(gpu: Context, cache: Cache, kernel: Kernel) -> None:
    assert failed(tried(gpu, kernel.variant(), cache)) == {}


RUNGS = [k for k in catalog.ladder() if not k.broken and k.problem == "gemm"]


@pytest.mark.parametrize("kernel", RUNGS, ids=lambda k: k.name)
def test_no_rung_is(gpu: Context, cache: Cache, kernel: Kernel) -> None:
    if not kernel.fits(str(Arch.of_capability(*gpu.device.capability))):
        pytest.skip("it is for another architecture")
    assert failed(tried(gpu, kernel.variant(), cache)) == {}


def whole(name: str, **limits: Any) -> Any:
    folder = "exploits" if any(e.name == name for e in EXPLOITS) else "honest"
    return judge(DATA / folder / f"{name}.cu", limits=Limits(**limits))


@pytest.mark.alone
def test_a_launch_that_works_ahead_has_no_time() -> None:
    """Every launch is right: only its time tells that the first one of a batch did the work of all."""
    found = whole("works_ahead")
    assert found.status == REJECTED
    (ceiling,) = [c for c in found.failed if c.name == "ceiling"]
    assert "work of others" in ceiling.reason


@pytest.mark.alone
def test_a_whole_verdict_in_time() -> None:
    found = whole("square_of_results")
    assert found.status == ACCEPTED, str(found)
    assert len(found.times) == 2
    for timed in found.times:
        assert timed.seconds and timed.ratio and timed.ratio[0] <= timed.ratio[1] <= timed.ratio[2]
        assert timed.ratio[2] < 1, "cuBLAS is faster"
    assert found.seconds < 15


@pytest.mark.alone
def test_against_a_kernel() -> None:
    path = Path(DATA / "honest" / "square_of_results.cu")
    found = judge(path, ref="naive", axes=[{"N": 1024}], limits=Limits(emulator=1))
    (timed,) = found.times
    assert found.status == ACCEPTED and timed.ratio and timed.ratio[0] > 1


@pytest.mark.alone
@pytest.mark.parametrize("name", ["endless", "faults", "replay_globals"])
def test_a_whole_verdict_on_an_exploit(name: str) -> None:
    found = whole(name, quiet=6.0, emulator=2.0)
    assert found.status == REJECTED
    expected = next(e.gpu for e in EXPLOITS if e.name == name)
    assert (expected, GPU) in {(c.name, c.where) for c in found.failed}, str(found)
