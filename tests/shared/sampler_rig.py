"""A fake GPU on which benchmarks/shapes.py runs, with libraries that can be captured in graphs."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes import gemm as fake_gemm
from fakes.cublaslt import TYPES, Algorithm, FakeCublas, FakeCublasLt, TimedDriver, install, multiply, provide
from fakes.driver import image
from harness.kernels.spec import LAYOUT
from harness.problems.gemm import GEMMS
from harness.results import record
from shared.places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "scripts"))

import shapes

from sampler import contest, pool
from sampler.draws import Draw, draws

LAYOUTS = ("NN", "NT", "TN", "TT")  # and the names of our kernels on the fake GPU, by what they read


class Cublas(FakeCublas):
    """With GemmEx, and products that wait for the graph that they are captured in. Each takes 2 ms."""

    stream = 0

    def cublasSetStream_v2(self, _: int, stream: int) -> None:
        self.stream = stream

    def cublasSgemm_v2(self, *args: int) -> None:
        self.driver._queue(self.stream, lambda: FakeCublas.cublasSgemm_v2(self, *args))

    def cublasGemmEx(self, *args: int) -> None:
        _, of_a, of_b, m, n, k, alpha, a, kind, lda, b, _, ldb, beta, c, _, ldc, _, _ = args
        scalars = [ctypes.c_float.from_address(at).value for at in (alpha, beta)]
        left, right = (k, m) if of_a else (m, k), (n, k) if of_b else (k, n)

        def run() -> None:
            given = (a, (kind, *left, lda)), (b, (kind, *right, ldb)), (c, (kind, m, n, ldc))
            multiply(scalars, *given, transposed=(of_a, of_b))
            self.driver.clock += 2

        self.driver._queue(self.stream, run)


class CublasLt(FakeCublasLt):
    def cublasLtMatmul(self, *args: int) -> None:
        held = self.live.copy()  # a graph outlives the descriptors of its launches

        def run() -> None:
            now, self.live = self.live, held
            try:
                FakeCublasLt.cublasLtMatmul(self, *args)
            finally:
                self.live = now

        self.driver._queue(args[-1], run)


class Rig:
    """The fake GPU and libraries; `product` computes what our launches do, and `draw` is the one at hand."""

    def __init__(self, driver: TimedDriver) -> None:
        self.driver, self.draw = driver, draws("fp32", 1, 1)[0]
        self.lt = CublasLt(driver, [Algorithm(1.8, configuration=(("ID", 66), ("TILE_ID", 23)))])
        self.product = self.right
        names = ("compare", "transpose", *LAYOUTS)
        driver.functions = dict.fromkeys(names)
        driver.device_attributes["CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"] = 1 << 14
        driver.execute = self.execute

    def execute(self, launch: SimpleNamespace) -> None:
        if launch.function == "compare":
            compare(launch)
        elif launch.function == "transpose":
            fake_gemm.transpose(launch, self.draw.problem.dtype.storage)
        else:
            self.product(launch)

    def operands(self, launch: SimpleNamespace) -> tuple[Any, Any, Any]:
        """Return op(A) and op(B), and C with its padding."""
        a, b, c, m, n, k, lda, ldb, ldc, _, _ = fake_gemm.plain(launch)
        dtype = self.draw.problem.dtype
        of_a, of_b = (x == "T" for x in launch.function)
        left = strided(a, dtype, *((k, m) if of_a else (m, k)), lda)
        right = strided(b, dtype, *((n, k) if of_b else (k, n)), ldb)
        out = strided(c, dtype, m, n, ldc)
        padded = np.lib.stride_tricks.as_strided(out, (m, ldc), out.strides)
        return left.T if of_a else left, right.T if of_b else right, padded

    def right(self, launch: SimpleNamespace) -> None:
        a, b, c = self.operands(launch)
        dtype, n = self.draw.problem.dtype, b.shape[1]
        c[:, :n] = dtype.encode((dtype.decode(a) @ dtype.decode(b)).astype(np.float32))

    def one_wrong(self, launch: SimpleNamespace) -> None:
        self.right(launch)
        self.operands(launch)[2][-1, self.draw.problem.N - 1] = 7

    def imprecise(self, launch: SimpleNamespace) -> None:
        """Write a sum of lower precision: each element is within its own bound."""
        self.right(launch)
        self.operands(launch)[2][:, : self.draw.problem.N] += np.float32(1e-4)

    def into_padding(self, launch: SimpleNamespace) -> None:
        self.right(launch)
        self.operands(launch)[2][0, -1] = 0

    def nothing(self, launch: SimpleNamespace) -> None:
        pass


def strided(address: int, dtype: Any, rows: int, columns: int, ld: int) -> Any:
    size = dtype.itemsize
    data = (ctypes.c_char * (size * rows * ld)).from_address(address)
    flat = np.frombuffer(data, dtype.storage)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (ld * size, size))


def compare(launch: SimpleNamespace) -> None:
    """The kernel of compare.cu in NumPy."""
    forms = ("Q", "Q", "Q", "Q", "Q", "Q", "Q", "d", "i", "i", "I")
    values = [np.frombuffer(x, np.dtype(f))[0] for f, x in zip(forms, launch.args, strict=True)]
    mine, theirs, stride, found, M, N, ld = map(int, values[:7])
    bound, precision, emin, kind = values[7:]
    dtype = TYPES[{0: 0, 1: 14, 2: 2}[int(kind)]]
    out = np.frombuffer((ctypes.c_char * pool._FOUND.itemsize).from_address(found), pool._FOUND)

    def matrix(at: int) -> Any:
        memory = (ctypes.c_char * (M * ld * dtype.itemsize)).from_address(at)
        return np.frombuffer(memory, dtype.storage).reshape(M, ld)

    for number in range(launch.grid[1]):
        x, y = matrix(mine + number * stride), matrix(theirs + number * stride)
        blank = np.frombuffer(b"\xff" * dtype.itemsize, x.dtype)[0]
        word = f"u{dtype.itemsize}"
        out["stray"] += np.uint64(np.count_nonzero(x[:, N:].view(word) != blank.view(word)))
        x, y = (dtype.decode(z[:, :N]) for z in (x, y))
        apart, half = np.abs(x - y), np.zeros_like(x)
        if precision:
            _, exponent = np.frexp(np.maximum(np.fmax(abs(x), abs(y)), 2.0**emin))
            half = np.ldexp(1.0, exponent - 1 - precision)
        share = apart / (bound + 2 * half)
        wrong = ~(share <= 1)
        out["bad"] += np.uint64(np.count_nonzero(wrong))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            out["first"] = max(int(out["first"][0]), ~int(row * ld + column) & (2**64 - 1))
        worst = np.float64(np.max(np.where(np.isnan(share), np.inf, share)))
        out["worst"] = max(int(out["worst"][0]), int(worst.view("u8")))
        out["differences"] += np.sum(apart**2)
        out["outputs"] += np.sum(y**2)
        out["halves"] += np.sum(half**2)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    driver = install(monkeypatch)
    rig = Rig(driver)
    provide(monkeypatch, blas=Cublas(driver), lt=rig.lt)

    def compile_kernel(variant: Any, arch: str) -> Any:
        layout = "".join("NT"[variant.params.get(name, 0)] for name in LAYOUT)
        return SimpleNamespace(code=image(fake_gemm.sizes(variant)), entry=layout, variant=variant, arch=arch)

    monkeypatch.setattr(shapes, "compile_kernel", compile_kernel)
    measured = contest.Arena.measured

    def noted(self: Any, entry: Any, cubins: Any) -> Any:
        rig.draw = entry.draw
        return measured(self, entry, cubins)

    monkeypatch.setattr(contest.Arena, "measured", noted)
    yield rig
    if not driver.sticky:
        assert not [kind for kind, _ in driver.live if kind != "context"], "nothing is left behind"
        assert not rig.lt.live


def some(dtype: str, *axes: dict[str, int]) -> list[Draw]:
    return [Draw(index=i, problem=GEMMS[dtype](**one)) for i, one in enumerate(axes)]


SMALL = {"M": 24, "N": 40, "K": 32}
PADDED = {"M": 20, "N": 17, "K": 33, "lda": 40, "ldb": 21, "ldc": 19}


def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: dict[str, list[Draw]], *options: str
) -> tuple[int, list[dict[str, Any]]]:
    monkeypatch.setattr(shapes, "draws", lambda dtype, *_, **__: chosen[dtype])
    path = tmp_path / "r.json"
    count = str(max(map(len, chosen.values())))
    memory = ("--memory", str(2**20 / 2**30))
    code = shapes.main(["--dtype", *chosen, "--draws", count, "--json", str(path), *memory, *options])
    return code, record.load(path)["rows"]
