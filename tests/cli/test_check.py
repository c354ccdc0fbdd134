"""`harness check`, `verify` without a GPU and the fixtures: what the emulator says, and who passes it on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness import assertions
from harness.bench import emulation
from harness.cli import main
from harness.errors import HarnessError, InspectError
from harness.kernels import catalog
from harness.kernels.compiler import compile_kernel
from harness.launch import builds
from harness.launch.builds import build_all
from harness.problems.gemm import Gemm
from harness.sass import access_widths
from harness.sass.instructions import disassemble
from harness.support.cache import Cache
from shared.kernels import BODY, TILED, refused

ARCHS = ("sm_75", "sm_80", "sm_90a", "sm_100", "sm_120")


def harness(*args: str) -> Result:
    return CliRunner().invoke(main, args, env={"COLUMNS": "200"})


def line_of(path: Path, text: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


# The command


@pytest.mark.parametrize(
    ("kernels", "least"),
    [(["0[1-58]*"], 6), pytest.param([], 8, marks=pytest.mark.exhaustive)],
    ids=["first", "all"],
)
def test_the_ladder_is_right_and_the_broken_rung_is_seen_to_be(kernels: list[str], least: int) -> None:
    result = harness("check", *kernels, "-a", "N=48", "--allow-refused")
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line for line in result.output.splitlines() if line.endswith(("ok", "marked"))}
    for name, row in rows.items():
        assert "1/1" in row, f"{name}: lock-step hides a race in the numbers"
        assert ("FAILED as marked" in row) == (name == "05_tiled_no_sync")
    assert len([r for r in rows if r[:2].isdigit()]) >= least and "05_tiled_no_sync" in rows


@pytest.mark.slow
def test_a_race_fails_with_both_lines(kernel_file: Any) -> None:
    path = kernel_file(body=TILED.replace("        __syncthreads();\n    }", "    }"))
    result = harness("check", str(path), "-a", "N=48", "-p", "TILE=8")
    assert result.exit_code == 1
    read, write = line_of(path, "sum +="), line_of(path, "As[y][x] = ")
    assert "WAR hazard" in result.output
    assert f"line {read}: for (int i = 0; i < TILE; ++i)" in result.output
    assert f"line {write}: As[y][x] = row < M" in result.output
    verify = harness("verify", str(path), "-a", "N=48", "-d", "emulator")
    assert (
        verify.exit_code == 1 and "FAILED" in verify.output and "In the emulator, as asked" in verify.output
    )
    fine = kernel_file(body=TILED)
    assert harness("check", str(fine), "-a", "N=48").exit_code == 0


def test_warp_serial_makes_the_race_show_in_the_numbers(kernel_file: Any) -> None:
    path = kernel_file(body=TILED.replace("        __syncthreads();\n        for", "        for"))
    lockstep = harness("check", str(path), "-a", "N=48", "-p", "TILE=16")
    serial = harness("check", str(path), "-a", "N=48", "-p", "TILE=16", "--schedule", "warp-serial")
    assert lockstep.exit_code == serial.exit_code == 1
    assert "  1/1 " in lockstep.output and "  0/1 " in serial.output


def test_wrong_numbers_without_a_finding(kernel_file: Any) -> None:
    path = kernel_file(body=BODY.replace("sum += A", "sum -= A"))
    result = harness("check", str(path), "-a", "N=20")
    assert result.exit_code == 1 and "elements wrong" in result.output
    assert "  0/1 " in result.output


def test_reading_the_output_where_beta_is_zero_is_found(kernel_file: Any) -> None:
    path = kernel_file(body=BODY.replace("beta == 0 ? alpha * sum : ", ""))
    result = harness("check", str(path), "-a", "N=20")
    assert (
        result.exit_code == 1 and "uninitialised read" in result.output and "C at offset 0" in result.output
    )
    assert harness("check", str(path), "-a", "N=20", "-a", "beta=0.5").exit_code == 0


def test_out_of_bounds_names_the_buffer_and_how_far(kernel_file: Any) -> None:
    path = kernel_file(body=BODY.replace("row >= M || col >= N", "row > M || col >= N"))
    result = harness("check", str(path), "-a", "N=20")
    assert result.exit_code == 1
    assert "out of bounds" in result.output and "C" in result.output


def test_writing_an_input_is_wrong(kernel_file: Any) -> None:
    body = BODY.replace(
        "    float sum = 0;", "    float sum = 0; if (row == 3 && col == 3) ((float*)A)[0] = 7;"
    )
    result = harness("check", str(kernel_file(body=body)), "-a", "N=20")
    assert result.exit_code == 1 and "overwrote its input A" in result.output


def test_json(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    assert harness("check", "tiled", "no_sync*", "*no_sync", "-a", "N=48", "--json", str(file)).exit_code == 2
    assert harness("check", "tiled", "*no_sync", "-a", "N=48", "--json", str(file)).exit_code == 0
    tiled, broken = json.loads(file.read_text())["rows"]
    assert tiled["status"] == "ok" and not tiled["findings"] and tiled["total"]["flops"] == 2 * 48**3 + 48**2
    assert {f["kind"] for f in broken["findings"]} == {"RAW hazard", "WAR hazard"}
    assert sum(line["flops"] for line in tiled["lines"]) == tiled["total"]["flops"]
    assert "ptx_line" not in tiled["lines"][0]


def test_counts_by_line(kernel_file: Any) -> None:
    words = ["check", "tiled", "-a", "N=256", "--lines", "--arch", "sm_90a"]
    result = CliRunner().invoke(main, words, env={"COLUMNS": "80"})
    (row,) = (r for r in result.output.splitlines() if "sum += As" in r)
    # 1,048,576 shared loads as written; as compiled 4 LDS.128 and 16 LDS for 16 products
    assert row.split()[-5:] == ["33.6M", "1.05M", "1", "655k", "1"]
    table = [line for line in result.output.splitlines() if "  " in line]
    assert max(map(len, table)) <= 80
    assert "global: 8.65MB asked for in 8.65MB of sectors" in result.output


@pytest.mark.parametrize(
    ("more", "asked"), [([], []), (["--lines"], [False]), (["--json"], [False]), (["--html"], [True])]
)
def test_it_disassembles_only_what_it_shows(
    kernel_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], asked: list[bool]
) -> None:
    """nvdisasm takes ten times as long as everything else that is done with a small kernel."""
    lives: list[bool] = []

    def counted(*args: Any, live: bool) -> Any:
        lives.append(live)
        return disassemble(*args, live=live)

    monkeypatch.setattr(builds, "disassemble", counted)
    file = [str(tmp_path / "written")] if more and more != ["--lines"] else []
    result = harness("check", str(kernel_file(body=BODY)), "-a", "N=16", *more, *file)
    assert result.exit_code == 0 and lives == asked, result.output


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["check", "tiled", "-a", "N=0"], 2, "N=0"),
        (["check", "tiled", "-a", "N=1000000"], 1, "GiB is free"),
        (["check", "tiled", "--arch", "sm_75,sm_80"], 2, "one architecture at a time"),
        (["check", "tiled", "--schedule", "sideways"], 2, "sideways"),
        (["verify", "tiled", "-d", "7"], 1, "libcuda"),
    ],
)
def test_bad_input(args: list[str], code: int, text: str) -> None:
    result = harness(*args)
    assert result.exit_code == code and text in result.output, result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_a_kernel_that_never_ends(kernel_file: Any) -> None:
    path = kernel_file(body=BODY.replace("k < K; ++k", "k < K || *(volatile float*)A != 1e30f; ++k"))
    result = harness("check", str(path), "-a", "N=20", "--budget", "10000")
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert "has not ended after 10,000 instructions" in result.output
    assert "The threads stand" in result.output


# Widths of the machine code


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_merged_loads_are_counted_once(arch: str, cache: Cache) -> None:
    """The merged lines and the line they were merged into make up what was written."""
    variant = catalog.kernel("tiled").variant(TILE=16)
    cubin = compile_kernel(variant, arch, cache)
    found = access_widths.widths(cubin, disassemble(cubin, cache), cache)
    text = cubin.ptx.splitlines()
    shared = {n: w for n, w in found.bytes.items() if "ld.shared" in text[n - 1]}
    assert not found.ambiguous
    times = len(shared) // 32  # from sm_100 on the loop is unrolled
    assert sorted(shared.values()) == sorted(([0] * 12 + [4] * 16 + [16] * 4) * times)
    assert sum(shared.values()) == 4 * len(shared), "not a byte more or less is loaded"


def test_a_cubin_without_ptx_lines(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cubin = compile_kernel(catalog.kernel("tiled").variant(), "sm_80", cache)
    sass = disassemble(cubin, cache)
    monkeypatch.setattr(access_widths, "_ptx_lines", lambda *_: {})
    with pytest.raises(InspectError, match="does not tell PTX lines"):
        access_widths.widths(cubin, sass, cache)


# Fixtures


@pytest.mark.slow
def test_the_fixtures_on_shipped_kernels(
    assert_race_free: Any, assert_coalesced: Any, assert_no_bank_conflicts: Any, emulate: Any
) -> None:
    assert_race_free("tiled", 48, TILE=16)
    with pytest.raises(AssertionError, match=r"(?s)05_tiled_no_sync TILE=16, 48: 4 findings\n.*RAW hazard"):
        assert_race_free("tiled_no_sync", 48)
    assert_coalesced("tiled", {"M": 64, "N": 32, "K": 96})
    sectors = r"\n  1[6-9].* sectors a request, more than 4\n    01_naive.cu:\d+: "
    with pytest.raises(AssertionError, match=sectors):
        assert_coalesced("naive", 64)
    assert_coalesced("naive", 64, max_sectors=32)
    assert_no_bank_conflicts("bank_padded", 64)
    wavefronts = r"\n  1[67].* times the wavefronts that it needs\n    06_bank_conflict.cu:\d+: sum"
    with pytest.raises(AssertionError, match=wavefronts):
        assert_no_bank_conflicts("bank_conflict", 64)
    row = emulate("tiled", 48, schedule="warp-serial", TILE=8)
    assert row.before.ok and row.emulation.total.shared_requests


@pytest.mark.slow
def test_claims_of_the_seeds(cache: Cache) -> None:
    """Tiling cuts global loads by the tile's width; a transposed tile conflicts 32-fold, padding cures it."""

    def total(name: str, **params: int) -> Any:
        found = assertions.emulate(catalog.kernel(name).variant(**params), "sm_80", 128)
        assert found.emulation is not None
        return found.emulation.total

    naive = total("coalesced", BX=32, BY=32)
    for tile in (8, 16, 32):
        tiled = total("tiled", TILE=tile)
        loads = tiled.global_bytes - 4 * 128**2
        assert loads == (naive.global_bytes - 4 * 128**2) / tile
        assert tiled.conflicts == 0
    conflicting, padded = total("bank_conflict", TILE=32), total("bank_padded", TILE=32)
    assert padded.conflicts == 0 and conflicting.shared_requests == padded.shared_requests
    reads = 128**3 // 32  # of the transposed tile: one for each multiply-add of a warp
    stores = 128 * 128 // 32 * 4
    assert conflicting.conflicts in (31 * reads, 31 * (reads + stores), 31 * stores)


