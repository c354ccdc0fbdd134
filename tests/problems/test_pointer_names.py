"""Kernels whose parameters are pointers by another name, and headers that an editor of Windows wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels.cpp.source.variables import parameters

KERNEL = """#include "names.cuh"
__global__ void twice(Count n, In x, Out y)
{
    Count i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""
NAMES = {
    "using": "using In = const float*;\nusing Out = float*;\nusing Count = const int;\n",
    "typedef": "typedef const float *In;\ntypedef float *Out;\ntypedef int Count;\n",
}
HOST = """#include <iostream>
#define MUST(call) \\
    do { \\
        if ((call) != cudaSuccess) { \\
            std::cerr << "failed"; \\
        } \\
    } while (0)
inline void info() { int n; MUST(cudaGetDeviceCount(&n)); std::cout << n << std::flush; }
"""


def checked(folder: Path, header: str, kernel: str = KERNEL) -> tuple[int, str]:
    (folder / ".git").mkdir()  # nothing above is searched
    (folder / "names.cuh").write_bytes(header.encode())
    (folder / "twice.cu").write_text(kernel, encoding="utf-8")
    found = CliRunner().invoke(main, ["check", str(folder / "twice.cu")])
    return found.exit_code, found.output


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_a_pointer_by_another_name_is_a_buffer(names: str, tmp_path: Path) -> None:
    code, said = checked(tmp_path, names)
    assert code == 0, said


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_a_fault_behind_such_a_name_is_found(names: str, tmp_path: Path) -> None:
    code, said = checked(tmp_path, names, KERNEL.replace("i < n", "i <= n"))
    assert code == 1 and "out of bounds" in said


def test_each_of_several_variables_has_its_own_star() -> None:
    text = "using Out = float*;\n__global__ void k(Out x) {}\nvoid f() { Out a, b = 0; g(sizeof(Out)); }\n"
    (found,) = parameters.spelled([text])
    assert found.startswith("using Out = float*;\n") and "k(float* x)" in found
    assert "float *a, *b = 0;" in found and "sizeof(float*)" in found


def test_a_name_of_two_types_stays(tmp_path: Path) -> None:
    code, said = checked(tmp_path, NAMES["using"] + "namespace other { using Out = double*; }\n")
    assert code == 2 and "Out" in said


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_macros_of_several_lines_in_headers(end: str, tmp_path: Path) -> None:
    """With CRLF the lines of a macro were taken for code, and the host's function stayed."""
    code, said = checked(tmp_path, (NAMES["using"] + HOST).replace("\n", end))
    assert code == 0 and "left out" in said and "info" in said
