"""Compare what two result files say of kernels without any time: registers, instructions, sectors, ways.

These figures are exact: the same source, compiler and size give the same values on any machine, so that a CI
job without a GPU can fail a change that costs registers or conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import UsageError
from harness.results.record import Document
from harness.results.rows import Row, label
from harness.sass.instructions import INSTRUCTION_BYTES, matches

SAME, BETTER, WORSE = "SAME", "BETTER", "WORSE"
GONE, NEW, BROKEN = "GONE", "NEW", "FAILED"
# The figures, with +1 where more is worse and -1 where less is.
FIGURES = {
    "registers": +1,
    "spills": +1,
    "shared": +1,
    "occupancy": -1,
    "instructions": +1,
    "loop_instructions": +1,
    "LDS_bits": -1,
    "LDG_bits": -1,
    "findings": +1,
    "sectors": +1,
    "sectors_per_request": +1,
    "ways": +1,
    "global_bytes": +1,
}
UNITS = {
    "registers": "a thread",
    "spills": "bytes, spill stores and loads",
    "shared": "bytes of shared memory a block",
    "occupancy": "theoretical, 0 to 1",
    "instructions": "in the machine code",
    "loop_instructions": "in the hot loop",
    "LDS_bits": "a thread's shared load, on average",
    "LDG_bits": "a thread's global load, on average",
    "findings": "of the emulator",
    "sectors": "32-byte sectors of a launch",
    "sectors_per_request": "32-byte sectors a request",
    "ways": "wavefronts over the least",
    "global_bytes": "bytes that threads ask global memory for",
}
KINDS = ("bench", "check", "run", "sass", "verify")
_WIDTHS = ("64", "128")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One figure of one kernel in both files.

    `shape` is the size at which it was counted, empty for figures of the code. `status` is SAME, BETTER or
    WORSE; GONE and NEW for kernels that only one file has, FAILED for one that could not be built or run and
    could before, which have no figure.
    """

    label: str
    arch: str
    shape: str
    figure: str
    before: float | None
    after: float | None
    status: str

    @property
    def failed(self) -> bool:
        """True if the change has to be looked at: the figure is worse, or the kernel failed."""
        return self.status in (WORSE, BROKEN)


def has_figures(content: Document) -> bool:
    """Return True if the file has figures that need no time."""
    return content.get("kind") in KINDS and any(_of_code(row) or _counted(row) for row in content["rows"])


def compare(
    reference: Document, candidate: Document, *, threshold: float, figures: Sequence[str] = ()
) -> list[Change]:
    """Return every figure that both files have of a kernel, and the kernels that only one has.

    `threshold` is the relative difference that counts: 0 for any. `figures` selects some of `FIGURES`, all if
    it is empty. Raises UsageError if the files have no figure in common.
    """
    if unknown := [name for name in figures if name not in FIGURES]:
        raise UsageError(f"no figure is called {unknown[0]!r}", hint=f"figures: {', '.join(FIGURES)}")
    chosen = [name for name in FIGURES if not figures or name in figures]
    old, new = _table(reference["rows"]), _table(candidate["rows"])
    failed = {_name(r): r for r in candidate["rows"] if r.get("status") in ("FAILED", "error")}
    found: list[Change] = []
    for key, values in new.items():
        before = old.get(key, {})
        for name in chosen:
            a, b = before.get(name), values.get(name)
            if a is not None and b is not None:
                status = _status(name, a, b, threshold)
                found.append(_change(key, name, a, b, status))
    if not found:
        raise UsageError(
            "the two have no figure in common: kernel, parameters, architecture and size must agree"
        )
    kernels = [list(dict.fromkeys(key[:2] for key in side)) for side in (old, new)]
    bad = {_name(r) for r in reference["rows"] if r.get("status") in ("FAILED", "error")}
    for (name, arch), row in failed.items():
        if (name, arch) not in bad:
            found.append(_change((name, arch, str(row.get("shape", ""))), "", None, None, BROKEN))
    found += [_change((*k, ""), "", None, None, GONE) for k in kernels[0] if k not in kernels[1]]
    found += [_change((*k, ""), "", None, None, NEW) for k in kernels[1] if k not in kernels[0]]
    return found


