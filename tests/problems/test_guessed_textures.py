"""Textures and surfaces of kernels without front matter: right kernels are clean, planted faults found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from harness.cli import main
from harness.errors import UsageError
from harness.kernels import catalog, compiler, text
from harness.kernels.cpp.host import samplers, values
from harness.kernels.expr import Expr
from harness.launch import emulated, kernel
from harness.launch.builds import Built
from harness.problems.guessed.arguments import problem_of
from harness.problems.guessed.pictures import images, textures
from harness.problems.protocol import Image
from harness.support.cache import Cache

XY = "int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;"
SMOOTH = """
__global__ void smooth(cudaTextureObject_t src, float* dst, int n) {
  __shared__ float row[258];
  int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;
  row[t + 1] = tex1Dfetch<float>(src, i);
  if (t == 0) row[0] = tex1Dfetch<float>(src, i - 1);
  if (t == blockDim.x - 1) row[t + 2] = tex1Dfetch<float>(src, i + 1);
  __syncthreads();
  if (i < n) dst[i] = 0.25f * row[t] + 0.5f * row[t + 1] + 0.25f * row[t + 2];
}
"""
SAMPLE = f"""
__global__ void sample(cudaTextureObject_t picture, float* out, int width, int height) {{
  {XY}
  if (x < width && y < height)
    out[y * width + x] = tex2D<float>(picture, (x + 0.5f) / width + 1, (y + 0.5f) / height - 1);
}}
int main() {{
  auto d = cudaCreateChannelDesc<float>();
  cudaMallocArray(&a, &d, 640, 480);
  cudaTextureDesc t = {{}}; t.normalizedCoords = 1; t.filterMode = cudaFilterModeLinear;
  cudaTextureObject_t tex;
  cudaCreateTextureObject(&tex, &r, &t, nullptr);
  sample<<<dim3((width + 15) / 16, (height + 15) / 16), dim3(16, 16)>>>(tex, out, width, height);
}}
"""
INVERT = f"""
__global__ void invert(cudaSurfaceObject_t in, cudaSurfaceObject_t out, int width, int height) {{
  {XY}
  if (x >= width || y >= height) return;
  uchar4 p;
  surf2Dread(&p, in, x * 4, y);
  surf2Dwrite(make_uchar4(255 - p.x, 255 - p.y, 255 - p.z, p.w), out, x * 4, y);
}}
"""
BLUR = f"""
__device__ float density(cudaTextureObject_t field, float px, float py, float pz) {{
  float sum = 0;
  for (int k = -1; k <= 1; k++) sum += tex3D<float>(field, px, py, pz + k);
  return sum;
}}
__global__ void blur(cudaTextureObject_t volume, cudaSurfaceObject_t result, int3 dims) {{
  {XY}
  int z = blockIdx.z;
  if (x < dims.x && y < dims.y && z < dims.z)
    surf3Dwrite(density(volume, x + 0.5f, y + 0.5f, z + 0.5f) / 3, result, x * sizeof(float), y, z);
}}
"""
COARSER = f"""
__global__ void coarser(cudaSurfaceObject_t fine, cudaSurfaceObject_t coarse, int w, int h) {{
  {XY}
  if (x < w && y < h) {{
    float4 a = surf2Dread<float4>(fine, (2 * x) * sizeof(float4), 2 * y);
    float4 b = surf2Dread<float4>(fine, (2 * x + 1) * sizeof(float4), 2 * y + 1);
    surf2Dwrite<float4>(make_float4(a.x + b.x, a.y + b.y, 0, 1.f), coarse, x * sizeof(float4), y);
  }}
}}
"""
STACK = f"""
template <typename T>
__device__ T pick(cudaTextureObject_t t, int a, int b, int layer) {{
  T v; tex2DLayered(&v, t, a, b, layer); return v;
}}
template <typename T>
__global__ void stack(cudaTextureObject_t pages, T* out, int width, int height, int layers) {{
  {XY}
  if (x >= width || y >= height) return;
  T sum = 0;
  for (int l = 0; l < layers; l++) sum += pick<T>(pages, x, y, l);
  out[y * width + x] = sum;
}}
template __global__ void stack<int>(cudaTextureObject_t, int*, int, int, int);
"""
TURN = """
#define W 96
#define H 40
__global__ void turn(cudaTextureObject_t in, cudaSurfaceObject_t out) {
  __shared__ float tile[16][17];
  int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  tile[threadIdx.y][threadIdx.x] = tex2D<float>(in, x, y);
  __syncthreads();
  int ox = blockIdx.y * 16 + threadIdx.x, oy = blockIdx.x * 16 + threadIdx.y;
  if (ox < H && oy < W) surf2Dwrite(tile[threadIdx.x][threadIdx.y], out, ox * (int)sizeof(float), oy);
}
int main() { turn<<<dim3(6, 3), dim3(16, 16)>>>(in, out); }
"""
TONE = """
__global__ void tone(const unsigned char* in, uchar4* out, cudaTextureObject_t lut, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float4 c = tex1D<float4>(lut, in[i] / 255.f);
  out[i] = make_uchar4(c.x * 255, c.y * 255, c.z * 255, 255);
}
void make(cudaTextureObject_t* lut, cudaArray_t a) {
  auto desc = cudaCreateChannelDesc(8, 8, 8, 8, cudaChannelFormatKindUnsigned);
  cudaMallocArray(&a, &desc, 256);
  cudaResourceDesc res{}; res.resType = cudaResourceTypeArray; res.res.array.array = a;
  cudaTextureDesc td{ .readMode = cudaReadModeNormalizedFloat };
  td.addressMode[0] = cudaAddressModeMirror; td.filterMode = cudaFilterModeLinear;
  td.normalizedCoords = true;
  cudaCreateTextureObject(lut, &res, &td, nullptr);
}
"""
FACES = f"""
__global__ void faces(cudaTextureObject_t sky, cudaSurfaceObject_t cube, int n) {{
  {XY}
  if (x < n && y < n) {{
    float v = texCubemap<float>(sky, 2.f * x / n - 1, 2.f * y / n - 1, 1.f);
    for (int face = 0; face < 6; face++) surfCubemapwrite(v, cube, x * sizeof(float), y, face);
  }}
}}
"""
FILL = f"""
__global__ void fill(cudaSurfaceObject_t cells, int width, int height, int slice, float value) {{
  {XY}
  if (x < width && y < height) surf2DLayeredwrite(value, cells, x * sizeof(value), y, slice);
}}
"""
EDGES = f"""
__global__ void edges(cudaTextureObject_t t, float* o, int cols, int rows) {{
  {XY}
  if (x < cols && y < rows) {{
    float4 q = tex2Dgather<float4>(t, x + 1.f, y + 1.f, 0);
    o[y * cols + x] = q.x - q.y + q.z - q.w;
  }}
}}
"""
LINES = """
__global__ void lines(cudaSurfaceObject_t s, const float* x, int rows, int cols) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  if (r < rows && c < cols) { int at = r * cols + c; surf1Dwrite(x[at], s, at * 4); }
}
"""
SPREAD = """
#define N 320
__global__ void spread(cudaTextureObject_t in, cudaSurfaceObject_t s, const float* x) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  surf2Dwrite(tex2D<float>(in, i, y) * x[i], s, i * sizeof(float), y, cudaBoundaryModeTrap);
}
int main() {
  cudaMalloc(&d, N * sizeof(float));
  auto desc = cudaCreateChannelDesc<float>();
  cudaExtent size = make_cudaExtent(N, 24, 0);
  cudaMalloc3DArray(&a, &desc, size);
  cudaMallocArray(&b, &desc, N, 20, cudaArraySurfaceLoadStore);
  r1.res.array.array = a; r2.res.array.array = b;
  cudaTextureDesc t = {};
  cudaCreateTextureObject(&tex, &r1, &t, NULL);
  cudaCreateSurfaceObject(&out, &r2);
  spread<<<dim3(N / 64, 20), 64>>>(tex, out, d);
}
"""


def slow(*case: str) -> Any:
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("source", "old", "new", "said"),
    [
        (SMOOTH, "  __syncthreads();\n", "", "RAW hazard"),
        slow(SAMPLE, "x < width && ", "", "out of bounds"),
        (INVERT, " || y >= height", "", "outside of the surface"),
        slow(BLUR, "x < dims.x", "x <= dims.x", "outside of the surface"),
        slow(COARSER, "2 * y + 1", "2 * y + 2", "outside of the surface"),
        slow(STACK, "x >= width", "x > width", "out of bounds"),
        slow(TURN, "  __syncthreads();\n", "", "RAW hazard"),
        slow(TURN, "ox < H", "ox <= H", "outside of the surface"),
        slow(TONE, "out[i]", "out[i + 1]", "out of bounds"),
        slow(FACES, "face < 6", "face <= 6", "outside of the surface"),
        slow(FILL, "x < width", "x <= width", "outside of the surface"),
        slow(EDGES, " && y < rows", "", "out of bounds"),
        slow(LINES, "at * 4)", "at * 4 + 4)", "outside of the surface"),
        slow(SPREAD, "i * sizeof(float)", "(i + 1) * sizeof(float)", "outside of the surface"),
    ],
)
def test_right_kernels_are_clean_and_planted_faults_are_found(
    tmp_path: Path, source: str, old: str, new: str, said: str
) -> None:
    assert old in source
    path = tmp_path / "k.cu"
    for written, code in ((source, 0), (source.replace(old, new), 1)):
        path.write_text(written)
        ran = CliRunner().invoke(main, ["check", str(path)])
        assert ran.exit_code == code, ran.output
    assert said in ran.output, ran.output


def ran(path: Path, source: str, cache: Cache) -> tuple[Any, dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the guessed problem of a kernel, its inputs, and the arrays after a launch in the emulator."""
    path.write_text(source)
    found = catalog.kernel(str(path))
    problem: Any = problem_of(found).from_axes({})
    cubin = compiler.compile_kernel(found.variant(), "sm_90a", cache)
    inputs = problem.inputs(1)
    built = Built(variant=found.variant(), cubin=cubin, sass=None)
    run, arrays = emulated.launch(built, problem, inputs, emulated.Options())
    assert not run.findings
    return problem, inputs, arrays


