"""Products of matrices that are stored transposed: read where they lie, or copied."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import harness
from fakes import gemm as fake_gemm
from fakes.driver import FakeDriver, image
from harness import emulator
from harness.dispatch import choose, split
from harness.dispatch.call import copies, gpus
from harness.dispatch.model import cost, traffic
from harness.dispatch.model.traffic import ALIGNED
from harness.driver import Context
from harness.errors import UsageError
from harness.kernels import catalog
from harness.kernels.compiler import compile_kernel
from harness.kernels.epilogue import PLAIN
from harness.kernels.spec import Variant
from shared.arrays import Array, Dlpack, fake, gpu  # noqa: F401  (fixtures)

H200: Any = {"sms": 132, "arch": "sm_90a"}
LAYOUTS = ["NN", "NT", "TN", "TT"]


class Flipped(Array):
    """The transpose of an array: column-major."""

    def __init__(self, gpu: Context, rows: int, columns: int, *, ld: int = 0, seed: int = 0) -> None:
        super().__init__(gpu, columns, rows, ld=ld, seed=seed)
        self.shape = (rows, columns)
        self.host = self.host.T


@pytest.fixture
def products(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A GPU whose kernels read the layouts that they were compiled for."""
    flips: list[tuple[int, int]] = []
    fake.compiled = []
    fake.functions = {"matmul": None, "transpose": fake_gemm.TRANSPOSE}

    def compile_kernel(variant: Any, arch: str) -> Any:
        fake.compiled.append(variant.label)
        if variant.entry == "transpose":
            return SimpleNamespace(code=image(fake_gemm.TRANSPOSE), entry=variant.entry)
        if variant.entry == "matmul":
            flips.append((variant.params.get("TRANSA", 0), variant.params.get("TRANSB", 0)))
        return SimpleNamespace(code=image(fake_gemm.sizes(variant)), entry=variant.entry)

    def execute(launch: SimpleNamespace) -> None:
        if launch.function == "transpose":
            fake_gemm.transpose(launch)
            return
        a, b, c, m, n, k, lda, ldb, ldc, alpha, beta = fake_gemm.plain(launch)
        transa, transb = flips[-1]
        left, right = (
            view(a, *((k, m) if transa else (m, k)), lda),
            view(b, *((n, k) if transb else (k, n)), ldb),
        )
        out = view(c, m, n, ldc)
        product = np.float32(alpha) * ((left.T if transa else left) @ (right.T if transb else right))
        out[:] = product + np.float32(beta) * out if beta else product

    monkeypatch.setattr(gpus, "compile_kernel", compile_kernel)
    fake.execute = execute
    return fake


def view(address: int, rows: int, columns: int, ld: int) -> Any:
    memory = (ctypes.c_float * ((rows - 1) * ld + columns)).from_address(address)
    flat = np.frombuffer(memory, np.float32)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (4 * ld, 4))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("of_out", ["N", "T"])
@pytest.mark.parametrize("extra", [0, 3])
def test_every_layout(products: FakeDriver, gpu: Context, layout: str, of_out: str, extra: int) -> None:
    """Row- and column-major operands and results, padded or not, with alpha and beta: no copy is made."""

    def made(kind: str, rows: int, columns: int, seed: int) -> Array:
        ld = (rows if kind == "T" else columns) + extra
        return (Flipped if kind == "T" else Array)(gpu, rows, columns, ld=ld, seed=seed)

    a, b, c = made(layout[0], 400, 300, 1), made(layout[1], 300, 350, 2), made(of_out, 400, 350, 3)
    before, padding = c.host.copy(), c.whole.copy()
    products.log.clear()
    assert harness.matmul(a, b, c, alpha=0.5, beta=-2) is c
    np.testing.assert_allclose(c.host, 0.5 * (a.host @ b.host) - 2 * before, atol=1e-3)
    inner = 400 if of_out == "T" else 350
    assert np.array_equal(c.whole[:, inner:], padding[:, inner:])
    assert "transpose" not in "".join(products.compiled) and products.names().count("cuLaunchKernelEx") == 1
    # The transposed product swaps the operands, and with them what each kernel must read.
    expected = layout if of_out == "N" else "".join("TN"["NT".index(x)] for x in reversed(layout))
    flips = [f"{name}=1" for name, x in zip(("TRANSA", "TRANSB"), expected, strict=True) if x == "T"]
    assert [f for f in ("TRANSA=1", "TRANSB=1") if f in products.compiled[-1]] == flips


