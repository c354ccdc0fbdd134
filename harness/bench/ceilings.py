"""Measure the ceilings of this very card: the FLOP/s and bytes/s that simple kernels reach on it.

One kernel only issues FFMA, one only copies, and one for each type of the tensor cores only multiplies
matrices. A percentage of a data sheet's peak says little about a card that runs at another clock, and a rate
above that peak is not impossible. A rate above these ceilings is, and `impossible` says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

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
_MATRIX = {"tf32": 8, "3xtf32": 8 / 3, "fp16x3": 16 / 3, "bf16x6": 16 / 6, "bf16": 16, "fp16": 16}
_TYPES = ("fp16", "bf16", "tf32")  # as the parameter TYPE of the kernels that measure them counts
# The part of the ceiling of fp16 that a result as accurate as the type's bounds ask can reach: fp16 reads 11
# bits of an input, as tf32 does, and three products of it 22.
_OF_FP16 = {"fp32": 1 / 3, "3xtf32": 1 / 3, "fp16x3": 1 / 3, "bf16x6": 1 / 3}
_OF_ANOTHER = {
    "3xtf32": ("tf32", 3),
    "fp16x3": ("fp16", 3),
    "bf16x6": ("bf16", 6),
}  # so many products of that type
_RULE = StopRule(min_time=0.2, timeout=0.5)
_COPY_OVER_L2 = 8  # the copy moves this many times the size of the L2 cache, so that none of it stays there
_FMA_STEPS = 2**15
_MMA_STEPS, _MMA_BLOCKS = 2**13, 2  # blocks an SM: as many as fit with their sums in registers


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
    """The ceilings of a card.

    `flops` is in FLOP/s, from a kernel that only issues FFMA. `bandwidth` is in bytes/s, from a
    device-to-device copy, with the bytes read and the bytes written both counted. `matrix` is in FLOP/s, by
    element type, from kernels that only issue matrix instructions; it is empty where harness has no kernel
    with the fastest ones of the architecture.
    """

    flops: Ceiling
    bandwidth: Ceiling
    matrix: Mapping[str, Ceiling] = field(default_factory=dict)

    def of(self, problem: Problem, device: Device) -> Ceiling:
        """Return the ceiling for the problem's element type, in bytes/s if the problem has no FLOP."""
        if not problem.flops:
            return self.bandwidth
        return self._of_type(_dtype(problem), device)

    def believable(self, problem: Problem, device: Device, *, matrix: bool) -> Ceiling:
        """Return the highest believable rate for a result as accurate as the problem asks, in FLOP/s.

        `matrix` says that the kernel executes matrix instructions, or may do so. They count only as far as
        results within the bounds of the problem's type can come from them: a float32 product whose errors are
        those of float32 takes three of fp16 at least. Problems other than GEMM may use them in any type.
        """
        name = _dtype(problem)
        if not matrix:
            return self._of_type(name, device)
        found = self._of_type("fp16", device)
        return replace(found, rate=_OF_FP16.get(name, 1) * found.rate)

    def _of_type(self, name: str, device: Device) -> Ceiling:
        if name in _OF_ANOTHER:
            other, products = _OF_ANOTHER[name]
            found = self._of_type(other, device)
            return replace(found, rate=found.rate / products)
        return self.matrix.get(name) or replace(self.flops, rate=_factor(name, device) * self.flops.rate)


def peaks(problem: Problem, device: Device) -> float:
    """Return the peak for the problem's element type, as a multiple of the float32 units' peak.

    The factor is 1 for fp32 and for problems other than GEMM; for the types that run on tensor cores it comes
    from NVIDIA's white papers.
    """
    return _factor(_dtype(problem), device)


def _factor(name: str, device: Device) -> float:
    return _MATRIX.get(name, 1) * (2 if name in _MATRIX and device.capability >= (10, 0) else 1)


