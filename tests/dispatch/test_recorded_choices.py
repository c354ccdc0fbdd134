"""The choices in records of the dispatcher are those of today, or known to be stale."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from harness.dispatch import choose, split
from harness.kernels import catalog
from harness.kernels.spec import LAYOUT
from harness.problems.gemm import GEMMS
from harness.results import record
from shared.places import RECORDS, record_file

FILES = sorted(f for f in RECORDS.glob("h200/matmul/*.json*") if not f.stem.startswith("sustained"))

# File, shape and why: to be recorded anew. What is listed and is not stale fails as well.
FITTED, TILES = "the costs of panels are fitted", "39 is among the candidates"
NEAR = "constants and trees know draws near what was lost"
STALE: tuple[tuple[str, str, str], ...] = (
    *(
        (f"{name}-{dtype}", f"{shape} {dtype}", NEAR)
        for name, dtype, shapes in (
            ("graph", "bf16x6", "512 2048 4096x4096x64"),
            ("squares", "bf16x6", "512 2048 4096x4096x64"),
            ("squares", "fp16x3", "512"),
        )
        for shape in shapes.split()
    ),
    *(
        (f"{name}-3xtf32", f"{shape} 3xtf32", why)
        for name in ("graph", "squares")
        for shape, why in (
            *((shape, TILES) for shape in ("256", "512", "1024")),
            *((shape, FITTED) for shape in ("2048", "2049x2047x2049")),
        )
    ),
    ("graph-fp32", "2049x2047x2049", NEAR),
    ("graph-fp32", "1025x1023x1025", NEAR),
    ("squares-3xtf32", "8192x256x1024 3xtf32", TILES),
    ("squares-3xtf32", "256x8192x1024 3xtf32", TILES),
    ("squares-3xtf32", "1025x1023x1025 3xtf32", FITTED),
)


def named(params: Mapping[str, int]) -> dict[str, int]:
    """Return the parameters that a record names."""
    return {name: value for name, value in params.items() if value or name not in LAYOUT}


def stale(name: str, content: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """File, shape and both choices, of each row that says otherwise than `harness.dispatch.split`."""
    gpu = content["meta"]["gpu"]
    for row in content["rows"]:
        if recorded := row.get("chosen"):
            shape = [row["axes"][axis] for axis in ("M", "N", "K")]
            about = choose.about(GEMMS[row["dtype"]].from_axes(row["axes"]))  # where rows begin, too
            card = {"sms": gpu["sms"], "gpu": gpu["name"], "arch": row["arch"]}
            today, *others = (part.variant for part in split.divided(*shape, **card, **about))
            # A parameter that is newer than the record has its default.
            defaults = {name: values[0] for name, values in catalog.kernel(recorded["kernel"]).params.items()}
            params = named({**defaults, **recorded["params"]})
            ran = recorded["kernel"], params, recorded.get("others", [])
            if (today.kernel.name, named(today.params), [v.brief for v in others]) != ran:
                brief = split.brief((today, *others))
                yield name, row["shape"], f"{recorded['label']} was chosen, {brief} would be"


@pytest.mark.slow
def test_recorded_choices_are_todays() -> None:
    record_file("h200/matmul/squares")
    contents = {path.name.partition(".")[0]: record.load(path) for path in FILES}
    assert sum(bool(r.get("chosen")) for c in contents.values() for r in c["rows"]) >= 30
    found = [entry for name, content in contents.items() for entry in stale(name, content)]
    known = {(name, shape) for name, shape, _ in STALE}
    new = [entry for entry in found if entry[:2] not in known]
    assert not new, f"record these anew, or list them as stale: {new}"
    over = known - {entry[:2] for entry in found}
    assert not over, f"no longer stale, take them off the list: {sorted(over)}"


@pytest.mark.parametrize("change", ["kernel", "params", "gpu", "dtype", "shape"])
def test_another_choice_is_seen(change: str) -> None:
    """The control: a record that is right, and one thing in it changed."""
    content = record.load(record_file("h200/matmul/graph-tf32"))
    shape = "512 tf32"
    content["rows"] = [copy.deepcopy(r) for r in content["rows"] if r["shape"] == shape and r.get("chosen")]
    (row,) = content["rows"]
    assert list(stale("x", content)) == []
    if change == "kernel":
        row["chosen"]["kernel"] = "22_wgmma"
    elif change == "params":
        row["chosen"]["params"]["STAGES"] -= 1
    elif change == "gpu":
        content["meta"] = {**content["meta"], "gpu": {**content["meta"]["gpu"], "sms": 16, "name": "another"}}
    elif change == "dtype":
        row["dtype"] = "fp32"
    else:
        row["axes"] = {"M": 8192, "N": 8192, "K": 8192}
    ((name, found, said),) = stale("x", content)
    assert (name, found) == ("x", shape) and "25_wgmma_tf32" in said
