"""`bench` beside another kernel (`--ref`), and in other regimes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import gemm as fake_gemm
from harness.results import record
from shared.command import FAST, fake, harness  # noqa: F401  (fixture)
from shared.result_runs import benched


class Slower:
    """A GPU on which one block shape takes longer: the fake's clock follows what was launched last."""

    def __init__(self, fake: Any, block: tuple[int, int, int], ratio: float) -> None:
        self.fake, self.block, self.ratio = fake, block, ratio
        self.rng = np.random.default_rng(0)

    def __call__(self, launch: Any) -> None:
        fake_gemm.gemm(launch)
        factor = self.ratio if launch.block == self.block else 1.0
        self.fake.milliseconds = 1.5 * factor * float(np.exp(0.002 * self.rng.normal()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "verdict", "code"), [(1.03, "SLOW", 1), (0.97, "FAST", 0), (1.0, "SAME", 0)]
)
def test_bench_against_another_kernel(
    fake: Any, tmp_path: Path, ratio: float, verdict: str, code: int
) -> None:
    fake.execute = Slower(fake, (16, 16, 1), ratio)
    args = ["bench", "tiled", "--ref", "coalesced", "-a", "N=16", *FAST]
    result = harness(*args, "--json", str(tmp_path / "r.json"))
    assert result.exit_code == code, result.output
    (line,) = [s for s in result.stdout.splitlines() if s.startswith("03_tiled") and verdict in s]
    assert f"{100 / ratio:.0f}"[:2] in line and "+-" in line
    reference, row = record.load(tmp_path / "r.json")["rows"]
    assert (reference["kernel"], reference["ratio"], reference["decision"]) == ("02_coalesced", None, None)
    assert row["against"].startswith("02_coalesced") and row["decision"] == verdict
    assert row["ratio"]["low"] <= row["ratio"]["estimate"] <= row["ratio"]["high"]
    assert row["ratio"]["estimate"] == pytest.approx(ratio, rel=3e-3)
    pair = row["pair"]
    assert len(pair["candidate"]) == len(pair["baseline"]) == 2 * len(pair["order"])
    assert pair["sm_hz"] == {"candidate": pytest.approx(1.98e9), "baseline": pytest.approx(1.98e9)}


@pytest.mark.parametrize(("ghz", "said"), [(1.98, False), (1.965, False), (1.955, True)])
def test_another_clock_in_the_turns_of_the_other_is_said(
    fake: Any, tmp_path: Path, ghz: float, said: bool
) -> None:
    """A kernel that draws the card's power lowers the clock: the ratio is then not one of cycles."""
    execute = Slower(fake, (16, 16, 1), 1.0)

    def clocked(launch: Any) -> None:
        execute(launch)
        fake.sm_ghz = ghz if launch.block == (16, 16, 1) else 1.98

    fake.execute = clocked
    path = tmp_path / "r.json"
    result = harness("bench", "tiled", "--ref", "coalesced", "-a", "N=16", *FAST, "--json", str(path))
    text = " ".join(result.stdout.split())
    assert ("* the SM clock was 1955 MHz in its turns, 1980 MHz in 02_coalesced" in text) == said
    clocks = record.load(path)["rows"][1]["pair"]["sm_hz"]
    assert clocks == {"candidate": pytest.approx(ghz * 1e9), "baseline": pytest.approx(1.98e9)}
    assert ("the SM clock was" in text) == said


@pytest.mark.slow
def test_identical_code_on_both_sides_is_said(fake: Any, tmp_path: Path) -> None:
    result = harness("bench", "tiled", "--ref", "tiled", "-a", "N=16", *FAST)
    assert "identical SASS on both sides: machine noise" in result.stdout
    other = harness("bench", "tiled", "--ref", "coalesced", "-a", "N=16", *FAST)
    assert "identical SASS" not in other.stdout


def test_a_reference_that_cannot_serve(fake: Any) -> None:
    both = harness("bench", "tiled", "--ref", "coalesced", "--alone", "-a", "N=16")
    assert both.exit_code == 2 and "one of the two" in both.stderr
    other = harness("bench", "tiled", "--ref", "copy", "-a", "N=16")
    assert other.exit_code == 2 and "solve different problems" in other.stderr
    assert harness("bench", "tiled", "--ref", "0[12]*", "-a", "N=16").exit_code == 2
    broken = harness("bench", "tiled", "--ref", "tiled_no_sync", "-a", "N=16", *FAST)
    assert broken.exit_code == 3  # it has no time, so nothing can be told


def test_the_baseline_does_not_write_what_the_candidate_is_verified_by(fake: Any) -> None:
    """A candidate that stops working once it is timed, beside a baseline that is right."""
    seen = 0

    def lazy(launch: Any) -> None:
        nonlocal seen
        if launch.block == (16, 16, 1):
            seen += 1
            if seen > 30:
                return
        fake_gemm.gemm(launch)

    fake.execute = lazy
    result = harness("bench", "tiled", "--ref", "coalesced", "-a", "N=16", *FAST)
    assert result.exit_code == 1 and "03_tiled TILE=16, 16: FAILED" in result.stdout


def test_hot_uses_one_set_and_a_graph_runs_whole_rounds(fake: Any, tmp_path: Path) -> None:
    rows = {}
    for regime in ("hot", "graph"):
        benched(tmp_path / "r.json", "tiled", "-a", "N=16", "--regime", regime)
        (rows[regime],) = record.load(tmp_path / "r.json")["rows"]
    assert (rows["hot"]["sets"], rows["hot"]["regime"]) == (1, "hot")
    graph = rows["graph"]
    assert (graph["regime"], graph["status"]) == ("graph", "ok") and graph["sets"] == 8
    assert graph["seconds"] == pytest.approx(
        1.5e-3 / graph["sets"]
    )  # the fake's graph takes as long as a launch
    assert not [kind for kind, _ in fake.live]


def test_near_the_cost_of_the_events(fake: Any) -> None:
    """On the fake GPU a kernel takes as long as nothing does."""
    result = harness("bench", "tiled", "-a", "N=16", *FAST)
    assert (
        "1.50 ms*" in result.stdout and "near the cost of the events themselves, 1500.00 us" in result.stdout
    )


def test_wide_shows_the_machine(fake: Any) -> None:
    result = harness("bench", "tiled", "-a", "N=16", "--wide", *FAST)
    header = next(s for s in result.stdout.splitlines() if "CPU time" in s)
    assert header.split() == ["kernel", "samples", "CPU", "time", "GPU", "time", "cycles", "MHz"]
    assert "2,970,000" in result.stdout  # 1.5 ms at 1980 MHz
    assert len(header) <= 110
