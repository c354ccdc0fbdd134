"""`harness.matmul` with a bias, an activation or a float32 result, on the fake driver."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import harness
from fakes import gemm as fake_gemm
from fakes.driver import FakeDriver
from harness.dispatch import choose, split
from harness.dispatch.model.traffic import Pitches
from harness.driver import Context
from harness.errors import UsageError
from harness.kernels.dtypes import BF16, FP16, FP32, DType
from harness.kernels.epilogue import ACTIVATIONS, COLUMNS, PLAIN, ROWS, Epilogue
from harness.problems.gemm import GEMMS
from shared.arrays import Array, Dlpack, Typed, fake, gpu, kernels, torch  # noqa: F401  (fixtures)
from shared.sweeps import sweep

H200: Any = {"sms": 132, "arch": "sm_90a"}


def vector(gpu: Context, dtype: DType, count: int) -> Typed:
    """Return a vector of the library whose matrices are `Typed`."""
    made = Typed(gpu, dtype, 1, count)
    made.host, made.shape = made.host[0], (count,)  # type: ignore[assignment]
    return made


def operands(gpu: Context, dtype: DType, out: DType, m: int = 24, n: int = 40, k: int = 16) -> list[Typed]:
    return [Typed(gpu, dtype, m, k), Typed(gpu, dtype, k, n), Typed(gpu, out, m, n)]


def wanted(a: Typed, b: Typed, out: Typed, epilogue: Epilogue, bias: Typed | None, beta: float = 0) -> Any:
    total = a.type.decode(a.host) @ b.type.decode(b.host)
    total += beta * out.type.decode(out.host) if beta else 0
    return epilogue.finish(total, None if bias is None else out.type.decode(bias.host))


def close(out: Typed, expected: Any) -> None:
    np.testing.assert_allclose(out.type.decode(out.host), expected, rtol=2.0**-7, atol=1e-3)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("dtype", "to"),
    sweep([(FP32, FP32), (BF16, BF16), (FP16, FP32), (BF16, FP32)], lambda _, to: to is BF16),
)
def test_a_product_with_an_epilogue(
    kernels: FakeDriver, gpu: Context, dtype: DType, to: DType, activation: str, axis: int
) -> None:
    a, b, c = operands(gpu, dtype, to)
    bias = vector(gpu, to, (24, 40)[axis])
    epilogue = Epilogue((ROWS, COLUMNS)[axis], activation, to is not dtype)
    expected = wanted(a, b, c, epilogue, bias, beta=0.5)
    assert harness.matmul(a, b, c, beta=0.5, bias=bias, bias_axis=axis, activation=activation) is c
    close(c, expected)
    assert len(kernels.launches) == 1
    pitches = choose.about(GEMMS[dtype.name](M=24, N=40, K=16))["pitches"]
    chosen = choose.choose(24, 40, 16, **H200, dtype=dtype.name, epilogue=epilogue, pitches=pitches)
    assert kernels.compiled == [f"{chosen.label} sm_90a"]
    expected = wanted(a, b, c, epilogue, bias)
    harness.matmul(a, b, c, bias=bias, bias_axis=axis, activation=activation)  # from the plan
    close(c, expected)
    assert len(kernels.compiled) == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_of_a_column_major_result_rows_are_columns(kernels: FakeDriver, gpu: Context, axis: int) -> None:
    """The transposed product is computed, with the bias along the other axis."""
    a, b, c = (upright(gpu, m, n) for m, n in ((24, 16), (16, 40), (24, 40)))
    bias = vector(gpu, FP32, (24, 40)[axis])
    epilogue = Epilogue((ROWS, COLUMNS)[axis], "silu")
    harness.matmul(a, b, c, bias=bias, bias_axis=axis, activation="silu")
    close(c, wanted(a, b, c, epilogue, bias))
    assert f"BIAS={(COLUMNS, ROWS)[axis]}" in kernels.compiled[0]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.slow
def test_each_part_of_a_divided_product_has_its_own_bias(
    kernels: FakeDriver, gpu: Context, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gemm.without_small_tiles(monkeypatch)
    m, n, k = 2049, 2055, 40
    epilogue = Epilogue((ROWS, COLUMNS)[axis], "relu")
    parts = split.divided(m, n, k, **H200, pitches=Pitches(straddled="AB"), epilogue=epilogue)
    plain = split.divided(m, n, k, **H200, pitches=Pitches(straddled="AB"))
    assert len(parts) > 1
    assert [p.variant for p in parts] == [epilogue.compiled(p.variant) for p in plain]
    a, b, c = operands(gpu, FP32, FP32, m, n, k)
    bias = vector(gpu, FP32, (m, n)[axis])
    harness.matmul(a, b, c, bias=bias, bias_axis=axis, activation="relu")
    assert len(kernels.launches) == len(parts)
    close(c, wanted(a, b, c, epilogue, bias))


@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
@pytest.mark.parametrize(("dtype", "to"), [(FP32, FP32), (BF16, BF16), (FP16, FP32)])
def test_a_gradient_through_an_activation(
    kernels: FakeDriver, gpu: Context, dtype: DType, to: DType, activation: str
) -> None:
    a, b, c = operands(gpu, dtype, to)
    at = Typed(gpu, to, 24, 40)
    back = Epilogue(0, activation, to is not dtype, True)
    expected = wanted(a, b, c, back, at, beta=0.5)
    harness.matmul(a, b, c, beta=0.5, activation=activation, derivative_at=at)
    close(c, expected)
    assert len(kernels.launches) == 1 and " DERIVATIVE=1" in kernels.compiled[0]


def test_a_gradient_of_a_column_major_result(kernels: FakeDriver, gpu: Context) -> None:
    a, b, c, at = (upright(gpu, m, n) for m, n in ((24, 16), (16, 40), (24, 40), (24, 40)))
    harness.matmul(a, b, c, activation="silu", derivative_at=at)
    close(c, wanted(a, b, c, Epilogue(0, "silu", False, True), at))


def test_each_part_of_a_divided_product_has_its_own_slopes(
    kernels: FakeDriver, gpu: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gemm.without_small_tiles(monkeypatch)
    m, n, k = 2049, 2055, 40
    a, b, c = operands(gpu, FP32, FP32, m, n, k)
    at = Typed(gpu, FP32, m, n)
    harness.matmul(a, b, c, activation="relu", derivative_at=at)
    assert len(kernels.launches) > 1
    close(c, wanted(a, b, c, Epilogue(0, "relu", False, True), at))


@pytest.mark.slow
def test_plans_are_told_apart(kernels: FakeDriver, gpu: Context) -> None:
    kernels.execute = fake_gemm.no_write
    a, b, c = operands(gpu, BF16, BF16)
    bias = vector(gpu, BF16, 40)
    back = {"activation": "relu", "derivative_at": Typed(gpu, BF16, 24, 40)}
    forward = ({}, {"bias": bias}, {"activation": "relu"}, {"bias": bias, "activation": "silu"}, {})
    for options in (*forward, back):
        harness.matmul(a, b, c, **options)
    assert len(kernels.compiled) == 5


def test_a_bias_is_waited_for(fake: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu, FP32, FP32)
    bias = vector(gpu, FP32, 40)
    for x, ready in ((a, 0x700), (b, 0x700), (c, 0x700), (bias, 0x800)):
        x.about["stream"] = ready
    harness.matmul(a, b, c, bias=bias)
    waits = [int(args[0]) for name, args in fake.log if name == "cuStreamWaitEvent"]
    assert waits == [0x700, 0x800]


def test_a_kernel_that_cannot_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the choice, and by the tables; without an epilogue it is taken."""
    epilogue = Epilogue(COLUMNS, "relu")
    first = choose.choose(300, 300, 300, **H200)
    plain = dataclasses.replace(first.kernel, source="")
    cannot = tuple(
        dataclasses.replace(c, variant=dataclasses.replace(c.variant, kernel=plain))
        if c.variant.kernel == first.kernel
        else c
        for c in choose.candidates()
    )
    monkeypatch.setattr(choose, "candidates", lambda _="": cannot)
    choose._laid_out.cache_clear()
    choose.reread()
    try:
        assert choose.choose(300, 300, 300, **H200).kernel.name == first.kernel.name
        found = choose.choose(300, 300, 300, **H200, epilogue=epilogue)
        assert found.kernel.name != first.kernel.name and found.params["BIAS"] == COLUMNS
    finally:
        monkeypatch.undo()
        choose._laid_out.cache_clear()
        choose.reread()


