"""`harness history`: since when a kernel is slower, over many result files, and files for other services."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from harness.results.gates import history
from shared import browser, histories
from shared.command import harness


def noisy(count: int, at: int, factor: float, *, seed: int, noise: float = 0.01) -> list[float]:
    times = 1e-3 * np.exp(noise * np.random.default_rng(seed).standard_normal(count))
    times[at:] *= factor
    return [float(t) for t in times]


@pytest.mark.parametrize(
    ("at", "factor", "status"), [(15, 1.05, "SLOW"), (15, 0.95, "FAST"), (27, 1.08, "SLOW")]
)
def test_a_planted_change_is_found_where_it_is(at: int, factor: float, status: str) -> None:
    (change,) = history.change_points(noisy(30, at, factor, seed=1), threshold=0.02)
    assert change.status == status and abs(change.at - at) <= 1
    assert change.first <= at <= change.last
    assert change.ratio.low <= factor * 1.002 and factor * 0.998 <= change.ratio.high


def test_two_changes_are_two() -> None:
    times = noisy(45, 15, 1.05, seed=2)
    times[30:] = [t / 1.05 for t in times[30:]]
    found = history.change_points(times, threshold=0.02)
    assert [c.status for c in found] == ["SLOW", "FAST"] and [
        abs(c.at - p) <= 1 for c, p in zip(found, (15, 30), strict=True)
    ]


def test_noise_is_no_change() -> None:
    """At 99% one series in a hundred may look like one."""
    found = [bool(history.change_points(noisy(20, 20, 1, seed=s), threshold=0.02)) for s in range(100)]
    assert sum(found) <= 4, "more has a chance below 1 in 200"
    assert history.change_points([1e-3] * 20, threshold=0.02) == [], "equal times do not divide by zero"


def test_few_results_and_one_outlier_are_no_change() -> None:
    assert history.change_points(noisy(history.LEAST - 1, 3, 2.0, seed=3), threshold=0.02) == []
    assert len(history.change_points(noisy(history.LEAST, 5, 2.0, seed=3), threshold=0.02)) == 1
    outlier = noisy(20, 20, 1, seed=4)
    outlier[9] *= 1.5
    assert history.change_points(outlier, threshold=0.02) == []


def test_a_change_within_the_threshold_is_the_same() -> None:
    (change,) = history.change_points(noisy(60, 30, 1.01, seed=5, noise=0.005), threshold=0.03)
    assert change.status == "SAME"


@pytest.mark.slow
def test_intervals_hold_as_often_as_they_say() -> None:
    hit = sizes = places = 0
    for seed in range(200):
        found = history.change_points(noisy(30, 18, 1.02, seed=1000 + seed), threshold=0.005)
        if len(found) == 1:
            hit += 1
            sizes += found[0].ratio.low <= 1.02 <= found[0].ratio.high
            places += found[0].first <= 18 <= found[0].last
    assert hit > 160 and sizes / hit > 0.9 and places / hit > 0.85, (hit, sizes, places)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [str(path) for path in histories.write(tmp_path_factory.mktemp("history"))]


@pytest.mark.slow
def test_the_command_says_since_when(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "h.json"
    result = harness("history", *reversed(files), "--json", str(out))
    assert result.exit_code == 0, result.output
    (line,) = [text for text in result.output.splitlines() if text.startswith(histories.CHANGED)]
    assert "2026-03-11" in line and line.endswith("SLOW") and re.search(r"\+[45]\.\d%", line)
    assert histories.STILL not in result.output
    assert histories.STILL in harness("history", *files, "--all").output
    row = next(r for r in json.loads(out.read_text())["rows"] if r["changes"])
    assert row["changes"][0]["at"] == 10 and len(row["points"]) == 16
    assert harness("history", *files, "--fail").exit_code == 1
    assert harness("history", *files[:10], "--fail").exit_code == 0
    assert "too few to tell" in harness("history", *files[:3]).output


def test_other_cards_are_other_series(files: list[str], tmp_path: Path) -> None:
    """The same change, on another card: nothing became slower."""
    moved = []
    for name in files[10:]:
        content = json.loads(Path(name).read_text())
        content["meta"]["gpu"]["uuid"] = "GPU-other"
        path = tmp_path / Path(name).name
        path.write_text(json.dumps(content))
        moved.append(str(path))
    result = harness("history", *files[:10], *moved, "--fail")
    assert result.exit_code == 0 and result.output.startswith("4 series of 6 to 10 results"), result.output


def test_services_get_their_formats(files: list[str], tmp_path: Path) -> None:
    action, bencher, asv = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "results"
    args = [
        "--export",
        "github-action-benchmark",
        str(action),
        "--export",
        "bencher",
        str(bencher),
        "--export",
        "asv",
        str(asv),
    ]
    assert harness("history", *files, *args).exit_code == 0
    newest = {r["kernel"]: r for r in json.loads(Path(files[-1]).read_text())["rows"]}
    row = newest[histories.CHANGED]
    (entry,) = [e for e in json.loads(action.read_text()) if e["name"].startswith(histories.CHANGED)]
    assert entry["unit"] == "us" and entry["value"] == pytest.approx(1e6 * row["seconds"])
    assert float(entry["range"].split()[1]) == pytest.approx(1e6 * row["seconds"] * row["stdev"], rel=0.01)
    latency = json.loads(bencher.read_text())[entry["name"]]["latency"]
    assert latency["lower_value"] < 1e9 * row["seconds"] < latency["upper_value"]
    assert latency["upper_value"] - latency["value"] < 0.01 * latency["value"], "the mean of 80 samples"
    runs = sorted(asv.glob("*/*-harness.json"))
    assert (
        len(runs) == 16
        and (asv / "benchmarks.json").is_file()
        and (runs[0].parent / "machine.json").is_file()
    )
    run = json.loads(runs[-1].read_text())
    values = dict(zip(run["result_columns"], run["results"][entry["name"]], strict=True))
    assert values["result"] == [pytest.approx(row["seconds"])] and run["commit_hash"][:8] in runs[-1].name


def test_bad_input_is_told(tmp_path: Path) -> None:
    empty = tmp_path / "e.json"
    empty.write_text('{"schema": 2, "kind": "bench", "meta": {}, "rows": []}')
    for args in ([], [str(empty)], ["nowhere.json"], [str(empty), "--export", "junit", "x"]):
        result = harness("history", *args)
        assert result.exit_code == 2 and "Traceback" not in result.output


def test_the_page_has_a_chart_a_series(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "h.html"
    assert harness("history", *files, "--html", str(out)).exit_code == 0
    text = out.read_text()
    assert text.count("<svg") == 2 and text.count("<circle") == 32 and text.count('<rect class="SLOW"') == 1
    assert text.index(histories.CHANGED) < text.index(histories.STILL), "what changed comes first"
    assert "style-src-attr 'none'" in text


@pytest.mark.slow
def test_a_browser_shows_the_page(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "h.html"
    harness("history", *files, "--html", str(out))
    for size, scheme in ((browser.PHONE, "dark"), (browser.DESK, "light")):
        with browser.shown(out, size, scheme) as tab:
            assert tab.evaluate(browser.OVERFLOW) <= 0
            assert tab.locator("svg[role=img]").first.bounding_box()["height"] > 50
