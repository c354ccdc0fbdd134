"""The emulator held against a GPU: output bits, and its counts against Nsight Compute's counters.

    python scripts/calibrate_emulator.py FILE.json [KERNEL ...] [--seconds 540] [--resume]

Run on a machine with a GPU, ncu and the right to read counters. Each kernel runs once on the GPU, once under
ncu and twice in the emulator (counts as the PTX has them, and in the widths of the machine code). A kernel is
a name with parameters, as "tiled TILE=16". The file is written after each row, so that what a run that is cut
off has found is there; `--resume` goes on with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import growing
import harness
from harness.bench import emulation
from harness.driver import Context, Device, Stream, driver_version
from harness.emulator import Emulation
from harness.errors import HarnessError, UnknownMetrics, UsageError
from harness.instruments import counters, ncu
from harness.kernels.arch import Arch
from harness.kernels.spec import Variant
from harness.launch.builds import Built
from harness.problems import checks
from harness.problems.registry import resolve
from harness.results import record
from harness.results.encode import static_record
from harness.support.cache import default as default_cache

# Nsight Compute's names. Copies (cp.async) count as loads there, and here.
LOADS = "pipe_lsu_mem_global_op_ld.sum"
STORES = "pipe_lsu_mem_global_op_st.sum"
METRICS = (
    f"l1tex__t_requests_{LOADS}",
    f"l1tex__t_sectors_{LOADS}",
    f"l1tex__t_requests_{STORES}",
    f"l1tex__t_sectors_{STORES}",
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shared_st.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    # What predictions are held against: here copies are no loads, and ldmatrix has a counter of its own.
    counters.SHARED_LOADS,
    counters.SHARED_STORES,
    counters.SHARED_MATRICES,
    MATRIX := "sm__inst_executed_pipe_tensor_op_hmma.sum",  # HGMMA among them
    FETCHED := "lts__t_sectors_srcunit_tex_op_read.sum",  # of TMA all, of other loads what L1 does not have
)
UNKNOWN: set[str] = set()  # of them, to ncu here
SHAPES: tuple[dict[str, int | float], ...] = ({"N": 256}, {"M": 300, "N": 500, "K": 260})
KERNELS = (
    "naive",
    "coalesced",
    "tiled TILE=16",
    "tiled TILE=32",
    "tiled_coarse",
    "bank_conflict TILE=32",
    "bank_padded TILE=32",
    "tiled_v4",
    "blocked_2d",
    "vectorized",
    "conflict_free",
    "prefetch",
    "cp_async",
    "warp_tiles",
    "wgmma",
    "warp_specialized",
    "persistent",
    "tma_store",
    "wgmma_pipeline",
    "wgmma_pipeline CLUSTER=2",
    "wgmma_tf32",
    "wgmma_split",
)


def main() -> int:
    given = growing.parser(__doc__).parse_args()
    chosen = [variant_of(text) for text in given.kernels or KERNELS]
    device = Device.open()
    meta = record.provenance(seed=1)
    meta["gpu"] = {"name": device.name, "driver": "{}.{}".format(*driver_version())}
    steps: dict[str, Callable[[], dict[str, Any]]] = {}
    with Context(device) as gpu, Stream(gpu) as stream:
        for variant in chosen:
            for axes in SHAPES:
                size = ", ".join(f"{name}={value}" for name, value in axes.items())
                steps[f"{variant.label}, {size}"] = partial(measured, gpu, stream, variant, axes)
        return growing.fill(given, "calibration", meta, steps, lambda row: row["bits"])


def variant_of(text: str) -> Variant:
    """Return a kernel with parameters, as "tiled TILE=16". Raises UsageError for what is none."""
    name, *params = text.split()
    try:
        values = {key: int(value) for key, value in (p.split("=") for p in params)}
    except ValueError:
        raise UsageError(f"{text!r} is no kernel with parameters", hint='as "tiled TILE=16"') from None
    return harness.kernel(name).variant(**values)


def measured(gpu: Context, stream: Stream, variant: Variant, axes: dict[str, int | float]) -> dict[str, Any]:
    """Return the row of a kernel at one shape."""
    cache, device = default_cache(), gpu.device
    cubin = harness.compile_kernel(variant, str(Arch.of_capability(*device.capability)), cache)
    built = Built(variant=variant, cubin=cubin, sass=harness.disassemble(cubin, cache))
    problem: Any = checks.instance(resolve(variant.kernel), axes)
    with (
        harness.Operands(gpu, problem, stream, seed=1, sets=1) as operands,
        harness.prepare(cubin, operands) as launch,
    ):
        launch(stream)
        (output,) = (o.copy() for o in operands.outputs(stream))
        return compare(built, problem, axes, operands.host, output, device.sms)


def compare(
    built: Built, problem: Any, axes: dict[str, int | float], inputs: Any, output: Any, sms: int
) -> dict[str, Any]:
    row: dict[str, Any] = {
        **static_record(built),
        "label": built.variant.label,
        "shape": problem.label,
        "bits": "not emulated",
        "written": None,
        "compiled": None,
        "measured": {},
        "error": "",
    }
    try:
        for view, as_compiled in (("written", False), ("compiled", True)):
            options = emulation.Options(as_compiled=as_compiled, cache=default_cache(), sms=sms)
            run, arrays = emulation.launch(built, problem, inputs, options)
            bits = f"u{output.dtype.itemsize}"
            differ = int(np.count_nonzero(arrays["C"].view(bits) != output.view(bits)))
            row["bits"] = "identical" if differ == 0 else f"{differ} of {output.size} elements differ"
            row["findings"] = len(run.findings)
            row[view] = counts(run)
    except HarnessError as e:
        row["error"] = str(e)
    try:
        row["measured"] = counted_by_ncu(built.variant, axes)
    except HarnessError as e:
        row["error"] = row["error"] or str(e)
    if missing := [name for name in METRICS if name not in row["measured"]]:
        row["error"] = row["error"] or f"ncu has no {', no '.join(missing)}"
    return row


def counted_by_ncu(variant: Variant, axes: dict[str, int | float]) -> dict[str, float]:
    """Return ncu's counts, without the metrics that it does not know, for which it measures none at all."""
    known = [name for name in METRICS if name not in UNKNOWN]
    try:
        return ncu.counters(variant, axes, known)
    except UnknownMetrics as e:
        UNKNOWN.update(e.names)
        return counted_by_ncu(variant, axes)


