"""Modules, functions and launches of the fake driver: what was launched, with its parameters' bytes."""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from fakes import fresh
from fakes.driver.contexts import CUresult
from fakes.driver.memory import Memory
from harness.sass import nvdisasm

FUNCTION = {
    "CU_FUNC_ATTRIBUTE_NUM_REGS": 32,
    "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 1024,
    "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES": 0,
    "CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES": 0,
    "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": 1024,
    "CU_FUNC_ATTRIBUTE_PTX_VERSION": 90,
    "CU_FUNC_ATTRIBUTE_BINARY_VERSION": 90,
    "CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH": 0,
    "CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT": 0,
    "CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH": 0,
}
OURS = {  # kernels of the harness, and sizes of their parameters
    "stamp": (8, 4),
    "fingerprint": (8, 8, 8),
    "copy_rows": (8, 8, 4, 4, 8, 8),
    **{name: fresh.sizes(name) for name in fresh.KERNELS},
}


class Loaded(str):
    """A function's handle: its name, and what it was loaded from."""

    image: bytes

    def __int__(self) -> int:
        return id(self)


_SIZES = b"sizes of parameters:"


def image(sizes: Sequence[int]) -> bytes:
    """Return bytes to load in place of a cubin whose kernels take parameters of these sizes."""
    return _SIZES + struct.pack(f"<{len(sizes)}I", *sizes)


def parameter_sizes(image: bytes, function: str) -> tuple[int, ...]:
    """Return the sizes of a kernel's parameters in bytes. A cubin has an attribute 0x17 (KPARAM_INFO) for
    each, whose last 14 bits are the size.
    """
    if image.startswith(_SIZES):
        found = image[len(_SIZES) :]
        return struct.unpack(f"<{len(found) // 4}I", found)
    info, at, sizes = nvdisasm.sections(image)[f".nv.info.{function}"], 0, {}
    while at < len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:  # `length` bytes follow; else it is the value
            if attribute == 0x17:
                index, last = struct.unpack_from("<4xH2xI", info, at)
                sizes[index] = last >> 18
            at += length
    return tuple(sizes[i] for i in range(len(sizes)))


