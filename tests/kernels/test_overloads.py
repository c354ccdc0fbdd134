"""Kernels of one name, by the types of their parameters, are kernels of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels import catalog, text
from harness.kernels.cpp.host import launches
from harness.kernels.cpp.source.anew import overloads

SCALE = """__global__ void scale(float* x, int n);
__global__ void scale(float* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}
__global__ void scale(double* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}
template <typename T>
__global__ void scale(T* x, const T* y, int n)
{
    __shared__ T part[96];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = y[i < n ? i : 0];
    __syncthreads();
    if (i < n) x[i] *= part[threadIdx.x ^ 1];
}
int main()
{
    float *a, *b;
    double* c;
    int n = 1000;
    scale<<<(n + 127) / 128, 128>>>(a, n);
    scale<<<(n + 63) / 64, 64>>>(c, n);
    scale<float><<<(n + 95) / 96, 96>>>(a, b, n);
}
"""
NAMES = ["k:scale(float*,...)", "k:scale(double*,...)", "k:scale<float>(T*,...)"]


def checked(folder: Path, source: str, *more: str) -> tuple[int, list[str], str]:
    """Return the exit code, the rows with a finding, and the output."""
    (folder / "k.cu").write_text(source)
    said = CliRunner().invoke(main, ["check", str(folder / "k.cu"), *more], env={"COLUMNS": "200"})
    return said.exit_code, re.findall(r"(?m)^(\S+) .*FAILED$", said.output), said.output


def test_each_overload_has_its_row_and_its_launch(tmp_path: Path) -> None:
    code, failed, said = checked(tmp_path, SCALE)
    assert (code, failed) == (0, []) and re.findall(r"(?m)^(k:\S+) .*no reference$", said) == NAMES, said
    for name, block in zip(NAMES, (128, 64, 96), strict=True):
        assert re.search(rf"{re.escape(name)} was launched as by --grid \d+,1,1 --block {block},1,1", said)


@pytest.mark.parametrize(
    ("right", "wrong", "failed"),
    [
        ("    if (i < n) x[i] *= 2;\n}\n__", "    if (i <= n) x[i] *= 2;\n}\n__", NAMES[0]),
        ("    if (i < n) x[i] *= 2;\n}\nt", "    x[i] *= 2;\n}\nt", NAMES[1]),
        ("    __syncthreads();\n", "", NAMES[2]),
    ],
)
def test_a_fault_is_that_of_its_overload(tmp_path: Path, right: str, wrong: str, failed: str) -> None:
    assert SCALE.count(right) == 1
    assert checked(tmp_path, SCALE.replace(right, wrong))[:2] == (1, [failed])


@pytest.mark.parametrize(
    ("entry", "rows"),
    [
        ("scale", NAMES),
        ("scale(double*)", NAMES[1:2]),
        ("scale(double*, ...)", NAMES[1:2]),
        ("scale_overload_1", NAMES[:1]),
        ("scale<double>", ["k:scale<double>(T*,...)"]),
    ],
)
def test_one_name_means_all_its_overloads(tmp_path: Path, entry: str, rows: list[str]) -> None:
    (tmp_path / "k.cu").write_text(SCALE)
    found = catalog.chosen(catalog.find(str(tmp_path / "k.cu")), entry, ())
    assert [kernel.name for kernel in found] == rows


def entries(source: str) -> list[str]:
    return [entry.name for entry in text.entries(overloads.apart(source))]


def test_what_is_no_overload_keeps_its_name() -> None:
    """Branches of one ``#if`` are alternatives, what ``#if 0`` leaves out is none, and types may be alike."""
    one, other = "__global__ void k(float* x) { *x = 1; }\n", "__global__ void k(int* x) { *x = 1; }\n"
    assert entries(one + other) == ["k_overload_1", "k_overload_2"]
    assert entries(f"#ifdef WIDE\n{one}#else\n{other}#endif\n") == ["k"]
    assert entries(f"{one}#if 0\n{other}#endif\n") == ["k"]
    assert entries(f"namespace a {{ {one} }}\nnamespace b {{ {other} }}\n") == ["a::k", "b::k"]
    assert entries(f"namespace a {{ {one}{other} }}\n") == ["a::k_overload_1", "a::k_overload_2"]
    assert overloads.apart(one + one) == one + one
    assert overloads.apart(again := overloads.apart(one + other)) == again


def test_instances_and_lists_of_arguments_are_those_of_the_overload_that_takes_them() -> None:
    source = overloads.apart(
        "template <typename T> __global__ void k(T* x) { *x = 1; }\n"
        "template <typename T> __global__ void k(T* x, int n) { x[n] = 1; }\n"
        "template __global__ void k<float>(float*, int);\n"
        "void run(float* x, int n) { void* all[] = {&x, &n}; "
        "cudaLaunchKernel((void*)k<float>, 1, 32, all); k<<<1, 64>>>(x); }\n"
    )
    found = {launch.entry: launch.block for launch in launches.launches(source)}
    assert found == {"k_overload_2<float>": (32,), "k_overload_1": (64,)}
    known = text.entries(source)
    assert [entry.name for entry in known][2:] == ["k_overload_2<float>"]
    assert overloads.label(known, "k_overload_1<int>") == "k<int>(T*)"
    assert overloads.label(known, "k_overload_2<int>") == "k<int>(T*,int)"
