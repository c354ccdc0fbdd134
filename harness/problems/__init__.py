"""The computations that kernels implement: their inputs, and how to tell a correct result.

The names below are imported when they are first used: finding a kernel needs no NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.problems.arrays import ArrayProblem as ArrayProblem
    from harness.problems.copy import Copy as Copy
    from harness.problems.declare import problem as problem
    from harness.problems.gemm import Gemm as Gemm
    from harness.problems.protocol import Problem as Problem
    from harness.problems.protocol import Reference as Reference
    from harness.problems.protocol import Struct as Struct

_HOME = {
    "ArrayProblem": "arrays",
    "Copy": "copy",
    "Gemm": "gemm",
    "Problem": "protocol",
    "Reference": "protocol",
    "Struct": "protocol",
    "problem": "declare",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'harness.problems' has no attribute {name!r}")
    return getattr(importlib.import_module(f"harness.problems.{_HOME[name]}"), name)
