"""Lambdas, functors and packs are given to kernels, and launches say their arguments and shared memory."""

from __future__ import annotations

from pathlib import Path

from harness.kernels import catalog
from harness.kernels.cpp.source.anew import lambdas
from shared.checking import check, of_programs, programs

PROGRAMS = programs("functors", "launches")
SAID = {  # of sizes, blocks and shared memory
    "cooperative": "--block 128,1,1 -a x=1000",
    "dependent": "--grid 64,1,1 --block 128,1,1",
    "for_each": "-a f.y=1000 -a f.x=1000 -a n=1000",
    "pack": "-a out=1000 -a inputs_0=1000 -a inputs_1=1000 -a inputs_2=1000 -a n=1000",
    "pairs": "--block 64,1,1 --shared 16640",
    "pointers": "--block 96,1,1 -a a=1000 -a out=1000 -a n=1000 -a shift=3",
    "reduce": "--block 256,1,1 -a in=1000",
    "tabulate": "-a function.dx=2750 -a function.image=2750 -a width=50 -a height=55",
    "tiled": "--shared 528 -a in=1000 -a out=1000 -a n=1000 -a radius=2",
    "traits": "-a x=2750 -a sums=55 -a rows=50 -a cols=55",
    "transform": "--block 128,1,1 -a in=1000 -a out=1000 -a n=1000",
    "visitor": "-a body.table=1000 -a body.index=1000 -a body.out=1000",
}
QUICK = ("for_each", "tiled")
FAULTS = [
    ("for_each", "if (i < n) f(i);", "f(i);"),
    ("for_each", "y[i] = a * x[i] + y[i];", "y[i] = a * x[i + 1] + y[i];"),
    ("for_each", "y[i] = a * x[i] + y[i];", "y[0] = a * x[i] + y[i];"),
    ("tabulate", "x < width && y < height", "x <= width && y < height"),
    ("tabulate", "x + 1 < width ?", "x < width ?"),
    ("tabulate", "y * width + x;", "x * width + y;"),
    ("transform", "    __syncthreads();\n", ""),
    ("transform", "i < n ? in[i]", "i <= n ? in[i]"),
    ("transform", "tile[127 - threadIdx.x]", "tile[128 - threadIdx.x]"),
    ("reduce", "part[threadIdx.x + step]);\n        __syncthreads();", "part[threadIdx.x + step]);"),
    ("reduce", "i < n; i +=", "i <= n; i +="),
    ("reduce", "__shared__ T part[BLOCK];", "__shared__ T part[BLOCK - 1];"),
    ("pack", "if (i < n) out[i]", "out[i]"),
    ("pack", "out[i] = total(i, inputs...)", "out[i] = total(i + 1, inputs...)"),
    ("visitor", "i < count; i +=", "i <= count; i +="),
    ("visitor", "table[index[i]]", "table[index[i + 1]]"),
    ("dependent", "c < cols; c += NT", "c <= cols; c += NT"),
    ("dependent", "part[threadIdx.x + s];\n        __syncthreads();", "part[threadIdx.x + s];"),
    ("dependent", "accscalar_t part[NT]", "accscalar_t part[NT / 2]"),
    ("traits", "if (col < cols) sum", "sum"),
    ("traits", "    __syncthreads();\n", ""),
    ("traits", "r < Tile::kRows; r++", "r <= Tile::kRows; r++"),
    ("pairs", "(n + 1) * n * sizeof", "n * n * sizeof"),
    ("pairs",
     "    tile[r * (n + 1) + n] = b[blockIdx.x * n + r];\n    __syncthreads();",
     "    tile[r * (n + 1) + n] = b[blockIdx.x * n + r];"),
    ("pairs", "c = k; c <= n && r", "c = k; c <= n + 1 && r"),
    ("tiled", "(threads + 2 * radius) * sizeof", "(threads + radius) * sizeof"),
    ("tiled", "    __syncthreads();\n", ""),
    ("tiled", "if (i >= n) return;", "if (i > n) return;"),
    ("pointers", "if (i < n) out[i] = a[i]", "if (i <= n) out[i] = a[i]"),
    ("pointers", "out[i] = a[i] + b[i]", "out[i + 1] = a[i] + b[i]"),
    ("pointers", "a[i - shift]", "a[i + shift]"),
    ("cooperative", "    grid.sync();\n", ""),
    ("cooperative",
     "        __syncthreads();\n        tile[threadIdx.x] += other;",
     "        tile[threadIdx.x] += other;"),
    ("cooperative", "if (i < n) x[i] =", "if (i <= n) x[i] ="),
]  # fmt: skip


test_all_are_tried, test_a_right_program_is_clean, test_a_planted_fault_is_found = of_programs(
    PROGRAMS, SAID, FAULTS, QUICK
)


def test_a_lambda_is_a_class_in_its_own_lines(tmp_path: Path) -> None:
    """Find members for what it captures, and a finding in the line in which its text stands."""
    source = PROGRAMS["for_each"]
    (one,) = lambdas.of(source)
    assert one.captured == ("y", "a", "x") and "float* y; float a; const float* x;" in one.written
    assert one.written.startswith(f"#line {source[: one.begin].count(chr(10)) + 1}\n")
    assert "for_each(n, lambda_19{y, a, x});" in lambdas.made(source)
    _, said = check(tmp_path, source.replace("x[i] + y[i]", "x[i + 1] + y[i]"))
    assert "line 19, called in line 8: for_each(n, [=]" in said, said


def test_captures_of_unknown_types_leave_a_lambda_as_it_is() -> None:
    source = PROGRAMS["for_each"]
    for old, new in (("float a,", "auto a,"), ("[=]", "[y, x, a = half(a)]"), ("__device__", "")):
        changed = source.replace(old, new, 1) if old != "__device__" else source.replace(f"{old}(", "(")
        assert not lambdas.of(changed) or "= half" in new, new
    assert lambdas.of("") == () and lambdas.made("[] __device__ (") == "[] __device__ ("


def test_templates_and_locals_have_the_types_that_they_stand_for() -> None:
    source = """template <typename T> void run(T* out, int n) {
      const int half = n / 2; float x = 1, *p = f(); auto q = v.data_ptr<double>();
      go([=] __device__(auto i) { out[i] = p[i] + q[i] * half * x; });
    }"""
    (one,) = lambdas.of(source)
    for declared in (
        "float* out;",
        "float* p;",
        "double* q;",
        "int half;",
        "float x;",
        "template <class Auto0>",
    ):
        assert declared in one.written, one.written


def test_shared_memory_is_that_of_the_host_unless_sizes_are_given(tmp_path: Path) -> None:
    assert "--shared 528" in check(tmp_path, PROGRAMS["tiled"])[1]
    code, said = check(tmp_path, PROGRAMS["tiled"], "-a", "radius=9")
    assert code == 0 and "--shared 49152" in said


def test_kernels_without_lambdas_keep_their_text(tmp_path: Path) -> None:
    (path := tmp_path / "k.cu").write_text(PROGRAMS["pointers"])
    assert {kernel.source for kernel in catalog.load_each(path)} == {PROGRAMS["pointers"]}
