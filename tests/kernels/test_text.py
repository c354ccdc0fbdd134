"""Kernels without front matter: what their text tells, and that the compiler agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import BuildError, SpecError, UsageError
from harness.kernels import catalog, spec, text
from harness.kernels.compiler import compile_kernel
from harness.kernels.text import Parameter
from harness.support.cache import Cache

SOURCE = """\
// __global__ void in_a_comment(int a) {}
/* __global__ void in_another(); */
__device__ const char* words = "__global__ void in_a_string()";
__global__ void declared(float* x, int n);
template <typename T, int N = 4>
__global__ void scaled(T* __restrict__ x, const T* y, size_t n) { x[0] = y[blockIdx.y]; }
template __global__ void scaled<float, 3>(float*, const float*, size_t);
namespace outer { namespace inner {
static __global__ void __launch_bounds__(128, 2) bounded(unsigned long long n, double (*f)) {}
} }
__global__ void declared(float* x, int n) { x[threadIdx.z] = n; }
extern "C" __global__ void last(void) {}
"""


def test_entries_are_found_as_a_reader_would() -> None:
    found = {entry.name: entry for entry in text.entries(SOURCE)}
    assert list(found) == ["declared", "scaled", "scaled<float, 3>", "outer::inner::bounded", "last"]
    assert found["declared"].dimensions == 3 and found["scaled"].dimensions == 2
    assert found["scaled"].template == ("typename T", "int N")
    assert str(found["scaled"]) == "scaled<typename T, int N>"
    assert found["outer::inner::bounded"].bounds == 128
    assert found["outer::inner::bounded"].block == (128,)
    assert found["last"].parameters == ()
    assert found["scaled"].parameters == (
        Parameter(type="T", name="x", pointer=True),
        Parameter(type="T", name="y", pointer=True, const=True),
        Parameter(type="size_t", name="n"),
    )
    assert found["scaled<float, 3>"].parameters[2] == Parameter(type="size_t", name="p2")
    assert found["scaled"].types("scaled<half, 16>") == {"T": "half", "N": "16"}


def test_an_instance_is_described_by_its_template() -> None:
    known = text.entries(SOURCE)
    for name in ("scaled", "scaled<half, 2>", "scaled<float, 3>"):
        entry = text.find(known, name)
        assert entry is not None and entry.template
    assert text.find(known, "nothing") is None


@pytest.mark.parametrize(
    "broken", ["__global__", "__global__ void k(", "__global__ void k(int a", "__global__ int x;", "}} {{"]
)
def test_broken_text_has_no_kernels(broken: str) -> None:
    assert text.entries(broken) == []


def test_a_file_without_front_matter_gives_each_of_its_kernels(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "plain.cu"
    path.write_text(SOURCE.replace("double (*f)", "double* f"))
    kernels = catalog.load_each(path)
    assert [k.name for k in kernels] == [
        "plain:declared", "plain:scaled<float,3>", "plain:outer::inner::bounded", "plain:last",
    ]  # fmt: skip
    mangled = [compile_kernel(k.variant(), "sm_80", cache).entry for k in kernels]
    assert mangled == ["_Z8declaredPfi", "_Z6scaledIfLi3EEvPT_PKS0_m", mangled[2], "last"]
    assert "bounded" in mangled[2]
    half = catalog.chosen(kernels, "scaled<unsigned char, 2>", [])[0]
    assert compile_kernel(half.variant(), "sm_80", cache).entry == "_Z6scaledIhLi2EEvPT_PKS0_m"


def test_names_that_are_no_kernel_are_refused(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "plain.cu"
    path.write_text("template <class Op, int N> __global__ void k(Op* x) {}\n")
    (kernel,) = catalog.load_each(path)
    with pytest.raises(UsageError, match=r"no kernel 'other'\n.*it has k<class Op, int N>"):
        catalog.chosen([kernel], "other", [])
    with pytest.raises(BuildError, match="it is a template: name an instance, --entry 'k<float, 128>'"):
        compile_kernel(kernel.variant(), "sm_80", cache)


@pytest.mark.parametrize(
    ("template", "instance", "block"),
    [
        ("typename T, int THREADS = 64", "k<float,64>", 64),
        ("class scalar_t, bool LAST", "k<float,false>", 256),
        ("const int N = 4 * 8", "k<4*8>", 256),
        ("int N", "k", 256),
        ("class Op", "k", 256),
    ],
)
def test_a_template_that_nobody_launches_is_tried(
    tmp_path: Path, template: str, instance: str, block: int
) -> None:
    """With its defaults, float and false; without them it remains a template, which is no kernel."""
    path = tmp_path / "t.cu"
    path.write_text(f"template <{template}> __global__ void k(float* x) {{ x[threadIdx.x] = 1; }}\n")
    (kernel,) = catalog.load_each(path)
    assert "".join(kernel.entry.split()) == instance
    assert kernel.variant().block == (block, 1, 1)


def test_a_file_without_kernels_says_so(tmp_path: Path) -> None:
    path = tmp_path / "none.cu"
    path.write_text("int x;\n")
    with pytest.raises(SpecError, match="no front matter, and no __global__ function"):
        catalog.load_each(path)
    path.with_suffix(".ptx").write_text(".version 8.0\n")
    with pytest.raises(SpecError, match=r"no front matter, and no \.entry to guess"):
        catalog.load_each(path.with_suffix(".ptx"))
    path.write_text("// /// kernl\n__global__ void k() {}\n")  # meant to be front matter
    with pytest.raises(SpecError, match="no front matter\n"):
        catalog.load_each(path)


def test_a_template_entry_takes_parameters(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "t.cu"
    path.write_text(
        '// T\n// /// kernel\n// entry = "k<float, TILE>"\n// block = 32\n// tile = 32\n'
        "// [params]\n// TILE = [8, 4]\n// ///\n"
        "template <class T, int N> __global__ void k(T* x) { x[threadIdx.x] = N; }\n"
    )
    entries = [compile_kernel(v, "sm_80", cache).entry for v in spec.load(path).variants()]
    assert entries == ["_Z1kIfLi8EEvPT_", "_Z1kIfLi4EEvPT_"]


@pytest.mark.parametrize(("bounds", "known"), [("64", 64), ("N, 2", None)])
def test_launch_bounds_may_stand_before_global(bounds: str, known: int | None) -> None:
    source = f"template <int N> __launch_bounds__({bounds}) __global__ void k(int* x) {{ *x = N; }}"
    (entry,) = text.entries(source)
    assert (entry.name, entry.template, entry.bounds) == ("k", ("int N",), known)
    assert text.entries("template <int N> void f(int n); __global__ void k() {}")[0].template == ()


def test_directives_are_no_part_of_a_kernels_head() -> None:
    """Take the last one of two names."""
    source = (
        "__global__ void\n#if defined(SMALL)\nfew\n#else\nmany\n#endif\n(float* x,\n#pragma once\nint n) {}"
    )
    (entry,) = text.entries(source)
    assert entry.name == "many" and [p.name for p in entry.parameters] == ["x", "n"]


@pytest.mark.parametrize(
    "before", ["#endif /* or\n{} */\n", "#endif // a /* b\n/*{}*/", '#define A "/*"\n//{}\n']
)
def test_a_comment_may_begin_behind_a_directive(before: str) -> None:
    old = "__global__ void old(int* y) {}"
    source = before.format(old) + "__global__ void k(int* x) {}"
    assert [entry.name for entry in text.entries(source)] == ["k"]


@pytest.mark.parametrize(
    ("listed", "parts"),
    [
        ("1 << n, p->x, f(a, b)", ["1 << n", "p->x", "f(a, b)"]),
        ("(1 << k) + 15, a >= b, c <= d", ["(1 << k) + 15", "a >= b", "c <= d"]),
        (
            "Vec<float, 4>, Map<int, Vec<int, 2>>, {1, 2}[0]",
            ["Vec<float, 4>", "Map<int, Vec<int, 2>>", "{1, 2}[0]"],
        ),
        (" , a,, b ", ["a", "b"]),
    ],
)
def test_a_list_is_split_at_its_own_commas(listed: str, parts: list[str]) -> None:
    assert text.split(listed) == parts


def test_what_is_no_name_names_no_parameter() -> None:
    """A name goes into patterns, where ``++i`` would be one."""
    assert text.parameter("const float* x", "p0").name == "x"
    assert text.parameter("int ++i", "p1").name == text.parameter("int", "p1").name == "p1"
