"""Run one kernel under NVIDIA's compute-sanitizer and read its findings, by source line.

The tool runs ``harness verify`` on exactly this kernel. A run without findings counts only if the tool is
known to have checked the kernel: its summary is there, the kernel ran on a GPU, and the tool was seen to find
the planted fault of its control kernel (`CONTROLS`; racecheck, memcheck and synccheck have one).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError
from harness.kernels import catalog
from harness.kernels.spec import Variant
from harness.launch.fresh import zones
from harness.support import tools

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")

# The kernel with a planted fault that each tool must find. initcheck has none: harness writes every buffer
# before a launch, so no kernel can read uninitialised memory.
CONTROLS = {
    "memcheck": "planted_bounds",
    "racecheck": "05_tiled_no_sync",
    "synccheck": "planted_barrier",
}
_TIMEOUT = 900  # seconds; racecheck slows a kernel down some hundred times
_PREFIX = "========="
_PLACE = re.compile(
    r"(?:(?P<what>[\w ]+?) access )?(?:at|by) (?P<function>[^\s(]+?)(?:\([^)]*\))?\+(?P<offset>0x[0-9a-f]+)"
    r"(?: in (?P<file>\S+?):(?P<line>\d+))?(?: \[(?P<hazards>\d+) hazards?\])?\s*$"
)
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_NOISE = re.compile(r"Host Frame|Saved host backtrace|^\s*$|COMPUTE-SANITIZER|SUMMARY|Target application")


@dataclass(frozen=True, kw_only=True)
class Place:
    """The instruction that a finding is about.

    It is `offset` bytes into `function`. `file` and `line` are its source line, "" and 0 if that is not
    known. `access` is the kind of access, such as ``write``, or "".
    """

    function: str
    offset: int
    file: str = ""
    line: int = 0
    access: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else f"{self.function}+{self.offset:#x}"
        return f"{self.access} at {where}".lstrip()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding of compute-sanitizer.

    `severity` is ``error`` or ``warning``, `message` the tool's first line and `details` the lines below it.
    `places` are the instructions that these name.
    """

    severity: str
    message: str
    places: tuple[Place, ...]
    details: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """The known source lines of `places`, such as ``05_tiled_no_sync.cu:38``.

        They are in the tool's order, without duplicates.
        """
        return tuple(dict.fromkeys(f"{p.file}:{p.line}" for p in self.places if p.line))


def check(
    variant: Variant, axes: Mapping[str, int | float], tool: str, *, device: str = "0", seed: int = 1
) -> tuple[Finding, ...]:
    """Return the findings of `tool` (one of `TOOLS`) in one launch of the kernel.

    `axes` are the sizes of the problem. Raises MissingDependency without compute-sanitizer, HarnessError if
    the tool did not check the kernel.
    """
    program = tools.require("compute-sanitizer")
    command: list[str | Path] = [
        *(program, "--tool", tool, "--report-api-errors", "no", "--print-limit", "100"),
        *(sys.executable, "-m", "harness", "verify", *catalog.arguments(variant.kernel)),
        *("--seed", str(seed)),
        *("-d", device),  # without that GPU verify must fail instead of emulating
        *(f"-p{name}={value}" for name, value in variant.params.items()),
        *(f"-a{name}={value}" for name, value in axes.items()),
    ]
    done = tools.run(command, variant.label, timeout=_TIMEOUT, env=tools.environment() | zones.NONE)
    text = f"{done.stdout}\n{done.stderr}"
    found = parse(text)
    if not found and f"\n{variant.label}" not in f"\n{text}":
        said = next((s for s in text.splitlines() if s.startswith(("error:", f"{_PREFIX} Error"))), "")
        raise HarnessError(f"{tool} saw no launch of it. {said}".rstrip(), where=variant.label)
    return found


def parse(text: str) -> tuple[Finding, ...]:
    """Return the findings in compute-sanitizer's output.

    Raises HarnessError if its summary is missing, or counts errors none of which could be read.
    """
    summary = _SUMMARY.search(text)
    if "COMPUTE-SANITIZER" not in text or summary is None:
        raise HarnessError("compute-sanitizer said nothing, or was cut off")
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.startswith(_PREFIX):
            continue
        said = line.removeprefix(_PREFIX)
        if not said.strip():
            blocks.append([])
        elif not _NOISE.search(said):
            if not said.startswith("  "):  # a finding begins at the margin; its details are indented
                blocks.append([])
            blocks[-1].append(said.strip())
    found = tuple(_finding(block) for block in blocks if block)
    if int(summary[1]) and not found:
        raise HarnessError(f"compute-sanitizer reports {summary[1]} errors, none of which could be read")
    return found


def control(tool: str, *, device: str = "0") -> str | None:
    """Check that the tool finds the planted fault of its control kernel.

    Return None if it does or has no control kernel; otherwise a sentence that says what is wrong.
    """
    name = CONTROLS.get(tool)
    if name is None:
        return None
    variant = catalog.kernel(name).variant() if name[0].isdigit() else _planted(name)
    try:
        found = check(variant, {"N": 64}, tool, device=device)
    except HarnessError as e:
        return f"{tool} could not be tried on {variant.kernel.name}: {e}"
    return (
        None
        if found
        else f"{tool} found nothing in {variant.kernel.name}, which has a fault: it does not look"
    )


def _planted(name: str) -> Variant:
    """Return the kernel of this name from the folder of this module."""
    (kernel,) = catalog.find(str(Path(__file__).parent / f"{name}.cu"))
    return kernel.variant()


def _finding(block: Sequence[str]) -> Finding:
    """Build a finding from its lines."""
    first = block[0]
    severity, _, rest = first.partition(": ")
    known = severity.lower() in ("error", "warning")
    places = []
    for line in block:
        match = _PLACE.search(line)
        if match:
            places.append(
                Place(
                    function=match["function"],
                    offset=int(match["offset"], 16),
                    file=Path(match["file"] or "").name,
                    line=int(match["line"] or 0),
                    access=(match["what"] or "").removeprefix("and ").split(" between ")[-1].strip().lower(),
                )
            )
    return Finding(
        severity=severity.lower() if known else "error",
        message=rest if known else first,
        places=tuple(places),
        details=tuple(block[1:]),
    )
