"""Buffers are as long as host code allocates them, in terms of what the kernel is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.kernels import text
from harness.kernels.cpp.host import allocations, launches
from harness.problems.guessed import allocated
from shared.checking import check

KERNEL = """
__global__ void add_bias(float* out, const float* bias, int m, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < m * n) out[i] += bias[i % n];
}
"""
LAUNCH = "add_bias<<<(m * n + 255) / 256, 256>>>(out, bias, m, n);"
MALLOC = f"""
int main() {{
  int m = 512, n = 300;
  float *out, *bias;
  size_t bytes = (size_t)m * n * sizeof(float);
  cudaMalloc((void**)&out, bytes);
  CHECK(cudaMalloc(reinterpret_cast<void**>(&bias), n * sizeof(*bias)));
  {LAUNCH}
}}
"""
CALLED = """
void run(float* y, const float* b, int rows, int cols) {
  add_bias<<<(rows * cols + 255) / 256, 256>>>(y, b, rows, cols);
}
int main() {
  const int m = 512, n = 300;
  float *out, *bias;
  cudaMallocManaged(&out, sizeof(float) * m * n);
  cudaMallocAsync(&bias, sizeof(float) * n, 0);
  run(out, bias, m, n);
}
"""
MEMBERS = f"""
struct Layer {{
  Layer(int m, int n) : m(m), n(n) {{
    cudaMalloc(&out, m * n * sizeof(float));
    cudaMalloc(&bias, n * sizeof(float));
  }}
  void forward() {{ {LAUNCH} }}
  float *out, *bias;
  int m, n;
}};
"""
THRUST = """
int main() {
  int m = 512, n = 300;
  thrust::device_vector<float> out(m * n, 0.f), bias(n);
  add_bias<<<(m * n + 255) / 256, 256>>>(thrust::raw_pointer_cast(out.data()),
      thrust::raw_pointer_cast(&bias[0]), m, n);
}
"""
VECTORS = """
int main(int argc, char** argv) {
  int m = atoi(argv[1]), n = atoi(argv[2]);
  std::vector<float> whole(m * n), row(n, 1.f);
  thrust::device_vector<float> out(whole.begin(), whole.end());
  float* bias;
  cudaMalloc(&bias, row.size() * sizeof(float));
  add_bias<<<(whole.size() + 255) / 256, 256>>>(out.data().get(), bias, m, static_cast<int>(row.size()));
}
"""
TORCH = """
torch::Tensor forward(int m, torch::Tensor bias) {
  const int n = bias.numel();
  auto out = torch::zeros({m, n}, bias.options());
  add_bias<<<(m * n + 255) / 256, 256>>>(out.data_ptr<float>(), bias.data_ptr<float>(), m, n);
  return out;
}
"""
MACROS = """
#define ROWS 512
#define COLS 300
int main() {
  int m = ROWS, n = COLS;
  float *out, *bias;
  cudaMalloc(&out, ROWS * COLS * sizeof(float));
  cudaMalloc(&bias, COLS * sizeof(float));
  add_bias<<<(m * n + 255) / 256, 256>>>(out, bias, m, n);
}
"""
HOSTS = {
    "malloc": MALLOC, "called": CALLED, "members": MEMBERS, "Thrust": THRUST, "PyTorch": TORCH,
    "macros": MACROS, "vectors": VECTORS,
}  # fmt: skip


def lengths(source: str) -> tuple[str, ...]:
    return launches.launches(source)[0].lengths


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_what_is_allocated_is_known_in_terms_of_the_arguments(host: str) -> None:
    out, bias, *rest = lengths(KERNEL + host)
    m, n = ("rows", "cols") if "rows" in host else ("m", "n")
    numbers = {m: 7, n: 3, "row_size__": 3, "SIZEOF_": 4}
    assert (eval(out, {}, numbers), eval(bias, {}, numbers), *rest) == (7 * 3 * 4, 3 * 4, "", "")


@pytest.mark.parametrize(
    "host", [MALLOC, pytest.param(TORCH, marks=pytest.mark.slow)], ids=["malloc", "torch"]
)
def test_a_buffer_that_is_shorter_than_the_others_is_not_hidden(tmp_path: Path, host: str) -> None:
    code, said = check(tmp_path, KERNEL + host)
    assert (code, "-a bias=32" in said, "-a out=1024" in said) == (0, True, True)
    code, said = check(tmp_path, (KERNEL + host).replace("bias[i % n]", "bias[i]"))
    assert code == 1 and "of bias" in said and "past the end" in said
    code, said = check(tmp_path, KERNEL.replace("bias[i % n]", "bias[i]"))  # the control: nothing says it
    assert code == 0


@pytest.mark.parametrize(
    ("old", "new", "bias"),
    [
        ("n * sizeof(*bias)", "many * sizeof(*bias)", ""),  # another number than those that are given
        ("n * sizeof(*bias)", "300 * sizeof(*bias)", ""),  # of host code alone, whose sizes are not taken
        ("n * sizeof(*bias)", "(n + 1) / 2 * sizeof(*bias)", "(n + 1) // 2 * SIZEOF_"),
        ("n * sizeof(*bias)", "n / 2 * sizeof(*bias)", "((n + 2 - 1) // 2) * SIZEOF_"),
        ("n * sizeof(*bias)", "n * sizeof(Node)", "n * SIZEOF_Node"),
        ("n * sizeof(*bias)", "n * sizeof(float3)", "n * 12"),
        ("bias, m, n)", "bias + 1, m, n)", ""),
        ("m, n);", "m, n / 2);", ""),  # what depends on n is guessed apart from it
        ("m, n);", "m, (float*)n);", ""),
    ],
)
def test_what_is_not_known_is_not_said(old: str, new: str, bias: str) -> None:
    assert old in MALLOC
    assert lengths(KERNEL + MALLOC.replace(old, new))[1] == bias


@pytest.mark.parametrize("alias", ["typedef double Node;", "using Node = double;"])
def test_the_size_of_an_alias(alias: str) -> None:
    source = KERNEL + alias + MALLOC.replace("sizeof(*bias)", "sizeof(Node)")
    assert lengths(source)[1] == "n * (8)" and launches.launches(source)[0].bytes[1] == 300 * 8


def test_the_last_allocation_before_the_launch_counts() -> None:
    twice = MALLOC.replace("  add_bias", "  bytes = 0; cudaMalloc(&bias, m * 4);\n  add_bias")
    assert lengths(KERNEL + twice)[:2] == ("(m * n * 4)", "m * 4")
    after = MALLOC.replace(LAUNCH, f"{LAUNCH} cudaMalloc(&bias, m * 4);")
    assert lengths(KERNEL + after)[1] == "n * SIZEOF_"


def test_a_name_of_another_function_is_another_name() -> None:
    other = "\nvoid other(int m) { float* bias; cudaMalloc(&bias, m * 4); }\n"
    assert lengths(KERNEL + MALLOC + other)[1] == "n * SIZEOF_"
    assert lengths(KERNEL + MEMBERS + other)[1] == ""  # two that do not agree
    own = f"void mine(float* out, float* bias, int m, int n) {{ {LAUNCH} }}"
    assert lengths(KERNEL + own + other)[1] == ""


@pytest.mark.slow
def test_an_argument_that_is_given_twice_is_the_larger(tmp_path: Path) -> None:
    square = """
