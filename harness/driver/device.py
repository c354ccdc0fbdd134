"""A GPU's name, properties and theoretical peaks."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from harness.driver import api
from harness.errors import NoDevice, UsageError


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU as the driver describes it. Clocks are in Hz, sizes in bytes.

    `capability` is the compute capability (major, minor), `sms` the number of streaming multiprocessors
    (SMs).
    """

    ordinal: int
    """Index among the visible GPUs; it changes with CUDA_VISIBLE_DEVICES. `uuid` does not."""
    name: str
    uuid: str
    """``GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx``, as nvidia-smi prints it."""
    pci_bus_id: str
    capability: tuple[int, int]
    sms: int
    clock_hz: int
    """Highest SM clock. A GPU under load often runs below it: the power limit decides."""
    memory_clock_hz: int
    bus_bits: int
    memory_bytes: int
    l2_bytes: int
    shared_per_block_optin: int
    """Most shared memory a block may have, static and dynamic together, when it opts in."""
    shared_per_sm: int
    registers_per_sm: int
    max_threads_per_sm: int

    @classmethod
    def open(cls, selector: int | str | None = None) -> Self:
        """Return the GPU with this index or beginning of a UUID; the first GPU for None.

        A string of digits is an index, ``"GPU-5a"`` the beginning of a UUID, as in CUDA_VISIBLE_DEVICES.
        Raises UsageError, with a list of the visible GPUs, if none or several match; NoDriver or NoDevice if
        there is no GPU at all.
        """
        devices = cls.all()
        wanted = "0" if selector is None else str(selector).strip()
        if re.fullmatch(r"-?[0-9]+", wanted):
            found = [device for device in devices if device.ordinal == int(wanted)]
        else:
            found = [d for d in devices if wanted and d.uuid.lower().startswith(wanted.lower())]
        if len(found) == 1:
            return found[0]
        there = ", ".join(f"{device.ordinal}: {device.name} {device.uuid}" for device in devices)
        raise UsageError(
            f"{'no GPU' if not found else 'more than one GPU'} matches {selector!r}",
            hint=f"there is {there}",
        )

    @classmethod
    def all(cls) -> tuple[Self, ...]:
        """Return every visible GPU. Raises NoDriver or NoDevice if there is none."""
        api.init()
        devices = tuple(cls._read(ordinal) for ordinal in range(api.call("cuDeviceGetCount")))
        if not devices:
            raise NoDevice("the driver sees no GPU", hint="CUDA_VISIBLE_DEVICES may hide them")
        return devices

    @classmethod
    def _read(cls, ordinal: int) -> Self:
        """Read the properties of the GPU with this index."""
        handle = api.call("cuDeviceGet", ordinal)
        names = api.bindings().CUdevice_attribute

        def attribute(name: str) -> int:
            return int(api.call("cuDeviceGetAttribute", getattr(names, name), handle))

        return cls(
            ordinal=ordinal,
            name=_text(api.call("cuDeviceGetName", 256, handle)),
            uuid=f"GPU-{uuid.UUID(bytes=bytes(api.call('cuDeviceGetUuid', handle).bytes))}",
            pci_bus_id=_text(api.call("cuDeviceGetPCIBusId", 32, handle)),
            capability=(
                attribute("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR"),
                attribute("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR"),
            ),
            sms=attribute("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT"),
            clock_hz=attribute("CU_DEVICE_ATTRIBUTE_CLOCK_RATE") * 1000,  # the driver counts in kHz
            memory_clock_hz=attribute("CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE") * 1000,
            bus_bits=attribute("CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH"),
            memory_bytes=int(api.call("cuDeviceTotalMem", handle)),
            l2_bytes=attribute("CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"),
            shared_per_block_optin=attribute("CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            shared_per_sm=attribute("CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            registers_per_sm=attribute("CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR"),
            max_threads_per_sm=attribute("CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR"),
        )

    @classmethod
    def of_record(cls, gpu: Mapping[str, Any]) -> Device | None:
        """Return the device of a record's entry ``gpu``; None if that lacks an attribute."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: gpu[name] for name in names}) if set(names) <= gpu.keys() else None

    @property
    def arch(self) -> str:
        """The architecture, as ``"sm_90"``.

        Kernels that use wgmma or setmaxnreg must be compiled for ``"sm_90a"`` instead.
        """
        return "sm_{}{}".format(*self.capability)

    @property
    def peak_fp32(self) -> float:
        """The peak in FLOP/s of fp32 outside the tensor cores at `clock_hz`, with an FMA counted as 2.

        An SM has 64 lanes for capability 7.0 to 8.0 and 128 from 8.6 on (CUDA C++ Programming Guide, table of
        arithmetic throughput).
        """
        lanes = 64 if self.capability <= (8, 0) else 128
        return 2.0 * lanes * self.sms * self.clock_hz

    @property
    def peak_bandwidth(self) -> float:
        """The peak bandwidth of device memory in bytes/s: two transfers per memory clock.

        0 if the driver reports no memory clock.
        """
        return 2.0 * self.memory_clock_hz * self.bus_bits / 8


def _text(raw: bytes) -> str:
    """Return the text in a buffer of the bindings."""
    # The bindings hand back the whole buffer: the text, a NUL, and padding.
    return raw.split(b"\0", 1)[0].decode()
