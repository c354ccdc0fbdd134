"""First steps with a kernel of one's own: sizes that it does not take, sums, misspelt words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.cli.children import isolation
from shared.command import fake, harness  # noqa: F401  (a fixture)

EVEN = """\
// Doubles pairs
//
// /// kernel
// entry = "pairs"
// problem = "pairs.py:pairs"
// block = 64
// grid = "(N + 127) // 128"
// requires = ["N % 2 == 0"]
// ///
__global__ void pairs(const float2* x, float2* y, int N)
{
    int i = blockIdx.x * 64 + threadIdx.x;
    if (2 * i < N) y[i] = make_float2(2 * x[i].x, 2 * x[i].y);
}
"""
TOTAL = """\
// Adds up
//
// /// kernel
// entry = "total"
// problem = "total.py:total"
// block = 1
// grid = 1
// ///
__global__ void total(const float* x, float* sum, int N)
{
    float s = 0;
    for (int i = 0; i < N; ++i) s += x[i];
    *sum = s;
}
"""
PROBLEM = """\
from harness.problems import problem


@problem({operands}, N=300)
def {name}(x):
    return {returned}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.cu").write_text(EVEN)
    (tmp_path / "total.cu").write_text(TOTAL)
    operands = 'x="float32[N]", y="out float32[N]"'
    (tmp_path / "pairs.py").write_text(PROBLEM.format(name="pairs", operands=operands, returned="2 * x"))
    operands = 'x="float32[N] = uniform", sum="out float32[1]"'
    (tmp_path / "total.py").write_text(PROBLEM.format(name="total", operands=operands, returned="x.sum()"))

    def invoke(*args: str) -> Result:
        result = CliRunner().invoke(main, list(args))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


@pytest.mark.parametrize("verb", ["check", "verify"])
def test_default_sizes_that_a_kernel_does_not_take_are_left_out(run: Any, verb: str) -> None:
    found = run(verb, "pairs.cu", "total.cu")
    assert found.exit_code == 0, found.output
    assert "left out: 1, 153: pairs requires N % 2 == 0" in found.output
    assert [s.split()[1] for s in found.output.splitlines() if s.startswith(("pairs ", "total "))] == [
        "1/1",
        "3/3",
    ], "the other kernel takes them"
    assert run(verb, "pairs.cu", "-a", "N=[300,301]").exit_code == 1, (
        "a size that was asked for is no default"
    )


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["check", "verify", "bench"])
def test_a_kernel_that_takes_no_default_size_is_not_right(run: Any, verb: str) -> None:
    Path("pairs.cu").write_text(EVEN.replace("N % 2 == 0", "N % 64 == 63"))
    found = run(verb, "pairs.cu")
    assert found.exit_code == 1 and "choose sizes with -a" in found.output


def test_bench_takes_the_first_size_that_the_kernel_takes(run: Any) -> None:
    problem = Path("pairs.py")
    problem.write_text(problem.read_text().replace("N=300", "N=300, verify=({'N': 1}, {'N': 8})"))
    found = run("bench", "pairs.cu")
    assert found.exit_code == 0 and "pairs.py:pairs 8," in found.output


def test_the_sum_of_an_array_is_an_output_of_one_element(run: Any) -> None:
    assert run("verify", "total.cu").exit_code == 0
    Path("total.cu").write_text(TOTAL.replace("i < N", "i < N - 1"))
    assert run("verify", "total.cu").exit_code == 1
    Path("two.py").write_text(Path("total.py").read_text().replace("float32[1]", "float32[2]"))
    Path("total.cu").write_text(TOTAL.replace("total.py", "two.py"))
    assert "expected has shape ()" in run("verify", "total.cu").output, "of two elements it is none"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("chek", "total.cu"), "did you mean check?"),
        (("check", "total.cu", "-p", "TILE=3"), "parameters: none"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(run: Any, words: tuple[str, ...], said: str) -> None:
    found = run(*words)
    assert found.exit_code == 2 and said in found.output


@pytest.mark.slow
def test_headers_and_entries_of_verify_and_bench(run: Any) -> None:
    Path("sub").mkdir()
    Path("sub", "factor.h").write_text("#define FACTOR 2\n")
    other = "\n__global__ void tripled(const float2* x, float2* y, int N)\n{\n"
    other += "    int i = blockIdx.x * 64 + threadIdx.x;\n"
    other += "    if (2 * i < N) y[i] = make_float2(3 * x[i].x, 3 * x[i].y);\n}\n"
    text = EVEN.replace("__global__", '#include "factor.h"\n__global__').replace(
        "2 * x[i].x", "FACTOR * x[i].x"
    )
    Path("pairs.cu").write_text(text + other)
    assert run("verify", "pairs.cu").exit_code == 1, "without its header"
    for verb in ("verify", "bench"):
        assert run(verb, "pairs.cu", "-I", "sub").exit_code == 0
        assert run(verb, "pairs.cu", "-I", "sub", "--entry", "tripled").exit_code == 1, "another kernel"


@pytest.mark.slow
@pytest.mark.usefixtures("fake")
def test_sizes_are_left_out_on_a_gpu_too(
    kernel_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(kernel_file(extra='requires = ["N % 1024 == 0"]'))
    verified = harness("verify", path)
    assert verified.exit_code == 1 and "choose sizes with -a" in verified.output, "it takes none of them"
    path = str(kernel_file(extra='requires = ["N % 4 == 0"]'))
    verified = harness("verify", path)
    assert verified.exit_code == 0 and "31x65x1000" in verified.output.partition("left out: ")[2]
    died = isolation.Outcome(rows=(), about={}, error="it died")
    monkeypatch.setattr(isolation, "run_child", lambda command, timeout: died)
    path, out = str(kernel_file(extra='requires = ["N % 1024 == 0"]')), tmp_path / "r.json"
    assert harness("bench", path, "--isolate", "--json", str(out)).exit_code == 1
    rows = [s["harness"] for b in json.loads(out.read_text())["benchmarks"] for s in b["states"]]
    assert [r["shape"] for r in rows] == ["1024", "2048", "4096"], "512 is no row of it"
