"""Memory of launches' own in `harness.matmul`, on the fake driver: a stream's, a graph's, nobody else's."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import harness
from fakes import gemm as fake_gemm
from fakes.driver import FakeDriver
from harness.dispatch import choose, workspaces
from harness.dispatch.call.again import again
from harness.driver import Buffer, Context, Graph, Stream, outside_captures, stream_memory
from harness.errors import DriverError, OutOfMemory, UsageError
from harness.kernels import spec
from shared.arrays import Array, fake, gpu, operands  # noqa: F401  (fixtures)

KERNEL = """\
// Counts in memory of its own
// /// kernel
// entry = "matmul"
// block = "32"
// tile = ["32", "32"]
// workspace = "8 * TILES_X * TILES_Y + SMS - SMS + PAD"
// [params]
// PAD = [4, 40]
// ///
extern "C" __global__ void matmul() {}
"""


class Counting:
    """A GEMM that is right only where its counter, the first word, is zero; what is behind it gets dirty."""

    def __init__(self) -> None:
        self.used: list[tuple[int, int]] = []  # stream and address
        self.left = 0  # what it leaves in the counter

    def __call__(self, launch: SimpleNamespace) -> None:
        address = int.from_bytes(launch.args[-1], "little")
        self.used.append((int(launch.stream), address))
        words = (ctypes.c_uint32 * 3).from_address(address)
        plain = SimpleNamespace(args=launch.args[:-1])
        fake_gemm.gemm(plain)
        if words[0] != 0:
            fake_gemm.parameters(plain)[2][:] = np.nan
        words[:] = self.left, 0xDEAD, 0xBEEF

    @property
    def addresses(self) -> list[int]:
        return [address for _, address in self.used]


@pytest.fixture
def kernel(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counting:
    path = tmp_path / "counting.cu"
    path.write_text(KERNEL)
    fake.functions = {"matmul": (*fake_gemm.SIZES, 8)}
    fake.execute = counting = Counting()
    variant = spec.load(path).variant()
    monkeypatch.setattr(choose, "choose", lambda *shape, **where: variant)
    return counting


def right(given: tuple[Array, Array, Array]) -> bool:
    a, b, c = given
    return np.allclose(c.host, a.host @ b.host, rtol=1e-5)


def test_a_stream_has_one_of_its_own(fake: FakeDriver, gpu: Context, kernel: Counting) -> None:
    given = operands(gpu)
    with Stream(gpu) as one, Stream(gpu) as other:
        for stream in (one, other, one, one, other):
            harness.matmul(*given, stream=stream)
            assert right(given)
            given[2].host[:] = 0
    first, second = kernel.used[0][1], kernel.used[1][1]
    assert kernel.addresses == [first, second, first, first, second] and first != second
    assert fake.names().count("cuMemsetD32Async") == 2  # each once, before its first launch
    sizes = [
        ctypes.sizeof(m) for (kind, at), m in fake.live.items() if kind == "memory" and at in (first, second)
    ]
    assert sizes == [16, 16]  # 12 bytes, rounded up


def test_a_launch_finds_what_the_last_one_left(fake: FakeDriver, gpu: Context, kernel: Counting) -> None:
    """The control: a kernel that leaves its counter dirty is wrong the second time, in that stream only."""
    kernel.left = 7
    given = operands(gpu)
    with Stream(gpu) as stream:
        harness.matmul(*given, stream=stream)
        assert right(given)
        harness.matmul(*given, stream=stream)
        assert np.isnan(given[2].host).all()
    harness.matmul(*given)
    assert right(given)


def test_it_grows(fake: FakeDriver, gpu: Context, kernel: Counting) -> None:
    small, large = operands(gpu), operands(gpu, 70, 70, 3)
    for given in (small, large, small):
        harness.matmul(*given)
        assert right(given)
    _, grown, last = kernel.addresses
    assert grown == last
    assert ctypes.sizeof(fake.live["memory", grown]) == 80  # 3 x 3 tiles: 76 bytes
    assert fake.freed.count("memory") == 1  # the first


def test_variants_do_not_share(
    fake: FakeDriver, gpu: Context, kernel: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel finds the workspace as it left it itself, not as another one did."""
    kernel.left = 7
    one = choose.choose(1, 1, 1, sms=1, arch="sm_90")
    other = one.kernel.variant(PAD=40)
    monkeypatch.setattr(choose, "choose", lambda m, *shape, **where: one if m == 5 else other)
    for given in (operands(gpu), operands(gpu, M=6)):
        harness.matmul(*given)
        assert right(given)