def _dtype(problem: Problem) -> str:
    """Return the name of a GEMM's element type; empty for other problems."""
    return problem.dtype.name if isinstance(problem, Gemm) else ""


def impossible(
    problem: Problem,
    device: Device,
    seconds: float,
    sm_hz: float | None,
    known: Ceilings | None,
    *,
    matrix: bool,
) -> str:
    """Return a sentence on why no kernel can have run in `seconds`; empty where one can have.

    The rate is held against `known`, the measured ceilings of this card plus 2%, or against its rated peaks
    plus 30% where they are None. The limit in FLOP/s is at the SM clock `sm_hz` (Hz); `matrix` is as for
    `Ceilings.believable`. The bandwidth is a limit only where one run moves more than four times the size of
    the L2 cache, since smaller data may come from the cache.
    """
    margin, whose = (_MARGIN, "measured ceiling") if known else (_ABOVE_RATED, "rated peak")
    if known is None:
        known = Ceilings(
            flops=Ceiling(rate=device.peak_fp32, sm_hz=None),
            bandwidth=Ceiling(rate=device.peak_bandwidth, sm_hz=None),
        )
    flops = margin * known.believable(problem, device, matrix=matrix).at(sm_hz)
    bandwidth = margin * known.bandwidth.rate
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

    Raises HarnessError if one of the kernels computes a wrong result or cannot run.
    """
    device = context.device
    arch = Arch.of_capability(*device.capability)
    variants = [catalog.kernel(name).variant() for name in ("ffma", "copy")]
    if name := _matrix_kernel(device.capability):
        variants += [catalog.kernel(name).variant(TYPE=number) for number in range(len(_TYPES))]
    cubins = [compile_kernel(variant, str(arch), cache) for variant in variants]
    key = digest("ceilings 2", device.uuid, str(driver_version()), *(c.code for c in cubins))
    if found := cache.get(key):
        return _from_json(json.loads(found["ceilings.json"]))
    sizes: list[Mapping[str, int]] = [
        {"N": device.sms * device.max_threads_per_sm, "K": _FMA_STEPS},
        {"N": max(2**22, _COPY_OVER_L2 * device.l2_bytes // 8)},
        *({"N": _MMA_BLOCKS * device.sms, "K": _MMA_STEPS} for _ in variants[2:]),
    ]
    flops, bandwidth, *matrix = (
        _measure(context, stream, timer, cubin, resolve(cubin.variant.kernel).from_axes(axes))
        for cubin, axes in zip(cubins, sizes, strict=True)
    )
    ceilings = Ceilings(flops=flops, bandwidth=bandwidth, matrix=dict(zip(_TYPES, matrix, strict=False)))
    cache.put(key, {"ceilings.json": json.dumps(asdict(ceilings)).encode()})
    return ceilings


def _matrix_kernel(capability: tuple[int, int]) -> str:
    """Return the kernel with the fastest matrix instructions of an architecture; "" where there is none.

    Those of compute capability 10.x are tcgen05, which harness has no kernel for.
    """
    major, _ = capability
    return {8: "mma_chains", 9: "wgmma_chains", 12: "mma_chains"}.get(major, "")


def _measure(context: Context, stream: Stream, timer: Timer, cubin: Cubin, problem: Problem) -> Ceiling:
    """Run one of the kernels, verify its output, and return the rate it reached.

    A rate in bytes/s has no SM clock: memory has a clock of its own.
    """
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
    if not problem.flops:
        return Ceiling(rate=problem.bytes / seconds, sm_hz=None)
    return Ceiling(rate=problem.flops / seconds, sm_hz=samples.sm_hz)


def _from_json(content: Mapping[str, Any]) -> Ceilings:
    """Return the ceilings that `measured` wrote into the cache."""
    matrix = {name: Ceiling(**found) for name, found in content["matrix"].items()}
    return Ceilings(
        flops=Ceiling(**content["flops"]), bandwidth=Ceiling(**content["bandwidth"]), matrix=matrix
    )
