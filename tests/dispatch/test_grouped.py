"""`harness.grouped_matmul` on a fake GPU that multiplies: what is launched, and what is refused."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import harness
from fakes import gemm as fake_gemm
from fakes.driver import FakeDriver, image
from harness.dispatch import choose
from harness.dispatch.call import gpus, group
from harness.driver import Context
from harness.errors import UsageError
from harness.kernels.dtypes import BF16, FP16, FP32, DType
from harness.kernels.spec import Variant
from harness.problems.gemm import GEMMS
from shared.arrays import Typed, fake, gpu  # noqa: F401  (fixtures)

H200: Any = {"sms": 132, "arch": "sm_90a"}
PRODUCT = "QQQiiiiii"


class Groups(fake_gemm.TypedGemm):
    """A fake kernel of a group: each product of its table, or one product as ever."""

    size = 0

    def becomes(self, variant: Variant) -> tuple[int, ...]:
        sizes = super().becomes(variant)
        self.size = variant.params.get("GROUPED", 0)
        return (*sizes[:-1], self.size * (struct.calcsize(PRODUCT) + 4), sizes[-1]) if self.size else sizes

    def __call__(self, launch: SimpleNamespace) -> None:
        if not self.size:
            super().__call__(launch)
            return
        *_, alpha, beta, table, _workspace = launch.args
        first = np.frombuffer(table[-4 * self.size :], np.uint32)
        for i in range(int((first != 2**32 - 1).sum())):
            entry = table[i * struct.calcsize(PRODUCT) : (i + 1) * struct.calcsize(PRODUCT)]
            super().__call__(SimpleNamespace(args=[entry, alpha, beta]))


@pytest.fixture
def groups(fake: Any, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = Groups()

    def compile_kernel(variant: Any, arch: str) -> Any:
        fake.compiled.append(f"{variant.label} {arch}")
        return SimpleNamespace(code=image(made.becomes(variant)), entry=variant.entry)

    monkeypatch.setattr(gpus, "compile_kernel", compile_kernel)
    fake.execute = made
    return fake  # type: ignore[no-any-return]


def operands(gpu: Context, dtype: DType, shapes: list[tuple[int, int, int]]) -> list[list[Typed]]:
    made = [(Typed(gpu, dtype, m, k), Typed(gpu, dtype, k, n), Typed(gpu, dtype, m, n)) for m, n, k in shapes]
    return [list(column) for column in zip(*made, strict=True)]


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
def test_one_launch_for_products_of_any_shapes(groups: FakeDriver, gpu: Context, dtype: DType) -> None:
    draw = random.Random(5)
    shapes = [(draw.randint(1, 90), draw.randint(1, 90), draw.randint(1, 60)) for _ in range(20)]
    a, b, c = operands(gpu, dtype, shapes)
    for _ in range(2):
        wanted = [2 * (dtype.decode(x.host) @ dtype.decode(y.host)) for x, y in zip(a, b, strict=True)]
        assert harness.grouped_matmul(a, b, c, alpha=2) == c
        for z, expected in zip(c, wanted, strict=True):
            np.testing.assert_allclose(dtype.decode(z.host), expected, rtol=2.0**-7, atol=1e-2)
    assert len(groups.launches) == 2 and len(groups.compiled) == 1
    assert "GROUPED=64" in groups.compiled[0]


def test_layouts_have_a_launch_each(groups: FakeDriver, gpu: Context) -> None:
    """A column-major result is the product of the transposed operands."""
    a, b, c = operands(gpu, FP32, [(8 + i, 40, 16) for i in range(6)])
    for x in (a[4], b[4], c[4], a[5], b[5], c[5]):
        x.host, x.shape = x.host.T, x.shape[::-1]
    a[4:], b[4:] = b[4:], a[4:]
    wanted = [x.host @ y.host for x, y in zip(a, b, strict=True)]
    harness.grouped_matmul(a, b, c)
    for z, expected in zip(c, wanted, strict=True):
        np.testing.assert_allclose(z.host, expected, rtol=1e-4, atol=1e-4)
    assert len(groups.launches) == 1, "transposed three times they are row-major products"


@pytest.mark.slow
def test_large_products_go_alone(groups: FakeDriver, gpu: Context) -> None:
    small = [GEMMS["bf16"](M=8, N=64, K=64)] * 5
    (found,) = group.grouped([*small, GEMMS["bf16"](M=4096, N=4096, K=4096)], **H200)
    assert set(found.members) == set(range(5))
    assert group.grouped([GEMMS["bf16"](M=4096, N=4096, K=4096)] * 3, **H200) == ()
    assert group.grouped(small[:1], **H200) == ()
    (found,) = group.grouped([GEMMS["3xtf32"](M=8, N=64, K=64)] * 5, **H200)
    assert found.variant.kernel.dtype in ("fp32", "bf16x6"), "as exact, and grouped"
    many = group.grouped([GEMMS["fp32"](M=8, N=8, K=8)] * 1100, **H200)
    assert [len(one.members) for one in many] == [256] * 4 + [76]
    assert sorted(i for one in many for i in one.members) == list(range(1100))


def test_the_table_is_in_the_order_of_k(groups: FakeDriver, gpu: Context) -> None:
    (found,) = group.grouped([GEMMS["fp32"](M=8, N=8, K=k) for k in (8, 64, 16)], **H200)
    assert found.members == (1, 2, 0)


def test_with_beta_and_without_out(groups: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu, FP32, [(8, 8, 8), (9, 7, 5)])
    wanted = [x.host @ y.host + z.host for x, y, z in zip(a, b, c, strict=True)]
    harness.grouped_matmul(a, b, c, beta=1)
    for z, expected in zip(c, wanted, strict=True):
        np.testing.assert_allclose(z.host, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match=r"beta=1 without out\[0\]"):
        harness.grouped_matmul(a, b, beta=1)
    assert harness.grouped_matmul([], []) == []


def test_what_is_refused(groups: FakeDriver, gpu: Context) -> None:
    """With the product's number, before anything is queued."""
    a, b, c = operands(gpu, FP32, [(8, 8, 8), (9, 7, 5), (3, 3, 3)])

    def refused(words: str, x: Any, y: Any, z: Any) -> None:
        with pytest.raises(UsageError, match=words):
            harness.grouped_matmul(x, y, z)

    refused("there are 3 of a, 2 of b and 3 of out", a, b[:2], c)
    refused(r"a\[1\] is 9 x 5 and b\[1\] is 8 x 8", a, [b[0], b[0], b[2]], c)
    refused(r"out\[2\] is 9 x 7, not 3 x 3", a, b, [c[0], c[1], c[1]])
    other = operands(gpu, BF16, [(9, 7, 5)])
    refused(
        r"a\[1\] is of bf16, a\[0\] of fp32", [a[0], other[0][0]], [b[0], other[1][0]], [c[0], other[2][0]]
    )
    refused(r"a\[0\] is of fp32, b\[0\] of bf16", a[:1], other[1], c[:1])
    refused(r"out\[(0|1)\] overlaps out\[(0|1)\]", [a[0]] * 2, [b[0]] * 2, [c[0]] * 2)
    square = Typed(gpu, FP32, 8, 8)
    refused(r"out\[1\] overlaps a\[0\]", [square, a[0]], [b[0], b[0]], [c[0], square])
    refused(r"a\[1\] is a ndarray|a\[1\] is not in", [a[0], np.zeros((9, 5), np.float32)], b[:2], c[:2])
    refused("a is NoneType", None, b, c)
    refused("b is int", a, 3, c)
    refused("out is list_iterator", a, b, iter(c))
    for options in ({"alpha": 10**400}, {"precision": np.array(["tf32", "ieee"])}):
        with pytest.raises(UsageError, match="alpha=inf is not|no precision"):
            harness.grouped_matmul(a, b, c, **options)
    assert groups.launches == [] and groups.compiled == []


