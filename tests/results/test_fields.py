"""The fields of every JSON file that commands write: none that was ever there is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fakes import gemm as fake_gemm
from harness.results import tables
from shared.command import FAST, fake, harness, no_gpu  # noqa: F401  (fixtures)
from shared.places import DATA
from shared.sweeps import sweep

# By command line, the paths of all fields as they were before the package had rooms.
FIELDS: dict[str, list[str]] = json.loads((DATA / "fields.json").read_text())
_TIMED = ("bench coalesced", "bench tiled", "bench matmul -a N=16", "tune", "verify tiled")
ON_A_GPU = [c for c in FIELDS if c.startswith(_TIMED)]
MAPS = r"\.(params|axes|versions|mix|sass|counters|tune_params|predict)\.[^\[]*$"  # whose keys are data


def paths(value: Any, path: str = "") -> set[str]:
    """Return the path of every field, with ``[]`` for the first element of a list."""
    if isinstance(value, dict) and value:
        return {p for key, inner in value.items() for p in paths(inner, f"{path}.{key}")}
    if isinstance(value, list) and value:
        return paths(value[0], f"{path}[]")
    return {path + "[]" * isinstance(value, list)}


def fields(content: Any) -> set[str]:
    return {re.sub(MAPS, r".\1", path).lstrip(".").removesuffix("[]") for path in paths(content)}


def known(command: str) -> set[str]:
    """Return the fields of before; a list without elements, or that is None here, counts as a field."""
    return {field.removesuffix("[]") for field in FIELDS[command]}


def written(command: str, tmp_path: Path) -> set[str]:
    file = tmp_path / "out.json"
    fast = FAST if command.startswith("bench") and command in ON_A_GPU else []
    result = harness(*command.split(), *fast, "--json", str(file))
    assert file.exists(), result.output
    return fields(json.loads(file.read_text()))


def lost(known: set[str], written: set[str]) -> set[str]:
    """Return the fields that are gone; one that was null and has content now is not."""
    return {f for f in known if not any(w == f or w.startswith((f"{f}.", f"{f}[")) for w in written)}


HERE = [command for command in FIELDS if command not in ON_A_GPU]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("command", sweep(HERE, lambda command: "matmul" not in command))
def test_no_field_is_lost(command: str, tmp_path: Path) -> None:
    assert lost(known(command), written(command, tmp_path)) == set()


@pytest.mark.slow
@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("command", ON_A_GPU)
def test_no_field_of_times_is_lost(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gemm.without_small_tiles(monkeypatch)  # the fake kernel has no workspace among its parameters
    assert known(command) - written(command, tmp_path) == set()


def test_a_lost_field_is_noticed() -> None:
    before = {"meta": {"seed": 1}, "rows": [{"kernel": "a", "params": {"TILE": 8}, "times": []}]}
    assert fields(before) == {"meta.seed", "rows[].kernel", "rows[].params", "rows[].times"}
    assert fields(before) - fields({**before, "rows": [{"kernel": "a"}]}) == {
        "rows[].params",
        "rows[].times",
    }


def test_matrix_instructions_have_a_column_where_some_code_has_them() -> None:
    """Beside the columns of loads, for what is there alone; a code without them has none to count."""
    plain = {"name": "a", "status": "ok", "sass": {"LDS.128": 4, "bytes": 16}}
    one = {**plain, "name": "b", "sass": {"LDS.128": 0, "HGMMA": 16, "bytes": 16}}
    other = {**one, "sass": {"LDS.128": 0, "HMMA": 2, "bytes": 16}}

    def headings(*rows: dict[str, Any]) -> list[str]:
        return [heading for _, heading, _ in tables.with_matrix(tables.EMULATED, rows)][2:5]

    assert headings(plain, one) == ["smem", "HGMMA", "LDS.128"] and headings(one) == ["smem", "HGMMA", "occ"]
    assert headings(plain, one, other) == ["smem", "MMA", "occ"]
    text = tables.table([plain, one, other], tables.with_matrix(tables.EMULATED, [plain, one, other]))
    assert [line.split()[1:-1] for line in text.splitlines()[2:]] == [["-"], ["HGMMA", "16"], ["HMMA", "2"]]
    assert tables.with_matrix(tables.EMULATED, [plain, {"name": "c", "sass": None}]) == [*tables.EMULATED]
