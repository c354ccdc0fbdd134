"""Small kernels with Hopper's asynchronous units: functions that they share, and how they are run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.emulator import Emulation, emulate
from shared.emulator_kernels import compile_ptx

PRELUDE = (Path(__file__).parents[1] / "data" / "styles" / "hopper.cuh").read_text()


def run(
    body: str, *arguments: Any, block: int = 128, grid: int = 1, cluster: int = 0, **options: Any
) -> Emulation:
    """Compile `body`, the parameters and the body of the kernel k, and run it."""
    parameters, _, code = body.partition("{")
    dims = f"__cluster_dims__({cluster}, 1, 1)" if cluster else ""
    source = f'{PRELUDE}\nextern "C" __global__ void {dims} k({parameters}) {{{code}'
    ptx = compile_ptx(source, "compute_90a")
    return emulate(ptx, "k", grid=(grid,), block=(block,), arguments=arguments, **options)


def kinds(found: Emulation) -> set[str]:
    return {finding.kind for finding in found.findings}
