"""Encode rows as records: JSON objects that are written to files and shown in tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from harness.bench import nvml
from harness.bench.row import Measurement
from harness.bench.sampling import Pair
from harness.bench.stats import decide
from harness.bench.timing import Batch
from harness.dispatch import choose
from harness.dispatch.chosen import Chosen
from harness.emulator import Counts
from harness.errors import HarnessError
from harness.instruments import counters
from harness.instruments.diagnosis import diagnose
from harness.instruments.hotspots import Hotspots
from harness.instruments.ncu_reports import Profile
from harness.launch.builds import Built
from harness.problems import checks
from harness.results.record import sha256
from harness.results.rows import Choice, DiagnosisRow, PairRow, ProfileRow, Reading, Row, Spots, ratio
from harness.sass.code import Code
from harness.sass.contract import Finding
from harness.sass.diff import compare
from harness.sass.instructions import Tally
from harness.sass.loops import MATRIX

COUNTED = ("FFMA", "LDG", "LDG.128", "LDS", "LDS.64", "LDS.128", "STS", "BAR", "LDL", "STL")


def _chosen(built: Chosen) -> Choice:
    """Return the main kernel that the dispatcher launches, with the labels of further ones in `others`."""
    variant, others = built.variant, [cubin.variant.brief for cubin in built.others]
    found = Choice(kernel=variant.kernel.name, params=variant.stated, label=built.brief)
    return {**found, "others": others} if others else found


def static_record(built: Built) -> Row:
    """Return what is known of a kernel without running it.

    The dispatcher counts as one kernel without parameters, so that its rows can be compared from run to run;
    the kernel that it chose is under ``chosen``.
    """
    variant, resources, tally = built.variant, built.cubin.resources, built.tally
    params = variant.stated
    return {
        "kernel": choose.NAME if isinstance(built, Chosen) else variant.kernel.name,
        "params": {} if isinstance(built, Chosen) else params,
        "chosen": _chosen(built) if isinstance(built, Chosen) else None,
        "arch": built.cubin.arch,
        "compiler": built.cubin.compiler,
        "problem": variant.kernel.problem,
        "dtype": built.dtype,
        "tile": list(variant.tile),
        "block": list(variant.block),
        "registers": resources.registers,
        "shared": built.cubin.shared,
        "occupancy": built.occupancy.fraction,
        "occupancy_limiter": built.occupancy.limiter,
        "spills": resources.spill_stores + resources.spill_loads,
        "intensity": built.intensity,
        "sass": {**_counted(tally), "bytes": tally.code_bytes} if tally else None,
        "source_sha256": sha256(variant.kernel.source.encode()),
        "cubin_sha256": built.cubin.sha256,
        "sass_sha256": tally.sha256 if tally else None,
    }


def _counted(tally: Tally) -> dict[str, int]:
    """Return how many instructions there are of each opcode counted, of matrix instructions if any."""
    matrix = sorted(MATRIX & {opcode.split(".")[0] for opcode in tally.mix})
    return {opcode: tally.count(opcode) for opcode in (*COUNTED, *matrix)}


def code_record(code: Code, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what a kernel's machine code contains, loop by loop, and which of the expectations hold."""
    peak, banks, found = code.sass.peak, code.banks, code.occupancy
    return {
        "label": code.label,
        "arch": code.arch,
        "compiler": code.compiler,
        "function": code.sass.function,
        "registers": code.registers,
        "shared": code.shared,
        "spills": code.spills,
        "live_registers": peak and {"peak": peak.live, "address": peak.address, "line": peak.line},
        "occupancy": found and found.fraction,
        "occupancy_limiter": found and found.limiter,
        "sass_sha256": code.sass.sha256,
        "mix": dict(code.sass.mix),
        "loops": [
            {
                "address": loop.header,
                "depth": loop.depth,
                "hot": loop == code.hot_loop,
                "instructions": len(loop.instructions),
                "mix": dict(Counter(i.opcode for i in loop.instructions)),
            }
            for loop in code.loops
        ],
        "banks": banks and {**asdict(banks), "ffma_per_cycle": banks.ffma_per_cycle},
        "expectations": [
            {
                "text": f.expectation.text,
                "holds": f.holds,
                "actual": f.actual,
                "evidence": [f"{i.address:#06x} {i}" for i in f.evidence],
                "note": f.note,
            }
            for f in findings
        ],
    }


