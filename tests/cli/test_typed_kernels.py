"""Kernels of each element type through the command line, in the emulator: right, and wrong in ways that only
the type's own bounds see; cuBLAS by type; records that say of which type a row is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fakes import cublaslt as fake_cublaslt
from harness.bench import emulation
from harness.bench.row import FAILED, OK
from harness.cli import main
from harness.kernels import spec
from harness.kernels.dtypes import BF16, DTYPES, FP16
from harness.launch import cublas
from harness.launch.builds import build_all
from harness.problems.gemm import GEMMS
from harness.results import comparison, nvbench, record
from harness.support.cache import Cache
from shared.places import record_file
from shared.sweeps import sweep
from shared.typed_gemm import exact

# WIDE and NARROW convert an element to float and back, READ rounds a product's operand.
BODY = """\
typedef {type} element;
static __device__ float wide(element x) {{ float r; {wide} return r; }}
static __device__ element narrow(float x) {{ element r; {narrow} return r; }}
static __device__ float read(float x) {{ {read} return x; }}
extern "C" __global__ void matmul(const element* A, const element* B, element* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{{
    int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += read(wide(A[row * lda + k])) * read(wide(B[k * ldb + col]));
    element* c = C + row * ldc + col;
    *c = narrow(beta == 0 ? alpha * sum : alpha * sum + beta * wide(*c));
}}
"""
FP16_WIDE = 'asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));'
FP16_NARROW = 'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));'
BF16_NARROW = "unsigned u = __float_as_uint(x); r = (u + 0x7fff + (u >> 16 & 1)) >> 16;"
ROUND = "unsigned u = __float_as_uint(x); x = __uint_as_float((u + 0xfff + (u >> 13 & 1)) & 0xffffe000);"
RIGHT = {
    "bf16": {"type": "unsigned short", "wide": "r = __uint_as_float(x << 16);", "narrow": BF16_NARROW},
    "fp16": {"type": "unsigned short", "wide": FP16_WIDE, "narrow": FP16_NARROW},
    "tf32": {"type": "float", "wide": "r = x;", "narrow": "r = x;", "read": ROUND},
}
WRONG = {
    "bf16": {"narrow": "r = __float_as_uint(x) >> 16;"},  # truncated
    "fp16": {"read": "x = __uint_as_float(__float_as_uint(x) & 0xffff0000);"},  # by way of bf16
    "tf32": {"read": "x = __uint_as_float(__float_as_uint(x) & 0xffffe000);"},  # truncated
}


def source(name: str, **changed: str) -> str:
    return BODY.format(**{"read": "", **RIGHT[name], **changed})


def run(*args: Any) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_verify_check_and_bench_of_each_type(kernel_file: Any, tmp_path: Path, name: str) -> None:
    path = kernel_file(extra=f'dtype = "{name}"', body=source(name))
    size = ["-a", "M=33", "-a", "N=40", "-a", "K=50"]
    verified = run("verify", path, "-d", "emulator", *size)
    assert verified.exit_code == 0 and "ok" in verified.stdout, verified.output
    checked = run("check", path, *size, "-a", "beta=0.5", "-a", "ldc=44")
    assert checked.exit_code == 0 and f"33x40x50 {name}" in checked.stdout, checked.output
    bench = run("bench", path, "-d", "emulator", *size, "--json", tmp_path / "r.json")
    assert bench.exit_code == 0, bench.output
    (row,) = record.load(tmp_path / "r.json")["rows"]
    assert (row["dtype"], row["problem"], row["shape"]) == (name, "gemm", f"33x40x50 {name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_kernel_that_rounds_wrongly_fails(kernel_file: Any, name: str) -> None:
    path = kernel_file(extra=f'dtype = "{name}"', body=source(name, **WRONG[name]))
    done = run("verify", path, "-d", "emulator", "-a", "N=64")
    assert done.exit_code == 1 and "FAILED" in done.stdout, done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", sweep(["integers", "one-hot rows", "one-hot columns"], lambda kind: kind == "one-hot rows")
)
@pytest.mark.parametrize("name", RIGHT)
def test_exact_inputs_through_the_emulator(kernel_file: Any, cache: Cache, name: str, kind: str) -> None:
    """How to run inputs of one's own: a problem is a class, and this one makes others."""
    problem = exact(name, kind)(M=40, N=33, K=20, lda=24, alpha=2.0)
    inputs = problem.inputs(3)
    reference = problem.reference(inputs)
    swapped = source(name).replace("B[k * ldb + col]", "B[k * ldb + (col ^ 1 < N ? col ^ 1 : col)]")
    for body, status in ((source(name), OK), (swapped, FAILED)):
        path = kernel_file(extra=f'dtype = "{name}"', body=body)
        (built,), _ = build_all([spec.load(path).variant()], ["sm_80"], cache, lambda _: None)
        row = emulation.row(built, problem, inputs, reference, emulation.Options())
        assert row.status == status, row.error


@pytest.mark.slow
def test_a_kernel_of_another_type_is_another_problem(kernel_file: Any) -> None:
    """In one call each has its own table, and none is run on the other's data."""
    one = kernel_file("one.cu", extra='dtype = "bf16"', body=source("bf16"))
    other = kernel_file("other.cu")
    done = run("bench", one, other, "-d", "emulator", "-a", "N=32")
    assert done.exit_code == 0
    heads = [line for line in done.stdout.splitlines() if line.startswith("gemm")]
    assert heads and "32 bf16" in done.stdout, done.stdout
    refused = run("bench", one, "--ref", other, "-d", "emulator", "-a", "N=32")
    assert refused.exit_code == 2 and "different problems" in refused.output


def test_blocks_that_write_halves_of_a_word_do_not_race(kernel_file: Any, cache: Cache) -> None:
    """Each element of an odd row belongs to one block; only those that write the same one race."""
    problem = GEMMS["bf16"](M=33, N=33, K=4)
    inputs = problem.inputs(1)
    same = source("bf16").replace(
        "if (row >= M || col >= N) return;", "if (row >= M) return; col = min(col, 30);"
    )
    for body, kinds in ((source("bf16"), set()), (same, {"global race", "WAW hazard"})):
        path = kernel_file(extra='dtype = "bf16"', body=body)
        (built,), _ = build_all([spec.load(path).variant()], ["sm_80"], cache, lambda _: None)
        found, _ = emulation.launch(built, problem, inputs, emulation.Options())
        # What both of them write is the same, so that it is a notice.
        assert not found.findings and {f.kind for f in found.notices} == kinds


# -- what is written into outputs before a launch


@pytest.mark.parametrize("name", DTYPES)
def test_a_spoilt_output_is_finite_and_wrong(name: str) -> None:
    problem = GEMMS[name](M=4, N=4, K=4)
    from harness.launch import operands

    inputs = problem.inputs(1)
    reference = problem.reference(inputs)
    value = operands.wrong_value(inputs["C"].dtype, reference.dtype)
    number = float(reference.decode(np.full(1, value, inputs["C"].dtype))[0])
    assert number == problem.dtype.largest and np.isfinite(number)


# -- cuBLAS


class FakeCublas:
    """cuBLAS as far as the baseline uses it, writing down what it is asked."""

    cublasGetProperty = staticmethod(fake_cublaslt.tell_version)

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def cublasCreate_v2(self, handle: int) -> None:
        fake_cublaslt.put(handle, 0x100)

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, args))


