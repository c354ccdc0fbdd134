"""A low-level CUDA driver harness: a kernel file becomes a verified, timed, inspected row.

    cubin = harness.compile_kernel(harness.kernel("tiled").variant(TILE=32), "sm_90a")
    harness.disassemble(cubin).count("LDS.128")

The names below are the library; each is imported when it is first used, so that ``import harness`` costs
nothing and needs neither CUDA nor NumPy. `harness.driver` holds the driver API: Context, Stream, Event,
Buffer, Module, Function.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.bench import Bench as Bench
    from harness.build import Cubin as Cubin
    from harness.build import compile_kernel as compile_kernel
    from harness.builds import build_all as build_all
    from harness.cache import Cache as Cache
    from harness.catalog import kernel as kernel
    from harness.catalog import ladder as ladder
    from harness.dispatch import matmul as matmul
    from harness.errors import HarnessError as HarnessError
    from harness.gemm import Gemm as Gemm
    from harness.heuristic import choose as choose
    from harness.launch import Launch as Launch
    from harness.launch import prepare as prepare
    from harness.measure import Measurement as Measurement
    from harness.operands import Operands as Operands
    from harness.problem import Problem as Problem
    from harness.problems import Copy as Copy
    from harness.sass import Sass as Sass
    from harness.sass import disassemble as disassemble
    from harness.spec import Kernel as Kernel
    from harness.spec import Variant as Variant
    from harness.stopping import StopRule as StopRule
    from harness.verify import Verdict as Verdict
    from harness.verify import compare as compare

_HOME = {
    "Bench": "bench",
    "Cache": "cache",
    "Copy": "problems",
    "Cubin": "build",
    "Gemm": "gemm",
    "HarnessError": "errors",
    "Kernel": "spec",
    "Launch": "launch",
    "Measurement": "measure",
    "Operands": "operands",
    "Problem": "problem",
    "Sass": "sass",
    "StopRule": "stopping",
    "Variant": "spec",
    "Verdict": "verify",
    "build_all": "builds",
    "choose": "heuristic",
    "compare": "verify",
    "compile_kernel": "build",
    "disassemble": "sass",
    "kernel": "catalog",
    "ladder": "catalog",
    "matmul": "dispatch",
    "prepare": "launch",
}


__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"harness.{_HOME[name]}"), name)
    globals()[name] = value
    return value
