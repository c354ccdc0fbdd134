"""Tuning on a fake GPU whose kernels have planted speeds: who wins, who is dropped, what is kept."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fake_driver
import fake_gemm
import numpy as np
import pytest
from click.testing import CliRunner, Result
from conftest import BODY, KERNEL

from harness import builds, halving, pruning, record, spec, t4
from harness.ahead import Ahead
from harness.bench import Bench
from harness.builds import Built
from harness.cache import Cache, default_root
from harness.cli import main, supervise, tuned
from harness.driver import Context, Device, api
from harness.errors import ContextLost, HarnessError, NoDriver, UsageError
from harness.gemm import Gemm
from harness.journal import Journal
from harness.operands import Data
from harness.plan import Plan
from harness.stats import Interval
from harness.stopping import StopRule
from harness.tune import Result as Tuned
from harness.tune import Tuner

RULE = StopRule(min_time=0.01, warmup=0.01, settle=0.01, max_samples=100, min_blocks=12)
TILES = (2, 3, 4, 5, 6, 7, 8, 9)
N = Gemm(M=24, N=24, K=24)


class Speeds:
    """Kernels of `milliseconds` by TILE (blockDim.x), each batch off by `noise`; `execute` computes."""

    def __init__(self, fake: Any, milliseconds: dict[int, float], *, noise: float = 0.003) -> None:
        self.fake, self.milliseconds, self.noise = fake, milliseconds, noise
        self.rng = np.random.default_rng(7)
        self.runs: dict[int, int] = {}
        self.execute: dict[int, Any] = {}

    def __call__(self, launch: Any) -> None:
        tile = launch.block[0]
        self.runs[tile] = self.runs.get(tile, 0) + 1
        self.fake.milliseconds = self.milliseconds[tile] * float(np.exp(self.rng.normal(0, self.noise)))
        self.execute.get(tile, fake_gemm.gemm)(launch)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    fake = fake_driver.install(monkeypatch)
    fake.functions = {"matmul": fake_gemm.SIZES}
    no_ceilings = HarnessError("a fake GPU has none")
    monkeypatch.setattr("harness.ceilings.measured", lambda *_: (_ for _ in ()).throw(no_ceilings))
    return fake


@pytest.fixture
def speeds(fake: fake_driver.FakeDriver) -> Speeds:
    """TILE=5 is the fastest, by 5%."""
    fake.execute = Speeds(fake, {t: 1.0 + 0.05 * abs(t - 5) for t in TILES})
    return fake.execute


@pytest.fixture
def context(fake: fake_driver.FakeDriver) -> Iterator[Context]:
    with Context(Device.open()) as context:
        yield context


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One file for all tests: where a file lies is part of its code, which takes a second to compile."""
    path = tmp_path_factory.mktemp("kernels") / "mine.cu"
    path.write_text(KERNEL.format(title="A kernel", extra="", body=BODY))
    return str(path)


@pytest.fixture
def space(kernel: str) -> list[Built]:
    variants = list(spec.load(kernel).variants({"TILE": TILES}))
    return builds.build_all(variants, ["sm_90a"], Cache(default_root()), lambda _: None)[0]


def tune(
    context: Context,
    space: Sequence[Any],
    journal: Journal | None = None,
    *,
    problems: Sequence[Gemm] = (N,),
    clock: Any = None,
    **plan: Any,
) -> tuple[list[Tuned], Tuner]:
    with Bench(context, rule=RULE, regime="hot") as session, Ahead() as ahead:
        extra = {"clock": clock} if clock else {}
        tuner = Tuner(session, Plan(**plan), journal or Journal(None), ahead, **extra)
        return list(tuner.run(problems, iter(space))), tuner


def tiles(rows: Sequence[Any]) -> list[int]:
    return [row["params"]["TILE"] for row in rows]


# ---- who wins --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["halving", "exhaustive", "random"])
def test_the_planted_winner_is_found(
    context: Context, space: list[Built], speeds: Speeds, strategy: str
) -> None:
    ((result,), _) = tune(context, space, strategy=strategy)
    assert tiles(result.winners) == [5] and result.confirmed and result.note == ""
    assert tiles(result.ranking)[0] == 5 and set(tiles(result.ranking)) == set(TILES)
    assert result.winners[0]["stage"] == "final" and result.measured == len(result.rows)


