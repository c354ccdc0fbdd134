"""The launch of a product as C queues it again: with other addresses it is what `harness.matmul` launches."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import harness
from fakes import gemm as fake_gemm
from fakes.driver import FakeDriver
from harness.dispatch import arrays
from harness.dispatch.call import gpus
from harness.dispatch.call.again import again
from harness.dispatch.prepared import GemmImage
from harness.driver import Context, Device
from harness.errors import UsageError
from harness.kernels.dtypes import BF16, FP32, DType
from harness.problems.gemm import GEMMS
from harness.problems.verify import compare
from shared.arrays import Array, Typed, fake, gpu, kernels, operands  # noqa: F401  (fixtures)

PLAIN: dict[str, Any] = {"alpha": 1.0, "beta": 0.0, "bias": None, "precision": "ieee", "invariant": False}


def image(*given: Any, **options: Any) -> GemmImage | None:
    found = again(*given, **options)
    bias = [] if options["bias"] is None else [options["bias"]]
    return None if found is None else found.image(addresses(*given, *bias), 0)


def of(*given: Any, **options: Any) -> GemmImage:
    found = image(*given, **{**PLAIN, **options})
    assert found is not None
    return found


def addresses(*given: Any) -> list[int]:
    return [arrays.read("x", x, None, dims=x.host.ndim).address for x in given]


def launch(fake: FakeDriver, made: GemmImage, given: list[int], stream: int) -> None:
    """Launch as launches.h does."""
    memory = ctypes.create_string_buffer(len(made.launch.memory) + 64)
    at = -(-ctypes.addressof(memory) // 64) * 64
    ctypes.memmove(at, made.launch.memory, len(made.launch.memory))
    for offset, operand in made.pointers:
        ctypes.c_uint64.from_address(at + offset).value = given[operand]
    for offset, operand in made.maps:  # the address comes first in the fake's
        ctypes.c_uint64.from_address(at + offset).value = given[operand]
    if made.own is not None:
        assert made.room is not None
        ctypes.c_uint64.from_address(at + made.own).value = made.room[1]
    parameters = (ctypes.c_void_p * len(made.launch.offsets))(
        *(at + offset for offset in made.launch.offsets)
    )
    made.launch.config.hStream = stream
    functions = {int(f.handle): f.handle for f in gpus._gpus[0]._functions.values()}
    function = functions[made.launch.function]
    fake.cuLaunchKernelEx(made.launch.config, function, ctypes.addressof(parameters), 0)


@pytest.mark.parametrize("scalars", [(1.0, 0.0), (0.5, -2.0)])
def test_other_arrays(
    fake: FakeDriver, gpu: Context, monkeypatch: pytest.MonkeyPatch, scalars: tuple[float, float]
) -> None:
    """Nothing but the addresses is new, whatever was launched meanwhile."""
    fake_gemm.without_small_tiles(monkeypatch)
    alpha, beta = scalars
    first, other = operands(gpu), operands(gpu)
    harness.matmul(*first, alpha=alpha, beta=beta)
    wanted = fake.launches[-1]
    harness.matmul(*other, alpha=7.0)
    before, made = other[2].host.copy(), of(*first, alpha=alpha, beta=beta)
    launch(fake, made, addresses(*other), 0x700)
    a, b, c = (x.host for x in other)
    np.testing.assert_allclose(c, alpha * (a @ b) + beta * before, rtol=1e-5)
    found = fake.launches[-1]
    assert (found.stream, found.args[3:]) == (0x700, wanted.args[3:])
    assert (found.grid, found.block, found.shared) == (wanted.grid, wanted.block, wanted.shared)
    assert (found.programmatic, found.cooperative) == (wanted.programmatic, wanted.cooperative)
    assert made.launch.context == int(gpus._gpus[0].context.handle)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=["bf16", "tf32"])
def test_tensor_maps(kernels: FakeDriver, gpu: Context, dtype: DType) -> None:
    """Those of operands that have one; an operand at another address has none, and is another image's."""
    shapes, options = ((24, 16), (16, 40), (24, 40)), {"precision": "tf32"} if dtype is FP32 else {}
    made, images = [], []
    for offset in (0, 0, 1):
        a, b, c = (Typed(gpu, dtype, *shape, offset=offset * (i == 0)) for i, shape in enumerate(shapes))
        harness.matmul(a, b, c, **options)
        made.append((a, b, c))
        images.append(of(a, b, c, **options))
    first, other = images[0], made[1]
    inputs = {"A": other[0].host.copy(), "B": other[1].host.copy(), "C": other[2].host.copy()}
    launch(kernels, first, addresses(*other), 0x700)
    assert compare(
        other[2].host, GEMMS[options.get("precision", dtype.name)](M=24, N=40, K=16).reference(inputs)
    ).ok
    assert {operand for _, operand in first.maps} >= {0, 1} and first.aligned == 0b111
    assert 0 not in {operand for _, operand in images[2].maps} and images[2].aligned == 0b110


def test_a_bias(fake: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu, 5, 7, 3)
    assert [operand for _, operand in of(a, b, c).pointers] == [0, 1, 2]
    bias = Array(gpu, 1, 7)
    bias.shape, bias.host = (7,), bias.host[0]
    assert [operand for _, operand in of(a, b, c, bias=bias).pointers] == [0, 1, 2, 3]


@pytest.mark.slow
def test_another_context_is_current(fake: FakeDriver, gpu: Context) -> None:
    given = operands(gpu)
    with Context(Device.open(1)) as other:
        assert of(*given).launch.context != int(other.handle)
        assert other.is_current


def test_what_has_no_image(fake: FakeDriver, gpu: Context) -> None:
    a, b = Array(gpu, 5, 3), Array(gpu, 3, 5)
    square, across = Array(gpu, 5, 5), Array(gpu, 5, 5)
    across.about["strides"] = across.host.strides[::-1]
    assert image(a, b, square, **PLAIN) is not None
    assert image(a, b, across, **PLAIN) is None
    with pytest.raises(UsageError, match="a's columns"):
        image(a, a, square, **PLAIN)
    divided = operands(gpu, 2049, 2049, 1024)
    before = len(fake.launches)
    harness.matmul(*divided)
    assert len(fake.launches) - before > 1 and image(*divided, **PLAIN) is None


def test_what_is_copied_has_none(kernels: FakeDriver, gpu: Context) -> None:
    a, b, c = (Typed(gpu, BF16, *shape) for shape in ((600, 2001), (2001, 513), (600, 513)))
    harness.matmul(a, b, c)
    assert kernels.copied_rows and image(a, b, c, **PLAIN) is None
