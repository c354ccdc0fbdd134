"""``--dtype``: commands choose among the element types of a kernel's file, and tell their child processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fakes import driver as fake_driver
from harness.cli import main
from harness.cli.children import isolation
from harness.errors import HarnessError
from harness.instruments import ncu, sanitizer
from harness.kernels import catalog
from harness.results import record
from harness.support import tools
from harness.support.children import Ended
from shared.command import fake  # noqa: F401  (a fixture)

Write = Callable[..., Path]
SIZE = ["-a", "M=33", "-a", "N=40", "-a", "K=50"]
BOTH = 'dtype = ["bf16", "fp16"]'
BODY = """\
#include "elements.cuh"
typedef {type} Type;
extern "C" __global__ void matmul(const Type* A, const Type* B, Type* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{{
    int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += to_float(A[row * lda + k]) * to_float(B[k * ldb + col]);
    Type* c = C + row * ldc + col;
    float value = beta == 0 ? alpha * sum : alpha * sum + beta * to_float(*c);
    c->bits = pack<Type>(value, 0.f);
}}
"""


def run(*args: Any) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args], env={"COLUMNS": "200"})


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.slow
def test_each_type_is_right_in_the_emulator(kernel_file: Write, tmp_path: Path, dtype: str) -> None:
    path = kernel_file(extra=BOTH, body=BODY.format(type="ELEMENT"))
    name = "mine" if dtype == "bf16" else "mine_fp16"
    for command in ("verify", "bench"):
        out = tmp_path / f"{command}.json"
        done = run(command, path, "-d", "emulator", *SIZE, "--dtype", dtype, "--json", out)
        assert done.exit_code == 0, done.output
        (row,) = record.load(out)["rows"]
        assert (row["kernel"], row["dtype"]) == (name, dtype)
        assert (row["shape"], row["status"]) == (f"33x40x50 {dtype}", "ok")
    checked = run("check", path, *SIZE, "--dtype", dtype)
    assert checked.exit_code == 0 and f"\n{name} " in checked.stdout, checked.output
    built = run("build", path, "--dtype", dtype, "-o", tmp_path / "out")
    assert built.exit_code == 0
    assert {p.stem for p in (tmp_path / "out").iterdir()} == {f"{name}-TILE16-sm_90a"}
    text = next((tmp_path / "out").glob("*.ptx")).read_text()
    assert ("cvt.rn.bf16x2" in text, "cvt.rn.f16x2" in text) == (dtype == "bf16", dtype == "fp16")


@pytest.mark.slow
def test_a_kernel_that_knows_one_type_is_wrong_in_another(kernel_file: Write) -> None:
    path = kernel_file(extra=BOTH, body=BODY.format(type="Bf16"))
    done = run("verify", path, "-d", "emulator", *SIZE, "--dtype", "bf16", "--dtype", "fp16")
    assert done.exit_code == 1
    assert [s.split()[0] for s in done.stdout.splitlines()[2:4]] == ["mine", "mine_fp16"]
    assert [s.split()[-1] for s in done.stdout.splitlines()[2:4]] == ["ok", "FAILED"]


@pytest.mark.slow
def test_machine_code_of_a_type(kernel_file: Write) -> None:
    path = kernel_file(extra=BOTH, body=BODY.format(type="ELEMENT"))
    assert "mine_fp16 TILE=16" in run("sass", path, "--dtype", "fp16").stdout
    assert "identical code" in run("sass", path, "--dtype", "fp16", "--diff", path).stdout, "as on the left"
    assert "identical code" in run("sass", path, "--dtype", "fp16", "--diff", "TILE=16").stdout
    smaller = run("sass", path, "--dtype", "fp16", "--diff", "TILE=8")
    assert smaller.exit_code == 0 and "mine_fp16 TILE=8" in smaller.stdout
    left = run("sass", "26", "-p", "BM=64", "-p", "BN=64", "--diff", "26_wgmma_split_fp16")
    assert left.exit_code == 0 and "26_wgmma_split_fp16" in left.stdout and "identical" not in left.stdout


@pytest.mark.parametrize("command", ["verify", "bench", "check", "build", "sass", "profile"])
def test_a_type_that_the_kernel_has_not(command: str) -> None:
    done = run(command, "tiled", "--dtype", "bf16")
    assert done.exit_code == 2 and "03_tiled is not written for bf16" in done.stderr
    assert "its element type is fp32" in done.stderr


def test_tuning_takes_one_type(kernel_file: Write, fake: fake_driver.FakeDriver) -> None:
    path = kernel_file(extra=BOTH, body=BODY.format(type="ELEMENT"))
    done = run("tune", path, "--dtype", "bf16", "--dtype", "fp16")
    assert done.exit_code == 2 and "names several kernels: mine, mine_fp16" in done.stderr
    done = run("tune", path, "--dtype", "tf32")
    assert done.exit_code == 2 and "mine is not written for tf32" in done.stderr


def test_reports_and_binaries_have_no_type(tmp_path: Path) -> None:
    done = run("profile", "--from", tmp_path / "x.csv", "--dtype", "fp16")
    assert done.exit_code == 2 and "--dtype" in done.stderr
    assert run("build", "tiled", "-o", tmp_path).exit_code == 0
    cubin = tmp_path / "03_tiled-TILE16-sm_90a.cubin"
    assert run("sass", cubin).exit_code == 0
    done = run("sass", cubin, "--dtype", "fp32")
    assert done.exit_code == 2 and "has no parameters or types" in done.stderr


# Child processes


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of children, none of which is started."""
    commands: list[list[str]] = []

    def refuse(command: list[str], *_: Any, **__: Any) -> Any:
        commands.append([str(word) for word in command])
        raise HarnessError("no child here")

    monkeypatch.setattr(tools, "run", refuse)
    monkeypatch.setattr(tools, "require", Path)
    return commands


@pytest.mark.parametrize(("word", "dtype"), [("23", ""), ("24", "fp16")])
def test_instruments_hand_on_the_type(told: list[list[str]], word: str, dtype: str) -> None:
    variant = catalog.kernel(word).variant()
    for start in (
        lambda: sanitizer.check(variant, {"N": 64}, "memcheck"),
        lambda: ncu.counters(variant, {"N": 64}, ["a"]),
    ):
        with pytest.raises(HarnessError, match="no child here"):
            start()
    assert len(told) == 2
    for command in told:
        after = command[command.index("verify") + 1 :]
        path, *more = after[: after.index("--seed")]
        assert Path(path).name == "23_wgmma_pipeline.cu"
        assert more == ([f"--dtype={dtype}"] if dtype else [])


def test_the_tuning_child_is_told_the_type(
    monkeypatch: pytest.MonkeyPatch, kernel_file: Write, fake: fake_driver.FakeDriver
) -> None:
    path = kernel_file(extra=BOTH, body=BODY.format(type="ELEMENT"))
    found: list[list[str]] = []

    def watch(command: list[str], *_: Any, **__: Any) -> Ended:
        found.append(command)
        return Ended(code=0)

    monkeypatch.setattr(isolation, "watch", watch)
    assert run("tune", path, "--isolate", "--dtype", "fp16", "-a", "N=64").exit_code == 0
    assert run("tune", path, "--isolate", "-a", "N=64").exit_code == 0
    assert found[0][:5] == [sys.executable, "-m", "harness", "tune", str(path)]
    assert isolation.SUPERVISED in found[0]
    assert "--dtype=fp16" in found[0] and not [c for c in found[1] if c.startswith("--dtype")]


@pytest.mark.slow
def test_the_rows_of_an_isolated_type_are_its_own(
    monkeypatch: pytest.MonkeyPatch, fake: fake_driver.FakeDriver, kernel_file: Write, tmp_path: Path
) -> None:
    """The child of the second type is asked for it, and its failure is that type's row."""
    path = kernel_file(extra=BOTH, body=BODY.format(type="ELEMENT"))
    asked: list[str] = []

    def run_child(command: list[str], timeout: float) -> isolation.Outcome:
        asked.append(next((c for c in command if c.startswith("--dtype")), ""))
        return isolation.Outcome(rows=(), about={}, error="it died")

    monkeypatch.setattr(isolation, "run_child", run_child)
    out = tmp_path / "r.json"
    done = run("bench", path, "--isolate", "-a", "N=64", "--dtype", "bf16", "--dtype", "fp16", "--json", out)
    assert done.exit_code == 1 and asked == ["--dtype=bf16", "--dtype=fp16"], done.output
    rows = [s["harness"] for b in json.loads(out.read_text())["benchmarks"] for s in b["states"]]
    assert [(r["kernel"], r["dtype"]) for r in rows] == [("mine", "bf16"), ("mine_fp16", "fp16")]