def test_survivors_get_more_samples(context: Context, space: list[Built], speeds: Speeds) -> None:
    """A second candidate 0.8% behind needs more than the first rung; one 20% behind does not."""
    speeds.milliseconds |= {6: 1.008}
    ((result,), _) = tune(context, space)
    stages = {t: [r["stage"] for r in result.rows if r["params"]["TILE"] == t] for t in TILES}
    assert stages[9] == ["rung 1"]
    assert "rung 2" in stages[5] and "rung 2" in stages[6] and tiles(result.winners) == [5]
    assert speeds.runs[5] > 3 * speeds.runs[9]


def test_ties_are_reported_as_ties(context: Context, space: list[Built], speeds: Speeds) -> None:
    speeds.milliseconds |= {5: 1.0, 7: 1.0005, 3: 0.9995}
    ((result,), _) = tune(context, space)
    assert sorted(tiles(result.winners)) == [3, 5, 7] and result.confirmed
    assert {r["params"]["TILE"] for r in result.rows if r["stage"] == "duel"} < {3, 5, 7}


def test_a_difference_beyond_the_threshold_is_no_tie(
    context: Context, space: list[Built], speeds: Speeds
) -> None:
    """The control of the one before: the same space at 2%, told apart; and a threshold that allows for it."""
    speeds.milliseconds |= {5: 1.0, 7: 1.02, 3: 1.02}
    assert tiles(tune(context, space)[0][0].winners) == [5]
    assert sorted(tiles(tune(context, space, threshold=0.03)[0][0].winners)) == [3, 5, 7]


def test_each_size_has_its_own_winner(context: Context, space: list[Built], speeds: Speeds) -> None:
    small, large = N, Gemm(M=40, N=40, K=40)
    times = dict(speeds.milliseconds)

    class BySize(dict[int, float]):
        def __getitem__(self, tile: int) -> float:
            blocks = speeds.fake.launches[-1].grid[0]
            return times[tile] if blocks * tile < 32 else 2 - times[tile]

    speeds.milliseconds = BySize(times)
    (first, second), _ = tune(context, iter(space), problems=(small, large))
    assert tiles(first.winners) == [5] and tiles(second.winners) == [9]


def test_a_wrong_candidate_never_wins(context: Context, space: list[Built], speeds: Speeds) -> None:
    speeds.milliseconds[7], speeds.execute[7] = 0.5, fake_gemm.zeros
    ((result,), _) = tune(context, space)
    assert tiles(result.winners) == [5]
    assert result.ranking[-1]["params"] == {"TILE": 7} and result.ranking[-1]["status"] == "FAILED"
    assert result.ranking[-1]["seconds"] is None


@pytest.mark.parametrize("good", [5, 200])
def test_a_candidate_that_goes_wrong_later_is_dropped(
    context: Context, space: list[Built], speeds: Speeds, good: int
) -> None:
    """While its first rung is timed, or in a later one; the control is that it wins while it is right."""
    speeds.milliseconds[7] = 0.9
    assert tiles(tune(context, space)[0][0].winners) == [7]
    speeds.execute[7] = fake_gemm.WrongLater(good=good)
    ((result,), _) = tune(context, space)
    assert tiles(result.winners) == [5]
    (failed,) = [r for r in result.ranking if r["params"]["TILE"] == 7]
    assert failed["status"] == "FAILED" and (good == 5) == (failed["stage"] == "rung 1")


def test_the_finals_have_fresh_data(context: Context, space: list[Built], speeds: Speeds) -> None:
    """A kernel that is right for one set of inputs only: it has learnt the answer by heart."""
    by_heart: list[Any] = []

    def cheat(launch: Any) -> None:
        if not by_heart:
            fake_gemm.gemm(launch)
            by_heart.append(fake_gemm.parameters(launch)[2].copy())
        fake_gemm.parameters(launch)[2][:] = by_heart[0]

    speeds.milliseconds[7], speeds.execute[7] = 0.5, cheat
    ((result,), _) = tune(context, space)
    (failed,) = [r for r in result.ranking if r["params"]["TILE"] == 7]
    assert (failed["status"], failed["stage"]) == ("FAILED", "final")
    assert tiles(result.winners) == [5], "nobody stays dropped because of a wrong one"


# ---- the race, by itself ---------------------------------------------------------------------------


def interval(low: float, high: float) -> Interval:
    return Interval(low=low, estimate=(low + high) / 2, high=high)


