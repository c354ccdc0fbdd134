"""``harness judge``: one verdict on each kernel of a stranger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import options
from harness.cli.children import fleet, fleet_verdicts

if TYPE_CHECKING:
    from harness.judging.verdict import Verdict


@click.command(name="judge")
@click.argument("kernels", metavar="KERNEL...", nargs=-1, required=True)
@click.option(
    "--problem",
    default="gemm",
    show_default=True,
    metavar="NAME",
    help="What it has to compute: gemm, copy, fma or mma.",
)
@click.option("--dtype", default="fp32", show_default=True, metavar="TYPE", help="Element type of a gemm.")
@click.option(
    "--ref", metavar="KERNEL", help="Time it in turn with this kernel, which is trusted, not with cuBLAS."
)
@options.params
@options.axis
@options.regime("How operands and launches follow each other while it is timed.")
@options.device
@fleet.options
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Of the sizes and the data, to repeat a run; drawn anew without it.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="CHECK",
    help="A static check that only warns, such as 'L2 persistence'. May be given again.",
)
@click.option(
    "--untrusted/--no-untrusted",
    default=True,
    hidden=True,
    help="Implied: there is no other way to judge.",
)
@click.option(
    "--scores",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Append a line of JSON for each kernel; several judges may append to one file.",
)
@options.markdown
@options.json_file
@click.pass_context
def command(
    ctx: click.Context,
    /,
    kernels: tuple[str, ...],
    problem: str,
    dtype: str,
    ref: str | None,
    params: tuple[str, ...],
    axis: tuple[str, ...],
    regime: str,
    device: str | None,
    gpus: str | None,
    scheduler: str | None,
    seed: int | None,
    allow: tuple[str, ...],
    untrusted: bool,
    scores: Path | None,
    style: str | None,
    json_file: Path | None,
) -> None:
    """Judge kernels that nobody trusts: right at sizes drawn anew, no results kept from launch to launch, no
    tricks with the clock, and how fast against cuBLAS.

    Each is read, compiled, emulated and run in processes of their own, with limits. Exit code 0 where all
    are accepted, 1 where one is rejected, 3 where not everything could be checked, as without a GPU.
    """
    from harness.cli import axes
    from harness.cli.views import judged
    from harness.errors import UsageError
    from harness.judging import scores as score_file
    from harness.judging import session
    from harness.problems.gemm import GEMMS
    from harness.problems.registry import BUILTIN
    from harness.results import record

    if not untrusted:
        raise UsageError("harness judge trusts no kernel", hint="harness verify and harness bench do")
    cls = GEMMS.get(dtype) if problem == "gemm" else BUILTIN.get(problem)
    points = axes.points(axis, cls.axes) if axis and cls is not None else []
    chosen = axes.parse_params(params)
    if several := [name for name, values in chosen.items() if len(values) > 1]:
        raise UsageError(f"parameter {several[0]} with several values: a verdict is on one kernel")
    record.check_writable(json_file, scores)
    verdicts: list[Verdict] = []

    def judged_here(path: Path) -> Verdict:
        return session.judge(
            path,
            problem=problem,
            dtype=dtype,
            ref=ref,
            axes=points,
            regime=regime,
            device=device,
            seed=seed,
            params={name: values[0] for name, values in chosen.items()},
            allow=allow,
        )

    paths = [_path(word) for word in kernels]
    several_gpus = fleet.wanted(gpus, scheduler, device)
    for verdict in fleet_verdicts.judge(ctx, paths) if several_gpus else map(judged_here, paths):
        verdicts.append(verdict)
        judged.show(verdict, style)
        if scores is not None:
            score_file.append(scores, verdict)
    if json_file is not None:
        meta = record.provenance(seed=seed) | {"gpu": verdicts[0].about.get("gpu")}
        record.write_json(json_file, record.document("judge", [v.record() for v in verdicts], meta))
    codes = {v.exit_code for v in verdicts}
    raise SystemExit(1 if 1 in codes else max(codes))


def _path(word: str) -> Path:
    """Return the file of a kernel: the one at this path, or the shipped one of this name."""
    from harness.kernels import catalog

    path = Path(word)
    if path.suffix in (".cu", ".ptx") or path.exists():
        return path
    return catalog.kernel(word).path