def test_numbers_are_those_of_the_texels(tmp_path: Path, cache: Cache) -> None:
    """Point sampling gives texels, as surfaces have them: an image that is copied twice is the same."""
    _, inputs, arrays = ran(tmp_path / "invert.cu", INVERT, cache)
    wanted = inputs["in"] ^ np.array([255, 255, 255, 0], np.uint8)
    assert wanted.any() and np.array_equal(arrays["out"], wanted)
    _, inputs, arrays = ran(tmp_path / "turn.cu", TURN, cache)
    picture = inputs["in"].reshape(64, 64)
    assert np.array_equal(arrays["out"].reshape(96, 40)[:64], picture[:40].T)


@pytest.mark.slow
def test_numbers_of_coordinates_that_wrap_and_of_layers(tmp_path: Path, cache: Cache) -> None:
    problem, inputs, arrays = ran(tmp_path / "sample.cu", SAMPLE, cache)
    assert problem.arguments()[0].address == ("wrap",) * 3, "CUDA's default, and no extent of the host's"
    assert np.allclose(arrays["out"], inputs["picture"], atol=1e-5)
    problem, inputs, arrays = ran(tmp_path / "stack.cu", STACK, cache)
    layers, height, width = (getattr(problem, f"pages.{along}") for along in ("layers", "height", "width"))
    wanted = inputs["pages"].reshape(layers, height, width).sum(0)
    assert inputs["pages"].dtype == np.int32 and np.array_equal(arrays["out"].reshape(height, width), wanted)
    _, inputs, arrays = ran(tmp_path / "coarser.cu", COARSER, cache)
    fine = inputs["fine"].reshape(128, 128, 4)
    wanted = (fine[::2, ::2] + fine[1::2, 1::2])[..., 0]
    assert np.array_equal(arrays["coarse"].reshape(64, 64, 4)[..., 0], wanted)


