"""Modules, and what a launch is made of."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

from fakes.driver import FakeDriver
from harness.driver import Buffer, Context, Device, Event, Gate, Module, PreparedLaunch, Stream, Struct
from harness.errors import DriverError, UsageError
from shared.driver_parts import CUBIN, kernel

# --- modules


def test_unknown_kernel_names_the_ones_there(fake: FakeDriver, context: Context):
    fake.functions["other"] = ()
    with pytest.raises(DriverError, match="no kernel 'kernle'") as caught:
        Module(context, CUBIN).function("kernle")
    assert "kernel, other" in caught.value.hint


@pytest.mark.parametrize("cubin", [b"", b"x"])
def test_short_bytes_never_reach_the_bindings(fake: FakeDriver, context: Context, cubin: bytes):
    with pytest.raises(UsageError, match="not a cubin"):
        Module(context, cubin)
    assert "cuModuleLoadData" not in fake.names()


def test_attributes_and_occupancy(fake: FakeDriver, context: Context):
    function = kernel(fake, context)
    assert (function.attributes.registers, function.attributes.static_shared) == (32, 1024)
    assert function.occupancy(256) == 1.0
    assert function.max_active_blocks(1000) == 2
    assert function.occupancy(1000) == 1.0  # 2 x 32 warps of 64
    assert "cuFuncLoad" in fake.names()  # a lazy load behind a closed gate would hang


def test_dynamic_shared_memory_opts_in_once_above_48_kb(fake: FakeDriver, context: Context):
    function = kernel(fake, context)

    def opt_ins() -> list[int]:
        return [args[2] for name, args in fake.log if name == "cuFuncSetAttribute"]

    function.prepare(1, 1, [], shared=47 * 1024)  # with 1 KB of static: exactly 48
    assert opt_ins() == []
    function.prepare(1, 1, [], shared=47 * 1024 + 1)
    function.occupancy(128, 200_000)
    function.prepare(1, 1, [], shared=100_000)
    assert opt_ins() == [47 * 1024 + 1, 200_000]
    with pytest.raises(UsageError, match="232448, 1024 of them static"):
        function.prepare(1, 1, [], shared=232_448)
    with pytest.raises(UsageError):
        function.prepare(1, 1, [], shared=-1)


# --- launches


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int8), ("b", ctypes.c_double))


def test_arguments_are_packed_as_the_kernel_reads_them(fake: FakeDriver, context: Context, stream: Stream):
    buffer = Buffer(context, 16)
    tensor_map = Struct(bytes(range(128)), align=64)
    args = [np.int8(-1), buffer, np.float32(1.5), tensor_map, ctypes.c_int64(7), Pair(1, 2.0), np.float16(1)]
    launch = kernel(fake, context, 1, 8, 4, 128, 8, 16, 2).prepare((3, 2), 64, args, shared=8)
    args.clear()
    gc.collect()
    launch(stream)
    (seen,) = fake.launches
    assert seen.args == [
        b"\xff",
        buffer.ptr.to_bytes(8, "little"),
        np.float32(1.5).tobytes(),
        bytes(range(128)),
        (7).to_bytes(8, "little"),
        bytes(Pair(1, 2.0)),
        b"\x00\x3c",
    ]
    for address, align in zip(seen.addresses, [1, 8, 4, 64, 8, 8, 2], strict=True):
        assert address % align == 0
    assert (seen.grid, seen.block, seen.shared, seen.stream) == ((3, 2, 1), (64, 1, 1), 8, stream.handle)


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        (1, r"numpy\.int32"),
        (1.0, r"numpy\.float32"),
        (True, r"numpy\.bool_"),
        (b"x", "Struct"),
        (None, "Buffer"),
    ],
)
def test_untyped_arguments_are_refused(fake: FakeDriver, context: Context, value: object, instead: str):
    with pytest.raises(UsageError, match="argument 1 is a") as caught:
        kernel(fake, context, 4, 4).prepare(1, 1, [np.int32(0), value])
    assert caught.match(instead)


@pytest.mark.parametrize("args", [[], [np.float64(1)], [np.float32(1), np.float32(1)]])
def test_arguments_must_fit_the_kernel(fake: FakeDriver, context: Context, args: list[np.generic]):
    with pytest.raises(UsageError, match=r"takes 1 arguments of \[4\] bytes"):
        kernel(fake, context, 4).prepare(1, 1, args)


@pytest.mark.parametrize("align", [0, 3, -4])
def test_struct_alignment_is_a_power_of_two(align: int):
    with pytest.raises(UsageError):
        Struct(b"data", align)


BAD_DIMS = [
    (0, 1),
    ((1, 0), 1),
    ((1, 65536), 1),
    ((1, 1, 65536), 1),
    (2**31, 1),
    ((1, 1, 1, 1), 1),
    (1.5, 1),
    (1, 0),
    (1, 1025),
    (1, (1, 1, 65)),
    (1, (32, 32, 2)),
    (-1, 1),
]


@pytest.mark.parametrize(("grid", "block"), BAD_DIMS)
def test_impossible_dimensions_are_refused(fake: FakeDriver, context: Context, grid: int, block: int):
    with pytest.raises(UsageError):
        kernel(fake, context).prepare(grid, block, [])


def test_block_limit_is_the_kernels_own(fake: FakeDriver, context: Context):
    fake.function_attributes["CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK"] = 256
    with pytest.raises(UsageError, match="at most 256 threads"):
        kernel(fake, context).prepare(1, 512, [])


def test_largest_dimensions_pass(fake: FakeDriver, context: Context, stream: Stream):
    kernel(fake, context).prepare((2**31 - 1, 65535, 65535), (16, 1, 64), [])(stream)
    kernel(fake, context).prepare(np.int64(5), np.int32(32), [])(stream)
    assert [seen.grid for seen in fake.launches] == [(2**31 - 1, 65535, 65535), (5, 1, 1)]


def test_a_launch_is_exactly_one_driver_call(fake: FakeDriver, context: Context, stream: Stream):
    launch = kernel(fake, context, 4).prepare(1, 1, [np.int32(1)])
    other = Stream(context)
    fake.log.clear()
    for each in (stream, stream, other, stream):
        launch(each)
    assert [name for name, _ in fake.log] == ["cuLaunchKernelEx"] * 4
    assert [seen.stream for seen in fake.launches] == [s.handle for s in (stream, stream, other, stream)]


def test_a_repeated_launch_prepares_nothing(
    fake: FakeDriver, context: Context, stream: Stream, monkeypatch: pytest.MonkeyPatch
):
    launch = kernel(fake, context).prepare(1, 1, [])
    launch(stream)
    monkeypatch.delattr(PreparedLaunch, "_bind")
    launch(stream)
    assert len(fake.launches) == 2


def test_cluster_launch(fake: FakeDriver, context: Context, stream: Stream):
    function = kernel(fake, context, 4)
    launch = function.prepare((4, 2), 32, [np.int32(9)], cluster=(2, 2), shared=64)
    fake.log.clear()
    launch(stream)
    launch(stream)
    assert [name for name, _ in fake.log] == ["cuLaunchKernelEx"] * 2
    seen = fake.launches[-1]
    assert (seen.grid, seen.block, seen.cluster) == ((4, 2, 1), (32, 1, 1), (2, 2, 1))
    assert (seen.shared, seen.stream, seen.args) == (64, stream.handle, [b"\x09\0\0\0"])
    with pytest.raises(UsageError, match="must divide"):
        function.prepare(3, 32, [np.int32(9)], cluster=2)
    with pytest.raises(UsageError, match="at most 16"):
        function.prepare(32, 32, [np.int32(9)], cluster=32)
    assert "cuFuncSetAttribute" not in fake.names()
    function.prepare(32, 32, [np.int32(9)], cluster=16)
    assert "cuFuncSetAttribute" in fake.names()


def test_a_compiled_cluster_of_more_than_eight_blocks_is_opted_into(fake: FakeDriver, context: Context):
    for side, blocks in (("WIDTH", 1), ("HEIGHT", 1), ("DEPTH", 8)):
        fake.function_attributes[f"CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_{side}"] = blocks
    assert kernel(fake, context).prepare((2, 2, 8), 32, []).cluster is None  # the driver knows it
    assert "cuFuncSetAttribute" not in fake.names()
    with pytest.raises(UsageError, match="must divide the grid"):
        kernel(fake, context).prepare((2, 2, 4), 32, [])
    fake.function_attributes["CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH"] = 16
    kernel(fake, context).prepare((2, 2, 16), 32, [])
    assert "cuFuncSetAttribute" in fake.names()


def test_cooperative_launch(fake: FakeDriver, context: Context, stream: Stream):
    function = kernel(fake, context)
    function.prepare(8, 32, [], cooperative=True)(stream)
    function.prepare(8, 32, [], cooperative=True, cluster=2)(stream)
    function.prepare(8, 32, [])(stream)
    assert [(seen.cooperative, seen.cluster) for seen in fake.launches[-3:]] == [
        (True, None),
        (True, (2, 1, 1)),
        (False, None),
    ]


def test_a_launch_that_begins_early(fake: FakeDriver, context: Context, stream: Stream):
    """Before Hopper the attribute is left out: the kernel then begins when the one before has ended."""
    function = kernel(fake, context)
    function.prepare(8, 32, [], programmatic=True)(stream)
    function.prepare(8, 32, [])(stream)
    assert [seen.programmatic for seen in fake.launches[-2:]] == [True, False]
    fake.device_attributes["CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR"] = 8
    with Context(Device.open()) as older, Stream(older) as queue:
        kernel(fake, older).prepare(8, 32, [], programmatic=True)(queue)
    assert not fake.launches[-1].programmatic


def test_clusters_need_hopper(fake: FakeDriver):
    fake.device_attributes["CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR"] = 8
    with Context(Device.open()) as context, pytest.raises(UsageError, match="clusters need sm_90"):
        kernel(fake, context).prepare(2, 32, [], cluster=2)


@pytest.mark.parametrize("stream", [None, 0, "stream"])
def test_there_is_no_default_stream(fake: FakeDriver, context: Context, stream: object):
    buffer, event, gate = Buffer(context, 16), Event(context), Gate(context)
    launch = kernel(fake, context).prepare(1, 1, [])
    for use in [
        launch,
        event.record,
        gate.close_on,
        lambda stream: buffer.upload(bytes(16), stream),
        lambda stream: buffer.download(bytearray(16), stream),
        lambda stream: buffer.fill_u32(0, stream),
        lambda stream: buffer.copy_from(buffer, stream),
    ]:
        with pytest.raises(UsageError, match="a Stream is needed"):
            use(stream)
    launch(Stream(context))
    with pytest.raises(UsageError, match="a Stream is needed"):
        launch(stream)  # also once it is bound to a real one


def test_a_stream_of_another_context_is_refused(fake: FakeDriver, context: Context):
    other = Context(Device.open(), primary=False)
    with pytest.raises(UsageError, match="another context"):
        kernel(fake, context).prepare(1, 1, [])(Stream(other))
    other.close()


def test_arguments_change_between_launches(fake: FakeDriver, context: Context, stream: Stream):
    launch = kernel(fake, context, 8, 4).prepare(1, 1, [np.uint64(1), np.float32(2)])
    address, scale = launch.argument(0, ctypes.c_uint64), launch.argument(1, ctypes.c_float)
    assert (address.value, scale.value) == (1, 2.0)
    launch(stream)
    address.value, scale.value = 0x7000, -0.5
    launch(stream)
    assert [seen.args for seen in fake.launches] == [
        [np.uint64(1).tobytes(), np.float32(2).tobytes()],
        [np.uint64(0x7000).tobytes(), np.float32(-0.5).tobytes()],
    ]
    with pytest.raises(UsageError, match="argument 1 of kernel has 4 bytes"):
        launch.argument(1, ctypes.c_uint64)