def test_a_new_stream_at_an_old_address_has_one_of_its_own(
    fake: FakeDriver, gpu: Context, kernel: Counting
) -> None:
    """Work of the old one may still run; and the per-thread default stream is another in each thread."""
    given = operands(gpu)
    for number in (50, 51, 50):
        fake.stream_ids[2] = number
        harness.matmul(*given, stream=2)
    first, second, third = kernel.addresses
    assert first == third != second


def test_they_are_bounded(
    fake: FakeDriver, gpu: Context, kernel: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was used the longest ago goes, and its memory with it."""
    monkeypatch.setattr(workspaces, "_MOST_KEPT", 2)
    given = operands(gpu)
    before = fake._used()
    for stream in (0x700, 0x800, 0x700, 0x900, 0x700):
        harness.matmul(*given, stream=stream)
    assert fake._used() - before == 2 * 16
    assert kernel.addresses[0] == kernel.addresses[2] == kernel.addresses[4]
    assert fake.freed.count("memory") == 1


def test_no_room(fake: FakeDriver, gpu: Context, kernel: Counting) -> None:
    given = operands(gpu)
    fake.fail("cuMemAlloc", 2, 2)
    with pytest.raises(OutOfMemory):
        harness.matmul(*given)
    assert fake.launches == []
    harness.matmul(*given)  # it was that once
    assert right(given)


def test_what_another_stream_has_left_makes_room(fake: FakeDriver, gpu: Context, kernel: Counting) -> None:
    given = operands(gpu)
    with Stream(gpu) as gone:
        harness.matmul(*given, stream=gone)
    freed = fake.names().count("cuMemFree")
    fake.fail("cuMemAlloc", 2)
    harness.matmul(*given)
    assert right(given) and fake.names().count("cuMemFree") == freed + 1


def test_threads_and_streams(fake: FakeDriver, gpu: Context, kernel: Counting) -> None:
    sets = [operands(gpu) for _ in range(8)]

    def work(index: int) -> None:
        for _ in range(30):
            harness.matmul(*sets[index], stream=0x700 + index // 2)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(right(given) for given in sets) and len(kernel.used) == 240
    assert len(set(kernel.used)) == len(set(kernel.addresses)) == 4


# What the driver's part of it promises


def test_stream_memory_goes_with_its_block(fake: FakeDriver, gpu: Context) -> None:
    with Stream(gpu) as stream:
        before = set(fake.live)
        with pytest.raises(ZeroDivisionError), stream_memory(stream, 64) as address:
            assert ("memory", address) in fake.live
            raise ZeroDivisionError
        assert set(fake.live) == before
        with pytest.raises(UsageError, match="at least one byte"), stream_memory(stream, 0):
            pass


def test_the_capture_mode_comes_back(fake: FakeDriver, gpu: Context) -> None:
    with pytest.raises(ZeroDivisionError), outside_captures():
        assert fake._mode == "CU_STREAM_CAPTURE_MODE_RELAXED"
        raise ZeroDivisionError
    assert fake._mode == "CU_STREAM_CAPTURE_MODE_GLOBAL"


# Graphs


@pytest.mark.parametrize("known", [False, True], ids=["read", "known"])
def test_a_graph_has_its_own(fake: FakeDriver, gpu: Context, kernel: Counting, known: bool) -> None:
    """Zeroed when it is captured, and not at each replay, whose launches leave it as they found it.

    It is the same if the captured call is known from an ordinary one, and its arrays are not read.
    """
    given, others = operands(gpu), operands(gpu, M=6)
    passed = [x.buffer.array("float32", x.host.shape) for x in given] if known else given
    with Stream(gpu) as stream, Stream(gpu) as elsewhere:
        harness.matmul(*passed, stream=stream)

        def enqueue(captured: Stream) -> None:
            for _ in range(2):
                harness.matmul(*passed, stream=captured)

        with Graph(stream, enqueue) as graph:
            assert len(kernel.used) == 1
            filled = fake.names().count("cuMemsetD32Async")
            for where in (stream, elsewhere, stream):
                given[2].host[:] = 0
                graph(where)
                assert right(given)
                harness.matmul(*others, stream=stream)
                assert right(others)
            assert fake.names().count("cuMemsetD32Async") == filled
    ordinary, captured = kernel.addresses[::3], kernel.addresses[1::3] + kernel.addresses[2::3]
    assert len(set(ordinary)) == len(set(captured)) == 1 and not set(ordinary) & set(captured)


def test_a_graph_without_zeros_would_be_wrong(
    fake: FakeDriver, gpu: Context, kernel: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above."""
    given = operands(gpu)
    with Stream(gpu) as stream:
        harness.matmul(*given, stream=stream)
        monkeypatch.setattr(Buffer, "fill_u32", lambda self, *given: ctypes.memset(self.ptr, 1, self.nbytes))
        with Graph(stream, lambda captured: harness.matmul(*given, stream=captured)) as graph:
            graph(stream)
    assert np.isnan(given[2].host).all()


def test_the_memory_of_a_graph_lives_as_long_as_all_that_was_made_of_it(
    fake: FakeDriver, gpu: Context, kernel: Counting
) -> None:
    given = operands(gpu)

    def capture(stream: Stream) -> int:
        gpu.call("cuStreamBeginCapture", stream.handle, "any")
        harness.matmul(*given, stream=stream)
        return int(gpu.call("cuStreamEndCapture", stream.handle))

    def freed(stream: Stream) -> int:
        """Return how much memory another capture frees: that of the one before it, which is gone, is one."""
        before = fake.freed.count("memory")
        gpu.call("cuGraphDestroy", capture(stream))
        return fake.freed.count("memory") - before

    with Stream(gpu) as stream:
        graph = capture(stream)
        one, other = (int(gpu.call("cuGraphInstantiate", graph, 0)) for _ in range(2))
        gpu.call("cuGraphLaunch", one, stream.handle)
        gpu.call("cuGraphDestroy", graph)
        assert freed(stream) == 0
        gpu.call("cuGraphExecDestroy", one)
        assert freed(stream) == 1
        gpu.call("cuGraphLaunch", other, stream.handle)
        assert right(given)
        gpu.call("cuGraphExecDestroy", other)
        assert freed(stream) == 2


def test_a_graph_that_needs_more_later_keeps_what_it_had(
    fake: FakeDriver, gpu: Context, kernel: Counting
) -> None:
    small, large = operands(gpu), operands(gpu, 70, 70, 3)

    def enqueue(captured: Stream) -> None:
        for given in (small, large, small):
            harness.matmul(*given, stream=captured)

    with Stream(gpu) as stream, Graph(stream, enqueue) as graph:
        graph(stream)
        graph(stream)
        assert right(small) and right(large)
    first, grown, last = kernel.addresses[:3]
    assert grown == last != first and kernel.addresses[3:] == [first, grown, last]


def test_streams_of_one_capture_do_not_share(
    fake: FakeDriver, gpu: Context, kernel: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work of a second stream that joins a capture may run at the same time as the first one's."""
    given = operands(gpu)
    with Stream(gpu) as stream, Stream(gpu) as joined:
        gpu.call("cuStreamBeginCapture", stream.handle, "any")
        alone = fake._is_captured
        both = {int(stream.handle), int(joined.handle)}
        monkeypatch.setattr(fake, "_is_captured", lambda one: alone(stream.handle) and int(one) in both)
        for one in (stream, joined, stream, joined):
            harness.matmul(*given, stream=one)
        gpu.call("cuGraphDestroy", gpu.call("cuStreamEndCapture", stream.handle))
    assert len(kernel.used) == 2  # of the second stream, whose work the fake does not keep
    made = [args for name, args in fake.log if name == "cuUserObjectCreate"]
    assert len(made) == 2


def test_no_room_in_a_capture(fake: FakeDriver, gpu: Context, kernel: Counting) -> None:
    """Graphs that are gone make room with what they have left; if it does not suffice, nothing is queued."""
    given = operands(gpu)
    harness.matmul(*given)
    with Stream(gpu) as stream:
        with Graph(stream, lambda captured: harness.matmul(*given, stream=captured)):
            pass
        fake.fail("cuMemAlloc", 2)
        with Graph(stream, lambda captured: harness.matmul(*given, stream=captured)) as graph:
            graph(stream)
            assert right(given)
        fake.fail("cuMemAlloc", 2, 2)
        with pytest.raises(OutOfMemory):
            Graph(stream, lambda captured: harness.matmul(*given, stream=captured))
    assert fake._mode == "CU_STREAM_CAPTURE_MODE_GLOBAL"


def test_another_streams_capture_is_not_in_the_way(
    fake: FakeDriver, gpu: Context, kernel: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for one stream is made while another is captured, which CUDA forbids unless told."""
    given = operands(gpu)
    harness.matmul(*given)  # compiled and loaded

    def enqueue(captured: Stream) -> None:
        with Stream(gpu) as other:
            harness.matmul(*given, stream=other)
            assert right(given)
        with pytest.raises(DriverError, match="CAPTURE_UNSUPPORTED"):
            gpu.call("cuMemAlloc", 64)  # the fake does forbid it

    with Stream(gpu) as stream, Graph(stream, enqueue):
        pass
    assert fake._mode == "CU_STREAM_CAPTURE_MODE_GLOBAL"


def test_kernels_without_one_are_not_asked_about_captures(
    fake: FakeDriver, gpu: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gemm.without_small_tiles(monkeypatch)
    harness.matmul(*operands(gpu))
    asked = {"cuStreamIsCapturing", "cuStreamGetId", "cuThreadExchangeStreamCaptureMode"}
    assert not asked & set(fake.names())


def test_what_is_large_has_nodes_of_the_graph(
    fake: FakeDriver, gpu: Context, kernel: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs share what lies behind it: it is allocated, zeroed and freed at each replay."""
    monkeypatch.setattr(workspaces, "_MOST_CAPTURED", 8)
    given = operands(gpu)
    harness.matmul(*given)
    with Stream(gpu) as stream:
        live = set(fake.live)
        with Graph(stream, lambda captured: harness.matmul(*given, stream=captured)) as graph:
            assert set(fake.live) - live == {("executable", int(graph.handle))}
            for _ in range(3):
                given[2].host[:] = 0
                graph(stream)
                assert right(given)
        monkeypatch.setattr(workspaces, "fill_u32", lambda *words: None)  # the control
        with Graph(stream, lambda captured: harness.matmul(*given, stream=captured)) as graph:
            graph(stream)
            assert np.isnan(given[2].host).all()


def test_per_thread_streams_of_one_capture_do_not_share(
    fake: FakeDriver, gpu: Context, kernel: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They all have the same address."""
    given = operands(gpu)
    harness.matmul(*given)
    fake._cuStreamBeginCapture(2, "any")

    def call() -> None:
        harness.matmul(*given, stream=2)

    call()
    other = threading.Thread(target=call)
    other.start()
    other.join()
    call()
    assert len([name for name, _ in fake.log if name == "cuUserObjectCreate"]) == 2
    fake._captured = None


@pytest.mark.parametrize("call", ["cuGraphRetainUserObject", "cuUserObjectCreate"])
def test_a_graph_that_takes_no_object(fake: FakeDriver, gpu: Context, kernel: Counting, call: str) -> None:
    """The error is the driver's, nothing is queued, and the next capture is as any other."""
    given = operands(gpu)
    harness.matmul(*given)
    with Stream(gpu) as stream:
        fake.fail(call, 1)
        with pytest.raises(DriverError, match=call):
            Graph(stream, lambda captured: harness.matmul(*given, stream=captured))
        assert fake._objects == {}
        with Graph(stream, lambda captured: harness.matmul(*given, stream=captured)) as graph:
            graph(stream)
    assert right(given)


def test_an_invalid_capture_is_said_to_be_one(
    fake: FakeDriver, gpu: Context, kernel: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = operands(gpu)
    harness.matmul(*given)
    invalid = "CU_STREAM_CAPTURE_STATUS_INVALIDATED", 0, 0, [], [], 0
    with Stream(gpu) as stream:
        monkeypatch.setattr(FakeDriver, "_cuStreamGetCaptureInfo", lambda self, handle: invalid)
        with pytest.raises(UsageError, match="the capture of this stream is invalid"):
            Graph(stream, lambda captured: harness.matmul(*given, stream=captured))


PLAIN: dict[str, Any] = {"alpha": 1.0, "beta": 0.0, "bias": None, "precision": "ieee", "invariant": False}


def image(*given: Array) -> Any:
    found = again(*given, **PLAIN)
    assert found is not None
    return found.image([x.host.ctypes.data for x in given], given[0].about["stream"])


def of(*given: Array) -> Any:
    found = image(*given)
    assert found is not None
    return found


def in_stream(given: tuple[Array, ...], stream: int) -> tuple[Array, ...]:
    for x in given:
        x.about["stream"] = stream
    return given


def test_rooms(fake: FakeDriver, gpu: Context, kernel: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image has the workspace that a stream keeps, until it is freed, of which its users are told."""
    given, told = in_stream(operands(gpu), 0x700), []
    assert of(*given).room is None
    harness.matmul(*given)
    made = of(*given)
    assert made.own is not None and made.room is not None
    assert made.room == (0x700, kernel.addresses[-1])
    assert of(*in_stream(given, 0x800)).room is None
    with Stream(gpu) as stream:
        address = int(stream.handle)
        with Graph(stream, lambda one: harness.matmul(*in_stream(given, address))):
            pass
        rooms: list[Any] = []
        with Graph(stream, lambda one: rooms.append(of(*in_stream(given, address)).room)):
            pass
        assert rooms == [None]
    room = "memory", made.room[1]
    of(*in_stream(given, 0x700)).watch(lambda: told.append(room in fake.live))
    monkeypatch.setattr(workspaces, "_MOST_KEPT", 1)
    harness.matmul(*given)
    assert not told
    harness.matmul(*in_stream(given, 0x900))
    assert told == [True]
    assert of(*in_stream(given, 0x700)).room is None