def test_nobody_is_dropped_whose_interval_overlaps_the_bests() -> None:
    standings = {"a": interval(0.98, 1.02), "b": interval(1.019, 1.2), "c": interval(1.03, 1.04)}
    assert halving.survivors(standings, 0.0) == ["a", "b"]
    assert halving.survivors(standings, 0.01) == ["a", "b", "c"]
    assert halving.survivors({}, 0.0) == []


def test_settled_means_all_within_the_threshold() -> None:
    assert halving.settled({"a": interval(0.999, 1.001), "b": interval(1.0, 1.002)}, 0.005)
    assert not halving.settled({"a": interval(0.99, 1.01), "b": interval(1.0, 1.002)}, 0.005)
    assert halving.settled({"a": interval(0.5, 2)}, 0.005)


def test_a_single_block_drops_only_who_is_far_behind() -> None:
    """By its own 5% and the other's; several blocks go by their scatter, as 1% shows."""
    race = halving.Race(seed=1)
    for entrant, time in enumerate((1.0, 1.09, 1.12)):
        race.add(entrant, [time], [1.0])
    assert halving.survivors(race.standings, 0.0) == [0, 1]
    race.add(1, [1.09, 1.09], [1.0, 1.0])
    race.add(0, [1.0, 1.0], [1.0, 1.0])
    assert halving.survivors(race.standings, 0.0) == [0]
    race.remove(0)
    assert list(race.standings) == [1, 2]


@pytest.mark.parametrize("gap", [0.0, 0.02])
def test_the_best_is_hardly_ever_dropped(gap: float) -> None:
    """Forty candidates with 1% noise a block, over all rungs: the best survives, the hopeless do not."""
    lost, left = 0, []
    for trial in range(20):
        rng = np.random.default_rng(trial)
        race, alive = halving.Race(seed=trial), list(range(40))
        for blocks in halving.RUNGS:
            for e in alive:
                times = (1.0 + (gap if e else 0.0)) * np.exp(rng.normal(0, 0.01, blocks))
                race.add(e, list(times), list(np.exp(rng.normal(0, 0.002, blocks))))
            alive = halving.survivors(race.standings, 0.0)
        lost += 0 not in alive
        left.append(len(alive))
    assert lost <= 2 if gap == 0 else lost == 0
    assert np.mean(left) > 20 if gap == 0 else np.mean(left) < 10


# ---- pruning ---------------------------------------------------------------------------------------


SPILLS = """\
extern "C" __global__ void __launch_bounds__(1024, 2) matmul(
    const float* A, const float* B, float* C, int M, int N, int K,
    int lda, int ldb, int ldc, float alpha, float beta)
{
    float r[48];
    for (int i = 0; i < 48; ++i) r[i] = A[i * lda];
    for (int k = 0; k < K; ++k)
        for (int i = 0; i < 48; ++i) r[i] = r[i] * B[k + i] + r[(i * 7 + 1) % 48];
    for (int i = 0; i < 48; ++i) C[i] = r[i];
}
"""


@pytest.mark.parametrize(
    ("extra", "body", "reason"),
    [
        ('sass = ["LDS.128 in loop"]', None, r"not as the file expects: LDS\.128 in loop"),
        ('shared = "300000"', None, r"300000 B of shared memory a block; this GPU has 232448 B"),
        ("", SPILLS, r"spills: \d+ B stored, \d+ B loaded"),
        ("", None, ""),
    ],
)
def test_pruning_says_why(
    context: Context, cache: Cache, kernel_file: Any, extra: str, body: str | None, reason: str
) -> None:
    path = kernel_file(extra=extra, **({"body": body} if body else {}))
    (built,), _ = builds.build_all([spec.load(path).variant()], ["sm_90a"], cache, lambda _: None)
    assert re.match(reason or "$", pruning.reason(built, context.device).split("machine code is ")[-1])


def test_a_block_that_fits_nowhere_is_pruned(context: Context, space: list[Built]) -> None:
    from dataclasses import replace

    (first, *_) = space
    resources = replace(first.cubin.resources, registers=255)
    wide = spec.load(first.variant.kernel.path).variant(TILE=32)
    built = replace(first, variant=wide, cubin=replace(first.cubin, variant=wide, resources=resources))
    assert "not one block fits on an SM" in pruning.reason(built, context.device)


