"""Measure the ceilings of this very card: the FLOP/s and bytes/s that two simple kernels reach on it.

A percentage of a data sheet's peak says little about a card that runs at another clock, and a rate above that
peak is not impossible. A rate above these ceilings is, and `impossible` says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from harness.bench import sampling
from harness.bench.stopping import StopRule
from harness.bench.timing import Timer, Work
from harness.driver import Context, Device, Stream, driver_version
from harness.errors import HarnessError
from harness.kernels import catalog
from harness.kernels.arch import Arch
from harness.kernels.compiler import Cubin, compile_kernel
from harness.launch import kernel
from harness.launch.operands import Operands
from harness.problems.gemm import Gemm
from harness.problems.protocol import Problem
from harness.problems.registry import resolve
from harness.problems.verify import compare
from harness.support.cache import Cache, digest

# A measurement may exceed a ceiling by this factor: both have noise, and a kernel may find some of its data
# in a cache.
_MARGIN = 1.02
# Without measured ceilings, a rate may exceed the rated peak by this factor: many cards run above the clock
# that their driver reports.
_ABOVE_RATED = 1.3
# Dense multiply-adds of the tensor cores for each one of the float32 units, on A100 to H200 (NVIDIA's white
# papers). Consumer cards have fewer; from compute capability 10.0 on (B200) there are twice as many.
_MATRIX = {"tf32": 8, "3xtf32": 8 / 3, "bf16": 16, "fp16": 16}
# The most that matrix instructions can do for a result as accurate as the type's bounds ask, by type: fp16
# reads 11 bits of an input, as tf32 does, and three products of it 22.
_EMULATED = {"fp32": 16 / 3, "3xtf32": 16 / 3, "tf32": 16, "bf16": 16, "fp16": 16}
_RULE = StopRule(min_time=0.2, timeout=0.5)
_COPY_OVER_L2 = 8  # the copy moves this many times the size of the L2 cache, so that none of it stays there
_FMA_STEPS = 2**15


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """One highest reachable rate.

    `rate` is in FLOP/s or bytes/s; `sm_hz` is the SM clock in Hz at which it was measured, None where the
    clock could not be measured.
    """

    rate: float
    sm_hz: float | None

    def at(self, sm_hz: float | None) -> float:
        """Return the ceiling for a kernel that ran at the clock `sm_hz` (Hz).

        The rate is scaled in proportion where `sm_hz` is above the ceiling's own clock, and never scaled
        down. It is not scaled where either clock is None.
        """
        faster = sm_hz / self.sm_hz if sm_hz and self.sm_hz else 1.0
        return self.rate * max(1.0, faster)


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The two ceilings of a card.

    `flops` is in FLOP/s, from a kernel that only issues FFMA. `bandwidth` is in bytes/s, from a
    device-to-device copy, with the bytes read and the bytes written both counted.
    """

    flops: Ceiling
    bandwidth: Ceiling


def peaks(problem: Problem, device: Device) -> float:
    """Return the peak for the problem's element type, as a multiple of the float32 units' peak.

    The factor is 1 for fp32 and for problems other than GEMM; for the types that run on tensor cores it comes
    from NVIDIA's white papers.
    """
    name = problem.dtype.name if isinstance(problem, Gemm) else ""
    return _MATRIX.get(name, 1) * (2 if name in _MATRIX and device.capability >= (10, 0) else 1)


def believable(problem: Problem, device: Device, *, matrix: bool) -> float:
    """Return the most that a kernel may reach for the problem, as a multiple of the float32 units' peak.

    `matrix` says that the kernel has matrix instructions, or may have them. They count only as far as results
    within the bounds of the problem's type can come from them: a float32 product whose errors are those of
    float32 takes three of fp16 at least. Problems other than GEMM may use them in any type.
    """
    name = problem.dtype.name if isinstance(problem, Gemm) else ""
    if not matrix:
        return peaks(problem, device)
    return _EMULATED.get(name, 16) * (2 if device.capability >= (10, 0) else 1)