def test_extents_are_axes(tmp_path: Path) -> None:
    """A size that is given leads to its extents, an extent that is given replaces the guess."""
    path = tmp_path / "k.cu"
    path.write_text(FILL)
    ran = CliRunner().invoke(main, ["check", str(path), "-a", "width=40", "-a", "slice=2"])
    assert ran.exit_code == 0 and "cells.width=40 cells.height=64 cells.layers=3" in ran.output, ran.output
    ran = CliRunner().invoke(main, ["check", str(path), "-a", "cells.width=63"])
    assert ran.exit_code == 1 and "outside of the surface" in ran.output, ran.output
    ran = CliRunner().invoke(main, ["check", str(path), "-a", "width=99999", "-a", "height=99999"])
    assert ran.exit_code == 2 and "-a cells.width=64" in ran.output, ran.output


def test_what_no_call_takes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    for parameter in ("cudaTextureObject_t t", "cudaSurfaceObject_t* t"):
        path.write_text(f"__global__ void k({parameter}, float* o) {{ o[threadIdx.x] = 1; }}")
        ran = CliRunner().invoke(main, ["check", str(path)])
        assert ran.exit_code == 2 and "no value can be guessed" in ran.output, ran.output
        assert "no call such as tex2D" in ran.output


def test_a_gpu_gets_none() -> None:
    with pytest.raises(UsageError, match="a texture or surface among the arguments is the emulator's"):
        kernel._argument(Image(operand="t", shape=(4,)), {})


