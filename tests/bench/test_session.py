"""The whole way from kernels to rows on a fake GPU, whose kernels are NumPy (fake_gemm.py)."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from harness.bench import measure
from harness.bench.row import (
    COLD,
    ERROR,
    EXPECTED,
    FAILED,
    GRAPH,
    IMPOSSIBLE,
    OK,
    UNEXPECTED,
    Measurement,
)
from harness.bench.session import Bench
from harness.bench.stopping import StopRule
from harness.bench.timing import Batch, EventTimer, Work
from harness.driver import Context, Device, Stream
from harness.errors import ContextLost, HarnessError, OutOfMemory, UsageError
from harness.kernels import catalog, spec
from harness.kernels.spec import Variant
from harness.launch import builds
from harness.launch import kernel as launch
from harness.launch.builds import Built
from harness.launch.operands import Operands, rotation_sets
from harness.problems.copy import Copy
from harness.problems.gemm import Gemm, GemmBf16
from harness.problems.registry import resolve
from harness.support.cache import Cache

RULE = StopRule(min_time=0.01, warmup=0.01, max_samples=600, min_blocks=3)
FEW = StopRule(min_time=0, warmup=1e-6, settle=1e-6, max_samples=100)  # where a run is work for the host


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    fake = fake_driver.install(monkeypatch)
    fake.functions = {"matmul": fake_gemm.SIZES}
    fake.execute = fake_gemm.gemm
    fake_gemm.few_launches(monkeypatch)
    return fake


@pytest.fixture
def context(fake: fake_driver.FakeDriver) -> Iterator[Context]:
    with Context(Device.open()) as context:
        yield context


def built(cache: Cache, *names: str) -> list[Built]:
    variants = [catalog.find(name)[0].variant() for name in names]
    return builds.build_all(variants, ["sm_90a"], cache, lambda _: None)[0]


def rows(
    context: Context, kernels: list[Built], *points: dict[str, Any], rule: StopRule | None = RULE
) -> list[Any]:
    with Bench(context, rule=rule) as session:
        return list(session.rows(kernels, {Gemm: points}, lambda _: None))


def one(context: Context, cache: Cache, kernel: str = "tiled", **axes: Any) -> Measurement:
    (row,) = rows(context, built(cache, kernel), {"N": 32, **axes})
    return row


def test_a_right_kernel_gets_a_time(context: Context, cache: Cache) -> None:
    row = one(context, cache)
    assert row.status == OK and row.before.ok and row.after.ok
    assert row.seconds == pytest.approx(1.5e-3)
    assert row.flops_rate == pytest.approx(2 * 32**3 / 1.5e-3)
    assert row.samples.stopped == "noise reached"
    assert row.samples.sm_hz == pytest.approx(1.98e9)
    assert row.samples.cycles == pytest.approx(1.5e-3 * 1.98e9)


@pytest.mark.parametrize("kernel", [fake_gemm.no_write, fake_gemm.zeros])
def test_a_wrong_kernel_gets_none(context: Context, cache: Cache, fake: Any, kernel: Any) -> None:
    fake.execute = kernel
    row = one(context, cache)
    assert (row.status, row.samples, row.seconds, row.flops_rate) == (FAILED, None, None, None)
    assert row.failed and "first at [0,0]" in row.detail


def test_the_outputs_of_the_timed_runs_are_verified(context: Context, cache: Cache, fake: Any) -> None:
    """Right while it is checked, wrong while it is timed."""
    fake.execute = fake_gemm.WrongLater(good=20)
    row = one(context, cache)
    assert row.before.ok
    assert (row.status, row.samples) == (FAILED, None)
    assert "on new data" in row.detail and "row 31" in row.detail


def test_accumulating_kernels_are_checked_afresh(context: Context, cache: Cache) -> None:
    """With beta every timed launch gets a C of its own, and is verified like any other."""
    row = one(context, cache, beta=0.5)
    assert row.status == OK and row.after.ok


@pytest.mark.slow
def test_faster_than_the_hardware_is_refused(context: Context, cache: Cache, fake: Any) -> None:
    fake.milliseconds = 1e-7
    (row,) = rows(context, built(cache, "tiled"), {"N": 32}, rule=FEW)
    assert row.status == IMPOSSIBLE and row.failed


@pytest.mark.parametrize(
    ("share", "baseline", "status"), [(0.015, False, OK), (0.9, False, IMPOSSIBLE), (0.9, True, OK)]
)
def test_a_launch_that_works_for_others_is_refused(
    context: Context,
    cache: Cache,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    baseline: bool,
    status: str,
) -> None:
    """The first launch of each batch takes `share` of its time: the others find their results done.

    Where a baseline's launches do so, too, it is the machine.
    """
    measured = EventTimer.batch

    def batch(timer: EventTimer, work: Work, count: int) -> Batch:
        found = measured(timer, work, count)
        total = sum(found.times)
        rest = (1 - share) * total / max(1, count - 1)
        return replace(found, times=(share * total, *[rest] * (count - 1)))

    monkeypatch.setattr(EventTimer, "batch", batch)
    against = Library(built(cache, "coalesced")[0]) if baseline else None
    with Bench(context, rule=replace(FEW, turn=0.02), baseline=against) as session:
        *_, row = session.rows(built(cache, "tiled"), {Gemm: [{"N": 32}]}, lambda _: None)
    assert row.status == status, row.detail
    assert any("does something else use the GPU" in note for note in row.notes) is baseline
    if status == IMPOSSIBLE:
        assert row.samples is None and "some do the work of others" in " ".join(row.detail.split())


@dataclass(frozen=True)
class Library:
    """A kernel of which nothing is known but what it computes, as of cuBLAS."""

    kernel: Built
    label: str = "library"
    built: None = None

    def serves(self, problem: Any) -> bool:
        return self.kernel.serves(problem)

    def prepare(self, operands: Operands) -> Any:
        return self.kernel.prepare(operands)


def test_broken_kernels_are_never_timed(context: Context, cache: Cache, fake: Any) -> None:
    row = one(context, cache, "tiled_no_sync")  # the fake computes it right: the race did not show
    assert (row.status, row.samples, row.failed) == (UNEXPECTED, None, False)
    fake.execute = fake_gemm.zeros
    row = one(context, cache, "tiled_no_sync")
    assert (row.status, row.samples, row.failed) == (EXPECTED, None, False)


def test_alone_or_in_turn(context: Context, cache: Cache, fake: Any) -> None:
    """With `alone` the baseline has its row, and no kernel is timed beside it."""
    (baseline,) = built(cache, "coalesced")
    for alone in (False, True):
        fake.launches.clear()
        with Bench(context, rule=RULE, baseline=baseline, alone=alone) as session:
            first, row = session.rows(built(cache, "tiled"), {Gemm: [{"N": 32}]}, lambda _: None)
        assert first.baseline and first.seconds and row.seconds and not row.baseline
        assert (row.pair is None, row.ratio is None) == (alone, alone)
        order = [run.block for run in fake.launches]
        changes = sum(a != b for a, b in itertools.pairwise(order))
        assert (changes == 1) is alone


def test_verify_only(context: Context, cache: Cache, fake: Any) -> None:
    (row,) = rows(context, built(cache, "tiled"), {"N": 16}, rule=None)
    assert (row.status, row.samples, len(fake.launches)) == (OK, None, 1)


def test_rows_come_by_size_then_kernel(context: Context, cache: Cache) -> None:
    found = rows(context, built(cache, "coalesced", "tiled"), {"N": 16}, {"N": 32})
    assert [(r.label.split()[0], r.problem.label) for r in found] == [
        ("02_coalesced", "16"), ("03_tiled", "16"), ("02_coalesced", "32"), ("03_tiled", "32"),
    ]  # fmt: skip


def test_grid_covers_ragged_output(context: Context, cache: Cache, fake: Any) -> None:
    one(context, cache, "naive", M=33, N=65, K=3)
    assert fake.launches[-1].grid == (3, 2, 1) and fake.launches[-1].block == (32, 32, 1)


def test_a_grid_beyond_the_tiles(context: Context, cache: Cache, fake: Any, kernel_file: Any) -> None:
    """The front matter's `grid` decides, from the tiles and the GPU's multiprocessors."""
    variant = spec.load(kernel_file(extra='grid = ["TILES_X * TILES_Y", 1, "SMS"]')).variant()
    kernels, _ = builds.build_all([variant], ["sm_90a"], cache, lambda _: None)
    (row,) = rows(context, kernels, {"M": 33, "N": 65, "K": 3}, rule=None)
    tiles = launch.grid(variant, row.problem)[0]
    assert tiles > 1 and fake.launches[-1].grid == (tiles, 1, 132)


def test_a_kernel_that_cannot_launch_leaves_the_others(context: Context, cache: Cache, fake: Any) -> None:
    fake.fail("cuLaunchKernelEx", 701)
    first, second = rows(context, built(cache, "coalesced", "tiled"), {"N": 16})
    assert (first.status, second.status) == (ERROR, OK)
    assert "LAUNCH_OUT_OF_RESOURCES" in first.detail and first.failed


def test_a_fault_keeps_the_rows_before_it(context: Context, cache: Cache, fake: Any) -> None:
    def fault_later(run: Any) -> None:
        fake_gemm.gemm(run)
        if len(fake.launches) > first_kernel:
            fake.sticky = 700

    one(context, cache)
    first_kernel = 2 * len(fake.launches)
    fake.launches.clear()
    fake.execute = fault_later
    seen = []
    with pytest.raises(ContextLost, match="700"), Bench(context, rule=RULE) as session:
        for row in session.rows(
            built(cache, "tiled", "coalesced", "tiled_v4"), {Gemm: [{"N": 32}]}, lambda _: None
        ):
            seen.append(row)
    assert seen[0].status == OK and len(seen) in (2, 3)
    assert seen[-1].status == ERROR and "context is lost" in seen[-1].detail
    assert context.lost


def test_out_of_memory_comes_before_any_allocation(context: Context, cache: Cache, fake: Any) -> None:
    small, large = rows(context, built(cache, "tiled"), {"N": 16}, {"N": 2**19})
    assert (small.status, large.status) == (OK, ERROR)  # the small row is kept
    assert "524288 needs 3072.00 GiB of device memory, 1.00 GiB is free" in large.detail
    assert not any(kind == "memory" for kind, _ in fake.live)


def test_a_kernel_that_stops_working_when_its_output_is_filled(
    context: Context, cache: Cache, fake: Any
) -> None:
    """Right while it is verified; then it sees no NaN and skips the work."""

    def lazy(run: Any) -> None:
        if np.isnan(fake_gemm.parameters(run)[2]).any():
            fake_gemm.gemm(run)

    fake.execute = lazy
    row = one(context, cache)
    assert (row.status, row.samples) == (FAILED, None) and "on new data" in row.detail


def test_a_kernel_that_overwrites_its_input_is_the_one_that_fails(
    context: Context, cache: Cache, fake: Any
) -> None:
    def vandal(run: Any) -> None:
        fake_gemm.gemm(run)
        if run.block == (32, 32, 1):  # 02_coalesced
            fake_gemm.parameters(run)[0][0, 0] = 7

    fake.execute = vandal
    first, second = rows(context, built(cache, "coalesced", "tiled"), {"N": 16})
    assert first.status == FAILED and "overwrote its input A" in first.detail
    assert second.status == OK


@pytest.mark.exhaustive
def test_a_bandwidth_above_the_cards_is_refused(context: Context, cache: Cache, fake: Any) -> None:
    fake.functions["copy"] = (8, 8, 8)
    fake.total_memory = 1 << 31

    def copy(run: Any) -> None:
        source, target, n = (int.from_bytes(a, "little") for a in run.args)
        ctypes.memmove(target, source, 4 * n)

    fake.execute, fake.milliseconds = copy, 0.02
    with Bench(context, rule=FEW) as session:
        (row,) = session.rows(built(cache, "copy"), {Copy: [{"N": 2**25}]}, lambda _: None)
    assert (row.status, row.samples) == (IMPOSSIBLE, None), row.detail
    assert "above this card's rated peak" in row.detail


def test_users_problems_are_verified(
    context: Context, cache: Cache, fake: Any, tmp_path: Any, kernel_file: Any
) -> None:
    """Each call of `resolve` must give the same class, or no row would belong to any problem."""
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from harness.problems.gemm import Gemm\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(Gemm):\n"
        "    def reference(self, inputs):\n"
        "        if self.N == 24: raise ValueError('not this one')\n"
        "        return super().reference(inputs)\n"
    )
    variant = catalog.kernel(str(kernel_file(extra='problem = "mine.py:Mine"'))).variant()
    kernels, _ = builds.build_all([variant], ["sm_90a"], cache, lambda _: None)
    cls = resolve(variant.kernel)
    with Bench(context, rule=None) as session:
        right, broken = session.rows(kernels, {cls: [{"N": 16}, {"N": 24}]}, lambda _: None)
    assert right.status == OK
    assert (
        broken.status == ERROR
        and "problem Mine, line 7 of mine.py: ValueError: not this one" in broken.detail
    )


def test_after_an_error_the_next_kernel_is_not_blamed(context: Context, cache: Cache, fake: Any) -> None:
    def vandal(run: Any) -> None:
        fake_gemm.gemm(run)
        if run.block == (32, 32, 1) and len(fake.launches) == 5:
            # 02_coalesced damages A while it is timed, and then cannot be launched again
            fake_gemm.parameters(run)[0][0, 0] = 7
            fake.fail("cuLaunchKernelEx", 701)

    fake.execute = vandal
    first, second = rows(context, built(cache, "coalesced", "tiled"), {"N": 16})
    assert (first.status, second.status) == (ERROR, OK)


def test_a_card_above_its_rated_clock_is_believed(context: Context, cache: Cache, fake: Any) -> None:
    fake.milliseconds = 1e3 * 2 * 64**3 / (1.05 * context.device.peak_fp32)
    (row,) = rows(context, built(cache, "tiled"), {"N": 64}, rule=FEW)
    assert row.status == OK


@pytest.mark.slow
@pytest.mark.parametrize("member", ["flops", "bytes", "buffer_bytes", "arguments"])
def test_a_problem_that_raises_costs_its_rows_only(
    context: Context, cache: Cache, fake: Any, tmp_path: Any, kernel_file: Any, member: str
) -> None:
    decorator = "" if member == "arguments" else "    @property\n"
    (tmp_path / "mine.py").write_text(
        "from harness.problems.gemm import Gemm\nclass Mine(Gemm):\n"
        f"{decorator}    def {member}(self):\n        raise ValueError('no {member}')\n"
    )
    variant = catalog.kernel(str(kernel_file(extra='problem = "mine.py:Mine"'))).variant()
    kernels, _ = builds.build_all([variant], ["sm_90a"], cache, lambda _: None)
    with Bench(context, rule=RULE) as session:
        (row,) = session.rows(kernels, {resolve(variant.kernel): [{"N": 16}]}, lambda _: None)
    assert row.status == ERROR and f"no {member}" in row.detail


def test_closing_never_hides_the_users_error(context: Context, fake: Any) -> None:
    with (
        pytest.raises(ValueError, match="mine") as caught,
        Stream(context) as stream,
        Operands(context, Gemm(M=8, N=8, K=8), stream, seed=1, sets=1),
    ):
        fake.fail("cuMemFree", 1)
        raise ValueError("mine")
    assert "closing the Operands failed too" in caught.value.__notes__[0]


def test_inputs_that_the_host_cannot_hold(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gemm, "reference", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with Stream(context) as stream, pytest.raises(OutOfMemory, match="host memory"):
        Operands(context, Gemm(M=8, N=8, K=8), stream, seed=1, sets=1)


def test_a_grid_too_large_is_named(cache: Cache) -> None:
    variant = catalog.find("tiled")[0].variant(TILE=8)
    with pytest.raises(UsageError, match="grid of 1 x 65536 x 1"):
        launch.grid(variant, Gemm(M=8 * 65536, N=8, K=1))


def test_no_inputs_are_made_for_a_grid_that_cannot_be(context: Context, cache: Cache, fake: Any) -> None:
    """A hundred million rows would take minutes to fill before the launch is refused."""
    row = one(context, cache, M=10**8)
    assert row.status == ERROR and row.failed and "grid of" in row.detail
    assert "cuMemAlloc" not in fake.names() and not fake.launches


def test_a_batch_has_as_many_sets_as_launches(context: Context, fake: Any) -> None:
    assert rotation_sets(context, Gemm(M=64, N=64, K=64), most=100) == 100
    quarter = rotation_sets(context, Gemm(M=1024, N=1024, K=1024), most=100)
    assert quarter == 2**28 // (12 * 2**20 + 11 * 2 * 4096)
    assert rotation_sets(context, Gemm(M=7000, N=7000, K=7000), most=100) == 1


def test_as_many_launches_are_planned_as_the_fastest_kernel_could_make(context: Context) -> None:
    device, rule = context.device, StopRule()

    def planned(problem: Any, regime: str = COLD) -> int:
        return measure.launches(problem, device, measure.Method(rule=rule, regime=regime))

    assert planned(Gemm(M=1, N=1, K=1)) == 100 and planned(Gemm(M=1, N=1, K=1), GRAPH) == 1024
    n = 8192
    fastest = 2 * n**3 / (1.5 * device.peak_fp32)
    assert planned(Gemm(M=n, N=n, K=n)) == math.ceil(0.02 / fastest)
    assert planned(GemmBf16(M=n, N=n, K=n)) == math.ceil(0.02 / (fastest / 16))
    assert planned(Copy(N=2**30)) == math.ceil(0.02 / (2**33 / (1.5 * device.peak_bandwidth)))


def test_sets_hold_the_same_data_elsewhere(context: Context, fake: Any, cache: Cache) -> None:
    with (
        Stream(context) as stream,
        Operands(context, Gemm(M=8, N=8, K=8), stream, seed=1, sets=3) as operands,
    ):
        (kernel,) = built(cache, "tiled")
        with launch.prepare(kernel.cubin, operands) as run:
            verdict = measure.check(run, stream, sets=3)
            assert verdict.ok and run.sets == 3
        outputs = {bytes(launch_.args[2]) for launch_ in fake.launches}
        assert len(outputs) == 3
        operands.fill_output(stream)
        assert all(np.isnan(out).all() for out in operands.outputs(stream))  # poisoned again, all of them


def test_nothing_stays_allocated(cache: Cache, fake: Any) -> None:
    with Context(Device.open()) as context:
        rows(context, built(cache, "tiled", "coalesced"), {"N": 16}, {"N": 24, "beta": 1})
        assert not [kind for kind, _ in fake.live if kind not in ("context",)]
    assert not fake.live


def test_build_failures_are_skips_with_a_reason(cache: Cache, kernel_file: Any) -> None:
    good = catalog.find("tiled")[0].variant()
    bad = catalog.find(str(kernel_file("bad.cu", body="syntax error")))[0].variant()
    high = catalog.find(str(kernel_file("high.cu", extra='min_arch = "sm_100a"')))[0].variant()

    def build(*variants: Variant) -> Any:
        return builds.build_all(variants, ["sm_90a"], cache, lambda _: None)

    done, skipped = build(bad, good, high)
    assert [b.variant for b in done] == [good]
    assert [(s.variant, s.failed) for s in skipped] == [(bad, True), (high, False)]
    with pytest.raises(HarnessError, match="needs sm_100a"):
        build(high)