__global__ void scale(float* x, int rows, int cols) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  if (r < rows && c < cols) x[r * cols + c] *= 2;
}
void run(int n) {
  float* x;
  cudaMalloc(&x, n * n * sizeof(float));
  dim3 block(16, 16), grid((n + 15) / 16, (n + 15) / 16);
  scale<<<grid, block>>>(x, n, n);
}
"""
    code, said = check(tmp_path, square)
    assert (code, "FAILED" in said) == (0, False)
    assert "rows=50 -a cols=50" in said  # the second time
    code, said = check(tmp_path, square.replace("r * cols + c", "r * (cols + 16) + c"))
    assert code == 1 and "past the end" in said


HISTOGRAM = """
__global__ void histogram(const unsigned char* x, int* bins, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&bins[x[i]], 1);
}
int main(int argc, char** argv) {
  int n = atoi(argv[1]), *bins;
  unsigned char* x;
  cudaMalloc(&x, n);
  cudaMalloc(&bins, 256 * sizeof(int));
  histogram<<<(n + 255) / 256, 256>>>(x, bins, n);
}
"""


@pytest.mark.parametrize(
    ("old", "new", "length"),
    [
        pytest.param("atoi(argv[1])", "1 << 20", 256, marks=pytest.mark.slow),
        ("atoi(argv[1])", "atoi(argv[1])", 256),
        pytest.param("atoi(argv[1])", "200", 1000, marks=pytest.mark.slow),  # a buffer of all of it, then
    ],
)
def test_a_number_that_does_not_depend_on_sizes(tmp_path: Path, old: str, new: str, length: int) -> None:
    source = HISTOGRAM.replace(old, new)
    code, said = check(tmp_path, source)
    assert code == 0 and f"-a bins={length}" in said
    code, said = check(tmp_path, source.replace("bins[x[i]]", "bins[x[i] + 256]"))
    assert code == (length == 256) and ("past the end" in said) == (length == 256)


def test_indices_stay_within_a_buffer_that_is_shorter_than_the_sizes(tmp_path: Path) -> None:
    source = """
