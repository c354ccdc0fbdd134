import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels.expr import Expr, ExprError, remembered


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
        ("min(BM, TM)", 8),
        ("max(TM, BM // 4, 9 + TN)", 32),
        ("max(1, min(64, BM // TM) - BN) * 2", 2),
        ("min(TM == 8, BM)", 1),
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
        "min()",
        "min(BM)",
        "max([BM, BN])",
        "min(*BM)",
        "max(BM, *BN)",
        "min(BM, BN, key=TM)",
        "max(BM, default=0)",
        "abs(BM)",
        "pow(BM, 2)",
        "sum(BM, BN)",
        "BM(1, 2)",
        "BM.max(1, 2)",
        "(min)(1, 2)(3, 4)",
        "min(BM, 'a')",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(ExprError):
        Expr.parse(text)


def test_min_by_itself_is_a_name_like_any_other() -> None:
    """Only a call is special: a name without one needs a value, and a parameter may have it."""
    text = Expr.parse("min + 1")
    assert text.names == {"min"} and text({"min": 4}) == 5
    with pytest.raises(ExprError, match="needs a value for min"):
        text({"BM": 4})


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
    assert Expr.parse("max(BM, min(BN, 2 * TM))").names == {"BM", "BN", "TM"}


def test_names_stand_for_expressions() -> None:
    tile = Expr.parse("BM + BN")
    stage = Expr.parse("2 * TILE + min(BM, 4)", {"TILE": tile})
    both = Expr.parse("STAGES * STAGE - TILE", {"TILE": tile, "STAGE": stage})
    assert both.names == {"STAGES", "BM", "BN"} and both.text == "STAGES * STAGE - TILE"
    assert both({"STAGES": 3, "BM": 10, "BN": 5}) == 3 * (30 + 4) - 15  # whole, as if in brackets
    assert Expr.parse("min(min, 3)", {"min": tile})({"BM": 1, "BN": 1}) == 2  # a function keeps its name


def test_names_do_not_grow_without_bound() -> None:
    named = {"X": Expr.parse("N + N")}
    with pytest.raises(ExprError, match="'X \\* X' has more than 5000 parts with all that it names"):
        for _ in range(64):
            named = {"X": Expr.parse("X * X", named)}
    assert Expr.parse("X + 1", named).names == {"N"}  # what was read before is as it was


def test_the_largest_tree_is_allowed() -> None:
    """A call has three nodes beside its arguments: 3 + 490, then 3 + 10 * 493 + 67."""
    named = {"X": Expr.parse(f"min({', '.join('1' * 490)})".replace(" ", ""))}

    def read(ones: int) -> Expr:
        return Expr.parse(f"max({'X,' * 10}{','.join('1' * ones)})", named)

    assert read(67)({}) == 1
    with pytest.raises(ExprError, match="more than 5000 parts"):
        read(68)


def test_depth_is_bounded() -> None:
    """By itself, and with all that is named: Python's stack is never exhausted."""
    assert Expr.parse("1" + "+1" * 199)({}) == 200
    assert Expr.parse("-" * 199 + "N")({"N": 3}) == -3
    for text in ("1" + "+1" * 200, "-" * 200 + "N", "-" * 998 + "N"):
        with pytest.raises(ExprError, match="nested more than 200 deep"):
            Expr.parse(text)
    chain = Expr.parse("N")
    with pytest.raises(ExprError, match="'-T' is nested more than 200 deep with all that it names"):
        for _ in range(2000):
            chain = Expr.parse("-T", {"T": chain})
    assert chain({"N": 7}) == -7  # of 199 minus signs