def test_what_is_pruned_is_never_launched(
    context: Context, space: list[Built], speeds: Speeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "reason", lambda b, _d: "no" if b.variant.params["TILE"] == 5 else "")
    ((result,), tuner) = tune(context, space)
    assert 5 not in tiles(result.ranking) and 5 not in speeds.runs
    assert [(u.variant.params["TILE"], u.why, u.compiled) for u in tuner.unfit] == [(5, "no", True)]
    assert set(tiles(result.winners)) <= {4, 6}


# ---- budgets and draws -----------------------------------------------------------------------------


def test_draws_are_seeded_and_counted() -> None:
    variants = list(range(30))
    plan = Plan(strategy="random", max_fevals=7, seed=3)
    assert plan.choose(variants) == plan.choose(variants) and len(set(plan.choose(variants))) == 7
    assert plan.choose(variants) != Plan(strategy="random", max_fevals=7, seed=4).choose(variants)
    assert Plan().choose(variants) == variants
    with pytest.raises(UsageError, match="every candidate"):
        Plan(strategy="exhaustive", max_fevals=3)
    with pytest.raises(UsageError, match="no strategy"):
        Plan(strategy="genetic")


def test_max_fevals_bounds_what_is_visited(context: Context, space: list[Built], speeds: Speeds) -> None:
    plan = Plan(max_fevals=3)
    ((result,), _) = tune(context, plan.choose(space), max_fevals=3)
    assert len(result.ranking) == 3 and len(speeds.runs) == 3 and result.winners


@pytest.mark.parametrize("seconds", [4, 10, 30])
def test_the_time_limit_ends_a_search(
    context: Context, space: list[Built], speeds: Speeds, seconds: int
) -> None:
    """A clock that goes on by a second a measurement: nothing begins after the end."""
    now = [0.0]
    with Bench(context, rule=RULE, regime="hot") as session, Ahead() as ahead:
        journal = Journal(None)
        begin = journal.begin

        def measured(key: str, about: Any) -> None:
            assert now[0] < seconds
            now[0] += 1
            begin(key, about)

        journal.begin = measured  # type: ignore[method-assign]
        plan = Plan(time_limit=seconds)
        tuner = Tuner(session, plan, journal, ahead, clock=lambda: now[0])
        (result,) = tuner.run([N], iter(space))
    assert now[0] <= seconds
    assert bool(result.note) == (seconds < 30) and (result.confirmed or seconds < 30)
    assert result.winners, "what is known by then"
    if seconds == 4:
        assert len(result.ranking) < len(TILES) and "search ended" in result.note


# ---- interruptions ---------------------------------------------------------------------------------


