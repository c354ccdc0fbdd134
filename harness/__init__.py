"""A low-level CUDA driver harness: compile kernels, verify and time them, inspect their machine code.

    >>> import harness
    >>> tiled = harness.kernel("tiled").variant(TILE=16)
    >>> tiled
    <Variant 03_tiled TILE=16>
    >>> cubin = harness.compile_kernel(tiled, "sm_90a")  # needs no GPU
    >>> harness.disassemble(cubin).count("LDS.128") > 0
    True
    >>> harness.assertions.emulate(tiled, "sm_90a", 48)  # nor does this
    <Measurement 03_tiled TILE=16, Gemm 48: ok, 0 findings>

The names in ``harness.__all__`` are the library. Each is imported when it is first used: ``import harness``
costs nothing and needs neither CUDA nor NumPy. Modules are attributes, too: `harness.sass.code`.

kernels     kernel, ladder, Kernel, Variant, compile_kernel, Cubin, build_all, Cache
code        disassemble, Sass
problems    Problem, Gemm, Copy, Verdict, compare
launches    Operands, prepare, Launch
times       Bench, StopRule, Measurement, judge
products    matmul, grouped_matmul, choose
errors      HarnessError

`harness.driver` holds the driver API: Context, Stream, Event, Buffer, Module, Function. `harness.assertions`
holds what test suites call.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from harness.support.moved import MOVED, Moved

if TYPE_CHECKING:
    from harness.bench.row import Measurement as Measurement
    from harness.bench.session import Bench as Bench
    from harness.bench.stopping import StopRule as StopRule
    from harness.dispatch.call.grouped import grouped_matmul as grouped_matmul
    from harness.dispatch.choose import choose as choose
    from harness.dispatch.matmul import matmul as matmul
    from harness.errors import HarnessError as HarnessError
    from harness.judging.session import judge as judge
    from harness.kernels.catalog import kernel as kernel
    from harness.kernels.catalog import ladder as ladder
    from harness.kernels.compiler import Cubin as Cubin
    from harness.kernels.compiler import compile_kernel as compile_kernel
    from harness.kernels.spec import Kernel as Kernel
    from harness.kernels.spec import Variant as Variant
    from harness.launch.builds import build_all as build_all
    from harness.launch.kernel import Launch as Launch
    from harness.launch.kernel import prepare as prepare
    from harness.launch.operands import Operands as Operands
    from harness.problems.copy import Copy as Copy
    from harness.problems.gemm import Gemm as Gemm
    from harness.problems.protocol import Problem as Problem
    from harness.problems.verify import Verdict as Verdict
    from harness.problems.verify import compare as compare
    from harness.sass.instructions import Sass as Sass
    from harness.sass.instructions import disassemble as disassemble
    from harness.support.cache import Cache as Cache

_HOME = {
    "Bench": "bench.session",
    "Cache": "support.cache",
    "Copy": "problems.copy",
    "Cubin": "kernels.compiler",
    "Gemm": "problems.gemm",
    "HarnessError": "errors",
    "Kernel": "kernels.spec",
    "Launch": "launch.kernel",
    "Measurement": "bench.row",
    "Operands": "launch.operands",
    "Problem": "problems.protocol",
    "Sass": "sass.instructions",
    "StopRule": "bench.stopping",
    "Variant": "kernels.spec",
    "Verdict": "problems.verify",
    "build_all": "launch.builds",
    "choose": "dispatch.choose",
    "compare": "problems.verify",
    "compile_kernel": "kernels.compiler",
    "disassemble": "sass.instructions",
    "grouped_matmul": "dispatch.call.grouped",
    "judge": "judging.session",
    "kernel": "kernels.catalog",
    "ladder": "kernels.catalog",
    "matmul": "dispatch.matmul",
    "prepare": "launch.kernel",
}


_ROOMS = (
    "assertions",
    "bench",
    "dispatch",
    "driver",
    "emulator",
    "errors",
    "instruments",
    "judging",
    "kernels",
    "launch",
    "problems",
    "results",
    "sass",
    "support",
    "tune",
)

__all__ = list(_HOME)

sys.meta_path.append(Moved(__name__, MOVED))


def __getattr__(name: str) -> Any:
    """Import a name of the library, or a module, when it is first used, and keep it."""
    if name == "__version__":
        value: Any = importlib.import_module("harness.results.record").own_version()
    elif name in (*_ROOMS, "torch", "torch_ops"):  # which not everybody can import: help() would fail
        return importlib.import_module(f"harness.{name}")
    elif name in _HOME:
        value = getattr(importlib.import_module(f"harness.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names of the library, its modules and the version, and nothing that only this file uses."""
    own = [name for name in globals() if name.startswith("__")]
    return sorted({*_HOME, *_ROOMS, "__version__", *own})