def test_rows_of_a_problem_that_does_not_fit(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "free_memory", lambda: 1e6)
    built, _ = build_all([catalog.kernel("tiled").variant()], ["sm_80"], cache, lambda _: None)
    (row,) = emulation.rows(built, {Gemm: [{"N": 512}]}, emulation.Options(), lambda _: None)
    assert row.status == "error" and "GiB is free" in row.error
    with pytest.raises(HarnessError):
        assertions.emulate(catalog.kernel("tiled").variant(), "sm_80", {"K": -1})


@pytest.mark.parametrize("command", [["check"], ["verify", "-d", "emulator"]])
def test_a_refused_kernel_is_not_verified(command: list[str], tmp_path: Path) -> None:
    """It would be a green CI job in which nothing was checked."""
    file = refused(tmp_path, "one")
    found = harness(*command, file, "tiled", "-a", "N=16")
    assert found.exit_code == 3 and "1 of 2 not verified" in found.stderr
    assert harness(*command, file, "tiled", "-a", "N=16", "--allow-refused").exit_code == 0
    assert harness(*command, "tiled", "-a", "N=16").exit_code == 0
    assert harness(*command, file, "tiled", "-a", "N=1000000", "--allow-refused").exit_code == 1


OVERLAP = TILED.replace("blockIdx.x * TILE + x", "blockIdx.x * (TILE - 1) + x")


