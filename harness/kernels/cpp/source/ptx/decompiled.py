"""Write in CUDA C++ what addresses and conditions a PTX text computes: what guesses read of a file of PTX.

It is a text to be read, not compiled: values that lead to no address and no condition are left out, and so is
what other functions do. Names are those of registers and parameters, ``r3`` for ``%r3`` and ``param_0`` for
``add_param_0``. Compilers' output is meant: an instruction a statement, registers that are set once.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from harness.kernels.cpp.source.ptx import assembly
from harness.kernels.cpp.source.ptx.conventions import Part
from harness.kernels.cpp.source.ptx.kernel import Kernel

Passed = tuple[assembly.Parameter, tuple[Part, ...]]  # a parameter, and its parts where these are known


def of(source: str, path: Path) -> str:
    """Return the CUDA C++ of a kernel's file: its text, or what its PTX computes."""
    return cpp(source) if path.suffix == ".ptx" else source


def target(source: str, path: Path) -> str:
    """Return the least architecture that a file is for: the target of PTX."""
    found = (
        re.search(r"^\s*\.target\s+(sm_\d+[af]?)", source, re.MULTILINE) if path.suffix == ".ptx" else None
    )
    return found[1] if found else "sm_75"


def cpp(ptx: str) -> str:
    """Return the kernels of a PTX text in C++. What it only declares is left out."""
    return "\n".join(text for text, *_ in _kernels(ptx).values())


def passed(ptx: str, entry: str) -> list[Passed]:
    """Return the parameters of an entry with their parts; nothing where no compiler is known to pass any.

    Those without parts stand in the text as they are.
    """
    _, found, _ = _kernels(ptx).get(entry, ("", [], ()))
    return found if any(parts for _, parts in found) else []


def block(ptx: str, entry: str) -> tuple[int, ...]:
    """Return the threads of a block along each axis, where PTX says them; else nothing."""
    return _kernels(ptx).get(entry, ("", [], ()))[2]


@functools.lru_cache(maxsize=8)
def _kernels(ptx: str) -> dict[str, tuple[str, list[Passed], tuple[int, ...]]]:
    """Return the kernels of a PTX text in C++, with the parts of their parameters, and their blocks."""
    found = {}
    for entry in assembly.entries(ptx):
        kernel = Kernel(entry)
        whole = kernel.text()
        parts = [(p, kernel.parts.get(p.of_entry, ())) for p in entry.parameters]
        found[entry.name] = whole, parts, entry.block
    return found