BODY = """
int i = y * w + x, v = clamp(y - 1, 0, h - 1); int b = x * 4; if (x < w && y < h) { } if (z > 3) return;
for (; k < 5;) for (; l <= 7;) q = s; if (v < w || h <= v) return; if (p.y >= size.h || h > p.y) return;
"""


@pytest.mark.parametrize(
    ("written", "texel", "found"),
    [
        ("x", 1, 50),
        ("x + 0.5f", 1, 50),
        ("(x + 0.5f) / w", 1, 50),
        ("x * (int)sizeof(float)", 4, 50),
        ("4 * (x + 1)", 4, 50),
        ("b", 4, 50),
        ("x << 3", 8, 50),
        ("2 * x + 1", 1, 100),
        ("x / 2 * 2", 1, 49),
        ("i", 1, 50 * 60),
        ("y * w + x + 1", 1, 50 * 60),
        ("z", 1, None),
        ("2 * k + l", 1, 2 * 4 + 7 + 1),
        ("v", 1, 60),
        ("2 * p.y", 1, 120),
        ("s", 1, 8),
        ("2", 1, 3),
        ("blockIdx.x * 8 + k", 1, None),
        ("u * 255.f", 1, None),
    ],
)
def test_how_far_a_coordinate_goes(written: str, texel: int, found: int | None) -> None:
    bound = images.bound(written, BODY, ("w", "h", "s"), values.constants([""], (), {}), texel)
    assert (Expr.parse(bound)({"w": 50, "h": 60, "s": 7}) if bound else None) == found


def test_what_host_code_says() -> None:
    """The one that is passed counts, by what was said of its descriptor before; members may be in braces."""
    (entry,) = text.entries(TONE)
    made = samplers.of(TONE, entry, "tone")["lut"]
    assert made == samplers.Made(
        filter="linear", address=("mirror", "wrap", "wrap"), normalized=True, read_normalized=True,
        texel="uchar4", extents=(256,),
    )  # fmt: skip
    (entry,) = text.entries(SPREAD)
    found = samplers.of(SPREAD, entry, "spread")
    assert (found["in"].extents, found["s"].extents) == ((320, 24), (320, 20))
    assert found["in"].texel == "float" and not found["in"].normalized
    second = SPREAD.replace(
        "cudaCreateSurfaceObject", "t.filterMode = cudaFilterModeLinear;\n  cudaCreateSurfaceObject"
    )
    assert samplers.of(second, entry, "spread")["in"].filter == "point"


@pytest.mark.parametrize(
    ("call", "kind", "extents", "written"),
    [
        ("float v = tex1Dfetch<float>(t, x)", "float", "width", False),
        ("uint2 a, v; tex2DLod(&v, t, x, y, 1.f)", "uint2", "width height", False),
        ("v = tex3DGrad<half>(t, x, y, z, a, b)", "half", "width height depth", False),
        ("v = tex1DLayered<unsigned char>(t, x, 2)", "unsigned char", "width layers", False),
        ("v = texCubemapLayered<float4>(t, x, y, z, 1)", "float4", "width layers", False),
        ("surf1Dwrite(1.5f, t, x)", "float", "width", True),
        ("short2 v; surf2Dwrite(v, t, x * 4, y, cudaBoundaryModeZero)", "short2", "width height", True),
        ("surf3Dwrite(f(x), t, x * sizeof(int4), y, z)", "int4", "width height depth", True),
        ("surfCubemapLayeredread<float>(t, x, y, 7)", "float", "width layers", False),
        ("auto v = surf2Dread<T>(t, x, y)", "T", "width height", False),
    ],
)
def test_what_calls_say(call: str, kind: str, extents: str, written: bool) -> None:
    (entry,) = text.entries(f"__global__ void k(cudaTextureObject_t t, float* o) {{ {call}; }}")
    used = textures.of(entry.body, entry)["t"]
    assert (used.kind, " ".join(used.extents), used.written) == (kind, extents, written)


@pytest.mark.parametrize(
    ("given", "extents"), [("t, x, y, 1", "width height layers"), ("t, x, y", "width height")]
)
def test_functions_of_one_name_are_told_apart_by_how_much_they_are_given(given: str, extents: str) -> None:
    source = f"""
__device__ float at(cudaTextureObject_t t, int x, int y, int l) {{ return tex2DLayered<float>(t, x, y, l); }}
__device__ float at(cudaTextureObject_t t, int x, int y) {{ return tex2D<float>(t, x, y); }}
__global__ void k(cudaTextureObject_t t, float* o) {{ {XY} o[x] = at({given}); }}
"""
    (entry,) = text.entries(source)
    used = textures.of(textures.whole([source], entry, "k"), entry)["t"]
    assert " ".join(used.extents) == extents
