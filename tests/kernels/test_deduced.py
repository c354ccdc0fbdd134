"""Instances of templates: explicit ones, wherever they are, and those that launches leave to be deduced."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels import catalog

COPY = """namespace ops {
template <typename T, int N> __global__ void k(const T* x, T* y, int n)
{
    int i = blockIdx.x * N + threadIdx.x;
    if (i < n) y[i] = x[i];
}
}
"""
MAP = """namespace ops {
struct Square { __device__ float operator()(float x) const { return x * x; } };
template <class T, class F = Square> struct Scale { T by; F f;
  __device__ T operator()(T x) const { return by * f(x); } };
}
struct Twice { template <class T> __device__ T operator()(T x) const { return x + x; } };
template <typename T, typename F> __global__ void map(const T* x, T* y, int n, F f)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = f(x[i]);
}
"""


def entries(folder: Path, source: str) -> list[str]:
    path = folder / "k.cu"
    path.write_text(source)
    return [kernel.entry for kernel in catalog.find(str(path))]


@pytest.mark.parametrize(
    ("instances", "expected"),
    [
        ("template __global__ void ops::k<float, 64>(const float*, float*, int);", ["ops::k<float, 64>"]),
        ("template __global__ void ::ops::k<int,32>(const int*, int*, int);", ["ops::k<int, 32>"]),
        (
            "namespace ops { template __global__ void k<float, 32>(const float* x, float* y, int n);\n"
            "template __global__ void k<double, 64>(const double*, double*, int); }",
            ["ops::k<float, 32>", "ops::k<double, 64>"],
        ),
        (
            "namespace a { using namespace ops;\n"
            "template __global__ void ops :: k <float, 64>(const float*, float*, int); }",
            ["ops::k<float, 64>"],
        ),
        (
            "template __global__ void ops::k<float, 64>(const float*, float*, int);\n"
            "void f() { ops::k<float,64><<<1, 64>>>(x, y, n); }",
            ["ops::k<float, 64>"],
        ),
        ("template __global__ void other::k<float>(float*);", ["other::k<float>"]),
    ],
    ids=["outside", "global", "inside", "elsewhere", "launched", "another"],
)
def test_explicit_instances_have_the_name_of_their_template(
    tmp_path: Path, instances: str, expected: list[str]
) -> None:
    assert entries(tmp_path, COPY + instances) == expected


def test_explicit_instances_that_leave_arguments_to_their_types(tmp_path: Path) -> None:
    source = (
        "namespace ops { template <typename T> __global__ void k(T* x, int n); }\n"
        "template <typename T> __global__ void ops::k(T* x, int n) { if (n > 1) x[threadIdx.x] = 1; }\n"
        "template __global__ void ops::k(int*, int);\ntemplate __global__ void ops::k<>(double*, int);\n"
    )
    assert entries(tmp_path, source) == ["ops::k<int>", "ops::k<double>"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("float *x, *y; map<<<4, 64>>>(x, y, 256, Twice());", ["map<float, Twice>"]),
        ("double *x, *y; map<<<4, 64>>>(x, y, 256, Twice{});", ["map<double, Twice>"]),
        ("map<<<4, 64>>>((const int*)x, (int*)y, 256, Twice{});", ["map<int, Twice>"]),
        ("ops::Square f; map<<<4, 64>>>(x, y, 256, f);", ["map<float, ops::Square>"]),
        (
            "auto f = ops::Scale<float>{2.0f}; map<float><<<4, 64>>>(x, y, 256, f);",
            ["map<float, ops::Scale<float>>"],
        ),
        (
            "map<<<4, 64>>>(x, y, 256, ops::Scale<float, Twice>{2.f, {}});",
            ["map<float, ops::Scale<float, Twice>>"],
        ),
        ("map<<<4, 64>>>(x, y, 256, [] __device__ (float x) { return x; });", ["map<float, lambda_12>"]),
        ("map<<<4, 64>>>(x, y, 256, [](float x) { return x; });", ["map"]),
        ("auto z = f(); map<<<4, 64>>>(x, y, 256, [=] __device__ (float x) { return z; });", ["map"]),
        ("map<<<4, 64>>>(x, y, 256, of_another_file);", ["map"]),
    ],
)
def test_functors_that_a_launch_leaves_to_be_deduced(tmp_path: Path, host: str, expected: list[str]) -> None:
    assert entries(tmp_path, f"{MAP}int main() {{ {host} }}\n") == expected


def test_functors_that_functions_of_the_host_pass_on(tmp_path: Path) -> None:
    source = MAP + (
        "template <class F> void inner(float* x, F f) { map<<<4, 64>>>(x, x, 256, f); }\n"
        "template <class F> void outer(float* x, F f) { inner(x, f); }\n"
        "int main() { outer(x, Twice{}); ops::Square f; inner<ops::Square>(x, f); inner(x, unknown); }\n"
    )
    assert entries(tmp_path, source) == ["map<float, Twice>", "map<float, ops::Square>"]
    endless = source.replace("inner(x, f); }", "outer(x, f); inner(x, f); }")
    assert entries(tmp_path, endless) == ["map<float, Twice>", "map<float, ops::Square>"]


def test_they_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    launch = "map<<<4, 64>>>(x, x, n, {});".format
    host = f"void f(float* x, int n) {{ {launch('Twice()')} {launch('ops::Square()')} }}"
    path.write_text(MAP + host)
    result = CliRunner().invoke(main, ["check", str(path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "k:map<float,Twice>" in result.stdout and "k:map<float,ops::Square>" in result.stdout
    path.write_text((MAP + host).replace("i < n", "i <= n"))
    result = CliRunner().invoke(main, ["check", str(path)], env={"COLUMNS": "200"})
    assert result.exit_code == 1 and "k:map<float,Twice>: out of bounds" in result.stdout
    path.write_text(
        COPY.replace("i < n", "i <= n") + "template __global__ void ops::k<int, 32>(const int*, int*, int);"
    )
    result = CliRunner().invoke(main, ["check", str(path)], env={"COLUMNS": "200"})
    assert result.exit_code == 1 and "k:ops::k<int,32>: out of bounds" in result.stdout
