"""`harness profile` and compute-sanitizer end to end, where a GPU, the tools and the right to count are."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.errors import CountersDenied
from harness.instruments import counters, ncu, ncu_reports, sanitizer
from harness.kernels import catalog
from harness.results import record
from harness.support import tools

pytestmark = pytest.mark.gpu


def needs(tool: str) -> None:
    if tools.find(tool) is None:
        pytest.skip(f"{tool} is not installed")


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    needs("ncu")
    out = tmp_path_factory.mktemp("profile") / "p.json"
    args = ["profile", "tiled", "-a", "N=512", "--require-gpu", "--json", str(out)]
    result = CliRunner().invoke(main, args)
    if "ERR_NVGPUCTRPERM" in result.output:
        pytest.skip("no permission to read counters")
    assert result.exit_code == 0, result.output
    (found,) = record.load(out)["rows"]
    return found


def test_counters_are_those_of_the_launch(row: dict[str, Any]) -> None:
    values = row["counters"]
    assert values[counters.GRID] == 32 * 32 and values[counters.BLOCK] == 16 * 16
    assert values[counters.LOADS] == 2 * 512**3 // 16 // 32  # each of two tiles, a warp a request
    assert values[counters.REGISTERS] == row["registers"]


def test_the_hottest_lines_are_those_of_the_loop(row: dict[str, Any]) -> None:
    hot = row["hotspots"]
    source = catalog.kernel("tiled").source.splitlines()
    loop = {n for n, text in enumerate(source, 1) if "As[" in text or "Bs[" in text}
    place, number = hot["lines"][0]["place"].split(":")
    assert place == "03_tiled.cu" and int(number) in loop
    assert hot["lines"][0]["text"] == source[int(number) - 1].strip()
    assert sum(s["samples"] for s in hot["lines"]) > 0.9 * hot["samples"]


def test_without_ncu_report_the_pages_tell_lines(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("ncu")
    monkeypatch.setattr(ncu_reports, "_package", lambda: None)
    try:
        found = ncu.profile(catalog.kernel("tiled").variant(), {"N": 512})
    except CountersDenied:
        pytest.skip("no permission to read counters")
    assert found.hotspots is not None and found.hotspots.lines[0].place.startswith("03_tiled.cu:")


@pytest.mark.parametrize("tool", sanitizer.CONTROLS)
def test_every_sanitizer_finds_its_planted_fault(gpu: Any, tool: str) -> None:
    needs("compute-sanitizer")
    assert sanitizer.control(tool) is None


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_every_sanitizer_finds_nothing_in_a_sound_kernel(gpu: Any, tool: str) -> None:
    needs("compute-sanitizer")
    assert sanitizer.check(catalog.kernel("tiled").variant(), {"N": 64}, tool) == ()


def test_reasons_have_the_names_of_the_counters(row: dict[str, Any]) -> None:
    assert {s["reason"] for s in row["hotspots"]["instructions"]} <= set(counters.STALLS)