def test_a_product_without_a_kernel_is_named_before_any_runs(
    groups: FakeDriver, gpu: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kernel takes it, as where a grid would have too many rows."""
    able = choose.able
    monkeypatch.setattr(choose, "able", lambda M, *rest, **more: able(M, *rest, **more) if M < 2**23 else [])
    choose.reread()
    a, b, c = operands(gpu, FP32, [(8, 8, 8), (9_000_000, 1, 1)])
    with pytest.raises(UsageError, match=r"product \[1\]: no kernel for 9000000x1x1"):
        harness.grouped_matmul(a, b, c, precision="3xtf32")
    choose.reread()
    assert groups.launches == []


def test_products_of_their_own(groups: FakeDriver, gpu: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for which no group is found, and the same shapes in another type."""
    monkeypatch.setattr(group, "grouped", lambda *_, **__: ())
    for dtype in (BF16, FP16):
        a, b, c = operands(gpu, dtype, [(8, 8, 8), (9, 7, 5)])
        wanted = [dtype.decode(x.host) @ dtype.decode(y.host) for x, y in zip(a, b, strict=True)]
        before = len(groups.launches)
        harness.grouped_matmul(a, b, c)
        assert len(groups.launches) - before == 2
        for z, expected in zip(c, wanted, strict=True):
            np.testing.assert_allclose(dtype.decode(z.host), expected, rtol=0.02, atol=0.02)


def test_lists_that_are_kept_are_bounded(
    groups: FakeDriver, gpu: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_MOST_GROUPS", 3)
    for k in range(1, 7):
        harness.grouped_matmul(*operands(gpu, FP32, [(8, 8, k)] * 2))
        assert len(gpus.gpu(0)._groups) == min(k, 3)


def test_a_shared_operand_is_no_overlap(groups: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu, FP32, [(8, 8, 8)] * 4)
    harness.grouped_matmul(a, [b[0]] * 4, c)
    for x, z in zip(a, c, strict=True):
        np.testing.assert_allclose(z.host, x.host @ b[0].host, rtol=1e-5, atol=1e-5)


def test_streams_are_waited_for(groups: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu, FP32, [(8, 8, 8), (9, 7, 5)])
    for x in (*a, *b, *c):
        x.about["stream"] = 0x700
    b[1].about["stream"] = 0x800
    harness.grouped_matmul(a, b, c)
    waits = [int(args[0]) for name, args in groups.log if name == "cuStreamWaitEvent"]
    assert waits == [0x700, 0x800]