class Launches(Memory):
    """Modules whose functions are known by name; a launch is noted, and computed where a test says how."""

    def __init__(self, **options: int) -> None:
        super().__init__(**options)
        self.functions: dict[str, tuple[int, ...] | None] = {"kernel": ()}
        self.function_attributes = dict(FUNCTION)
        self.variables: dict[str, ctypes.Array[ctypes.c_char]] = {}  # of modules, by mangled name
        self.launches: list[SimpleNamespace] = []
        self.execute: Callable[[SimpleNamespace], None] | None = None
        self.copied_rows: list[int] = []  # streams of the launches of copy_rows.cu
        self.sm_ghz = 1.98
        self._stamps = self._cycles = 0

    # --- modules and functions

    def _cuModuleLoadData(self, image: bytes) -> Any:
        return (self._add("module", image),)

    def _cuModuleUnload(self, module: int) -> Any:
        return self._drop("module", module)

    def _cuModuleGetFunction(self, module: int, name: bytes) -> Any:
        function = Loaded(name.decode())
        function.image = self.live["module", module]
        found = function in self.functions or function in OURS
        return (function,) if found else CUresult.CUDA_ERROR_NOT_FOUND

    def _cuModuleGetGlobal(self, module: int, name: bytes) -> Any:
        if name.decode() not in self.variables:
            return CUresult.CUDA_ERROR_NOT_FOUND
        memory = self.variables[name.decode()]
        return ctypes.addressof(memory), len(memory)

    def _cuModuleGetFunctionCount(self, module: int) -> Any:
        return (len(self.functions),)

    def _cuModuleEnumerateFunctions(self, count: int, module: int) -> Any:
        return (list(self.functions)[:count],)

    def _cuFuncGetName(self, function: str) -> Any:
        return (function.encode(),)

    def _cuFuncLoad(self, function: str) -> Any:
        return ()

    def _cuFuncGetAttribute(self, attribute: str, function: str) -> Any:
        return (self.function_attributes[attribute],)

    def _cuFuncSetAttribute(self, function: str, attribute: str, value: int) -> Any:
        return ()

    def _cuFuncGetParamInfo(self, function: str, index: int) -> Any:
        sizes = self._sizes(function)
        return (0, sizes[index]) if index < len(sizes) else CUresult.CUDA_ERROR_INVALID_VALUE

    def _sizes(self, function: Loaded) -> tuple[int, ...]:
        sizes = OURS.get(function) or self.functions[function]
        return parameter_sizes(function.image, function) if sizes is None else sizes

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function: str, threads: int, shared: int) -> Any:
        return (2048 // (-(-threads // 32) * 32),)

    # --- launches

    def _cuLaunchKernelEx(self, config: Any, function: str, parameters: int, extra: int) -> Any:
        dims = tuple(getattr(config, part + "Dim" + axis) for part in ("grid", "block") for axis in "XYZ")
        given = {a.id: a.value for a in getattr(config, "attrs", [])}
        clustered = given.get("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION")
        cluster = vars(clustered.clusterDim) if clustered else {}
        size = tuple(cluster[axis] for axis in "xyz") if cluster else None
        shared, stream = config.sharedMemBytes, config.hStream

        if function in fresh.KERNELS:
            fresh.run(function, (ctypes.c_void_p * len(fresh.KERNELS[function])).from_address(parameters))
            return ()
        if function in OURS:
            getattr(self, "_" + function)(parameters, stream)
            return ()
        sizes = self._sizes(function)
        addresses = (ctypes.c_void_p * len(sizes)).from_address(parameters) if sizes else ()
        launch = SimpleNamespace(
            function=function,
            grid=dims[:3],
            block=dims[3:],
            shared=shared,
            stream=stream,
            cooperative="CU_LAUNCH_ATTRIBUTE_COOPERATIVE" in given,
            programmatic="CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION" in given,
            args=[ctypes.string_at(at, size) for at, size in zip(addresses, sizes, strict=True)],
            addresses=list(addresses),
            cluster=size,
        )
        self._queue(stream, lambda: self._launched(launch))
        return ()

    def _launched(self, launch: SimpleNamespace) -> None:
        self.launches.append(launch)
        if self.execute is not None:
            self.execute(launch)

    # --- kernels of the harness

    def _stamp(self, parameters: int, stream: int) -> None:
        (address,) = (ctypes.c_void_p * 1).from_address(parameters)
        entries = ctypes.c_uint64.from_address(address).value
        self._stamps += 1
        self._cycles += int(10_000_000 * self.sm_ghz)
        (ctypes.c_uint64 * 2).from_address(entries)[:] = self._cycles, 10_000_000 * self._stamps

    def _fingerprint(self, parameters: int, stream: int) -> None:
        """Write 16 bytes that stand for the content."""
        data, nbytes, sums = (
            ctypes.c_uint64.from_address(at).value for at in (ctypes.c_void_p * 3).from_address(parameters)
        )
        contents = ctypes.string_at(data, nbytes)
        ctypes.memmove(sums, hashlib.blake2b(contents, digest_size=16).digest(), 16)

    def _copy_rows(self, parameters: int, stream: int) -> None:
        given = zip((ctypes.c_void_p * 6).from_address(parameters), OURS["copy_rows"], strict=True)
        values = struct.unpack("=QQIIqq", b"".join(ctypes.string_at(at, size) for at, size in given))
        source, target, rows, width, *pitches = values
        assert width <= min(pitches) and pitches[1] % 16 == target % 16 == 0
        self.copied_rows.append(int(stream))

        def run() -> None:
            for row in range(rows):
                ctypes.memmove(target + row * pitches[1], source + row * pitches[0], width)

        self._queue(stream, run)
