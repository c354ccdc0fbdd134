"""The dispatcher, launched more often and on larger operands than in the other tests; with PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

import harness
from harness.driver import Context

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

# How a product is asked for, and the largest relative error of one addition and of the rounded result.
TYPES = {
    "fp32": (torch.float32, "ieee", 2**-24, 0.0),
    "tf32": (torch.float32, "tf32", 2**-10, 0.0),  # of a product: two factors of 11 bits
    "3xtf32": (torch.float32, "3xtf32", 2**-21, 0.0),
    "fp16x3": (torch.float32, "fp16x3", 2**-21, 0.0),
    "bf16": (torch.bfloat16, "ieee", 2**-23, 2**-8),
    "fp16": (torch.float16, "ieee", 2**-23, 2**-11),
}
GIB = 2**30


@pytest.fixture(autouse=True)
def _hopper(gpu: Context) -> None:
    if gpu.device.capability != (9, 0):
        pytest.skip("the tensor-core rungs are made for sm_90a")


def operands(dtype: Any, m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    torch.manual_seed(m + n + k)
    a = torch.randn(m, k, device="cuda", dtype=dtype)
    b = torch.randn(k, n, device="cuda", dtype=dtype)
    return a, b, torch.full((m, n), float("nan"), device="cuda", dtype=dtype)


def bits(x: Any) -> Any:
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32)


@pytest.mark.parametrize(
    "shape",
    [
        *((512, 512, 512), (1024, 1024, 1024), (1000, 1016, 1032), (513, 511, 1023)),
        *((128, 1024, 8192), (512, 512, 16384), (1025, 2049, 512)),
    ],
    ids=lambda s: "x".join(map(str, s)),
)
@pytest.mark.parametrize("name", TYPES)
def test_five_thousand_launches_give_equal_bits(name: str, shape: tuple[int, int, int]) -> None:
    dtype, precision, *_ = TYPES[name]
    a, b, out = operands(dtype, *shape)
    first = harness.matmul(a, b, out=out, precision=precision).clone()
    assert not torch.isnan(first).any()
    differ = torch.zeros((), device="cuda", dtype=torch.int64)
    for _ in range(5000):
        out.fill_(float("nan"))
        harness.matmul(a, b, out=out, precision=precision)
        differ += (bits(out) != bits(first)).any()
    assert int(differ) == 0


@pytest.mark.alone
@pytest.mark.parametrize("shape", [(46400, 46400, 24), (70000, 72, 32776), (72, 70000, 32776)], ids=str)
@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16"])
def test_operands_of_more_than_2_31_elements(name: str, shape: tuple[int, int, int]) -> None:
    """In C, in A and in B; of the result, rows at both ends and between, within bounds by |A| |B|."""
    if torch.cuda.mem_get_info()[0] < 48 * GIB:
        pytest.skip("takes 48 GiB of device memory")
    dtype, precision, each, rounding = TYPES[name]
    m, n, k = shape
    assert max(m * n, m * k, n * k) > 2**31
    a, b, out = operands(dtype, m, n, k)
    harness.matmul(a, b, out=out, precision=precision)
    assert not torch.isnan(out).any()
    rows = torch.tensor(sorted({0, 1, m // 2, m - 2, m - 1, *range(0, m, m // 50 + 1)}), device="cuda")
    share = each * (2 if name == "tf32" else k)  # tf32: rounding of the inputs outweighs that of sums
    for left in range(0, n, 4096):
        some, part = a[rows].double(), b[:, left : left + 4096].double()
        exact, most = some @ part, some.abs() @ part.abs()
        error = (out[rows, left : left + 4096].double() - exact).abs()
        assert bool((error <= share * most + rounding * exact.abs()).all()), (name, shape, left)