@pytest.fixture
def row_major(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rung 28, which reads row-major operands only, is what has been measured as the fastest."""
    monkeypatch.setattr(choose, "measured", lambda *_, **__: catalog.kernel("28_3xtf32").variant())
    choose.reread()
    yield
    choose.reread()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("row_major")
def test_what_the_kernel_does_not_read_is_copied(products: FakeDriver, gpu: Context, layout: str) -> None:
    """The operands themselves stay as they are."""
    a = (Flipped if layout[0] == "T" else Array)(gpu, 33, 20, ld=40, seed=1)
    b = (Flipped if layout[1] == "T" else Array)(gpu, 20, 37, ld=41, seed=2)
    c = Array(gpu, 33, 37, seed=3)
    given = a.whole.copy(), b.whole.copy()
    products.log.clear()
    harness.matmul(a, b, c, precision="3xtf32")
    np.testing.assert_allclose(c.host, a.host @ b.host, atol=1e-3)
    assert products.names().count("cuLaunchKernelEx") == 1 + layout.count("T")
    assert np.array_equal(a.whole, given[0]) and np.array_equal(b.whole, given[1])
    c.host[:] = 0
    harness.matmul(a, b, c, precision="3xtf32")  # from the plan
    np.testing.assert_allclose(c.host, a.host @ b.host, atol=1e-3)


@pytest.mark.parametrize(("M", "N"), [(30, 70), (70, 30)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tf32_copies_one_operand_at_most(
    products: FakeDriver, gpu: Context, layout: str, M: int, N: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read all but TN with large tiles; there the smaller operand is transposed, to row-major or from it."""
    fake_gemm.without_small_tiles(monkeypatch)
    a = (Flipped if layout[0] == "T" else Array)(gpu, M, 21, ld=120, seed=1)
    b = (Flipped if layout[1] == "T" else Array)(gpu, 21, N, ld=121, seed=2)
    c = Array(gpu, M, N, seed=3)
    given = a.whole.copy(), b.whole.copy()
    harness.matmul(a, b, c, alpha=2, precision="tf32")
    np.testing.assert_allclose(c.host, 2 * (a.host @ b.host), atol=1e-3)
    made = [launch for launch in products.launches if launch.function == "transpose"]
    assert all(launch.programmatic for launch in made)
    extents = [struct.unpack("=ii", b"".join(launch.args[2:4])) for launch in made]
    assert extents == ([(21, min(M, N))] if layout == "TN" else [])
    read = {"TN": "NN" if M < N else "TT"}.get(layout, layout)
    label = next(x for x in reversed(products.compiled) if x.startswith("25"))
    assert ("TRANSA=1" in label, "TRANSB=1" in label) == (read[0] == "T", read[1] == "T")
    assert np.array_equal(a.whole, given[0]) and np.array_equal(b.whole, given[1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_begin_where_their_operands_do(products: FakeDriver, gpu: Context, layout: str) -> None:
    M, N, K = 2049, 2047, 40
    a = (Flipped if layout[0] == "T" else Array)(gpu, M, K, seed=1)
    b = (Flipped if layout[1] == "T" else Array)(gpu, K, N, seed=2)
    c = Array(gpu, M, N, seed=3)
    parts = split.divided(M, N, K, **H200, gpu="Fake GPU", layout=layout)
    assert all(traffic.unread(p.variant, layout) == traffic.unread(parts[0].variant, layout) for p in parts)
    harness.matmul(a, b, c)
    np.testing.assert_allclose(c.host, a.host @ b.host, atol=1e-3)


def test_dlpack_of_a_transpose(products: FakeDriver, gpu: Context) -> None:
    a, b, c = Array(gpu, 5, 3), Array(gpu, 7, 3), Array(gpu, 5, 7)
    harness.matmul(a, Dlpack(b, host=b.host.T), c)
    np.testing.assert_allclose(c.host, a.host @ b.host.T, rtol=1e-5)


def test_a_single_row_or_column_with_a_step(products: FakeDriver, gpu: Context) -> None:
    """A column of a row-major matrix, and the same as a row."""
    whole, b, c = Array(gpu, 6, 4, seed=1), Array(gpu, 6, 5, seed=2), Array(gpu, 1, 5, seed=3)
    row = Array(gpu, 1, 6)
    row.host = whole.host[:, 2:3].T
    row.about["strides"] = (1000, 16)
    harness.matmul(row, b, c)
    np.testing.assert_allclose(c.host, whole.host[:, 2:3].T @ b.host, rtol=1e-5)


@pytest.mark.parametrize(
    ("strides", "said"),
    [((8, 12), "2 elements from row to row and 3 from column to column; one of them must be 1"),
     ((4, 16), "4 elements from column to column of 5: its columns overlap"),
     ((4, 0), "0 elements from column to column of 5: its columns overlap")],
)  # fmt: skip
def test_other_strides_are_refused(
    products: FakeDriver,
    gpu: Context,
    strides: tuple[int, int],
    said: str,
) -> None:
    a, b, c = Array(gpu, 5, 3), Array(gpu, 3, 7), Array(gpu, 5, 7)
    a.about["strides"] = strides
    with pytest.raises(UsageError, match=said):
        harness.matmul(a, b, c)
    assert products.launches == []


def test_an_output_over_a_transposed_operand_is_refused(products: FakeDriver, gpu: Context) -> None:
    whole, b = Array(gpu, 8, 8), Array(gpu, 4, 4)
    a, c = Array(gpu, 4, 4), Array(gpu, 4, 4)
    a.host, c.host = whole.host[:4, :4].T, whole.host[2:6, 3:7]
    with pytest.raises(UsageError, match="out overlaps a"):
        harness.matmul(a, b, c)


# The choice


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(512, 4096, 4096), (64, 4096, 4096), (100, 3000, 77), (4096, 4096, 4096)])
def test_large_operands_are_read_where_they_are(shape: tuple[int, int, int], layout: str, dtype: str) -> None:
    variant = choose.choose(*shape, **H200, gpu="NVIDIA H200", dtype=dtype, layout=layout)
    assert traffic.unread(variant, layout) == ""
    for name, x in zip(("TRANSA", "TRANSB"), layout, strict=True):
        assert variant.params.get(name, 0) == (x == "T")


@pytest.mark.slow
def test_few_rows_times_a_transposed_matrix_take_a_kernel_for_few() -> None:
    """The decoding of one token: B is read once, by rows."""
    for dtype, suffix in (("fp32", ""), ("tf32", ""), ("bf16", "_bf16"), ("fp16", "_fp16")):
        for rows in (1, 2):
            variant = choose.choose(rows, 4096, 4096, **H200, layout="NT", dtype=dtype)
            assert variant.kernel.name == f"40_skinny_dots{suffix}", (dtype, rows)
            assert variant.params["TRANSB"] == variant.params["FEW_ROWS"] == 1
        variant = choose.choose(4096, 1, 4096, **H200, dtype=dtype)
        assert variant.kernel.name == f"40_skinny_dots{suffix}", dtype
        assert variant.params["TRANSB"] == variant.params["FEW_ROWS"] == 0


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16"])
def test_a_column_is_not_transposed_for_a_kernel_that_reads_rows(dtype: str) -> None:
    for shape in ((4096, 1, 4096), (300, 3, 500), (1, 700, 600), (2, 4096, 64)):
        found = choose.ranked(*shape, **H200, dtype=dtype, layout="NN")
        dots = [variant for variant, _ in found if variant.kernel.name.startswith("40_skinny_dots")]
        assert all(traffic.unread(variant, "NN") == "" for variant in dots), shape
        assert dots or shape[1] > 1


def test_the_dots_of_a_few_are_not_for_more() -> None:
    """40_skinny_dots reads the large matrix anew for each FEW of the few, at most four times."""
    few = [c for c in choose.candidates() if c.variant.kernel.name == "40_skinny_dots"]
    assert {c.variant.params["FEW"] for c in few} == {1, 2, 4}
    for c in few:
        for size in range(1, 20):
            shape = (size, 999) if c.variant.params["FEW_ROWS"] else (999, size)
            assert c.serves(*shape, "sm_90a") == (size <= 4 * c.variant.params["FEW"])
            assert not c.serves(*shape, "sm_80")


def test_an_entry_of_a_table_holds_where_its_kernel_reads_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"gpu": "mine", "sms": 132, "M": [1, 9999], "N": [1, 9999], "K": [1, 9999], "dtype": "fp32"}
    one = {**entry, "kernel": "16_pipeline", "params": {}}
    other = {**entry, "kernel": "14_warp_tiles", "params": {}}
    for first, found in ((one, "16_pipeline TRANSB=1"), (other, None)):
        monkeypatch.setattr(choose.user_table, "entries", lambda first=first: [first])
        known = choose.measured(100, 100, 100, **H200, gpu="mine", layout="NT")
        assert (known and known.brief) == found
        assert choose.measured(100, 100, 100, **H200, gpu="mine") is not None


