"""``harness check --device gpu``: kernels under compute-sanitizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness import tables
from harness.cli import options
from harness.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from harness.problem import Axes, Problem
    from harness.record import Record
    from harness.sanitizer import Finding
    from harness.spec import Variant

_SHOWN = 6  # lines of a finding below its first


def run(
    variants: Sequence[Variant],
    points: Mapping[type[Problem], Sequence[Axes]],
    tool: str,
    device: str,
    seed: int,
    style: str | None,
    json_file: Path | None,
) -> None:
    """A line for each kernel and size, then what was found; exit code 1 where that is wrong."""
    from harness import record, sanitizer
    from harness.problems import resolve

    gpu, _ = options.open_device(None if device == "gpu" else device, required=True)
    if gpu is None:
        raise UsageError("--device gpu runs on a GPU")
    jobs = [(v, cls, axes) for cls, listed in points.items() for v in variants if resolve(v.kernel) is cls
            for axes in listed]  # fmt: skip
    records: list[Record] = []
    shown: list[tuple[Variant, str, Sequence[Finding]]] = []
    found: Sequence[Finding]
    with options.progress(len(jobs) + 1) as step:
        step(f"{tool} control")
        blind = sanitizer.control(tool, device=gpu.uuid)
        if blind is not None:
            raise HarnessError(blind, hint="its findings, and its silence, would mean nothing")
        for variant, cls, axes in jobs:
            shape = cls.from_axes(axes).label
            step(f"{tool} {variant.label} {shape}")
            try:
                found = sanitizer.check(variant, axes, tool, device=gpu.uuid, seed=seed)
                status, detail = _status(variant, tool, found), ""
            except HarnessError as e:
                found, status, detail = (), "error", str(e)
            shown.append((variant, shape, found))
            records.append(_record(variant, shape, tool, status, detail, found))
    if json_file is not None:
        record.write_json(json_file, record.document("sanitizer", records, record.provenance(seed=seed)))
    rows = [[options.row_label(r), r["shape"], str(len(r["findings"])), r["status"]] for r in records]
    click.echo(tables.plain_table(rows, ["kernel", "shape", "findings", tool], style))
    _say_control(tool)
    for variant, shape, found in shown:
        _print(variant, shape, found)
    options.explain([r for r in records if r["status"] == "error"], [])
    options.finish(records, [])


def _status(variant: Variant, tool: str, found: Sequence[Finding]) -> str:
    """A broken kernel may be broken in another way than this tool looks for."""
    from harness.measure import EXPECTED, FAILED, OK

    return OK if not found else EXPECTED if variant.kernel.broken else FAILED


def _say_control(tool: str) -> None:
    from harness import sanitizer

    name = sanitizer.CONTROLS.get(tool)
    if name is None:
        click.echo(f"{tool} has no control: harness writes every buffer before a launch")
    else:
        click.echo(f"control: {tool} finds the fault in {name}")


def _print(variant: Variant, shape: str, found: Sequence[Finding]) -> None:
    lines = variant.kernel.source.splitlines()
    for finding in found:
        click.echo(f"\n{variant.label}, {shape}: {finding.severity}: {finding.message}")
        for source in finding.sources:
            file, _, number = source.rpartition(":")
            known = file == variant.kernel.path.name and 0 < int(number) <= len(lines)
            click.echo(f"  {source}: {lines[int(number) - 1].strip()}" if known else f"  {source}")
        for detail in finding.details[:_SHOWN]:
            click.echo(f"    {detail}")
        if len(finding.details) > _SHOWN:
            click.echo(f"    and {len(finding.details) - _SHOWN} more")


def _record(
    variant: Variant, shape: str, tool: str, status: str, detail: str, found: Sequence[Finding]
) -> Record:
    from dataclasses import asdict

    return {
        "kernel": variant.kernel.name,
        "params": dict(variant.params),
        "shape": shape,
        "tool": tool,
        "status": status,
        "detail": detail,
        "findings": [asdict(f) | {"sources": f.sources} for f in found],
    }
