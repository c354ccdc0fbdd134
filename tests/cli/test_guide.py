"""Groups and examples of `--help`, and a shell's completion of kernel names."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from harness.cli import VERBS, guide, main
from shared.command import harness


def test_every_verb_is_in_one_group_with_an_example() -> None:
    grouped = [name for _, names in guide.sections(VERBS) for name in names]
    assert sorted(grouped) == sorted(VERBS) and guide.sections(VERBS)[-1][0] != "Others"
    assert guide.sections(["nope"]) == [("Others", ["nope"])], "a new one is shown all the same"
    shown = harness("--help").output
    headings = [line for line in shown.splitlines() if re.fullmatch(r"\w.*:", line)]
    assert headings[-len(guide.GROUPS) :] == [f"{h}:" for h in guide.GROUPS]
    assert not [verb for verb in VERBS if not re.search(rf"^  {verb} ", shown, re.MULTILINE)]


@pytest.mark.parametrize("verb", VERBS)
def test_examples_are_of_their_verb_and_have_its_options(verb: str) -> None:
    program, name, *words = shlex.split(guide.EXAMPLES[verb])
    command = main.get_command(click.Context(main), name)
    assert (program, name) == ("harness", verb) and command is not None
    known = {o for p in command.params for o in p.opts}
    assert not [w for w in words if w.startswith("-") and w not in known]
    assert f"Example: {guide.EXAMPLES[verb]}" in " ".join(harness(verb, "--help").output.split())


def test_kernels_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import BashComplete

    complete = BashComplete(main, {}, "harness", "_HARNESS_COMPLETE")
    found = {item.value for item in complete.get_completions(["sass"], "til")}
    assert {"tiled", "tiled_coarse"} <= found and "pipeline" not in found
    assert "03_tiled" in {item.value for item in complete.get_completions(["check"], "03")}
    assert {item.type for item in complete.get_completions(["check"], "my/")} == {"file"}
    assert "compare" in {item.value for item in complete.get_completions([], "comp")}
