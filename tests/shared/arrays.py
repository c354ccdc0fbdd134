"""Device arrays of several libraries on the fake driver, and a dispatcher that has prepared nothing."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes import gemm as fake_gemm
from fakes.driver import FakeDriver, image, install
from harness.dispatch import arrays
from harness.dispatch.call import gpus
from harness.driver import Buffer, Context, Device
from harness.kernels.dtypes import DType


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Install a fake GPU whose kernels are all GEMMs, with a dispatcher that has prepared nothing."""
    fake = install(monkeypatch, devices=2)
    fake.functions = {"matmul": None}
    fake.function_attributes["CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES"] = 0
    fake.execute = fake_gemm.gemm
    monkeypatch.setattr(gpus, "_gpus", {})
    compiled: list[str] = []
    fake.compiled = compiled

    def compile_kernel(variant: Any, arch: str) -> Any:
        compiled.append(f"{variant.label} {arch}")
        return SimpleNamespace(code=image(fake_gemm.sizes(variant)), entry=variant.entry)

    monkeypatch.setattr(gpus, "compile_kernel", compile_kernel)
    yield fake
    for one in gpus._gpus.values():
        one.context.close()


@pytest.fixture
def gpu(fake: FakeDriver) -> Iterator[Context]:
    with Context(Device.open(0)) as context:
        yield context


class Array:
    """A matrix of another library: a view of fake device memory, which is host memory."""

    def __init__(self, gpu: Context, rows: int, columns: int, *, ld: int = 0, seed: int = 0) -> None:
        self.ld = ld or columns
        self.buffer = Buffer(gpu, 4 * rows * self.ld)
        self.shape = (rows, columns)
        memory = (ctypes.c_float * (rows * self.ld)).from_address(self.buffer.ptr)
        self.whole = np.frombuffer(memory, np.float32).reshape(rows, self.ld)
        self.whole[:] = np.random.default_rng(seed).standard_normal(self.whole.shape)
        self.host = self.whole[:, :columns]
        self.about: dict[str, Any] = {}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": "<f4",
            "data": (self.host.ctypes.data, False),
            "strides": self.host.strides,
            "version": 3,
            **self.about,
        }


def operands(gpu: Context, M: int = 5, N: int = 7, K: int = 3) -> tuple[Array, Array, Array]:
    return Array(gpu, M, K, seed=1), Array(gpu, K, N, seed=2), Array(gpu, M, N, seed=3)


TYPESTR = {"fp32": "<f4", "fp16": "<f2", "bf16": "<V2"}
NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class Typed(Array):
    """A matrix of a type, as CuPy would hand it over (bfloat16: that of ml_dtypes); `offset` in elements."""

    def __init__(
        self, gpu: Context, dtype: DType, rows: int, columns: int, *, ld: int = 0, offset: int = 0
    ) -> None:
        self.ld, self.shape, self.type = ld or columns, (rows, columns), dtype
        size = dtype.itemsize
        self.buffer = Buffer(gpu, size * (rows * self.ld + offset) + 16)
        start = -(-self.buffer.ptr // 16) * 16 + size * offset  # the fake's memory is aligned to 16 at best
        raw = (ctypes.c_char * (size * rows * self.ld)).from_address(start)
        self.whole = np.frombuffer(raw, dtype.storage).reshape(rows, self.ld)
        values = np.random.default_rng(rows + columns).standard_normal(self.whole.shape, np.float32)
        self.whole[:] = dtype.encode(values)
        self.host = self.whole[:, :columns]
        self.about: dict[str, Any] = {"typestr": TYPESTR[dtype.name]}
        self.dtype = NAMES[dtype.name]


@pytest.fixture
def kernels(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """The fake GPU with kernels of every type: how many maps they take is what their files say."""
    kernel = fake_gemm.TypedGemm()
    original = gpus.compile_kernel

    def compile_kernel(variant: Any, arch: str) -> Any:
        if variant.entry == "matmul":
            kernel.becomes(variant)
        return original(variant, arch)

    monkeypatch.setattr(gpus, "compile_kernel", compile_kernel)
    fake_gemm.without_small_tiles(monkeypatch)
    fake.execute = kernel
    return fake


class Dlpack:
    """An array that exports DLPack alone: NumPy's capsule with its device changed to a GPU."""

    def __init__(self, array: Array, *, device: int = 2, host: Any = None) -> None:
        self.array, self.device = array, device
        self.host = array.host if host is None else host
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        capsule = self.host.__dlpack__()
        tensor = arrays._Tensor.from_address(arrays._capsule_pointer(capsule, b"dltensor"))
        tensor.device_type = self.device
        return capsule


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the part of PyTorch that the dispatcher uses; tests/gpu/test_matmul_gpu.py has the real one."""

    class Tensor:
        is_cuda, requires_grad, device = True, False, "cuda:0"

        def __init__(self, array: Array) -> None:
            self.array, self.dtype = array, module.float32

        shape = property(lambda self: self.array.shape)

        def stride(self) -> tuple[int, ...]:
            return tuple(s // 4 for s in self.array.host.strides)

        def data_ptr(self) -> int:
            return int(self.array.host.ctypes.data)

        def get_device(self) -> int:
            return 0

        def new_empty(self, shape: tuple[int, int]) -> Tensor:
            return Tensor(Array(self.array.buffer.context, *shape))

    current = SimpleNamespace(cuda_stream=0x5500)
    module = SimpleNamespace(
        Tensor=Tensor,
        float32="torch.float32",
        current=current,
        cuda=SimpleNamespace(current_stream=lambda device: current),
        is_grad_enabled=lambda: True,
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    return module
