"""Large tables in constant memory, such as those of cuRAND's headers: a hundred thousand numbers each."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator.ptx.declarations import Variable, declare, values_of
from harness.errors import EmulatorError


def declared(text: str) -> dict[str, Variable]:
    variables: dict[str, Variable] = {}
    declare(text, 1, variables, {})
    return variables


def test_names_are_apart_at_commas_outside_of_braces() -> None:
    found = declared(".const .align 4 .u32 a[2][2] = {{1, 2}, {3, 4}}, b, c[] = {5, 6}")
    assert [(one.name, one.size) for one in found.values()] == [("a", 16), ("b", 4), ("c", 8)]
    assert [values_of(one).view(np.uint32).tolist() for one in found.values()] == [[1, 2, 3, 4], [0], [5, 6]]


def test_a_table_is_read_at_once() -> None:
    numbers = np.random.default_rng(1).integers(0, 2**32, 200_000, dtype=np.uint64)
    (table,) = declared(f".global .u32 t[200000] = {{{', '.join(map(str, numbers.tolist()))}}}").values()
    assert np.array_equal(values_of(table).view(np.uint32), numbers.astype(np.uint32))


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        ("u8", "255, 256, 511", [255, 0, 255]),  # as many bits as there are
        ("b64", "18446744073709551615", [2**64 - 1]),  # 20 digits
        ("s32", "-1, 0x10, 7", [2**32 - 1, 16, 7]),
        ("f32", "0f3F800000, 1.0", [0x3F800000] * 2),
    ],
)
def test_numbers_of_all_forms(kind: str, values: str, wanted: list[int]) -> None:
    (one,) = declared(f".global .{kind} t[{len(wanted)}] = {{{values}}}").values()
    assert values_of(one).view(f"u{one.size // len(wanted)}").tolist() == wanted


def test_more_values_than_room_are_told() -> None:
    (one,) = declared(".global .u32 t[2] = {1, 2, 3}").values()
    with pytest.raises(EmulatorError, match="more values than room"):
        values_of(one)
