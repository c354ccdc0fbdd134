"""PTX text: what is read, what is refused and how; nothing but HarnessError comes out of broken text."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.emulator import emulate
from harness.emulator.machine import plain_name
from harness.emulator.ptx.module import parse
from harness.errors import EmulatorError, HarnessError
from shared.emulator_kernels import ASYNC, MATMULS, NAIVE, TILED16, blocked, compile_ptx, launch, matmul

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"


def body(*lines: str, declared: str = "") -> str:
    text = "\n".join(f"    {line}" for line in lines)
    registers = f"    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<3>;{declared}"
    return f"{HEAD}.visible .entry k(.param .u64 c)\n{{\n{registers}\n{text}\n    ret;\n}}\n"


def run(ptx: str, **options: object) -> np.ndarray:
    out = np.zeros(64, np.int32)
    emulate(ptx, "k", grid=(1,), block=(32,), arguments=[out], **options)  # type: ignore[arg-type]
    return out


def test_both_dialects_are_read() -> None:
    for arch in ("compute_75", "compute_100"):
        entry = parse(compile_ptx(TILED16, arch))["mm"]
        assert [p.size for p in entry.parameters] == [8, 8, 8, 4, 4, 4]
        assert [p.offset for p in entry.parameters] == [0, 8, 16, 24, 28, 32]
        assert {plain_name(v.name): v.size for v in entry.variables.values()} == {"as": 1024, "bs": 1024}
        barriers = [i.source.line for i in entry.instructions if i.opcode[0] == "bar"]
        wanted = [n for n, line in enumerate(TILED16.splitlines(), 1) if "__syncthreads" in line]
        assert sorted(set(barriers)) == wanted


def test_parameters_are_aligned_and_structs_are_passed_by_value() -> None:
    source = """struct S { char a; double b; int c[3]; };
    extern "C" __global__ void k(char x, S s, float* out) {
      out[0] = x; out[1] = s.a; out[2] = s.b; out[3] = s.c[2]; }"""
    struct = np.zeros((), np.dtype([("a", "i1"), ("b", "f8"), ("c", "i4", 3)], align=True))
    struct["a"], struct["b"], struct["c"] = -3, 2.5, [7, 8, 9]
    out = np.zeros(4, np.float32)
    launch(source, "k", (1,), (1,), np.int8(5), struct[()], out)
    assert out.tolist() == [5, -3, 2.5, 9]


def test_lines_of_headers_are_told_apart() -> None:
    ptx = body(
        "mov.u32 %r1, %tid.x;",
        ".loc 2 77 1",
        "st.global.u32 [%d1], %r1;",
        ".loc 1 5 1",
        "add.s32 %r1, %r1, 1;",
    )
    ptx += '.file 1 "kernel.cu"\n.file 2 "tool.h"\n'
    sources = [i.source for i in parse(ptx)["k"].instructions]
    assert [(s.file, s.line) for s in sources] == [("", 0), ("tool.h", 77), ("", 5), ("", 5)]
    inlined = ptx.replace(".loc 2 77 1", ".loc 2 77 1, function_name $x, inlined_at 1 12 3")
    assert parse(inlined)["k"].instructions[1].source.line == 12


@pytest.mark.parametrize(
    ("locations", "said"),
    [
        (["1 12 3", "2 7 1 in 1 12 3", "3 4 2 in 2 7 1"], "line 12"),  # of a header's function in a header's
        (["1 30 5", "1 12 3 in 1 30 5"], "line 12, called in line 30"),
        (["1 40 1", "1 30 5 in 1 40 1", "1 12 3 in 1 30 5"], "line 12, called in line 40"),
        (["1 30 5", "1 12 3 in 1 30 5", "2 7 1 in 1 12 3"], "line 12, called in line 30"),
        (["1 30 5", "1 12 3 in 1 30 5", "1 12 3", "2 7 1 in 1 12 3"], "line 12"),  # not called any more
        (["3 4 2 in 2 7 1"], "b.h:4"),  # the control: nobody says what calls that header
    ],
)
def test_inlined_code_belongs_to_the_line_of_the_kernels_file_that_leads_to_it(
    locations: list[str], said: str
) -> None:
    statements = [f".loc {at.replace(' in ', ', function_name $x, inlined_at ')}" for at in locations]
    files = '.file 1 "kernel.cu"\n.file 2 "a.h"\n.file 3 "b.h"\n'
    found = parse(body(*statements, "mov.u32 %r1, %tid.x;") + files)["k"].instructions[-2].source
    assert str(found) == said


def test_plain_names_of_variables() -> None:
    names = {"_ZZ1kE2as": "as", "_ZN3M114smemE": "smem", "_ZN3M119smemE": "_ZN3M119smemE", "plain": "plain"}
    assert {name: plain_name(name) for name in names} == names


def test_scopes_keep_their_labels_apart() -> None:
    block = "{ .reg .pred q; setp.lt.u32 q, %r1, 8; @q bra DONE; add.s32 %r1, %r1, 100; DONE: }"
    out = run(
        body(
            "ld.param.u64 %d1, [c];",
            "mov.u32 %r1, %tid.x;",
            "mul.wide.u32 %d2, %r1, 4;",
            "add.s64 %d1, %d1, %d2;",
            block,
            block,
            "st.global.u32 [%d1], %r1;",
        )
    )
    t = np.arange(32)
    assert (out[:32] == np.where(t < 8, t, t + 200)).all()


def test_predicated_instructions_of_any_kind() -> None:
    out = run(
        body(
            "ld.param.u64 %d1, [c];",
            "mov.u32 %r1, %tid.x;",
            "setp.lt.u32 %p1, %r1, 10;",
            "mul.wide.u32 %d2, %r1, 4;",
            "add.s64 %d1, %d1, %d2;",
            "mov.u32 %r2, 5;",
            "@%p1 mov.u32 %r2, 9;",
            "@!%p1 ld.global.u32 %r2, [%d1+4];",
            "@%p1 st.global.u32 [%d1], %r2;",
            "@!%p1 ret;",
            "st.global.u32 [%d1+128], %r2;",
        )
    )
    assert (out == [9] * 10 + [0] * 22 + [9] * 10 + [0] * 22).all()


def test_labels_at_the_end_of_a_body() -> None:
    """Triton ends its functions with two, which no semicolon follows."""
    assert (run(body("bra $L__end;").replace("    ret;\n}", "$L__tmp3:\n$L__end:\n}")) == 0).all()
    with pytest.raises(EmulatorError, match="no semicolon"):
        run(body("bra $L__end;").replace("    ret;\n}", "$L__tmp3:\n$L__end:\nret\n}"))


def test_no_space_is_needed_before_a_bracket() -> None:
    assert (run(body("ld.param.u64 %d1, [c];", "mov.b64{%r1, %r2}, %d1;", "st.global.u32[%d1], 7;"))[0]) == 7


HARDWARE = [
    "mad.hi.sat.s32 %r1, %r2, %r3, %r4;",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1,%r2}, %d1, %d2, 1, 1, 1, 0, 0;",
    "mbarrier.frobnicate.shared.b64 [%r1], 1;",
    "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1], [%d1], [%r4];",
    "multimem.cp.async.bulk.bulk_group.global.shared::cta [%d1], [%r1], 16;",
    "clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;",
    "tex.2d.v4.f32.s32 {%r1,%r2,%r3,%r4}, [c, {%r5,%r6}];",
    "frobnicate.u32 %r1, %r2;",
]


@pytest.mark.parametrize("instruction", HARDWARE)
def test_the_unknown_is_refused_by_name_and_line_even_if_never_reached(instruction: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        run(body("ret;", instruction))
    assert re.split(r"[\s;]", instruction)[0] in str(caught.value)
    assert "line 8" in str(caught.value)
    assert "needs a GPU" in str(caught.value)


def test_qualifiers_with_two_colons() -> None:
    """A space with its scope, and hints to the caches, in every instruction that takes them."""
    out = np.zeros(64, np.int32)
    ptx = body(
        "mov.u32 %r1, s;",
        "mov.u32 %r2, 7;",
        "st.shared::cta.u32 [%r1], %r2;",
        "atom.shared::cta.add.u32 %r3, [%r1], %r2;",
        "red.shared::cta.add.u32 [%r1], %r2;",
        "ld.shared::cta.u32 %r4, [%r1];",
        "ld.param.u64 %d1, [c];",
        "st.global.L1::no_allocate.u32 [%d1], %r4;",
        "ld.global.L1::evict_last.L2::128B.u32 %r5, [%d1];",
        "st.global.u32 [%d1+4], %r5;",
        "st.global.u32 [%d1+8], %r3;",
        declared=".shared .align 4 .b8 s[4];",
    )
    run = emulate(ptx, "k", grid=(1,), block=(1,), arguments=[out])
    assert run.findings == () and list(out[:3]) == [21, 21, 7]


BROKEN = {
    "no such entry": (HEAD, "no entry"),
    "cut short": (compile_ptx(NAIVE)[:1500], "ends inside|no semicolon"),
    "a label nobody has": (body("bra NOWHERE;"), "no label 'NOWHERE'"),
    "an undeclared register": (body("mov.u32 %r1, %zz;"), "%zz"),
    "a missing operand": (body("add.s32 %r1, %r2;"), "cannot read"),
    "no octal digit": (body("bar.sync 08;"), "reads '08'"),
    "no semicolon": (body("add.s32 %r1, %r2, %r3").replace("\n    ret;", ""), "no semicolon"),
    "an odd type": (body("mov.q32 %r1, 5;"), "mov.q32"),
    "a huge variable": (body("ret;", declared=".shared .b8 x[99999999999];"), "bytes large"),
    "a closing brace": (HEAD + "}", "closing brace"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_text_is_named(name: str) -> None:
    ptx, message = BROKEN[name]
    with pytest.raises(EmulatorError, match=message):
        emulate(
            ptx, "k" if "entry k" in ptx else "mm", grid=(1,), block=(32,), arguments=[np.zeros(64, np.int32)]
        )


@pytest.mark.parametrize(
    "declared",
    [
        ".shared .align loc .b8 s[8];",
        ".shared .align .b8 s[8];",
        ".shared .b8 .align s[8];",
        ".shared .align 4 s;",
        ".shared .align 4 .b8 s[8],;",
        ".shared .b8 s[8], .b16 t;",
    ],
)
def test_declarations_that_are_none(declared: str) -> None:
    run(body(".shared .align 4 .b8 s[8];"))
    with pytest.raises(EmulatorError, match=r"not a declaration.* s"):
        run(body(declared))


@pytest.mark.parametrize(
    ("declared", "size"),
    [
        (".shared .align 4 .b8 a[16];", 16),
        (".shared .align 0x10 .b8 a[0x10U];", 16),
        (".shared .b8 a[020];", 16),  # octal
        (".shared .align 16 .v4 .b32 a[4];", 64),
        (".shared .v2 .b64 a;", 16),
        (".shared .b16 a[ 3 ][2];", 12),
        (".shared .b16 a [3] [2] ;", 12),
        (".global .b32 a[] = {1, 2, 3};", 12),
        (".global .b16 a[][2] = {{1, 2}, {3}};", 8),
    ],
)
def test_sizes_of_declarations(declared: str, size: int) -> None:
    variables = parse(body(declared))["k"].variables
    assert {plain_name(v.name): v.size for v in variables.values()} == {"a": size}


def test_several_names_in_a_declaration() -> None:
    """Each at its own place and of its own shape; the commas of initial values part nothing."""
    declared = ".shared .align 16 .b8 a[3], b[2][4], c; .shared .b32 d, e;"
    found = {plain_name(v.name): (v.offset, v.size) for v in parse(body(declared))["k"].variables.values()}
    assert found == {"a": (0, 3), "b": (16, 8), "c": (32, 1), "d": (36, 4), "e": (40, 4)}
    out = np.zeros(64, np.int32)
    tables = ".const .b32 t[2][2] = {{1, 2}, {3, 4}}, u = 50, v[3] = {600, 700};\n"
    read = [f"ld.const.u32 %r{i}, [{at}];" for i, at in enumerate(("t+12", "u", "v+4", "v+8"))]
    written = [f"st.global.u32 [%d1+{4 * i}], %r{i};" for i in range(4)]
    ptx = body(*read, "ld.param.u64 %d1, [c];", *written).replace(HEAD, HEAD + tables)
    emulate(ptx, "k", grid=(1,), block=(1,), arguments=[out])
    assert list(out[:4]) == [4, 50, 700, 0]


def test_names_belong_to_their_braces() -> None:
    """Registers, predicates and variables of inner ones, which may share a name that the outside has."""
    out = np.zeros(64, np.int32)
    ptx = body(
        "mov.u32 %r1, 7;",
        "mov.u32 p, 5;",
        "{ .reg .u32 p; mov.u32 p, 100; add.u32 %r1, %r1, p; }",
        "{ .reg .pred p; .reg .u32 q<2>; setp.eq.u32 p, %r1, 107; mov.u32 q1, 1000;",
        "@p add.u32 %r1, %r1, q1;",
        "{ .reg .u32 q1; mov.u32 q1, 20000; add.u32 %r1, %r1, q1; bra p; p: }",
        "add.u32 %r1, %r1, q1; }",
        "{ .shared .align 4 .b8 s[4]; st.shared.u32 [s], %r1; ld.shared.u32 %r2, [s+0]; }",
        "mov.u32 %r3, 9; st.shared.u32 [s+60], %r3; ld.shared.u32 %r4, [s+60];",
        "ld.param.u64 %d1, [c];",
        "st.global.u32 [%d1], %r2;",
        "st.global.u32 [%d1+4], p;",
        "st.global.u32 [%d1+8], %r4;",
        declared=" .reg .u32 p; .shared .align 4 .b8 s[64];",
    )
    run = emulate(ptx, "k", grid=(1,), block=(1,), arguments=[out])
    assert run.findings == () and list(out[:3]) == [22107, 5, 9]


def test_inner_names_end_with_their_braces() -> None:
    with pytest.raises(EmulatorError, match="q"):
        run(body("{ .reg .u32 q; mov.u32 q, 1; }", "mov.u32 %r1, q;"))


def test_initial_values_as_people_write_them() -> None:
    out = np.zeros(64, np.float32)
    tables = ".const .f32 t[] = {1.5, -2.0, +.25, 1.0e1, 0f3F800000};\n"
    moves = [f"ld.const.f32 f, [t+{4 * i}]; st.global.f32 [%d1+{4 * i}], f;" for i in range(5)]
    ptx = body("ld.param.u64 %d1, [c];", *moves, declared=" .reg .f32 f;").replace(HEAD, HEAD + tables)
    emulate(ptx, "k", grid=(1,), block=(1,), arguments=[out])
    assert list(out[:5]) == [1.5, -2.0, 0.25, 10.0, 1.0]


def test_a_kernel_that_never_ends() -> None:
    ptx = body(".loc 1 42 1", "L: add.s32 %r1, %r1, 1;", "bra L;") + '.file 1 "k.cu"\n'
    with pytest.raises(EmulatorError, match=r"(?s)line 42: .*not ended after 1,000 instr.*budget"):
        run(ptx, budget=1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": (0,)}, "grid"),
        ({"block": (1025,)}, "block"),
        ({"block": (64, 32)}, "1024 threads"),
        ({"grid": (1, 1, 1, 1)}, "grid"),
        ({"arguments": []}, "takes 1 arguments"),
        ({"arguments": [np.int32(1)]}, "takes 8 bytes"),
        ({"arguments": [np.zeros((8, 8))[:, ::2]]}, "contiguous"),
        ({"shared": 1 << 20}, "shared memory"),
        ({"schedule": "sideways"}, "schedule"),
    ],
)
def test_requests_that_make_no_sense(options: dict[str, object], message: str) -> None:
    whole = {"grid": (1,), "block": (32,), "arguments": [np.zeros(64, np.int32)]} | options
    with pytest.raises(EmulatorError, match=message):
        emulate(body(), "k", **whole)  # type: ignore[arg-type]


def test_arrays_too_large_for_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 16)  # pages, and bytes of a page
    with pytest.raises(EmulatorError, match="take 256 bytes and this machine has 256"):
        run(body())


TEXTS = [compile_ptx(s, a) for s in (NAIVE, TILED16, ASYNC) for a in ("compute_80", "compute_100")]


def attempt(ptx: str) -> None:
    arrays = [np.zeros((16, 16), np.float32) for _ in range(3)]
    try:
        emulate(
            ptx,
            "mm",
            grid=(1,),
            block=(4, 4),
            arguments=[*arrays, np.float32(1), np.float32(1), np.int32(3)],
            budget=2000,
        )
    except HarnessError as error:
        assert str(error)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(TEXTS), st.integers(0, 2**32), st.integers(1, 6))
def test_mutilated_text_raises_nothing_but_its_own_error(text: str, seed: int, edits: int) -> None:
    rng = random.Random(seed)
    start = text.index(".entry")
    words = re.findall(r"[%\w$.]+", text[start:])
    for _ in range(edits):
        at = rng.randrange(start, len(text))
        match rng.randrange(5):
            case 0:
                text = text[:at] + text[at + rng.randrange(1, 30) :]
            case 1:
                text = text[:at] + rng.choice(';{}[],.:@%!\n"/*0f') + text[at:]
            case 2:
                text = text[:at] + rng.choice(words) + text[at:]
            case 3:
                old, new = rng.choice(words), rng.choice(words)
                text = text[:start] + re.sub(
                    rf"(?<![\w%]){re.escape(old)}\b", lambda _, new=new: new, text[start:], count=1
                )
            case _:
                lines = text.splitlines()
                i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
                lines[i], lines[j] = lines[j], lines[i]
                text = "\n".join(lines)
        start = min(start, len(text) - 1)
    attempt(text)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet='.%$abcdefr0123456789<>{}[]();:,@!\n \t"/*+-_', max_size=300))
def test_any_text_raises_nothing_but_its_own_error(text: str) -> None:
    attempt(text)
    attempt(f"{HEAD}.entry mm() {{ {text} }}")
    attempt(f"{HEAD}.entry mm() {{ .reg .b32 %r<4>; .reg .f32 %f<4>; {text}; ret; }}")


@pytest.mark.slow
def test_every_matmul_of_the_tests_decodes_for_every_architecture() -> None:
    for name, (source, _, _) in MATMULS.items():
        for arch in (75, 80, 90, 100, 120):
            ptx = compile_ptx(source, f"compute_{arch}")
            assert parse(ptx)["mm"].instructions, name
    found, c, expected = matmul(blocked(64), (64, 1), 64, 64, "compute_120")
    assert found.findings == () and np.abs(c - expected).max() < 1e-4


def test_what_lies_in_local_memory_is_not_called_by_the_compilers_name() -> None:
    assert plain_name("__local_depot12") == "local memory" and plain_name("local_depot") == "local_depot"
