"""Results of rung 25 that are all there is to write, where rows begin within sectors: 128 columns at a time.

The rung does so from eight million elements on, which take too long here: the tests have no such limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.bench.emulation import Options
from harness.bench.row import OK, Measurement
from harness.kernels import catalog
from shared.hopper_rungs import compiled, faults, launched

RUNG = catalog.kernel("25_wgmma_tf32")
LIMIT = "(long long)M * N * MATRICES >= 1 << 23"
SMALL = {"BM": 128, "STAGES": 6}
LAYOUTS: dict[str, dict[str, int]] = {"NN": {}, "NT": {"TRANSB": 1}, "TT": {"TRANSA": 1, "TRANSB": 1}}
SETS = {
    **{layout: {**SMALL, **params} for layout, params in LAYOUTS.items()},
    "64 rows": {"BM": 64, "STAGES": 8},
    "two blocks": {"BM": 128, "BN": 64, "STAGES": 4, "BLOCKS": 2, **LAYOUTS["TT"]},
}
RAGGED = {"M": 150, "N": 141, "K": 40, "ldc": 148}


def ran(folder: Path, params: dict[str, int], axes: dict[str, float], *edits: tuple[str, str]) -> Measurement:
    """Run the rung with the limit down to nothing and these edits of its text."""
    text = RUNG.source
    for old, new in ((LIMIT, "true"), *edits):
        assert old in text, "the rung has changed"
        text = text.replace(old, new)
    path = folder / RUNG.path.name
    path.write_text(text, encoding="utf-8")
    layout = {"transa": params.get("TRANSA", 0), "transb": params.get("TRANSB", 0)}
    return launched(compiled(catalog.kernel(str(path)).variant(**params)), {**axes, **layout}, Options())


def one_by_one(cases: dict[str, Any]) -> list[Any]:
    """Return the cases, of which all but the first take the time of slow ones."""
    return [
        pytest.param(x, id=i, marks=[pytest.mark.slow] * (n > 0)) for n, (i, x) in enumerate(cases.items())
    ]


@pytest.mark.slow
@pytest.mark.parametrize("params", SETS.values(), ids=SETS)
@pytest.mark.parametrize("scalars", [{}, {"alpha": 1.5, "beta": -0.5}], ids=["product", "sum"])
def test_rows_of_128_columns_are_right(
    params: dict[str, int], scalars: dict[str, float], tmp_path: Path
) -> None:
    found = ran(tmp_path, params, {**RAGGED, **scalars})
    assert found.status == OK, faults(found)


FAULTS = {
    "rows that are overwritten while others read them": ("all_warps();  // the last rows have been read", ""),
    "rows that are read before they are there": (
        "all_warps();\n                store_rows(row",
        "store_rows(row",
    ),
    "rows below C": (
        "r < c_rows)\n                            store4",
        "true)\n                            store4",
    ),
    "columns beside C": ("&v[j].x, c_columns - n, true", "&v[j].x, 4, true"),
    "another swizzle": ("4 * lane % 32 ^ from % 8 * 4", "4 * lane % 32 ^ from % 4 * 4"),
}


@pytest.mark.parametrize("edit", one_by_one(FAULTS))
def test_what_is_planted_there_is_found(edit: tuple[str, str], tmp_path: Path) -> None:
    assert ran(tmp_path, SETS["NN"], RAGGED, edit).status != OK


TURNED = {
    "rows that are overwritten while others read them": ("all_warps();  // the last rows have been read", ""),
    "rows that are read before they are there": (
        "all_warps();\n                store_rows(column_of",
        "store_rows(column_of",
    ),
    "a row for the next": ("APART = TRANSA ? 2 : 1", "APART = 1"),
    "another swizzle": ("(4 * lane ^ from % 4 * 8)", "(4 * lane ^ from % 2 * 8)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("edit", TURNED.values(), ids=TURNED)
def test_what_is_planted_in_the_other_side_is_found(edit: tuple[str, str], tmp_path: Path) -> None:
    assert ran(tmp_path, SETS["TT"], RAGGED, edit).status != OK