def diff_record(a: Code, b: Code) -> dict[str, Any]:
    """Return two codes and what differs between them."""
    return {"a": code_record(a, ()), "b": code_record(b, ()), **asdict(compare(a, b))}


def timed_record(row: Measurement, peak_fp32: float, threshold: float | None = None) -> Row:
    """Return the record of a measured row.

    Times are in seconds, rates in FLOP/s and bytes/s, ratios and shares fractions. `peak_fp32` is the card's
    rated peak in FLOP/s. With a `threshold` the record contains the decision whether the row is as fast as
    the baseline.
    """
    # A library has no machine code to describe: this is all that is known of it.
    static: Row = {"kernel": row.label, "params": {}, "problem": "gemm", "dtype": row.dtype}
    if row.built is not None:
        static = static_record(row.built)
    samples = row.samples
    summary = samples.summary if samples else None
    speedup = row.speedup
    return {
        **static,
        "shape": row.problem.label,
        "axes": checks.axes(row.problem),
        "status": row.status,
        "detail": row.detail,
        "notes": list(row.notes),
        "algorithm": row.algorithm or None,
        "regime": _regime(row),
        "protections": list(row.protections),
        "seed": row.seed,
        "data_key": row.data_key,
        "seconds": row.seconds,
        "mean": summary.mean if summary else None,
        "noise": summary.noise if summary else None,
        "stdev": summary.stdev if summary else None,
        "samples": summary.samples if summary else None,
        "stopped": samples.stopped if samples else None,
        "wall": samples.wall if samples else None,
        "cycles": samples.cycles if samples else None,
        "sm_hz": samples.sm_hz if samples else None,
        "flops_rate": row.flops_rate,
        "bandwidth": row.bandwidth,
        "against": row.against,
        "identical_sass": row.identical,
        "baseline": row.baseline,
        "decision": decide(row.ratio, threshold) if row.ratio and threshold is not None else None,
        "ratio": ratio(row.ratio),
        "speedup": ratio(speedup),
        "vs_cublas": speedup.estimate if speedup and row.against == "cuBLAS" else None,
        "vs_peak": row.flops_rate / (row.peaks * peak_fp32) if row.flops_rate else None,
        "of_ceiling": row.of_ceiling,
        "driver_occupancy": row.occupancy,
        "sets": row.sets,
        "bytes_touched": row.bytes_touched,
        "device": _reading(row.device) if row.device else None,
        "error_over_bound": row.before.worst if row.before and math.isfinite(row.before.worst) else None,
        "discarded": list(samples.discarded) if samples else [],
        "rounds": [asdict(one) for one in row.rounds],
        "pair": _pair_record(row.pair) if row.pair else None,
        "batches": [_batch_record(b) for b in samples.batches] if samples else [],
        "times": [_digits(t) for t in samples.times] if samples else [],
    }


def profile_record(profile: Profile, more: Sequence[str] = ()) -> ProfileRow:
    """Return one launch under ncu: the counters that are printed, those named in `more`, diagnoses and
    hotspots.
    """
    kept = (*counters.METRICS, *counters.SECTION_METRICS, *more)
    return {
        "label": profile.label,
        "function": profile.function,
        "grid": profile.grid,
        "block_text": profile.block,
        "capability": profile.capability,
        "counters": {name: profile.counters[name] for name in kept if name in profile.counters},
        "diagnoses": [cast("DiagnosisRow", asdict(d)) for d in diagnose(profile.counters)],
        "hotspots": cast("Spots", asdict(profile.hotspots)) if profile.hotspots else None,
    }


