"""Tunings that end early: their measurements are kept."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fakes import gemm as fake_gemm
from harness.bench.session import Bench
from harness.driver import Context, Device
from harness.errors import ContextLost
from harness.launch.builds import Built
from harness.launch.operands import Data
from harness.problems.gemm import Gemm
from harness.tune.journal import Journal
from harness.tune.plan import Plan
from harness.tune.prefetch import Ahead
from harness.tune.search import Tuner
from shared.tuning import RULE, N, Speeds, tiles, tune


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_the_finals_data(
    context: Context, space: list[Built], speeds: Speeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurements are shown at once; --isolate ends a process that takes ten seconds more."""
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


@pytest.mark.slow
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
