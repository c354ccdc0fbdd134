"""Types that a file defines itself: the size of what lies behind a pointer, and what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.emulator import Buffer, emulate
from harness.errors import UsageError
from harness.kernels import catalog
from harness.kernels.compiler import compile_kernel
from harness.kernels.cpp import includes
from harness.problems.guessed.arguments import digits
from harness.problems.registry import resolve
from harness.support.cache import Cache

TYPES = """
#include "own.h"
typedef float real;            // typedef double real;
using index_t = unsigned short;
#define WORD unsigned int
#ifdef WIDE
typedef double either;
#else
typedef float either;
#endif
#if OF_A_HEADER > 1
typedef double unknown;
#else
typedef float unknown;
#endif
struct Point { real x, y; index_t w[LENGTH]; char tag; };
typedef struct __align__(16) { float3 at; bool on; } Padded;
typedef struct named { int4 cell; Point p[2]; WORD last; double d; } Node;
struct alignas(32) Wide { half2 h; uint64_t n; };
class Method {
 public:
  __host__ __device__ Method() : a(1) { if (a) { b[0] = 2; } }
  __device__ int get() const { return a; }
  void declared_only(int, char);
  static const int SIZE = 5;
  using Other = int;
 private:
  short a, b[2]; double c = 0.5; float scale{2.f};
};
namespace own { struct Inner { char c; int n = 3, m; }; using word = unsigned short; }
"""


def contents(folder: Path, declared: str) -> np.ndarray[Any, Any]:
    """Return the guess of what lies behind a pointer."""
    path = folder / "k.cu"
    (folder / "own.h").write_text("#define LENGTH 3\nstruct Other { int a; };\n")
    path.write_text(f"{TYPES}\n__global__ void k({declared}* x, int n) {{ if (n) x[n] = x[0]; }}\n")
    (kernel,) = catalog.load_each(path)
    found: np.ndarray[Any, Any] = resolve(kernel).from_axes({"n": 100}).inputs(1)["x"]
    return found


@pytest.mark.parametrize(
    "declared",
    [
        "Point", "struct Point", "Padded", "Node", "Wide", "Other", "real", "const index_t", "WORD", "either",
        "unknown", "Method", "own::Inner", "own::word",
    ],
)  # fmt: skip
def test_an_element_has_the_size_that_the_compiler_gives_it(tmp_path: Path, declared: str) -> None:
    """Take the larger of two types of a name where nobody knows which it is: long enough for either."""
    size = contents(tmp_path, declared).nbytes // 100
    path = tmp_path / "s.cu"
    plain = declared.replace("const ", "")
    least = "<=" if declared == "unknown" else "=="
    body = f"static_assert(sizeof({plain}) {least} {size}, {str(size)!r}".replace("'", '"')
    path.write_text(f"#include <cuda_fp16.h>\n#include <stdint.h>\n{TYPES}\n{body});\n"
                    "__global__ void k(int* x) { *x = 1; }\n")  # fmt: skip
    if not any((folder / "cuda_fp16.h").is_file() for folder in includes.libraries()):
        path.write_text(
            path.read_text().replace("#include <cuda_fp16.h>", "struct alignas(4) half2 { int x; };")
        )
    (kernel,) = catalog.load_each(path)
    assert compile_kernel(kernel.variant(), "sm_80", Cache(tmp_path / "cache")).code


@pytest.mark.parametrize(
    "declared", ["Linked", "Missing", "Endless", "real**", "Virtual", "Union", "Nested", "Apart", "Derived"]
)
def test_other_types_are_refused_by_name(tmp_path: Path, declared: str) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        "struct Linked { int value; Linked* next; };\n"
        "struct Virtual { int a; virtual int get() { return a; } };\ntypedef float real;\n"
        "struct Union { union { int a; float* b; }; };\nstruct Nested { enum In { A } in; };\n"
        "struct Apart { alignas(16) char a; };\nstruct Derived : Apart { int b; };\n"
        "typedef Endless2 Endless;\ntypedef Endless Endless2;\n"
        f"__global__ void k({declared}* x) {{}}\n"
    )
    (kernel,) = catalog.load_each(path)
    with pytest.raises(UsageError, match="for which no value can be guessed"):
        resolve(kernel)


def test_members_that_are_integers_are_indices_of_what_there_is(tmp_path: Path) -> None:
    """A walk over an array of structs stays inside; of one that goes further it is told."""
    path = tmp_path / "walk.cu"
    path.write_text(
        "struct Node { float weight; int edges[2]; };\n"
        "__global__ void walk(Node* nodes, float* sums, int n)\n{\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n)\n"
        "        sums[i] = nodes[nodes[i].edges[0]].weight + nodes[nodes[i].edges[1]].weight;\n}\n"
    )
    for source in (path.read_text(), path.read_text().replace("edges[0]]", "edges[0] + n]")):
        path.write_text(source)
        (kernel,) = catalog.load_each(path)
        cubin = compile_kernel(kernel.variant(), "sm_80", Cache(tmp_path / "cache"))
        nodes = resolve(kernel).from_axes({"n": 100}).inputs(1)["nodes"]
        sums = np.zeros(100, np.float32)
        buffers = Buffer(array=nodes, name="nodes"), Buffer(array=sums, name="sums")
        run = emulate(cubin.ptx, cubin.entry, grid=(1,), block=(128,), arguments=[*buffers, np.int32(100)])
        assert [f.kind for f in run.findings] == ["out of bounds"] * ("+ n]" in source)
        if "+ n]" not in source:
            parts = nodes.view(np.dtype([("weight", "f4"), ("edges", "i4", 2)])).reshape(100)
            np.testing.assert_array_equal(sums, parts["weight"][parts["edges"]].sum(1))


@pytest.mark.parametrize(("defined", "kind"), [("", np.float32), ("#define DOUBLE 1\n", np.float64)])
def test_the_branch_that_is_compiled_says_what_a_number_by_value_is(
    tmp_path: Path, defined: str, kind: type
) -> None:
    """The other branch's type had other bytes than the parameter, which no launch takes."""
    (tmp_path / "real.h").write_text(
        f"{defined}#ifdef DOUBLE\ntypedef double real;\n#else\ntypedef float real;\n#endif\n"
    )
    path = tmp_path / "k.cu"
    path.write_text(
        '#include "real.h"\n__global__ void k(real* x, int n, real by)\n'
        "{ if (threadIdx.x < n) x[threadIdx.x] = by; }\n"
    )
    (kernel,) = catalog.load_each(path)
    problem = resolve(kernel).from_axes({"n": 100})
    x, _, by = problem.arguments()
    assert problem.inputs(1)[x].dtype == kind and by.dtype == kind
    result = CliRunner().invoke(main, ["check", str(path)])
    assert result.exit_code == 0, result.output


