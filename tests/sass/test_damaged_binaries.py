"""Damaged cubins and fat binaries, drawn at random: clear words from the command line, and no traceback."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from harness.kernels import catalog
from harness.kernels.compiler import compile_kernel
from harness.sass import nvdisasm
from harness.support.cache import Cache
from shared import binaries
from shared.command import harness

COMMANDS = (["--listing", "--control"], [], ["--list"], ["--diff", "SOUND"])
SECONDS = 60  # of one command on this file of 12 KB: a disassembler has 30


@pytest.fixture(params=["cubin", "fatbin"])
def sound(request: pytest.FixtureRequest, cache: Cache, tmp_path: Path) -> Path:
    code = compile_kernel(catalog.kernel("tiled").variant(), "sm_90", cache).code
    path = tmp_path / f"sound.{request.param}"
    path.write_bytes(code if request.param == "cubin" else binaries.fatbin((90, code)))
    return path


def survives(sound: Path, seed: int) -> int:
    """Run a command on a damaged file, which has to end by itself, with words where it fails."""
    bad = sound.with_stem("bad")
    bad.write_bytes(binaries.damaged(sound.read_bytes(), seed))
    command = COMMANDS[seed % len(COMMANDS)]
    began = time.monotonic()
    result = harness("sass", str(bad), *(str(sound) if word == "SOUND" else word for word in command))
    assert time.monotonic() - began < SECONDS, (seed, command)
    assert result.exit_code in (0, 1, 2, 3), (seed, result.output)
    assert result.exit_code == 0 or "error: " in result.stderr, (seed, command)
    assert "\x1b" not in result.output and "harness-" not in result.stderr, (seed, command)
    return result.exit_code


@pytest.mark.slow
def test_a_damaged_file_never_shows_a_traceback(sound: Path) -> None:
    first = random.SystemRandom().randrange(2**32)
    for seed in range(first, first + 12):
        survives(sound, seed)


@pytest.mark.exhaustive
def test_a_thousand_damaged_files(sound: Path) -> None:
    """Draw anew at every run; a failure names its seed. Among them are sound and refused ones."""
    first = random.SystemRandom().randrange(2**32)
    codes = Counter(survives(sound, seed) for seed in range(first, first + 1000))
    assert min(codes[0], codes[1] + codes[2]) > 100, codes


@pytest.mark.slow
def test_a_refusal_that_nobody_expects_is_noticed_here(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the disassembler's refusal, as an error that is not harness's own."""
    monkeypatch.setattr(nvdisasm, "InspectError", ZeroDivisionError)
    with pytest.raises(TypeError, match="ZeroDivisionError"):
        for seed in range(40):
            survives(sound, seed)
