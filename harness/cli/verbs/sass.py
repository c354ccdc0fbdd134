"""``harness sass``: count instructions, check SASS expectations, print listings and differences."""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import options, publishing, running
from harness.errors import MissingDependency, UsageError
from harness.kernels import arch as archs

if TYPE_CHECKING:
    from harness.launch.builds import Built, Skipped
    from harness.sass.code import Code


@click.command(name="sass")
@options.kernels
@options.params
@options.sweep
@options.dtype
@options.entry
@options.include
@options.arch
@click.option(
    "-e",
    "--expect",
    "extra",
    multiple=True,
    metavar="TEXT",
    help="Also check this: 'LDS.128 in loop', 'no LDL', 'FFMA share in loop >= 0.5', 'registers <= 64'.",
)
@click.option("-s", "--source", is_flag=True, help="Print the source with its instructions beside it.")
@click.option(
    "-l", "--listing", is_flag=True, help="Print the instructions in order, under their source lines."
)
@click.option(
    "-c", "--control", "controls", is_flag=True, help="With these: stall counts, barriers, reuse flags."
)
@click.option(
    "--diff", metavar="WHAT", help="What changes with another 'KERNEL NAME=VALUE sm_NN', or part of that."
)
@click.option(
    "-f",
    "--function",
    default="*",
    metavar="GLOB",
    help="Of a cubin, library or executable: only functions that match.",
)
@click.option(
    "--list", "list_", is_flag=True, help="Only list the kernels in a cubin, library or executable."
)
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="Of a block, for the occupancy of code not built here."
)
@click.option(
    "--shared",
    default=0,
    type=click.IntRange(0),
    metavar="BYTES",
    help="Dynamic shared memory of a block, likewise.",
)
@options.markdown
@options.json_file
@publishing.html_file
def command(
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    sweep: bool,
    dtypes: tuple[str, ...],
    entry: str | None,
    include: tuple[str, ...],
    arch: str | None,
    extra: tuple[str, ...],
    source: bool,
    listing: bool,
    controls: bool,
    diff: str | None,
    function: str,
    list_: bool,
    threads: int | None,
    shared: int,
    style: str | None,
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Count machine instructions loop by loop, and check what each kernel's file expects of its code.

    KERNEL may also be a .cu file without front matter, a cubin, PTX, or an executable or library with code
    for GPUs in it. Counts are of instructions in the code, not of executions. The hot loop, marked *, does
    most of the floating-point or matrix work. Exit code 1 where an expectation does not hold.
    """
    from harness.cli.views import machine_code
    from harness.kernels import expectation
    from harness.results import encode, record
    from harness.results.html.annotated import Annotated
    from harness.sass import contract
    from harness.support import tools

    wanted = [expectation.parse(text) for text in extra]
    if controls and not (source or listing):
        raise UsageError("--control adds to --listing or --source: give one of them")
    if diff is not None and (extra or source or listing or html_file):
        raise UsageError("--diff prints what changed: no --expect, --source, --listing or --html with it")
    tools.require("nvdisasm")
    record.check_writable(json_file, page=html_file, read=map(Path, filter(None, (*kernels, diff))))
    targets = options.archs(arch)
    if list_:
        _list(kernels, targets, function, style)
        return
    foreign = _Foreign(function=function, threads=threads, shared=shared)
    which = _Which(entry=entry, include=include)
    selection = _read(kernels, params, sweep, targets, foreign, dtypes, which)
    if diff is not None:
        _diff(
            selection, _other(selection, kernels, diff, targets, foreign, dtypes), foreign, style, json_file
        )
        return
    foreign.refuse_unless(selection)
    codes, built, skipped = selection.codes, selection.built, selection.skipped
    found = []
    for code in codes:
        own = built[code.label, code.arch].variant.expectations(code.arch) if built else ()
        found.append((code, contract.check([*own, *wanted], code)))
    unwritten = None
    if json_file is not None:
        rows = [
            {
                **(encode.static_record(built[code.label, code.arch]) if built else {}),
                **encode.code_record(code, findings),
            }
            for code, findings in found
        ]
        unwritten = running.keep(json_file, "sass", rows, record.provenance())
    shown = [Annotated.of_code(code) for code in codes] if html_file is not None else []
    unwritten = publishing.keep_page(html_file, shown, "sass") or unwritten
    if source or listing:
        for code in codes:
            machine_code.print_listing(code, beside=source, controls=controls)
    elif len(codes) > 1:
        machine_code.print_summary(codes, style)
    for code, findings in found:
        machine_code.print_code(code, findings, style, brief=source or listing)
    running.explain([], skipped, err=True)
    running.finish([], skipped, unwritten)
    if not all(f.holds for _, findings in found for f in findings):
        raise SystemExit(1)


@dataclass(frozen=True, kw_only=True)
class _Which:
    """Which kernel of a file, and where its headers are looked for."""

    entry: str | None = None
    include: tuple[str, ...] = ()


def _list(names: Sequence[str], targets: Sequence[str], function: str, style: str | None) -> None:
    """Print the kernels in files of machine code: names, architectures, registers and memory."""
    from harness.results import tables
    from harness.sass import binary

    files = [name for name in names if binary.is_binary(name)]
    if not files or len(files) < len(names):
        raise UsageError("--list is for cubins, libraries and executables", hint="harness list shows kernels")
    rows = [
        [one.name, one.arch, *map(str, (one.registers, one.stack, one.shared))]
        for name in files
        for one in binary.listed(Path(name))
        if fnmatch.fnmatchcase(one.name, function) and (not targets or one.arch in targets)
    ]
    if not rows:
        raise UsageError(f"no kernel {function!r} in {', '.join(files)}")
    click.echo(tables.plain_table(rows, ["kernel", "arch", "registers", "stack B", "shared B"], style))


@dataclass(frozen=True, kw_only=True)
class _Foreign:
    """Options about code that harness did not build: functions to read, threads and shared bytes of a
    block.
    """

    function: str
    threads: int | None
    shared: int

    def refuse_unless(self, *selections: _Selection) -> None:
        """Raise UsageError if such options are given and none of the selections is foreign code."""
        given = self.function != "*" or self.threads is not None or self.shared
        if given and all(s.built for s in selections):
            raise UsageError("--function, --threads and --shared are for code that harness did not build")


@dataclass(frozen=True, kw_only=True)
class _Selection:
    """The codes that a command line selects.

    `built` has the build of each by label and architecture; it is empty for code that harness did not build.
    """

    codes: list[Code]
    built: dict[tuple[str, str], Built]
    skipped: list[Skipped]

    def one(self, what: str) -> Code:
        """Return the only code. Raises UsageError, which calls the selection `what`, if there is not exactly
        one.
        """
        if self.skipped:
            raise self.skipped[0].error
        if len(self.codes) != 1:
            raise UsageError(
                f"--diff compares one kernel with another; {what} selects {len(self.codes)}",
                hint="add an architecture, a parameter's value, or -f NAME",
            )
        return self.codes[0]


def _read(
    names: Sequence[str],
    params: Sequence[str],
    sweep: bool,
    targets: list[str],
    foreign: _Foreign,
    dtypes: Sequence[str] = (),
    which: _Which | None = None,
    *,
    strict: bool = True,
) -> _Selection:
    """Read kernels of ours, or files of machine code.

    Raises UsageError for a mixture of both, since hardly any option applies to both.
    """
    from harness.launch import builds
    from harness.sass import binary
    from harness.sass.code import Code

    cache = options.open_cache()
    files = [name for name in names if binary.is_binary(name)]
    if files:
        if len(files) < len(names) or params or sweep or dtypes:
            raise UsageError(
                f"{files[0]} is machine code, which has no parameters or types and goes without "
                "other kernels",
                hint="compare two of them with --diff",
            )
        codes = []
        for name in files:
            have = [] if targets else binary.architectures(Path(name))
            if len(have) > 1:
                others = ", ".join(have[:-1])
                warnings.warn(f"{Path(name).name}: code for {have[-1]}; --arch shows {others}", stacklevel=2)
            codes += binary.read(Path(name), cache, archs=tuple(targets or have[-1:]), **asdict(foreign))
        return _Selection(codes=codes, built={}, skipped=[])
    chosen = asdict(which or _Which())
    _, variants = options.variants(names, params, sweep=sweep, dtypes=dtypes, strict=strict, **chosen)
    targets = targets or [archs.DEFAULT]
    with running.progress(len(variants) * len(targets)) as step:
        built, skipped = builds.build_all(variants, targets, cache, step, depth="live")
    running.warn(built)
    codes = []
    for b in built:
        if b.sass is None:  # nvdisasm was there when the command began
            raise MissingDependency("nvdisasm is gone")
        codes.append(Code.of(b.cubin, b.sass))
    by_name = {(b.variant.label, b.cubin.arch): b for b in built}
    return _Selection(codes=codes, built=by_name, skipped=skipped)


def _diff(
    left: _Selection, right: _Selection, foreign: _Foreign, style: str | None, json_file: Path | None
) -> None:
    """Print the differences between two selections of one code each, and write the record."""
    from harness.cli.views import machine_code
    from harness.results import encode, record

    foreign.refuse_unless(left, right)
    a, b = left.one("the command line"), right.one("--diff")
    unwritten = None
    if json_file is not None:
        unwritten = running.keep(json_file, "diff", [encode.diff_record(a, b)], record.provenance())
    machine_code.print_difference(a, b, style)
    if unwritten is not None:
        raise unwritten


def _other(
    left: _Selection,
    files: Sequence[str],
    text: str,
    targets: list[str],
    foreign: _Foreign,
    dtypes: Sequence[str],
) -> _Selection:
    """Read what ``--diff`` names: a kernel or file, NAME=VALUE, an architecture.

    The rest is as on the left, the element type too where the other kernel is written for it.
    """
    from harness.sass import binary

    code = left.one("the command line")
    words = [text] if Path(text).suffix and binary.is_binary(text) else options.words(text)
    chosen = [w for w in words if re.fullmatch(r"sm_\w+", w)]
    params = [w for w in words if re.fullmatch(r"\w+=[^=]+", w) and not binary.is_binary(w)]
    names = [w for w in words if w not in chosen and w not in params]
    if len(names) > 1 or len(chosen) > 1:
        raise UsageError(
            f"--diff {text!r} does not say one thing to compare with",
            hint="such as --diff coalesced, --diff TILE=32, --diff sm_80, --diff old/mine.cubin",
        )
    if not names and left.built:
        variant = left.built[code.label, code.arch].variant
        names, dtypes = [str(variant.kernel.path)], [variant.kernel.dtype]
        told = {p.partition("=")[0] for p in params}
        params += [f"{name}={value}" for name, value in variant.params.items() if name not in told]
    names = names or list(files)
    if not binary.is_binary(names[0]):
        return _read(names, params, False, chosen or targets or [code.arch], foreign, dtypes, strict=False)
    same = [code.arch] if code.arch in binary.architectures(Path(names[0])) else []
    return _read(names, params, False, chosen or same, foreign)
