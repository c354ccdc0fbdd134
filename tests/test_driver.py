"""The driver layer against a fake driver: lifetimes, errors, packing. No GPU.

Each group ends with a negative control: a planted fault that its checks must notice.
"""

from __future__ import annotations

import ast
import ctypes
import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver, install

import harness.driver
from harness.driver import (
    Buffer,
    Context,
    Device,
    Event,
    Function,
    Gate,
    Module,
    PinnedBuffer,
    PreparedLaunch,
    Stream,
    Struct,
    api,
    device_of,
    driver_version,
)
from harness.driver import gate as gate_module
from harness.driver.context import Resource
from harness.errors import (
    ContextLost,
    DriverError,
    MissingDependency,
    NoDevice,
    NoDriver,
    OutOfMemory,
    UsageError,
)

CUBIN = b"\x7fELF...."
PACKAGE = Path(harness.driver.__file__).parent
STICKY = [700, 702, 709, 710, 714, 715, 716, 717, 718, 719]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return install(monkeypatch)


@pytest.fixture
def context(fake: FakeDriver):
    with Context(Device.open()) as context:
        yield context
        fake.sticky = 0


@pytest.fixture
def stream(context: Context) -> Stream:
    return Stream(context)


def kernel(fake: FakeDriver, context: Context, *sizes: int) -> Function:
    fake.functions["kernel"] = sizes
    return Module(context, CUBIN).function("kernel")


# --- the door


def test_importing_loads_neither_cuda_nor_numpy():
    code = "import sys, harness.driver; print([m for m in ('cuda', 'numpy') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_missing_package(monkeypatch: pytest.MonkeyPatch):
    api.bindings.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(MissingDependency, match="pip install 'cuda-python"):
        api.bindings()


def test_call_returns_nothing_one_value_or_a_tuple(fake: FakeDriver, context: Context):
    assert api.call("cuCtxSynchronize") is None
    assert api.call("cuDeviceGetCount") == 1
    assert api.call("cuMemGetInfo") == (1 << 30, 1 << 30)


def test_driver_version(fake: FakeDriver):
    fake.version = 13020
    assert driver_version() == (13, 2)


def test_the_driver_is_started_once(fake: FakeDriver):
    Device.open()
    Context(Device.open()).close()
    assert fake.names().count("cuInit") == 1


# --- errors


class DynamicLibNotFoundError(RuntimeError):
    """Named as in cuda.pathfinder."""


@pytest.mark.parametrize("error", [DynamicLibNotFoundError("libcuda"), RuntimeError("Failed to dlopen")])
def test_no_driver(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, error: RuntimeError):
    def raises(self: FakeDriver, flags: int) -> None:
        raise error

    monkeypatch.setattr(FakeDriver, "_cuInit", raises)
    for _ in range(2):  # a failure is not remembered as a success
        with pytest.raises(NoDriver, match="libcuda was not found") as caught:
            Device.open()
        assert "R580" in caught.value.hint


def test_no_driver_with_the_real_bindings_on_this_machine():
    driver = pytest.importorskip("cuda.bindings.driver")
    try:
        driver.cuInit(0)
    except RuntimeError:
        code = "from harness.driver import Device; Device.open()"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "NoDriver" in run.stderr and "R580" in run.stderr
    else:
        pytest.skip("this machine has a driver")


@pytest.mark.parametrize(("code", "hint"), [(34, "stub"), (803, "reboot"), (801, "R580"), (999, "R580")])
def test_broken_driver(fake: FakeDriver, code: int, hint: str):
    fake.fail("cuInit", code)
    with pytest.raises(NoDriver, match=rf"cuInit failed: CUDA_ERROR_\w+ \({code}\)") as caught:
        Device.open()
    assert hint in caught.value.hint


def test_driver_too_old(fake: FakeDriver):
    fake.version = 12080
    with pytest.raises(NoDriver, match=r"CUDA 12\.8 only"):
        Device.open()


def test_no_device(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, devices=0)
    with pytest.raises(NoDevice, match=r"CUDA_ERROR_NO_DEVICE \(100\)"):
        Device.open()


def test_out_of_memory_says_how_much_and_the_context_goes_on(fake: FakeDriver, context: Context):
    with pytest.raises(OutOfMemory) as caught:
        Buffer(context, 2 << 30)
    text = str(caught.value)
    assert text.startswith("cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; 2,147,483,648")
    assert "1,073,741,824 of 1,073,741,824 free" in text
    assert (caught.value.call, caught.value.code) == ("cuMemAlloc", 2)
    assert not context.lost
    Buffer(context, 16).close()


