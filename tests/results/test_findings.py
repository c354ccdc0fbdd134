"""Findings as SARIF, JUnit and GitHub's annotations, which `harness check` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.bench.row import ERROR, EXPECTED, FAILED, OK, REFUSED, UNVERIFIED, Measurement
from harness.emulator import Emulation, Finding, Source
from harness.errors import BuildError
from harness.kernels import catalog
from harness.launch.builds import Built, Skipped, build_all
from harness.problems.gemm import Gemm
from harness.problems.verify import Verdict
from harness.results.gates import findings
from harness.support.cache import Cache
from shared.command import harness
from shared.kernels import TILED


@pytest.fixture
def racy(kernel_file: Any) -> Path:
    return Path(kernel_file(body=TILED.replace("        __syncthreads();\n    }", "    }")))


@pytest.fixture
def built(kernel_file: Any, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Built:
    path = kernel_file("sub/mine.cu".replace("/", "_"))
    monkeypatch.chdir(path.parent)
    (one,), _ = build_all([catalog.kernel(str(path)).variant()], ["sm_90a"], cache, lambda _: None)
    return one


def row(built: Built, status: str, *found: Finding, error: str = "", right: bool = True) -> Measurement:
    wrong = Verdict(
        ok=right,
        elements=4,
        bad=0 if right else 4,
        stray=0,
        worst=9.0,
        max_error=1.0,
        bound=0.1,
        rms=0.0,
        first_bad=(0, 1),
        got=1.0,
        expected=2.0,
    )
    run = Emulation(
        findings=tuple(f for f in found if not f.benign),
        instructions=(),
        notices=tuple(f for f in found if f.benign),
    )
    return Measurement(
        label=built.label,
        built=built,
        problem=Gemm(M=4, N=4, K=4),
        status=status,
        error=error,
        before=wrong,
        emulation=None if status in (REFUSED, ERROR) else run,
    )


RACE = Finding(kind="RAW hazard", message="x: a, b\n100%", sources=(Source(3), Source(5, "half.hpp")), seen=7)


def test_every_row_is_told_and_a_right_one_is_not(built: Built) -> None:
    told = {
        status: [(f.kind, f.level, f.excused) for f in findings.of_row(row(built, status, *found, **more))]
        for status, found, more in (
            (OK, (), {}),
            (FAILED, (RACE,), {}),
            (EXPECTED, (RACE,), {}),
            (ERROR, (), {"error": "boom"}),
            (REFUSED, (), {"error": "mma.foo"}),
        )
    }
    assert told == {
        OK: [],
        FAILED: [("RAW hazard", "error", False)],
        EXPECTED: [("RAW hazard", "note", True)],
        ERROR: [("error", "error", False)],
        REFUSED: [("needs a GPU", "note", False)],
    }
    (wrong,) = findings.of_row(row(built, FAILED, right=False))
    assert (wrong.kind, wrong.level) == ("wrong result", "error"), "wrong numbers without a finding"


def test_annotations_cannot_be_broken_out_of(built: Built) -> None:
    (found,) = findings.of_row(row(built, FAILED, RACE))
    (line,) = findings.workflow_commands([found])
    assert line.startswith("::error file=sub_mine.cu,line=3,title=RAW hazard::x: a, b%0A100%25 (")
    assert "\n" not in line
    odd = findings.Reported(kind="a,b:c", level="note", message="m", path="x,y:1.cu", line=1, text="")
    assert list(findings.workflow_commands([odd])) == ["::notice file=x%2Cy%3A1.cu,line=1,title=a%2Cb%3Ac::m"]


def test_sarif_has_what_code_scanning_reads(built: Built) -> None:
    found = findings.reported([row(built, EXPECTED, RACE), row(built, FAILED, RACE)])
    log = findings.sarif(found, "1.2")
    (run,) = log["runs"]
    assert log["version"] == "2.1.0" and run["tool"]["driver"]["version"] == "1.2"
    ids = [r["id"] for r in run["tool"]["driver"]["rules"]]
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"] == "raw-hazard" and result["message"]["text"]
        (where,) = result["locations"]
        region = where["physicalLocation"]["region"]
        assert region["startLine"] == 3 and region["snippet"]["text"].startswith("// /// kernel")
        assert not where["physicalLocation"]["artifactLocation"]["uri"].startswith("/")
        (other,) = result["relatedLocations"]
        assert other["physicalLocation"]["artifactLocation"]["uri"] == "half.hpp"
    assert run["results"][0]["suppressions"], "marked as broken: shown, but not open"
    assert findings._location("a b/ü.cu", 1)["physicalLocation"]["artifactLocation"]["uri"] == "a%20b/ü.cu"


def test_junit_skips_what_is_in_doubt(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a passed case, where `check` exits with 3; one with a finding is a failure all the same."""
    monkeypatch.setattr(Gemm, "_doubted", {"K": 2}, raising=False)
    suite = ElementTree.fromstring(findings.junit([row(built, UNVERIFIED), row(built, FAILED, RACE)]))
    assert suite.attrib["skipped"] == suite.attrib["failures"] == "1"
    skipped = suite.find("testcase/skipped")
    assert skipped is not None and skipped.attrib["message"].endswith("-a K=4 (2 guessed)")


