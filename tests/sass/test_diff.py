"""Differences between machine code, and listings of it."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.sass import binary, listing, nvdisasm
from harness.sass.diff import compare
from harness.support.cache import Cache
from shared import sweeps
from shared.inspected import Read, build, harness, read  # noqa: F401  (fixture)


def test_identical_code(read: Read, cache: Cache, tmp_path: Path) -> None:
    a, b = read("tiled", "sm_90"), read("tiled", "sm_90a")
    found = compare(a, b)
    assert found.identical and not found.loop and not found.kernel
    file = tmp_path / "k.cubin"
    file.write_bytes(build("tiled", "sm_90", cache).code)
    (foreign,) = binary.read(file, cache, threads=256)
    assert compare(a, foreign).identical


def test_a_changed_stall_count_is_not_identical(cache: Cache, read: Read, tmp_path: Path) -> None:
    """The text is the same: only the encoding tells that the schedule is another."""
    code = bytearray(build("tiled", "sm_90", cache).code)
    text = nvdisasm.sections(bytes(code))[".text.matmul"]
    code[bytes(code).index(text) + 13] ^= 2  # bit 105: the lowest of the first instruction's stall count
    file = tmp_path / "k.cubin"
    file.write_bytes(code)
    (patched,) = binary.read(file, cache)
    original = read("tiled", "sm_90")
    assert [str(i) for i in patched.sass.instructions] == [str(i) for i in original.sass.instructions]
    found = compare(original, patched)
    assert not found.identical and not found.kernel
    result = harness("tiled", "--arch", "sm_90", "--diff", str(file))
    assert result.exit_code == 0 and "operands, order or scheduling differ" in result.output


def test_what_changed(read: Read) -> None:
    a, b = read("tiled", "sm_80", TILE=16), read("tiled", "sm_80", TILE=32)
    found = compare(a, b)
    assert found.loop["FFMA"] == (16, 32) and found.loop["LDS.128"] == (4, 8)
    assert found.kernel["FFMA"] == (a.sass.count("FFMA"), b.sass.count("FFMA"))
    assert found.figures["shared bytes"] == (2048, 8192)
    assert "BAR.SYNC.DEFER_BLOCKING" not in found.loop, "it did not change"


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("TILE=32", "03_tiled TILE=32, sm_80"),
        ("sm_75", "03_tiled TILE=16, sm_75"),
        ("TILE=8 sm_75", "03_tiled TILE=8, sm_75"),
        ("coalesced", "02_coalesced BX=32 BY=32, sm_80"),
        ("tiled", "identical code"),
    ],
)
def test_diff_on_the_command_line(what: str, text: str) -> None:
    result = harness("tiled", "--arch", "sm_80", "--diff", what)
    assert result.exit_code == 0, result.output
    assert text in result.output
    assert max(map(len, result.output.splitlines())) <= 80


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["0[1-3]*", "--diff", "tiled"], "compares one kernel with another; the command line selects 3"),
        (["tiled", "--diff", ""], "a kernel without a name"),
        (["tiled", "--diff", "naive coalesced"], "does not say one thing"),
        (["tiled", "--diff", "'"], "no closing quotation"),
        (["tiled", "--diff", "nope"], "no kernel 'nope'"),
        (["tiled", "--diff", "T=1"], "no kernel here has a parameter T"),
        (["tiled", "--diff", "sm_12"], "sm_12"),
    ],
)
def test_diffs_that_make_no_sense(args: list[str], text: str) -> None:
    result = harness(*args)
    assert result.exit_code == 2 and text in result.output


def test_diff_as_json(tmp_path: Path) -> None:
    file = tmp_path / "d.json"
    assert harness("tiled", "--diff", "TILE=32", "--json", str(file)).exit_code == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert not row["identical"] and row["loop"]["FFMA"] == [16, 32]
    assert row["a"]["sass_sha256"] != row["b"]["sass_sha256"]


# Listings


@pytest.mark.parametrize(("name", "arch"), sweeps.builds(["sm_90a"]))
def test_a_listing_holds_every_instruction_once(name: str, arch: str, read: Read) -> None:
    code = read(name, arch)
    wanted = sorted(str(i) for i in code.sass.instructions)
    for rows in (listing.by_address(code), listing.by_source(code, width=160)):
        found = [re.search(r"([ *]) ([0-9a-f]{4,5}) {1,6}(@\S+)? *(\S+.*)$", row) for row in rows]
        shown = [f for f in found if f and int(f[2], 16) % 16 == 0 and f[4].split(" ")[0][0].isupper()]
        assert sorted(f"{f[3] or ''} {f[4]}".strip() for f in shown) == wanted
        assert code.hot_loop is not None
        starred = {int(f[2], 16) for f in shown if f[1] == "*"}
        assert starred == code.hot_loop.addresses


def test_source_beside_its_code() -> None:
    args = ["sass", "tiled", "--arch", "sm_80", "--source"]
    result = CliRunner().invoke(main, args, env={"COLUMNS": "80"})
    assert result.exit_code == 0
    lines = result.output.splitlines()
    (at,) = (n for n, row in enumerate(lines) if "sum += " in row)
    mine = list(itertools.takewhile(lambda row: row.startswith(" " * 24), lines[at + 1 :]))
    assert sum(" FFMA " in row for row in mine) == 16, "they lie apart in the code, and side by side here"
    assert "[B" not in result.output, "not asked for"
    assert max(map(len, lines)) <= 80


def test_control_codes_in_the_listing() -> None:
    result = harness("tiled", "--arch", "sm_80", "--listing", "--control")
    assert "undocumented by NVIDIA" in result.output
    assert len(re.findall(r"\[B[0-5-]{6}:R[0-5-]:W[0-5-]:[Y-]:S\d\d\]", result.output)) > 100
    alone = harness("tiled", "--control")
    assert alone.exit_code == 2 and "--listing or --source" in alone.output


def test_colours_on_a_terminal_only() -> None:
    plain = harness("tiled", "--arch", "sm_80", "--source")
    args = ["sass", "tiled", "--arch", "sm_80", "--source"]
    coloured = CliRunner().invoke(main, args, color=True)
    assert "\x1b[" not in CliRunner().invoke(main, args, color=True, env={"NO_COLOR": "1"}).output
    assert "\x1b[" not in plain.output
    assert "\x1b[32mFFMA " in coloured.output and "\x1b[36mLDS" in coloured.output