def test_ctrl_c_does_not_wait_for_the_finals_data(
    context: Context, space: list[Built], speeds: Speeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured is shown at once; --isolate ends a process that takes ten seconds more."""
    over, real, waited = threading.Event(), Data.of, list[bool]()

    def slow(problem: Any, seed: int) -> Data:
        if seed == 2:  # the finals'
            waited.append(over.wait(10))
        return real(problem, seed)

    def interrupt(launch: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Data, "of", slow)
    speeds.execute[7] = interrupt
    with pytest.raises(KeyboardInterrupt):
        tune(context, space)
    assert waited == []
    over.set()


def test_an_interrupted_tuning_goes_on_where_it_ended(
    context: Context, space: list[Built], speeds: Speeds, tmp_path: Path
) -> None:
    path = tmp_path / "j.jsonl"

    def interrupt(launch: Any) -> None:
        raise KeyboardInterrupt

    speeds.execute[7] = interrupt
    speeds.milliseconds[3] = 1.3
    with (
        Bench(context, rule=RULE, regime="hot") as session,
        Ahead() as ahead,
        pytest.raises(KeyboardInterrupt),
    ):
        tuner = Tuner(session, Plan(), Journal(path), ahead)
        list(tuner.run([N], iter(space)))
    partial = tuner.interrupted()
    assert partial is not None and tiles(partial.winners) and set(tiles(partial.ranking)) == {2, 3, 4, 5, 6}
    assert not partial.confirmed
    before = dict(speeds.runs)
    del speeds.execute[7]
    ((result,), _) = tune(context, space, Journal(path))
    assert tiles(result.winners) == [5] and result.resumed >= 5
    assert speeds.runs[3] == before[3], "it was dropped in its first rung, before the interruption"
    runs = dict(speeds.runs)
    ((again,), _) = tune(context, space, Journal(path))
    assert again.measured == 0 and tiles(again.winners) == [5]
    assert {t: n - runs[t] for t, n in speeds.runs.items() if n != runs[t]}.keys() <= {2, 5}  # references


def test_what_changed_is_measured_again(
    context: Context, space: list[Built], speeds: Speeds, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "j")
    first = tune(context, space, journal)[0][0]
    assert tune(context, space, journal, problems=[Gemm(M=25, N=24, K=24)])[0][0].resumed == 0
    assert tune(context, space, journal, seed=9)[0][0].resumed == 0
    assert tune(context, space, journal)[0][0].resumed == len(first.rows)
    journal.clear()
    assert tune(context, space, journal)[0][0].resumed == 0


def test_a_torn_journal_loses_its_last_line_only(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.put("a", {"x": 1})
    journal.begin("b", {"x": 2})
    with path.open("ab") as file:
        file.write(b'{"key": "c", "x"')
    journal = Journal(path)
    assert journal.get("a") == {"x": 1} and journal.get("c") is None
    assert journal.unfinished == ("b", {"x": 2})
    journal.put("b", {"x": 3})
    assert Journal(path).count == 2 and Journal(path).unfinished is None


def test_a_fault_is_kept_and_the_next_run_goes_on_without_it(
    fake: Any, space: list[Built], speeds: Speeds, tmp_path: Path
) -> None:
    def fault(launch: Any) -> None:
        fake_gemm.gemm(launch)
        fake.sticky = 700

    speeds.milliseconds[7], speeds.execute[7] = 0.5, fault
    with pytest.raises(ContextLost), Context(Device.open()) as context:
        tune(context, space, Journal(tmp_path / "j"))
    fake.sticky, runs = 0, speeds.runs[7]
    with Context(Device.open()) as context:
        ((result,), _) = tune(context, space, Journal(tmp_path / "j"))
    assert tiles(result.winners) == [5] and speeds.runs[7] == runs
    assert result.ranking[-1]["status"] == "error" and "700" in result.ranking[-1]["detail"]


# ---- T4 --------------------------------------------------------------------------------------------


def t4_faults(content: Any) -> list[str]:
    """What the published results schema (T4 1.0.0) says of a document, read from it by hand."""
    faults = []
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", content["schema_version"]):
        faults.append("schema_version")
    known = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
    for r in content["results"]:
        faults += [k for k in ("configuration", "times", "invalidity", "correctness") if k not in r]
        if r.get("invalidity") not in known:
            faults.append(f"invalidity {r.get('invalidity')}")
        if not isinstance(r["timestamp"], str) or not isinstance(r["objectives"], list):
            faults.append("timestamp, objectives")
        if not isinstance(r["times"].get("compilation_time", 0.0), int | float):
            faults.append("compilation_time")
        if not isinstance(r["times"].get("runtimes", []), list):
            faults.append("runtimes")
        for m in r["measurements"]:
            fits = isinstance(m["value"], int | float | str | list) and isinstance(m["unit"], str)
            faults += [] if fits and isinstance(m["name"], str) else [f"measurement {m}"]
    return faults


def test_t4(context: Context, space: list[Built], speeds: Speeds, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds.execute[7] = fake_gemm.zeros
    monkeypatch.setattr(pruning, "reason", lambda b, _d: "no" if b.variant.params["TILE"] == 2 else "")
    ((result,), tuner) = tune(context, space)
    content = json.loads(json.dumps(t4.document(result.ranking, tuner.unfit, "2026-11-21T00:00:00+00:00")))
    assert t4_faults(content) == []
    by_tile = {r["configuration"]["TILE"]: r for r in content["results"]}
    assert {t: r["invalidity"] for t, r in by_tile.items() if r["invalidity"] != "correct"} == {
        7: "correctness", 2: "constraints",
    }  # fmt: skip
    (time,) = [m for m in by_tile[5]["measurements"] if m["name"] == "time"]
    assert time["unit"] == "ms" and time["value"] == pytest.approx(1.0, rel=0.02)
    assert by_tile[5]["times"]["runtimes"][0] == pytest.approx(1.0, rel=0.05)
    content["results"][0]["invalidity"] = "fine"
    assert t4_faults(content) == ["invalidity fine"]


# ---- the command -----------------------------------------------------------------------------------


def harness(*args: str) -> Result:
    result = CliRunner().invoke(main, list(args))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


SPACE = "TILE=[2,3,4,5,6,7,8,9]"


def test_the_command(speeds: Speeds, kernel: str, tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "r.json"), "--t4", str(tmp_path / "t.json")]
    result = harness("tune", kernel, "-p", SPACE, "-a", "N=[24,32]", "--regime", "hot", "--fresh", *files)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("fastest: TILE=5") == 2
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["kind"] == "tune" and content["meta"]["tune_params"] == {"TILE": list(TILES)}
    assert [r["winners"] for r in content["meta"]["results"]] == [[{"TILE": 5}], [{"TILE": 5}]]
    assert {r["stage"] for r in content["rows"]} >= {"rung 1", "final"}
    for shape in ("24", "32"):
        assert t4_faults(json.loads((tmp_path / f"t-{shape}.json").read_text())) == []
    again = harness("tune", kernel, "-p", SPACE, "-a", "N=[24,32]", "--regime", "hot")
    assert "0 measurements" in again.stdout and "kept from before" in again.stdout
    fresh = harness("tune", kernel, "-p", SPACE, "-a", "N=24", "--regime", "hot", "--fresh", "--csv")
    assert fresh.exit_code == 0 and fresh.stdout.startswith("kernel,")


def test_data_are_made_while_the_session_opens(
    speeds: Speeds, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first size's, each once, in a thread beside; the session waits here until they are there."""
    begun, ready, real_data, real_open = list[tuple[int, bool]](), threading.Event(), Data.of, Bench.__init__

    def of(problem: Any, seed: int) -> Data:
        begun.append((seed, threading.current_thread() is threading.main_thread()))
        data = real_data(problem, seed)
        if len(begun) == 2:
            ready.set()
        return data

    def opened(self: Bench, *args: Any, **more: Any) -> None:
        assert ready.wait(10)
        real_open(self, *args, **more)

    monkeypatch.setattr(Data, "of", of)
    monkeypatch.setattr(Bench, "__init__", opened)
    result = harness("tune", kernel, "-p", SPACE, "-a", "N=24", "--regime", "hot", "--fresh", "--seed", "7")
    assert result.exit_code == 0 and begun == [(7, False), (8, False)]


def test_a_wrong_candidate_is_a_finding(speeds: Speeds, kernel: str) -> None:
    speeds.execute[7] = fake_gemm.zeros
    result = harness("tune", kernel, "-p", SPACE, "-a", "N=24", "--regime", "hot", "--fresh")
    assert result.exit_code == 1 and "fastest: TILE=5" in result.stdout
    assert "TILE=7, 24: FAILED" in result.stdout


def test_ctrl_c_keeps_what_was_measured(speeds: Speeds, kernel: str) -> None:
    def interrupt(launch: Any) -> None:
        raise KeyboardInterrupt

    speeds.execute[7] = interrupt
    command = ("tune", kernel, "-p", SPACE, "-a", "N=24", "--regime", "hot")
    result = harness(*command, "--fresh")
    assert result.exit_code == 130 and "so far: TILE=5" in result.stdout
    del speeds.execute[7]
    result = harness(*command)
    assert result.exit_code == 0 and "6 kept from before" in result.stdout


def test_a_fault_says_how_to_go_on(fake: Any, speeds: Speeds, kernel: str) -> None:
    def fault(launch: Any) -> None:
        fake.sticky = 700

    speeds.execute[7] = fault
    command = ("tune", kernel, "-p", SPACE, "-a", "N=24", "--regime", "hot")
    result = harness(*command, "--fresh")
    assert result.exit_code == 1 and "goes on without that candidate" in result.stderr
    fake.sticky = 0
    supervised = harness(*command, supervise.FLAG)
    assert supervised.exit_code == 1 and "fastest: TILE=5" in supervised.stdout


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NoDriver("libcuda was not found", hint="install it")

    monkeypatch.setattr(api, "init", refuse)
    result = harness("tune", "tiled")
    assert result.exit_code == 1 and "it needs a GPU (libcuda was not found)" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0[1-3]*"], "names several kernels"),
        (["tiled_no_sync"], "wrong on purpose"),
        (["tiled", "-p", "NOPE=1"], "no kernel here has a parameter NOPE"),
        (["tiled", "--strategy", "exhaustive", "--max-fevals", "2"], "every candidate"),
        (["tiled", "--budget", "soon"], "soon"),
        (["tiled", "--budget", "0s"], "0"),
    ],
)
def test_what_makes_no_sense(fake: Any, arguments: list[str], message: str) -> None:
    result = harness("tune", *arguments)
    assert result.exit_code == 2 and message in result.stderr


