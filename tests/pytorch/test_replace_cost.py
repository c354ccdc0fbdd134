"""benchmarks/replace_cost.py without a GPU: what it times, and what it leaves behind."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.places import ROOT


@pytest.fixture
def script(torch: Any, multiplied: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("replace_cost", ROOT / "benchmarks" / "replace_cost.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_timed(script: Any, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the three ways only the last asks Python at each call."""
    from harness.torch import known, replacement

    asked, ours = [0], replacement._Replaced._either

    def counted(*args: Any) -> Any:
        asked[0] += 1
        return ours(*args)

    monkeypatch.setattr(replacement._Replaced, "_either", counted)
    loaded = known.loaded
    found = script.compare("cpu", calls=5, rounds=2)
    assert set(found) == {"mm", "mm, out=", "addmm", "bmm", "baddbmm"}
    assert all(0 < time < float("inf") for times in found.values() for time in times)
    assert asked[0] == 2 * len(found) * (1 + 6)  # a block by the table asks once, by Python at each of 1 + 5
    assert known.loaded is loaded


def test_what_is_printed_and_recorded(
    script: Any, table: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    path = tmp_path / "cost.json"
    monkeypatch.setattr(sys, "argv", ["replace_cost.py", "--json", str(path)])
    monkeypatch.setattr(script.torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(script, "compare", lambda device: {"mm": [1.0, 1.25, 4.0]})
    script.main()
    first, _, row = capsys.readouterr().out.splitlines()
    assert first.startswith("PyTorch ") and first.endswith(" on cpu")
    assert row.split() == ["mm", "1.00", "1.25", "(+0.25)", "4.00", "(+3.00)"]
    found = json.loads(path.read_text())
    assert found["kind"] == "replace-cost" and found["meta"]["known"] == "compiled"
    assert [(r["product"], r["way"], r["microseconds"]) for r in found["rows"]] == [
        ("mm", "PyTorch", 1.0),
        ("mm", "PyTorch's", 1.25),
        ("mm", "PyTorch's, asking Python", 4.0),
    ]
