"""Read the GPU's clock, power and throttle reasons through NVML (``nvidia-ml-py``), where installed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.support.resources import Closing

# NVML's bits of the reasons that lower the clock; idling and application clock settings do not count.
_THROTTLE = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The state of the GPU at one moment.

    `sm_mhz` is the SM clock in MHz. `power` is in watts (an average over up to a second on GPUs before
    Ampere), `temperature` in degrees Celsius. `throttle` names the reasons that hold the clock down, empty if
    none does.
    """

    sm_mhz: int
    power: float
    temperature: int
    throttle: tuple[str, ...]


class Telemetry(Closing):
    """A source of readings of one GPU, which is found by its UUID.

    Under CUDA_VISIBLE_DEVICES an index would mean another card. Without NVML `read` returns None and
    `unavailable` says why; it is empty otherwise.
    """

    def __init__(self, uuid: str) -> None:
        self.unavailable = ""
        self._nvml: Any = None
        try:
            import pynvml
        except ImportError:
            self.unavailable = "nvidia-ml-py is not installed: clock and power are not recorded"
            return
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            self._device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError as e:
            self.unavailable = f"NVML: {e}: clock and power are not recorded"
            self.close()
        else:
            self.read()

    def read(self) -> Reading | None:
        """Return a reading of this moment; None where NVML cannot be used or no longer answers.

        In that case `unavailable` says why, and NVML is not asked again.
        """
        if self._nvml is None:
            return None
        try:
            return self._read()
        except self._nvml.NVMLError as e:
            self.unavailable = f"NVML: {e}: clock and power are not recorded"
            self.close()
            return None

    def _read(self) -> Reading:
        nvml = self._nvml
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._device)
        return Reading(
            sm_mhz=nvml.nvmlDeviceGetClockInfo(self._device, nvml.NVML_CLOCK_SM),
            power=self._power(),
            temperature=nvml.nvmlDeviceGetTemperature(self._device, nvml.NVML_TEMPERATURE_GPU),
            throttle=tuple(name for bit, name in _THROTTLE.items() if reasons & bit),
        )

    def _power(self) -> float:
        """Return the power in watts: at this moment where the driver offers it, else NVML's average."""
        nvml = self._nvml
        (field,) = nvml.nvmlDeviceGetFieldValues(self._device, [nvml.NVML_FI_DEV_POWER_INSTANT])
        if field.nvmlReturn == nvml.NVML_SUCCESS:
            return float(field.value.uiVal) / 1000
        return float(nvml.nvmlDeviceGetPowerUsage(self._device)) / 1000

    def close(self) -> None:
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml = None


def summarize(readings: Sequence[Reading]) -> Reading | None:
    """Return median clock and power, highest temperature and every throttle reason; None if there are no
    readings.
    """
    if not readings:
        return None
    return Reading(
        sm_mhz=sorted(r.sm_mhz for r in readings)[len(readings) // 2],
        power=sorted(r.power for r in readings)[len(readings) // 2],
        temperature=max(r.temperature for r in readings),
        throttle=tuple(sorted({name for r in readings for name in r.throttle})),
    )