# ---- --isolate -------------------------------------------------------------------------------------

CHILD = """\
import os, signal, sys, time
from pathlib import Path
from harness.journal import Journal
journal = Journal(Path({path!r}))
for tile in range(4):
    if journal.get(str(tile)) is None:
        journal.begin(str(tile), {{"tile": tile}})
        if tile == 1:
            {end}
        journal.put(str(tile), {{"tile": tile, "detail": "ok"}})
sys.exit(1 if any(journal.get(str(t))["detail"] != "ok" for t in range(4)) else 0)
"""


@pytest.mark.parametrize(
    ("end", "why", "hung"),
    [
        ("pass", "ok", None),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV", False),
        ("time.sleep(60)", "it hangs", True),
        ("journal.put('1', {'detail': 'fault'}); sys.exit(75)", "fault", None),
    ],
)
def test_isolation_goes_on_without_whoever_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, why: str, hung: bool | None
) -> None:
    path = tmp_path / "j"
    code = CHILD.format(path=str(path), end=end)
    monkeypatch.setattr(supervise, "command", lambda *_: [sys.executable, "-c", code])
    code = supervise.run(None, None, path, 1.5)  # type: ignore[arg-type]
    journal = Journal(path)
    assert code == (0 if end == "pass" else 1) and journal.count == 4
    assert why in journal.get("1")["detail"] and journal.get("1").get("hung") is hung


