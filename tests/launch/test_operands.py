"""Operands on a fake GPU: which outputs are verified anew, and which inputs were overwritten."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fakes import driver as fake_driver
from harness.driver import Buffer, Context, Device, Stream
from harness.launch import operands as module
from harness.launch.operands import Operands, Twin
from harness.problems.gemm import Gemm


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    fake_driver.install(monkeypatch)
    with Context(Device.open()) as context, Stream(context) as stream:
        yield stream


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each comparison by element."""
    seen: list[str] = []
    real = module.compare

    def compare(*args: Any) -> Any:
        seen.append("compared")
        return real(*args)

    monkeypatch.setattr(module, "compare", compare)
    return seen


def memory(buffer: Buffer) -> Any:
    content = (ctypes.c_float * (buffer.nbytes // 4)).from_address(buffer.ptr)
    return np.frombuffer(content, np.float32)


def write(operands: Operands, content: Any) -> None:
    for copy in operands.buffers:
        memory(copy["C"]).reshape(operands.host["C"].shape)[:, : content.shape[1]] = content


def test_the_same_bits_are_verified_once_and_others_anew(stream: Stream, compared: list[str]) -> None:
    problem = Gemm(M=5, N=6, K=7)
    with Operands(stream.context, problem, stream, seed=1, sets=3) as operands:
        right = operands.reference.expected.astype(np.float32)
        operands.fill_output(stream)
        assert not any(v.ok for v in operands.verdicts(stream, sets=3)) and len(compared) == 1
        write(operands, right)
        assert [v.ok for v in operands.verdicts(stream, sets=3)] == [True] * 3 and len(compared) == 2
        operands.fill_output(stream, spoilt=True)
        write(operands, right)
        with Twin(operands, stream) as twin:
            write(twin, right)
            assert all(v.ok for v in twin.verdicts(stream, sets=3)) and len(compared) == 2
        assert all(v.ok for v in operands.verdicts(stream, sets=3, spoilt=True)) and len(compared) == 2
        memory(operands.buffers[2]["C"])[-1:].view(np.uint32)[0] ^= 1  # right, but other bits
        assert all(v.ok for v in operands.verdicts(stream, sets=3)) and len(compared) == 3
        memory(operands.buffers[1]["C"])[0] += 1
        assert [v.ok for v in operands.verdicts(stream, sets=3)] == [True, False, True]
        assert [v.ok for v in operands.verdicts(stream, sets=1)] == [True]


def test_padding_is_held_against_what_was_there(stream: Stream, compared: list[str]) -> None:
    """Equal bits are right behind one filling and wrong behind the other."""
    with Operands(stream.context, Gemm(M=5, N=6, K=7, ldc=8), stream, seed=1, sets=1) as operands:
        operands.fill_output(stream)
        write(operands, operands.reference.expected.astype(np.float32))
        (good,), (stray,) = (list(operands.verdicts(stream, sets=1, spoilt=s)) for s in (False, True))
        assert good.ok and not stray.ok and stray.stray == 10
        operands.fill_output(stream, spoilt=True)
        write(operands, operands.reference.expected.astype(np.float32))
        assert [v.ok for s in (False, True) for v in operands.verdicts(stream, sets=1, spoilt=s)] == [
            False,
            True,
        ]


@pytest.mark.parametrize("problem", [Gemm(M=4, N=4, K=4), Gemm(M=3, N=5, K=2, beta=0.5, ldc=7)])
def test_outputs_are_filled_as_the_problem_made_them_or_spoilt(stream: Stream, problem: Gemm) -> None:
    with Operands(stream.context, problem, stream, seed=1, sets=2) as operands:
        for copy in operands.buffers:
            memory(copy["C"])[:] = 7
        operands.fill_output(stream)
        assert all(
            np.array_equal(out, operands.host["C"], equal_nan=True) for out in operands.outputs(stream)
        )
        operands.fill_output(stream, spoilt=True)
        assert all((out == np.finfo(np.float32).max).all() for out in operands.outputs(stream))


@pytest.mark.parametrize(("which", "name"), [(0, "A"), (1, "B"), (1, "A")])
def test_one_changed_bit_of_an_input_is_seen_and_mended(stream: Stream, which: int, name: str) -> None:
    with Operands(stream.context, Gemm(M=5, N=6, K=7), stream, seed=1, sets=2) as operands:
        assert operands.damaged_inputs(stream) == []
        memory(operands.buffers[which][name]).view(np.uint32)[3] ^= 1
        with Twin(operands, stream) as twin:
            assert twin.damaged_inputs(stream) == [name]
        assert operands.damaged_inputs(stream) == []
        assert np.array_equal(memory(operands.buffers[which][name]), operands.host[name].ravel())
