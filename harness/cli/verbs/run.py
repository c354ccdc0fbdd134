"""``harness run``: run a whole program, its host code as it is, its kernels on the emulator."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli import options, publishing, running
from harness.errors import INCONCLUSIVE_EXIT

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Split(click.Command):
    """A command whose arguments behind ``--`` are another program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what is behind the first ``--`` apart."""
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[__name__] = tuple(args[place + 1 :])
        return super().parse_args(ctx, args[:place])


@click.command(name="run", cls=_Split, short_help="Run a program without a GPU.")
@click.argument("sources", metavar="SOURCE... [-- ARGUMENT...]", nargs=-1, required=True, type=_FILE)
@options.include
@click.option("-D", "--define", "macros", multiple=True, metavar="NAME[=VALUE]", help="A macro, as of nvcc.")
@click.option(
    "--nvcc", "flags", multiple=True, metavar="FLAG", help="One more argument of nvcc, such as -std=c++20."
)
@click.option(
    "--seconds",
    type=options.Finite(min=1, max=10**6),
    default=120,
    show_default=True,
    metavar="N",
    help="Give up a launch that goes on later than that; none after it runs.",
)
@click.option(
    "--schedule",
    type=click.Choice(["lockstep", "warp-serial", "backward", "random"]),
    default="lockstep",
    show_default=True,
    help="Of warps and blocks, see `harness check --help`.",
)
@click.option(
    "--seed", default=1, show_default=True, type=click.IntRange(min=0), help="Of --schedule random."
)
@click.option(
    "--sms",
    type=click.IntRange(min=1, max=1024),
    default=132,
    show_default=True,
    metavar="N",
    help="Multiprocessors that the device says it has.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=2),
    metavar="N",
    help="Of each larger grid run N blocks: the first, the last and some between. Results are incomplete.",
)
@click.option("-q", "--quiet", is_flag=True, help="What the program prints goes nowhere.")
@options.strict
@options.allow_refused
@options.markdown
@options.json_file
@publishing.sarif_file
@publishing.github
@click.pass_context
def command(
    ctx: click.Context,
    /,
    sources: tuple[Path, ...],
    include: tuple[str, ...],
    macros: tuple[str, ...],
    flags: tuple[str, ...],
    seconds: float,
    schedule: str,
    seed: int,
    sms: int,
    sample: int | None,
    quiet: bool,
    strict: bool,
    allow_refused: bool,
    style: str | None,
    json_file: Path | None,
    sarif_file: Path | None,
    github: bool,
) -> None:
    """Run a CUDA program without a GPU: nvcc compiles the .cu and .cpp files, host code runs as it is, and
    what it launches runs on the emulator, with the program's own sizes and contents.

    Found are races in kernels and between streams, accesses out of bounds or of freed memory, reads of what
    nothing wrote, host code that uses memory before it waits for the device, and calls of the runtime that a
    GPU refuses, too. Exit code 1 on any of these, and if the program ends with a code other than 0; 3 if the
    emulator refused something, or time was over. Wants nvcc (`pip install 'cuda-harness[programs]'`) and a
    C++ compiler.
    """
    from harness import programs
    from harness.cli.views import programs as view
    from harness.results import record

    record.check_writable(json_file, sarif_file)
    run = programs.run_program(
        sources,
        ctx.meta[__name__],
        include=include,
        flags=[*(f"-D{macro}" for macro in macros), *flags],
        seconds=seconds,
        schedule=schedule,
        seed=seed,
        sms=sms,
        sample=sample or 0,
        quiet=quiet,
    )
    meta = record.provenance(seed=seed) if json_file is not None else {}
    meta |= {"schedule": schedule} | run.meta()
    unwritten = running.keep(json_file, "run", run.rows(), meta)
    unwritten = publishing.told(view.reported(run), sarif_file, github=github) or unwritten
    view.print_run(run, style)
    if unwritten is not None:
        raise unwritten
    notices = strict and any(f.benign for one in run.kernels.values() for f, *_ in one.findings.values())
    if run.failed or notices:
        raise SystemExit(1)
    if not run.complete and not allow_refused:
        raise SystemExit(INCONCLUSIVE_EXIT)