def impossible(
    problem: Problem, device: Device, seconds: float, sm_hz: float | None, most: float, known: Ceilings | None
) -> str:
    """Return a sentence on why no kernel can have run in `seconds`; empty where one can have.

    The rate is held against `known`, the measured ceilings of this card plus 2%, or against its rated peaks
    plus 30% where they are None. The limit in FLOP/s is `most` times that of the float32 units, at the SM
    clock `sm_hz` (Hz). The bandwidth is a limit only where one run moves more than four times the size of the
    L2 cache, since smaller data may come from the cache.
    """
    if known is not None:
        flops, bandwidth = _MARGIN * known.flops.at(sm_hz), _MARGIN * known.bandwidth.rate
        whose = "measured ceiling"
    else:
        flops, bandwidth = _ABOVE_RATED * device.peak_fp32, _ABOVE_RATED * device.peak_bandwidth
        whose = "rated peak"
    flops *= most
    if problem.flops > flops * seconds:
        rate = f"{problem.flops / seconds / 1e12:.4g} TFLOP/s" if seconds else "an infinite rate"
        return f"{rate} is above this card's {whose} of {flops / 1e12:.4g} TFLOP/s: not a measurement"
    large = problem.bytes > 4 * device.l2_bytes
    if bandwidth and large and problem.bytes > bandwidth * seconds:
        rate = f"{problem.bytes / seconds / 1e9:.4g} GB/s" if seconds else "an infinite rate"
        return f"{rate} is above this card's {whose} of {bandwidth / 1e9:.4g} GB/s: not a measurement"
    return ""


def measured(context: Context, stream: Stream, timer: Timer, cache: Cache) -> Ceilings:
    """Return this card's ceilings, measured once and kept in `cache` for this GPU, driver and code.

    Raises HarnessError if one of the two kernels computes a wrong result or cannot run.
    """
    device = context.device
    arch = str(Arch.of_capability(*device.capability))
    cubins = [compile_kernel(catalog.kernel(name).variant(), arch, cache) for name in ("ffma", "copy")]
    key = digest("ceilings 1", device.uuid, str(driver_version()), *(c.code for c in cubins))
    if found := cache.get(key):
        return _from_json(json.loads(found["ceilings.json"]))
    sizes: list[Mapping[str, int]] = [
        {"N": device.sms * device.max_threads_per_sm, "K": _FMA_STEPS},
        {"N": max(2**22, _COPY_OVER_L2 * device.l2_bytes // 8)},
    ]
    flops, bandwidth = (
        _measure(context, stream, timer, cubin, resolve(cubin.variant.kernel).from_axes(axes))
        for cubin, axes in zip(cubins, sizes, strict=True)
    )
    ceilings = Ceilings(flops=flops, bandwidth=bandwidth)
    cache.put(key, {"ceilings.json": json.dumps(asdict(ceilings)).encode()})
    return ceilings


def _measure(context: Context, stream: Stream, timer: Timer, cubin: Cubin, problem: Problem) -> Ceiling:
    """Run one of the two kernels, verify its output, and return the rate it reached."""
    with (
        Operands(context, problem, stream, seed=1, sets=1) as operands,
        kernel.prepare(cubin, operands) as run,
    ):
        work = Work(run)
        typical = sampling.warm_up(work, timer, _RULE).typical
        operands.fill_output(stream)
        samples = sampling.sample(work, timer, _RULE, typical=typical)
        (output,) = operands.outputs(stream)
        verdict = compare(output, operands.reference)
        if not verdict.ok:
            raise HarnessError(f"the ceiling's own kernel {cubin.variant.label} is wrong: {verdict}")
        # The 10th percentile of the times: a ceiling is what can be reached, not what usually is.
        seconds = sorted(samples.times)[len(samples.times) // 10]
    return Ceiling(rate=(problem.flops or problem.bytes) / seconds, sm_hz=samples.sm_hz)


def _from_json(content: Mapping[str, Mapping[str, float]]) -> Ceilings:
    """Return the ceilings that `measured` wrote into the cache."""
    flops, bandwidth = (
        Ceiling(rate=content[key]["rate"], sm_hz=content[key]["sm_hz"]) for key in ("flops", "bandwidth")
    )
    return Ceilings(flops=flops, bandwidth=bandwidth)
