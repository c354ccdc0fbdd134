"""Values from files against the types of the code: what is wrong is named by its place."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

import pytest

from harness.support.typed import Above, damage


class Inner(TypedDict):
    size: Annotated[int, Above(0)]
    note: NotRequired[str]


class Outer(TypedDict, total=False):
    name: Required[str]
    inner: Inner | None
    rates: list[float]
    table: dict[str, list[int]]
    kind: Literal["a", "b"]
    flag: bool
    anything: Any


def outer(**changes: Any) -> dict[str, Any]:
    return {"name": "n", "inner": {"size": 1}, "rates": [1, 2.5], "table": {"x": [1]}, **changes}


@pytest.mark.parametrize(
    "change",
    [
        {}, {"inner": None}, {"rates": []}, {"kind": "a"}, {"flag": False}, {"anything": [object]},
        {"unknown": object}, {"inner": {"size": 1, "note": ""}}, {"rates": [10**299, -1, 0]}, {"table": {}},
    ],
    ids=str,
)  # fmt: skip
def test_sound_values(change: dict[str, Any]) -> None:
    assert damage(outer(**change), Outer) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 1}, "name is 1, not a text"),
        ({"inner": 3}, "inner is 3, not an object or null"),
        ({"inner": {}}, "inner has no 'size'"),
        ({"inner": {"size": 0}}, "inner.size is 0, not more than 0"),
        ({"inner": {"size": 1.0}}, "inner.size is 1.0, not a whole number"),
        ({"inner": {"size": True}}, "inner.size is True, not a whole number"),
        ({"inner": {"size": 1, "note": None}}, "inner.note is None, not a text"),
        ({"rates": {}}, "rates is {}, not a list"),
        ({"rates": "12"}, "rates is '12', not a list"),
        ({"rates": [1, "2"]}, "rates[1] is '2', not a number"),
        ({"rates": [True]}, "rates[0] is True, not a number"),
        ({"rates": [float("inf")]}, "rates[0] is inf, not a number"),
        ({"rates": [float("nan")]}, "rates[0] is nan, not a number"),
        ({"table": {"x": [1, None]}}, "table.x[1] is None, not a whole number"),
        ({"table": []}, "table is [], not an object"),
        ({"kind": "c"}, "kind is 'c', not one of 'a', 'b'"),
        ({"kind": []}, "kind is [], not one of 'a', 'b'"),
        ({"flag": 1}, "flag is 1, not true or false"),
    ],
    ids=str,
)
def test_damaged_values(change: dict[str, Any], said: str) -> None:
    assert damage(outer(**change), Outer) == said


def test_what_is_missing_or_long() -> None:
    assert damage({}, Outer) == "it has no 'name'"
    assert damage([], Outer, "row 3") == "row 3 is [], not an object"
    assert damage(outer(name=["x" * 99]), Outer) == f"name is ['{'x' * 35}..., not a text"
    huge = damage(outer(rates=[10**5000]), Outer)  # Python refuses to print it
    assert huge == "rates[0] is a very large int, not a number"