def test_an_entry_of_a_table_holds_with_an_epilogue(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"gpu": "mine", "sms": 132, "M": [1, 999], "N": [1, 999], "K": [1, 999], "dtype": "fp32"}
    entries = [{**entry, "kernel": name, "params": {}} for name in ("10_vectorized", "14_warp_tiles")]
    monkeypatch.setattr(choose.user_table, "entries", lambda: entries)
    asked: Any = {**H200, "gpu": "mine"}
    found = [choose.measured(100, 100, 100, **asked, epilogue=e) for e in (PLAIN, Epilogue(0, "relu"))]
    assert [x and x.brief for x in found] == ["10_vectorized", "14_warp_tiles ACTIVATION=1"]


def strided(gpu: Context, dtype: DType) -> Typed:
    bias = vector(gpu, dtype, 80)
    bias.host, bias.shape = bias.host[::2], (40,)  # type: ignore[assignment]
    return bias


def upright(gpu: Context, rows: int, columns: int) -> Typed:
    made = Typed(gpu, FP32, columns, rows)
    made.host, made.shape = made.host.T, made.shape[::-1]
    return made


REFUSED: dict[str, Callable[[Context], dict[str, Any]]] = {
    "bias has 24 elements, not 40, one for each column of out.*bias_axis=0": lambda gpu: {
        "bias": vector(gpu, FP32, 24)
    },
    "bias has 40 elements, not 24, one for each row of out.*bias_axis=1": lambda gpu: {
        "bias": vector(gpu, FP32, 40),
        "bias_axis": 0,
    },
    "bias has 7 elements, not 40, one for each column of out": lambda gpu: {"bias": vector(gpu, FP32, 7)},
    "bias has 2 dimensions, not 1.*reshape": lambda gpu: {"bias": Typed(gpu, FP32, 1, 40)},
    "bias is of bf16, out of fp32": lambda gpu: {"bias": vector(gpu, BF16, 40)},
    "bias has 2 elements from one to the next; it must be 1": lambda gpu: {"bias": strided(gpu, FP32)},
    "bias_axis=2.*0: for each row": lambda gpu: {"bias": vector(gpu, FP32, 40), "bias_axis": 2},
    "no activation 'tanh'.*relu, gelu, gelu_tanh, silu": lambda gpu: {"activation": "tanh"},
    "bias is a ndarray|bias is not in the memory": lambda gpu: {"bias": np.zeros(40, np.float32)},
    "derivative_at without an activation.*gelu": lambda gpu: {"derivative_at": Typed(gpu, FP32, 24, 40)},
    "derivative_at and a bias": lambda gpu: {
        "derivative_at": Typed(gpu, FP32, 24, 40),
        "activation": "relu",
        "bias": vector(gpu, FP32, 40),
    },
    "derivative_at is 24 x 41, out 24 x 40": lambda gpu: {
        "derivative_at": Typed(gpu, FP32, 24, 41),
        "activation": "relu",
    },
    "derivative_at is of bf16, out of fp32": lambda gpu: {
        "derivative_at": Typed(gpu, BF16, 24, 40),
        "activation": "relu",
    },
    r"derivative_at has strides \(1, 24\), out \(40, 1\).*copy derivative_at": lambda gpu: {
        "derivative_at": upright(gpu, 24, 40),
        "activation": "relu",
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_clear_refusal(kernels: FakeDriver, gpu: Context, what: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){what}"):
        harness.matmul(*operands(gpu, FP32, FP32), **REFUSED[what](gpu))
    assert kernels.launches == [] and kernels.compiled == []


def test_a_bias_in_the_result_is_refused(kernels: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu, FP32, FP32)
    bias = vector(gpu, FP32, 40)
    bias.host = c.host[3]
    with pytest.raises(UsageError, match="out overlaps bias"):
        harness.matmul(a, b, c, bias=bias)
    with pytest.raises(UsageError, match="out overlaps derivative_at"):
        harness.matmul(a, b, c, activation="relu", derivative_at=c)
    x, y, z = operands(gpu, BF16, FP32, 8, 8, 8)
    x.host = z.host.view(np.uint16)[:, 8:16]  # the second half of each row, as bf16
    with pytest.raises(UsageError, match="out overlaps a"):
        harness.matmul(x, y, z)


def test_a_bias_by_dlpack_and_of_torch(kernels: FakeDriver, gpu: Context, torch: Any) -> None:
    a, b, c = operands(gpu, FP32, FP32)
    bias = vector(gpu, FP32, 40)
    expected = wanted(a, b, c, Epilogue(COLUMNS), bias)
    harness.matmul(a, b, c, bias=Dlpack(bias))  # type: ignore[arg-type]
    close(c, expected)
    c.host[:] = 0
    harness.matmul(a, b, c, bias=torch.Tensor(bias))
    close(c, expected)
