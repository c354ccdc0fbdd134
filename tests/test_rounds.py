"""Several rounds on a fake GPU whose kernels take another time in each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fake_driver
import fake_gemm
import numpy as np
import pytest
from click.testing import CliRunner

from harness import builds, catalog, measure, record, rounds, stats
from harness.bench import Bench
from harness.builds import Built
from harness.cache import Cache
from harness.cli import children, main
from harness.driver import Context, Device, Stream
from harness.errors import ContextLost, HarnessError
from harness.fingerprint import Fingerprints
from harness.gemm import Gemm
from harness.measure import Measurement
from harness.operands import Operands
from harness.stopping import StopRule

RULE = StopRule(min_time=0.01, warmup=0.01, settle=0.01, max_samples=100, min_blocks=6)
BLOCK = (16, 16, 1)  # of 03_tiled; 02_coalesced has 32 x 32
PLANTED = (1.00, 1.04, 0.98, 1.02, 0.96)


class Changing:
    """The kernel takes 1.5 ms times what is planted for the round, its baseline 1.5 ms."""

    def __init__(self, fake: Any, monkeypatch: pytest.MonkeyPatch, planted: Sequence[float]) -> None:
        self.fake, self.planted, self.round = fake, planted, -1
        self.rng = np.random.default_rng(3)
        self.execute: dict[int, Any] = {}
        self.data: list[int] = []
        real = Operands.__init__

        def counted(operands: Operands, *args: Any, **kwargs: Any) -> None:
            self.round += 1
            real(operands, *args, **kwargs)
            self.data.append(id(operands.reference))

        monkeypatch.setattr(Operands, "__init__", counted)

    def __call__(self, launch: Any) -> None:
        factor = self.planted[self.round] if launch.block == BLOCK else 1.0
        self.fake.milliseconds = 1.5 * factor * float(np.exp(self.rng.normal(0, 0.001)))
        compute = self.execute.get(self.round, fake_gemm.gemm) if launch.block == BLOCK else fake_gemm.gemm
        compute(launch)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    fake = fake_driver.install(monkeypatch)
    fake.functions = {"matmul": fake_gemm.SIZES}
    no_ceilings = HarnessError("a fake GPU has none")
    monkeypatch.setattr("harness.ceilings.measured", lambda *_: (_ for _ in ()).throw(no_ceilings))
    return fake


@pytest.fixture
def changing(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Changing:
    fake.execute = Changing(fake, monkeypatch, PLANTED)
    return fake.execute


@pytest.fixture
def context(fake: Any) -> Iterator[Context]:
    with Context(Device.open()) as context:
        yield context


def built(cache: Cache, name: str) -> Built:
    return builds.build_all([catalog.kernel(name).variant()], ["sm_90a"], cache, lambda _: None)[0][0]


def rows(context: Context, cache: Cache, count: int, **options: Any) -> Iterator[Measurement]:
    baseline = built(cache, "coalesced")
    with Bench(context, rule=RULE, regime="hot", baseline=baseline, rounds=count, **options) as session:
        yield from session.rows([built(cache, "tiled")], {Gemm: [{"N": 32}]}, lambda _: None)


def test_the_interval_is_of_the_rounds(context: Context, cache: Cache, changing: Changing) -> None:
    """Their geometric mean lies within it, and what each came to is kept; the control is one round, whose
    interval knows nothing of the others.
    """
    truth = float(np.exp(np.log(PLANTED).mean()))
    reference, row = rows(context, cache, 5)
    assert row.status == measure.OK and row.ratio is not None
    assert [p.ratio for p in row.rounds] == pytest.approx(PLANTED, rel=2e-3)
    assert [p.seconds / p.baseline for p in row.rounds] == pytest.approx(PLANTED, rel=2e-3)
    assert row.ratio.low < truth < row.ratio.high and row.ratio.estimate == pytest.approx(truth, rel=1e-3)
    half = 2.776 * np.log(PLANTED).std(ddof=1) / np.sqrt(5)
    assert row.ratio.half_width == pytest.approx(half, rel=0.05)
    assert re.fullmatch(r"from round to round 14\d\d\.\d\d to 15\d\d\.\d\d us", row.notes[-1])
    assert row.samples.summary.samples == sum(len(b.times) for b in row.samples.batches)
    assert len(row.pair.order) >= 5 * RULE.min_blocks
    assert reference.baseline and len(reference.rounds) == 5 and reference.ratio is None
    assert len(changing.data) == 5 and len(set(changing.data)) == 1, "the data are made once"

    changing.round = 0  # the next is PLANTED[1]
    _, row = rows(context, cache, 1)
    assert row.rounds == () and row.ratio.low > truth


def test_what_goes_wrong_in_one_round_is_not_lost(context: Context, cache: Cache, changing: Changing) -> None:
    changing.execute[2] = fake_gemm.zeros
    _, row = rows(context, cache, 4)
    assert (row.status, row.samples, row.ratio) == (measure.FAILED, None, None)
    assert "first at [0,0]" in row.detail


def test_a_fault_ends_it_and_keeps_what_was_measured(
    context: Context, cache: Cache, changing: Changing
) -> None:
    def fault(launch: Any) -> None:
        changing.fake.sticky = 700

    changing.execute[1] = fault
    seen: list[Measurement] = []
    with pytest.raises(ContextLost):
        for row in rows(context, cache, 4):
            seen.append(row)
    assert [(r.status, len(r.rounds)) for r in seen] == [(measure.OK, 2), (measure.ERROR, 0)]
    assert "context is lost" in seen[-1].detail


def test_ctrl_c_keeps_what_was_measured(context: Context, cache: Cache, changing: Changing) -> None:
    def interrupt(launch: Any) -> None:
        raise KeyboardInterrupt

    changing.execute[1] = interrupt
    seen: list[Measurement] = []
    with pytest.raises(KeyboardInterrupt):
        for row in rows(context, cache, 4):
            seen.append(row)
    assert [(r.status, len(r.rounds)) for r in seen] == [(measure.OK, 2), (measure.OK, 0)]


def test_memory_is_taken_between_rounds_and_given_back(context: Context, cache: Cache, fake: Any) -> None:
    held = []

    def seen(launch: Any) -> None:
        held.append({at for kind, at in fake.live if kind == "memory"})
        fake_gemm.gemm(launch)

    fake.execute = seen
    with Bench(context, rule=None, rounds=3) as session:
        before = {at for kind, at in fake.live if kind == "memory"}
        assert len(list(session.rows([built(cache, "tiled")], {Gemm: [{"N": 32}]}, lambda _: None))) == 1
        first, second, third = held
        assert len(second) == len(first) + 1 and len(third) == len(first) + 2
        assert {at for kind, at in fake.live if kind == "memory"} == before


def test_a_kernel_is_launched_for_the_first_time_between_some_rounds(
    context: Context, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []
    real = Fingerprints.of
    monkeypatch.setattr(Fingerprints, "of", lambda *args: launched.append(args[0]) or real(*args))
    with ExitStack() as owned, Stream(context) as stream:
        so_far = [len(launched) for _ in rounds.unsettled(context, stream, 20, owned, seed=1)]
        steps = set(np.diff(so_far))
        assert so_far[0] == 0 and steps == {0, 1} and len({id(f) for f in launched}) == len(launched)
        assert len([k for k, _ in fake.live if k == "memory"]) == 19 and not [
            k for k, _ in fake.live if k == "module"
        ]


def test_without_room_it_goes_on(context: Context, fake: Any) -> None:
    with ExitStack() as owned, Stream(context) as stream:
        found = rounds.unsettled(context, stream, 3, owned, seed=1)
        assert next(found) == 0
        fake.fail("cuMemAlloc", 2)
        assert list(found) == [1, 2] and len([k for k, _ in fake.live if k == "memory"]) == 1


def test_pooled_ratio() -> None:
    found = stats.pooled_ratio(np.exp([-0.01, 0.0, 0.01]))
    assert found is not None and found.estimate == pytest.approx(1)
    assert np.log([found.high, 1 / found.low]) == pytest.approx([4.3027 * 0.01 / 3**0.5] * 2, rel=1e-4)
    assert stats.pooled_ratio([1.0]) is None
    rng = np.random.default_rng(1)
    found = [stats.pooled_ratio(np.exp(rng.normal(0.02, 0.01, 4))) for _ in range(2_000)]
    assert 0.94 < np.mean([i.low < np.exp(0.02) < i.high for i in found if i]) < 0.96


# ---- the command -----------------------------------------------------------------------------------

FAST = ("--min-time", "0.01", "--timeout", "0.02", "--regime", "hot")


def test_bench_with_rounds(changing: Changing, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    args = ("bench", "tiled", "--ref", "coalesced", "-a", "N=32", *FAST, "--rounds", "5")
    result = CliRunner().invoke(main, [*args, "--json", str(path)])
    assert result.exit_code == 3, result.output  # INCONCLUSIVE: by rounds it wins or loses
    text = " ".join(result.stdout.split())
    assert "INCONCLUSIVE" in text and "* from round to round 14" in text
    content = record.load(path)
    assert content["meta"]["rounds"] == 5
    _, row = content["rows"]
    assert [p["ratio"] for p in row["rounds"]] == pytest.approx(PLANTED, rel=3e-3)
    assert set(row["rounds"][0]) == {"seconds", "baseline", "ratio"}


@pytest.mark.parametrize("count", ["0", "21", "1.5"])
def test_rounds_that_make_no_sense(changing: Changing, count: str) -> None:
    result = CliRunner().invoke(main, ["bench", "tiled", "-a", "N=32", "--rounds", count])
    assert result.exit_code == 2 and "--rounds" in result.stderr


def test_a_child_is_told() -> None:
    assert "rounds" in children._FORWARDED