def profile_of(row: ProfileRow) -> Profile:
    """Return the profile that `profile_record` encoded. Raises HarnessError if a key is missing or
    damaged.
    """
    try:
        return Profile(
            label=row["label"],
            function=row["function"],
            grid=row["grid"],
            block=row["block_text"],
            capability=row["capability"],
            counters={name: float(value) for name, value in row["counters"].items()},
            hotspots=Hotspots.of_record(spots) if (spots := row.get("hotspots")) else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise HarnessError(f"a damaged profile: {e!r}") from None


def emulated_record(row: Measurement) -> Row:
    """Return the record of an emulated row: verdict, findings, and counts by source line."""
    run = row.emulation
    return {
        **(static_record(row.built) if row.built is not None else {}),
        "shape": row.problem.label,
        "axes": checks.axes(row.problem),
        "status": row.status,
        "detail": row.error or _kinds(row),
        "error_over_bound": row.before.worst if row.before and math.isfinite(row.before.worst) else None,
        "findings": [asdict(f) for f in run.findings] if run else [],
        "notices": [asdict(f) for f in run.notices] if run else [],
        "output": run.output if run else "",
        "schedules": list(run.schedules) if run else [],
        "total": _counts(run.total) if run else None,
        "emulated": {
            "intensity": run.total.intensity,
            "sectors_per_request": run.total.sectors_per_request,
            "ways": run.total.ways,
        }
        if run
        else None,
        "lines": [_counts(c) for c in run.lines] if run else [],
    }


def verified_record(row: Measurement) -> Row:
    """Return the record of a row that was verified and not timed.

    In its verdict `worst` is the element whose error is the largest fraction of its bound, and `max_error`
    the largest error of all, both in units of the output. Values that are not finite are None.
    """
    verdict, repeats, run = row.before, row.repeats, row.emulation
    tally = row.built.tally if row.built is not None else None
    return {
        **(static_record(row.built) if row.built is not None else {}),
        "shape": row.problem.label,
        "axes": checks.axes(row.problem),
        "status": row.status,
        "detail": row.error or _kinds(row) or row.detail,
        "verdict": {
            "ok": verdict.ok,
            "elements": verdict.elements,
            "bad": verdict.bad,
            "stray": verdict.stray,
            "max_error": _finite(verdict.max_error),
            "rms_over_bound": _finite(verdict.rms),
            "worst": {
                "error": _finite(verdict.worst * verdict.bound),
                "bound": _finite(verdict.bound),
                "error_over_bound": _finite(verdict.worst),
            },
        }
        if verdict
        else None,
        "repeats": asdict(repeats) if repeats else None,
        "tensor_instructions": tally.tensor_instructions if tally else None,
        "findings": [asdict(f) for f in run.findings] if run else None,
        "notices": [asdict(f) for f in run.notices] if run else None,
        "output": run.output if run else None,
    }


def _finite(value: float) -> float | None:
    """Return the value; None if it is infinite or NaN, which JSON does not have."""
    return value if math.isfinite(value) else None


def _kinds(row: Measurement) -> str:
    """Return the number of findings of each kind, ``2 RAW hazards, 1 out of bounds``; empty without
    findings.
    """
    kinds = Counter(f.kind for f in row.emulation.findings) if row.emulation else Counter[str]()
    found = ", ".join(f"{n} {kind}{'s' * (n > 1 and kind[-1] != 's')}" for kind, n in kinds.items())
    return f"{found}: see `harness check`" if found else ""


def _counts(counts: Counts) -> dict[str, Any]:
    """Return the counts with their source line, without the line in the PTX, which means nothing to a
    reader.
    """
    found = asdict(counts)
    return {"line": counts.source.line, "file": counts.source.file} | {
        k: v for k, v in found.items() if k not in ("source", "opcode", "ptx_line")
    }


def _regime(row: Measurement) -> str | None:
    """Return the regime; ``warm`` instead of ``cold`` where operands may have been in the L2 cache."""
    return "warm" if row.regime == "cold" and row.cold is False else row.regime or None


def _reading(found: nvml.Reading) -> Reading:
    """Return NVML's reading as it stands in a row."""
    return Reading(
        sm_mhz=found.sm_mhz, power=found.power, temperature=found.temperature, throttle=found.throttle
    )


def _pair_record(pair: Pair) -> PairRow:
    """Return the blocks behind a ratio, with the median time of each batch in seconds.

    Block i of `order` took batches 2i and 2i + 1 of either side. The SM clock of a side is the median over
    its batches, in Hz.
    """
    return {
        "order": list(pair.order),
        "candidate": [_digits(b.median) for b in pair.candidate.batches],
        "baseline": [_digits(b.median) for b in pair.baseline.batches],
        "sm_hz": {"candidate": pair.candidate.sm_hz, "baseline": pair.baseline.sm_hz},
    }


def _batch_record(batch: Batch) -> dict[str, Any]:
    """Return one batch: how many of the row's times are its own (`n`), wall seconds, SM clock in Hz, NVML's
    reading.
    """
    reading = asdict(batch.reading) if batch.reading else None
    return {
        "n": len(batch.times),
        "wall": batch.wall and _digits(batch.wall),
        "sm_hz": batch.sm_hz,
        "nvml": reading,
    }


def _digits(value: float) -> float:
    """Return the value to six significant digits."""
    return float(f"{value:.6g}")