def test_an_entry_holds_for_the_shape_that_its_kernel_turns_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """In TT the tile of 25 lies across: what was fastest for 100 x 900 outputs is so for 900 x 100."""
    entry = {"gpu": "mine", "sms": 132, "M": [1, 100], "N": [101, 900], "K": [1, 9999], "dtype": "tf32"}
    long = {**entry, "kernel": "25_wgmma_tf32", "params": {"BM": 128, "STAGES": 6, "SPLIT": 2}}
    across = {**entry, "kernel": "25_wgmma_tf32", "params": {}}

    def found(layout: str, M: int, N: int, first: Any) -> bool:
        monkeypatch.setattr(choose.user_table, "entries", lambda: [first])
        return choose.measured(M, N, 100, **H200, gpu="mine", dtype="tf32", layout=layout) is not None

    for layout, turned in (("NN", False), ("NT", False), ("TT", True)):
        assert found(layout, 100, 900, across) is not turned
        assert found(layout, 900, 100, across) is turned
        assert found(layout, 100, 900, long), "a square tile lies both ways"
    assert not found("TN", 100, 900, across) and not found("TN", 900, 100, across)


def test_of_two_operands_the_smaller_is_copied() -> None:
    """The model counts that copy: it is nearly as cheap as that of the other layout's mirror image."""

    def fastest(m: int, n: int, layout: str) -> tuple[Variant, float]:
        able = choose.able(m, n, 4096, 132, "sm_90a", "tf32", layout, PLAIN, "")
        one, cycles = cost.ranked(able, (m, n, 4096, 132), layout=layout, pitches=ALIGNED)[0]
        return one.variant, cycles

    (one, cycles), (other, mirrored) = (fastest(m, n, "TN") for m, n in ((256, 8192), (8192, 256)))
    assert (traffic.unread(one, "TN"), traffic.unread(other, "TN")) == ("A", "B")
    assert cycles == pytest.approx(mirrored, rel=0.05)
    assert max(cycles, mirrored) < fastest(8192, 8192, "TN")[1]
    plain = fastest(256, 8192, "NN")[1]
    assert plain + 4000 < cycles < plain + 4000 + 2 * 4 * 512 * 4096 / (132 * 13)