def test_junit_counts_and_survives_control_characters(built: Built) -> None:
    skipped = [Skipped(variant=built.variant, arch="sm_90a", error=BuildError("no\x00pe", log="\x1b[31m"))]
    rows = [
        row(built, OK),
        row(built, FAILED, RACE),
        row(built, REFUSED, error="mma.foo"),
        row(built, ERROR, error="boom \x07"),
        row(built, EXPECTED, RACE),
    ]
    suite = ElementTree.fromstring(findings.junit(rows, skipped))
    assert suite.attrib == {
        "name": "harness check",
        "tests": "6",
        "failures": "1",
        "errors": "2",
        "skipped": "1",
    }
    failure = suite.find("testcase/failure")
    assert failure is not None and failure.attrib["message"] == "RAW hazard" and failure.text
    assert "sub_mine.cu:3: RAW hazard" in failure.text and "/// kernel" in failure.text


def test_check_writes_all_of_them(racy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    sarif, junit = tmp_path / "out" / "r.sarif", tmp_path / "r.xml"
    args = ["--sarif", str(sarif), "--junit", str(junit), "--github"]
    result = harness("check", str(racy), "-a", "N=48", "-p", "TILE=8", *args)
    assert result.exit_code == 1
    line = next(n for n, text in enumerate(racy.read_text().splitlines(), 1) if "sum += As" in text)
    assert f"::error file=mine.cu,line={line},title=WAR hazard::" in result.stdout
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    assert {r["level"] for r in results} == {"error"} and len(results) == 2
    assert ElementTree.parse(junit).getroot().attrib["failures"] == "1"


def test_a_file_outside_the_checkout_has_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert findings.relative(tmp_path / "a" / "b.cu") == "a/b.cu"
    assert findings.relative(tmp_path.parent / "b.cu") == "b.cu"


def test_a_kernel_that_is_not_built_is_a_result_at_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.cu").write_text("__global__ void bad(float* x)\n{\n    x[0] = y;\n}\n")
    result = harness("check", "bad.cu", "--sarif", "r.sarif", "--junit", "r.xml", "--github")
    assert result.exit_code == 1 and "::error file=bad.cu,line=3,title=build error::" in result.stdout
    (found,) = json.loads(Path("r.sarif").read_text())["runs"][0]["results"]
    assert found["ruleId"] == "build-error" and 'identifier "y"' in found["message"]["text"]
    assert found["locations"][0]["physicalLocation"]["region"]["startLine"] == 3
    assert ElementTree.parse("r.xml").getroot().attrib["errors"] == "1"
