"""`harness.matmul` on the fake driver: what it reads, refuses, chooses, keeps and queues."""

from __future__ import annotations

import struct
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import harness
from fakes import gemm as fake_gemm
from fakes.driver import FakeDriver
from harness.dispatch import arrays
from harness.dispatch.call import gpus
from harness.dispatch.model.traffic import Pitches
from harness.driver import Buffer, Context, Device, Stream
from harness.errors import UsageError
from shared.arrays import Array, Dlpack, fake, gpu, operands, torch  # noqa: F401  (fixtures)


def test_a_product(fake: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu)
    before = c.host.copy()
    assert harness.matmul(a, b, c) is c
    np.testing.assert_allclose(c.host, a.host @ b.host, rtol=1e-6)
    assert not np.array_equal(c.host, before)
    old = c.host.copy()
    harness.matmul(a, b, c, alpha=0.5, beta=-2)
    np.testing.assert_allclose(c.host, 0.5 * (a.host @ b.host) - 2 * old, rtol=1e-5)


def test_rows_may_be_far_apart(fake: FakeDriver, gpu: Context) -> None:
    a, b, c = Array(gpu, 5, 3, ld=11), Array(gpu, 3, 7, ld=8), Array(gpu, 5, 7, ld=9)
    padding = c.whole[:, 7:].copy()
    harness.matmul(a, b, c)
    assert struct.unpack("=QQQiiiiii", b"".join(fake.launches[-1].args[:9]))[3:] == (5, 7, 3, 11, 8, 9)
    np.testing.assert_allclose(c.host, a.host @ b.host, rtol=1e-6)
    assert np.array_equal(c.whole[:, 7:], padding)


