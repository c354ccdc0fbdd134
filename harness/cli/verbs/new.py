"""``harness new``: write a kernel, its problem and its test, which pass at once."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import click

from harness.cli import options
from harness.errors import UsageError
from harness.kernels import spec
from harness.support import files, terminal

_EXAMPLES = files.SHIPPED / "examples"
_DEFAULT = "scale"  # the template for a name that none has
_NAME = re.compile(r"[A-Za-z]\w*\Z", re.ASCII)
_TEST = '''\
"""Test {name}.cu without a GPU: its numbers, races and memory faults, and its machine code."""

import pytest

SHAPES = {shapes}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numbers(assert_right, shape):
    assert_right("{name}.cu", shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_races_and_memory(assert_race_free, shape):
    assert_race_free("{name}.cu", shape)


def test_machine_code(assert_sass):
    assert_sass("{name}.cu", "no LDL", "no STL", "registers <= 128")
'''


@click.command(name="new")
@click.argument("name", required=False)
@click.option("-t", "--template", metavar="NAME", help="What to begin with; by default what NAME is called.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Write the files there.",
)
@options.markdown
def command(name: str | None, template: str | None, output: Path, style: str | None) -> None:
    """Write NAME.cu, NAME.py with its problem, and test_NAME.py. Without NAME, list the templates.

    The templates are the examples that come with harness, each a ladder of kernels: softmax is its first
    step, softmax/03_warp another one. Nothing is overwritten.
    """
    if name is None:
        _list(style)
        return
    if not _NAME.match(name):
        raise UsageError(f"{name!r} is no name for a kernel", hint="letters, digits and _: my_kernel")
    known = _templates()
    chosen = template or (name if name in known else _DEFAULT)
    if chosen not in known:
        raise UsageError(f"no template {chosen!r}", hint=", ".join(n for n in known if "/" not in n))
    written = {output / file: text for file, text in _made(known[chosen], name).items()}
    if taken := [path for path in written if path.exists()]:
        raise UsageError(
            "is there already: nothing was written", where=str(taken[0]), hint="choose another name"
        )
    for path, text in written.items():
        files.check_writable(path)
        files.write_file(path, text.encode())
    source, _, test = written
    click.echo(terminal.fill(f"wrote {', '.join(map(str, written))}, from the template {chosen}"))
    click.echo(f"next: harness check {source}; pytest {test}")
    if importlib.util.find_spec("pytest") is None:
        click.echo("pytest is not installed beside harness: pip install pytest, then python -m pytest")


def _templates() -> dict[str, Path]:
    """Return the kernels to begin with by name: the first of an example by the example's name."""
    found: dict[str, Path] = {}
    for folder in sorted(path for path in _EXAMPLES.glob("*") if path.is_dir()):
        for path in sorted(folder.glob("*.cu")):
            found.setdefault(folder.name, path)
            found[f"{folder.name}/{path.stem}"] = path
    if not found:
        raise UsageError("there are no templates", where=str(_EXAMPLES), hint="is this a whole checkout?")
    return found


def _made(kernel: Path, name: str) -> dict[str, str]:
    """Return the text of each file by its name: the template's, with its name replaced and no ancestors."""
    from harness.problems.registry import resolve

    old = kernel.parent.name
    source = re.sub(r"// after = .*\n", "", kernel.read_text(encoding="utf-8"))
    source = re.sub(r'"[^",]* of [^",]*", |, "[^",]* of [^",]*"', "", source)
    problem = (kernel.parent / f"{old}.py").read_text(encoding="utf-8")
    shapes = list(map(dict, resolve(spec.load(kernel)).verify_axes))
    return {
        f"{name}.cu": re.sub(rf"\b{old}\b", name, source),
        f"{name}.py": re.sub(rf"\b{old}\b(?=\.py|\()", name, problem),
        f"test_{name}.py": _TEST.format(name=name, shapes=json.dumps(shapes)),
    }


def _list(style: str | None) -> None:
    from harness.results import tables

    rows = [[name, spec.load(path).title] for name, path in _templates().items() if "/" in name]
    click.echo(tables.plain_table(rows, ["template", "what"], style))
    click.echo("harness new NAME -t TEMPLATE; `softmax` stands for the first of softmax/*")
