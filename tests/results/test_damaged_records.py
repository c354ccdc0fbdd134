"""Damaged result files, drawn at random: a clear line from every command that reads them, no traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.results import comparison, record
from harness.support import typed
from shared import damaged
from shared.command import harness, no_gpu

COMMANDS = {
    "bench": (
        ["compare", "SOUND", "BAD"], ["compare", "BAD", "SOUND", "--force"], ["choose", "BAD"],
        ["replay", "BAD"],
    ),
    "tune": (["choose", "BAD"],),
    "profile": (["profile", "--from", "BAD"],),
    "claims": (),
}  # fmt: skip
PAGES = {kind: ["report", "BAD", "-o", "PAGE"] for kind in ("bench", "profile")} | {
    "claims": ["report", "BAD", "BENCH", "-o", "PAGE"]
}


def survives(folder: Path, kind: str, seed: int, commands: Any) -> None:
    """Run the commands on a damaged file: each has to end by itself, with words where it fails."""
    places = {
        "SOUND": folder / "sound.json", "BAD": folder / "bad.json", "PAGE": folder / "page.html",
        "BENCH": folder / "bench.json",
    }  # fmt: skip
    places["SOUND"].write_text(json.dumps(damaged.sound(kind)))
    places["BENCH"].write_text(json.dumps(damaged.sound("bench")))
    places["BAD"].write_bytes(damaged.damaged(kind, seed))
    for command in commands:
        result = harness(*(str(places.get(word, word)) for word in command))  # raises what is no exit
        assert result.exit_code in (0, 1, 2, 3), (seed, result.output)
        assert result.exit_code == 0 or result.output.strip(), (seed, command)
        assert "\x1b" not in result.output, (seed, command)


SEEDS = st.integers(0, 2**32)
RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("kind", damaged.KINDS)
@settings(RELAXED, max_examples=25)
@given(seed=SEEDS)
def test_a_damaged_file_never_shows_a_traceback(
    kind: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = [PAGES[kind]] if kind in PAGES and seed % 5 == 0 else []  # a page takes a second to draw
    survives(tmp_path_factory.mktemp("records"), kind, seed, [*COMMANDS[kind], *page])


@pytest.mark.exhaustive
@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("kind", damaged.KINDS)
def test_thousands_of_damaged_files(kind: str, tmp_path: Path) -> None:
    """Draw anew at every run; a failure names its seed."""
    first = random.SystemRandom().randrange(2**32)
    for seed in range(first, first + 5000):  # 20,000 of all kinds
        page = [PAGES[kind]] if kind in PAGES and seed % 10 == 0 else []
        survives(tmp_path, kind, seed, [*COMMANDS[kind], *page])


def test_the_draws_are_of_use() -> None:
    """The control: among them are sound and refused files, and what only the types of the rows refuse."""
    refused, passed = set(), 0
    for seed in range(150):
        content = damaged.damaged("tune", seed)
        try:
            loaded = json.loads(content, parse_constant=lambda _: 1 / 0)
            passed += not record._damage(loaded, loaded["rows"])
            refused.add(record._damage(loaded, loaded["rows"])[:9])
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError):
            continue
    assert passed > 10 and len(refused) > 4


def test_without_the_types_a_damaged_file_is_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The control: with the check at the door taken away, the reader behind it fails."""
    content = damaged.sound("bench")
    for bench in content["benchmarks"]:
        for state in bench["states"]:
            state["harness"]["times"] = list("abcdef")
    path = tmp_path / "r.json"
    path.write_text(json.dumps(content))
    assert harness("compare", str(path), str(path)).exit_code == 2
    monkeypatch.setattr(typed, "damage", lambda *_: "")
    loaded = record.load(path)
    with pytest.raises((TypeError, ValueError)):
        comparison.compare(loaded, loaded, threshold=0.02)


__all__ = ["no_gpu"]
