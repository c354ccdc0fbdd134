"""Who wins, who is dropped, who is not launched at all."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from fakes import cublaslt as fake_cublaslt
from fakes import gemm as fake_gemm
from fakes.cublaslt import FakeCublas
from harness.bench.session import Bench
from harness.driver import Context
from harness.errors import UsageError
from harness.kernels import spec
from harness.launch import builds, cublas
from harness.launch.builds import Built
from harness.problems.gemm import Gemm
from harness.support.cache import Cache
from harness.tune import plan as planning
from harness.tune import search
from harness.tune.journal import Journal
from harness.tune.plan import Plan
from harness.tune.prefetch import Ahead
from harness.tune.search import Tuner
from shared.tuning import RULE, TILES, N, Speeds, tiles, tune

# ---- who wins --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy", ["halving", *(pytest.param(s, marks=pytest.mark.slow) for s in ("exhaustive", "random"))]
)
def test_the_planted_winner_is_found(
    context: Context, space: list[Built], speeds: Speeds, strategy: str
) -> None:
    ((result,), _) = tune(context, space, strategy=strategy)
    assert tiles(result.winners) == [5] and result.confirmed and result.note == ""
    assert tiles(result.ranking)[0] == 5 and set(tiles(result.ranking)) == set(TILES)
    assert result.winners[0]["stage"] == "final" and result.measured == len(result.rows)


@pytest.mark.slow
def test_survivors_get_more_samples(context: Context, space: list[Built], speeds: Speeds) -> None:
    """A second candidate 0.8% behind needs more than the first rung; one 20% behind does not."""
    speeds.milliseconds |= {6: 1.008}
    ((result,), _) = tune(context, space)
    stages = {t: [r["stage"] for r in result.rows if r["params"]["TILE"] == t] for t in TILES}
    assert stages[9] == ["rung 1"]
    assert "rung 2" in stages[5] and "rung 2" in stages[6] and tiles(result.winners) == [5]
    assert speeds.runs[5] > 3 * speeds.runs[9]


@pytest.mark.exhaustive
def test_the_first_look_at_each_is_short(context: Context, space: list[Built], speeds: Speeds) -> None:
    """Turns of 1 ms, of 5 ms later."""
    speeds.milliseconds |= dict.fromkeys(TILES, 0.25)
    ((result,), _) = tune(context, space, strategy="halving", threshold=0.0)
    turns = {r["stage"]: {b["n"] for b in r["batches"]} for r in result.rows}
    assert turns["rung 1"] <= {3, 4} and turns["rung 2"] <= {18, 19, 20}, "of 0.25 ms, give or take a percent"


@pytest.mark.slow
def test_a_rung_takes_as_few_blocks_as_it_says(context: Context, space: list[Built], speeds: Speeds) -> None:
    """However many sets of operands there are to rotate through; the finals visit each. That what a rung's
    timed runs write is verified has a test of its own, here with rotating sets.
    """
    with Bench(context, rule=RULE, regime="cold") as session, Ahead() as ahead:
        (result,) = Tuner(session, Plan(), Journal(None), ahead).run((N,), iter(space))
        blocks = {(r["stage"], len(r["pair"]["order"]), r["sets"]) for r in result.rows if r["pair"]}
        assert {b for stage, b, _ in blocks if stage == "rung 1"} == {1} and {s for *_, s in blocks} == {8}
        assert tiles(result.winners) == [5] and result.winners[0]["samples"] >= 8
        speeds.milliseconds[7], speeds.execute[7] = 0.9, fake_gemm.WrongLater(good=2)
        (result,) = Tuner(session, Plan(), Journal(None), ahead).run((N,), iter(space))
    (failed,) = [r for r in result.ranking if r["params"]["TILE"] == 7]
    assert (failed["status"], failed["stage"]) == ("FAILED", "rung 1")


@pytest.mark.exhaustive
def test_cublas_loads_its_kernel_before_the_search(
    context: Context, space: list[Built], speeds: Speeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first call of all takes a minute here; the control is that any later one would count."""
    now = [0.0]

    class Lazy(FakeCublas):
        slow = 1

        def cublasSgemm_v2(self, *args: int) -> None:
            self.slow -= 1
            now[0] += 60 if self.slow == 0 else 0
            super().cublasSgemm_v2(*args)

    library = Lazy(SimpleNamespace(clock=0))
    fake_cublaslt.provide(monkeypatch, blas=library)
    for library.slow, expected in ((1, 0), (5, 60)):
        with (
            cublas.CuBlas(context) as baseline,
            Bench(context, rule=RULE, regime="hot", baseline=baseline) as session,
            Ahead() as ahead,
        ):
            tuner = Tuner(session, Plan(), Journal(None), ahead, clock=lambda: now[0])
            (result,) = tuner.run((N,), iter(space))
        assert (result.searching, result.seconds) == (expected, expected) and tiles(result.winners) == [5]
        assert {row["against"] for row in result.rows if row["stage"] == "rung 1"} == {"cuBLAS"}