def test_isolation_blames_nobody_for_what_an_earlier_run_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Journal(tmp_path / "j").begin("innocent", {})
    die = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    monkeypatch.setattr(supervise, "command", lambda *_: die)
    with pytest.raises(HarnessError, match="SIGSEGV"):
        supervise.run(None, None, tmp_path / "j", 5)  # type: ignore[arg-type]
    assert Journal(tmp_path / "j").count == 0


def test_what_the_isolated_child_is_told(fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[list[str]] = []
    monkeypatch.setattr(supervise, "_watch", lambda c, *_: told.append(c) or (0, ""))
    options = [
        "-p",
        "TILE=[8,16]",
        "-a",
        "N=64",
        "--seed",
        "5",
        "--budget",
        "2m",
        "--t4",
        str(tmp_path / "t"),
    ]
    result = harness("tune", "tiled", "--isolate", *options, "--threshold", "1%", "--md")
    assert result.exit_code == 0
    (command,) = told
    assert command[:6] == [sys.executable, "-m", "harness", "tune", "tiled", supervise.FLAG]
    for part in ("--param=TILE=[8,16]", "--axis=N=64", "--seed=5", "--threshold=1.0", "--md"):
        assert part in command
    (budget,) = [c for c in command if c.startswith("--budget=")]
    assert 100 < float(budget.removeprefix("--budget=")) < 120
    assert f"--t4={tmp_path / 't'}" in command and "--isolate" not in command
    parsed = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert parsed.returncode == 0


def test_a_long_ranking_is_short_in_text_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded on an H200: 120 sets."""
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest's processes have: 80, where no line fits
    content = record.load(Path(__file__).parents[1] / "records/tuned/10_vectorized.json")
    (summary,) = (s for s in content["meta"]["results"] if s["shape"] == "4096")
    rows = [r for r in content["rows"] if r["shape"] == "4096" and r["stage"] != "duel"]
    last = {str(r["params"]): r for r in rows}
    winners = tuple(last[str(p)] for p in summary["winners"])
    others = sorted((r for r in last.values() if r not in winners), key=lambda r: r["seconds"])
    ranking = (*winners, *others[:-1], {**others[-1], "status": "FAILED", "seconds": None})
    about = {
        "confirmed": True,
        "note": "",
        "seconds": 1.0,
        "searching": 1.0,
        "measured": len(rows),
        "resumed": 0,
    }
    result = Tuned(shape="4096", winners=winners, ranking=ranking, rows=(), **about)

    def printed(style: str | None) -> str:
        tuned.show([result], [], content["meta"], "sm_90a", style)
        return capsys.readouterr().out

    assert len(ranking) == 120
    short, markdown = printed(None), printed("md")
    assert short.count(" slower, ") == 20 - len(winners) and "\n99 more, up to " in short
    assert "FAILED" in short, "what has no time is never left out"
    assert markdown.count(" slower, ") == 120 - len(winners) - 1 and " more" not in markdown
