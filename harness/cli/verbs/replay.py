"""``harness replay``: repeat the run of a result file, and compare."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import options
from harness.cli.verbs import bench
from harness.cli.verbs.compare import print_differences
from harness.errors import INCONCLUSIVE_EXIT, UsageError

if TYPE_CHECKING:
    from harness.results.record import Document

# Parameters of bench that are not repeated, about the output and the GPU.
_DROPPED = ("json_file", "style", "device", "wide", "require_gpu", "gpus", "scheduler")


@click.command(name="replay")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@options.a_gpu
@options.threshold("2%", "How far a time may be off and still count as reproduced.")
def command(file: Path, device: str, threshold: float) -> None:
    """Run what a result file of `harness bench` says was run, and say whether it comes out the same.

    Kernels of your own are looked for in the working directory, as result files hold no folders. Exit code 0
    reproduced, 1 not reproduced, 3 incomparable: another GPU, clock or source, or too much noise to tell.
    """
    from harness.results import comparison, record

    old = record.load(file)
    if old.get("kind") != "bench" or not old["meta"].get("gpu"):
        raise UsageError("nothing was measured in this file", where=str(file))
    if "argv" not in old["meta"]:
        raise UsageError("this file does not say what was run: meta has no argv", where=str(file))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "replay.json")
        arguments = [*arguments_of(old["meta"]["argv"]), "-d", device, "--require-gpu", "--json", str(path)]
        click.echo(f"harness bench {' '.join(arguments[:-5])}\n")
        with contextlib.suppress(SystemExit):  # what failed is in its rows
            bench.command.main(arguments, standalone_mode=False)
        if not path.exists():
            raise UsageError("the run wrote no result", where=str(file))
        new = record.load(path)
    reasons = [f"another source of {name}" for name in changed(old, new)]
    if not reasons:
        try:
            found = comparison.compare(old, new, threshold=threshold)
        except UsageError as e:
            reasons = [e.what]
    if reasons:
        click.echo(f"\nincomparable: {'; '.join(reasons)}")
        raise SystemExit(INCONCLUSIVE_EXIT)
    print_differences(found, None)
    off = [d for d in found if d.status not in ("SAME", "INCONCLUSIVE")]
    unclear = [d for d in found if d.status == "INCONCLUSIVE"]
    if off:
        click.echo(f"\nnot reproduced: {len(off)} of {len(found)} rows differ")
        raise SystemExit(1)
    if unclear:
        click.echo(f"\nincomparable: {len(unclear)} of {len(found)} rows are too noisy to tell")
        raise SystemExit(INCONCLUSIVE_EXIT)
    click.echo(f"\nreproduced: all {len(found)} rows within {100 * threshold:g}%")


def arguments_of(argv: list[str]) -> list[str]:
    """Return the arguments of ``harness bench`` in a recorded command line, without those about output and
    GPU.

    A result file may come from anybody, so only options that ``harness bench`` shows are repeated, and no
    path: result files hold none. Raises UsageError for anything else, and for another verb.
    """
    if argv[:2] != ["harness", "bench"]:
        raise UsageError(f"not a command line of `harness bench`: {' '.join(argv)}")
    ctx = click.Context(bench.command, info_name="bench")
    try:
        given, _, _ = bench.command.make_parser(ctx).parse_args(list(argv[2:]))
    except click.UsageError as e:
        raise UsageError(f"a command line that harness bench does not know: {e.format_message()}") from None
    found = [*given.pop("kernels", ())]
    if odd := [word for word in found if word.startswith("-")]:  # behind `--`, where it would be no option
        raise UsageError(f"{odd[0]!r} is no kernel's name")
    for param in bench.command.params:
        if not isinstance(param, click.Option) or param.name not in given or param.name in _DROPPED:
            continue
        name = next(o for o in param.opts if o.startswith("--"))
        if param.hidden:
            raise UsageError(f"{name} is not repeated from a result file")
        value = given[param.name]
        if param.is_flag:
            found.append(name)
        else:
            found += [f"{name}={one}" for one in (value if param.multiple else [value])]
    if odd := [word for word in found if "/" in word or "\\" in word]:
        raise UsageError(f"a result file names no folders: {odd[0]!r} is not repeated")
    return found


def changed(old: Document, new: Document) -> list[str]:
    """Return the names of the kernels whose source is not the one that was measured."""

    def sources(content: Document) -> dict[str, Any]:
        return {r["kernel"]: r.get("source_sha256") for r in content["rows"]}

    before, now = sources(old), sources(new)
    return [name for name in before if name in now and before[name] != now[name]]
