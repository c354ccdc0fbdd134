"""Static rules: what PTX has to have for each, and what it may have without being suspected."""

from __future__ import annotations

import pytest

from harness.judging import policy
from harness.judging.verdict import FAILED, PASSED, WARNING

KERNEL = """
.global .align 4 .b8 kept[4096];
.global .align 4 .u32 calls;
.const .align 4 .b8 table[16];
.visible .entry matmul(.param .u64 a)
{{
	.loc	1 12 3
{body}
	ret;
}}
"""
HINTED = "ld.global.L2::cache_hint.f32 %f1, [%rd1], {};"


def outcomes(body: str, *allowed: str) -> dict[str, tuple[str, str]]:
    return {c.name: (c.outcome, c.reason) for c in policy.check(KERNEL.format(body=body), allowed)}


@pytest.mark.parametrize(
    ("body", "check", "outcome"),
    [
        ("mov.u64 %rd1, %globaltimer;", "clocks", FAILED),
        ("mov.u32 %r1, %globaltimer_lo;", "clocks", FAILED),
        ("mov.u64 %rd1, %clock64;", "clocks", FAILED),
        ("{mov.u32 %r1, %clock;}", "clocks", FAILED),
        ("mov.u64 %rd1, %gridid;", "clocks", FAILED),
        ("mov.u32 %r1, %pm0;", "clocks", FAILED),
        ("mov.u64 %rd1, %current_graph_exec;", "clocks", FAILED),
        ("// /*\n mov.u64 %rd1, %globaltimer;\n // */", "clocks", FAILED),
        (".loc 1 1 1 mov.u64 %rd1, %globaltimer;", "clocks", FAILED),
        (".loc 1 1 1, function_name $x, inlined_at 1 2 3 mov.u64 %rd1, %globaltimer;", "clocks", FAILED),
        (HINTED.format("%rd9"), "L2 persistence", FAILED),
        ("shl.b64 %rd8, %rd7, 32;\n mov.b64 %rd9, %rd8;\n" + HINTED.format("%rd9"), "L2 persistence", FAILED),
        ("mov.b64 %rd9, 1508705875169116160U;\n" + HINTED.format("%rd9"), "L2 persistence", FAILED),
        ("shl.b64 %rd9, %rd7, 32;\n ld.global.L2::cache_hint.f32 %f1,\n [%rd1],\n %rd9;",
         "L2 persistence", FAILED),
        ("discard.global.L2 [%rd1], 128;", "odd instructions", WARNING),
        ("mov.u32 %r1, %warpid;", "odd instructions", WARNING),
        ("createpolicy.fractional.L2::evict_last.b64 %rd1, 0f3F800000;", "L2 persistence", FAILED),
        ("ld.global.L2::evict_last.f32 %f1, [%rd1];", "L2 persistence", FAILED),
        (f"mov.b64 %rd1, {0x14F0 << 48};", "L2 persistence", FAILED),
        ("applypriority.global.L2::evict_normal [%rd1], 128;", "L2 persistence", FAILED),
        (".extern .func  (.param .b64 func_retval0) malloc\n(", "device heap", FAILED),
        ("call.uni (retval0), \nmalloc, \n(", "device heap", FAILED),
        ("nanosleep.u32 20;", "waiting", WARNING),
        ("$L1:\n ld.acquire.gpu.global.u32 %r1, [%rd1];\n @%p1 bra $L1;", "waiting", WARNING),
        ("@%p1 trap;", "odd instructions", WARNING),
        ("prefetch.global.L2 [%rd1];", "odd instructions", WARNING),
        ("mov.u32 %r1, %smid;", "odd instructions", WARNING),
        ("st.global.u32 [calls], %r1;", "state", WARNING),
        ("mov.u64 %rd1, kept;\n add.s64 %rd2, %rd1, %rd9;\n st.global.f32 [%rd2+4], %f1;", "state", WARNING),
        ("mov.u64 %rd1, calls;\n atom.global.add.u32 %r1, [%rd1], 1;", "state", WARNING),
        ("mov.u64 %rd1, calls;\n cvta.global.u64 %rd3, %rd1;\n red.add.u32 [%rd3], 1;", "state", WARNING),
    ],
)  # fmt: skip
def test_a_rule_is_seen(body: str, check: str, outcome: str) -> None:
    found, reason = outcomes(body)[check]
    assert found == outcome
    assert reason
    others = {name: o for name, (o, _) in outcomes(body).items() if name != check}
    assert set(others.values()) == {PASSED}


@pytest.mark.parametrize(
    "body",
    [
        "// reads %clock64 in a comment",
        "/* createpolicy.fractional.L2::evict_last */",
        "ld.global.L1::evict_last.f32 %f1, [%rd1];",
        "createpolicy.fractional.L2::evict_first.b64 %rd1, 0f3F800000;",
        "mov.u64 %rd1, kept;\n ld.global.f32 %f1, [%rd1];",
        "ld.const.f32 %f1, [table];",
        "$L1:\n ld.global.f32 %f1, [%rd1];\n @%p1 bra $L1;",
        "$L1:\n ld.volatile.shared.u32 %r1, [%r2];\n @%p1 bra $L1;",
        "mov.u32 %r1, %tid.x;",
        "/* // */ mov.u32 %r1, %tid.x; // %clock64",
        "createpolicy.fractional.L2::evict_first.b64 %rd9, 1.0;\n" + HINTED.format("%rd9"),
        f"mov.b64 %rd8, {0x12F0 << 48};\n selp.b64 %rd9, %rd8, {1 << 60}, %p1;\n" + HINTED.format("%rd9"),
        f"mov.b64 %rd1, {0x12F0 << 48};",  # evict_first
    ],
)
def test_nothing_is_suspected_in_vain(body: str) -> None:
    assert {o for o, _ in outcomes(body).values()} == {PASSED}


def test_the_reason_says_what_and_where() -> None:
    _, reason = outcomes("mov.u64 %rd1, %globaltimer;")["clocks"]
    assert "%globaltimer" in reason and "line 12" in reason


def test_what_is_allowed_only_warns() -> None:
    assert outcomes("mov.u64 %rd1, %clock64;", "clocks")["clocks"][0] == WARNING
