"""The way to the driver, what it reports and which devices there are."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fakes.driver import FakeDriver, install
from harness.driver import Buffer, Context, Device, Event, Stream, api, driver_version
from harness.errors import (
    ContextLost,
    DriverError,
    MissingDependency,
    NoDevice,
    NoDriver,
    OutOfMemory,
    UsageError,
)
from shared.driver_parts import STICKY, kernel

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
    assert device.peak_bandwidth == pytest.approx(4.81e12, rel=0.001)  # and 4.8 TB/s


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