def counts(run: Emulation) -> dict[str, int]:
    """The emulator's, by ncu's names; an instruction's name says whether it loads or stores."""
    sums = dict.fromkeys(METRICS, 0)
    for c in run.instructions:
        loads = not c.opcode.startswith("st")
        if c.global_requests:
            sums[f"l1tex__t_requests_{LOADS if loads else STORES}"] += c.global_requests
            sums[f"l1tex__t_sectors_{LOADS if loads else STORES}"] += c.sectors
        if c.shared_requests:
            end = "ld" if loads else "st"
            sums[f"smsp__inst_executed_op_shared_{end}.sum"] += c.shared_requests
            sums[f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{end}.sum"] += c.wavefronts
            sums[f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{end}.sum"] += c.conflicts
            matrix = c.opcode.startswith("ldmatrix")
            own = counters.SHARED_LOADS if loads else counters.SHARED_STORES
            sums[counters.SHARED_MATRICES if matrix else own] += c.shared_requests
        sums[MATRIX] += c.products
        sums[FETCHED] += c.sectors * loads + c.box_sectors * (c.opcode.split(".")[3:4] != ["global"])
        if c.opcode.startswith("fma"):
            sums["smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"] += c.executions
    return sums


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HarnessError as e:
        sys.exit(f"error: {e}")
