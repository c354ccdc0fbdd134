"""`harness compare`: what counts as a difference, and which files can be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.results import record
from shared.command import harness
from shared.result_runs import run_file


@pytest.mark.parametrize(
    ("seconds", "noise", "status", "code"),
    [
        (1.001e-3, 0.01, "SAME", 0),
        (1.05e-3, 0.01, "SLOW", 1),
        (0.95e-3, 0.01, "FAST", 0),
        (1.02e-3, 0.01, "INCONCLUSIVE", 3),
        (1.01e-3, 0.5, "INCONCLUSIVE", 3),
    ],
)
def test_compare(tmp_path: Path, seconds: float, noise: float, status: str, code: int) -> None:
    ref, cmp = run_file(tmp_path / "a", 1e-3), run_file(tmp_path / "b", seconds, noise=noise, sass="b")
    result = harness("compare", str(ref), str(cmp))
    assert result.exit_code == code
    (line,) = [s for s in result.stdout.splitlines() if s.startswith("k ")]
    assert line.split()[-1] == status and "1.00 ms" in line and len(line) <= 80
    header = next(s for s in result.stdout.splitlines() if "Ref Time" in s)
    assert header.split() == ["kernel", "Ref", "Time", "+-%", "Cmp", "Time", "+-%", "%Diff", "Status"]
    csv = harness("compare", str(ref), str(cmp), "--csv").stdout.splitlines()
    assert csv[0].startswith("Kernel,Shape,Ref Time") and f",{status}," in csv[1]


def test_the_threshold_decides_what_counts(tmp_path: Path) -> None:
    ref, cmp = (
        run_file(tmp_path / "a", 1e-3, noise=0.001),
        run_file(tmp_path / "b", 1.01e-3, noise=0.001, sass="b"),
    )
    assert harness("compare", str(ref), str(cmp)).exit_code == 0
    assert harness("compare", str(ref), str(cmp), "--threshold", "0.5%").exit_code == 1
    assert harness("compare", str(ref), str(cmp), "--threshold", "-1").exit_code == 2


def test_identical_code_is_noise_however_far_apart(tmp_path: Path) -> None:
    ref, cmp = run_file(tmp_path / "a", 1e-3), run_file(tmp_path / "b", 1.1e-3)
    result = harness("compare", str(ref), str(cmp))
    assert result.exit_code == 0 and "identical SASS: machine noise: k" in result.stdout
    other = run_file(tmp_path / "c", 1.1e-3, block=[2])  # the same instructions, launched otherwise
    assert harness("compare", str(ref), str(other)).exit_code == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"uuid": "GPU-2"}, "another GPU: GPU-1 and GPU-2"),
        ({"math_mode": "TF32"}, "another math mode: pedantic and TF32"),
        ({"cublas": "12"}, "another cuBLAS"),
        ({"seed": 2}, "another input data (seed)"),
        ({"regime": "hot"}, "another regime: cold and hot"),
        ({"sm_hz": 1.755e9}, "another SM clock, 1980 and 1755 MHz (k T=1, 64)"),
    ],
)
def test_incomparable_runs_are_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    ref, cmp = run_file(tmp_path / "a", 1e-3), run_file(tmp_path / "b", 1e-3, sass="b", **change)
    result = harness("compare", str(ref), str(cmp))
    assert result.exit_code == 2 and reason in result.stderr and "--force" in result.stderr
    assert harness("compare", str(ref), str(cmp), "--force").exit_code == 0


@pytest.mark.parametrize("kind", ["selftest", "tuners", "calibration"])
def test_what_has_no_times_of_kernels_is_not_compared(tmp_path: Path, kind: str) -> None:
    bench, other = run_file(tmp_path / "a", 1e-3), tmp_path / "other.json"
    record.write_json(other, record.document(kind, [{"median": 1.0}], {}))
    for pair in ((bench, other), (other, bench), (other, other)):
        result = harness("compare", *map(str, pair), "--force")
        assert result.exit_code == 2
        assert f"{other}: what {kind} wrote has neither times nor static figures" in result.stderr


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": 2, "meta": {}, "rows": [3'])
def test_what_is_no_result_file_is_no_regression(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    result = harness("compare", str(path), str(path))
    assert result.exit_code == 2 and str(path) in result.stderr


def test_a_row_that_fails_now_has_regressed(tmp_path: Path) -> None:
    ref = run_file(tmp_path / "a", 1e-3)
    cmp = run_file(tmp_path / "b", 1e-3, status="FAILED", detail="all wrong", times=[])
    content = json.loads(cmp.read_text())
    content["rows"][0]["seconds"] = None
    cmp.write_text(json.dumps(content))
    result = harness("compare", str(ref), str(cmp))
    assert result.exit_code == 1 and "all wrong" in result.stdout


def test_nothing_in_common(tmp_path: Path) -> None:
    ref, cmp = run_file(tmp_path / "a", 1e-3), run_file(tmp_path / "b", 1e-3, shape="128")
    result = harness("compare", str(ref), str(cmp))
    assert result.exit_code == 2 and "no measured row in common" in result.stderr
