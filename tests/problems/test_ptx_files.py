"""`harness check` of PTX that other compilers made: in `tests/data/triton` is what Triton makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.checking import check_file
from shared.emulator_kernels import compile_ptx
from shared.sweeps import sweep

TRITON = Path(__file__).parents[1] / "data" / "triton"
SAID = {  # of the launch
    "described": "--grid 1,1,1 --block 128,1,1 --shared 229376 -a param_0=4096",
    "add": "--grid 4,1,1 --block 128,1,1 -a param_0=1000",
    "histogram": "--grid 8,1,1 --block 128,1,1",
    "product": "-a stride_6=64 -a stride_7=1 -a stride_8=64 -a stride_9=1 -a stride_10=64 -a stride_11=1",
    "softmax": "--shared 229376 -a param_0=4096",
    "tiles": "--grid 1,1,1 --block 128,1,1 -a param_0=4096",
}


def edited(folder: Path, name: str, old: str, new: str) -> Path:
    """Write a text of Triton's with something else in place of `old`, a pattern."""
    source = (TRITON / f"{name}.ptx").read_text()
    assert re.search(old, source), old
    path = folder / f"{name}.ptx"
    path.write_text(re.sub(old, new, source))
    return path


def test_all_are_tried() -> None:
    assert {path.stem for path in TRITON.glob("*.ptx")} == SAID.keys()


@pytest.mark.parametrize("name", SAID)
def test_a_right_kernel_is_clean(name: str) -> None:
    code, output = check_file(TRITON / f"{name}.ptx")
    assert code == 0 and SAID[name] in output, output


FAULTS = [
    ("add", r"setp\.lt\.s32 \t%p2", "setp.le.s32 \t%p2", "out of bounds", "kernels.py:"),
    ("softmax", r"setp\.lt\.s32 \t%p1", "setp.le.s32 \t%p1", "out of bounds", "kernels.py:"),
    ("softmax", r"bar\.sync \t0;", "", "RAW hazard", "kernels.py:27"),
    ("histogram", r"setp\.lt\.s32", "setp.le.s32", "out of bounds", "kernels.py:"),
    ("histogram", r"atom\.global\S+ %r2, (.*), %r3", r"st.global.u32 \1, %r9", "race", "kernels.py:34"),
    ("product", r"setp\.lt\.s32 \t%p(2[89]|3\d)", r"setp.le.s32 \t%p\1", "out of bounds", "kernels.py:"),
    ("product", r"bar\.sync \t0;\n\tldmatrix", "ldmatrix", "RAW hazard", "kernels.py:"),
    ("product", r"bar\.sync \t0;\n\tst\.shared", "st.shared", "WAR hazard", "kernels.py:"),
    ("product", r"setp\.lt\.s32 \t%p14", "setp.le.s32 \t%p14", "out of bounds", "kernels.py:"),
]  # fmt: skip
QUICK = ("add", "softmax", "histogram")


@pytest.mark.parametrize(
    ("name", "old", "new", "said", "where"), sweep(FAULTS, lambda name, *_: name in QUICK)
)
def test_a_fault_is_found(tmp_path: Path, name: str, old: str, new: str, said: str, where: str) -> None:
    code, output = check_file(edited(tmp_path, name, old, new))
    assert code == 1 and said in output and where in output, output


def test_lines_of_the_file_that_ptx_names_are_quoted(tmp_path: Path) -> None:
    path = edited(tmp_path, "softmax", r"bar\.sync \t0;", "")
    assert "kernels.py:27 kernels.py:28" in check_file(path)[1]
    (tmp_path / "kernels.py").write_text((TRITON / "kernels.py").read_text())
    assert (
        "kernels.py:27: value = tl.exp(value - tl.max(value, axis=0)) kernels.py:28: tl."
        in check_file(path)[1]
    )
    assert re.search(r"kernels\.py:28 tl\.store\(.*?\) [\d.]+k [\d.]+k ", check_file(path, "--lines")[1])


