"""Hotspots: ncu's samples of warps by source line and by instruction.

tests/data/tiled-512.ncu-rep.xz is what ncu 2025.3.1 recorded of the plain tiled kernel on an H200 (N = 512;
the names of two folders replaced by others of the same length). The pages that the same ncu printed of that
report are tiled-512-raw.csv (cut down to what harness reads), -sass.csv (to that and the columns that it must
be told from) and -lines.csv (to its first columns).
"""

from __future__ import annotations

import lzma
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.errors import HarnessError, UsageError
from harness.instruments import counters, ncu_reports
from harness.instruments.hotspots import Hotspots, Sampled
from harness.kernels import catalog
from harness.results import record
from harness.support import tools
from shared.places import DATA, ROOT

SASS, LINES = ((DATA / f"tiled-512-{page}.csv").read_text() for page in ("sass", "lines"))


def harness(*args: str) -> Result:
    return CliRunner().invoke(main, args, env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hotspots") / "ncu-tiled.ncu-rep"
    path.write_bytes(lzma.decompress((DATA / "tiled-512.ncu-rep.xz").read_bytes()))
    return path


# NVIDIA's package


def test_a_report_is_read_by_nvidias_package(report: Path) -> None:
    pytest.importorskip("ncu_report")
    (found,) = ncu_reports.load(report)
    assert (found.label, found.function, found.capability) == ("tiled", "matmul", "9.0")
    assert (found.grid, found.block) == ("(32, 32, 1)", "(16, 16, 1)")
    assert found.counters[counters.TIME] == 43296  # ns: base units, as the raw page
    missing = {m for m in (*counters.METRICS, *counters.SECTION_METRICS) if m not in found.counters}
    assert missing == set(counters.CLAIMED), "which ncu was not asked for at that time"
    hot = found.hotspots
    assert hot is not None and hot.samples == found.counters["smsp__pcsamp_sample_count"] == 5116
    first, second, *_ = hot.lines
    assert (first.place, first.text) == ("03_tiled.cu:41", "sum += As[ty][k] * Bs[k][tx];")
    assert (second.place, second.reason) == ("03_tiled.cu:36", "long_scoreboard")
    assert second.text == "As[ty][tx] = row < M && tx < left ? *a : 0.f;"
    assert sum(spot.samples for spot in hot.lines) <= hot.samples


def test_the_package_and_the_pages_tell_the_same(report: Path) -> None:
    pytest.importorskip("ncu_report")
    (found,) = ncu_reports.load(report)
    places, sources = ncu_reports.line_page(LINES)
    (sampled,) = ncu_reports.source_page(SASS, places)
    assert found.hotspots == Hotspots.of(sampled, sources)
    (page,) = ncu_reports.load(DATA / "tiled-512-raw.csv")
    about = ("function", "grid", "block", "capability")
    assert [getattr(page, a) for a in about] == [getattr(found, a) for a in about]
    assert len(page.counters) > 60
    for name, value in page.counters.items():
        assert found.counters[name] == pytest.approx(value, rel=1e-5, abs=0.005), name


def test_what_the_package_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ncu_report")
    path = tmp_path / "x.ncu-rep"
    path.write_text("no report")
    with pytest.raises(UsageError, match="no launch in it"):
        ncu_reports.load(path)
    with pytest.raises(UsageError, match="cannot read"):
        ncu_reports.load(tmp_path / "nowhere.ncu-rep")


def test_a_report_of_a_newer_version_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the package, one that gives up."""

    def load_report(path: str) -> Any:
        raise RuntimeError("unsupported report version")

    monkeypatch.setattr(ncu_reports, "_package", lambda: SimpleNamespace(load_report=load_report))
    path = tmp_path / "x.ncu-rep"
    path.touch()
    result = harness("profile", f"--from={path}")
    assert result.exit_code == 2 and "unsupported report version" in result.output
    assert "needs a newer ncu-report" in result.output and "Traceback" not in result.output


def test_the_copy_beside_ncu_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ncu's own folder, and where a toolkit's script goes; what cannot be loaded leaves nothing behind."""
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / "ncu_report").is_dir()])
    program = tmp_path / "target" / "linux" / "ncu"
    program.parent.mkdir(parents=True)
    program.touch()
    monkeypatch.setattr(tools, "find", lambda name: program if name == "ncu" else None)
    monkeypatch.setattr(ncu_reports, "_INSTALLED", tmp_path / "opt")
    assert ncu_reports._package() is None
    module = tmp_path / "extras" / "python" / "ncu_report.py"
    module.parent.mkdir(parents=True)
    module.write_text("import _no_such_library")
    before = list(sys.path)
    assert ncu_reports._package() is None and sys.path == before
    module.write_text("HERE = 1")
    found = ncu_reports._package()
    assert found is not None and found.HERE == 1
    del sys.modules["ncu_report"]
    sys.path[:] = before
    monkeypatch.setattr(tools, "find", lambda name: None)
    for version in ("2025.1.0", "2025.3.1"):
        other = tmp_path / "opt" / version / "extras" / "python" / "ncu_report.py"
        other.parent.mkdir(parents=True)
        other.write_text(f"VERSION = {version!r}")
    found = ncu_reports._package()
    assert found is not None and found.VERSION == "2025.3.1"
    del sys.modules["ncu_report"]


# ncu's page


def test_the_page_is_read() -> None:
    (sampled,) = ncu_reports.source_page(SASS, {})
    assert len(sampled) == 136 and [s.offset for s in sampled] == list(range(0, 136 * 16, 16))
    assert sampled[0].text == "LDC R1, c[0x0][0x28]" and sampled[0].executed == 8192
    assert sampled[0].stalls == {"no_instruction": 14}
    total = sum(sum(s.stalls.values()) for s in sampled)
    assert total == 5116, "ncu's own column # Samples; those that did not issue are among them"
    assert set().union(*(s.stalls for s in sampled)) <= set(counters.STALLS)