def _change(key: tuple[str, str, str], figure: str, a: float | None, b: float | None, status: str) -> Change:
    """Return a change of the kernel, architecture and shape in `key`."""
    return Change(label=key[0], arch=key[1], shape=key[2], figure=figure, before=a, after=b, status=status)


def _status(figure: str, a: float, b: float, threshold: float) -> str:
    """Return whether `b` is worse than `a` by more than the threshold; from 0 every change counts."""
    if abs(b - a) <= threshold * abs(a):
        return SAME
    return WORSE if (b - a) * FIGURES[figure] > 0 else BETTER


def _name(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kernel with its parameters, and the architecture."""
    known = row.get("kernel") and isinstance(row.get("params"), Mapping)
    return label(row) if known else str(row.get("label", "")), str(row.get("arch", ""))  # type: ignore[arg-type]


def _table(rows: Sequence[Row]) -> dict[tuple[str, str, str], dict[str, float]]:
    """Return the figures by kernel, architecture and shape; those of the code are under an empty shape."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        name, arch = _name(row)
        if code := _of_code(row):
            found.setdefault((name, arch, ""), {}).update(code)
        if counted := _counted(row):
            found.setdefault((name, arch, row.get("shape", "")), {}).update(counted)
    return found


def _of_code(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a row's machine code."""
    names = ("registers", "spills", "shared", "occupancy")
    known = {name: row[name] for name in names if isinstance(row.get(name), int | float)}
    mix, tally = row.get("mix"), row.get("sass")
    if isinstance(mix, Mapping):  # of `harness sass`: every opcode
        known["instructions"] = sum(mix.values())
        known |= dict(_widths(mix))
    elif isinstance(tally, Mapping):  # of the others: the opcodes of `encode.COUNTED`
        known["instructions"] = tally.get("bytes", 0) / INSTRUCTION_BYTES
        known |= dict(_widths({k: n for k, n in tally.items() if k != "bytes"}, nested=True))
    hot = [loop for loop in row.get("loops") or () if loop.get("hot")]
    if hot:
        known["loop_instructions"] = hot[0]["instructions"]
    return {name: float(value) for name, value in known.items()}


def _widths(mix: Mapping[str, int], *, nested: bool = False) -> Iterator[tuple[str, float]]:
    """Yield the average width of shared and global loads in bits, for each kind that occurs.

    In a `nested` mix the count of ``LDS`` includes those of ``LDS.64`` and ``LDS.128``.
    """
    for kind in ("LDS", "LDG"):
        total = mix.get(kind, 0) if nested else sum(n for o, n in mix.items() if matches(o, kind))
        wide = {
            w: mix.get(f"{kind}.{w}", 0)
            if nested
            else sum(n for o, n in mix.items() if matches(o, f"{kind}.{w}"))
            for w in _WIDTHS
        }
        if total:
            bits = 32 * (total - sum(wide.values())) + sum(int(w) * n for w, n in wide.items())
            yield f"{kind}_bits", bits / total


def _counted(row: Mapping[str, Any]) -> dict[str, float]:
    """Return what the emulator counted of a row."""
    emulated, total = row.get("emulated"), row.get("total")
    known: dict[str, Any] = dict(emulated) if isinstance(emulated, Mapping) else {}
    if isinstance(total, Mapping):
        known |= {name: total.get(name) for name in ("sectors", "global_bytes")}
    if isinstance(row.get("findings"), list):
        known["findings"] = len(row["findings"])
    return {n: float(v) for n, v in known.items() if n in FIGURES and isinstance(v, int | float)}
