"""Statements about machine code: what can be said, and where a statement that cannot be read goes wrong."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.kernels.expectation import COMPARE, METRICS, Expectation, Scope, parse

KERNEL, LOOP = Scope(), Scope("loop")


@pytest.mark.parametrize(
    ("text", "kind", "subject", "scope", "compare", "value"),
    [
        ("LDS", "count", "LDS", KERNEL, ">=", 1),
        ("LDS.128", "count", "LDS.128", KERNEL, ">=", 1),
        ("LDS.128 in loop", "count", "LDS.128", LOOP, ">=", 1),
        ("LDS.128 in kernel", "count", "LDS.128", KERNEL, ">=", 1),
        ("LDS.128 in loop at 41", "count", "LDS.128", Scope("loop", 41), ">=", 1),
        ("LDG.E.128 >= 4", "count", "LDG.E.128", KERNEL, ">=", 4),
        ("BAR in loop == 2", "count", "BAR", LOOP, "==", 2),
        ("BAR in loop at 7 != 2", "count", "BAR", Scope("loop", 7), "!=", 2),
        ("LDS > 0", "count", "LDS", KERNEL, ">", 0),
        ("LDS <= 4", "count", "LDS", KERNEL, "<=", 4),
        ("LDS < 4.5", "count", "LDS", KERNEL, "<", 4.5),
        ("no LDL", "count", "LDL", KERNEL, "==", 0),
        ("no LDL in kernel", "count", "LDL", KERNEL, "==", 0),
        ("no BAR in loop", "count", "BAR", LOOP, "==", 0),
        ("no BAR in loop at 12", "count", "BAR", Scope("loop", 12), "==", 0),
        ("FFMA share >= 0.5", "share", "FFMA", KERNEL, ">=", 0.5),
        ("FFMA share in loop >= 90%", "share", "FFMA", LOOP, ">=", 0.9),
        ("FFMA share in loop at 3 < 12.5%", "share", "FFMA", Scope("loop", 3), "<", 0.125),
        ("FFMA share == 1", "share", "FFMA", KERNEL, "==", 1),
        ("FFMA share <= 100%", "share", "FFMA", KERNEL, "<=", 1),
        ("registers <= 128", "metric", "registers", KERNEL, "<=", 128),
        ("spills == 0", "metric", "spills", KERNEL, "==", 0),
        ("stack == 0", "metric", "stack", KERNEL, "==", 0),
        ("shared < 49152", "metric", "shared", KERNEL, "<", 49152),
        ("instructions != 7", "metric", "instructions", KERNEL, "!=", 7),
        ("loops > 1", "metric", "loops", KERNEL, ">", 1),
        ("HGMMA.64x128x16.F32.BF16 in loop", "count", "HGMMA.64x128x16.F32.BF16", LOOP, ">=", 1),
        ("F2FP.BF16.PACK_AB", "count", "F2FP.BF16.PACK_AB", KERNEL, ">=", 1),
        ("HADD2_32I", "count", "HADD2_32I", KERNEL, ">=", 1),
        ("registers<=128", "metric", "registers", KERNEL, "<=", 128),
        (" \t LDS.128  in\tloop>=4 ", "count", "LDS.128", LOOP, ">=", 4),
        ("LDS\nin\nloop", "count", "LDS", LOOP, ">=", 1),
    ],
)
def test_every_form(text: str, kind: str, subject: str, scope: Scope, compare: str, value: float) -> None:
    e = parse(text)
    assert (e.kind, e.subject, e.scope, e.compare, e.value) == (kind, subject, scope, compare, value)
    assert str(e) == e.text == text.strip().replace("\n", " ").replace("\t", " ")
    assert parse(str(e)) == e


@pytest.mark.parametrize(
    ("text", "wanted", "found", "column"),
    [
        ("", "an opcode", "the end", 0),
        ("   ", "an opcode", "the end", 0),
        ("lds.128", "an opcode", "'lds.128'", 0),
        ("  lds", "an opcode", "'lds'", 2),
        (".128", "an opcode", "'.'", 0),
        ("128", "an opcode", "'128'", 0),
        ("LDS.", "an opcode", "'LDS.'", 0),
        ("LDS..128", "an opcode", "'LDS..128'", 0),
        ("LDSé", "an opcode", "'LDSé'", 0),
        ("(LDS)", "an opcode", "'('", 0),
        ("register <= 3", "an opcode", "'register'", 0),
        ("no", "an opcode", "the end", 2),
        ("no registers", "an opcode", "'registers'", 3),
        ("no no LDS", "an opcode", "'no'", 3),
        ("no LDS >= 3", "the end", "'>='", 7),
        ("no LDS share", "the end", "'share'", 7),
        ("no LDS in", "'loop' or 'kernel'", "the end", 9),
        ("LDS in", "'loop' or 'kernel'", "the end", 6),
        ("LDS in in loop", "'loop' or 'kernel'", "'in'", 7),
        ("LDS in loops", "'loop' or 'kernel'", "'loops'", 7),
        ("LDS.128 in lop", "'loop' or 'kernel'", "'lop'", 11),
        ("LDS in loop at", "a source line", "the end", 14),
        ("LDS in loop at x", "a source line", "'x'", 15),
        ("LDS in loop at 0", "a source line", "'0'", 15),
        ("LDS in loop at 4.5", "a source line", "'4.5'", 15),
        ("LDS in loop at 5%", "a source line", "'5%'", 15),
        ("LDS in loop at -5", "a source line", "'-'", 15),
        ("LDS in loop at ²", "a source line", "'²'", 15),
        ("LDS in loop at " + 400 * "9", "a source line", "'9", 15),
        ("LDS in kernel at 5", "one of", "'at'", 14),
        ("LDS loop", "one of", "'loop'", 4),
        ("LDS LDS", "one of", "'LDS'", 4),
        ("LDS 4", "one of", "'4'", 4),
        ("LDS = 4", "one of", "'='", 4),
        ("LDS =< 4", "one of", "'='", 4),
        ("LDS >= 4 in loop", "the end", "'in'", 9),
        ("LDS >= 4 5", "the end", "'5'", 9),
        ("LDS >=", "a number", "the end", 6),
        ("LDS >= ", "a number", "the end", 6),
        ("LDS >= four", "a number", "'four'", 7),
        ("LDS >= nan", "a number", "'nan'", 7),
        ("LDS <= inf", "a number", "'inf'", 7),
        ("LDS >= ٣", "a number", "'٣'", 7),
        ("LDS >= -4", "a number", "'-'", 7),
        ("LDS >= >= 4", "a number", "'>='", 7),
        ("LDS >= 1e3", "the end", "'e3'", 8),
        ("LDS >= 90%", "a number", "'90%'", 7),
        ("registers <= 90%", "a number", "'90%'", 13),
        ("registers", "one of", "the end", 9),
        ("registers 4", "one of", "'4'", 10),
        ("registers in loop <= 4", "one of", "'in'", 10),
        ("spills == 0 0", "the end", "'0'", 12),
        ("FFMA share", "one of", "the end", 10),
        ("FFMA share in loop", "one of", "the end", 18),
        ("FFMA share in loop >= 90", "a share between 0 and 1", "'90'", 22),
        ("FFMA share in loop >= 101%", "a share between 0 and 1", "'101%'", 22),
        ("FFMA share in loop >= %", "a number", "'%'", 22),
        ("FFMA in loop share >= 0.9", "one of", "'share'", 13),
        ("LDS\nin lop", "'loop' or 'kernel'", "'lop'", 7),
    ],
)
def test_refusals_point_at_the_token(text: str, wanted: str, found: str, column: int) -> None:
    with pytest.raises(UsageError) as e:
        parse(text)
    first, shown, pointer = e.value.what.split("\n")
    assert first.startswith(f"cannot read the expectation: {wanted}")
    assert f"expected, not {found}" in first
    assert shown.removeprefix("    ") == text.replace("\n", " ")
    assert pointer == " " * (4 + column) + "^"
    assert "LDS.128 in loop" in e.value.hint
    assert e.value.exit_code == 2


_WORDS = [
    "no",
    "in",
    "loop",
    "kernel",
    "at",
    "share",
    *METRICS,
    *COMPARE,
    "LDS.128",
    "FFMA",
    "4",
    "0.5",
    "90%",
]


@given(st.one_of(st.text(), st.lists(st.sampled_from(_WORDS)).map(" ".join)))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        e = parse(text)
    except UsageError as error:
        lines = error.what.split("\n")
        if "\r" not in text:
            assert re.fullmatch(r" {4,}\^", lines[-1])
            assert len(lines[-1]) - 5 <= len(text)
    else:
        assert parse(str(e)) == e


OPCODES = st.from_regex(r"\A[A-Z][A-Z0-9_]{0,7}(\.[A-Za-z0-9_]{1,5}){0,3}\Z")
SCOPES = st.one_of(
    st.sampled_from([KERNEL, LOOP]), st.integers(1, 99999).map(lambda line: Scope("loop", line))
)
COUNTS, SHARES = st.integers(0, 10**6), st.integers(0, 1000).map(lambda n: n / 1000)
COMPARES = st.sampled_from(sorted(COMPARE))


@given(st.sampled_from(["count", "share", "metric", "no"]), st.data())
def test_what_is_rendered_is_read_back(kind: str, data: st.DataObject) -> None:
    compare, scope = data.draw(COMPARES), data.draw(SCOPES)
    value = data.draw(SHARES if kind == "share" else COUNTS)
    subject = data.draw(st.sampled_from(METRICS) if kind == "metric" else OPCODES)
    text = {
        "count": f"{subject} in {scope} {compare} {value}",
        "share": f"{subject} share in {scope} {compare} {value}",
        "metric": f"{subject} {compare} {value}",
        "no": f"no {subject} in {scope}",
    }[kind]
    if kind == "no":
        compare, value = "==", 0
    expected = Expectation(
        text,
        "count" if kind == "no" else kind,
        subject,
        KERNEL if kind == "metric" else scope,
        compare,
        value,
    )
    assert parse(text) == expected
    assert parse(text.replace(" ", "  ")) == Expectation(
        text.replace(" ", "  "), *list(vars(expected).values())[1:]
    )


@pytest.mark.parametrize(
    ("compare", "below", "equal", "above"),
    [
        (">=", False, True, True),
        ("<=", True, True, False),
        ("==", False, True, False),
        ("!=", True, False, True),
        (">", False, False, True),
        ("<", True, False, False),
    ],
)
def test_comparisons(compare: str, below: bool, equal: bool, above: bool) -> None:
    e = parse(f"LDS {compare} 4")
    assert [e.holds(n) for n in (3, 4, 5)] == [below, equal, above]