def test_stores_of_the_same_value_are_notices(kernel_file: Any, tmp_path: Path) -> None:
    path, file = str(kernel_file(body=OVERLAP)), tmp_path / "o.json"
    for command in (["check"], ["verify", "-d", "emulator"]):
        noticed = harness(*command, path, "-a", "N=20", "-p", "TILE=8", "--json", str(file))
        assert noticed.exit_code == 0 and "notice: global race" in noticed.output
        (row,) = json.loads(file.read_text())["rows"]
        assert not row["findings"] and row["notices"][0]["benign"]
        assert harness(*command, path, "-a", "N=20", "-p", "TILE=8", "--strict").exit_code == 1
    assert harness("check", "tiled", "-a", "N=20", "--strict").exit_code == 0


def test_the_assertion_accepts_notices_unless_strict(assert_race_free: Any, kernel_file: Any) -> None:
    path = kernel_file(body=OVERLAP)
    assert_race_free(path, 20, TILE=8)
    with pytest.raises(AssertionError, match="the same value"):
        assert_race_free(path, 20, TILE=8, strict=True)


def test_a_refused_kernel_is_not_asserted_race_free(assert_race_free: Any, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="does not know"):
        assert_race_free(refused(tmp_path, "one"), 64)


PERSISTENT = """\
extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    for (int i = blockIdx.x * TILE * TILE + threadIdx.y * TILE + threadIdx.x; i < M * N; i += STEP) {
        float sum = 0;
        for (int k = 0; k < K; ++k) sum += A[i / N * lda + k] * B[k * ldb + i % N];
        float* c = &C[i / N * ldc + i % N];
        *c = beta == 0 ? alpha * sum : alpha * sum + beta * *c;
    }
}
"""


