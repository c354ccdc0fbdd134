"""Tensor maps without a GPU: from the front matter to what a launch is given; and ptxas's word on wgmma."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import driver as fake_driver
from fakes.driver import FakeDriver
from harness.bench import emulation
from harness.bench.row import OK
from harness.driver import Context, Device, Stream, tensormap
from harness.errors import BuildError, SpecError, UsageError
from harness.kernels import catalog, compiler, spec
from harness.launch import kernel as launch
from harness.launch.builds import build_all
from harness.launch.operands import Operands
from harness.problems import registry
from harness.problems.gemm import GEMMS, Gemm
from harness.problems.guessed.arguments import problem_of
from harness.support.cache import Cache
from shared import tma_gemm

PATH = Path("a/k.cu")
GOOD = """\
// Title
//
// /// kernel
// entry = "matmul"
// dtype = "bf16"
// block = 128
// tile = ["BM", 64]
//
// [tensormaps]
// B = {box = [64, 64], swizzle = 128}
// A = {box = ["BM // 2", 32]}
//
// [params]
// BM = [128, 64]
// ///
"""


# -- the front matter


def test_maps_are_read_in_their_order() -> None:
    kernel = spec.parse(GOOD, PATH)
    assert kernel.dtype == "bf16" and registry.resolve(kernel) is GEMMS["bf16"]
    boxes = kernel.variant(BM=64).boxes
    assert [(b.operand, b.rows, b.columns, b.swizzle) for b in boxes] == [
        ("B", 64, 64, 128),
        ("A", 32, 32, 0),
    ]
    assert [b.promotion for b in boxes] == [256, 256]
    fetched = GOOD.replace("swizzle = 128", 'swizzle = "BM * 2", promotion = "BM + 64"')
    (own, _), (other, _) = (spec.parse(fetched, PATH).variant(BM=rows).boxes for rows in (64,) * 2)
    assert own == other and (own.swizzle, own.promotion) == (128, 128)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        (name, layout)
        for name in ["23", "25", "26", "29", "35"]
        for layout in ["NN", "NT", "TN", "TT"]
        if layout != "TN" or name != "25"
    ],
)
def test_what_l2_fetches_follows_the_layout(name: str, layout: str) -> None:
    """Twice the box's row where k runs along it: the next bytes are the block's own next stage."""
    across_a, across_b = layout[0] == "T", layout[1] == "N"
    variant = catalog.kernel(name).variant(TRANSA=int(across_a), TRANSB=int(not across_b))
    promotions = {box.operand: box.promotion for box in variant.boxes}
    assert promotions["A"] == (128 if across_a else 256)
    assert promotions["B"] == (128 if across_b else 256)
    plain = spec.parse(GOOD.replace('// dtype = "bf16"\n', ""), PATH)
    assert plain.dtype == "fp32" and registry.resolve(plain) is Gemm


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"bf16"', '"bf17"', "a/k.cu:5: no element type 'bf17'\n.*did you mean bf16"),
        ('"bf16"', '"double"', "a/k.cu:5: no element type 'double'\n.*known: fp32, tf32, 3xtf32, fp16x3, bf"),
        ('"bf16"', "16", "a/k.cu:5: dtype must be a non-empty string"),
        ('dtype = "bf16"', 'dtype = "bf16"\n// problem = "copy"', "a/k.cu:5: dtype is that of the gemm"),
        ("// B =", "// D =", "a/k.cu:10: no operand 'D' to map\n.*operands: A, B, C"),
        ("swizzle = 128", "swizzle = 16", r"a/k.cu:10: swizzle of B must be one of \(0, 32, 64, 128\)"),
        ("swizzle = 128", "swizzle = true", "a/k.cu:10: swizzle of B must be"),
        ("swizzle = 128", "promotion = 32", r"a/k.cu:10: promotion of B must be one of \(256, 0, 64, 128\)"),
        ("swizzle = 128", 'promotion = "BN"', "a/k.cu:10: tensormaps.B uses BN, .*\n.*parameters: BM"),
        ("swizzle = 128", "swizle = 128", "a/k.cu:10: B must be {box"),
        ("{box = [64, 64], swizzle = 128}", "{swizzle = 128}", "a/k.cu:10: B must be {box"),
        ("{box = [64, 64], swizzle = 128}", "64", "a/k.cu:10: B must be {box"),
        ("[64, 64]", "[64]", r"a/k.cu:10: box of B must be \[rows, columns\]"),
        ("[64, 64]", "64", "a/k.cu:10: box of B must be"),
        ('"BM // 2"', '"BN"', "a/k.cu:11: tensormaps.A uses BN, .*\n.*parameters: BM"),
        ('"BM // 2"', '"BM / 2"', "a/k.cu:11: tensormaps.A: .*use //"),
        ("[tensormaps]", "[tensormap]", "a/k.cu:9: unknown key 'tensormap'\n.*did you mean tensormaps"),
        ("// [params]", "// [params]\n// tensormaps = 1", "'tensormaps' stands under .params."),
    ],
)
def test_malformed(old: str, new: str, message: str) -> None:
    text = GOOD.replace(old, new)
    assert text != GOOD
    with pytest.raises(SpecError, match=message):
        spec.parse(text, PATH)


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ("[257, 8]", "tensormaps.B: a box of 257 x 8; 256 is the most"),
        ("[8, 264]", "a box of 8 x 264; 256 is the most"),
        ("[0, 8]", "tensormaps.B = '0' is 0; 1 is the least"),
        ("[64, 12]", "a row of 12 bf16 is 24 bytes; it takes 16s"),
        ("[64, 72], swizzle = 128", "a row of 72 bf16 is 144 bytes; it takes 16s, at most the swizzle's 128"),
        ("[64, 24], swizzle = 32", "at most the swizzle's 32"),
        ('[64, 8], swizzle = "3 * 16"', "tensormaps.B: swizzle 48; it takes .*128"),
        ('[64, 8], promotion = "2 * 16"', "tensormaps.B: promotion 32; it takes .*256"),
    ],
)
def test_boxes_that_the_tma_does_not_take(box: str, message: str) -> None:
    text = GOOD.replace("[64, 64], swizzle = 128", box)
    with pytest.raises(SpecError, match=f"a/k.cu: .*{message}"):
        spec.parse(text, PATH).variant()


def test_the_least_and_the_largest_boxes_are_taken() -> None:
    for box in ("[256, 256]", "[1, 8]", "[64, 64], swizzle = 128", "[64, 16], swizzle = 32"):
        spec.parse(GOOD.replace("[64, 64], swizzle = 128", box), PATH).variant()


@pytest.mark.parametrize("rows", [84, 248])
def test_rows_that_no_tile_of_the_tensor_cores_has(rows: int) -> None:
    with pytest.raises(UsageError, match="no parameter set of .* satisfies where"):
        catalog.kernel("23").variant(BM=rows, BN=64, STAGES=8)


def test_a_part_of_a_tile_begins_where_the_swizzle_does(cache: Cache) -> None:
    """Three blocks cannot share boxes of 64 k, which would hang: the compiler refuses it."""
    variant = catalog.kernel("23").variant(BM=64, BN=64, STAGES=8, CLUSTER=3)
    with pytest.raises(BuildError, match="a part begins where the swizzle does"):
        compiler.compile_kernel(variant, "sm_90a", cache)


def test_a_users_problem_says_where_its_matrices_are(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from harness.problems.gemm import Gemm\nfrom harness.problems.protocol import Layout\n"
        "from harness.problems.registry import Copy\nfrom harness.kernels.dtypes import FP32\n"
        "class Flat(Copy):\n    pass\n"
        "class Grid(Copy):\n"
        "    def layouts(self):\n"
        "        return {'src': Layout(rows=self.N // 8, columns=8, ld=8, dtype=FP32)}\n"
    )
    text = GOOD.replace("// B =", "// src =").replace('// dtype = "bf16"', '// problem = "mine.py:{}"')
    text = "\n".join(line for line in text.splitlines() if not line.startswith("// A =")).replace(
        "64, 64]", "8, 8]"
    )
    for name, refused in (("Grid", False), ("Flat", True)):
        kernel = spec.parse(text.replace("{}", name), tmp_path / "k.cu")
        problem = registry.resolve(kernel)(N=64)  # type: ignore[call-arg]
        if refused:
            with pytest.raises(SpecError, match=r"tensormaps.src: .* no such matrix\n.*Matrices"):
                launch.maps(kernel.variant(), problem)
        else:
            (found,) = launch.maps(kernel.variant(), problem)
            assert (found.layout.rows, found.element) == (8, "FLOAT32")


# -- the driver


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return fake_driver.install(monkeypatch)


@pytest.fixture
def context(fake: FakeDriver) -> Iterator[Context]:
    with Context(Device.open()) as found:
        yield found


def encode(context: Context, address: int = 0x1000, **changed: Any) -> Any:
    given: dict[str, Any] = {"element": "BFLOAT16", "extents": (100, 200), "pitch": 416, "box": (32, 64)}
    return tensormap.encode(context, address, **{**given, **changed})


def test_encoding_asks_the_driver_for_what_is_described(fake: FakeDriver, context: Context) -> None:
    found = encode(context, swizzle=64)
    assert (len(found.data), found.align) == (128, 64)
    assert int.from_bytes(found.data[:8], "little") == 0x1000
    (args,) = (args for name, args in fake.log if name == "cuTensorMapEncodeTiled")
    assert args == (
        "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
        2,
        0x1000,
        [200, 100],  # columns first
        [416],
        [64, 32],
        [1, 1],
        "CU_TENSOR_MAP_INTERLEAVE_NONE",
        "CU_TENSOR_MAP_SWIZZLE_64B",
        "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    )
    assert encode(context).data != found.data  # the swizzle is in it
    for promotion, name in ((128, "L2_128B"), (0, "NONE")):
        encode(context, promotion=promotion)
        assert fake.log[-1][1][9] == f"CU_TENSOR_MAP_L2_PROMOTION_{name}"


@pytest.mark.parametrize("changed", [{"address": 0x1008}, {"address": 0x1002}, {"pitch": 408}])
def test_no_map_is_all_zeros_and_the_driver_is_not_asked(
    fake: FakeDriver, context: Context, changed: dict[str, int]
) -> None:
    assert encode(context, **changed).data == bytes(128)
    assert "cuTensorMapEncodeTiled" not in fake.names()


def test_a_gpu_without_tma_is_told(fake: FakeDriver) -> None:
    fake.device_attributes["CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR"] = 8
    with Context(Device.open()) as context, pytest.raises(UsageError, match="tensor maps need sm_90"):
        encode(context)


# -- launches


def cubin(tmp_path: Path, cache: Cache) -> compiler.Cubin:
    kernel = spec.load(tma_gemm.write(tmp_path))
    return compiler.compile_kernel(kernel.variant(), "sm_90a", cache)


def test_a_launch_passes_its_maps_first(
    fake: FakeDriver, context: Context, cache: Cache, tmp_path: Path
) -> None:
    fake.functions = {"matmul": tma_gemm.SIZES}
    problem = GEMMS["bf16"](M=30, N=40, K=50, lda=56)
    with (
        Stream(context) as stream,
        Operands(context, problem, stream, seed=1, sets=2) as operands,
        launch.prepare(cubin(tmp_path, cache), operands) as run,
    ):
        run(stream)
        run(stream)
        addresses = [copy["A"].ptr for copy in operands.buffers]
    maps = [call.args[0] for call in fake.launches]
    assert [struct.unpack("<Q", m[:8])[0] for m in maps] == addresses
    assert [struct.unpack("<Q", call.args[1])[0] for call in fake.launches] == addresses
    assert all(call.addresses[0] % 64 == 0 for call in fake.launches)
    encoded = [args for name, args in fake.log if name == "cuTensorMapEncodeTiled"]
    assert [(a[3], a[4], a[5]) for a in encoded] == [([50, 30], [112], [64, 16])] * 2
    assert {a[9] for a in encoded} == {"CU_TENSOR_MAP_L2_PROMOTION_L2_256B"}


def test_a_launch_passes_the_promotion_of_its_file(fake: FakeDriver, context: Context) -> None:
    variant = catalog.kernel("23").variant(TRANSA=1)
    problem = GEMMS["bf16"](M=64, N=64, K=64, transa=1)
    maps = {one.operand: one for one in launch.maps(variant, problem)}
    for operand in "AB":
        launch.tensor_map(context, 0x1000, maps[operand])
        assert fake.log[-1][1][9] == "CU_TENSOR_MAP_L2_PROMOTION_L2_128B", operand


def test_a_leading_dimension_that_forbids_a_map_passes_zeros(
    fake: FakeDriver, context: Context, cache: Cache, tmp_path: Path
) -> None:
    fake.functions = {"matmul": tma_gemm.SIZES}
    problem = GEMMS["bf16"](M=30, N=40, K=50)  # 100 bytes a row
    with (
        Stream(context) as stream,
        Operands(context, problem, stream, seed=1, sets=1) as operands,
        launch.prepare(cubin(tmp_path, cache), operands) as run,
    ):
        run(stream)
    assert fake.launches[0].args[0] == bytes(128)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_a_launch_has_the_clusters_of_host_code(
    fake: FakeDriver, context: Context, cache: Cache, tmp_path: Path, blocks: int
) -> None:
    """A kernel without front matter is launched as its file does, in whole clusters."""
    path = tmp_path / "plain.cu"
    path.write_text(
        "__global__ void k(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }\n"
        "int main() { config.gridDim = 5; config.blockDim = 32; attribute.val.clusterDim.x = COUNT;\n"
        "cudaLaunchKernelEx(&config, k, x, n); }\n".replace("COUNT", str(blocks))
    )
    kernel = catalog.kernel(str(path))
    made = compiler.compile_kernel(kernel.variant(), "sm_90a", cache)
    fake.functions = {made.entry: [8, 4]}
    guessed = problem_of(kernel)
    with_reference = {"unverified": False, "reference": lambda self, inputs: np.zeros_like(inputs["x"])}
    problem = type("Referenced", (guessed,), with_reference).from_axes({})
    with (
        Stream(context) as stream,
        Operands(context, problem, stream, seed=1, sets=1) as operands,
        launch.prepare(made, operands) as run,
    ):
        run(stream)
    (seen,) = fake.launches
    assert seen.cluster == ((blocks, 1, 1) if blocks > 1 else None) and seen.grid[0] % blocks == 0


def test_tf32_inputs_are_rounded_by_the_tma_and_its_output_is_not() -> None:
    text = GOOD.replace('"bf16"', '"tf32"').replace("[64, 64]", "[64, 32]")
    text = text.replace("// A = ", "// C = {box = [8, 8]}\n// A = ")
    kernel = spec.parse(text, PATH)
    found = launch.maps(kernel.variant(), GEMMS["tf32"](M=8, N=8, K=8))
    assert [(m.operand, m.element) for m in found] == [("B", "TFLOAT32"), ("C", "FLOAT32"), ("A", "TFLOAT32")]


def test_the_emulator_runs_it(cache: Cache, tmp_path: Path) -> None:
    kernel = spec.load(tma_gemm.write(tmp_path))
    built, _ = build_all([kernel.variant()], ["sm_90a"], cache, lambda _: None)
    (row,) = emulation.rows(built, {GEMMS["bf16"]: [{"N": 32}]}, emulation.Options(), lambda _: None)
    assert row.status == OK, row.error


# -- wgmma that ptxas serializes

SERIALIZED = """\
// A product whose sum is touched while it runs
//
// /// kernel
// entry = "k"
// min_arch = "sm_90a"
// block = 128
// tile = [64, 8]
// ///
typedef unsigned long long u64;
extern "C" __global__ void __launch_bounds__(128) k(float* out, u64 a, u64 b, int n)
{
    float d[4] = {0, 0, 0, 0};
    for (int i = 0; i < n; ++i) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %6, 0;"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0; }"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b), "r"(i));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        TOUCH
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""
# As NVRTC 13.5 printed it for the kernel above.
LOG = """\
ptxas info    : (C7517) wgmma.wait_group is injected in around line 70 by compiler to allow use of registers \
defined by GMMA in function 'k'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Used 30 registers, used 0 barriers
"""


