"""Tensor maps that host code makes by functions and classes of its own, and how it launches."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels import text
from harness.kernels.cpp.host import launches, tensors, tiles
from harness.kernels.cpp.host.values import Values

KERNEL = (
    "__global__ void copy(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, "
    "int M) {}\n"
)
ENCODE = """cuTensorMapEncodeTiled(TO, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, p, dims, strides, box, ones, NO,
  SWIZZLE, CU_TENSOR_MAP_L2_PROMOTION_NONE, NO);"""
LISTS = "uint64_t dims[2] = {C, R}, strides[1] = {2 * C}; uint32_t box[2] = {X, Y}, ones[2] = {1, 1};"
NONE, WIDE = "CU_TENSOR_MAP_SWIZZLE_NONE", "CU_TENSOR_MAP_SWIZZLE_128B"


def made(body: str, to: str = "map", swizzle: str = NONE, **names: str) -> str:
    """Return the code that encodes a map, with other names for its sizes and box."""
    lists = LISTS
    for name, value in ({"R": "rows", "C": "cols"} | names).items():
        lists = lists.replace(name, value)
    return body.replace("ENCODE", lists + ENCODE.replace("TO", to).replace("SWIZZLE,", f"{swizzle},"))


TEMPLATE = made(
    "template <int Y, int X> void make(CUtensorMap* map, half* p, int rows, int cols) { ENCODE }\n"
)
PLAIN = made(
    f"CUtensorMap make(half* p, int rows, int cols, int y, int x, CUtensorMapSwizzle s = {WIDE}) "
    "{ CUtensorMap map; ENCODE return map; }\n",
    "&map", "s", X="x", Y="y",
)  # fmt: skip
CLASS = made(
    "template <class T> struct Map { CUtensorMap map; Map(half* p, int rows, int cols) { ENCODE } };\n"
    "template <int W> struct Tile { static constexpr int width = W, height = 2 * W; };\n",
    "&map", X="T::width", Y="T::height",
)  # fmt: skip
LAUNCH = "  copy<<<dim3(M / 16, 2), 64>>>(a, b, M);\n}\n"


@pytest.mark.parametrize(
    "host",
    [
        TEMPLATE + "void run(half* x, half* y, int M) { CUtensorMap a, b; "
        "make<16, 32>(&a, x, M, 64); make<8, 64>(&b, y, 64, M);",
        PLAIN + f"void run(half* x, half* y, int M) {{ auto a = make(x, M, 64, 16, 32, {NONE}); "
        f"CUtensorMap b = make(y, 64, M, 8, 64, {NONE});",
    ],
    ids=["template", "returned"],
)
def test_each_caller_gives_its_box(host: str) -> None:
    source = KERNEL + host + LAUNCH
    (entry,) = text.entries(source)
    found = tensors.of(source, entry, "copy")
    assert (found["a"].box, found["b"].box) == ((32, 16), (64, 8))
    sizes = tiles.sizes(found, launches.of(source, "copy"), entry, Values({}), ())
    assert sizes == {"M": 5 * 64}, "it is an extent of both, and the grid is not known"


def test_a_default_and_a_copy_on_the_device() -> None:
    source = KERNEL + PLAIN + (
        "void run(half* x, int M) { CUtensorMap here = make(x, M, 64, 16, 64), *there; "
        "cudaMemcpy(there, &here, sizeof(here), cudaMemcpyHostToDevice);"
    ) + LAUNCH.replace("(a, b, M)", "(there, there, M)")  # fmt: skip
    (entry,) = text.entries(source)
    found = tensors.of(source, entry, "copy")
    assert found["a"] == found["b"] and (found["a"].box, found["a"].swizzle) == ((64, 16), 128)


def test_constructors_and_members_of_classes_are_followed() -> None:
    source = KERNEL + CLASS + (
        "void run(half* x, int M) { Map<Tile<16>> a(x, M, 64); Map<Tile<8>> b{x, M, 64};"
    ) + LAUNCH  # fmt: skip
    (entry,) = text.entries(source)
    found = tensors.of(source, entry, "copy")
    assert (found["a"].box, found["b"].box) == ((16, 32), (8, 16))


def test_a_class_that_is_given_itself_ends() -> None:
    source = (
        KERNEL
        + CLASS
        + "using A = Tile<A::width>; void run(half* x, int M) { Map<A> a(x, M, 64), b;"
        + LAUNCH
    )
    (entry,) = text.entries(source)
    assert tensors.of(source, entry, "copy") == {}


@pytest.mark.parametrize(
    ("space", "said"),
    [("__constant__", "map of k is a CUtensorMap"), ("__device__", "map, which k reads, is a")],
)
def test_a_map_in_a_variable_is_refused_by_name(tmp_path: Path, space: str, said: str) -> None:
    """Nobody says what the box of the first one is; the second one may be anything by then."""
    path = tmp_path / "k.cu"
    path.write_text(f"{space} CUtensorMap map;\n__global__ void k(const void** x) {{ x[0] = &map; }}\n")
    ran = CliRunner().invoke(main, ["check", str(path)])
    assert ran.exit_code == 2 and said in ran.output, ran.output


def test_a_kernel_is_launched_by_pointers() -> None:
    source = """template <int N> __global__ void k(float* x, int n, int half) {}
    void run(float* x, int n) {
      int half = n / 2;
      auto kernel = &k<32>;
      kernel<<<n / 64, 64>>>(x, n, half);
      void* args[] = {&x, (void*)&n, &half};
      cudaLaunchKernel((void*)k<64>, dim3(n / 128), dim3(128), args, 512, 0);
      cudaLaunchConfig_t config = {dim3(4), dim3(256)};
      cudaLaunchKernelExC(&config, (const void*)kernel, args);
    }"""
    first, second, third = launches.launches(source)
    assert (first.entry, second.entry, third.entry) == ("k<32>", "k<64>", "k<32>")
    assert (second.block, second.shared, third.grid, third.block) == ((128,), 512, (4,), (256,))
    assert first.arguments == second.arguments == third.arguments == ("x", "n", "half")
    assert first.derived == ("", "", "n // 2")


@pytest.mark.parametrize("given", ["clusterDim = {2, 1, 1}", "clusterDim.x = 2", "clusterDim = {.x = 2}"])
def test_clusters_are_read_from_attributes(given: str) -> None:
    source = f"""__global__ void k(float* x) {{}}
    int main() {{ cudaLaunchConfig_t c{{}}; c.gridDim = 8; c.blockDim = 64;
      cudaLaunchAttribute a[1]; a[0].val.{given};
      cudaLaunchKernelEx(&c, k, x); }}"""
    assert launches.cluster(source, "k") == (2, 1, 1)
