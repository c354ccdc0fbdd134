"""Structs that a kernel takes by value: what their pointers lead to is guessed; bases and templates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.errors import UsageError
from harness.kernels import catalog
from harness.kernels.compiler import compile_kernel
from harness.kernels.cpp import elements
from harness.problems.protocol import Struct
from harness.problems.registry import resolve
from harness.support.cache import Cache

TYPES = """
enum { FEW = 2, MANY = FEW * 3 };
struct Rows { float *__restrict__ x, *y; const int* at; int n; };
template <typename T, int N = 4> struct Fixed { T value[N]; char tag; };
template <typename T> class View {
 public:
  T* data; short ld; unsigned long step = 0;
  __device__ T& operator()(int i, int j) { return data[i * step + j]; }
};
typedef View<double> Doubles;
using Few = Fixed<short, FEW>;
struct Both { View<float> left, right; char c; Few few; float more[MANY]; };
struct Empty {};
struct Base { double d; int n; int m; };
struct Derived final : public Base, private Empty { char c; float* p; };
template <class T> struct Held { T item; int n; };
struct Marked { [[maybe_unused]] float* data; int n; };
#pragma pack(push, 1)
struct Tight { char c; double d; short s; };
#pragma pack(pop)
struct Loose { char c; double d; };
struct Ptrs { float* p[4]; int n[4]; };
struct Grid { View<char> each[2][3]; __device__ float** of_none(); };
union Word { float f; unsigned char byte[6]; short s; };
typedef union { struct { float x, y, z; }; float v[3]; double d[2]; } Vector;
struct Mixed {
  enum { NEAR, FAR }; char c; union { int i; float f; }; struct { short a, b; } pair[2]; Vector v;
};
struct Either {
  union { const float* in; double* wide; }; union { int n; char tag[5]; } u; struct Inner { int k; } z;
};
"""
UNKNOWN = """
struct Many { float* x[5000]; };
union Hidden { int n; float* x; };
struct Deep { float** x; };
struct Table { Rows* rows; };
struct Huge { float x[9999999][9999999]; };
struct alignas(1000000000000) Wide { float x; };
struct Odd { , ; * ; = 3; };
template <> struct View<short> { int n; short* data; };
struct Linked { int value; Linked* next; };
struct Names { char** names; };
struct Padded { double d; char c; };
struct Behind : Padded { char e; };
struct Virtually : virtual Empty { int n; };
struct Reference { float& x; };
struct Bits { int a : 3; };
template <int N> struct Long { float x[N]; };
"""


@pytest.mark.parametrize(
    ("name", "pointers"),
    [
        ("Rows", {".x": 0, ".y": 8, ".at": 16}),
        ("View<int>", {".data": 0}),
        ("own::Doubles", {".data": 0}),
        ("Fixed<View<int>, 1>", {".value[0].data": 0}),
        ("Both", {".left.data": 0, ".right.data": 24}),
        ("Derived", {".p": 24}),
        ("Marked", {".data": 0}),
        ("Held<int*>", {".item": 0}),
        ("Few", {}),
        ("Tight", {}),
        ("Loose", {}),
        ("Ptrs", {f".p[{i}]": 8 * i for i in range(4)}),
        ("Grid", {f".each[{i}][{j}].data": 72 * i + 24 * j for i in range(2) for j in range(3)}),
        ("Word", {}),
        ("Mixed", {}),
        ("Either", {".in": 0}),
    ],
)
def test_a_struct_is_laid_out_as_the_compiler_does(name: str, pointers: dict[str, int]) -> None:
    """Compare with numbers that the compiler confirms below."""
    kind = elements.of(name, [TYPES])
    assert isinstance(kind, np.dtype) and {p.path: p.offset for p in elements.pointers(kind)} == pointers


def test_the_compiler_has_the_same_sizes_and_places(tmp_path: Path) -> None:
    names = ["Rows", "View<int>", "Doubles", "Fixed<View<int>, 1>", "Both", "Derived", "Few", "Tight"]
    names += ["Held<int*>", "Marked", "Ptrs", "Grid", "Word", "Vector", "Mixed", "Either"]
    names += ["cudaExtent", "cudaPos"]
    sizes = {name: elements.size(elements.of(name, [TYPES]) or ("int8", 0)) for name in (*names, "Loose")}
    places = {
        "Rows, y": 8,
        "Rows, at": 16,
        "Both, right": 24,
        "Derived, p": 24,
        "Marked, n": 8,
        "Mixed, v": 16,
    }
    lines = [f'static_assert(sizeof({name}) == {size}, "");' for name, size in sizes.items()]
    lines += [f'static_assert(__builtin_offsetof({place}) == {at}, "");' for place, at in places.items()]
    path = tmp_path / "k.cu"
    path.write_text("\n".join([TYPES, *lines, "__global__ void k(int* x) { *x = 1; }"]))
    (kernel,) = catalog.load_each(path)
    assert compile_kernel(kernel.variant(), "sm_80", Cache(tmp_path / "cache")).code


@pytest.mark.parametrize(
    "name",
    ["Linked", "Names", "Behind", "Virtually", "Reference", "Bits", "Long<n>", "Long", "Many", "Hidden",
     "Deep", "Table", "Huge", "Wide", "Odd", "View<int>"],
)  # fmt: skip
def test_what_is_not_known_has_no_type(name: str) -> None:
    assert elements.of(name, [TYPES, UNKNOWN]) is None


@pytest.mark.parametrize(
    ("declared", "use"), [("Table", "x->rows->x[0]"), ("Rows*", "x[0]->x[0]"), ("float**", "x[0][0][0]")]
)
def test_pointers_behind_pointers_behind_pointers_are_refused(
    tmp_path: Path, declared: str, use: str
) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        f"{TYPES} struct Table {{ Rows* rows; }};\n"
        f"__global__ void k({declared}* x, int n) {{ if (n) {use} = 1; }}"
    )
    (kernel,) = catalog.load_each(path)
    with pytest.raises(UsageError, match="x of k is a .*, for which no value can be guessed") as refused:
        resolve(kernel)
    assert "as operands of its own" in str(refused.value.hint)


def check(tmp_path: Path, source: str, *more: str) -> tuple[int, str]:
    """Return what `harness check` says of a file."""
    path = tmp_path / "k.cu"
    path.write_text(TYPES + source)
    ran = CliRunner().invoke(main, ["check", str(path), *more])
    return ran.exit_code, ran.output


FUSED = """__global__ void fused(Ptrs t, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, which = blockIdx.y;
  if (i < n && t.n[which]) t.p[which][PLACE] = 2 * t.p[which][i];
}"""


@pytest.mark.parametrize(
    ("place", "more", "said"),
    [
        ("i", [], ""),
        ("i + t.n[0] * n", [], "writes 4 bytes at offset"),
        ("i", ["-a", "t.p=100"], "of t.p[0], "),
        ("threadIdx.x", [], "global race"),
    ],
)
def test_a_struct_with_an_array_of_pointers(tmp_path: Path, place: str, more: list[str], said: str) -> None:
    """Blocks along y are as many as pointers, each of which leads to an operand."""
    code, output = check(tmp_path, FUSED.replace("PLACE", place), "-a", "n=500", *more)
    assert code == bool(said) and said in output and ",4,1 --block 256" in output, output


BATCHED = """__global__ void batched(const float* const* A, float** B, int m, int n) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y, b = blockIdx.z;
  if (r < m && c < n) B[b][r * n + c] = A[b][PLACE];
}"""
ROWS = """__global__ void rows(Rows* rows, int n) {
  Rows mine = rows[blockIdx.x];
  for (int i = threadIdx.x; i < n; i += blockDim.x) mine.y[i] = mine.x[PLACE] + mine.at[i];
}"""


@pytest.mark.parametrize(
    ("source", "place", "said"),
    [
        (BATCHED, "r * n + c", ""),
        (BATCHED, "r * n + c + 1", "of A[0].each, up to 4 bytes past the end"),
        (ROWS, "i", ""),
        (ROWS, "i + 1", "of rows[0].x, up to 4 bytes past the end"),
    ],
)
def test_pointers_that_pointers_lead_to(tmp_path: Path, source: str, place: str, said: str) -> None:
    code, output = check(tmp_path, source.replace("PLACE", place))
    assert code == bool(said) and said in output, output
    assert "-a A=64 -a B=64 -a A.each=4096" in output or "-a rows=1000 -a rows.x=1000" in output


@pytest.mark.slow
def test_a_table_may_be_written_to(tmp_path: Path) -> None:
    """Blocks exchange pointers, which the arrays of the host never see."""
    source = """__global__ void exchanged(float** x, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (2 * i + 1 < n) { float* a = x[2 * i]; x[2 * i] = x[2 * i + 1]; x[2 * i + 1] = a; a[n - 1] = 1; }
    }"""
    assert check(tmp_path, source)[0] == 0
    assert "of x[0].each, up to 4 bytes past" in check(tmp_path, source.replace("n - 1]", "n]"))[1]


def test_a_fault_behind_many_pointers_is_one(tmp_path: Path) -> None:
    """Others would not be seen for it."""
    source = """__global__ void rows(float** x, int n) {
      if (threadIdx.x < n) x[threadIdx.x][0] = blockIdx.x;
    }"""
    code, output = check(tmp_path, source)
    assert code == 1 and output.count("global race") == 1 and "x[0].each at offset 0" in output, output
    assert "more findings" not in output


@pytest.mark.parametrize(("at", "said"), [("i", ""), ("i + 1", "of w, up to 4 bytes past")])
def test_elements_that_are_unions(tmp_path: Path, at: str, said: str) -> None:
    source = """__global__ void k(Word* w, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) w[AT].f = 1;
    }"""
    code, output = check(tmp_path, source.replace("AT", at))
    assert code == bool(said) and said in output, output


TURNED = """
__global__ void turned(const View<float> from, View<float> to, Rows rows, int w, int h) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < w && y < h) to.data[y * to.step + x] = from.data[y * from.step + x] * rows.x[PLACE] + rows.n;
}
"""


@pytest.mark.parametrize(
    ("place", "more", "said"),
    [
        ("y * w + x", [], ""),
        ("y * w + x + 1", [], "of rows.x, up to 4 bytes past the end"),
        ("y * w + x", ["-a", "from.data=4000"], "of from.data, up to 4 bytes past the end"),
    ],
)
def test_what_lies_behind_the_pointers_of_a_struct_is_checked(
    tmp_path: Path, place: str, more: list[str], said: str
) -> None:
    path = tmp_path / "turned.cu"
    path.write_text(TYPES + TURNED.replace("PLACE", place))
    ran = CliRunner().invoke(main, ["check", str(path), *more])
    assert ran.exit_code == bool(said) and said in ran.output, ran.output
    assert "-a to.data=4096 -a rows.x=4096 -a rows.y=4096 -a rows.at=4096 -a from=64 -a to=64" in ran.output


def test_an_argument_has_its_pointers_between_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(f"{TYPES}__global__ void k(Both both) {{ both.left.data[0] = both.c; }}")
    (kernel,) = catalog.load_each(path)
    problem = resolve(kernel).from_axes({"both": 5})
    (argument,) = problem.arguments()
    assert isinstance(argument, Struct) and argument.operands() == ["both.left.data", "both.right.data"]
    packed = argument.pack(lambda name: 1 if "left" in name else 2)
    numbers = np.frombuffer(packed[:48], np.uint64)
    assert len(packed) == 80 and numbers.tolist() == [1, 5, 5, 2, 5, 5] and packed[48] == 5


def test_no_macro_has_a_point_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "turned.cu"
    path.write_text(TYPES + TURNED)
    ran = CliRunner().invoke(main, ["check", str(path), "-p", "a.b=1"])
    assert ran.exit_code == 2 and "parameter a.b is no name of a macro" in ran.output