@pytest.mark.parametrize("code", STICKY)
def test_sticky_fault_surfaces_later_and_marks_the_context(fake: FakeDriver, context: Context, code: int):
    stream, event = Stream(context), Event(context)
    kernel(fake, context).prepare(1, 1, [])(stream)  # the launch itself says nothing
    event.record(stream)
    fake.sticky = code
    assert not context.lost
    with pytest.raises(ContextLost) as caught:
        event.synchronize()
    assert "reported by cuEventSynchronize; the fault came from an earlier launch" in str(caught.value)
    assert "compute-sanitizer" in caught.value.hint
    assert context.lost
    with pytest.raises(ContextLost):
        Buffer(context, 16)


def test_a_fault_reported_by_a_launch(fake: FakeDriver, context: Context, stream: Stream):
    launch = kernel(fake, context).prepare(1, 1, [])
    fake.sticky = 700
    with pytest.raises(ContextLost, match="reported by cuLaunchKernelEx"):
        launch(stream)
    assert context.lost


@pytest.mark.parametrize(
    ("failure", "hint"),
    [
        (("cuModuleLoadData", 209), "another architecture"),
        (("cuModuleLoadData", 222), "newer than the driver"),
        (("cuLaunchKernelEx", 701), "registers"),
        (("cuLaunchKernelEx", 1), "grid, block"),
        (("cuLaunchKernelEx", 201), "with context:"),
    ],
)
def test_hints(fake: FakeDriver, context: Context, stream: Stream, failure: tuple[str, int], hint: str):
    fake.fail(*failure)
    with pytest.raises(DriverError) as caught:
        kernel(fake, context).prepare(1, 1, [])(stream)
    assert type(caught.value) is DriverError
    assert hint in caught.value.hint
    assert not context.lost


# --- devices


def test_device(fake: FakeDriver):
    device = Device.open()
    assert device.uuid == "GPU-a0000000-0000-0000-0000-000000000000"
    assert (device.name, device.pci_bus_id, device.arch) == ("Fake GPU", "0000:00:00.0", "sm_90")
    assert device.clock_hz == 1_980_000_000
    assert device.peak_fp32 == pytest.approx(66.9e12, rel=0.001)  # NVIDIA's H200: 67 TFLOP/s
    assert device.peak_bandwidth == pytest.approx(4.9e12, rel=0.01)


@pytest.mark.parametrize(
    ("capability", "lanes"), [((7, 5), 64), ((8, 0), 64), ((8, 6), 128), ((9, 0), 128), ((12, 0), 128)]
)
def test_lanes(fake: FakeDriver, capability: tuple[int, int], lanes: int):
    prefix = "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_"
    fake.device_attributes[prefix + "MAJOR"], fake.device_attributes[prefix + "MINOR"] = capability
    device = Device.open()
    assert device.peak_fp32 == 2 * lanes * device.sms * device.clock_hz


@pytest.mark.parametrize("selector", [1, "1", "GPU-a1", "gpu-A1000000-0000"])
def test_device_selection(fake: FakeDriver, selector: int | str):
    fake.devices = 2
    assert Device.open(selector).ordinal == 1


@pytest.mark.parametrize("selector", [2, -1, "2", "-1", "GPU-ff", "GPU-", "", "nonsense"])
def test_unknown_device_lists_what_is_there(fake: FakeDriver, selector: int | str):
    fake.devices = 2
    with pytest.raises(UsageError) as caught:
        Device.open(selector)
    assert "GPU-a0000000" in caught.value.hint and "GPU-a1000000" in caught.value.hint


# --- lifetimes


def make_one_of_each(context: Context) -> list[Resource]:
    return [
        Stream(context),
        Event(context),
        Buffer(context, 16),
        PinnedBuffer(context, 16),
        Gate(context),
        Module(context, CUBIN),
    ]


KINDS = ["stream", "event", "memory", "pinned", "pinned", "module"]


@pytest.mark.parametrize("primary", [True, False])
def test_context_frees_everything_once_in_reverse(fake: FakeDriver, primary: bool):
    with Context(Device.open(), primary=primary) as context:
        owners = make_one_of_each(context)
        assert [kind for kind, _ in fake.live] == ["context", *KINDS]
    assert fake.live == {} and fake.stack == []
    assert fake.freed == [*reversed(KINDS), "context"]
    for owner in [*owners, context]:
        owner.close()
        assert owner.closed
    assert len(fake.freed) == 7