def test_more_tiles_than_a_guess_has(tmp_path: Path) -> None:
    """A block that counts tiles has one, and as many as the launch says."""
    path = edited(tmp_path, "tiles", r"setp\.lt\.s32 \t%p3", "setp.le.s32 \t%p3")
    assert check_file(path)[0] == 0
    code, output = check_file(path, "--grid", "16")
    assert code == 1 and "out of bounds" in output and "kernels.py:56" in output, output
    assert check_file(TRITON / "tiles.ptx", "--grid", "16")[0] == 0


def test_shapes_in_the_text_have_one_block(tmp_path: Path) -> None:
    """Pallas and TileLang compile for one shape: nothing says how many blocks it has."""
    path = tmp_path / "turn.ptx"
    path.write_text(
        compile_ptx("""extern "C" __global__ void __launch_bounds__(256) turn(const float* x, float* y) {
            int c = blockIdx.x * 16 + threadIdx.x % 16, r = blockIdx.y * 16 + threadIdx.x / 16;
            y[c * 32 + r] = x[r * 32 + c];
        }""")
    )
    code, output = check_file(path)
    assert code == 0 and "--grid 1,1,1" in output, output
    code, output = check_file(path, "--grid", "2,2")
    assert code == 0 and "--grid 2,2,1" in output, output
    code, output = check_file(path, "--grid", "2,3")
    assert code == 1 and "race" in output, output


@pytest.fixture
def shared_rows(tmp_path: Path) -> Path:
    """The PTX of a kernel with a barrier, and no bounds of its block."""
    path = tmp_path / "rows.ptx"
    path.write_text(
        compile_ptx("""extern "C" __global__ void rows(float* x, int n) {
            __shared__ float s[128];
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            s[threadIdx.x] = i < n ? x[i] : 0.f;
            __syncthreads();
            if (i < n) x[i] = s[threadIdx.x ^ 1];
        }""")
    )
    return path


def test_a_block_that_ptx_does_not_tell_is_asked_for(shared_rows: Path) -> None:
    code, output = check_file(shared_rows)
    assert code == 2 and "how many threads a block of rows has" in output and "--block 128" in output
    code, output = check_file(shared_rows, "--block", "128")
    assert code == 0 and "--grid 8,1,1 --block 128,1,1" in output, output
    code, output = check_file(shared_rows, "--block", "256")
    assert code == 1 and "out of bounds" in output  # of shared memory


def test_what_cannot_be_checked_says_why(tmp_path: Path) -> None:
    newer = edited(tmp_path, "add", "sm_90a", "sm_100a")
    code, output = check_file(newer)
    assert code == 2 and "needs sm_100a" in output and "--arch sm_100a" in output
    assert check_file(newer, "--arch", "sm_100a")[0] == 0
    for text in ("", ".version 8.0\n.target sm_80\n.address_size 64\n"):
        (path := tmp_path / "none.ptx").write_text(text)
        code, output = check_file(path)
        assert code == 2 and "no front matter, and no .entry to guess it from" in output
    code, output = check_file(edited(tmp_path, "add", r"(?s)\n[^\n]*bra.*|\n[^\n]*\bret;.*", ""))
    assert code == 1 and "does not assemble" in output


@pytest.mark.parametrize("suffix", [".cu", ".ptx"])
def test_a_part_of_a_name_is_no_entry(tmp_path: Path, suffix: str) -> None:
    source = 'extern "C" __global__ void added(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }'
    path = tmp_path / f"k{suffix}"
    path.write_text(compile_ptx(source) if suffix == ".ptx" else source)
    code, output = check_file(path, "--entry", "add")
    assert code == 2 and "no kernel 'add'" in output and "it has added" in output
    assert check_file(path, "--entry", "added")[0] == 0


