"""Files of which some kernels compile: the others are named, with their own errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.errors import BuildError
from harness.kernels import catalog
from harness.kernels.compiler import compile_kernel
from harness.support.cache import Cache

GOOD = """__global__ void good(float* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1;
}
"""
HOST = "#include <vector>\nint main() { std::vector<float> v; good<<<1, 256>>>(0, 8); }\n"


def built(folder: Path, source: str) -> dict[str, str]:
    """Return what is said of each kernel: its warnings, or its errors."""
    path = folder / "k.cu"
    path.write_text(source)
    said = {}
    for kernel in catalog.find(str(path)):
        try:
            said[kernel.entry] = compile_kernel(kernel.variant(), "sm_90a", Cache(folder / "cache")).warnings
        except BuildError as e:
            said[kernel.entry] = f"{e.what}\n{e.log}"
    return said


def checked(folder: Path, source: str, *options: str) -> Result:
    path = folder / "k.cu"
    path.write_text(source)
    return CliRunner().invoke(main, ["check", str(path), *options], env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("bad", "name", "error"),
    [
        (
            "__global__ void bad(int* x) { *x = f(1); }",
            "bad",
            r'k.cu\(1\): error: identifier "f" is undefined',
        ),
        ("static __global__ void bad(int* x) { *x = 1 }", "bad", r"k.cu\(1\): error: expected a"),
        ("__global__ void bad(own::T* x) { *x = 1; }", "bad", r"k.cu\(1\): error: name followed by"),
        (
            'namespace a { extern "C" {\n__global__ void\n__launch_bounds__(64)\nbad(int* x)\n{ *x = N; }}}',
            "a::bad",
            r'k.cu\(5\): error: identifier "N" is undefined',
        ),
        (
            "__device__ int f() { return g(); }\ntemplate <class T> struct S { T a;\n"
            "  __device__ T get() { return f(); } };\n__global__ void bad(S<int>* x) { x->a = x->get(); }",
            "bad",
            r'k.cu\(1\): error: identifier "g" is undefined',
        ),
        (
            "template <class T> __device__ T f(T x) { return x.y; }\n__global__ void bad(int* x) { f(*x); }",
            "bad",
            r"k.cu\(1\): error: expression must have class type[^$]*at line 2",
        ),
        ("__global__ void bad(int* x) {\n#error never\n}", "", ""),
        ('static_assert(sizeof(int) == 8, "eight");\n__global__ void bad(int* x) {}', "", ""),
    ],
    ids=["body", "syntax", "signature", "namespace", "functions", "instance", "directive", "assertion"],
)
@pytest.mark.parametrize("first", [True, False])
def test_others_compile_where_one_does_not(
    tmp_path: Path, bad: str, name: str, error: str, first: bool
) -> None:
    """What is wrong with the whole file leaves none."""
    found = built(tmp_path, f"{bad}\n{GOOD}{HOST}" if first else f"{bad}\n{GOOD}".replace("good", "a_good"))
    good = found["good" if first else "a_good"]
    if not name:
        assert all("does not compile" in said for said in found.values())
        return
    assert "does not compile" not in good and re.search(rf"with errors is left out: .*{name}", good)
    assert re.search(error, found[name])
    assert len(set(re.findall(r"k.cu\((\d+)\): error", found[name]))) == 1


def test_each_has_its_own_errors(tmp_path: Path) -> None:
    """Of a template's instances those that have some, and of a kernel without its brace all that follows."""
    template = (
        "template <class T> __global__ void t(T* x) { x[0] = x[0] % 2; }\n"
        "void run() { t<float><<<1, 1>>>(0); t<int><<<1, 1>>>(0); }\n"
    )
    bad = "__global__ void %s(int* x) { *x = %s; }\n"
    last = "__global__ void c() {\n" + bad % ("d", "3")
    found = built(tmp_path, GOOD + bad % ("a", "one") + template + bad % ("b", "two") + last)
    assert "does not compile" not in found["good"] and "does not compile" not in found["t<int>"]
    assert "with T=float" in found["t<float>"]
    assert '"one" is undefined' in found["a"] and "two" not in found["a"]
    assert '"two" is undefined' in found["b"] and "one" not in found["b"]
    assert 'expected a "}"' in found["c"] and 'expected a "}"' in found["d"]