def test_with_blocks_free_in_reverse(fake: FakeDriver):
    with Context(Device.open()) as context, Stream(context), Buffer(context, 16), Module(context, CUBIN):
        pass
    assert fake.freed == ["module", "memory", "stream", "context"]


def test_garbage_collection_frees(fake: FakeDriver):
    context = Context(Device.open())
    owners = make_one_of_each(context)
    assert len(fake.live) == 7
    del owners
    gc.collect()
    assert [kind for kind, _ in fake.live] == ["context"]
    buffer = Buffer(context, 16)
    del context
    gc.collect()
    assert len(fake.live) == 2  # the buffer holds its context
    del buffer
    gc.collect()
    assert fake.live == {}


def test_garbage_collection_on_another_thread_frees(fake: FakeDriver, context: Context):
    box = [Buffer(context, 16)]
    thread = threading.Thread(target=box.clear)  # no context is current there
    thread.start()
    thread.join()
    assert "memory" in fake.freed


def test_launches_keep_what_they_use_alive(fake: FakeDriver, context: Context, stream: Stream):
    launch = kernel(fake, context, 8).prepare(1, 1, [Buffer(context, 16)])
    gc.collect()
    assert {"module", "memory"} <= {kind for kind, _ in fake.live}
    launch(stream)
    del launch
    gc.collect()
    assert not {"module", "memory"} & {kind for kind, _ in fake.live}


def test_closing_after_the_context_is_lost_is_silent(fake: FakeDriver):
    with Context(Device.open()) as context:
        owners = make_one_of_each(context)
        fake.sticky = 700
        with pytest.raises(ContextLost):
            context.synchronize()
        fake.log.clear()
        for owner in owners:
            owner.close()
        assert fake.names() == []
    assert context.closed


def test_a_fault_first_seen_by_a_free_is_not_swallowed(fake: FakeDriver, context: Context):
    buffer = Buffer(context, 16)
    fake.sticky = 700
    with pytest.raises(ContextLost, match="reported by cuMemFree"):
        buffer.close()
    buffer.close()


def test_the_users_exception_is_not_masked(fake: FakeDriver):
    with pytest.raises(KeyError) as caught, Context(Device.open()) as context, Buffer(context, 16):
        fake.sticky = 700
        raise KeyError("mine")
    assert "cuMemFree failed" in caught.value.__notes__[0]
    assert fake.stack == []


def test_use_after_close(fake: FakeDriver, context: Context, stream: Stream):
    buffer = Buffer(context, 16)
    function = kernel(fake, context)
    launch = function.prepare(1, 1, [])
    launch(stream)
    buffer.close()
    function.module.close()
    with pytest.raises(UsageError, match="Buffer is closed"):
        _ = buffer.ptr
    with pytest.raises(UsageError, match="Module is closed"):
        function.prepare(1, 1, [])
    stream.close()
    with pytest.raises(UsageError, match="Stream is closed"):
        launch(stream)


def test_the_ledger_notices_a_leak_and_a_double_free(fake: FakeDriver, context: Context):
    class Leaky(Buffer):
        def _free(self, handle: object) -> None:
            pass

    class Twice(Buffer):
        def _free(self, handle: object) -> None:
            super()._free(handle)
            super()._free(handle)

    Leaky(context, 16).close()
    assert [kind for kind, _ in fake.live] == ["context", "memory"]
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        Twice(context, 16).close()


# --- contexts and threads


def test_nested_blocks_close_once(fake: FakeDriver):
    with Context(Device.open()) as context:
        with context, context.current():
            assert len(fake.stack) == 3
        assert len(fake.stack) == 1 and not context.closed
    assert fake.stack == [] and context.closed
    with pytest.raises(UsageError, match="Context is closed"):
        context.__enter__()


def test_closing_inside_the_block_leaves_the_stack_of_others_alone(fake: FakeDriver):
    outer = Context(Device.open())
    with outer.current():
        with Context(Device.open(), primary=False) as inner:
            inner.close()
        assert fake.stack == [outer.handle]
    assert fake.stack == []
    outer.close()


def test_each_owner_makes_its_own_context_current(fake: FakeDriver):
    first, second = (Context(Device.open(), primary=False) for _ in range(2))
    with second.current():
        fake.log.clear()
        Buffer(first, 16).close()
        pushed = [args[0] for name, args in fake.log if name == "cuCtxPushCurrent"]
        assert pushed == [first.handle, first.handle] and fake.stack == [second.handle]
    first.close()
    second.close()