def test_cublas_is_asked_for_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from fakes import driver as fake_driver
    from harness.driver import Context, Device, Stream
    from harness.launch.operands import Operands

    fake_driver.install(monkeypatch)
    library = FakeCublas()
    fake_cublaslt.provide(monkeypatch, blas=library)
    with Context(Device.open()) as context, cublas.CuBlas(context) as baseline, Stream(context) as stream:
        assert baseline.version == "13.1.2"
        for name in ("fp32", "bf16", "fp16", "tf32", "fp32"):
            problem = GEMMS[name](M=3, N=4, K=5)
            with Operands(context, problem, stream, seed=1, sets=1) as operands:
                run = baseline.prepare(operands)
                run(stream)
                run(stream)
    modes = [args[1] for name, args in library.calls if name == "cublasSetMathMode"]
    assert modes == [2, 16, 2]  # pedantic for float32 alone, set when it changes
    told = [args for name, args in library.calls if name == "cublasGemmEx"]
    assert [(a[8], a[11], a[15], a[17], a[18]) for a in told[::2]] == [
        *((14, 14, 14, 68, -1), (2, 2, 2, 68, -1), (0, 0, 0, 77, -1)),
    ]
    assert all(a[3:6] == (4, 3, 5) and (a[9], a[12], a[16]) == (4, 5, 4) for a in told)
    assert sum(name == "cublasSgemm_v2" for name, _ in library.calls) == 4
    assert library.calls[-1] == ("cublasDestroy_v2", (0x100,))
    assert set(cublas.MATH_MODES) == set(DTYPES)


# -- records


def test_one_benchmark_a_type_in_nvbenchs_files() -> None:
    rows = [
        {
            "kernel": "cuBLAS",
            "params": {},
            "axes": {"N": 64},
            "shape": shape,
            "detail": "",
            "index": i,
            **typed,
        }
        for i, (shape, typed) in enumerate(
            [("64", {"dtype": "fp32"}), ("64 bf16", {"dtype": "bf16"}), ("64", {})]
        )
    ]
    found = nvbench.benchmarks(rows, 0, {})
    assert [b["name"] for b in found] == ["cuBLAS", "cuBLAS dtype=bf16"]
    assert nvbench.rows({"benchmarks": found}) == rows  # and rows of old files, without a type, are float32


def test_rows_of_two_types_are_never_compared() -> None:
    def content(shape: str) -> dict[str, Any]:
        row = {"kernel": "cuBLAS", "params": {}, "shape": shape, "seconds": 1.0, "times": [1.0] * 20}
        return {"rows": [row], "meta": {}}

    with pytest.raises(Exception, match="no measured row in common"):
        comparison.compare(content("64"), content("64 bf16"), threshold=0.01)


def test_old_records_still_load() -> None:
    rows = record.load(record_file("h200/bench/ladder"))["rows"]
    assert rows and all(r.get("dtype", "fp32") == "fp32" for r in rows)


def test_storage_of_arrays_is_what_kernels_see() -> None:
    assert BF16.encode(np.ones(1, np.float32)).tobytes() == b"\x80\x3f"
    assert FP16.encode(np.ones(1, np.float32)).tobytes() == b"\x00\x3c"
