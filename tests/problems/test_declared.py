"""Problems in a few lines: what a declaration makes, and kernels of several outputs judged by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.bench import emulation
from harness.bench.row import FAILED, OK
from harness.errors import SpecError, UsageError
from harness.kernels import spec
from harness.launch.builds import build_all
from harness.problems import ArrayProblem, Reference, checks, problem
from harness.problems.protocol import Struct, outputs, updated
from harness.problems.registry import resolve
from harness.support.cache import Cache

MANY = """\
import numpy as np
from harness.problems import problem

@problem(x="float32[N]", total="inout float32[N]", low="out float32[N]", coeff="const float32[3]",
         N=300, factor=2.5, arguments=["x", ("total", "low", "N"), "factor"])
def many(x, total, coeff, factor):
    return total + factor * x, coeff[0] + coeff[1] * x + coeff[2] * x * x
"""
KERNEL = """\
// Several outputs: one updated in place, one by constants
//
// /// kernel
// entry = "inner::many<float, 128>"
// problem = "many.py:many"
// block = 128
// tile = 128
// ///
namespace inner {
static __constant__ float coeff[3];
struct Out { float* total; float* low; int n; };
template <class T, int B> __global__ void many(const T* x, Out out, float factor)
{
    int i = blockIdx.x * B + threadIdx.x;
    if (i >= out.n) return;
    out.total[i] += factor * x[i];
    out.low[i] = coeff[0] + coeff[1] * x[i] + coeff[2] * x[i] * x[i];
}
}
"""


def rows(folder: Path, cache: Cache, source: str, **options: Any) -> list[Any]:
    (folder / "many.py").write_text(MANY)
    path = folder / "many.cu"
    path.write_text(source)
    kernel = spec.load(path)
    built, _ = build_all([kernel.variant()], ["sm_80"], cache, lambda _: None)
    cls = resolve(kernel)
    return list(
        emulation.rows(built, {cls: list(cls.verify_axes)}, emulation.Options(**options), lambda _: None)
    )


def test_several_outputs_constants_and_structs(tmp_path: Path, cache: Cache) -> None:
    found = rows(tmp_path, cache, KERNEL, repeats=2)
    assert [r.problem.label for r in found] == ["300", "1", "153"]
    assert [r.status for r in found] == [OK] * 3, found[0].error
    assert all(r.repeats.ok for r in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("coeff[0] +", "1.1f * coeff[0] +", "low: 300 of 300 elements wrong"),
        ("out.total[i] +=", "out.total[i] =", "total: 300 of 300"),
        ("if (i >= out.n) return;", "if (i >= out.n - 1) return;", "1 of 300 elements wrong, first at [299]"),
        ("out.low[i] =", "((float*)x)[i] = 0; out.low[i] =", "it overwrote its input x"),
    ],
)
def test_each_output_is_verified(tmp_path: Path, cache: Cache, old: str, new: str, said: str) -> None:
    assert old in KERNEL
    found = rows(tmp_path, cache, KERNEL.replace(old, new))[0]
    assert found.status == FAILED and said in found.error


def test_an_output_that_is_no_input_is_not_read(tmp_path: Path, cache: Cache) -> None:
    found = rows(tmp_path, cache, KERNEL.replace("out.low[i] =", "out.low[i] = 0 * out.low[i] +"))[0]
    assert any(f.variable == "low" for f in found.emulation.findings)


def test_a_constant_that_the_kernel_lacks(tmp_path: Path, cache: Cache) -> None:
    source = KERNEL.replace("coeff[", "weights[")
    found = rows(tmp_path, cache, source)[0]
    assert "no variable 'coeff' in the code" in found.error and "weights" in found.error


# Declarations


def make(**declared: Any) -> Any:
    return problem(**declared)(lambda: 0)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"x": "float33[N]", "N": 1}, "no operand"),
        ({"x": "float32", "N": 1}, "no operand"),
        ({"x": "float32[M]", "N": 1}, "uses M, which is no axis"),
        ({"x": "float32[N/2]", "N": 1}, "not integer arithmetic"),
        ({"x": "float32[N] = full", "N": 1}, "no contents 'full'"),
        ({"x": [1, 2]}, "neither a number nor the text"),
        ({"x": "float32[N]", "N": 1, "arguments": "x y"}, "'y' is no operand or axis"),
        ({"c": "const float32[N]", "N": 1, "arguments": "c"}, "'c' is no operand or axis"),
    ],
)
def test_a_wrong_declaration_says_what_is_wrong(declared: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said.replace("[", r"\[")):
        make(**declared)


def test_a_reference_takes_what_is_declared() -> None:
    with pytest.raises(SpecError, match="takes y, which is neither operand nor axis"):
        problem(x="float32[N]", N=1)(lambda x, y: 0)


def test_operands_of_every_type_and_content() -> None:
    @problem(
        a="float16[N]", b="bf16[N] = ones", c="uint8[2 * N] = 250..255", d="bool[N]", e="out int64[N]",
        f="inout double[N, 2] = arange", g="float[N] = uniform", N=8, eps=np.float64(0.5), k=np.int64(7),
    )  # fmt: skip
    def typed(a: Any, b: Any, f: Any) -> Any:
        assert a.dtype == b.dtype == f.dtype == np.float64 and (b == 1).all()
        return {"e": np.arange(8), "f": f + 1}

    cls: Any = typed
    made = checks.instance(cls, {})
    inputs, reference = checks.data(made, 1)
    assert {n: x.dtype.name for n, x in inputs.items()} == {
        **{"a": "float16", "b": "uint16", "c": "uint8", "d": "bool", "e": "int64", "f": "float64"},
        "g": "float32",
    }
    assert inputs["c"].shape == (16,) and inputs["c"].min() >= 250
    assert (inputs["e"] == np.iinfo(np.int64).max).all() and inputs["f"][1, 1] == 3
    assert outputs(made) == ("e", "f") and updated(made) == {"f"}
    assert made.arguments()[-3:] == (8, 0.5, 7)
    assert [type(a) for a in made.arguments()[-3:]] == [np.int32, np.float64, np.int64]
    assert reference is not None and (reference.bound == 0).all()  # integers are exact
    assert reference.others["f"].bound.max() < 1e-10
    assert made.bytes == made.buffer_bytes + 8 * 16  # f is read and written


def test_defaults_of_a_subclass() -> None:
    class Scale(ArrayProblem):
        axes = {"N": 100, "factor": 2.5}  # noqa: RUF012
        outputs = ("dst",)

        def inputs(self, seed: int) -> Any:
            src = np.random.default_rng(seed).standard_normal(self.N, dtype=np.float32)  # type: ignore
            return {"src": src, "dst": np.full_like(src, np.nan)}

        def reference(self, inputs: Any) -> Any:
            return self.factor * inputs["src"].astype(np.float64)  # type: ignore

    cls: Any = Scale
    made = checks.instance(cls, {"N": 10, "factor": 3.0})
    _, reference = checks.data(made, 1)
    assert made.label == "10 factor=3" and made.extents == (10,) and made.bytes == 80
    assert made.arguments() == ("src", "dst", np.int32(10), np.float32(3))
    assert reference is not None and 0 < reference.bound.max() < 1e-3
    assert Scale.verify_axes == ({}, {"N": 1}, {"N": 53}) and Scale.bench_axes == ({},)
    with pytest.raises(UsageError, match="N=0 is out of range"):
        checks.instance(cls, {"N": 0})


def test_a_reference_of_its_own_bounds_and_one_that_is_nan() -> None:
    @problem(y="out float32[N]", N=4)
    def exact() -> Any:
        return Reference(expected=np.zeros(4), bound=np.zeros(4))

    @problem(y="out float32[N]", N=4)
    def undefined() -> Any:
        return np.full(4, np.nan)

    own: Any = exact
    _, reference = checks.data(checks.instance(own, {}), 1)
    assert reference is not None and reference.bound.max() == 0
    wrong: Any = undefined
    with pytest.raises(SpecError, match="y is NaN somewhere"):
        checks.data(checks.instance(wrong, {}), 1)


def test_structs_lie_as_in_c() -> None:
    inner = Struct({"a": np.int8(1), "b": np.float64(2)})
    outer = Struct({"flag": np.int8(3), "inner": inner, "p": "x", "n": np.int16(4)})
    packed = outer.pack(lambda name: {"x": 0x1122334455667788}[name])
    assert (len(packed), outer.align, outer.operands()) == (40, 8, ["x"])
    assert packed[0] == 3 and packed[8] == 1 and packed[24:32] == bytes.fromhex("8877665544332211")
    assert packed[32:34] == b"\4\0"
