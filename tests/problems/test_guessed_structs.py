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
"""
UNKNOWN = """
struct Two { View<char> each[2]; };
struct Many { float* x[2]; };
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
        ("Fixed<View<int>, 1>", {".value.data": 0}),
        ("Both", {".left.data": 0, ".right.data": 24}),
        ("Derived", {".p": 24}),
        ("Marked", {".data": 0}),
        ("Held<int*>", {".item": 0}),
        ("Few", {}),
        ("Tight", {}),
        ("Loose", {}),
    ],
)
def test_a_struct_is_laid_out_as_the_compiler_does(name: str, pointers: dict[str, int]) -> None:
    """Compare with numbers that the compiler confirms below."""
    kind = elements.of(name, [TYPES])
    assert isinstance(kind, np.dtype) and {p.path: p.offset for p in elements.pointers(kind)} == pointers


def test_the_compiler_has_the_same_sizes_and_places(tmp_path: Path) -> None:
    names = ["Rows", "View<int>", "Doubles", "Fixed<View<int>, 1>", "Both", "Derived", "Few", "Tight"]
    names += ["Held<int*>", "Marked"]
    sizes = {name: elements.size(elements.of(name, [TYPES]) or ("int8", 0)) for name in (*names, "Loose")}
    places = {"Rows, y": 8, "Rows, at": 16, "Both, right": 24, "Derived, p": 24, "Marked, n": 8}
    lines = [f'static_assert(sizeof({name}) == {size}, "");' for name, size in sizes.items()]
    lines += [f'static_assert(__builtin_offsetof({place}) == {at}, "");' for place, at in places.items()]
    path = tmp_path / "k.cu"
    path.write_text("\n".join([TYPES, *lines, "__global__ void k(int* x) { *x = 1; }"]))
    (kernel,) = catalog.load_each(path)
    assert compile_kernel(kernel.variant(), "sm_80", Cache(tmp_path / "cache")).code


@pytest.mark.parametrize(
    "name",
    ["Linked", "Names", "Behind", "Virtually", "Reference", "Bits", "Long<n>", "Long", "Two", "Many", "Huge",
     "Wide", "Odd", "View<int>"],
)  # fmt: skip
def test_what_is_not_known_has_no_type(name: str) -> None:
    assert elements.of(name, [TYPES, UNKNOWN]) is None


def test_a_pointer_to_a_struct_with_pointers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(f"{TYPES}__global__ void k(Rows* rows, int n) {{ if (n) rows->x[0] = 1; }}")
    (kernel,) = catalog.load_each(path)
    with pytest.raises(UsageError, match="rows of k is a Rows, for which no value can be guessed"):
        resolve(kernel)


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
        ("y * w + x + 1", [], "of rows.x, 4 past what is its own"),
        ("y * w + x", ["-a", "from.data=4000"], "of from.data, 4 past what is its own"),
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
