"""The driver layer on a real GPU."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from harness.driver import (
    Buffer,
    Context,
    Device,
    Event,
    Function,
    Gate,
    Module,
    PinnedBuffer,
    Stream,
    Struct,
    api,
    driver_version,
)
from harness.errors import DriverError, OutOfMemory, UsageError
from shared.places import ROOT

pytestmark = pytest.mark.gpu


ADD = """
extern "C" __global__ void add(const float* a, const float* b, float* c, int n, float scale) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = scale * (a[i] + b[i]);
}
"""
KERNELS = (
    ADD
    + """
struct __align__(64) Opaque { unsigned int words[32]; };
extern "C" __global__ void unpack(char before, Opaque opaque, double after, double* out) {
    if (threadIdx.x < 32) out[threadIdx.x] = opaque.words[threadIdx.x];
    if (threadIdx.x == 32) out[32] = before;
    if (threadIdx.x == 33) out[33] = after;
}
extern "C" __global__ void rank(unsigned int* out) {
    unsigned int r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    out[blockIdx.x] = r;
}
extern "C" __global__ void reverse(int* data, int n) {
    extern __shared__ int tile[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = data[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) data[i] = tile[n - 1 - i];
}
extern "C" __global__ void store(unsigned long long address) { *(volatile int*)address = 1; }
extern "C" __global__ void nothing() {}
"""
)


def compile_cubin(source: str, arch: str) -> bytes:
    from cuda.bindings import nvrtc

    def check(result: object, *values: object) -> object:
        assert int(result) == 0, result  # type: ignore[call-overload]
        return values[0] if values else None

    program = check(*nvrtc.nvrtcCreateProgram(source.encode(), b"test.cu", 0, None, None))
    options = [f"--gpu-architecture={arch}".encode()]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(result) != 0:
        log = bytearray(check(*nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.decode())
    size = check(*nvrtc.nvrtcGetCUBINSize(program))
    cubin = bytearray(size)
    check(*nvrtc.nvrtcGetCUBIN(program, cubin))
    check(*nvrtc.nvrtcDestroyProgram(program))
    return bytes(cubin)


@pytest.fixture(scope="module")
def cubin() -> bytes:
    device = Device.open()
    source = KERNELS
    if device.capability < (9, 0):  # no clusters there
        source = source.replace('asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));', "r = 0;")
    return compile_cubin(source, device.arch)


@pytest.fixture
def module(gpu: Context, cubin: bytes):
    with gpu.current(), Module(gpu, cubin) as module:
        yield module


@pytest.fixture
def stream(gpu: Context):
    with gpu.current(), Stream(gpu) as stream:
        yield stream


def download(buffer: Buffer, dtype: type, stream: Stream) -> np.ndarray:
    result = np.zeros(buffer.nbytes // np.dtype(dtype).itemsize, dtype)
    buffer.download(result, stream)
    return result


def test_device_attributes_are_sane(gpu: Context):
    device = gpu.device
    assert driver_version() >= (13, 0)
    assert device.capability >= (7, 5)
    assert 1 <= device.sms <= 1000
    assert 5e8 < device.clock_hz < 5e9
    assert 48 << 10 <= device.shared_per_block_optin <= device.shared_per_sm <= 1 << 20
    assert device.registers_per_sm == 65536
    assert device.max_threads_per_sm in (1024, 1536, 2048)
    assert 1e12 < device.peak_fp32 < 1e15
    assert device.l2_bytes > 1 << 20
    assert len(device.pci_bus_id) == 12
    free, total = gpu.memory_info()
    assert 0 < free <= total <= device.memory_bytes
    if device.name == "NVIDIA H200":
        assert device.peak_fp32 == pytest.approx(66.9e12, rel=0.01)
        assert device.peak_bandwidth == pytest.approx(4.9e12, rel=0.02)
    print(f"\n{device}")


def test_device_by_uuid(gpu: Context):
    device = gpu.device
    assert Device.open(device.uuid) == device
    assert Device.open(device.uuid[:16]) == device
    with pytest.raises(UsageError, match="no GPU matches"):
        Device.open("GPU-nonsense")


def test_device_uuid_is_the_one_nvidia_smi_prints(gpu: Context):
    try:
        run = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nvidia-smi does not work: {error}")
    assert gpu.device.uuid in run.stdout


def test_upload_download_fill_copy(gpu: Context, stream: Stream):
    data = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
    with Buffer(gpu, data.nbytes) as buffer, Buffer(gpu, data.nbytes) as copy:
        buffer.upload(data, stream)
        copy.copy_from(buffer, stream)
        assert (download(copy, np.uint8, stream) == data).all()
        copy.fill_u32(0xDEADBEEF, stream)
        assert (download(copy, np.uint32, stream) == 0xDEADBEEF).all()
        with PinnedBuffer(gpu, data.nbytes) as pinned:
            buffer.download(pinned.array(np.uint8, data.shape), stream)
            assert (pinned.array(np.uint8, data.shape) == data).all()


def test_vector_add(gpu: Context, module: Module, stream: Stream):
    n = 100_003
    rng = np.random.default_rng(2)
    a, b = rng.random(n, np.float32), rng.random(n, np.float32)
    with Buffer(gpu, a.nbytes) as da, Buffer(gpu, a.nbytes) as db, Buffer(gpu, a.nbytes) as dc:
        da.upload(a, stream)
        db.upload(b, stream)
        function = module.function("add")
        launch = function.prepare(-(-n // 256), 256, [da, db, dc, np.int32(n), np.float32(0.5)])
        launch(stream)
        assert (download(dc, np.float32, stream) == np.float32(0.5) * (a + b)).all()
        assert function.attributes.registers > 0
        assert function.attributes.binary_version == 10 * gpu.device.capability[0] + gpu.device.capability[1]
        assert function.parameter_sizes == (8, 8, 8, 4, 4)
        assert function.occupancy(256) == 1.0
        assert function.occupancy(32) < 1.0
        with pytest.raises(UsageError, match="takes 5 arguments"):
            function.prepare(1, 1, [da, db, dc, np.int64(n), np.float32(0.5)])


def test_a_struct_by_value(gpu: Context, module: Module, stream: Stream):
    words = np.arange(1000, 1032, dtype=np.uint32)
    with Buffer(gpu, 34 * 8) as out:
        args = [np.int8(-5), Struct(words.tobytes(), align=64), ctypes.c_double(2.5), out]
        module.function("unpack").prepare(1, 64, args)(stream)
        assert download(out, np.float64, stream).tolist() == [*words.tolist(), -5.0, 2.5]


@pytest.mark.parametrize("size", [1, 2, 8, 16])
def test_clusters(gpu: Context, module: Module, stream: Stream, size: int):
    if gpu.device.capability < (9, 0):
        pytest.skip("clusters need sm_90")
    with Buffer(gpu, 4 * 32) as out:
        launch = module.function("rank").prepare(32, 32, [out], cluster=size)
        launch(stream)
        assert download(out, np.uint32, stream).tolist() == [i % size for i in range(32)]


def test_dynamic_shared_memory_above_48_kb(gpu: Context, module: Module, stream: Stream):
    nbytes = gpu.device.shared_per_block_optin
    if nbytes <= 48 << 10:
        pytest.skip("this GPU offers no more than 48 KB")
    data = np.arange(nbytes // 4, dtype=np.int32)
    function = module.function("reverse")
    with Buffer(gpu, data.nbytes) as buffer:
        buffer.upload(data, stream)
        function.prepare(1, 1024, [buffer, np.int32(data.size)], shared=nbytes)(stream)
        assert (download(buffer, np.int32, stream) == data[::-1]).all()
        assert function.max_active_blocks(1024, nbytes) == 1
        with pytest.raises(UsageError, match="do not fit"):
            function.prepare(1, 1024, [buffer, np.int32(data.size)], shared=nbytes + 1)


def test_event_timing(gpu: Context, stream: Stream):
    start, stop = Event(gpu), Event(gpu)
    with Buffer(gpu, 64 << 20) as buffer:
        start.record(stream)
        buffer.fill_u32(0, stream)
        stop.record(stream)
        stop.synchronize()
        assert stop.done
        assert 1e-6 < stop.seconds_since(start) < 1.0


def test_streams_wait_for_events(gpu: Context, stream: Stream):
    other, event, done = Stream(gpu), Event(gpu, timing=False), Event(gpu)
    gate = Gate(gpu)
    with gate.holding(stream):
        event.record(stream)
        other.wait(event)
        done.record(other)
        time.sleep(0.05)
        assert not done.done
    other.synchronize()
    assert done.done


def test_gate_really_holds_work_back(gpu: Context, module: Module, stream: Stream):
    event, free = Event(gpu), Event(gpu)
    launch, other = module.function("nothing").prepare(1, 1, []), Stream(gpu)
    with Gate(gpu) as gate:
        for _ in range(100):
            with gate.holding(stream):
                launch(stream)  # the first launch too: the kernel is loaded already
                event.record(stream)
                free.record(other)
                other.synchronize()
                assert free.done and not event.done
            event.synchronize()
            assert event.done
        with gate.holding(stream):
            launch(stream)
            event.record(stream)
            time.sleep(0.2)
            assert not event.done
        stream.synchronize()


def test_a_free_behind_a_closed_gate_does_not_hang(gpu: Context, stream: Stream):
    gate, buffer = Gate(gpu), Buffer(gpu, 1 << 20)
    gate.close_on(stream)
    buffer.fill_u32(1, stream)
    buffer.close()
    gate.close()


def test_exit_behind_a_closed_gate_does_not_hang():
    code = """
        from harness.driver import *
        context = Context(Device.open())
        context.__enter__()
        stream, gate, buffer = Stream(context), Gate(context), Buffer(context, 1024)
        gate.close_on(stream)
        buffer.fill_u32(1, stream)
        print("end")
    """
    run = in_a_process(code)
    assert (run.returncode, run.stdout.strip()) == (0, "end"), run.stderr


def test_out_of_memory_leaves_the_context_working(gpu: Context, stream: Stream):
    _, total = gpu.memory_info()
    with pytest.raises(OutOfMemory, match=f"{2 * total:,} bytes asked, .* free"):
        Buffer(gpu, 2 * total)
    assert not gpu.lost
    with Buffer(gpu, 1024) as buffer:
        buffer.fill_u32(7, stream)
        assert (download(buffer, np.uint32, stream) == 7).all()


@pytest.mark.alone
def test_nothing_leaks(gpu: Context, cubin: bytes, stream: Stream):
    def one_round() -> None:
        with Buffer(gpu, 8 << 20), Buffer(gpu, 4096), PinnedBuffer(gpu, 1 << 20), Gate(gpu) as gate:
            function = Module(gpu, cubin).function("nothing")
            with gate.holding(stream):
                function.prepare(1, 32, [])(stream)
            Event(gpu).record(stream)
            Stream(gpu).synchronize()

    for _ in range(3):
        one_round()
    gc.collect()
    before, _ = gpu.memory_info()
    for _ in range(50):
        one_round()
    gc.collect()
    after, _ = gpu.memory_info()
    assert before - after < 8 << 20  # one round's buffer; a leak would be fifty
    kept = [Buffer(gpu, 8 << 20) for _ in range(2)]
    assert after - gpu.memory_info()[0] >= 16 << 20  # the check does see memory that is kept
    del kept


@pytest.mark.alone
def test_own_contexts_come_and_go(gpu: Context, cubin: bytes):
    gpu.synchronize()
    free, _ = gpu.memory_info()
    for _ in range(3):
        with Context(gpu.device, primary=False) as context:
            stream, out = Stream(context), Buffer(context, 32 << 20)
            Module(context, cubin).function("nothing").prepare(1, 1, [])(stream)
            out.fill_u32(3, stream)
            assert (download(out, np.uint32, stream) == 3).all()
    assert free - gpu.memory_info()[0] < 32 << 20


def test_another_thread(gpu: Context, module: Module):
    results: list[object] = []

    def work() -> None:
        try:
            with gpu.current(), Stream(gpu) as stream, Buffer(gpu, 64) as buffer:
                module.function("nothing").prepare(1, 1, [])(stream)
                buffer.fill_u32(5, stream)
                results.append(int(download(buffer, np.uint32, stream)[3]))
            with Stream(gpu) as stream, Buffer(gpu, 64) as buffer:  # outside: each call for itself
                buffer.fill_u32(6, stream)
                results.append(int(download(buffer, np.uint32, stream)[3]))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [5, 6]


def test_unknown_kernel(module: Module):
    with pytest.raises(DriverError, match="no kernel 'substract'") as caught:
        module.function("substract")
    assert caught.value.code == 500
    assert "add" in caught.value.hint and "reverse" in caught.value.hint


def test_a_cubin_for_another_architecture_is_refused(gpu: Context):
    if gpu.device.capability[0] == 7:
        pytest.skip("sm_75 is this GPU's own")
    with pytest.raises(DriverError) as caught:
        Module(gpu, compile_cubin(ADD, "sm_75"))
    assert caught.value.code == 209
    assert "architecture" in caught.value.hint


def test_garbage_is_no_cubin(gpu: Context):
    with pytest.raises(DriverError) as caught:
        Module(gpu, b"this is not a cubin")
    print(f"\n{caught.value}")
    assert not gpu.lost


def test_newer_ptx_is_refused(gpu: Context):
    with pytest.raises(DriverError) as caught:
        Module(gpu, b".version 19.9\n.target sm_75\n.address_size 64\n")
    assert (caught.value.code, "newer than the driver" in caught.value.hint) == (222, True)


def in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )


FAULT = """
    import sys
    import numpy as np
    sys.path[:0] = ["tests", "tests/gpu"]
    from test_driver_gpu import KERNELS, compile_cubin
    from harness.driver import *
    from harness.errors import ContextLost
    device = Device.open()
    source = KERNELS.replace('asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));', "r = 0;")
    cubin = compile_cubin(source, device.arch)
    with Context(device, primary={primary}) as context:
        stream, buffer, event = Stream(context), Buffer(context, 64), Event(context)
        launch = Module(context, cubin).function("store").prepare(1, 1, [np.uint64({address})])
        launch(stream)
        for attempt in (stream.synchronize, lambda: Buffer(context, 64), lambda: event.record(stream)):
            try:
                attempt()
            except ContextLost as error:
                print("ContextLost", error.code, error)
        print("lost", context.lost)
        for owner in (event, buffer, stream):
            owner.close()
        print("closed")
    try:
        with Context(device, primary={primary}) as context:
            Buffer(context, 64).fill_u32(1, Stream(context))
            context.synchronize()
        print("a new Context works")
    except ContextLost as error:
        print("a new Context fails:", error)
"""


@pytest.mark.parametrize("primary", [True, False])
@pytest.mark.parametrize(
    ("fault", "address", "code"), [("illegal", "64", 700), ("misaligned", "buffer.ptr + 1", 716)]
)
def test_faults_lose_the_context(gpu: Context, fault: str, address: str, code: int, primary: bool):
    run = in_a_process(FAULT.replace("{primary}", str(primary)).replace("{address}", address))
    print(f"\n{fault}, primary={primary}\n{run.stdout}{run.stderr}")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(f"ContextLost {code} ") == 3
    assert "reported by cuStreamSynchronize; the fault came from an earlier launch" in run.stdout
    assert "lost True\nclosed\n" in run.stdout
    assert run.stderr == ""


def microseconds(work: object, rounds: int = 5, each: int = 500) -> float:
    """The best round's mean; few enough launches a round that the queue never fills."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(each):
            work()  # type: ignore[operator]
        best = min(best, (time.perf_counter() - begin) / each)
        time.sleep(0.01)
    return best * 1e6


@pytest.mark.alone
def test_launch_overhead(gpu: Context, module: Module, stream: Stream):
    n = 256
    with Buffer(gpu, 4 * n) as a:
        function: Function = module.function("add")
        launch = function.prepare(1, 256, [a, a, a, np.int32(n), np.float32(1)])
        launch(stream)
        prepared = microseconds(lambda: launch(stream))
        driver = api.bindings()
        values = (a.ptr, a.ptr, a.ptr, n, 1.0)
        types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_float)

        def raw() -> None:
            driver.cuLaunchKernel(function.handle, 1, 1, 1, 256, 1, 1, 0, stream.handle, (values, types), 0)

        tuples = microseconds(raw)
        event = Event(gpu)
        recorded = microseconds(lambda: event.record(stream))
        stream.synchronize()
        report = (
            f"PreparedLaunch {prepared:.2f} us, argument tuples {tuples:.2f} us, record {recorded:.2f} us"
        )
        if gpu.device.capability >= (9, 0):
            clustered = function.prepare(2, 256, [a, a, a, np.int32(n), np.float32(1)], cluster=2)
            clustered(stream)
            report += f", with a cluster {microseconds(lambda: clustered(stream)):.2f} us"
        stream.synchronize()
        print(f"\n{report}")
        assert prepared < 20
