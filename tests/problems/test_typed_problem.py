"""Element types: rounding, the GEMMs of each, and what their bounds let pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels.dtypes import BF16, DTYPES, FP16, FP32, TF32
from harness.problems.gemm import GEMMS, Gemm
from harness.problems.verify import compare
from shared.typed_gemm import (
    KINDS,
    correct,
    exact,
    finished,
    operands,
    rounded,
    six_products,
    split_sum,
    tensor_core_sum,
    three_products,
    truncated,
)

TYPED = ["tf32", "3xtf32", "fp16x3", "bf16x6", "bf16", "fp16"]


# -- the types


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_bf16_is_rounded_to_nearest_even(values: list[float]) -> None:
    """Against float64 arithmetic, which knows nothing of bits: the nearer neighbour, of two the even one."""
    x = np.array(values, np.float32)
    got = BF16.decode(BF16.encode(x))
    for value, result in zip(x.astype(np.float64), got, strict=True):
        if np.isnan(value):
            assert np.isnan(result)
        elif np.isinf(value) or abs(value) >= BF16.overflow:
            assert result == np.copysign(np.inf, value)
        else:
            step = 2 * float(BF16.half_spacing(np.abs(value)))
            assert result == np.rint(value / step) * step and np.signbit(result) == np.signbit(value)


def test_bf16_of_known_bits() -> None:
    x = np.array([1.0, 1.00390625, 1.01171875, -0.0, 3.3895314e38, 3.4e38, np.inf, 1e-40], np.float32)
    assert [hex(b) for b in BF16.encode(x)] == [
        *("0x3f80", "0x3f80", "0x3f82", "0x8000", "0x7f7f", "0x7f80", "0x7f80", "0x1"),
    ]  # ties to even, down and up; the largest; beyond it; a subnormal
    assert BF16.encode(np.array([np.nan, -np.nan], np.float32)).tolist() == [0x7FC0, 0x7FC0]
    quiet = np.array([0x7F800001], np.uint32).view(np.float32)  # the bits that stay would say infinity
    assert np.isnan(BF16.decode(BF16.encode(quiet)))


@pytest.mark.parametrize("dtype", [FP32, FP16])
def test_half_spacing_and_limits_are_numpys(dtype: Any) -> None:
    kind = np.finfo(dtype.storage)
    assert dtype.largest == kind.max and dtype.itemsize == kind.bits // 8
    for x in (1.0, 1.999, 2.0, 1000.5, float(kind.tiny), float(kind.tiny) / 3, 0.0):
        below = np.dtype(dtype.storage).type(x)
        below = below if below <= x else np.nextafter(below, below.dtype.type(0))
        step = float(np.nextafter(below, below.dtype.type(np.inf))) - float(below)
        assert float(dtype.half_spacing(np.array(x))) == step / 2, x
    just = np.nextafter(dtype.overflow, 0)
    with np.errstate(over="ignore"):
        assert np.isinf(np.array(dtype.overflow).astype(dtype.storage))
        assert np.array(just).astype(dtype.storage) == kind.max


# -- the problem


def test_fp32_is_as_it_was() -> None:
    p = Gemm(M=3, N=4, K=5, lda=6)
    assert (p.label, p.bytes, p.dtype) == ("3x4x5 lda=6", 4 * (15 + 20 + 12), FP32)
    assert p.inputs(1)["A"].dtype == np.float32
    assert Gemm.intensity((16, 16), 32) == 4.0


@pytest.mark.parametrize("name", TYPED)
def test_inputs_are_of_the_type_seeded_and_poisoned(name: str) -> None:
    dtype = DTYPES[name]
    p = GEMMS[name](M=40, N=60, K=50, lda=80, ldb=70, ldc=90)
    one, two = p.inputs(1), p.inputs(1)
    assert all(np.array_equal(one[n].view(np.uint8), two[n].view(np.uint8)) for n in "ABC")
    assert {v.dtype for v in one.values()} == {np.dtype(dtype.storage)}
    assert sum(v.nbytes for v in one.values()) == p.buffer_bytes
    padding = [one["A"][:, 50:], one["B"][:, 60:], one["C"]]
    assert all(np.isnan(dtype.decode(x)).all() for x in padding)
    a = dtype.decode(one["A"][:, :50])
    assert np.isfinite(a).all() and 0.9 < a.std() < 1.1
    same = Gemm(M=40, N=60, K=50, lda=80, ldb=70, ldc=90).inputs(1)["A"][:, :50]
    assert np.array_equal(one["A"][:, :50], dtype.encode(same))  # the same numbers, rounded


@pytest.mark.parametrize("name", TYPED)
def test_work_of_each_type(name: str) -> None:
    size = 2 if name in ("bf16", "fp16") else 4
    p = GEMMS[name](M=2, N=3, K=5, beta=1)
    assert (p.flops, p.bytes) == (60, size * (10 + 15 + 12))
    assert GEMMS[name].intensity((16, 16), 32) == 16 / size
    assert GEMMS[name].from_axes({"N": 512}).label == f"512 {name}"
    assert p.label == f"2x3x5 {name} beta=1"
    assert type(p)(M=2, N=3, K=5, beta=1) == p != Gemm(M=2, N=3, K=5, beta=1)  # of another type is another
    layouts = GEMMS[name](M=2, N=3, K=5, ldb=8).layouts()
    assert {n: (v.rows, v.columns, v.ld) for n, v in layouts.items()} == {
        **{"A": (2, 5, 5), "B": (5, 3, 8), "C": (2, 3, 3)},
    }


# -- what passes


SHAPES = [
    *Gemm.verify_axes,
    {"N": 1},
    {"M": 2, "N": 3, "K": 5000},
    {"M": 1, "N": 700, "K": 1},
    {"M": 128, "N": 128, "K": 4096},
]


@pytest.mark.slow
@pytest.mark.parametrize("axes", SHAPES)
@pytest.mark.parametrize("name", TYPED)
def test_a_correct_product_keeps_the_bounds(name: str, axes: dict[str, float]) -> None:
    p = GEMMS[name].from_axes(axes)
    for seed in (7, 8, 9):
        inputs = p.inputs(seed)
        verdict = compare(correct(p, inputs), p.reference(inputs), inputs["C"])
        assert verdict.ok and verdict.rms < 0.99, verdict
        assert verdict.dtype == name


@pytest.mark.parametrize("k", [1024, 16384])
@pytest.mark.parametrize("name", TYPED)
def test_positive_data_keeps_the_bounds(name: str, k: int) -> None:
    """Partial sums that only grow: the truncation of every step goes the same way."""
    p = GEMMS[name](M=16, N=24, K=k)
    inputs = p.inputs(3)
    for operand in "AB":
        inputs[operand] = p.dtype.encode(np.abs(p.dtype.decode(inputs[operand])).astype(np.float32))
    assert compare(correct(p, inputs), p.reference(inputs)).ok


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DTYPES)
def test_exact_inputs_are_exact(name: str, kind: str) -> None:
    p = exact(name, kind)(M=33, N=40, K=48, lda=50, alpha=2.0, beta=-1.0)
    inputs = p.inputs(1)
    reference = p.reference(inputs)
    assert compare(correct(p, inputs), reference, inputs["C"]).ok
    a, b = operands(p, inputs)
    wrong = {
        "transposed": tensor_core_sum(a[:, ::-1], b),
        "a row too far": np.roll(tensor_core_sum(a, b), 1, axis=0),
        "two columns swapped": tensor_core_sum(a, b)[:, [1, 0, *range(2, 40)]],
    }
    for what, total in wrong.items():
        assert not compare(finished(p, inputs, total), reference).ok, what


# -- what does not


FP16X3 = {"fp16 alone": {"corrections": 0}, "scaled too low": {"lower": 24}}


def broken(p: Gemm, inputs: Any, how: str) -> Any:
    if p.dtype.name == "fp16x3" and how in FP16X3:
        return finished(p, inputs, three_products(p, inputs, **FP16X3[how]))
    a, b = operands(p, inputs)
    if how == "one term dropped":
        return finished(p, inputs, a[:, :-1] @ b[:-1])
    if how == "one correction left out":
        return finished(p, inputs, split_sum(p, inputs, corrections=1))
    if how == "bf16 alone":
        return finished(p, inputs, six_products(p, inputs, degree=0))
    if how == "tf32 alone":
        return finished(p, inputs, tensor_core_sum(rounded(a, 11), rounded(b, 11)))
    if how == "inputs truncated":
        bits = {"tf32": 11, "bf16": 7, "fp16": 8}[p.dtype.name]  # fp16 to bf16; bf16 by one bit
        raw = p.dtype.decode(inputs["A"][:, : p.K]), p.dtype.decode(inputs["B"][:, : p.N])
        return finished(p, inputs, truncated(raw[0], bits) @ truncated(raw[1], bits))
    if how == "one input truncated":
        bits = {"tf32": 11, "bf16": 7, "fp16": 10}[p.dtype.name]
        raw = p.dtype.decode(inputs["A"][:, : p.K])
        return finished(p, inputs, truncated(raw, bits) @ b)
    if how == "summed in the type":
        total = np.zeros((p.M, p.N))
        for k in range(0, p.K, 16):
            total = rounded(total + a[:, k : k + 16] @ b[k : k + 16], p.dtype.reads)
        return finished(p, inputs, total)
    if how == "halves of k added up in the type":
        half = p.K // 2
        parts = a[:, :half] @ b[:half], a[:, half:] @ b[half:]
        return finished(p, inputs, sum(rounded(part, p.dtype.precision) for part in parts))
    if how == "output truncated":
        return p.dtype.encode(truncated(a @ b, p.dtype.precision).astype(np.float32))
    if how == "one element four steps off":
        out = finished(p, inputs, a @ b)
        out.view(np.uint16)[p.M // 2, p.N // 2] += 4
        return out
    raise ValueError(how)


FAULTS = [
    *(("3xtf32", f) for f in ("one term dropped", "one correction left out", "tf32 alone")),
    *(("fp16x3", f) for f in ("one term dropped", *FP16X3)),
    *(("bf16x6", f) for f in ("one term dropped", "bf16 alone")),
    *(("tf32", f) for f in ("one term dropped", "inputs truncated", "summed in the type")),
    *(
        (name, fault)
        for name in ("bf16", "fp16")
        for fault in (
            "one term dropped",
            "inputs truncated",
            "one input truncated",
            "summed in the type",
            "halves of k added up in the type",
            "output truncated",
            "one element four steps off",
        )
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("k", [260, 1024, 4096])
@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_wrong_arithmetic_breaks_the_bounds(name: str, fault: str, k: int) -> None:
    p = GEMMS[name](M=128, N=128, K=k)
    inputs = p.inputs(5)
    assert compare(correct(p, inputs), p.reference(inputs)).ok
    assert not compare(broken(p, inputs, fault), p.reference(inputs)).ok


def test_a_type_is_not_another() -> None:
    """tf32 by bf16 tensor cores, fp16 by way of bf16, and float32's bound on a tf32 product."""
    p = GEMMS["tf32"](M=128, N=128, K=1024)
    inputs = p.inputs(5)
    a, b = inputs["A"].astype(np.float64), inputs["B"].astype(np.float64)
    assert not compare((rounded(a, 8) @ rounded(b, 8)).astype(np.float32), p.reference(inputs)).ok
    verdict = compare(correct(p, inputs), Gemm(M=128, N=128, K=1024).reference(inputs))
    assert not verdict.ok
    half = GEMMS["fp16"](M=128, N=128, K=1024)
    inputs = half.inputs(5)
    by_bf16 = rounded(np.matmul(*operands(half, inputs)), 8).astype(np.float16)
    assert not compare(by_bf16, half.reference(inputs)).ok


