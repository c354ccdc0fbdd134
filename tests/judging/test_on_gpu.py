"""The trials on a fake GPU, whose kernels are NumPy: what they launch, and which check each cheat fails."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from harness.driver import Context, Device
from harness.judging import cases, trials
from harness.judging.machines import OnGpu
from harness.judging.trials import Trials
from harness.judging.verdict import FAILED, PASSED, WARNING, Check
from harness.kernels import catalog
from harness.launch.builds import Built, build_all
from harness.problems.gemm import Gemm
from harness.support.cache import Cache

Kernel = Callable[[SimpleNamespace], None]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    fake = fake_driver.install(monkeypatch)
    fake.functions = {"matmul": fake_gemm.SIZES}
    for module in (cases, trials):  # NumPy is slow at what a GPU multiplies
        monkeypatch.setattr(
            module, "kinds", lambda variant, large, small=cases.kinds: small(variant, large=False)
        )
    monkeypatch.setattr("harness.judging.trials._LAUNCHES", {"GPU": 12})
    monkeypatch.setattr("harness.judging.trials._REPEATS", {"GPU": 3})
    return fake


@pytest.fixture
def built(fake: Any, cache: Cache) -> Built:
    (found,), _ = build_all([catalog.kernel("naive").variant()], ["sm_90"], cache, lambda _: None)
    return found


@pytest.fixture
def judged(fake: Any, built: Built) -> Iterator[Callable[[Kernel], dict[str, Check]]]:
    with Context(Device.open()) as context:

        def run(kernel: Kernel) -> dict[str, Check]:
            fake.execute = kernel
            with OnGpu(context, built) as machine:
                made = Trials(machine, built.variant, Gemm, 3, time.monotonic() + 60).run()
                return {c.name: c for c in made}

        yield run
    assert not fake.live, "nothing stays allocated"


def failed(found: dict[str, Check]) -> set[str]:
    return {name for name, check in found.items() if check.outcome == FAILED}


def exact(launch: SimpleNamespace) -> None:
    """An honest kernel: the product in float64, rounded once."""
    a, b, c, alpha, beta = fake_gemm.parameters(launch)
    with np.errstate(all="ignore"):
        product = np.float32(alpha) * (a.astype(np.float64) @ b.astype(np.float64))
        c[:] = (product + np.float32(beta) * c if beta else product).astype(np.float32)


def test_an_honest_kernel_passes(judged: Any) -> None:
    found = judged(exact)
    assert {c.outcome for c in found.values()} == {PASSED}
    assert found["launch count"].reason == "11 launches"


class Replaying:
    """Computes a product once, and copies it from then on; `knows` says when the data is the same."""

    def __init__(self, knows: Callable[[Any, Any], bool], blind: bool = False) -> None:
        self.knows, self.kept, self.blind = knows, {}, blind

    def __call__(self, launch: SimpleNamespace) -> None:
        a, b, c, alpha, beta = fake_gemm.parameters(launch)
        before = self.kept.get(c.shape)
        scaled = before is not None and alpha != before[3] and not self.blind
        if before is not None and not beta and not scaled and self.knows((a, b), before):
            c[:] = before[2]
            return
        exact(launch)
        self.kept[c.shape] = a.copy(), b.copy(), c.copy(), alpha


def test_results_kept_from_an_earlier_launch(judged: Any) -> None:
    assert "fresh data" in failed(judged(Replaying(lambda now, before: True)))


def test_data_that_is_recognised_by_a_part(judged: Any) -> None:
    def same(now: Any, before: Any) -> bool:
        return bool((now[0][:, 0] == before[0][:, 0]).all() and (now[1][0] == before[1][0]).all())

    found = judged(Replaying(same))
    assert "near copies" in failed(found) and "fresh data" not in failed(found)


@pytest.mark.slow
def test_data_that_is_recognised_as_a_whole_is_no_cheat_here(judged: Any) -> None:
    """It is right, and gains nothing where no data comes twice."""

    def same(now: Any, before: Any) -> bool:
        return bool(np.array_equal(now[0], before[0]) and np.array_equal(now[1], before[1]))

    assert failed(judged(Replaying(same))) == set()


def test_results_kept_whatever_alpha_is(judged: Any) -> None:
    def same(now: Any, before: Any) -> bool:
        return bool(np.array_equal(now[0], before[0]) and np.array_equal(now[1], before[1]))

    assert failed(judged(Replaying(same, blind=True))) == {"near copies"}


def test_data_that_is_recognised_in_any_order(judged: Any) -> None:
    def same(now: Any, before: Any) -> bool:
        return all(
            np.array_equal(np.sort(x, None), np.sort(y, None)) for x, y in zip(now, before, strict=False)
        )

    found = judged(Replaying(same))
    assert failed(found) == {"near copies"} and "order" in found["near copies"].reason


class Remembering:
    """Sums as many products as at the first size."""

    first = 0

    def __call__(self, launch: SimpleNamespace) -> None:
        a, _, c, _, _ = fake_gemm.parameters(launch)
        exact(launch)
        self.first = self.first or a.shape[1]
        if a.shape[1] != self.first:
            c[:] += 1


def test_the_size_that_came_first(judged: Any) -> None:
    assert "fresh data" in failed(judged(Remembering()))


def sentinel(launch: SimpleNamespace) -> None:
    _, _, c, _, beta = fake_gemm.parameters(launch)
    if beta or np.isnan(c).all():
        exact(launch)


def test_an_output_that_is_recognised(judged: Any) -> None:
    assert "spoilt output" in failed(judged(sentinel))


class Skipping:
    """Leaves its launch where the first element is what it wrote before."""

    wrote: float | None = None

    def __call__(self, launch: SimpleNamespace) -> None:
        c = fake_gemm.parameters(launch)[2]
        if self.wrote is None or c[0, 0] != self.wrote:
            exact(launch)
            self.wrote = float(c[0, 0])


def test_work_left_out_where_the_output_looks_finished(judged: Any) -> None:
    assert failed(judged(Skipping())) == {"own output"}


class Counting:
    """Does half of k from a launch on."""

    def __init__(self, honest: int) -> None:
        self.left = honest

    def __call__(self, launch: SimpleNamespace) -> None:
        exact(launch)
        self.left -= 1
        if self.left < 0:
            fake_gemm.parameters(launch)[2][:] *= np.float32(0.5)


def test_launches_that_are_counted(judged: Any, fake: Any) -> None:
    judged(exact)
    late = sum(kind.late for kind in cases.kinds(catalog.kernel("naive").variant(), large=False))
    honest = len(fake.launches) - late - 4
    assert failed(judged(Counting(honest))) == {"launch count", "drawn shapes"}


def poke(address: int, offset: int) -> None:
    byte = ctypes.c_uint8.from_address(address + offset)
    byte.value ^= 0xFF


@pytest.mark.parametrize(
    ("where", "said"), [("before", "before C"), ("behind", "behind C"), ("far", "behind C")]
)
def test_stray_writes_name_the_buffer(judged: Any, where: str, said: str) -> None:
    def kernel(launch: SimpleNamespace) -> None:
        exact(launch)
        _, _, c, m, _, _, _, _, ldc, _, _ = fake_gemm.plain(launch)
        size = 4 * m * ldc
        poke(c, {"before": -5, "behind": size, "far": size + 1000}[where])

    found = judged(kernel)
    assert "stray writes" in failed(found)
    assert said in found["stray writes"].reason


def test_padding_that_is_written(judged: Any) -> None:
    def kernel(launch: SimpleNamespace) -> None:
        exact(launch)
        _, _, c, _, n, _, _, _, ldc, _, _ = fake_gemm.plain(launch)
        if ldc > n:
            poke(c, 4 * n)

    assert failed(judged(kernel)) == {"stray writes"}


def test_inputs_that_are_overwritten(judged: Any) -> None:
    def kernel(launch: SimpleNamespace) -> None:
        exact(launch)
        poke(fake_gemm.plain(launch)[1], 0)

    found = judged(kernel)
    assert failed(found) == {"inputs intact"}
    assert "overwrote its input B" in found["inputs intact"].reason


def test_bits_that_differ_within_the_bound_are_a_warning(judged: Any) -> None:
    rng = np.random.default_rng()

    def kernel(launch: SimpleNamespace) -> None:
        exact(launch)
        c = fake_gemm.parameters(launch)[2]
        c[0, 0] = np.nextafter(c[0, 0], np.float32(rng.choice([-np.inf, np.inf])))

    found = judged(kernel)
    assert found["same bits"].outcome in (WARNING, PASSED)
    assert "same bits" not in failed(found)


def test_less_precision(judged: Any) -> None:
    def kernel(launch: SimpleNamespace) -> None:
        a, b, c, alpha, beta = fake_gemm.parameters(launch)

        def rounded(x: Any) -> Any:
            bits = x.astype(np.float32).view(np.uint32)
            return ((bits + 0x80) & np.uint32(0xFFFFFF00)).view(np.float32).astype(np.float64)

        with np.errstate(all="ignore"):
            product = np.float32(alpha) * (rounded(a) @ rounded(b)) + (beta * c if beta else 0)
            c[:] = product.astype(np.float32)

    assert failed(judged(kernel)) & {"drawn shapes", "values"}


def test_nothing_but_the_product_is_wrong_of_a_wrong_kernel(judged: Any) -> None:
    """Later trials are left out: what follows from a plain mistake would only hide it."""
    assert failed(judged(fake_gemm.zeros)) == {"drawn shapes"}


def test_a_fault_is_a_verdict(judged: Any, fake: Any) -> None:
    calls = []

    def kernel(launch: SimpleNamespace) -> None:
        exact(launch)
        calls.append(1)
        if len(calls) == 5:
            fake.sticky = 700

    found = judged(kernel)
    fake.sticky = 0
    fake.live.clear()  # what a lost context held
    assert "ends" in failed(found)
    assert "ILLEGAL_ADDRESS" in found["ends"].reason