def test_values_are_remembered() -> None:
    expr = Expr.parse("A // B")
    value = remembered(expr)
    assert [value({"A": a, "B": b, "C": c}) for a in (7, 9) for b in (2, 3) for c in (0, 1)] == [
        *(3, 3, 2, 2),
        *(4, 4, 3, 3),
    ]
    with pytest.raises(ExprError, match="divides by zero"):
        value({"A": 1, "B": 0})


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 // N", "'1 // N' divides by zero"),
        ("1 % N", "'1 % N' divides by zero"),
        ("M + N", "'M + N' needs a value for M"),
        ("1 << -1", "shift by -1; 0 to 62 is allowed"),
        ("1 >> 63", "shift by 63; 0 to 62 is allowed"),
        ("(9 << 60) * 9", "the value does not fit 64 bits"),
        ("max(1, 2 // N)", "'max(1, 2 // N)' divides by zero"),
        ("min(1, M)", "'min(1, M)' needs a value for M"),
    ],
)
def test_what_has_no_value_says_why(text: str, message: str) -> None:
    with pytest.raises(ExprError) as refused:
        Expr.parse(text)({"N": 0})
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("BM.x", "'BM.x' in 'BM.x' is not integer arithmetic or a comparison"),
        ("1 + BM.x", "'BM.x' in '1 + BM.x' is not integer arithmetic or a comparison"),
        (
            "BM / 2 > 1",
            "'BM / 2' in 'BM / 2 > 1' is not integer arithmetic or a comparison (use // for division)",
        ),
        ("~BM", "'~BM' in '~BM' is not integer arithmetic or a comparison"),
        ("BM @ 2", "'BM @ 2' in 'BM @ 2' is not integer arithmetic or a comparison"),
        ("1 < BM in BM", "'1 < BM in BM' in '1 < BM in BM' is not integer arithmetic or a comparison"),
        ("1 + min(BM)", "'min(BM)' in '1 + min(BM)' is not integer arithmetic or a comparison"),
        ("abs(BM)", "'abs(BM)' in 'abs(BM)' is not integer arithmetic or a comparison"),
        (
            "max(BM, BM / 2)",
            "'BM / 2' in 'max(BM, BM / 2)' is not integer arithmetic or a comparison (use // for division)",
        ),
        ("BM BN", "cannot read the expression 'BM BN'"),
        ("1" * 1001, "expression of 1001 characters; 1000 at most"),
    ],
)
def test_what_is_no_expression_is_quoted(text: str, message: str) -> None:
    with pytest.raises(ExprError) as refused:
        Expr.parse(text)
    assert str(refused.value) == message


def test_the_limits_themselves_are_allowed() -> None:
    assert Expr.parse("N" + " " * 2000).text == "N"  # blanks around it do not count
    assert Expr.parse("N" * 1000).names == {"N" * 1000}
    assert [Expr.parse(text)({}) for text in ("5 << 0", "5 >> 0", "1 << 62", "3 >> 62")] == [5, 5, 2**62, 0]
    most = "(1 << 62) - 1 + (1 << 62)"
    assert Expr.parse(most)({}) == 2**63 - 1 and Expr.parse(f"-({most})")({}) == 1 - 2**63
    for more in (f"{most} + 1", f"-({most}) - 1"):
        with pytest.raises(ExprError, match="64 bits"):
            Expr.parse(more)({})


TEXTS = st.recursive(
    st.sampled_from(["A", "B", "C", "0", "1", "7", "1000"]),
    lambda inner: st.one_of(
        st.tuples(
            inner,
            st.sampled_from(["+", "-", "*", "//", "%", "<", "<=", "==", "!=", ">", ">=", "and", "or"]),
            inner,
        ).map(lambda parts: f"({' '.join(parts)})"),
        inner.map("(not {})".format),
        inner.map("(-{})".format),
        st.tuples(st.sampled_from(["min", "max"]), st.lists(inner, min_size=2, max_size=3)).map(
            lambda call: f"{call[0]}({', '.join(call[1])})"
        ),
        st.tuples(inner, inner, inner).map(lambda parts: "({} < {} <= {})".format(*parts)),
        st.tuples(inner, inner, inner).map(lambda parts: "({} and {} and {})".format(*parts)),
        st.tuples(inner, inner, inner).map(lambda parts: "({} or {} or {})".format(*parts)),
    ),
    max_leaves=8,
)


@given(TEXTS, *[st.integers(-5, 40)] * 3)
def test_any_expression_is_what_python_makes_of_it(text: str, a: int, b: int, c: int) -> None:
    """But for ``and`` and ``or``, which give 0 or 1 here, and so does ``not``."""
    values = {"A": a, "B": b, "C": c}

    def truth(node: ast.expr) -> int:
        if isinstance(node, ast.BoolOp):
            parts = (truth(part) for part in node.values)
            return int(all(parts)) if isinstance(node.op, ast.And) else int(any(parts))
        for name, child in ast.iter_fields(node):
            if isinstance(child, ast.expr) and name != "func":
                setattr(node, name, ast.Constant(truth(child)))
            elif isinstance(child, list) and name in ("comparators", "args"):
                setattr(node, name, [ast.Constant(truth(part)) for part in child])
        code = compile(ast.fix_missing_locations(ast.Expression(node)), "", "eval")
        return int(eval(code, {}, values))

    try:
        expected: object = truth(ast.parse(text, mode="eval").body)
    except ZeroDivisionError:
        expected = "divides by zero"
    try:
        found: object = Expr.parse(text)(values)
    except ExprError as e:
        found = str(e)
    assert found == expected or str(expected) in str(found)