__global__ void lower(const int* from, const int* to, int* labels, int edges) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < edges) atomicMin(&labels[to[i]], from[i]);
}
int main(int argc, char** argv) {
  int edges = atoi(argv[1]), *from, *to, *labels;
  cudaMalloc(&from, edges * sizeof(int));
  cudaMalloc(&to, edges * sizeof(int));
  cudaMalloc(&labels, 6 * sizeof(int));
  lower<<<(edges + 255) / 256, 256>>>(from, to, labels, edges);
}
"""
    code, said = check(tmp_path, source)
    assert code == 0 and "-a labels=6" in said
    code, said = check(tmp_path, source.replace("labels[to[i]]", "labels[to[i] + 1]"))
    assert code == 1 and "up to 4 bytes past the end" in said


def test_a_pitch_that_the_host_is_given_leads_from_row_to_row() -> None:
    pitched = """
__global__ void fill(float* x, size_t pitch, int w, int h) {}
void run(int w, int h) {
  float* x; size_t pitch;
  cudaMallocPitch((void**)&x, &pitch, w * sizeof(float), h);
  fill<<<1, 32>>>(x, pitch, w, h);
}
"""
    assert lengths(pitched)[0] == "pitch * (h)"


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("x", "x"),
        ("(const float4*)x", "x"),
        ("reinterpret_cast<float4*>(x)", "x"),
        ("static_cast<float *>(buffer.x)", "buffer.x"),
        ("this->x", "this->x"),
        ("x.data_ptr<scalar_t>()", "x"),
        ("thrust::raw_pointer_cast(x.data())", "x"),
        ("x.data().get()", "x"),
        ("x + n", ""),
        ("&x[n]", ""),
        ("make(x)", ""),
    ],
)
def test_the_name_of_what_a_launch_is_given(argument: str, name: str) -> None:
    assert allocations.name(argument) == name


SHOW = "__global__ void k(float* x, float* y, int m, int n) {}\n"


@pytest.mark.parametrize(
    ("host", "x"),
    [
        ("void f(int m, int n) { cudaMalloc(&x, roundUp(n, 256) * 4); GO }", "((n + 255) // 256 * 256) * 4"),
        ("void f(int m, int n) { cudaMalloc(&x, divUp(n, 256) * 4); GO }", "((n + 255) // 256) * 4"),
        ("void f(int m, int n) { cudaMalloc(&x, lookup(n, 256) * 4); GO }", ""),  # who knows
        ("void f(int m, int n) { cudaMalloc(&x, m * n * 3 / 2); GO }", "m * n * 3 // 2"),
        ("void f(int m, int n) { cudaMalloc(&x, n - n / 4); GO }", "n - n // 4"),
        (
            "void f(int m, int n) { if (m) cudaMalloc(&x, 2 * n); else cudaMalloc(&x, n); GO }",
            "max(2 * n, n)",
        ),
        ("void f(int m, int n) { if (m) cudaMalloc(&x, g()); else cudaMalloc(&x, n); GO }", ""),
        ("void f(int m, int n) { cudaMalloc(&x, n); n = 2 * m; GO }", ""),  # another n
        ("void a(int n) { cudaMalloc(&x, n); } void f(int m, int n) { GO }", ""),  # another n, too
        ("void a() { int n = g(); cudaMalloc(&x, n); } void f(int m, int n) { GO }", ""),
        ("int n; void a() { cudaMalloc(&x, n); } void f(int m) { GO }", "n"),
        ("void a() { cudaMalloc(&x, n); } void f(int m, int n) { auto x = make(n); GO }", ""),
        (
            "void f(float* x, int m, int n) { GO } void a(int c) { cudaMalloc(&b, 4 * c); f(b, 1, c); }",
            "4 * n",
        ),
        (
            "void f(float* x, int m, int n) { GO }\n"
            "void a(int c) { cudaMalloc(&b, 4 * c); cudaMalloc(&d, c); f(b, 1, c); f(d, 2, c); }",
            "",  # one call as well as the other
        ),
        (
            "void f(float* x, int m, int n) { float* z; cudaMalloc(&z, m); GO f(z, m, m); }\n"
            "void a(int c) { cudaMalloc(&b, 4 * c); f(b, 1, c); }",
            "4 * n",  # its call of itself is none
        ),
        ("void f(int c) { int m = c, n = c; cudaMalloc(&x, c * c); GO }", "max(m, n) * max(m, n)"),
        ("void f(T x) { const int m = x.numel() / n; GO }", "m * n * 4"),
        ("void f(T x) { const int m = x.numel() + 1; GO }", ""),
    ],
)
def test_lengths_are_those_of_the_launch_or_none(host: str, x: str) -> None:
    found = lengths(SHOW + host.replace("GO", "k<<<1, 256>>>(x, y, m, n);"))[0]
    known = {"m": 7, "n": 9, "max": max, "SIZEOF_": 4}
    assert bool(found) == bool(x) and (not x or eval(found, {}, known) == eval(x, {}, known)), found


@pytest.mark.parametrize(
    ("body", "macros", "lengths"),
    [
        ("x[i * N + j] = n;", "#define N 64", {}),  # N is no parameter's number
        ("x[i * n + j] = 1;", "#define N 64", {"x": 4 * 50 * 50}),
    ],
)
def test_a_macro_that_the_kernel_has_is_no_size(body: str, macros: str, lengths: dict[str, int]) -> None:
    source = f"{macros}\n__global__ void k(float* x, int n) {{ {body} }}\n"
    source += "int main() { cudaMalloc(&x, N * N * sizeof(float)); k<<<1, 256>>>(x, N); }"
    entry, types = text.entries(source)[0], {"x": ("float32", 1), "n": ("int32", 1)}
    found = allocated.lengths(launches.launches(source)[0], entry, types, ["n"])
    assert {name: length({"n": 50}) for name, length in found.items()} == lengths


TAPS = """#define MAX_TAPS 32
__global__ void filter(const float* x, const float* taps, float* y, int n, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  if (i < n) { for (int j = 0; j < k; j++) sum += taps[j] * x[i]; y[i] = sum; }
}
int main(int argc, char** argv) {
  int n = atoi(argv[1]), k = atoi(argv[2]);
  float *x, *taps, *y;
  cudaMalloc(&x, n * sizeof(float)); cudaMalloc(&y, n * sizeof(float));
  cudaMalloc(&taps, MAX_TAPS * sizeof(float));
  filter<<<(n + 255) / 256, 256>>>(x, taps, y, n, k);
}
"""


@pytest.mark.parametrize(
    ("index", "taps"), [("j", 32), pytest.param("k - 1 - j", 1000, marks=pytest.mark.slow)]
)
def test_a_loop_goes_no_further_than_its_buffer(tmp_path: Path, index: str, taps: int) -> None:
    code, said = check(tmp_path, TAPS.replace("taps[j]", f"taps[{index}]"))
    assert code == 0 and f"-a taps={taps} " in said and (taps == 32) == ("-a k=32" in said), said
    code, said = check(tmp_path, TAPS.replace("taps[j]", "taps[j + 1000]"))
    assert code == 1 and "of taps" in said


GATHER = """
__global__ void gather(const int* at, const float* x, float* y, int* stats, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[at[i] + 5];
  if (i < 2) stats[i] = n;
}
"""


@pytest.mark.slow
def test_an_unrelated_buffer_leaves_indices_as_they_are(tmp_path: Path) -> None:
    host = "int main() { int n = g(); cudaMalloc(&stats, 8); gather<<<4, 256>>>(at, x, y, stats, n); }"
    code, said = check(tmp_path, GATHER + host)
    assert code == 1 and "of x" in said and "-a stats=2" in said
    code, said = check(tmp_path, (GATHER + host).replace("at[i] + 5", "at[i]"))
    assert code == 0
