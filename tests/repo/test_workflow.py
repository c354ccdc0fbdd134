"""The workflow that docs/gates.md offers: YAML whose commands harness understands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

from harness.cli import main
from shared.places import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
PAGE = ROOT / "docs" / "gates.md"


def workflow(page: Path = PAGE) -> dict[str, Any]:
    """Return the workflow on the page."""
    (text,) = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    loaded = yaml.safe_load(text)
    assert isinstance(loaded, dict)
    return loaded


def faults(content: dict[str, Any]) -> list[str]:
    """Return what is wrong with the commands of its steps: unknown verbs and options."""
    found = []
    for job in content["jobs"].values():
        for step in job["steps"]:
            words = re.sub(r"\$\{\{.*?\}\}", "main", step.get("run", "")).split()
            if words[:1] != ["harness"]:
                continue
            command = main.get_command(click.Context(main), words[1])
            known = {o for p in command.params for o in p.opts} if command is not None else set()
            found += [w for w in words[2:] if w.startswith("-") and w not in known]
            found += [] if command is not None else [words[1]]
    return found


def test_the_workflow_is_one() -> None:
    content = workflow()
    steps = content["jobs"]["check"]["steps"]
    runs = [step["run"] for step in steps if "run" in step]
    assert sum(run.startswith("harness ") for run in runs) == 2 and faults(content) == []
    (sarif,) = re.findall(r"--sarif (\S+)", " ".join(runs))
    assert [s["with"]["sarif_file"] for s in steps if "upload-sarif" in s.get("uses", "")] == [sarif]
    assert steps[0]["with"]["fetch-depth"] == 0, "without the base branch there is nothing to compare with"
    assert content["permissions"]["security-events"] == "write", "SARIF cannot be uploaded without"


def test_a_planted_option_is_noticed() -> None:
    content = workflow()
    content["jobs"]["check"]["steps"].append({"run": "harness check --fast"})
    content["jobs"]["check"]["steps"].append({"run": "harness chekc"})
    assert faults(content) == ["--fast", "chekc"]
