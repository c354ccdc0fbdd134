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
from harness.launch.fresh.zones import ZONE, Fenced
from harness.launch.operands import Operands
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
    real = module.compare_each

    def compare_each(*args: Any) -> Any:
        seen.append("compared")
        return real(*args)

    monkeypatch.setattr(module, "compare_each", compare_each)
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
        memory(operands.buffers[2]["C"])[-1:].view(np.uint32)[0] ^= 1  # right, but other bits
        assert all(v.ok for v in operands.verdicts(stream, sets=3)) and len(compared) == 3
        memory(operands.buffers[1]["C"])[0] += 1
        assert [v.ok for v in operands.verdicts(stream, sets=3)] == [True, False, True]
        assert [v.ok for v in operands.verdicts(stream, sets=1)] == [True]


def test_padding_is_held_against_what_was_there(stream: Stream) -> None:
    with Operands(stream.context, Gemm(M=5, N=6, K=7, ldc=8), stream, seed=1, sets=1) as operands:
        operands.fill_output(stream)
        write(operands, operands.reference.expected.astype(np.float32))
        (good,) = operands.verdicts(stream, sets=1)
        memory(operands.buffers[0]["C"]).reshape(5, 8)[1, 6] = 3
        (stray,) = operands.verdicts(stream, sets=1)
        assert good.ok and not stray.ok and stray.stray == 1


@pytest.mark.parametrize("problem", [Gemm(M=4, N=4, K=4), Gemm(M=3, N=5, K=2, beta=0.5, ldc=7)])
def test_outputs_are_filled_as_the_problem_made_them(stream: Stream, problem: Gemm) -> None:
    with Operands(stream.context, problem, stream, seed=1, sets=2) as operands:
        for copy in operands.buffers:
            memory(copy["C"])[:] = 7
        operands.fill_output(stream)
        for out in operands.outputs(stream):
            assert np.array_equal(out, operands.host["C"], equal_nan=True)


@pytest.mark.parametrize(("which", "name"), [(0, "A"), (1, "B"), (1, "A")])
def test_one_changed_bit_of_an_input_is_seen_and_mended(stream: Stream, which: int, name: str) -> None:
    with Operands(stream.context, Gemm(M=5, N=6, K=7), stream, seed=1, sets=2) as operands:
        assert operands.damaged_inputs(stream) == []
        memory(operands.buffers[which][name]).view(np.uint32)[3] ^= 1
        with operands.twin(stream) as twin:  # memory of its own
            assert twin.damaged_inputs(stream) == []
        assert operands.damaged_inputs(stream) == [name]
        assert operands.damaged_inputs(stream) == []
        assert np.array_equal(memory(operands.buffers[which][name]), operands.host[name].ravel())


def test_a_twin_has_the_same_data_in_memory_of_its_own(stream: Stream) -> None:
    with (
        Operands(stream.context, Gemm(M=5, N=6, K=7), stream, seed=1, sets=2) as operands,
        operands.twin(stream) as twin,
    ):
        assert twin.reference is operands.reference and len(twin.buffers) == 2
        ours, theirs = (
            {buffer.ptr for copy in one.buffers for buffer in copy.values()} for one in (operands, twin)
        )
        assert not ours & theirs
        assert np.array_equal(memory(twin.buffers[1]["A"]), memory(operands.buffers[0]["A"]))


def test_restored_sets_hold_the_known_data(stream: Stream) -> None:
    with Operands(stream.context, Gemm(M=5, N=6, K=7), stream, seed=1, sets=3) as operands:
        for copy in operands.buffers:
            for buffer in copy.values():
                memory(buffer)[:] = 0
        operands.restore(stream)
        for copy in operands.buffers:
            for name, buffer in copy.items():
                assert memory(buffer).tobytes() == operands.host[name].tobytes()
        assert operands.damaged_inputs(stream) == []


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (-1, "byte -1 of B (set 1), before its 168 bytes"),
        (-ZONE, f"byte {-ZONE} of B (set 1), before its 168 bytes"),
        (168, "byte 168 of B (set 1), behind its 168 bytes"),
        (168 + ZONE - 1, f"byte {168 + ZONE - 1} of B (set 1), behind its 168 bytes"),
    ],
)
def test_a_byte_written_outside_of_a_buffer_is_found_and_mended(
    stream: Stream, offset: int, said: str
) -> None:
    with Operands(stream.context, Gemm(M=5, N=6, K=7), stream, seed=1, sets=2) as operands:
        assert operands.stray_writes(stream) == []
        byte = ctypes.c_uint8.from_address(operands.buffers[1]["B"].ptr + offset)
        byte.value ^= 1
        assert operands.stray_writes(stream) == [said]
        assert operands.stray_writes(stream) == []


def test_the_nearest_of_several_stray_bytes_is_named(stream: Stream) -> None:
    with (
        Operands(stream.context, Gemm(M=5, N=6, K=7), stream, seed=1, sets=1) as operands,
        Fenced(stream.context, 64) as scratch,
    ):
        operands.fence({"the workspace": scratch}, stream)
        for offset in (-9, -5, 64 + 7, 64 + 70):
            ctypes.c_uint8.from_address(scratch.ptr + offset).value ^= 0xFF
        assert operands.stray_writes(stream, {"the workspace": scratch}) == [
            "byte -5 of the workspace, before its 64 bytes",
            "byte 71 of the workspace, behind its 64 bytes",
        ]
