"""Files without front matter on the command line: guessed launches, and that nothing passes unverified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.kernels import text
from harness.kernels.cpp import guesses
from harness.problems.arrays import ArrayProblem
from shared.sweeps import sweep

SOURCE = """\
template <typename T> __global__ void reversed(T* out, const T* in, int n, float a)
{
    __shared__ T tile[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? in[i] : T(0);
    SYNC
    if (i < n) out[i] = T(a) * tile[blockDim.x - 1 - threadIdx.x];
}
__global__ void transposed(float* out, const float* in, int rows, int cols)
{
    __shared__ float tile[32][32];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x < cols && y < rows) tile[threadIdx.x][threadIdx.y] = in[y * cols + x];
    __syncthreads();
    if (x < cols && y < rows) out[x * rows + y] = tile[threadIdx.x][threadIdx.y];
}
struct Pair { int** a; int b; };
__global__ void odd(Pair p, float* x) { *x = p.b; }
__global__ void deep(float*** x) { ***x = 1; }
__global__ void empty() {}
__global__ void flipped(float* x)
{
    extern __shared__ float s[];
    s[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    x[blockIdx.x * blockDim.x + threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
#define MADE(name) __global__ void name(float* x) { *x = 1; }
MADE(made)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.cu").write_text(SOURCE.replace("SYNC", "__syncthreads();"))
    (tmp_path / "racy.cu").write_text(SOURCE.replace("SYNC", ""))
    (tmp_path / "made.h").write_text(SOURCE.splitlines()[-2])  # a macro of a header
    for name in ("made", "lost"):
        (tmp_path / f"{name}.cu").write_text(
            f'#include "{name}.h"\nMADE(made)\n__global__ void other() {{}}\n'
        )

    def invoke(*args: str) -> Result:
        result = CliRunner().invoke(main, list(args))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


def test_a_kernel_of_a_file_is_checked_with_guessed_arguments(run: Any) -> None:
    good = run("check", "good.cu", "--entry", "reversed<float>", "-a", "n=300")
    assert good.exit_code == 0 and "no reference" in good.output
    assert "--grid 2,1,1 --block 256,1,1 -a out=300 -a in=300 -a n=300 -a a=1" in good.output
    assert "no number was verified" in good.output
    racy = run("check", "racy.cu", "--entry", "reversed<double>")
    assert racy.exit_code == 1 and "RAW hazard" in racy.output


def test_what_was_not_verified_is_no_success_where_that_is_asked(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("check", "good.cu", "--entry", "transposed")
    assert run(*words).exit_code == 0
    assert run(*words, "--strict").exit_code == 3
    monkeypatch.setenv("CI", "true")
    assert run(*words).exit_code == 3


def test_conflicts_are_named_by_line_and_fail_beyond_a_threshold(run: Any) -> None:
    words = ("check", "good.cu", "--entry", "transposed")
    found = run(*words)
    assert "16-way bank conflicts, line 13: " in found.output
    assert run(*words, "--max-ways", "16").exit_code == 0
    too_many = run(*words, "--max-ways", "15.9")
    assert too_many.exit_code == 1 and "--max-ways" in too_many.output


@pytest.mark.slow
def test_a_finding_in_a_function_says_which_call_it_was(tmp_path: Path) -> None:
    path = tmp_path / "helper.cu"
    path.write_text(
        "__device__ void put(float* to, float x) { *to = x; }\n__global__ void k(float* x) {\n"
        "  __shared__ float s[64];\n  put(s + threadIdx.x, x[threadIdx.x]);\n  // REPAIR\n"
        "  x[threadIdx.x] = s[63 - threadIdx.x];\n}\n"
    )
    found = CliRunner().invoke(main, ["check", str(path), "--block", "64", "-a", "x=64"])
    assert "  line 1, called in line 4: __device__ void put" in found.output, found.output
    assert "    line 4: put(s + threadIdx.x, x[threadIdx.x]);" in found.output
    assert "  line 6: x[threadIdx.x] = s[63 - threadIdx.x];" in found.output
    path.write_text(path.read_text().replace("// REPAIR", "__syncthreads();"))
    assert (
        "hazard" not in CliRunner().invoke(main, ["check", str(path), "--block", "64", "-a", "x=64"]).output
    )


def test_block_and_grid_replace_the_guess(run: Any) -> None:
    words = ("check", "good.cu", "--entry", "transposed")
    found = run(*words, "--block", "8,8", "--grid", "2x3")
    assert "--grid 2,3,1 --block 8,8,1" in found.output
    for option in ("--block", "--grid"):
        assert run(*words, option, "0").exit_code == 2
        assert run(*words, option, "1,2,3,4").exit_code == 2
        assert "has it" in run("check", "tiled", option, "8").output


@pytest.mark.slow
def test_every_kernel_of_a_file_is_built_and_inspected(run: Any) -> None:
    built = run("build", "good.cu", "--arch", "sm_80")
    assert built.exit_code == 0 and "good:transposed" in built.output and "good:odd" in built.output
    sass = run("sass", "good.cu", "--entry", "reversed<float>", "--arch", "sm_80", "-e", "BAR")
    assert sass.exit_code == 0 and "good:reversed<float>" in sass.output


def test_headers_of_a_folder(run: Any, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own.h").write_text("#define VALUE 7\n")
    (tmp_path / "with.cu").write_text("#include <own.h>\n__global__ void k(int* x) { *x = VALUE; }\n")
    assert run("build", "with.cu").exit_code == 1
    assert run("build", "with.cu", "-I", "sub").exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("check", "good.cu", "--entry", "odd"),
            "p of good:odd is a Pair, for which no value can be guessed",
        ),
        (("check", "good.cu", "--entry", "reversed"), "is a template"),
        (("check", "good.cu", "--entry", "none"), "no kernel 'none'"),
        (("check", "--entry", "none"), "--entry is of one file"),
        (("check", "good.cu", "--entry", "transposed", "-a", "depth=3"), "no axis 'depth'"),
        (("check", "good.cu", "--entry", "deep"), "x of good:deep is a float**, for which no value"),
        (("check", "lost.cu", "--entry", "made"), "the parameters of made are not in the text"),
        (("verify", "good.cu"), "no value can be guessed"),
    ],
)
def test_what_cannot_be_guessed_is_said(run: Any, words: tuple[str, ...], said: str) -> None:
    result = run(*words)
    assert result.exit_code != 0 and said in result.output and "Traceback" not in result.output


@pytest.mark.slow
def test_what_can_be_guessed_of_a_file_is_checked(run: Any) -> None:
    found = run("check", "good.cu")
    assert found.exit_code == 0, found.output
    assert "left out: p of good:odd is a Pair" in found.output and "good:deep" in found.output
    lines = [line.split()[0] for line in found.output.splitlines() if line.endswith("no reference")]
    assert lines == ["good:reversed<float>", "good:transposed", "good:empty", "good:flipped", "good:made"]
    assert "--grid 4,1,1 --block 256,1,1 --shared 49152 -a x=1024" in found.output
    assert "out of bounds" in run("check", "good.cu", "--entry", "flipped", "--shared", "64").output


@pytest.mark.slow
def test_verify_is_no_success_without_a_reference(run: Any) -> None:
    (Path.cwd() / "one.cu").write_text("__global__ void one(float* x) { x[threadIdx.x] = 1; }\n")
    assert run("verify", "one.cu").exit_code == 3
    flipped = run("verify", "good.cu", "--entry", "flipped")
    assert flipped.exit_code == 3, "with dynamic shared memory, as check has it"
    assert run("bench", "good.cu", "--entry", "flipped").exit_code == 0
    assert run("verify", "good.cu", "matmul", "--entry", "flipped").exit_code == 2


def test_a_kernel_that_a_macro_makes_is_built_by_its_name(run: Any) -> None:
    assert run("build", "good.cu", "--entry", "made").exit_code == 0
    assert "made:made was launched as by" in run("check", "made.cu", "--entry", "made").output
    assert "good:name" not in run("list", "good.cu").output


MANY = """\
__global__ void rows(const float* x, float* y, int rows, int cols)
{
    const float* in = x + blockIdx.x * cols;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) y[blockIdx.x * cols + i] = 2 * in[i];
}
__global__ void heads(const float* q, float* s, int B, int H, int N, int D)
{
    int b = blockIdx.z, h = blockIdx.y, n = blockIdx.x;
    for (int d = threadIdx.x; d < D; d += blockDim.x)
        s[((b * H + h) * N + n) * D + d] = q[((b * H + h) * N + n) * D + d];
}
__global__ void products(const float* A, const float* B, float* C, int M, int N, int K)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
    if (row < M && col < N) C[row * N + col] = sum;
}
__global__ void beyond(const float* x, float* y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) y[i] = x[i];
}
__global__ void tiled(float* C, const float* A, const float* B, int wA, int wB)
{
    int bx = blockIdx.x, by = blockIdx.y;
    int tx = threadIdx.x, ty = threadIdx.y;
    __shared__ float a[16][16], b[16][16];
    float sum = 0;
    for (int k = 0; k < wA; k += 16) {
        a[ty][tx] = A[wA * 16 * by + k + wA * ty + tx];
        b[ty][tx] = B[16 * bx + wB * (k + ty) + tx];
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += a[ty][i] * b[i][tx];
        __syncthreads();
    }
    C[wB * (16 * by + ty) + 16 * bx + tx] = sum;
}
__global__ void narrow(float* x, char c, long n)
{
    int i = (blockIdx.x << 8) + threadIdx.x;
    if (i < n) x[i] = c;
}
template <typename T> __global__ void seen(T* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = T(i);
}
template __global__ void seen<float>(float*, int);
template <typename T, int N> __global__ void unseen(T* x) { x[0] = T(N); }
"""


@pytest.mark.slow
def test_sizes_are_those_that_the_indices_multiply(run: Any) -> None:
    """Blocks that each have a row, four indices in one, and two products whose factors do not add up."""
    Path("many.cu").write_text(MANY)
    found = run("check", "many.cu")
    said = " ".join(found.output.split())
    assert "many:rows was launched as by --grid 64,1,1 --block 256,1,1 -a x=4096 -a y=4096" in said
    assert "many:heads was launched as by --grid 16,16,16 --block 256,1,1 -a q=65536 -a s=65536" in said
    assert "many:products was launched as by --grid 4,4,1 --block 16,16,1 -a A=4096 -a B=4096" in said
    assert found.exit_code == 1 and "if (i <= n) y[i] = x[i]" in said, "one element past the end"
    assert said.count("out of bounds") == 2, "all of them in `beyond`"
    assert "many:tiled was launched as by --grid 4,4,1 --block 16,16,1" in said, "bx * 16 is blockIdx.x * 16"
    assert "many:narrow was launched as by --grid 4,1,1 --block 256,1,1 -a x=1000 -a c=127 -a n=1000" in said
    assert "left out: unseen<typename T, int N> of many.cu, a template" in said
    assert said.count("left out") == 1, "an instance of `seen` is there"


TAKEN = """\
__global__ void k(float* NAME, int size, int other)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size && other) NAME[i] = 1;
}
__global__ void n(float* x, int NAME, int other)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < NAME && other) x[i] = 1;
}
int main() { k<<<(m + 127) / 128, 128>>>(a, m, 1); n<<<(m + 127) / 128, 128>>>(a, m, 1); }
"""


@pytest.mark.parametrize("name", sweep(["inputs", "bytes", "self", "output"], lambda name: name == "self"))
def test_a_parameter_may_be_called_as_attributes_of_problems_are(run: Any, name: str) -> None:
    Path("taken.cu").write_text(TAKEN.replace("NAME", name))
    found = run("check", "taken.cu")
    assert found.exit_code == 0, found.output
    assert found.output.count("--grid 8,1,1 --block 128,1,1") == 2, found.output


def test_no_axis_is_an_attribute_of_problems() -> None:
    known = {name for name in dir(ArrayProblem) if not name.startswith("__")}
    (entry,) = text.entries(f"__global__ void k({', '.join(f'int {name}' for name in known)}) {{}}")
    assert known.intersection(p.name for p in guesses.axes(entry).parameters) == {
        "output"
    }  # which is not read


@pytest.mark.slow
def test_a_macro_of_the_build_is_a_parameter(run: Any) -> None:
    """Some files want nvcc -DN=64, without which they do not compile."""
    Path("built.cu").write_text("__global__ void k(float* x) { x[N_ - 4] = 1; }\n")
    refused = run("check", "built.cu")
    assert refused.exit_code == 1 and "-p N_=64" in refused.output
    found = run("check", "built.cu", "-p", "N_=8", "-a", "x=5")
    assert found.exit_code == 0 and "built N_=8" in found.output, found.output
    assert run("check", "built.cu", "-p", "N_=10", "-a", "x=5").exit_code == 1, "out of bounds"
    assert "would change the language" in run("check", "built.cu", "-p", "int=8").output


VALUES = """\
struct Box { double side[2]; int cells; };
enum class Mode : unsigned char { none, wide };
template <typename F> __global__ void moved(const F* __restrict x, F* __restrict y, int n, float3 by)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + by.x + by.y + by.z;
}
__global__ void boxed(double* x, Box box, Mode mode)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < box.cells + (mode == Mode::wide)) x[i] *= box.side[0] + box.side[1];
}
__global__ void tiles(int* x, dim3 grid)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < grid.z) x[i] = grid.x * 10000 + grid.y;
}
"""


@pytest.mark.slow
def test_structs_vectors_and_enumerations_are_guessed_by_value(run: Any) -> None:
    """A size is every integer of a struct; an enumeration is 0. What a pointer leads to is a float."""
    Path("values.cu").write_text(VALUES)
    found = run("check", "values.cu")
    said = " ".join(found.output.split())
    assert found.exit_code == 0 and "left out" not in said, said
    assert "values:moved<float> was launched as by --grid 4,1,1 --block 256,1,1" in said
    assert "-a x=1000 -a y=1000 -a n=1000 -a by=1" in said
    assert "-a x=1000 -a box=1000 -a mode=0" in said
    assert "-a x=1000 -a grid=1000" in said
    wide = run("check", "values.cu", "--entry", "boxed", "-a", "mode=1")
    assert wide.exit_code == 1 and "out of bounds, seen 2 times" in " ".join(wide.output.split())


@pytest.mark.slow
def test_the_page_says_that_a_launch_was_guessed(run: Any) -> None:
    """Say it where the terminal does, and of no kernel whose launch is in its file."""
    Path("plain.cu").write_text(
        "__global__ void twice(float* x, int n)\n{ if (threadIdx.x < n) x[threadIdx.x] *= 2; }\n"
    )
    said = " ".join(run("check", "plain.cu", "--html", "guessed.html").output.split())
    page = " ".join(Path("guessed.html").read_text().split())
    for words in ("was launched as by --grid", "These are guesses: give what your own launch has"):
        assert words in said and words in page
    assert page.index("was launched as by") > page.index("threadIdx"), "below the source"
    run("check", "naive", "-a", "N=32", "--html", "known.html")
    assert "was launched as by" not in Path("known.html").read_text()


def test_lengths_follow_the_sizes_that_are_given(run: Any) -> None:
    Path("many.cu").write_text(MANY)
    small = run("check", "many.cu", "--entry", "rows", "-a", "rows=3", "-a", "cols=50")
    assert small.exit_code == 0 and "--grid 3,1,1 --block 256,1,1 -a x=150 -a y=150" in small.output
    other = run("check", "many.cu", "--entry", "rows", "-a", "rows=3", "-a", "cols=50", "-a", "x=149")
    assert other.exit_code == 1 and "past the end" in other.output, "a length that is given stays"
    vast = run("check", "many.cu", "--entry", "rows", "-a", "rows=100000", "-a", "cols=100000")
    assert vast.exit_code == 2 and "10,000,000,000 elements" in vast.output


@pytest.mark.slow
def test_a_size_that_several_kernels_have_is_said_once_and_lines_use_the_width(run: Any) -> None:
    line = "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = VALUE * x[n - 1 - i]; }\n"
    names = ("one", "two")
    text = "".join(f"__global__ void {k}(float* x, int n) {line}" for k in names)
    Path("both.cu").write_text(text.replace("VALUE", "2"))
    found = run("check", "both.cu")
    assert found.output.count("shapes: x=1000 n=1000") == 1, found.output
    for columns, shown in ((80, "__global__ void ~"), (200, "x[i] = 2 * x[n - 1 - i]")):
        lines = (
            CliRunner()
            .invoke(main, ["check", "both.cu", "--entry", "one", "--lines"], env={"COLUMNS": str(columns)})
            .stdout
        )
        table = lines.partition("line  source")[2]
        assert shown in table.partition("global: ")[0], lines


def test_no_least_traffic_is_said_of_guessed_lengths(run: Any) -> None:
    assert "the least for this problem" not in run("check", "good.cu", "--entry", "flipped", "--lines").output
    assert "the least for this problem" in run("check", "tiled", "-a", "N=32", "--lines").output
