"""Read what ptxas reports of a kernel: its resources, and wgmma instructions that wait for one another."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.errors import BuildError

_SERIALIZED = re.compile(r"\(C751\d\) (.*wgmma.*)")  # ptxas makes each wgmma wait for the one before it


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources of one kernel as ptxas reports them.

    `shared` is static shared memory in bytes per block; the other sizes are bytes per thread.
    """

    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int


def resources(log: str, entry: str, where: str) -> Resources:
    """Read the resources of `entry` from what ``ptxas -v`` printed. Raises BuildError without such lines."""
    sections = re.split(r"Compiling entry function '([^']+)'", log)
    reports = dict(zip(sections[1::2], sections[2::2], strict=True))
    if entry not in reports:
        have = ", ".join(reports) or "none"
        raise BuildError(
            f"no kernel called {entry!r} in the compiled code (kernels: {have})",
            where=where,
            hint='entry must name an extern "C" __global__ function',
        )
    text = reports[entry]

    def number(pattern: str) -> int:
        match = re.search(pattern, text)
        return int(match[1]) if match else 0

    return Resources(
        registers=number(r"Used (\d+) registers"),
        shared=number(r"(\d+) bytes smem"),
        stack=number(r"(\d+) bytes stack frame"),
        spill_stores=number(r"(\d+) bytes spill stores"),
        spill_loads=number(r"(\d+) bytes spill loads"),
    )


def serialized(log: str) -> str:
    """Return what ptxas says where it serialized wgmma instructions, else ""."""
    found = _SERIALIZED.search(log)
    return found[1] if found else ""


def alike(entry: str, log: str) -> list[str]:
    """Return what the code calls the functions of a name that ptxas names, but for instances of templates."""
    base = entry.rpartition("::")[2]
    mangled = re.compile(rf"{re.escape(entry)}|_Z(?:N?L?|N\w*?){len(base)}{re.escape(base)}(?!I)\w*")
    return [str(name) for name in re.findall(r"entry function '(\w+)'", log) if mangled.fullmatch(name)]


def lowered(entry: str, log: str) -> str:
    """Return what the code calls a function that is no instance of a template; "" where it is not the one."""
    found = alike(entry, log)
    return found[0] if len(found) == 1 else ""
