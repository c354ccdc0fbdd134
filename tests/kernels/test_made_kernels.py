"""Kernels that macros of their file make: which there are, with their parameters, and what is checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels import text

BINARY = r"""#define DEFINE_KERNEL(name, op) \
    __global__ void name(const float* a, const float* b, float* c, int n) { /* a, b */ \
        int i = blockIdx.x * blockDim.x + threadIdx.x; \
        if (i < n) c[i] = a[i] op b[i]; \
    }
DEFINE_KERNEL(add, +)
DEFINE_KERNEL(mul, *)
int main() { std::vector<float> v; add<<<4, 64>>>(0, 0, 0, 256); }
"""


def kernels(source: str) -> dict[str, list[str]]:
    """Return the parameters of the kernels of a text by their names."""
    return {str(entry): [p.name for p in entry.parameters] for entry in text.entries(source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (BINARY, {"add": ["a", "b", "c", "n"], "mul": ["a", "b", "c", "n"]}),
        (
            "#define K(N, E) template <typename T> __global__ void N##_kernel(T* x) { x[0] = E; }\n"
            'K(one, f(1, 2)); K(two, "a, b");',
            {"one_kernel<typename T>": ["x"], "two_kernel<typename T>": ["x"]},
        ),
        (
            '#define KERNEL extern "C" __global__ void\n#define GLOBAL(t) __global__ t\n'
            "KERNEL a(int* x) {}\nGLOBAL(void) b(int* y) {}",
            {"a": ["x"], "b": ["y"]},
        ),
        (
            "#define NAME(op, t) op##_##t\n#define K(op, t) __global__ void NAME(op, t)(t* x) {}\n"
            "#define BOTH(op) K(op, int) K(op, float)\nnamespace n { BOTH(neg) }",
            {"n::neg_int": ["x"], "n::neg_float": ["x"]},
        ),
        (
            "#define LIST(X) X(a) \\\n  X(b)\n#define K(n) __global__ void n(int* x) {}\nLIST(K)\n#undef K\n"
            "#define K(n) void host_##n() { n<<<1, 1>>>(0); }\n",
            {"a": ["x"], "b": ["x"]},
        ),
        (
            "#define K(n, ...) __global__ void n(__VA_ARGS__) {}\nK(a, int* x, int n)\n"
            "#ifdef __CUDACC__\n#define GLOBAL __global__\n#else\n#define GLOBAL\n#endif\nGLOBAL void b() {}",
            {"a": ["x", "n"], "b": []},
        ),
        ("#define K(n) __global__ void n(int* x) {}\n#define R K(a) R R\nR\nK(b", {"a": ["x"]}),
        ("#define CHECK(x) x\n#define N 3\nCHECK(N)\n// __global__ void k() {}", {}),
    ],
    ids=["operators", "templates", "words", "pasted", "lists", "variadic", "endless", "none"],
)
def test_kernels_that_macros_make(source: str, expected: dict[str, list[str]]) -> None:
    assert kernels(source) == expected


def test_they_are_checked(tmp_path: Path) -> None:
    """Leave host code out that stands behind them, and one of them that does not compile."""
    path = tmp_path / "k.cu"

    def checked(source: str) -> tuple[int, str]:
        path.write_text(source)
        result = CliRunner().invoke(main, ["check", str(path)], env={"COLUMNS": "200"})
        return result.exit_code, result.output

    code, said = checked(BINARY)
    assert code == 0 and "k:add was launched as by --grid 16,1,1 --block 64,1,1" in said, said
    assert "k:mul was launched" in said and "Host code is left out: main\n" in said
    code, said = checked(BINARY.replace("i < n", "i <= n"))
    assert code == 1 and "k:add: out of bounds" in said and "k:mul: out of bounds" in said
    code, said = checked(BINARY.replace("(mul, *)", "(mul, @)"))
    assert code == 3 and "NOT COMPILED: k:mul\n" in said and "k.cu(7): error" in said
    code, said = checked(
        BINARY.replace("DEFINE_KERNEL(mul, *)\n", "#define G __global__ void\nG k() { lost(); }")
    )
    assert code == 3 and "NOT COMPILED: k:k\n" in said and '"lost" is undefined' in said


HEADER = r"""#pragma once
#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)
#define DEFINE_KERNEL(name, op) \
    __global__ void name(const float* a, const float* b, float* c, int n) { \
        int i = INDEX; \
        if (i < n) c[i] = a[i] op b[i]; \
    }
#define KERNEL __global__ void
__global__ void of_the_header(float* x) { x[threadIdx.x] = 1; }
"""
USES = """#include "kernels.h"
DEFINE_KERNEL(add,
              +)
DEFINE_KERNEL(mul, *)  // and so on
int main() { std::vector<float> v; add<<<4, 64>>>(0, 0, 0, 256); }
"""


def test_macros_of_headers_make_them_too(tmp_path: Path) -> None:
    """Lines stay, kernels of the header itself are its own, and a fault in the header is found."""
    header, path = tmp_path / "kernels.h", tmp_path / "k.cu"

    def checked(source: str, of_header: str = HEADER, *more: str) -> tuple[int, str]:
        path.write_text(source)
        header.write_text(of_header)
        result = CliRunner().invoke(main, ["check", str(path), *more], env={"COLUMNS": "200"})
        return result.exit_code, result.output

    code, said = checked(USES)
    assert code == 0 and "k:mul was launched as by --grid 4,1,1 --block 256,1,1" in said, said
    assert "k:add was launched as by --grid 16,1,1 --block 64,1,1" in said and "as in line 5)" in said
    assert "of_the_header" not in said
    code, said = checked(USES, HEADER.replace("i < n", "i <= n"))
    assert code == 1 and "k:add: out of bounds" in said and "k:mul: out of bounds" in said
    code, said = checked(USES, HEADER.replace("i < n", "i <= n"), "--entry", "mul")
    assert code == 1 and "k:mul: out of bounds" in said and "k:add" not in said
    code, said = checked(
        '#include "kernels.h"\nKERNEL set(float* x, int n) { if (INDEX <= n) x[INDEX] = 1; }\n'
    )
    assert code == 1 and "k: out of bounds" in said
    own = "#undef DEFINE_KERNEL\n#define DEFINE_KERNEL(name, op) void name();\n"
    code, said = checked(USES.replace("DEFINE_KERNEL(add", own + "DEFINE_KERNEL(add"))
    assert code == 2 and "no __global__ function" in said


def test_two_kernels_of_one_name_by_a_macro_are_told(tmp_path: Path) -> None:
    """None of them can be named for the compiler."""
    path = tmp_path / "k.cu"
    path.write_text("#define K(T) __global__ void k(T* x) { x[0] = 1; }\nK(float)\nK(double)\n")
    said = CliRunner().invoke(main, ["check", str(path)])
    assert said.exit_code == 1 and "2 kernels are called 'k': give each a name of its own" in said.output
