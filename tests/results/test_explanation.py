"""The sentence that ends `harness explain`: what changed, what that did, what binds now."""

from __future__ import annotations

import re
from typing import Any

from harness.results import explanation
from shared.command import harness
from shared.places import record_file

NUMBER = re.compile(r"\d[\d,.]*\d|\d")


def unfounded(output: str) -> set[str]:
    """Return the numbers of the last paragraph that do not stand above it."""
    *above, last = output.strip().split("\n\n")
    return set(NUMBER.findall(last)) - set(NUMBER.findall("\n\n".join(above)))


def test_it_has_the_numbers_above_it_and_no_others() -> None:
    files = [f"--record={record_file(f'h200/{kind}/ladder')}" for kind in ("bench", "profile")]
    result = harness("explain", "coalesced", "tiled", "-a", "N=64", *files)
    assert result.exit_code == 0, result.output
    said = result.output.strip().split("\n\n")[-1]
    assert said.startswith("03_tiled TILE=16 takes 2,048 shared bytes instead of 0")
    assert "1.45 (1.45 to 1.45) times as fast at 4096 on NVIDIA H200" in said and "MIO-queue-bound" in said
    assert unfounded(result.output) == set()
    assert unfounded(result.output.replace("times the sectors", "times the 7.77 sectors")) == {"7.77"}


def conclude(**changed: Any) -> str:
    given: dict[str, Any] = {"code": {}, "figures": ({}, {}), "times": [], "bound": []} | changed
    return explanation.conclusion("a", "b", **given)


def test_what_is_not_known_is_named() -> None:
    said = conclude()
    assert said == (
        "b takes as many registers and as much shared memory as a, was not counted, and was not timed here "
        "(--record, or a GPU); what holds it back now only a profile can tell (--record)."
    )


def test_what_went_away_and_what_appeared_is_told() -> None:
    figures = (
        {"conflicts": 512.0, "sectors": 100.0, "barriers": 0.0},
        {"conflicts": 0.0, "sectors": 101.0, "barriers": 8.0},
    )
    said = conclude(figures=figures)
    assert "has no conflicts any more and barriers where there were none" in said
    assert "sectors" not in said, "one per cent is not worth a word"
    assert "asks for the same memory" in conclude(figures=({"sectors": 1.0}, {"sectors": 1.0}))
    assert "40 registers instead of 32" in conclude(code={"registers": (32, 40), "spills": (None, 4)})


def test_what_neither_kernel_has_is_no_row() -> None:
    rows = explanation.counted({"sectors": 8.0, "barriers": 0.0}, {"sectors": 4.0, "conflicts": 2.0})
    assert [(name, a, b) for name, a, b, *_ in rows] == [("sectors", "8", "4"), ("conflicts", "-", "2")]