@pytest.mark.slow
def test_blocks_of_a_persistent_kernel_race_on_several_multiprocessors(kernel_file: Any) -> None:
    right = PERSISTENT.replace("STEP", "gridDim.x * TILE * TILE")
    sound = kernel_file("sound.cu", body=right, extra='grid = "SMS"')
    racy = kernel_file("racy.cu", body=PERSISTENT.replace("STEP", "TILE * TILE"), extra='grid = "SMS"')
    axes = ("-a", "N=20", "-a", "beta=0.5", "-p", "TILE=8")
    assert harness("check", str(sound), *axes).exit_code == 0
    found = harness("check", str(racy), *axes)
    assert found.exit_code == 1 and "global race" in found.output
    assert harness("check", str(racy), *axes, "--sms", "1").exit_code == 0


def test_the_compilers_warnings_are_shown(kernel_file: Any) -> None:
    path = str(kernel_file(body=BODY.replace("float sum = 0;", "float sum; sum += 0 * K;")))
    for command in (["check"], ["verify", "-d", "emulator"], ["build"]):
        size = [] if command == ["build"] else ["-a", "N=20"]
        said = harness(*command, path, *size).stderr
        assert said.count('variable "sum" is used before its value is set') == 1
    assert "warning" not in harness("check", "tiled", "-a", "N=20").stderr


def test_what_was_found_before_a_kernel_hangs_is_shown(kernel_file: Any) -> None:
    body = BODY.replace("float sum = 0;", "float sum = A[M * lda + 99999]; while (sum == sum) K = 0;")
    result = harness("check", str(kernel_file(body=body)), "-a", "N=8")
    assert result.exit_code == 1 and "out of bounds" in result.output


@pytest.mark.slow
def test_what_a_kernel_prints_is_shown(kernel_file: Any, tmp_path: Path) -> None:
    first = "if (threadIdx.x + threadIdx.y == 0) "
    says = 'printf("block %d\\033[1m\\n", blockIdx.x);'
    declared = 'extern "C" __device__ int printf(const char*, ...);\n'
    path = kernel_file(body=declared + BODY.replace("{", "{" + first + says, 1))
    saved = tmp_path / "rows.json"
    result = harness("check", str(path), "-a", "N=20", "-p", "TILE=16", "--json", str(saved))
    assert result.exit_code == 0, result.output
    assert "20 printed:\n  block 0?[1m\n" in result.output
    (row,) = json.loads(saved.read_text())["rows"]
    assert row["output"].startswith("block 0\x1b[1m\n")
    path.write_text(path.read_text().replace(first, ""))
    assert "lines more; --json keeps them all" in harness("check", str(path), "-a", "N=20").output
    path.write_text(path.read_text().replace(says, ""))
    assert "printed" not in harness("check", str(path), "-a", "N=20").output


def test_of_many_findings_the_first_are_shown(tmp_path: Path) -> None:
    """A guessed launch is told once, not with each finding."""
    lines = [f"  if (i > {n}) x[i + sizeof(int) * 2048] = i;" for n in range(14)]
    path = tmp_path / "far.cu"
    path.write_text("\n".join(["__global__ void far(float* x) {", " int i = threadIdx.x;", *lines, "}\n"]))
    found = CliRunner().invoke(main, ["check", str(path), "--json", str(tmp_path / "all.json")])
    assert found.output.count("far: out of bounds, seen") == 12 and "far, x=" not in found.output
    assert "far: 2 more findings; --json keeps them all" in found.output
    path.write_text(path.read_text().replace(lines[0] + "\n", "").replace(lines[1] + "\n", ""))
    found = CliRunner().invoke(main, ["check", str(path)])
    assert found.output.count("far: out of bounds, seen") == 12 and "more findings" not in found.output