def test_threads(fake: FakeDriver, context: Context):
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with context.current():
                for _ in range(20):
                    Buffer(context, 16).close()
            assert fake.stack == []
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and not context.closed
    assert fake.freed.count("memory") == 160


def test_inside_the_block_a_call_is_one_call(fake: FakeDriver, context: Context, stream: Stream):
    event = Event(context)
    fake.log.clear()
    event.record(stream)
    assert [name for name, _ in fake.log] == ["cuEventRecord"]


# --- memory


def test_upload_and_download(fake: FakeDriver, context: Context, stream: Stream):
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    buffer, copy = Buffer(context, data.nbytes), Buffer(context, data.nbytes)
    buffer.upload(data, stream)
    copy.copy_from(buffer, stream)
    result = np.zeros_like(data)
    copy.download(result, stream)
    assert (result == data).all()
    raw = bytearray(data.nbytes)
    copy.download(raw, stream)
    assert raw == data.tobytes()
    copy.fill_u32(0x01020304, stream)
    copy.download(raw, stream)
    assert raw == b"\4\3\2\1" * 24


def test_transfers_wait_for_the_copy(fake: FakeDriver, context: Context, stream: Stream):
    buffer = Buffer(context, 4)
    fake.log.clear()
    buffer.upload(b"four", stream)
    assert fake.names() == ["cuMemcpyHtoDAsync", "cuStreamSynchronize"]


def test_transfers_check_size_layout_and_writability(fake: FakeDriver, context: Context, stream: Stream):
    buffer = Buffer(context, 64)
    with pytest.raises(UsageError, match="60 bytes, the buffer 64"):
        buffer.upload(np.zeros(15, np.float32), stream)
    with pytest.raises(UsageError, match="C-contiguous"):
        buffer.upload(np.zeros((4, 4), np.float32).T[:, ::-1], stream)
    with pytest.raises(UsageError, match="C-contiguous"):
        buffer.upload(np.arange(16, dtype=np.float32).reshape(4, 4).T, stream)
    with pytest.raises(UsageError, match="cannot copy from or to a list"):
        buffer.upload([0] * 64, stream)
    with pytest.raises(UsageError, match="read-only"):
        buffer.download(bytes(64), stream)
    with pytest.raises(UsageError, match="cannot copy 32 bytes"):
        buffer.copy_from(Buffer(context, 32), stream)
    with pytest.raises(UsageError, match="fill"):
        buffer.fill_u32(2**32, stream)
    with pytest.raises(UsageError, match="fill"):
        Buffer(context, 6).fill_u32(0, stream)


@pytest.mark.parametrize("kind", [Buffer, PinnedBuffer])
@pytest.mark.parametrize("nbytes", [0, -1])
def test_empty_buffers_are_refused(fake: FakeDriver, context: Context, kind: type, nbytes: int):
    with pytest.raises(UsageError, match="at least one byte"):
        kind(context, nbytes)


def test_cuda_array_interface(fake: FakeDriver, context: Context):
    buffer = Buffer(context, 64)
    interface = buffer.__cuda_array_interface__
    assert interface["data"] == (buffer.ptr, False)
    assert (interface["shape"], interface["typestr"], interface["version"]) == ((64,), "|u1", 3)


def test_pinned_views_keep_their_owner(fake: FakeDriver, context: Context):
    view = PinnedBuffer(context, 64).array(np.float32, (4, 4))[1:]
    gc.collect()
    assert "pinned" not in fake.freed
    view[:] = 3.0
    assert view.sum() == 36
    with pytest.raises(UsageError, match="does not fit"):
        PinnedBuffer(context, 8).array(np.float64, 2)
    del view
    gc.collect()
    assert fake.freed.count("pinned") == 2


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


# --- events and gates


def test_event(fake: FakeDriver, context: Context, stream: Stream):
    start, stop = Event(context), Event(context)
    start.record(stream)
    stop.record(stream)
    assert stop.seconds_since(start) == pytest.approx(1.5e-3)
    fake.fail("cuEventQuery", 600)
    assert not stop.done
    assert stop.done
    stream.wait(stop)
    with pytest.raises(UsageError, match="timing=False"):
        stop.seconds_since(Event(context, timing=False))