def test_a_long_number_is_said_with_all_its_digits() -> None:
    said = [digits(v) for v in (4194305, np.float32(0.5), 1.0, float("inf"))]
    assert said == ["4194305", "0.5", "1", "inf"]


def test_a_struct_by_value_has_the_numbers_that_it_begins_with(tmp_path: Path) -> None:
    """A step or a mass is rarely 1; sizes among its integers are those of the guess."""
    path = tmp_path / "k.cu"
    path.write_text(
        "struct Params { float dt = 0.05f, mass = -2e3f; int n = 5000; float other; };\n"
        "__global__ void k(float* x, Params p) { if (threadIdx.x < p.n) x[threadIdx.x] = p.dt; }\n"
    )
    (kernel,) = catalog.load_each(path)
    given = resolve(kernel).from_axes({"p": 100}).arguments()[1]
    assert [round(float(n[0]), 6) for n in given.item()] == [0.05, -2000, 100, 1]


def test_states_of_curand_are_bytes(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text("__global__ void k(curandState* s, curandStatePhilox4_32_10_t* p, int n) {}\n")
    (kernel,) = catalog.load_each(path)
    made = resolve(kernel).from_axes({"n": 100}).inputs(1)
    assert (made["s"].nbytes, made["p"].nbytes) == (48 * 100, 64 * 100)