@pytest.mark.slow
def test_without_room_to_load_cublas_its_first_call_does(
    context: Context, space: list[Built], speeds: Speeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operands report what does not fit, not the loading."""
    fake_cublaslt.provide(monkeypatch, blas=FakeCublas(SimpleNamespace(clock=0)))
    full: list[Any] = []
    real = cublas.CuBlas.load

    def load(*args: Any) -> None:
        speeds.fake.fail("cuMemAlloc", 2)
        full.append(args)
        real(*args)

    monkeypatch.setattr(cublas.CuBlas, "load", load)
    with (
        cublas.CuBlas(context) as baseline,
        Bench(context, rule=RULE, regime="hot", baseline=baseline) as session,
        Ahead() as ahead,
    ):
        (result,) = Tuner(session, Plan(), Journal(None), ahead).run((N,), iter(space))
    assert len(full) == 1 and tiles(result.winners) == [5] and result.note == ""


@pytest.mark.slow
def test_ties_are_reported_as_ties(context: Context, space: list[Built], speeds: Speeds) -> None:
    speeds.milliseconds |= {5: 1.0, 7: 1.0005, 3: 0.9995}
    ((result,), _) = tune(context, space)
    assert sorted(tiles(result.winners)) == [3, 5, 7] and result.confirmed
    assert {r["params"]["TILE"] for r in result.rows if r["stage"] == "duel"} < {3, 5, 7}


@pytest.mark.slow
def test_a_difference_beyond_the_threshold_is_no_tie(
    context: Context, space: list[Built], speeds: Speeds
) -> None:
    """The control of the one before: the same space at 2%, told apart; and a threshold that allows for it."""
    speeds.milliseconds |= {5: 1.0, 7: 1.02, 3: 1.02}
    assert tiles(tune(context, space)[0][0].winners) == [5]
    assert sorted(tiles(tune(context, space, threshold=0.03)[0][0].winners)) == [3, 5, 7]


@pytest.mark.slow
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


@pytest.mark.parametrize("good", [3, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.slow
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
    assert failed["status"] == "FAILED" and (good == 3) == (failed["stage"] == "rung 1")


def test_timed_launches_have_fresh_data(context: Context, space: list[Built], speeds: Speeds) -> None:
    """A kernel that is right for one set of inputs only: it has learnt the answer by heart. It does not even
    get through the first rung, whose timed launches have new data each.
    """
    by_heart: list[Any] = []

    def cheat(launch: Any) -> None:
        if not by_heart:
            fake_gemm.gemm(launch)
            by_heart.append(fake_gemm.parameters(launch)[2].copy())
        fake_gemm.parameters(launch)[2][:] = by_heart[0]

    speeds.milliseconds[7], speeds.execute[7] = 0.5, cheat
    ((result,), _) = tune(context, space)
    (failed,) = [r for r in result.ranking if r["params"]["TILE"] == 7]
    assert (failed["status"], failed["stage"]) == ("FAILED", "rung 1")
    assert tiles(result.winners) == [5], "nobody stays dropped because of a wrong one"


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
@pytest.mark.slow
def test_pruning_says_why(
    context: Context, cache: Cache, kernel_file: Any, extra: str, body: str | None, reason: str
) -> None:
    path = kernel_file(extra=extra, **({"body": body} if body else {}))
    (built,), _ = builds.build_all([spec.load(path).variant()], ["sm_90a"], cache, lambda _: None)
    assert re.match(reason or "$", planning.unfit(built, context.device).split("machine code is ")[-1])


def test_a_block_that_fits_nowhere_is_pruned(context: Context, space: list[Built]) -> None:
    from dataclasses import replace

    (first, *_) = space
    resources = replace(first.cubin.resources, registers=255)
    wide = spec.load(first.variant.kernel.path).variant(TILE=32)
    built = replace(first, variant=wide, cubin=replace(first.cubin, variant=wide, resources=resources))
    assert "not one block fits on an SM" in planning.unfit(built, context.device)


@pytest.mark.slow
def test_what_is_pruned_is_never_launched(
    context: Context, space: list[Built], speeds: Speeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "unfit", lambda b, _d: "no" if b.variant.params["TILE"] == 5 else "")
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


@pytest.mark.slow
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
