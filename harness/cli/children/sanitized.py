"""``harness check --device gpu``: run kernels under compute-sanitizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from harness.cli import options, running
from harness.errors import HarnessError, UsageError
from harness.support.processes import cores
from harness.support.signals import awaited

if TYPE_CHECKING:
    from harness.instruments.sanitizer import Finding
    from harness.kernels.spec import Variant
    from harness.problems.protocol import Axes, Problem
    from harness.results.rows import Row

T = TypeVar("T")
R = TypeVar("R")

_DEFAULT = "racecheck"
_SHOWN = 6  # how many lines of a finding are shown below its first
_AT_ONCE = 6  # processes on one GPU, each of which needs less than a second of its time


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One tool on one kernel at one size."""

    variant: Variant
    shape: str
    axes: Axes
    tool: str


def named(text: str | None) -> list[str]:
    """Return the tools in ``memcheck,racecheck``, each once; racecheck for None. Raises UsageError for an
    unknown one.
    """
    from harness.instruments.sanitizer import TOOLS

    names = [name.strip() for name in (_DEFAULT if text is None else text).split(",")]
    for name in names:
        if name not in TOOLS:
            raise UsageError(f"compute-sanitizer has no tool {name!r}", hint=f"there are {', '.join(TOOLS)}")
    return list(dict.fromkeys(names))


def run(
    variants: Sequence[Variant],
    points: Mapping[type[Problem], Sequence[Axes]],
    tools: Sequence[str],
    device: str,
    seed: int,
    style: str | None,
    json_file: Path | None,
) -> None:
    """Run each tool on each kernel and size; print a table and the findings, and write the record.

    Exits with code 1 if a kernel that is not marked as broken has findings. Raises HarnessError if a tool
    does not find the fault in its control, a kernel made to have one.
    """
    from harness.instruments import sanitizer
    from harness.problems.registry import resolve
    from harness.results import record, tables

    gpu, _ = options.open_device(None if device == "gpu" else device, required=True)
    if gpu is None:
        raise UsageError("--device gpu runs on a GPU")
    uuid = gpu.uuid
    jobs = [
        _Job(variant=variant, shape=cls.from_axes(axes).label, axes=axes, tool=tool)
        for cls, listed in points.items()
        for variant in variants
        if resolve(variant.kernel) is cls
        for axes in listed
        for tool in tools
    ]

    def look(job: _Job) -> tuple[Sequence[Finding], str]:
        """Return what was found, or why the tool could not run."""
        try:
            return sanitizer.check(job.variant, job.axes, job.tool, device=uuid, seed=seed), ""
        except HarnessError as e:
            return (), str(e)

    def rows() -> Iterator[tuple[_Job, Sequence[Finding], Row]]:
        for job, (found, error) in _beside(
            look, jobs, lambda j: step(f"{j.tool} {j.variant.label} {j.shape}")
        ):
            yield job, found, _record(job, found, error)

    with running.progress(len(tools) + len(jobs)) as step:
        controls = _beside(lambda t: sanitizer.control(t, device=uuid), tools, lambda t: step(f"{t} control"))
        for _, blind in list(controls):
            if blind is not None:
                raise HarnessError(blind, hint="its findings, and its silence, would mean nothing")
        done, fault = running.collect(rows())
    records = [r for _, _, r in done]
    if json_file is not None:
        meta = record.provenance(seed=seed) | {"gpu": options.about(gpu)}
        meta["ended"] = str(fault) if fault else "complete"
        fault = fault or running.keep(json_file, "sanitizer", records, meta)
    lines = [records[i : i + len(tools)] for i in range(0, len(records), len(tools))]
    cells = [_cells(line, len(tools)) for line in lines]
    click.echo(tables.plain_table(cells, ["kernel", "shape", "findings", *tools], style))
    for tool in tools:
        _say_control(tool)
    for job, found, _ in done:
        _print(job, found)
    running.explain([r for r in records if r["status"] == "error"], [])
    running.finish(records, [], fault)


def _beside(work: Callable[[T], R], jobs: Sequence[T], step: Callable[[T], None]) -> Iterator[tuple[T, R]]:
    """Yield each job with its result, in their order, several at once in threads.

    Each waits for a process that takes seconds to start.
    """
    with ThreadPoolExecutor(min(_AT_ONCE, cores())) as pool:
        try:
            for job, future in [(job, pool.submit(work, job)) for job in jobs]:
                step(job)
                yield job, awaited(future)
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C no further job starts


def _cells(line: Sequence[Row], tools: int) -> list[str]:
    """Return the cells of one kernel at one size, with one column for each tool."""
    from harness.results.rows import label

    findings = str(sum(len(r["findings"] or ()) for r in line))
    told = [r["status"] for r in line]
    return [label(line[0]), line[0]["shape"], findings, *told, *["-"] * (tools - len(told))]


def _status(variant: Variant, found: Sequence[Finding]) -> str:
    """Return OK without findings, else FAILED, or EXPECTED for a kernel that is marked as broken.

    A broken kernel without findings is OK: its defect may be of another kind than the tool looks for.
    """
    from harness.bench.row import EXPECTED, FAILED, OK

    return OK if not found else EXPECTED if variant.kernel.broken else FAILED


def _say_control(tool: str) -> None:
    """Print which control the tool was tried on."""
    from harness.instruments import sanitizer

    name = sanitizer.CONTROLS.get(tool)
    if name is None:
        click.echo(f"{tool} has no control: harness writes every buffer before a launch")
    else:
        click.echo(f"control: {tool} finds the fault in {name}")


def _print(job: _Job, found: Sequence[Finding]) -> None:
    """Print the findings of one job, with their source lines."""
    variant = job.variant
    lines = variant.kernel.source.splitlines()
    for finding in found:
        click.echo(f"\n{variant.label}, {job.shape}: {finding.severity}: {finding.message}")
        for source in finding.sources:
            file, _, number = source.rpartition(":")
            known = file == variant.kernel.path.name and 0 < int(number) <= len(lines)
            click.echo(f"  {source}: {lines[int(number) - 1].strip()}" if known else f"  {source}")
        for detail in finding.details[:_SHOWN]:
            click.echo(f"    {detail}")
        if len(finding.details) > _SHOWN:
            click.echo(f"    and {len(finding.details) - _SHOWN} more")


def _record(job: _Job, found: Sequence[Finding], error: str) -> Row:
    """Return the row of one job."""
    return {
        "kernel": job.variant.kernel.name,
        "params": dict(job.variant.params),
        "shape": job.shape,
        "tool": job.tool,
        "status": "error" if error else _status(job.variant, found),
        "detail": error,
        "findings": [asdict(f) | {"sources": f.sources} for f in found],
    }
