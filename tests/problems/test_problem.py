from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import SpecError, UsageError
from harness.kernels import catalog, spec
from harness.launch import kernel
from harness.problems import registry
from harness.problems.copy import Copy
from harness.problems.gemm import Gemm
from harness.problems.verify import compare


def fp32_product(p: Gemm, inputs: dict[str, Any]) -> Any:
    """A float32 GEMM with one accumulator an element, the way the kernels sum."""
    a, b = inputs["A"][:, : p.K], inputs["B"][:, : p.N]
    total = np.zeros((p.M, p.N), np.float32)
    for k in range(p.K):
        total += a[:, k : k + 1] * b[k : k + 1]
    out = inputs["C"].copy()
    view = out[:, : p.N]
    view[:] = np.float32(p.alpha) * total + (np.float32(p.beta) * view if p.beta else 0)
    return out


@pytest.mark.parametrize(("transa", "transb"), [(0, 1), (1, 0), (1, 1)])
def test_matrices_stored_transposed(transa: int, transb: int) -> None:
    """BLAS reads them so: the product is that of the transposed views, and nothing else."""
    p = Gemm(M=5, N=7, K=3, lda=9, ldb=8, transa=transa, transb=transb)
    a, b, c = (p.inputs(3)[name] for name in "ABC")
    assert (a.shape, b.shape) == ((3, 9) if transa else (5, 9), (7, 8) if transb else (3, 8))
    assert np.isnan(a[:, 5 if transa else 3 :]).all() and np.isnan(b[:, 3 if transb else 7 :]).all()
    op_a, op_b = a[:, :5].T if transa else a[:, :3], b[:, :3].T if transb else b[:, :7]
    exact = op_a.astype(np.float64) @ op_b.astype(np.float64)
    assert np.array_equal(p.reference({"A": a, "B": b, "C": c}).expected, exact)
    assert p.layouts()["A"].columns == (5 if transa else 3) and p.layouts()["B"].rows == (7 if transb else 3)
    assert p.label == "5x7x3 lda=9 ldb=8" + " transa=1" * transa + " transb=1" * transb
    assert p.buffer_bytes == 4 * (a.size + b.size + c.size)


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"transa": 2}, "neither 0 nor 1"),
        ({"transb": 1, "ldb": 2}, "ldb=2"),
        ({"transa": 1, "lda": 4}, "lda=4"),
    ],
)
def test_layouts_out_of_range(axes: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Gemm(M=5, N=2, K=3, **axes)


def test_a_kernel_serves_the_layout_it_is_compiled_for() -> None:
    """One without the parameter reads what is not transposed."""
    plain = catalog.kernel("03_tiled").variant()
    assert kernel.unmet(plain, Gemm(M=5, N=2, K=3)) == ""
    assert kernel.unmet(plain, Gemm(M=5, N=2, K=3, transb=1)) == "transb == 0"
    flipped = catalog.kernel("23").variant(TRANSB=1)
    assert kernel.unmet(flipped, Gemm(M=5, N=2, K=3, transb=1)) == ""
    assert kernel.unmet(flipped, Gemm(M=5, N=2, K=3)) == "transb == 1"
    with pytest.raises(UsageError, match=r"requires transb == 1"):
        kernel.grid(flipped, Gemm(M=5, N=2, K=3))


def tf32(x: Any) -> Any:
    """Rounded to 10 mantissa bits, as TF32 tensor cores take their inputs."""
    bits = x.view(np.uint32)
    return ((bits + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("axes", [*Gemm.verify_axes, {"N": 1}, {"M": 2, "N": 3, "K": 5000}])
def test_a_float32_product_keeps_the_bound(axes: dict[str, float]) -> None:
    p = Gemm.from_axes(axes)
    inputs = p.inputs(7)
    verdict = compare(fp32_product(p, inputs), p.reference(inputs), inputs["C"])
    assert verdict.ok, verdict
    assert verdict.worst < 0.6 and verdict.rms < 0.6  # and not by a hair


def test_positive_inputs_keep_the_bound() -> None:
    """No cancellation: partial sums grow, and with them the rounding errors."""
    p = Gemm(M=32, N=32, K=8192)
    inputs = {k: np.abs(v) if k != "C" else v for k, v in p.inputs(3).items()}
    verdict = compare(fp32_product(p, inputs), p.reference(inputs))
    assert verdict.ok and verdict.worst < 0.6 and verdict.rms < 0.6


@pytest.mark.parametrize("k", [64, 1024, 4096, 65536])
def test_tf32_inputs_break_the_bound(k: int) -> None:
    p = Gemm(M=64, N=64, K=k)
    inputs = p.inputs(5)
    rounded = tf32(inputs["A"]).astype(np.float64) @ tf32(inputs["B"]).astype(np.float64)
    assert not compare(rounded.astype(np.float32), p.reference(inputs)).ok


@pytest.mark.parametrize("k", [7, 260, 4096])
def test_one_dropped_term_breaks_the_bound(k: int) -> None:
    p = Gemm(M=128, N=128, K=k)
    inputs = p.inputs(11)
    short = (inputs["A"][:, :-1].astype(np.float64) @ inputs["B"][:-1].astype(np.float64)).astype(np.float32)
    verdict = compare(short, p.reference(inputs))
    assert verdict.bad > verdict.elements // 4


@pytest.mark.parametrize("change", [{"alpha": 1.25 + 1e-4}, {"beta": 0.3001}, {"beta": 0.0}])
def test_wrong_scalars_break_the_bound(change: dict[str, float]) -> None:
    right = Gemm(M=64, N=64, K=32, alpha=1.25, beta=0.3)
    inputs = right.inputs(1)
    wrong = Gemm(**{**{"M": 64, "N": 64, "K": 32, "alpha": 1.25, "beta": 0.3}, **change})  # type: ignore[arg-type]
    assert not compare(fp32_product(wrong, inputs), right.reference(inputs)).ok


def test_reference_is_the_exact_product_of_integers() -> None:
    p = Gemm(M=3, N=4, K=5, lda=7, alpha=2, beta=-1)
    inputs = p.inputs(0)
    a = np.arange(15).reshape(3, 5)
    b = np.arange(20).reshape(5, 4) - 7
    c = np.ones((3, 4))
    inputs["A"][:, :5], inputs["B"][:, :4], inputs["C"][:, :4] = a, b, c
    assert np.array_equal(p.reference(inputs).expected, 2 * (a @ b) - c)


def test_inputs_are_seeded_poisoned_and_padded() -> None:
    p = Gemm(M=4, N=6, K=5, lda=8, ldb=7, ldc=9)
    one, two, other = p.inputs(1), p.inputs(1), p.inputs(2)
    assert all(np.array_equal(one[n], two[n], equal_nan=True) for n in "ABC")
    assert not np.array_equal(one["A"], other["A"], equal_nan=True)
    assert np.isnan(one["A"][:, 5:]).all() and np.isnan(one["B"][:, 6:]).all() and np.isnan(one["C"]).all()
    assert not np.isnan(one["A"][:, :5]).any()
    assert sum(v.nbytes for v in one.values()) == p.buffer_bytes
    assert not np.isnan(Gemm(M=4, N=6, K=5, beta=1).inputs(1)["C"]).any()


def test_work() -> None:
    p = Gemm(M=2, N=3, K=5, beta=1)
    assert (p.flops, p.bytes, p.extents, p.accumulates) == (60, 4 * (10 + 15 + 12), (2, 3), True)
    assert Gemm(M=2, N=3, K=5).bytes == 4 * (10 + 15 + 6)
    assert Gemm.intensity((16, 16), 32) == 4.0 and Gemm.intensity((32, 32), 2 * 1024) == 0.25


def test_square_default_and_label() -> None:
    assert Gemm.from_axes({"N": 256}) == Gemm(M=256, N=256, K=256)
    assert Gemm.from_axes({"M": 3, "N": 4, "K": 5, "lda": 9, "beta": 0.5}).label == "3x4x5 lda=9 beta=0.5"
    assert Gemm.from_axes({"N": 512}).label == "512"


@pytest.mark.parametrize(
    "axes",
    [
        {"N": 0},
        {"N": -4},
        {"M": 2**31},
        {"N": 8, "lda": 7},
        {"N": 8, "ldc": -8},
        {"alpha": 1e39},
        {"beta": 1e99},
    ],
)
def test_sizes_that_make_no_sense(axes: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Gemm.from_axes(axes)


def test_arguments_carry_their_c_types() -> None:
    args = Gemm(M=1, N=2, K=3, alpha=0.1).arguments()
    assert args[:3] == ("A", "B", "C")
    assert [type(a) for a in args[3:]] == [np.int32] * 6 + [np.float32] * 2
    assert type(Copy(N=2**32).arguments()[2]) is np.int64


def test_copy_is_exact() -> None:
    p = Copy(N=1000)
    inputs = p.inputs(1)
    reference = p.reference(inputs)
    assert compare(inputs["src"].copy(), reference).ok
    almost = inputs["src"].copy()
    almost[999] = np.nextafter(almost[999], np.float32(np.inf))
    assert compare(almost, reference).first_bad == (999,)
    assert not compare(inputs["dst"], reference).ok
    assert (p.flops, p.bytes) == (0, 8000)


USER = """
from harness.problems.copy import Copy
class Twice(Copy):
    pass
class Half:
    axes = {}
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gem", "no problem 'gem'"),
        ("no.py:Twice", "not there"),
        ("mine.py:Nope", "has no class"),
        ("mine.py:Half", "lacks accumulates, arguments, bench_axes"),
        ("bad.py:X", "SyntaxError"),
    ],
)
def test_user_problem_refused(tmp_path: Path, kernel_file: Any, name: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(USER)
    (tmp_path / "bad.py").write_text("def")
    with pytest.raises(SpecError, match=message):
        registry.resolve(spec.load(kernel_file(extra=f'problem = "{name}"')))


def test_user_problem(tmp_path: Path, kernel_file: Any) -> None:
    (tmp_path / "mine.py").write_text(USER)
    cls = registry.resolve(spec.load(kernel_file(extra='problem = "mine.py:Twice"')))
    assert cls.__name__ == "Twice" and cls.from_axes({"N": 5}).bytes == 40