def test_a_shape_is_prepared_once(fake: FakeDriver, gpu: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated call is one launch and nothing else: no look-up, no module, no attribute."""
    fake_gemm.without_small_tiles(monkeypatch)  # a workspace takes further calls
    a, b, c = operands(gpu)
    harness.matmul(a, b, c)
    assert len(fake.compiled) == 1
    fake.log.clear()
    x, y, z = operands(gpu)
    fake.log.clear()
    harness.matmul(x, y, z, alpha=3)
    assert fake.names() == ["cuPointerGetAttribute"] * 3 + ["cuLaunchKernelEx"]
    np.testing.assert_allclose(z.host, 3 * (x.host @ y.host), rtol=1e-6)
    for M in range(6, 14):
        harness.matmul(*operands(gpu, M=M))
    kernels = len(fake.compiled)
    assert kernels < 5  # of nine shapes: another shape may have the same kernel, which is loaded once
    assert fake.names().count("cuModuleLoadData") == kernels - 1
    harness.matmul(*operands(gpu, 300, 300, 300))
    assert len(fake.compiled) == kernels + 1
    assert fake.names().count("cuModuleLoadData") == kernels


def test_the_choice_is_what_is_compiled_and_launched(fake: FakeDriver, gpu: Context) -> None:
    harness.matmul(*operands(gpu, 300, 500, 260))
    variant = harness.choose(
        300, 500, 260, sms=132, arch="sm_90a", gpu="Fake GPU", pitches=Pitches(straddled="AB")
    )
    assert fake.compiled == [f"{variant.label} sm_90a"]
    launched = fake.launches[-1]
    assert (launched.block, launched.shared) == (variant.block, variant.shared)
    tiles = -(-500 // variant.tile[1]), -(-300 // variant.tile[0]), 1
    assert launched.grid == variant.grid(tiles, 132, {"M": 300, "N": 500, "K": 260})


def test_plans_are_bounded(fake: FakeDriver, gpu: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_MOST_PLANS", 5)
    for m in range(1, 10):
        harness.matmul(*operands(gpu, M=m))
        kept = [shape[0] for shape in gpus._gpus[0]._plans]
        assert kept == list(range(max(1, m - 4), m + 1))


def test_threads_share_a_shape(fake: FakeDriver, gpu: Context) -> None:
    """Each launch has its own addresses, however many threads write them."""
    sets = [operands(gpu, 4, 4, 4) for _ in range(8)]
    go = threading.Barrier(len(sets))
    compiled_before = len(fake.compiled)

    def work(mine: tuple[Array, Array, Array]) -> None:
        go.wait()
        for _ in range(50):
            harness.matmul(*mine)

    threads = [threading.Thread(target=work, args=(s,)) for s in sets]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(fake.launches) == 400
    assert len(fake.compiled) == compiled_before + 1
    for a, b, c in sets:
        np.testing.assert_allclose(c.host, a.host @ b.host, rtol=1e-6)


# Streams


def order(fake: FakeDriver) -> list[tuple[Any, ...]]:
    """Records, waits and launches, in order, each with its stream."""
    found: list[tuple[Any, ...]] = []
    for name, args in fake.log:
        if name == "cuEventRecord":
            found.append(("record", int(args[1])))
        elif name == "cuStreamWaitEvent":
            found.append(("wait", int(args[0])))
        elif name == "cuLaunchKernelEx":
            found.append(("launch", int(args[0].hStream)))
    return found


def test_without_a_stream_it_is_that_of_a(fake: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu)
    harness.matmul(a, b, c)
    for x in (a, b, c):
        x.about["stream"] = 0x700
    harness.matmul(a, b, c)
    assert order(fake) == [("launch", 1), ("launch", 0x700)]  # none named: the legacy default stream


def test_arrays_ready_elsewhere_are_waited_for_and_wait(fake: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu)
    a.about["stream"], b.about["stream"], c.about["stream"] = 0x700, 0x800, 0x700
    harness.matmul(a, b, c)
    assert order(fake) == [
        ("record", 0x800), ("wait", 0x700), ("launch", 0x700), ("record", 0x700), ("wait", 0x800),
    ]  # fmt: skip
    assert ("event",) not in {key[:1] for key in fake.live}


@pytest.mark.parametrize("kind", ["harness", "address", "torch", "cupy", "protocol", "property"])
def test_a_stream_by_any_name(fake: FakeDriver, gpu: Context, kind: str) -> None:
    a, b, c = operands(gpu)
    with Stream(gpu) as stream:
        address = int(stream.handle)
        given: Any = {
            "harness": stream,
            "address": address,
            "torch": SimpleNamespace(cuda_stream=address),
            "cupy": SimpleNamespace(ptr=address),
            "protocol": SimpleNamespace(__cuda_stream__=lambda: (0, address)),
            "property": SimpleNamespace(__cuda_stream__=(0, address)),
        }[kind]
        harness.matmul(a, b, c, stream=given)
        assert order(fake) == [("launch", address)]
        a.about["stream"] = 0x900
        fake.log.clear()
        harness.matmul(a, b, c, stream=given)
        assert order(fake) == [
            ("record", 0x900), ("wait", address), ("launch", address), ("record", address), ("wait", 0x900),
        ]  # fmt: skip


@pytest.mark.parametrize("stream", [True, "main", object(), -1])
def test_what_is_no_stream(fake: FakeDriver, gpu: Context, stream: Any) -> None:
    with pytest.raises(UsageError, match="stream"):
        harness.matmul(*operands(gpu), stream=stream)
    assert fake.launches == []


def test_a_buffer_needs_a_stream(fake: FakeDriver, gpu: Context) -> None:
    a, b, c = (Buffer(gpu, 64).array("float32", (4, 4)) for _ in range(3))
    with pytest.raises(UsageError, match="belongs to no stream"):
        harness.matmul(a, b, c)
    with Stream(gpu) as stream:
        assert harness.matmul(a, b, c, stream=stream) is c
    with pytest.raises(UsageError, match="does not fit"):
        Buffer(gpu, 63).array("float32", (4, 4))


# Contexts


def test_the_current_context_stays(fake: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu)
    harness.matmul(a, b, c)
    stack = list(fake.stack)
    fake.log.clear()
    harness.matmul(a, b, c)  # entered already, by whomever: nothing is pushed
    assert "cuCtxPushCurrent" not in [name for name, _ in fake.log]
    seen: list[Any] = []

    def elsewhere() -> None:
        harness.matmul(a, b, c)
        seen.append(list(fake.stack))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [[]] and fake.stack == stack
    assert len(fake.launches) == 3


def test_a_context_of_its_own_is_refused(fake: FakeDriver, gpu: Context) -> None:
    with Context(Device.open(0), primary=False) as own:
        a, b, c = operands(own)
        with pytest.raises(UsageError, match="not the GPU's primary"):
            harness.matmul(a, b, c)
        with Stream(own) as stream, pytest.raises(UsageError, match="context of its own"):
            harness.matmul(a, b, c, stream=stream)
    assert fake.launches == []


def test_it_runs_on_the_gpu_of_the_arrays(fake: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu)
    for x in (a, b, c):
        fake.memory_device[x.buffer.ptr] = 1
    current: list[int] = []
    fake.execute = lambda launch: current.append(fake.stack[-1])
    harness.matmul(a, b, c)
    assert (current, fake.stack[-1]) == ([0x11], 0x10)
    fake.memory_device[b.buffer.ptr] = 0
    with pytest.raises(UsageError, match="on GPUs 1, 0 and 1"):
        harness.matmul(a, b, c)
    with Stream(gpu) as stream, pytest.raises(UsageError, match="the stream is of GPU 0, a of GPU 1"):
        fake.memory_device[b.buffer.ptr] = 1
        harness.matmul(a, b, c, stream=stream)


# What is refused


def bad(what: str, gpu: Context) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:  # noqa: PLR0912
    a, b, c = operands(gpu)
    more: dict[str, Any] = {}
    match what:
        case "a's columns must be as many":
            b = Array(gpu, 4, 7)
        case "out is 5 x 8, not 5 x 7":
            c = Array(gpu, 5, 8)
        case "b is of type <f8":
            b.about["typestr"] = "<f8"
        case "out is 5 x 7, not 2 x 5 x 7":
            a.about |= {"shape": (2, 5, 3), "strides": None}
        case "b has 2 elements from row to row and 3 from column to column":
            b.about["strides"] = (8, 12)
        case "b has 0 elements from row to row":
            b.about["strides"] = (0, 4)
        case "a has strides of .* bytes, no multiples":
            a.about["strides"] = (14, 4)
        case "a is 5 x 0":
            a.about |= {"shape": (5, 0), "strides": None}
        case "out is read-only":
            c.about["data"] = (c.buffer.ptr, True)
        case "a has a mask":
            a.about["mask"] = b
        case "b names stream 0":
            b.about["stream"] = 0
        case "out overlaps a":
            a, b = Array(gpu, 5, 5), Array(gpu, 5, 5)
            c = a
        case "out overlaps b":
            b, c = Array(gpu, 3, 5), Array(gpu, 5, 5)
            b.about["data"] = (c.buffer.ptr + 40, False)  # all of it within out, beside which may lie a
        case "is not the address of device memory":
            a.about["data"] = (8, False)
        case "a is not in the memory of a CUDA GPU":
            return (np.zeros((5, 3), np.float32), b, c), more
        case "b is a NoneType":
            return (a, None, c), more
        case "beta=1 without out":
            return (a, b, None), {"beta": 1}
        case "how to make a Array":
            return (a, b, None), more
        case "alpha=inf is not a finite":
            more = {"alpha": float("inf")}
        case "beta=nan is not a finite":
            more = {"beta": float("nan")}
        case "alpha=1e.39 is not a finite":
            more = {"alpha": 1e39}
        case "alpha='x' is not a number":
            more = {"alpha": "x"}
        case "a cannot be read: KeyError":

            class Torn:
                __cuda_array_interface__ = {"shape": (5, 3)}  # noqa: RUF012

            return (Torn(), b, c), more
        case _:
            raise AssertionError(what)
    return (a, b, c), more


WRONG = [
    "a's columns must be as many",
    "out is 5 x 8, not 5 x 7",
    "b is of type <f8",
    "out is 5 x 7, not 2 x 5 x 7",
    "b has 2 elements from row to row and 3 from column to column",
    "b has 0 elements from row to row",
    "a has strides of .* bytes, no multiples",
    "a is 5 x 0",
    "out is read-only",
    "a has a mask",
    "b names stream 0",
    "out overlaps a",
    "out overlaps b",
    "is not the address of device memory",
    "a is not in the memory of a CUDA GPU",
    "b is a NoneType",
    "beta=1 without out",
    "how to make a Array",
    "alpha=inf is not a finite",
    "beta=nan is not a finite",
    "alpha=1e.39 is not a finite",
    "alpha='x' is not a number",
    "a cannot be read: KeyError",
]


@pytest.mark.parametrize("what", WRONG)
def test_a_clear_refusal(fake: FakeDriver, gpu: Context, what: str) -> None:
    given, more = bad(what, gpu)
    with pytest.raises(UsageError, match=what):
        harness.matmul(*given, **more)
    assert fake.launches == [] and fake.compiled == []


def view(address: int, rows: int, columns: int, ld: int) -> arrays.Matrix:
    return arrays.Matrix(address, rows, columns, ld, 0, None)


def test_overlap_is_by_element() -> None:
    """Against the sets of elements themselves, for every small pair of views."""

    def elements(m: arrays.Matrix) -> set[int]:
        return {m.address + 4 * (r * m.ld + c) for r in range(m.rows) for c in range(m.columns)}

    seen = {True: 0, False: 0}
    for shift in range(-9, 10):
        for rows in (1, 2, 3):
            for columns in (1, 2, 4):
                one, other = view(400, 3, 2, 4), view(400 + 4 * shift, rows, columns, 4)
                truth = bool(elements(one) & elements(other))
                assert one.overlaps(other) == truth == other.overlaps(one), (shift, rows, columns)
                seen[truth] += 1
    assert min(seen.values()) > 20


def test_side_by_side_in_one_array(fake: FakeDriver, gpu: Context) -> None:
    whole = Array(gpu, 4, 12)
    left, middle, right = Array(gpu, 4, 4), Array(gpu, 4, 4), Array(gpu, 4, 4)
    for i, part in enumerate((left, middle, right)):
        part.host = whole.whole[:, 4 * i : 4 * i + 4]
    expected = left.host @ middle.host
    harness.matmul(left, middle, right)
    np.testing.assert_allclose(right.host, expected, rtol=1e-6)
    assert fake.launches[-1].addresses


# DLPack, and PyTorch by a stand-in


def test_dlpack(fake: FakeDriver, gpu: Context) -> None:
    a, b, c = Array(gpu, 5, 3, ld=4), Array(gpu, 3, 7), Array(gpu, 5, 7)
    x, y = Dlpack(a), Dlpack(b)
    harness.matmul(x, y, c)
    np.testing.assert_allclose(c.host, a.host @ b.host, rtol=1e-6)
    with Stream(gpu) as stream:
        harness.matmul(x, y, c, stream=stream)
        address = int(stream.handle)
    assert x.streams == y.streams == [1, address]  # its owner makes the stream wait
    assert order(fake) == [("launch", 1), ("launch", address)]


@pytest.mark.parametrize(
    ("what", "position", "change"),
    [
        ("a is not in .* a CUDA GPU .DLPack's device type 1.\n  -> copy it there", 0, {"device": 1}),
        ("out speaks only DLPack", 2, {}),
        ("b is of DLPack's type 2 with 64 bits", 1, {"host": np.zeros((3, 7))}),
        ("b is of DLPack's type 0 with 32 bits", 1, {"host": np.zeros((3, 7), np.int32)}),
        ("b has 14 elements from row to row and 2 from", 1, {"host": np.zeros((3, 14), np.float32)[:, ::2]}),
    ],
)
def test_dlpack_refusals(
    fake: FakeDriver, gpu: Context, what: str, position: int, change: dict[str, Any]
) -> None:
    given: list[Any] = list(operands(gpu))
    given[position] = Dlpack(given[position], **change)
    with pytest.raises(UsageError, match=what):
        harness.matmul(*given)
    assert fake.launches == []


def test_torch(fake: FakeDriver, gpu: Context, torch: Any) -> None:
    a, b, _ = operands(gpu)
    x, y = torch.Tensor(a), torch.Tensor(b)
    out = harness.matmul(x, y)
    np.testing.assert_allclose(out.array.host, a.host @ b.host, rtol=1e-6)
    assert order(fake) == [("launch", 0x5500)]  # its current stream
    fake.log.clear()
    harness.matmul(x, y, out, stream=0x5500)
    harness.matmul(x, y, out, stream=0x6600)
    assert order(fake) == [
        ("launch", 0x5500),
        ("record", 0x5500), ("wait", 0x6600), ("launch", 0x6600), ("record", 0x6600), ("wait", 0x5500),
    ]  # fmt: skip
    torch.current.cuda_stream = 0
    fake.log.clear()
    harness.matmul(x, y, out)
    assert order(fake) == [("launch", 1)]


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("a is on cpu, not on a GPU", {"is_cuda": False, "device": "cpu"}),
        ("a is of torch.float64, not", {"dtype": "torch.float64"}),
        ("a requires gradients", {"requires_grad": True}),
    ],
)
def test_torch_refusals(
    fake: FakeDriver, gpu: Context, torch: Any, what: str, change: dict[str, Any]
) -> None:
    a, b, c = (torch.Tensor(x) for x in operands(gpu))
    vars(a).update(change)
    with pytest.raises(UsageError, match=what):
        harness.matmul(a, b, c)
    torch.is_grad_enabled = lambda: False
    if "requires_grad" in change:
        harness.matmul(a, b, c)
        assert len(fake.launches) == 1
