import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels.expr import Expr, ExprError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("BM * BN // (TM * TN)", 256),
        ("BM // 8 % 5", 1),
        ("BM * BN // (TM * TN) <= 512", 1),
        ("BM < BN", 0),
        ("0 < TM <= 8 < BM", 1),
        ("BM == 128 and not TM == 4", 1),
        ("TM == 4 or TN == 4", 0),
        ("1 << TM", 256),
        ("-TM + 10", 2),
        (32, 32),
    ],
)
def test_value(text: str | int, value: int) -> None:
    assert Expr.parse(text)({"BM": 128, "BN": 128, "TM": 8, "TN": 8}) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "BM.bit_length()",
        "[1, 2]",
        "BM if TM else 1",
        "BM / 2",
        "2 ** 99999999",
        "'a' * 5",
        "True",
        "1.5",
        "BM BN",
        "",
        "lambda: 1",
        "(x := 3)",
        "BM in BM",
        "1" + "+1" * 5000,
        "(" * 300 + "1" + ")" * 300,
        "\0",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(ExprError):
        Expr.parse(text)


def test_division_says_what_to_use() -> None:
    with pytest.raises(ExprError, match="use //"):
        Expr.parse("BM / 2")


@pytest.mark.parametrize(
    "text", ["1 // N", "1 % N", "1 << -1", "1 << 99999999999", "M", "(9 << 60) * 9", "9 << 62"]
)
def test_no_value(text: str) -> None:
    with pytest.raises(ExprError):
        Expr.parse(text)({"N": 0})


def test_names() -> None:
    assert Expr.parse("BM * (BN + 1) < 4 and TM").names == {"BM", "BN", "TM"}


@given(st.text(max_size=60))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        Expr.parse(text)
    except ExprError:
        pass


@given(st.integers(1, 512), st.integers(1, 512), st.integers(1, 16))
def test_agrees_with_python(a: int, b: int, c: int) -> None:
    text = "A * B // (C + 1) - A % B >= B - C"
    assert Expr.parse(text)({"A": a, "B": b, "C": c}) == int(a * b // (c + 1) - a % b >= b - c)