def test_a_copy_costs_what_it_moves() -> None:
    """Without kernels that read B as it is, the model's cycles grow with B."""

    def cycles(n: int, layout: str) -> float:
        found = choose.ranked(256, n, 256, **H200, dtype="3xtf32", layout=layout)
        return next(cycles for variant, cycles in found if variant.kernel.name == "28_3xtf32")

    small, large = (cycles(n, "NT") - cycles(n, "NN") for n in (256, 8192))
    assert 4000 < small < large and large > 4000 + 2 * 4 * 8192 * 256 / (132 * 14)


# The transposing kernel, emulated


@pytest.mark.parametrize("dtype", [np.uint32, np.uint16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (64, 64), (65, 130), (3, 200)])
def test_transpose(dtype: Any, rows: int, columns: int) -> None:
    size = np.dtype(dtype).itemsize
    rng = np.random.default_rng(rows)
    source = rng.integers(0, 2 ** (8 * size), (rows, columns + 5), dtype=dtype)
    target = np.full((columns, rows + 3), 7, dtype)
    arguments = (source, target, np.int32(rows), np.int32(columns), np.int64(columns + 5), np.int64(rows + 3))
    tile = 128 // size
    blocks = -(-rows // tile) * -(-columns // tile)
    variant = copies.transposer(size)
    given = [emulator.Buffer(array=x, name="x") if isinstance(x, np.ndarray) else x for x in arguments]
    ptx = compile_kernel(variant, "sm_90a").ptx
    found = emulator.emulate(
        ptx, variant.entry, grid=(blocks,), block=variant.block, arguments=given, count=False
    )
    assert found.findings == ()
    assert np.array_equal(target[:, :rows], source[:, :columns].T)
    assert (target[:, rows:] == 7).all()


@pytest.mark.parametrize(
    ("rows", "columns", "ld"),
    [(1, 1, 1), (9, 7, 9), (64, 130, 131), (33, 257, 262), (300, 8, 8), (2000, 1, 3)],
)
def test_copy_rows(rows: int, columns: int, ld: int) -> None:
    """Rows that begin at any even address; what lies behind a row's last unit of 16 bytes stays."""
    rng = np.random.default_rng(rows)
    source = rng.integers(0, 2**16, (rows, ld), dtype=np.uint16)
    units, pitch = -(-columns // 8), -(-columns // 64) * 64
    target = np.full((rows, pitch), 7, np.uint16)
    variant = copies.copier()
    ptx = compile_kernel(variant, "sm_90a").ptx
    found = emulator.emulate(
        ptx,
        variant.entry,
        grid=(-(-rows * units // 256),),
        block=variant.block,
        arguments=[
            emulator.Buffer(array=source, name="from"),
            emulator.Buffer(array=target, name="to"),
            *(np.uint32(rows), np.uint32(2 * columns), np.int64(2 * ld), np.int64(2 * pitch)),
        ],
        count=False,
    )
    assert found.findings == ()
    assert np.array_equal(target[:, :columns], source[:, :columns])
    assert (target[:, 8 * units :] == 7).all()


@pytest.mark.parametrize("variant", [copies.transposer(4), copies.transposer(2), copies.copier()], ids=str)
def test_a_copy_that_begins_early_waits(variant: Variant) -> None:
    """Every thread, before it touches global memory; older architectures have no such instruction."""
    ptx = compile_kernel(variant, "sm_90a").ptx
    before, wait, after = ptx.partition("griddepcontrol.wait;")
    body = before[before.index("{") :]
    assert wait and "ld.global" in after and "st.global" in after
    assert not any(text in body for text in ("ld.global", "st.global", "bra", "ret"))
    assert "griddepcontrol" not in compile_kernel(variant, "sm_80").ptx