def test_gate_holds_until_opened(fake: FakeDriver, context: Context, stream: Stream):
    gate = Gate(context)
    for _ in range(3):
        gate.close_on(stream)
        assert fake.held() and gate.holds(stream)
        gate.open()
        assert not fake.held() and not gate.holds()
        gate.open()
    other = Stream(context)
    gate.close_on(stream)
    gate.close_on(other)
    gate.open()
    assert all(ctypes.c_uint32.from_address(at).value >= value for at, value in fake.waits)


def test_gate_opens_on_exception(fake: FakeDriver, context: Context, stream: Stream):
    gate = Gate(context)
    with pytest.raises(KeyError), gate.holding(stream):
        raise KeyError
    assert not fake.held()
    with pytest.raises(KeyError), Gate(context) as gate:
        gate.close_on(stream)
        raise KeyError
    assert gate.closed and not gate.holds()


def test_waiting_behind_a_closed_gate_is_refused(fake: FakeDriver, context: Context, stream: Stream):
    gate, event, other, buffer = Gate(context), Event(context), Stream(context), Buffer(context, 4)
    with gate.holding(stream):
        event.record(stream)
        for wait in [
            stream.synchronize,
            event.synchronize,
            context.synchronize,
            lambda: buffer.upload(b"four", stream),
            lambda: buffer.download(bytearray(4), stream),
        ]:
            with pytest.raises(UsageError, match="never end"):
                wait()
        other.synchronize()
    stream.synchronize()
    event.synchronize()


@pytest.mark.parametrize(("what", "held"), [("Buffer", False), ("Event", True)])
def test_frees_that_wait_open_the_gate(fake: FakeDriver, context: Context, what: str, held: bool):
    gate, owner = Gate(context), Buffer(context, 4) if what == "Buffer" else Event(context)
    gate.close_on(Stream(context))
    owner.close()
    assert fake.held() is held


def test_context_opens_gates_before_closing(fake: FakeDriver):
    with Context(Device.open()) as context:
        gate = Gate(context)
        gate.close_on(Stream(context))
        fake.log.clear()
    assert gate.closed and fake.live == {}
    names = fake.names()
    assert names.index("cuCtxSynchronize") < names.index("cuMemFreeHost")  # the GPU still read the word


def test_a_closed_gate_never_writes_its_word_again(context: Context):
    """That memory is freed: writing there ends the process (seen on an H200, at exit)."""

    class Freed:
        def __setattr__(self, name: str, value: int) -> None:
            raise AssertionError("written after it was freed")

    gate = Gate(context)
    stream = Stream(context)
    with gate.holding(stream):
        pass
    gate.close()
    gate._word = Freed()  # type: ignore[assignment]
    gate.open()
    context.open_gates()
    gate_module._open_all()


def test_an_interrupt_while_closing_leaves_the_gate_open(
    context: Context, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
):
    """Ctrl-C may arrive when the driver has queued the wait and Python has not noted it."""

    def interrupted(self: FakeDriver, *args: Any) -> None:
        self.waits.append((args[1], args[2]))
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeDriver, "_cuStreamWaitValue32", interrupted)
    gate, stream = Gate(context), Stream(context)
    with pytest.raises(KeyboardInterrupt), gate.holding(stream):
        pass
    assert not fake.held()


def test_a_gate_closed_at_exit_is_opened(tmp_path: Path):
    code = """
import atexit, sys
sys.path.insert(0, "tests")
from fake_driver import FakeDriver
from harness.driver import *
from harness.driver import api
fake = FakeDriver()
api.bindings = lambda: fake
context = Context(Device.open())
atexit._clear() if "--control" in sys.argv else None
context.__enter__()
gate = Gate(context)
gate.close_on(Stream(context))
import os, threading
# Non-daemon clean-up runs after atexit handlers: look at the last moment.
class Last:
    def __del__(self): os.write(1, b"held" if fake.held() else b"open")
keep = Last()
"""
    for argument, expected in (("", "open"), ("--control", "held")):
        run = subprocess.run(
            [sys.executable, "-c", code, argument],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent.parent,
        )
        assert run.stdout == expected, run.stderr


# --- names: the fake cannot know what the bindings really offer


