"""The emulator held against a GPU: output bits, and its counts against Nsight Compute's counters.

    python scripts/calibrate_emulator.py FILE.json [KERNEL ...]

Run on a machine with a GPU, ncu and the right to read counters. Each kernel runs once on the GPU, once under
ncu and twice in the emulator (counts as the PTX has them, and in the widths of the machine code).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import harness
from harness.bench import emulation
from harness.driver import Context, Device, Stream, driver_version
from harness.emulator import Emulation
from harness.errors import HarnessError
from harness.instruments import counters, ncu
from harness.kernels.arch import Arch
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
    "wgmma",
    "warp_specialized",
    "persistent",
    "tma_store",
    "wgmma_pipeline",
    "wgmma_pipeline CLUSTER=2",
    "wgmma_tf32",
    "wgmma_split",
)


def main() -> None:
    file, *named = sys.argv[1:]
    record.check_writable(Path(file))
    cache = default_cache()
    device = Device.open()
    arch = str(Arch.of_capability(*device.capability))
    rows = []
    with Context(device) as gpu, Stream(gpu) as stream:
        for text in named or KERNELS:
            name, *params = text.split()
            variant = harness.kernel(name).variant(**{k: int(v) for k, v in (p.split("=") for p in params)})
            cubin = harness.compile_kernel(variant, arch, cache)
            built = Built(variant=variant, cubin=cubin, sass=harness.disassemble(cubin, cache))
            for axes in SHAPES:
                problem: Any = checks.instance(resolve(variant.kernel), axes)
                with (
                    harness.Operands(gpu, problem, stream, seed=1, sets=1) as operands,
                    harness.prepare(cubin, operands) as launch,
                ):
                    launch(stream)
                    (output,) = (o.copy() for o in operands.outputs(stream))
                    rows.append(compare(built, problem, axes, operands.host, output, device.sms))
                print(
                    rows[-1]["label"],
                    rows[-1]["shape"],
                    rows[-1]["bits"],
                    rows[-1]["error"] or "",
                    flush=True,
                )
    meta = record.provenance(seed=1)
    meta["gpu"] = {"name": device.name, "driver": "{}.{}".format(*driver_version())}
    record.write_json(Path(file), record.document("calibration", rows, meta))


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
        row["measured"] = ncu.counters(built.variant, axes, METRICS)
    except HarnessError as e:
        row["error"] = row["error"] or str(e)
    return row


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
    main()
