"""Promises of kernels about their machine code: the ladder's story, what fails it, and who says so."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.errors import SpecError
from harness.kernels import catalog, spec
from harness.kernels.compiler import compile_kernel
from harness.kernels.expectation import parse
from harness.sass.code import Code
from harness.sass.contract import OPCODES, Finding, check
from harness.sass.instructions import disassemble
from harness.support.cache import Cache
from shared import sweeps
from shared.kernels import parameter_sets

DRAWN = 12  # kernels of which CI takes another set
ARCHS = ("sm_75", "sm_80", "sm_90a", "sm_100", "sm_120")
HEAD = 'extern "C" __global__ void matmul(const float* A, const float* B, float* C, int n)\n{\n'

Read = Callable[..., Code]
Write = Callable[..., Code]


def compiled(variant: spec.Variant, arch: str, cache: Cache) -> Code:
    cubin = compile_kernel(variant, arch, cache)
    return Code.of(cubin, disassemble(cubin, cache))


@pytest.fixture
def read(cache: Cache) -> Read:
    """The code of a shipped kernel, by name."""

    def read(name: str, arch: str, **params: int) -> Code:
        (kernel,) = catalog.find(name)
        return compiled(kernel.variant(**params), arch, cache)

    return read


@pytest.fixture
def write(kernel_file: Any, cache: Cache) -> Write:
    """The code of a kernel with this body; its first line is line 14 of the file."""

    def write(body: str, arch: str = "sm_80") -> Code:
        return compiled(spec.load(kernel_file(body=f"{HEAD}{body}\n}}")).variant(), arch, cache)

    return write


def finding(text: str, code: Code) -> Finding:
    (found,) = check([parse(text)], code)
    assert found.expectation.text == text
    return found


# The story of the ladder


@pytest.mark.parametrize(("name", "arch", "sets"), sweeps.builds_and_sets(ARCHS))
def test_shipped_kernels_keep_their_word(cache: Cache, name: str, arch: str, sets: str) -> None:
    (kernel,) = catalog.find(name)
    for variant in [kernel.variant()] if sets == "default" else parameter_sets(kernel, arch):
        keeps_its_word(variant, arch, cache)


@pytest.mark.slow
def test_sets_drawn_anew_keep_their_word(cache: Cache) -> None:
    """CI has no time for all: a set of each of some kernels, others in each run. A failure names the set."""
    several = [k for k in catalog.shipped() if len(list(islice(k.variants(), 2))) > 1]
    for kernel in random.SystemRandom().sample(several, DRAWN):
        default = kernel.variant()  # the test above has it
        sets = [variant for variant in parameter_sets(kernel, "sm_90a") if variant.label != default.label]
        keeps_its_word(random.choice(sets or [default]), "sm_90a", cache)


def keeps_its_word(variant: spec.Variant, arch: str, cache: Cache) -> None:
    expected = variant.expectations(arch)
    assert expected, "it promises nothing"
    code = compiled(variant, arch, cache)
    failed = [f"{f.expectation}: {f.actual} {f.note}" for f in check(expected, code) if not f.holds]
    assert not failed, variant.label
    assert not [f.note for f in check(expected, code) if f.note]
    assert {i.opcode.split(".")[0] for i in code.sass.instructions} <= OPCODES


@pytest.mark.parametrize("arch", sweeps.archs(["sm_80", "sm_90a", "sm_120"], "sm_80"))
def test_the_default_of_a_wide_space_does_better_than_all_of_it_must(read: Read, arch: str) -> None:
    """Check the claim of 10 at its defaults; its front matter speaks of every set."""
    assert finding("FFMA share in loop >= 92%", read("10_vectorized", arch)).holds


@pytest.mark.parametrize("arch", sweeps.archs(["sm_75", "sm_80", "sm_90a"], "sm_75", "sm_80"))
def test_the_compiler_vectorises_the_reads_of_the_tiled_kernel_in_its_loop(read: Read, arch: str) -> None:
    code = read("03_tiled", arch)
    found = finding("LDS.128 in loop == 4", code)
    assert found.holds
    assert len(found.evidence) == found.actual == 4
    line = next(n for n, s in enumerate(code.source.splitlines(), 1) if "sum +=" in s)
    assert {i.line for i in found.evidence} == {line}
    assert all(i in code.hot_loop.instructions for i in found.evidence)  # type: ignore[union-attr]
    assert finding(f"LDS.128 in loop at {line} == 4", code).holds


@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
@pytest.mark.parametrize("name", ["01_naive", "02_coalesced"])
def test_kernels_without_tiles_fail_it(read: Read, name: str, arch: str) -> None:
    found = finding("LDS.128 in loop", read(name, arch))
    assert (found.holds, found.actual, found.evidence, found.note) == (False, 0, (), "")


@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
def test_the_kernel_without_barriers_fails_the_expectation_of_one(read: Read, arch: str) -> None:
    assert not finding("BAR in loop", read("05_tiled_no_sync", arch)).holds
    assert finding("BAR in loop", read("03_tiled", arch)).holds
    assert not finding("no BAR in loop", read("03_tiled", arch)).holds


@pytest.mark.slow
@pytest.mark.parametrize("arch", sweeps.archs(["sm_80", "sm_90a", "sm_120"], "sm_80"))
@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        ("03_tiled", "09_blocked_2d", "FFMA share in loop >= 70%"),
        ("09_blocked_2d", "10_vectorized", "LDG.128"),
        ("09_blocked_2d", "10_vectorized", "LDS.128 in loop >= 16"),
        ("09_blocked_2d", "11_conflict_free", "FFMA share in loop >= 90%"),
        ("12_prefetch", "13_cp_async", "LDGSTS"),
        ("12_prefetch", "13_cp_async", "no STS"),
        ("13_cp_async", "14_warp_tiles", "LDGSTS in loop"),
        ("14_warp_tiles", "15_split_k", "UCGABAR_WAIT"),
        ("14_warp_tiles", "16_pipeline", "no LDGSTS in loop"),
        ("14_warp_tiles", "16_pipeline", "no BAR in loop"),
        ("14_warp_tiles", "16_pipeline", "FFMA share in loop >= 94%"),
        ("14_warp_tiles", "17_skinny_rows", "no LDS in loop"),
        ("14_warp_tiles", "21_mma_sync", "HMMA.16816.F32.BF16 in loop >= 16"),
        ("14_warp_tiles", "21_mma_sync", "LDSM.MT88.4 in loop >= 4"),
        ("14_warp_tiles", "23_wgmma_pipeline", "HGMMA in loop == 4"),
        ("14_warp_tiles", "25_wgmma_tf32", "HGMMA in loop == 8"),
        ("14_warp_tiles", "25_wgmma_tf32", "LDS.64 in loop == 16"),
        ("14_warp_tiles", "25_wgmma_tf32", "USETMAXREG"),
        ("14_warp_tiles", "28_3xtf32", "HMMA.1688.F32.TF32 in loop >= 48"),
    ],
)
def test_a_rung_fails_what_a_later_one_promises(
    read: Read, before: str, after: str, missing: str, arch: str
) -> None:
    """The negative control of each rung's own expectations: the idea's absence is seen."""
    (kernel,) = catalog.find(after)
    assert missing in (str(e).partition(" if ")[0] for e in kernel.expectations(arch))
    assert not finding(missing, read(before, arch)).holds


OUTSIDE = """\
    __shared__ float4 tile[64];
    tile[threadIdx.x % 64] = ((const float4*)A)[threadIdx.x];
    __syncthreads();
    float4 v = tile[(threadIdx.x + 1) % 64];
    float sum = v.x * v.y + v.z * v.w;
    for (int i = 0; i < n; ++i) sum += A[i] * B[i];
    C[threadIdx.x] = sum;"""


@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
def test_a_wide_load_before_the_loop_is_not_one_in_it(write: Write, arch: str) -> None:
    code = write(OUTSIDE, arch)
    assert finding("LDS.128", code).holds
    inside = finding("LDS.128 in loop", code)
    assert (inside.holds, inside.actual) == (False, 0)
    assert finding("no LDS.128 in loop", code).holds
    assert not finding("no LDS.128", code).holds
    assert finding("FFMA in loop", code).holds


# Scopes


def test_loops_by_source_line(write: Write) -> None:
    code = write(
        "    float s = 0, t = 1;\n"
        "#pragma unroll 1\n"
        "    for (int i = 0; i < n; ++i) {\n"
        "#pragma unroll 1\n"
        "        for (int j = 0; j < i; ++j)\n"
        "            s += A[j] * B[j];\n"
        "        C[i] = s;\n"
        "    }\n"
        "#pragma unroll 1\n"
        "    for (int i = 0; i < n; ++i)\n"
        "        t *= __expf(B[i]);\n"
        "    C[n] = t;"
    )
    source = code.source.splitlines()
    line = {text.strip(): n for n, text in enumerate(source, 1)}
    inner, outer, after = line["s += A[j] * B[j];"], line["C[i] = s;"], line["t *= __expf(B[i]);"]
    assert finding("loops == 3", code).holds
    assert finding(f"FFMA in loop at {inner}", code).holds
    assert finding(f"no STG in loop at {inner}", code).holds
    assert finding(f"STG in loop at {outer} == 1", code).holds
    assert finding(f"FFMA in loop at {outer}", code).holds, "the inner one is part of it"
    assert finding(f"MUFU.EX2 in loop at {after} == 1", code).holds
    assert finding(f"no FFMA in loop at {after}", code).holds
    nowhere = finding(f"no LDS in loop at {line['C[n] = t;']}", code)
    assert (nowhere.holds, nowhere.actual) == (False, None)
    assert nowhere.note == f"no loop has code of line {line['C[n] = t;']}"


@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
def test_the_loop_at_a_line_is_the_unrolled_one(read: Read, arch: str) -> None:
    """Its remainder has code of that line too, and is shorter."""
    code = read("01_naive", arch)
    line = next(n for n, s in enumerate(code.source.splitlines(), 1) if "sum +=" in s)
    assert finding("loops >= 2", code).holds
    assert finding("FFMA in loop >= 8", code).holds
    assert finding(f"FFMA in loop at {line} >= 8", code).holds


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["no LDS in loop", "LDS in loop", "LDS in loop >= 0", "FFMA share in loop <= 1", "LDS in loop at 3"],
)
def test_without_a_loop_nothing_holds_in_it(write: Write, text: str) -> None:
    found = finding(text, write("    C[threadIdx.x] = A[0];"))
    assert (found.holds, found.actual, found.evidence) == (False, None, ())
    assert found.note == "the code has no loop"


def test_shares(read: Read) -> None:
    code = read("08_tiled_v4", "sm_90a")
    loop = code.hot_loop
    assert loop is not None
    share = loop.count("FFMA") / len(loop.instructions)
    found = finding("FFMA share in loop >= 70%", code)
    assert (found.holds, found.actual, len(found.evidence)) == (True, share, loop.count("FFMA"))
    assert not finding("FFMA share in loop >= 0.95", code).holds
    whole = finding("FFMA share < 70%", code)
    assert (whole.holds, whole.actual) == (True, code.sass.count("FFMA") / len(code.sass.instructions))


# What ptxas says


@pytest.mark.slow
def test_metrics_of_a_kernel_that_spills(write: Write) -> None:
    code = write(
        "    float big[512];\n"
        "    for (int i = 0; i < 512; ++i) big[i] = A[i * n];\n"
        "    __shared__ float tile[100];\n"
        "    tile[threadIdx.x] = A[0];\n"
        "    __syncthreads();\n"
        "    float sum = tile[threadIdx.x ^ 1];\n"
        "#pragma unroll 1\n"
        "    for (int k = 0; k < n; ++k) {\n"
        "#pragma unroll\n"
        "        for (int i = 0; i < 512; ++i) big[i] = big[i] * B[k] + big[(i * 7 + 3) % 512];\n"
        "    }\n"
        "#pragma unroll\n"
        "    for (int i = 0; i < 512; ++i) sum += big[i];\n"
        "    C[threadIdx.x] = sum;"
    )
    assert code.spills and code.spills > 0
    assert finding("spills > 0", code).actual == code.spills
    assert not finding("spills == 0", code).holds
    assert finding("stack > 0", code).actual == code.stack
    assert finding("registers > 128", code).actual == code.registers
    assert not finding("registers <= 128", code).holds
    assert finding("shared == 400", code).holds
    assert not finding("no LDL", code).holds
    assert not finding("no STL", code).holds
    assert finding("instructions > 512", code).actual == len(code.sass.instructions)


def test_metrics_of_one_that_does_not(read: Read) -> None:
    code = read("03_tiled", "sm_80", TILE=16)
    for text in ("spills == 0", "stack == 0", "registers <= 64", "shared == 2048", "loops == 1"):
        assert finding(text, code).holds, text


def test_dynamic_shared_memory_counts(kernel_file: Any, cache: Cache) -> None:
    kernel = spec.load(kernel_file(extra='shared = "4 * TILE"'))
    assert finding("shared == 64", compiled(kernel.variant(), "sm_80", cache)).holds


# Spelling


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("no LDLL", "LDLL is no opcode known here; did you mean LDL?"),
        ("FMA in loop", "FMA is no opcode known here; did you mean FFMA?"),
        ("LDSS.128 in loop", "LDSS is no opcode known here; did you mean LDS?"),
        ("HGMA in loop", "HGMA is no opcode known here; did you mean HGMMA?"),
        ("no QQQQQQQQ", "QQQQQQQQ is no opcode known here"),
        ("no LDL", ""),
        ("no HGMMA", ""),
        ("LDS.128 in loop", ""),
        ("LDS.12 in loop", ""),
    ],
)
def test_an_opcode_nobody_knows_is_warned_of(read: Read, text: str, note: str) -> None:
    found = finding(text, read("03_tiled", "sm_80"))
    assert found.note.startswith(note)
    assert bool(found.note) == bool(note)
    assert found.holds == (text.startswith("no ") or text == "LDS.128 in loop"), "a warning, not a verdict"


# In a kernel's file


def expectations(path: Path, arch: str) -> list[str]:
    return [e.text for e in spec.load(path).expectations(arch)]


@pytest.mark.parametrize(
    "extra",
    [
        'sass = ["LDS.128 in loop", "no LDL"]',
        'sass = [\n  "LDS.128 in loop",  # the point\n  "no LDL",\n]',
        'sass = { expect = ["LDS.128 in loop", "no LDL"] }',
        '[sass]\nexpect = ["LDS.128 in loop", "no LDL"]',
        'sass.expect = ["LDS.128 in loop", "no LDL"]',
    ],
)
def test_a_list_or_a_table_for_every_architecture(kernel_file: Any, extra: str) -> None:
    path = kernel_file(extra=extra)
    for arch in ARCHS:
        assert expectations(path, arch) == ["LDS.128 in loop", "no LDL"]


def test_one_architecture_may_differ(kernel_file: Any) -> None:
    path = kernel_file(
        extra='[sass]\nexpect = ["LDS"]\n[sass.sm_75]\nexpect = ["LDS.U"]\n'
        '[sass.sm_90]\nexpect = ["no LDS"]\n'
        "[sass.sm_100a]\nexpect = []"
    )
    found = {arch: expectations(path, arch) for arch in ("sm_75", "sm_80", "sm_90", "sm_90a", "sm_100a")}
    assert found == {
        "sm_75": ["LDS.U"],
        "sm_80": ["LDS"],
        "sm_90": ["no LDS"],
        "sm_90a": ["no LDS"],
        "sm_100a": [],
    }
    assert expectations(path, "sm_100") == ["LDS"], "what sm_100a has says nothing of sm_100"


def test_only_some_architectures_or_none(kernel_file: Any) -> None:
    path = kernel_file(extra='[sass.sm_75]\nexpect = ["LDS.U"]')
    assert (expectations(path, "sm_75"), expectations(path, "sm_80")) == (["LDS.U"], [])
    assert expectations(kernel_file("none.cu"), "sm_80") == []


@pytest.mark.parametrize(
    ("extra", "line", "text"),
    [
        ('sass = "LDS"', 7, "sass must be a list of strings"),
        ("sass = 5", 7, "sass must be a list of strings"),
        ("sass = [5]", 7, "sass must be a list of strings"),
        ('sass = [["LDS"]]', 7, "sass must be a list of strings"),
        ('sass = ["LDS in lop"]', 7, "sass: cannot read the expectation: 'loop' or 'kernel' expected"),
        ('sass = ["LDS", ""]', 7, "sass: cannot read the expectation: an opcode"),
        ('loads = 3\nsass = ["LDS ="]', 8, "sass: cannot read the expectation: one of"),
        ('[sass]\nexpect = "LDS"', 7, "sass must be a list of strings"),
        ('[sass]\nexpect = ["lds"]', 7, "sass: cannot read the expectation: an opcode"),
        (
            '[sass]\nexpct = ["LDS"]',
            8,
            "sass holds expect = [...] and tables such as [sass.sm_75], not expct",
        ),
        ('sass = { expct = ["LDS"] }', 7, "sass holds expect = [...] and tables"),
        ('[sass]\nsm_75 = ["LDS"]', 8, "sass holds expect = [...] and tables"),
        ('loads = 3\n[sass.sm_7]\nexpect = ["LDS"]', 8, "[sass.sm_7]: 'sm_7' is not an architecture"),
        ('loads = 3\n[sass.hopper]\nexpect = ["LDS"]', 8, "[sass.hopper]: 'hopper' is not an architecture"),
        ('loads = 3\n[sass."sm_80a"]\nexpect = ["LDS"]', 8, "[sass.sm_80a]: 'sm_80a' is not an architecture"),
        ('loads = 3\nsass = { sm_7 = { expect = ["LDS"] } }', 8, "[sass.sm_7]: 'sm_7' is not an arch"),
        ("loads = 3\n[sass.sm_75]", 8, "[sass.sm_75] holds expect = [...] and nothing else"),
        ('loads = 3\n[sass.sm_75]\nexpct = ["LDS"]', 8, "[sass.sm_75] holds expect = [...] and nothing"),
        ('loads = 3\n[sass.sm_75]\nexpect = ["LDS"]\nx = 1', 8, "[sass.sm_75] holds expect = [...] and"),
        ('[sass]\nexpect = []\n[sass.sm_75]\nexpect = "LDS"', 9, "sass.sm_75 must be a list of strings"),
        ('[sass]\nexpect = []\n[sass.sm_75]\nexpect = ["no"]', 9, "sass.sm_75: cannot read the expectation"),
    ],
)
def test_malformed_front_matter_names_file_and_line(
    kernel_file: Any, extra: str, line: int, text: str
) -> None:
    path = kernel_file(extra=extra)
    with pytest.raises(SpecError) as e:
        spec.load(path)
    assert e.value.where == f"{path}:{line}"
    assert e.value.what.startswith(text)


# On the command line


def harness(*args: str) -> Result:
    result = CliRunner().invoke(main, ["sass", *args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_cli_everything_holds() -> None:
    result = harness("03_tiled", "--arch", "sm_75", "--expect", "FFMA in loop", "-e", "registers <= 64")
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert any(line.startswith("holds   LDS.128 in loop: 4, first LDS.U.128 at 0x") for line in lines)
    assert any(line.startswith("holds   FFMA in loop: ") for line in lines)
    assert any(line.startswith("holds   registers <= 64: ") for line in lines)
    assert "FAILED" not in result.stdout


def test_cli_one_that_fails() -> None:
    result = harness("01_naive", "--arch", "sm_80,sm_90a", "-e", "LDS.128 in loop", "-e", "FFMA in loop")
    assert result.exit_code == 1
    assert result.stdout.count("FAILED  LDS.128 in loop: 0") == 2
    assert result.stdout.count("holds   FFMA in loop: ") == 4, "the file's own and the one given"
    assert harness("01_naive", "--listing", "-e", "LDS").exit_code == 1


def test_cli_the_files_own_that_fails(kernel_file: Any) -> None:
    result = harness(str(kernel_file(extra='sass = ["LDS in loop"]')), "--arch", "sm_80")
    assert result.exit_code == 1
    assert "FAILED  LDS in loop: 0" in result.stdout


def test_cli_warns_of_an_unknown_opcode_and_of_a_loop_that_is_not_there(kernel_file: Any) -> None:
    path = kernel_file(body=f"{HEAD}    C[0] = A[0];\n}}")
    result = harness(str(path), "--arch", "sm_80", "-e", "no LDLL", "-e", "no LDS in loop")
    assert result.exit_code == 1
    assert "holds   no LDLL: 0\n          warning: LDLL is no opcode known here" in result.stdout
    assert "FAILED  no LDS in loop: the code has no loop" in result.stdout


def test_cli_refuses_what_it_cannot_read_before_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.launch.builds.build_all", None)
    result = harness("03_tiled", "-e", "LDS", "-e", "LDS in lop")
    assert result.exit_code == 2
    assert "\n    LDS in lop\n           ^\n" in result.stderr
    assert result.stdout == ""


def test_cli_refuses_a_file_whose_own_cannot_be_read(kernel_file: Any) -> None:
    path = kernel_file(extra='sass = ["LDS in lop"]')
    result = harness(str(path), "--arch", "sm_80")
    assert result.exit_code == 2
    assert f"{path}:7: sass: cannot read the expectation" in result.stderr


def test_cli_json_holds_the_findings(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    result = harness("03_tiled", "--arch", "sm_80", "-e", "no LDLL", "-e", "LDG.128", "--json", str(file))
    assert result.exit_code == 1, "and it is written all the same"
    (row,) = json.loads(file.read_text())["rows"]
    found = {f["text"]: f for f in row["expectations"]}
    assert list(found) == ["LDS.128 in loop", "BAR in loop >= 2", "no LDL", "no STL", "no LDLL", "LDG.128"]
    first = found["LDS.128 in loop"]
    assert (first["holds"], first["actual"], len(first["evidence"]), first["note"]) == (True, 4, 4, "")
    assert all(text.startswith("0x") and " LDS.128 " in text for text in first["evidence"])
    assert (found["LDG.128"]["holds"], found["LDG.128"]["actual"], found["LDG.128"]["evidence"]) == (
        False,
        0,
        [],
    )
    assert found["no LDLL"]["holds"]
    assert "LDLL is no opcode" in found["no LDLL"]["note"]
    (loop,) = (x for x in row["loops"] if x["hot"])
    assert loop["instructions"] == sum(loop["mix"].values())
    assert loop["mix"]["LDS.128"] == 4