def test_the_hottest_instructions() -> None:
    (sampled,) = ncu_reports.source_page(SASS, {})
    hot = Hotspots.of(sampled)
    assert hot is not None and hot.lines == ()
    first = hot.instructions[0]
    assert (first.place, first.text) == ("+0x3c0", "STS [R18], R9")
    assert first.samples == max(sum(s.stalls.values()) for s in sampled)
    assert (first.reason, first.because) == ("long_scoreboard", sampled[0x3C].stalls["long_scoreboard"])
    counts = [spot.samples for spot in hot.instructions]
    assert counts == sorted(counts, reverse=True) and len(counts) == 12


def test_ready_warps_wait_for_nothing() -> None:
    ready = Sampled(offset=0, text="FFMA", stalls={"selected": 9, "not_selected": 8, "wait": 1}, executed=1)
    hot = Hotspots.of([ready])
    assert hot is not None and (hot.instructions[0].reason, hot.instructions[0].because) == ("wait", 1)
    never = Sampled(offset=0, text="FFMA", stalls={"selected": 2, "not_selected": 3}, executed=1)
    hot = Hotspots.of([never])
    assert hot is not None and hot.instructions[0].reason == "not_selected"


def test_nothing_sampled_is_nothing() -> None:
    assert Hotspots.of([]) is None
    assert Hotspots.of([Sampled(offset=0, text="EXIT", stalls={}, executed=1)]) is None
    assert ncu_reports.source_page("==ERROR== no such page", {}) == []


@pytest.mark.parametrize("damage", ['"zz","NOP"', '"0x10","NOP","1"'])
def test_a_damaged_page_is_refused_or_passed_over(damage: str) -> None:
    lines = SASS.splitlines()
    cells = len(lines[1].split('","'))
    if damage.startswith('"zz"'):
        damage = ",".join(['"zz"', *['"1"'] * (cells - 1)])
        with pytest.raises(UsageError, match="not a source page"):
            ncu_reports.source_page("\n".join([*lines[:3], damage]), {})
    else:  # cut off
        (sampled,) = ncu_reports.source_page("\n".join([*lines[:3], damage]), {})
        assert len(sampled) == 1


def test_several_launches_of_a_page() -> None:
    first, second = ncu_reports.source_page(SASS + SASS, {})
    assert first == second


# Lines


def test_lines_of_instructions() -> None:
    places, sources = ncu_reports.line_page(LINES)
    source = catalog.kernel("tiled").source.splitlines()
    assert sources["03_tiled.cu"][19].startswith('extern "C" __global__'), "quotes are not doubled there"
    # The head of the file may have grown since that was recorded; its code has not changed.
    grown = next(i for i, s in enumerate(source, 1) if s.startswith('extern "C"')) - 19
    for line, text in sources["03_tiled.cu"].items():
        assert text == source[line - 1 + grown].strip()
    (sampled,) = ncu_reports.source_page(SASS, places)
    assert {s.line for s in sampled if s.stalls} <= set(sources["03_tiled.cu"])


def test_an_inlined_instruction_stands_under_its_first_line() -> None:
    """Recorded of rung 11, whose header holds a function."""
    page = """\
"File Path","/code/cu/11_conflict_free.cu"
"55","const bool quads = row + BM <= M && in_quads(A, lda);","-","-","6","6"
"","","0x7f700f7a0b30","      ULDC UR8, c[0x0][0x210]","5","5"
"File Path","/code/cu/quads.cuh"
"8","return (unsigned long long)matrix % 16 == 0 && ld % 4 == 0;","-","-","5","5"
"","","0x7f700f7a0b30","      ULDC UR8, c[0x0][0x210]","5","5"
"""
    places, sources = ncu_reports.line_page(page)
    assert places == {0x7F700F7A0B30: ("11_conflict_free.cu", 55)}
    assert set(sources) == {"11_conflict_free.cu", "quads.cuh"}


def test_code_without_lines() -> None:
    assert ncu_reports.line_page("==ERROR== no source") == ({}, {})


# Shown and kept


def test_they_are_printed_and_kept(report: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ncu_report")
    out = tmp_path / "p.json"
    first = harness("profile", f"--from={report}", "--json", str(out))
    assert first.exit_code == 0, first.output
    lines = first.output.splitlines()
    (row,) = [s for s in lines if s.startswith("03_tiled.cu:36")]
    assert row.split()[1:4] == ["41%", "long_scoreboard", "91%"] and "*a : 0.f;" in row
    assert "of 5,116 samples" in first.output
    readme = (ROOT / "docs" / "profiling.md").read_text()
    shown = readme.split("$ harness profile tiled -a N=512\n...\n")[1].split("\n```")[0].splitlines()
    assert len(shown) == 4 and set(shown) <= set(lines), "what the page shows is what is printed"
    assert any(s.startswith("+0x3c0") and "STS [R18], R9" in s for s in lines)
    assert harness("profile", f"--from={out}").output == first.output
    (kept,) = record.load(out)["rows"]
    hot = Hotspots.of_record(kept["hotspots"])
    assert asdict(hot)["samples"] == 5116 and len(hot.lines) == 12
    assert "03_tiled.cu" not in harness("profile", f"--from={out}", "--csv").output


def test_a_damaged_record_is_told() -> None:
    for broken in ({}, {"samples": 1, "lines": [], "instructions": [{"place": "x"}]}):
        with pytest.raises(HarnessError, match="damaged"):
            Hotspots.of_record(broken)