def test_truncated_tf32_is_named() -> None:
    p = GEMMS["tf32"](M=128, N=128, K=1024)
    inputs = p.inputs(5)
    assert "inputs truncated" in str(compare(broken(p, inputs, "inputs truncated"), p.reference(inputs)))


def test_overflow_is_infinity_where_it_is_sure() -> None:
    p = GEMMS["fp16"](M=64, N=64, K=256, alpha=3000.0)
    inputs = p.inputs(2)
    reference = p.reference(inputs)
    assert 100 < np.isinf(reference.expected).sum() < 1000 and reference.rms_bound is None
    out = correct(p, inputs)
    assert compare(out, reference).ok
    saturated = np.where(np.isinf(out), np.copysign(np.float16(65504), out), out)
    assert not compare(saturated, reference).ok
    negated = np.where(np.isinf(out), -out, out)
    assert not compare(negated, reference).ok
    nan = np.where(np.isinf(out), np.float16(np.nan), out)
    assert not compare(nan, reference).ok


def test_small_results_of_fp16_are_judged_by_its_subnormals() -> None:
    p = GEMMS["fp16"](M=32, N=32, K=64, alpha=1e-6)
    inputs = p.inputs(2)
    reference = p.reference(inputs)
    assert compare(correct(p, inputs), reference).ok
    flushed = np.where(np.abs(correct(p, inputs)) < 6.1e-5, np.float16(0), correct(p, inputs))
    assert not compare(flushed, reference).ok


def test_padding_is_compared_bitwise() -> None:
    p = GEMMS["bf16"](M=4, N=5, K=6, ldc=8)
    inputs = p.inputs(1)
    out = correct(p, inputs)
    assert compare(out, p.reference(inputs), inputs["C"]).ok
    out[1, 7] = 0x7FC1  # another NaN
    assert compare(out, p.reference(inputs), inputs["C"]).stray == 1


def test_an_untouched_output_never_passes() -> None:
    for name in TYPED:
        p = GEMMS[name](M=4, N=5, K=6)
        inputs = p.inputs(1)
        assert compare(inputs["C"], p.reference(inputs)).bad == 20


def test_tf32_reads_float32_and_writes_float32() -> None:
    assert (TF32.itemsize, TF32.storage, TF32.precision, TF32.reads) == (4, "float32", 24, 11)
