"""Several rounds on a fake GPU whose kernels take another time in each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from harness.bench import rounds, stats
from harness.bench.rounds import LEAST, Rounds
from harness.bench.row import ERROR, EXPECTED, FAILED, OK, UNEXPECTED, Measurement
from harness.bench.session import Bench
from harness.bench.stats import Interval
from harness.bench.stopping import StopRule
from harness.cli import main, running
from harness.cli.children.isolation import Outcome
from harness.driver import Context, Device, Stream
from harness.errors import ContextLost, HarnessError
from harness.kernels import catalog
from harness.launch import builds
from harness.launch.builds import Built
from harness.launch.fingerprint import Fingerprints
from harness.launch.operands import Operands
from harness.problems.gemm import Gemm
from harness.results import record
from harness.support.cache import Cache

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

        real_twin, self.of_twin = Operands.twin, False

        def counted(operands: Operands, *args: Any, **kwargs: Any) -> None:
            self.round += not self.of_twin
            real(operands, *args, **kwargs)
            if not self.of_twin:
                self.data.append(id(operands.reference))

        def twin(operands: Operands, stream: Stream) -> Operands:
            self.of_twin = True
            try:
                return real_twin(operands, stream)
            finally:
                self.of_twin = False

        monkeypatch.setattr(Operands, "__init__", counted)
        monkeypatch.setattr(Operands, "twin", twin)

    def __call__(self, launch: Any) -> None:
        factor = self.planted[self.round] if launch.block == BLOCK else 1.0
        self.fake.milliseconds = 1.5 * factor * float(np.exp(self.rng.normal(0, 0.001)))
        compute = self.execute.get(self.round, fake_gemm.gemm) if launch.block == BLOCK else fake_gemm.gemm
        compute(launch)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    return fake_gemm.gpu(monkeypatch)


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


def rows(
    context: Context, cache: Cache, count: int, *names: str, ref: str = "coalesced"
) -> Iterator[Measurement]:
    kernels = [built(cache, name) for name in names or ("tiled",)]
    baseline = built(cache, ref)
    with Bench(context, rule=RULE, regime="hot", baseline=baseline, rounds=count) as session:
        yield from session.rows(kernels, {Gemm: [{"N": 32}]}, lambda _: None)


@pytest.mark.slow
def test_the_interval_is_of_the_rounds(context: Context, cache: Cache, changing: Changing) -> None:
    """Their geometric mean lies within it, and what each came to is kept; the control is one round, whose
    interval knows nothing of the others.
    """
    truth = float(np.exp(np.log(PLANTED).mean()))
    reference, row = rows(context, cache, 5)
    assert row.status == OK and row.ratio is not None
    assert [p.ratio for p in row.rounds] == pytest.approx(PLANTED, rel=2e-3)
    assert [p.seconds / p.baseline_seconds for p in row.rounds] == pytest.approx(PLANTED, rel=2e-3)
    assert {(p.sm_hz, p.baseline_sm_hz) for p in row.rounds} == {(1.98e9, 1.98e9)}
    assert row.ratio.low < truth < row.ratio.high and row.ratio.estimate == pytest.approx(truth, rel=1e-3)
    half = 2.776 * np.log(PLANTED).std(ddof=1) / np.sqrt(5)
    assert row.ratio.half_width == pytest.approx(half, rel=0.05)
    assert re.fullmatch(r"from round to round 14\d\d\.\d\d to 15\d\d\.\d\d us", row.notes[-1])
    assert reference.baseline and len(reference.rounds) == 5 and reference.ratio is None
    assert len(changing.data) == 5 and len(set(changing.data)) == 1, "the data are made once"

    blocks = len(row.pair.order)
    assert blocks >= 5 * RULE.min_blocks and len(row.samples.batches) == 2 * blocks
    for samples, times in ((row.samples, [p.seconds for p in row.rounds]), (row.pair.baseline, [1.5e-3] * 5)):
        found = [float(np.median([b.median for b in part])) for part in np.array_split(samples.batches, 5)]
        assert found == pytest.approx(times, rel=5e-3), "of all rounds, in their order"

    changing.round = 0  # the next is PLANTED[1]
    _, row = rows(context, cache, 1)
    assert row.rounds == () and row.ratio.low > truth


@pytest.mark.slow
def test_of_rows_with_one_label_each_is_its_own(context: Context, cache: Cache, changing: Changing) -> None:
    """The baseline as a candidate beside itself; and two kernels of a name, from different files."""
    reference, row = rows(context, cache, 5, "coalesced")
    assert (reference.baseline, row.baseline) == (True, False) and reference.label == row.label
    assert len(reference.rounds) == len(row.rounds) == 5 and row.ratio is not None
    assert row.ratio.estimate == pytest.approx(1, abs=2e-3)
    changing.round = -1
    kernels = [built(cache, "tiled"), built(cache, "tiled")]
    with Bench(context, rule=RULE, regime="hot", rounds=5) as session:
        first, second = session.rows(kernels, {Gemm: [{"N": 32}]}, lambda _: None)
    assert first.label == second.label and len(first.rounds) == len(second.rounds) == 5


@pytest.mark.slow
def test_what_goes_wrong_in_one_round_is_not_lost(context: Context, cache: Cache, changing: Changing) -> None:
    """And it is not run again; the others go on."""
    changing.execute[2] = fake_gemm.zeros
    reference, row, other = rows(context, cache, 5, "tiled", "tiled_v4")
    assert (row.status, row.samples, row.ratio) == (FAILED, None, None)
    assert "first at [0,0]" in row.detail and changing.round == 4
    assert (other.status, len(other.rounds)) == (OK, 5)
    assert not any("only" in note for note in (*reference.notes, *other.notes))


@pytest.mark.parametrize("caught", [True, False])
def test_what_is_never_timed_has_one_round(
    context: Context, cache: Cache, changing: Changing, caught: bool
) -> None:
    changing.execute = dict.fromkeys(range(5), fake_gemm.zeros) if caught else {}
    reference, row = rows(context, cache, 5, "tiled_no_sync")
    assert row.status == (EXPECTED if caught else UNEXPECTED)
    assert changing.round == 0 and reference.notes[-1] == "1 of 5 rounds only"


class Broken(Exception):
    pass


@pytest.mark.parametrize("error", [ContextLost, KeyboardInterrupt, HarnessError, Broken])
def test_what_was_measured_before_it_ends_is_kept(
    context: Context, cache: Cache, changing: Changing, error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two rounds, and in the middle of one."""

    def fail(*_: Any) -> None:
        raise error("enough")

    with monkeypatch.context() as patch:
        patch.setattr("harness.bench.session.unsettle", fail)
        assert ended(context, cache, error) == [(OK, 1, "1 of 5 rounds only")] * 2
    changing.round = -1
    real = Operands.verdicts
    calls = []

    def verdicts(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return fail() if changing.round == 2 and error is not ContextLost else real(*args, **kwargs)

    monkeypatch.setattr(Operands, "verdicts", verdicts)
    if error is ContextLost:

        def fault(launch: Any) -> None:
            changing.fake.sticky = 700

        changing.execute[2] = fault
        found = ended(context, cache, error)
        assert [status for status, *_ in found] == [OK, ERROR]
    elif error is not HarnessError:  # that is a row's
        assert ended(context, cache, error) == [(OK, 2, "2 of 5 rounds only")] * 2


def ended(context: Context, cache: Cache, error: Any) -> list[tuple[str, int, str]]:
    seen: list[Measurement] = []
    with pytest.raises(error):
        for row in rows(context, cache, 5):
            seen.append(row)
    return [(r.status, len(r.rounds), r.notes[-1] if r.notes else "") for r in seen]


def test_numbers_in_notes_are_of_all_rounds(context: Context, cache: Cache, changing: Changing) -> None:
    _, row = rows(context, cache, 1)
    clocks = iter((1.60e9, 1.70e9, 1.70e9, 1.98e9, 1.98e9))
    together = Rounds(5)
    for discarded in (9, 0, 1, 0, 0):
        hz = next(clocks)
        samples = replace(row.samples, discarded=("too slow",) * discarded)
        batches = tuple(replace(b, sm_hz=hz) for b in row.pair.candidate.batches)
        pair = replace(row.pair, candidate=replace(row.pair.candidate, batches=batches))
        notes = ("it is late", *samples.remarks, *pair.remarks(row.against))
        together.add(replace(row, samples=samples, pair=pair, notes=notes))
    (merged,) = together.merged()
    batches = 5 * len(row.samples.batches) + 10
    assert merged.notes == (
        "it is late",
        f"10 of {batches} batches discarded, the last for: too slow",
        f"the SM clock was 1700 MHz in its turns, 1980 MHz in {row.against}'s",
    )


@pytest.mark.parametrize(("side", "text"), [(0, "15.00 to 15.30 us"), (1, "{} 15.00 to 15.30 us")])
def test_rounds_that_differ_are_said_to(
    context: Context, cache: Cache, changing: Changing, side: int, text: str
) -> None:
    _, row = rows(context, cache, 1)

    def scaled(samples: Any, seconds: float) -> Any:
        return replace(samples, batches=tuple(replace(b, times=(seconds,)) for b in samples.batches))

    together = Rounds(5)
    for own in (15.0e-6, 15.3e-6, 15.1e-6, 15.1e-6, 15.1e-6):
        times = (own, 15e-6) if side == 0 else (15e-6, own)
        a, b = scaled(row.pair.candidate, times[0]), scaled(row.pair.baseline, times[1])
        together.add(replace(row, samples=a, pair=replace(row.pair, candidate=a, baseline=b)))
    (merged,) = together.merged()
    assert merged.notes[-1] == "from round to round " + text.format(row.against)


def test_the_worst_verdict_is_the_rows(context: Context, cache: Cache, changing: Changing) -> None:
    _, row = rows(context, cache, 1)
    together = Rounds(5)
    for worst in (0.1, 0.7, 0.3, 0.2, 0.1):
        verdict = replace(row.before, worst=worst)
        together.add(replace(row, before=verdict, after=replace(verdict, worst=worst / 2)))
    (merged,) = together.merged()
    assert (merged.before.worst, merged.after.worst) == (0.7, 0.35)


def test_memory_is_taken_between_rounds_and_given_back(
    context: Context, cache: Cache, changing: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []
    real = rounds.unsettle

    def seen(context: Context, stream: Stream, owned: ExitStack, rng: Any) -> None:
        before = {at for kind, at in changing.fake.live if kind == "memory"}
        real(context, stream, owned, rng)
        taken.append({at for kind, at in changing.fake.live if kind == "memory"} - before)

    monkeypatch.setattr("harness.bench.session.unsettle", seen)
    with Bench(context, rule=RULE, regime="hot", rounds=5) as session:
        before = {at for kind, at in changing.fake.live if kind == "memory"}
        list(session.rows([built(cache, "tiled")], {Gemm: [{"N": 32}]}, lambda _: None))
        assert {at for kind, at in changing.fake.live if kind == "memory"} == before
    assert [len(memory) for memory in taken] == [1] * 4


def test_a_kernel_is_launched_for_the_first_time_between_some_rounds(
    context: Context, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []
    real = Fingerprints.of
    monkeypatch.setattr(Fingerprints, "of", lambda *args: launched.append(args[0]) or real(*args))
    with ExitStack() as owned, Stream(context) as stream:
        found = {seed: [] for seed in (1, 2)}
        for seed, so_far in found.items():
            launched.clear()
            rng = np.random.default_rng(seed)
            for _ in range(20):
                rounds.unsettle(context, stream, owned, rng)
                so_far.append(len(launched))
            assert set(np.diff(so_far)) == {0, 1} and len({id(f) for f in launched}) == len(launched)
        assert found[1] != found[2] and not [kind for kind, _ in fake.live if kind == "module"]


def test_without_room_it_goes_on(context: Context, fake: Any) -> None:
    with ExitStack() as owned, Stream(context) as stream:
        fake.fail("cuMemAlloc", 2)
        rounds.unsettle(context, stream, owned, np.random.default_rng(1))
        assert not [kind for kind, _ in fake.live if kind == "memory"]


def known(*ratios: float, within: float = 0.0) -> list[Interval]:
    return [Interval(low=r / (1 + within), estimate=r, high=r * (1 + within)) for r in ratios]


def test_pooled_ratio() -> None:
    found = stats.pooled_ratio(known(*np.exp([-0.01, 0.0, 0.01])))
    assert found is not None and found.estimate == pytest.approx(1)
    assert np.log([found.high, 1 / found.low]) == pytest.approx([4.3027 * 0.01 / 3**0.5] * 2, rel=1e-4)
    assert stats.pooled_ratio(known(1.0)) is None
    agreed = stats.pooled_ratio(known(1.5, 1.5, 1.5, within=0.02))
    assert agreed is not None and (agreed.low, agreed.high) == pytest.approx((1.5 / 1.02, 1.5 * 1.02))


@pytest.mark.parametrize(("count", "least"), [(LEAST, 0.93), (8, 0.93), (20, 0.93), (3, 0.6), (2, 0.4)])
def test_the_interval_holds_where_times_have_two_modes(count: int, least: float) -> None:
    """Fewer rounds than LEAST are the control: they are in one mode too often."""
    rng = np.random.default_rng(1)
    truth = float(np.exp(0.015))
    logs = rng.integers(2, size=(1_000, count)) * 0.03 + rng.normal(0, 0.001, (1_000, count))
    found = [stats.pooled_ratio(known(*np.exp(case), within=0.002)) for case in logs]
    held = float(np.mean([i.low <= truth <= i.high for i in found if i]))
    assert held >= least and (count >= LEAST or held < 0.8)


# ---- the command -----------------------------------------------------------------------------------

FAST = ("--min-time", "0.01", "--timeout", "0.02", "--regime", "hot")


@pytest.mark.slow
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
    assert set(row["rounds"][0]) == {"seconds", "sm_hz", "baseline_seconds", "baseline_sm_hz", "ratio"}
    assert "1 set of operands, 0 MB), 5 rounds" in text


@pytest.mark.parametrize("count", ["0", "2", "4", "21", "1.5"])
def test_rounds_that_make_no_sense(changing: Changing, count: str) -> None:
    result = CliRunner().invoke(main, ["bench", "tiled", "-a", "N=32", "--rounds", count])
    assert result.exit_code == 2 and "--rounds" in result.stderr


def test_a_child_is_told(changing: Changing, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[str]] = []

    def run_child(command: list[str], timeout: float) -> Outcome:
        told.append(command)
        return Outcome(rows=(), about={}, error="not now")

    monkeypatch.setattr("harness.cli.children.isolation.run_child", run_child)
    CliRunner().invoke(main, ["bench", "tiled", "-a", "N=32", "--isolate", "--rounds", "6"])
    assert "--rounds=6" in told[0]


def test_without_a_gpu_there_are_no_rounds(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    args = ["bench", "tiled", "-a", "N=16", "-d", "emulator", "--rounds", "5", "--json", str(path)]
    assert CliRunner().invoke(main, args).exit_code == 0
    assert record.load(path)["meta"]["rounds"] == 1


def test_the_bar_counts_the_rounds() -> None:
    variants, points = [catalog.kernel("tiled").variant()], {Gemm: [{"N": 16}, {"N": 32}]}
    assert running.steps(variants, points) == 1 + 2 + 2 * 2
    assert running.steps(variants, points, 5) == 1 + 5 * (2 + 2 * 2)