def test_a_struct_of_which_the_address_is_taken_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "whole.ptx"
    path.write_text(
        compile_ptx("""struct P { float* x; int n[2]; };
        extern "C" __global__ void whole(const __grid_constant__ P p) {
          p.x[threadIdx.x] = p.n[threadIdx.x % 2];
        }""")
    )
    code, output = check_file(path)
    assert code == 2 and "param_0 of whole is a struct_of_16_bytes" in output, output


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", ""),
        ("m * stride_cm + n", "m * stride_cm / 2 + n", "race"),
        ("k * stride_ak", "(k + 1) * stride_ak", "of a, "),
        ("n < N", "n <= N", "of c, "),
        ("m < M", "m <= M", "of a, "),
        ("k < K", "k <= K", "of a, "),
    ],
)
def test_strides_of_several_dimensions(tmp_path: Path, old: str, new: str, said: str) -> None:
    """Rows and columns of an array have strides: 1 between columns, and rows do not overlap. In C++, too."""
    source = """__global__ void mm(const float* a, const float* b, float* c, int M, int N, int K,
        int stride_am, int stride_ak, int stride_bk, int stride_bn, int stride_cm, int stride_cn) {
      int m = blockIdx.y * blockDim.y + threadIdx.y, n = blockIdx.x * blockDim.x + threadIdx.x;
      if (m < M && n < N) {
        float s = 0;
        for (int k = 0; k < K; k++) s += a[m * stride_am + k * stride_ak] * b[k * stride_bk + n * stride_bn];
        c[m * stride_cm + n * stride_cn] = s;
      }
    }"""
    assert old in source
    path = tmp_path / "mm.cu"
    path.write_text(source.replace(old, new, 1) if old else source)
    code, output = check_file(path)
    assert code == (1 if said else 0) and said in output, output
    assert "-a stride_am=64 -a stride_ak=1" in output


STRUCT = """
struct Params { const float* x; float* y; const float* bias; long long batch; int rows, cols;
  float alpha; bool add; };
extern "C" __global__ void biased(Params p, int unused) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  if (r >= p.rows || c >= p.cols) return;
  float v = p.alpha * p.x[r * p.cols + c];
  p.y[r * p.cols + c] = p.add ? v + p.bias[c] : v;
}
"""
SHARED = """
struct Reduce { const float* x; float* sums; int n; };
struct Nothing {};
extern "C" __global__ void sums(Nothing, const Reduce p) {
  __shared__ float s[128];
  int i = blockIdx.x * 128 + threadIdx.x;
  s[threadIdx.x] = i < p.n ? p.x[i] : 0;
  __syncthreads();
  for (int k = 64; k; k /= 2) { if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k]; __syncthreads(); }
  if (threadIdx.x == 0) p.sums[blockIdx.x] = s[0];
}
"""
IN_STRUCTS = [  # text, old, new, what is said, and whether a plain run of the tests asks it
    (STRUCT, "", "", "", True),
    (STRUCT, "c >= p.cols", "c > p.cols", "global race", True),
    (STRUCT, " || c >= p.cols", "", "global race", False),
    (STRUCT, "p.y[r * p.cols + c] =", "p.y[r * p.cols + c / 2] =", "hazard", False),
    (SHARED, "", "", "", False),
    (SHARED, "__syncthreads(); }", "}", "hazard", False),
    (SHARED, "i < p.n ?", "i <= p.n ?", "out of bounds", False),
]


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    sweep([case[:4] for case in IN_STRUCTS], lambda *case: (*case, True) in IN_STRUCTS),
)
def test_structs_by_value_are_what_is_loaded_from_them(
    tmp_path: Path, text: str, old: str, new: str, said: str
) -> None:
    assert old in text
    path = tmp_path / "structs.ptx"
    path.write_text(compile_ptx(text.replace(old, new, 1) if old else text))
    code, output = check_file(path, "--block", "128")
    assert code == bool(said) and said in output, output
    assert "no value can be guessed" not in output
