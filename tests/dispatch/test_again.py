"""A product that is queued again: launched as `harness.matmul` launches it, and nothing else is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import harness
from fakes import gemm as fake_gemm
from fakes.driver import FakeDriver
from harness.dispatch import arrays
from harness.dispatch.call.again import Again, again
from harness.driver import Context, Device
from harness.errors import UsageError
from shared.arrays import Array, fake, gpu, kernels, operands  # noqa: F401  (fixtures)

PLAIN: dict[str, Any] = {"alpha": 1.0, "beta": 0.0, "bias": None, "precision": "ieee", "invariant": False}


def addresses(*given: Any) -> list[int]:
    return [arrays.read("x", x, None, dims=x.host.ndim).address for x in given]


def known(*given: Any, **options: Any) -> Again:
    found = again(*given, **{**PLAIN, **options})
    assert found is not None
    return found


@pytest.mark.parametrize("scalars", [(1.0, 0.0), (0.5, -2.0)])
def test_other_arrays(
    fake: FakeDriver, gpu: Context, monkeypatch: pytest.MonkeyPatch, scalars: tuple[float, float]
) -> None:
    fake_gemm.without_small_tiles(monkeypatch)  # a workspace takes further calls
    alpha, beta = scalars
    first, other = operands(gpu), operands(gpu)
    harness.matmul(*first, alpha=alpha, beta=beta, stream=0x700)
    wanted = fake.launches[-1]
    queue, before = known(*first, alpha=alpha, beta=beta), other[2].host.copy()
    given = addresses(*other)
    fake.log.clear()
    queue(given, 0x700)
    assert fake.names() == ["cuLaunchKernelEx"]  # nothing was read of the arrays
    a, b, c = (x.host for x in other)
    np.testing.assert_allclose(c, alpha * (a @ b) + beta * before, rtol=1e-5)
    found = fake.launches[-1]
    assert (found.stream, found.args[3:]) == (wanted.stream, wanted.args[3:])
    assert found.args[:3] != wanted.args[:3]


def test_another_context_is_current(fake: FakeDriver, gpu: Context) -> None:
    """The launch is in the primary context, and the other one is current afterwards."""
    given = operands(gpu)
    queue = known(*given)
    at = addresses(*given)
    with Context(Device.open(1)) as other:
        queue(at, 0x700)
        assert other.is_current
    np.testing.assert_allclose(given[2].host, given[0].host @ given[1].host, rtol=1e-5)


def test_what_is_not_queued_again(fake: FakeDriver, gpu: Context) -> None:
    a, b = Array(gpu, 5, 3), Array(gpu, 3, 5)
    square, across = Array(gpu, 5, 5), Array(gpu, 5, 5)
    across.about["strides"] = across.host.strides[::-1]
    assert again(a, b, square, **PLAIN) is not None
    assert again(a, b, across, **PLAIN) is None
    with pytest.raises(UsageError, match="a's columns"):
        again(a, a, square, **PLAIN)


def test_an_activation(kernels: FakeDriver, gpu: Context) -> None:
    given = operands(gpu)
    known(*given, activation="relu")(addresses(*given), 0x700)
    a, b, c = (x.host for x in given)
    assert (a @ b < 0).any()
    np.testing.assert_allclose(c, np.maximum(a @ b, 0), rtol=1e-5)