def test_serialized_wgmma_is_a_build_error(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "serialized.cu"
    path.write_text(SERIALIZED.replace("TOUCH", "d[0] += 1;"))
    for _ in range(2):  # nor does it come out of the cache the second time
        with pytest.raises(BuildError, match=r"wgmma serialized: .*(wait_group|serialized)") as e:
            compiler.compile_kernel(spec.load(path).variant(), "sm_90a", cache)
    assert "C751" in e.value.log and str(path) in str(e.value)
    path.write_text(SERIALIZED.replace("TOUCH", ""))
    assert compiler.compile_kernel(spec.load(path).variant(), "sm_90a", cache).resources.registers > 0


def test_serialized_wgmma_of_a_file_without_front_matter_is_no_error() -> None:
    """It makes no claim, and what it computes can be checked all the same."""
    compiler._check_overlap(LOG, replace(spec.parse(GOOD, PATH), plain="k").variant(), "sm_90a")


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        (LOG, True),
        (
            "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized "
            "due to non wgmma instructions defining accumulator registers of a wgmma between start and end "
            "of the pipeline stage in the function 'k'\n",
            True,
        ),
        ("ptxas info    : (C7519) something about setmaxnreg\n", False),
        (LOG.split("\n", 1)[1], False),
    ],
)
def test_the_logs_that_name_it(line: str, caught: bool) -> None:
    variant = spec.parse(GOOD, PATH).variant()
    if caught:
        with pytest.raises(BuildError, match="wgmma serialized"):
            compiler._check_overlap(line, variant, "sm_90a")
    else:
        compiler._check_overlap(line, variant, "sm_90a")