def test_what_did_not_compile_is_not_verified(tmp_path: Path) -> None:
    """Exit code 3 tells it, 1 where another kernel has a finding, or none compiles."""
    bad = "__global__ void bad(float* x) { x[threadIdx.x] = f(1); }\n"
    result = checked(tmp_path, GOOD + bad)
    assert result.exit_code == 3 and "NOT COMPILED: k:bad" in result.stderr
    assert 'k.cu(6): error: identifier "f" is undefined' in result.output
    assert checked(tmp_path, GOOD + bad, "--allow-refused").exit_code == 0
    assert checked(tmp_path, GOOD + bad, "--entry", "good").exit_code == 0
    result = checked(tmp_path, GOOD.replace("i < n", "i <= n") + bad)
    assert result.exit_code == 1 and "out of bounds" in result.output and "NOT COMPILED" in result.stderr
    result = checked(tmp_path, bad)
    assert result.exit_code == 1 and 'k.cu(1): error: identifier "f" is undefined' in result.output


def test_a_header_that_is_not_there_is_told(tmp_path: Path) -> None:
    """And of what compiles without it faults are found."""
    (tmp_path / ".git").mkdir()  # or other tests' folders are searched
    source = '#include "ours/utils.cuh"\n#include <their/types.h>\n' + GOOD
    result = checked(tmp_path, source)
    assert (
        result.exit_code == 0
        and "Not found, and left out: <ours/utils.cuh>, <their/types.h>" in result.stderr
    )
    assert "out of bounds" in checked(tmp_path, source.replace("i < n", "i <= n")).output
    result = checked(tmp_path, source + "__global__ void bad(float* x) { *x = SCALE; }\n")
    assert result.exit_code == 3 and '"SCALE" is undefined' in result.output
    assert 'cannot open source file "ours/utils.cuh"' in result.output


def test_kernels_of_headers_are_checked_there(tmp_path: Path) -> None:
    body = "if (i < n) x[i] = 1;"
    head = "__global__ void fill(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; "
    (tmp_path / "fill.cuh").write_text(f"#pragma once\n{head}{body} }}\n")
    (tmp_path / "all.cuh").write_text('#include "fill.cuh"\n')
    (tmp_path / "main.cu").write_text('#include "all.cuh"\nint main() {}\n')
    said = CliRunner().invoke(main, ["check", str(tmp_path / "main.cu")])
    assert said.exit_code == 2 and "fill.cuh have kernels" in said.output, said.output
    right = CliRunner().invoke(main, ["check", str(tmp_path / "fill.cuh")])
    assert right.exit_code == 0 and "n=1000" in right.output, right.output
    (tmp_path / "fill.cuh").write_text(f"#pragma once\n{head}{body.replace('<', '<=')} }}\n")
    wrong = CliRunner().invoke(main, ["check", str(tmp_path / "fill.cuh")])
    assert wrong.exit_code == 1 and "out of bounds" in wrong.output, wrong.output


def test_constant_functions_of_the_host_are_called_as_under_nvcc(tmp_path: Path) -> None:
    """Do what ``--expt-relaxed-constexpr`` does, where one compiles on the device."""
    source = """#include <vector>
namespace own {
constexpr int ceildiv(int a, int b) { return (a + b - 1) / b; }
static constexpr int of_host(int a) { return std::vector<int>(a).size(); }
}
__global__ void fill(float* x, int n) { if (threadIdx.x < own::ceildiv(n, 2)) x[threadIdx.x] = 1; }
"""
    assert "error:" not in built(tmp_path, source + HOST)["fill"]
    said = built(tmp_path, source.replace("own::ceildiv(n, 2)", "own::of_host(n)") + HOST)["fill"]
    assert "does not compile" in said


def test_a_header_that_changed_is_read_once_by_all_its_names(tmp_path: Path) -> None:
    """Have one beside the file, and in a folder, whose host code is left out."""
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "base.h").write_text(
        "#pragma once\n#include <vector>\nstruct Pair { int a, b; };\n"
        "inline std::vector<int> of_host() { return {}; }\n"
    )
    (tmp_path / "part" / "more.h").write_text('#pragma once\n#include "base.h"\n')
    source = '#include "part/base.h"\n#include "part/more.h"\n__global__ void k(Pair* x) { x->a = 1; }\n'
    assert "error" not in built(tmp_path, source)["k"]
