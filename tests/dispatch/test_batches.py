"""Batches of `harness.matmul` on a fake GPU that multiplies: what is launched, and where its results go."""

from __future__ import annotations

import ctypes
import itertools
import random
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import harness
from fakes import gemm as fake_gemm
from fakes.driver import image
from harness.dispatch import choose
from harness.dispatch.call import gpus
from harness.dispatch.call.batch import fastest
from harness.driver import Buffer, Context
from harness.errors import UsageError
from harness.kernels.dtypes import DTYPES
from harness.kernels.spec import Variant
from harness.problems.gemm import GEMMS
from shared.arrays import fake, gpu  # noqa: F401  (fixtures)
from shared.sweeps import sweep

Array = NDArray[Any]  # of float32 or float16
STRIDES = (4, 8, 8, 8)  # bytes of the arguments that a batch adds


class View:
    """An array of the fake GPU's memory, with the interface of CUDA arrays."""

    def __init__(self, host: Array) -> None:
        self.host = host

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        at = self.host.ctypes.data, False
        strides = self.host.strides
        return {
            "shape": self.host.shape,
            "typestr": self.host.dtype.str,
            "data": at,
            "strides": strides,
            "version": 3,
        }


@pytest.fixture
def device(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a fake driver whose launches of products, and of batches, multiply."""
    fake.variants, fake.functions = [], {"matmul": None, "transpose": fake_gemm.TRANSPOSE}

    def compiled(variant: Variant, _arch: str) -> SimpleNamespace:
        if variant.entry == "transpose":
            return SimpleNamespace(code=image(fake_gemm.TRANSPOSE), entry=variant.entry)
        fake.variants.append(variant)
        sizes = fake_gemm.sizes(variant)
        if "BATCHED" in variant.params:
            last = len(sizes) - (variant.kernel.workspace is not None)
            sizes = (*sizes[:last], *STRIDES, *sizes[last:])
        return SimpleNamespace(code=image(sizes), entry=variant.entry)

    def run(launch: Any) -> None:
        if launch.function == "transpose":
            fake_gemm.transpose(launch)
            return
        variant = fake.variants[-1]
        given = [x for x in launch.args if len(x) != 128]  # no tensor maps
        a, b, c, m, n, k, lda, ldb, ldc, alpha, beta = struct.unpack("=QQQiiiiiiff", b"".join(given[:11]))
        count, steps = 1, [0, 0, 0]
        if "BATCHED" in variant.params:
            first = 11 + ("DERIVATIVE" in variant.params)
            count, *steps = struct.unpack("=Iqqq", b"".join(given[first : first + 4]))
            rows, columns = variant.tile
            if "small_tiles" in variant.kernel.name:  # a block for each tile
                assert launch.grid[0] == count * -(-m // rows) * -(-n // columns)
        kind = DTYPES[variant.kernel.dtype].storage
        size = np.dtype(kind).itemsize
        for i in range(count):
            x, y, z = (at + size * i * step for at, step in zip((a, b, c), steps, strict=True))
            left = fake_gemm.placed(x, (m, k), (1, lda) if variant.params.get("TRANSA") else (lda, 1), kind)
            right = fake_gemm.placed(y, (k, n), (1, ldb) if variant.params.get("TRANSB") else (ldb, 1), kind)
            out = fake_gemm.placed(z, (m, n), (ldc, 1), kind)
            total = alpha * (left.astype(np.float64) @ right) + (beta * out if beta else 0)
            if "DERIVATIVE" in variant.params:
                (at,) = struct.unpack("=Q", given[11])
                total *= fake_gemm.placed(at + size * i * steps[2], (m, n), (ldc, 1), kind) > 0
            out[:] = total

    monkeypatch.setattr(gpus, "compile_kernel", compiled)
    fake.execute = run
    return fake


def made(
    gpu: Context, keep: list[Buffer], shape: tuple[int, ...], rng: random.Random, kind: str = "float32"
) -> View:
    """Return an array of small integers, whose dimensions lie in any order with packed rows or columns."""
    orders = [o for o in itertools.permutations(range(len(shape))) if o[-1] >= len(shape) - 2]
    order = rng.choice(orders)
    dims = [shape[i] for i in order]
    whole = [*dims[:-1], dims[-1] + rng.choice([0, 3])]
    keep.append(Buffer(gpu, np.dtype(kind).itemsize * int(np.prod(whole))))
    memory = (ctypes.c_char * keep[-1].nbytes).from_address(keep[-1].ptr)
    values = np.frombuffer(memory, kind).reshape(whole)
    values[:] = np.random.default_rng(rng.randrange(9999)).integers(-3, 4, whole)
    return View(values[..., : dims[-1]].transpose(np.argsort(order)))


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("seed", sweep(range(60), lambda seed: seed < 20))
def test_any_batch(device: Any, gpu: Context, seed: int, kind: str) -> None:
    """Broadcast or not, in any layout; the result is numpy's."""
    rng, keep = random.Random(seed), []
    count = rng.choice([2, 5, 7])
    m, n, k = (rng.choice([1, 3, 8, 40]) for _ in range(3))
    left, right = (rng.choice([(count,), (count,), (1,), ()]) for _ in range(2))
    if (count,) not in (left, right):
        left = (count,)
    shapes = (*left, m, k), (*right, k, n), (count, m, n)
    a, b, out = (made(gpu, keep, shape, rng, kind) for shape in shapes)
    wanted = 2 * (a.host @ b.host) + 0.5 * out.host
    harness.matmul(a, b, out, alpha=2, beta=0.5)
    np.testing.assert_array_equal(out.host, wanted.astype(kind))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shared", [False, True])
def test_slopes_of_any_batch(device: Any, gpu: Context, seed: int, shared: bool) -> None:
    """One launch, a single tall product or a launch each: each matrix has its own."""
    rng, keep = random.Random(seed), []
    count, (m, n, k) = rng.choice([2, 5, 64]), (rng.choice([3, 8, 40]) for _ in range(3))
    a = made(gpu, keep, (count, m, k), rng)
    b = made(gpu, keep, (k, n) if shared else (count, k, n), rng)
    order = rng.randrange(99)
    out, at = (made(gpu, keep, (count, m, n), random.Random(order)) for _ in range(2))
    at.host[:] = np.random.default_rng(seed).integers(-3, 4, at.host.shape)
    harness.matmul(a, b, out, activation="relu", derivative_at=at)
    np.testing.assert_array_equal(out.host, (a.host @ b.host) * (at.host > 0))


def arrays(gpu: Context, *shapes: tuple[int, ...]) -> tuple[list[Buffer], list[View]]:
    """Return packed arrays of small integers, and their memory."""
    keep, rng, found = [], np.random.default_rng(1), []
    for shape in shapes:
        keep.append(Buffer(gpu, 4 * int(np.prod(shape))))
        memory = (ctypes.c_float * int(np.prod(shape))).from_address(keep[-1].ptr)
        found.append(View(np.frombuffer(memory, np.float32).reshape(shape)))
        found[-1].host[:] = rng.integers(-3, 4, shape)
    return keep, found


@pytest.mark.parametrize(
    ("a", "b", "out", "launches", "batched"),
    [
        ((64, 40, 24), (64, 24, 40), (64, 40, 40), 1, True),
        ((4, 16, 40, 24), (4, 16, 24, 40), (4, 16, 40, 40), 1, True),  # dimensions that merge
        ((64, 40, 24), (24, 40), (64, 40, 40), 1, False),  # one tall product
        ((40, 24), (1, 24, 40), (1, 40, 40), 1, False),
    ],
)
def test_one_launch(
    device: Any,
    gpu: Context,
    a: tuple[int, ...],
    b: tuple[int, ...],
    out: tuple[int, ...],
    launches: int,
    batched: bool,
) -> None:
    _keep, (left, right, result) = arrays(gpu, a, b, out)
    before = len(device.launches)
    harness.matmul(left, right, result)
    np.testing.assert_array_equal(result.host, left.host @ right.host)
    assert len(device.launches) - before == launches
    assert ("BATCHED" in device.variants[-1].params) is batched


@pytest.mark.parametrize("rows", [5, 300])
def test_invariant_products_side_by_side_keep_their_columns(
    device: Any, gpu: Context, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """A row of one of them must not be added up as one of the N * batch columns of all."""
    seen: list[Any] = []
    run = gpus.Gpu.run

    def spy(self: gpus.Gpu, product: Any, *others: Any) -> None:
        seen.append((product[0].rows, product[1].columns, others[3][2]))
        run(self, product, *others)

    monkeypatch.setattr(gpus.Gpu, "run", spy)
    _keep, (left, right, result) = arrays(gpu, (rows, 24), (8, 24, 1), (8, rows, 1))
    harness.matmul(left, right, result, invariant=True)
    harness.matmul(left, right, result)
    np.testing.assert_array_equal(result.host, left.host @ right.host)
    assert seen[0] in [(rows, 1, "M"), (1, rows, "N")]
    assert seen[1] == (8, rows, "")  # freely, all are one product


def test_what_cannot_be_a_batch(device: Any, gpu: Context) -> None:
    _keep, (a, b, out) = arrays(gpu, (6, 4, 4), (6, 4, 4), (6, 4, 4))

    def refused(words: str, x: Any, y: Any, z: Any) -> None:
        before = len(device.launches), out.host.copy()
        with pytest.raises(UsageError, match=words):
            harness.matmul(x, y, z)
        assert len(device.launches) == before[0] and np.array_equal(out.host, before[1])

    refused("5,.* matrices and b .6,", View(a.host[:5]), b, out)
    refused("out is 6 x 4 x 4, not 3 x 4 x 4", View(a.host[:3]), View(b.host[:3]), out)
    refused("out's matrices overlap", a, b, View(np.broadcast_to(out.host[:1], (6, 4, 4))))
    refused("out overlaps a", out, b, out)
    refused("out overlaps b", View(a.host[:2]), View(out.host[1:3]), View(out.host[:2]))
    apart = View(out.host.reshape(2, 3, 4, 4)[:, :2])
    refused(
        "not evenly apart", View(a.host[:4].reshape(2, 2, 4, 4)), View(b.host[:4].reshape(2, 2, 4, 4)), apart
    )


def test_many_small_products_are_one_launch() -> None:
    """Large ones, each of which fills the GPU, have a launch each. Types of parts take small tiles, too."""
    h200: Any = {"sms": 132, "arch": "sm_90a"}
    found = fastest(64, 128, 128, 64, **h200).variant
    assert found is not None and found.params["BATCHED"] == 1
    for dtype in ("bf16", "fp16"):
        small = fastest(64, 128, 128, 64, **h200, dtype=dtype).variant
        assert small is not None and small.kernel.dtype == dtype
    assert fastest(4, 4096, 4096, 4096, **h200).variant is None
    for dtype in ("3xtf32", "fp16x3", "bf16x6"):
        small = fastest(64, 128, 128, 64, **h200, dtype=dtype).variant
        assert small is not None and small.kernel.dtype in ("fp32", "bf16x6")


def test_where_rows_begin_is_that_of_all_matrices() -> None:
    """The first may begin well, and the pitch of rows be a multiple of 32 bytes."""
    problem = GEMMS["bf16"](M=64, N=64, K=64)
    steps = [(0, 0), (4096, 4096), (4100, 4096), (4096, 4104)]
    found = [choose.about(problem, "", each)["pitches"] for each in steps]
    assert [x.unmapped for x in found] == ["", "", "A", ""]
    assert [x.straddled for x in found] == ["", "", "", "B"]