def names_used(source: str) -> tuple[set[str], set[tuple[str, str]]]:
    """Names that must exist in the bindings, and (enum, member) pairs."""
    names: set[str] = set()
    members: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.isidentifier() and node.value.startswith("cu") and node.value[2:3].isupper():
                names.add(node.value)
            for enum in ("CUdevice_attribute", "CUfunction_attribute"):  # read by getattr
                prefix = {"CUdevice_attribute": "CU_DEVICE_ATTRIBUTE_"}.get(enum, "CU_FUNC_ATTRIBUTE_")
                if node.value.startswith(prefix) and node.value != prefix:
                    members.add((enum, node.value))
        if isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else ""
            if node.attr.startswith("CU_FUNC_ATTRIBUTE_"):
                members.add(("CUfunction_attribute", node.attr))
            elif node.attr.startswith(("CU_EVENT_",)):
                members.add(("CUevent_flags", node.attr))
            elif owner.startswith("CU"):
                members.add((owner, node.attr))
            elif node.attr.startswith("CU") or (node.attr.startswith("cu") and node.attr[2:3].isupper()):
                names.add(node.attr)
    return names, members


def missing(source: str) -> list[str]:
    driver = pytest.importorskip("cuda.bindings.driver")
    names, members = names_used(source)
    gone = [name for name in sorted(names) if not hasattr(driver, name)]
    gone += [f"{enum}.{name}" for enum, name in sorted(members) if not hasattr(getattr(driver, enum), name)]
    return gone


def test_every_name_exists_in_the_bindings():
    source = "\n".join(
        path.read_text().replace("from __future__ import annotations", "") for path in PACKAGE.glob("*.py")
    )
    names, members = names_used(source)
    assert {"cuMemAlloc", "cuLaunchKernelEx", "CUlaunchConfig"} <= names
    assert len(names) > 40 and len(members) > 20
    assert missing(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "call('cuMemAllok', 1)",
        "bindings().cuLaunchKernul",
        "d.CUstream_flags.CU_STREAM_NON_BLOKING",
        "read('CU_FUNC_ATTRIBUTE_NUM_REG')",
        "flags.CU_EVENT_DEFAULTS",
        "d.CUlaunchConfigs()",
    ],
)
def test_the_name_check_notices_a_wrong_name(source: str):
    assert len(missing(source)) == 1


def test_the_fake_answers_every_function_used():
    source = "\n".join(path.read_text() for path in PACKAGE.glob("*.py")).replace("from __future__", "#")
    names, _ = names_used(source)
    functions = {name for name in names if name.startswith("cu")}
    assert [name for name in sorted(functions) if not hasattr(FakeDriver, "_" + name)] == []


def test_launch_config_of_the_real_bindings_takes_cooperation():
    driver = pytest.importorskip("cuda.bindings.driver")
    attribute, config = driver.CUlaunchAttribute(), driver.CUlaunchConfig()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    attribute.value.cooperative = 1
    config.attrs = [attribute]
    config.numAttrs = 1
    assert config.attrs[0].value.cooperative == 1


def test_launch_config_of_the_real_bindings_takes_the_cluster():
    driver = pytest.importorskip("cuda.bindings.driver")
    attribute, config = driver.CUlaunchAttribute(), driver.CUlaunchConfig()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = 2, 3, 4
    config.attrs = [attribute]
    config.numAttrs = 1
    stored = config.attrs[0].value.clusterDim
    assert (stored.x, stored.y, stored.z) == (2, 3, 4)


# --- one launch for many buffers


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


def test_buffers_as_arrays(fake: FakeDriver, context: Context):
    buffer = Buffer(context, 100)
    about = buffer.array("float32", (4, 6)).__cuda_array_interface__
    assert (about["shape"], about["typestr"], about["data"]) == ((4, 6), "<f4", (buffer.ptr, False))
    assert buffer.array(np.int8, 100).shape == (100,)
    with pytest.raises(UsageError, match="104 bytes does not fit into 100"):
        buffer.array("float32", (2, 13))


def test_where_memory_is(fake: FakeDriver, context: Context):
    buffer = Buffer(context, 100)
    fake.memory_device[buffer.ptr] = 1
    assert device_of(buffer.ptr + 99) == 1
    with pytest.raises(UsageError, match="is not the address of device memory"):
        device_of(buffer.ptr + 100)


def test_which_context_is_current(fake: FakeDriver, context: Context):
    own = Context(Device.open(), primary=False)
    assert context.is_current and not own.is_current
    context.refuse_sibling()
    with own.current():
        assert own.is_current and not context.is_current
        with pytest.raises(UsageError, match="not the GPU's primary one"):
            context.refuse_sibling()
    own.close()
