"""The README and the pages of docs/: their links lead somewhere, their code is code, and what they show of a
command is what it prints.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import harness
from harness.cli import VERBS, main
from harness.driver import Device
from harness.errors import MissingDependency, NoGpu
from harness.kernels import catalog, compiler
from shared.places import RECORDS, ROOT
from shared.readme import Block, anchors, blocks, links, pages, patched, prose, same, sessions, wanted
from shared.sweeps import sweep

NAMES = [page.relative_to(ROOT).as_posix() for page in pages()]
LANGUAGES = {"sh", "console", "cuda", "diff", "python", "py", "toml", "yaml", "text"}
every_page = pytest.mark.parametrize("name", NAMES)


def script(name: str) -> Any:
    """Return the module of a file in scripts/."""
    found = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def planted(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "planted.md"
    page.write_text(text)
    return page


# Links


def broken(page: Path) -> list[str]:
    """Return what is wrong with the page's links, a line each."""
    wrong = []
    for address in links(page):
        path, _, anchor = address.partition("#")
        target = (page.parent / path).resolve() if path else page
        shipped = RECORDS.is_dir() or not target.is_relative_to(RECORDS)  # not with a source distribution
        if shipped and not target.exists():
            wrong.append(f"{address}: no such file")
        elif anchor:
            known = anchors(target)
            if anchor not in known:
                wrong.append(f"{address}: no such heading")
            elif known[anchor] != anchor:
                wrong.append(f"{address}: on the site this heading is #{known[anchor]}")
    return wrong


@every_page
def test_every_link_leads_somewhere(name: str) -> None:
    assert broken(ROOT / name) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    text = "# One\n[a](planted.md#one) [b](nowhere.md) ![c](no.svg) [d](#two) `[e](code.md)`\n"
    text += "\n## A & B\n[f](#a--b)\n"
    assert broken(planted(tmp_path, text)) == [
        "nowhere.md: no such file",
        "no.svg: no such file",
        "#two: no such heading",
        "#a--b: on the site this heading is #a-b",
    ]


def test_every_page_is_reached_from_the_readme() -> None:
    reached, new = set[Path](), {ROOT / "README.md"}
    while new:
        reached |= new
        targets = {(p.parent / a.partition("#")[0]).resolve() for p in new for a in links(p)}
        new = {t for t in targets if t.suffix == ".md" and t.is_file()} - reached
    assert {p for p in pages() if "notes" not in p.parts} <= reached


# Code blocks


@every_page
def test_every_block_has_a_language(name: str) -> None:
    assert [b.where for b in blocks(ROOT / name) if b.language not in LANGUAGES] == []


@every_page
def test_code_fits_a_terminal(name: str) -> None:
    """80 columns: wider code is cut off on the site and broken in a terminal."""
    shown = [b for b in blocks(ROOT / name) if b.marker != "needs"]
    assert [(b.where, s) for b in shown for s in b.text.splitlines() if len(s) > 80] == []


@every_page
def test_kernels_compile(name: str, tmp_path: Path) -> None:
    for block in blocks(ROOT / name, "cuda"):
        assert block.marker == "file", f"{block.where}: say <!-- file: NAME --> above it"
        path = tmp_path / block.name
        path.write_text(block.text)
        for kernel in catalog.load_each(path):
            assert compiler.compile_kernel(kernel.variant(), "sm_80").resources.registers > 0


def python_faults(block: Block) -> list[str]:
    """Return the names of harness that the code uses and that do not exist."""
    tree = ast.parse(block.text, block.where)
    wrong = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "harness"
        ):
            with suppress(MissingDependency):  # harness.torch, without PyTorch
                if not hasattr(harness, node.attr):
                    wrong.append(f"harness.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "harness":
            module = importlib.import_module(node.module or "")
            wrong += [f"{node.module}.{a.name}" for a in node.names if not hasattr(module, a.name)]
    return wrong


@every_page
def test_python_is_python_and_its_names_exist(name: str) -> None:
    for block in blocks(ROOT / name, "python", "py"):
        assert python_faults(block) == [], block.where


def test_a_name_that_does_not_exist_is_noticed(tmp_path: Path) -> None:
    text = "```py\nfrom harness.driver import Nothing, Stream\nharness.kernel(harness.none)\n```\n"
    (block,) = blocks(planted(tmp_path, text))
    assert python_faults(block) == ["harness.driver.Nothing", "harness.none"]


@every_page
def test_toml_is_toml(name: str) -> None:
    for block in blocks(ROOT / name, "toml"):
        tomllib.loads(block.text)


# Commands


def fault(command: str) -> str:
    """Return what is wrong with a command line that begins with ``harness``, or nothing."""
    words = shlex.split(command, comments=True)[1:]
    for stop in ("|", ">", "&&", ";"):
        words = words[: words.index(stop)] if stop in words else words
    if not words or words[0].startswith("-"):
        return "" if set(words) <= {"--help", "-h", "--version"} else f"no such option: {words}"
    verb, *args = words
    if verb not in VERBS:
        return f"no such command: {verb}"
    context = click.Context(main)
    found = main.get_command(context, verb)
    assert found is not None
    inner = click.Context(found, info_name=verb)
    try:
        values, _, _ = found.make_parser(inner).parse_args([a for a in args if a != "--help"])
        for parameter in found.params:
            value = values.get(parameter.name or "")
            if isinstance(parameter.type, click.Choice) and value:
                for one in value if isinstance(value, list | tuple) else (value,):
                    parameter.type.convert(one, parameter, inner)
    except click.UsageError as e:
        cut = isinstance(e, click.BadOptionUsage) and args[-1:] == [
            e.option_name
        ]  # `--repeat`, named in a text
        return "" if cut else e.format_message()
    return ""


def commands(page: Path) -> list[str]:
    """Return every command line of harness on the page: of shell blocks, of consoles and of inline code."""
    lines = [line for b in blocks(page, "sh", "console") for line in b.text.splitlines()]
    shown = [s.removeprefix("$ ") for s in lines]
    inline = re.findall(r"`([^`\n]+)`", prose(page).replace("\n", " "))
    return [s for s in (*shown, *inline) if re.match(r"harness [a-z-]", s)]


@every_page
def test_commands_exist_and_so_do_their_options(name: str) -> None:
    assert [(c, said) for c in commands(ROOT / name) if (said := fault(c))] == []


def test_a_command_that_does_not_exist_is_noticed(tmp_path: Path) -> None:
    text = (
        "`harness bench --fast` `harness race tiled` `harness bench --regime tepid`\n\n"
        "```sh\nharness tune tiled --budget 5s --t5 x.json  # a comment\n```\n"
    )
    wrong = [said for c in commands(planted(tmp_path, text)) if (said := fault(c))]
    assert len(wrong) == 4 and any("--t5" in s for s in wrong) and any("tepid" in s for s in wrong)


@every_page
def test_options_by_themselves_belong_to_some_command(name: str) -> None:
    known = {"--help", "--strict", "--randomly-seed"}
    for verb in VERBS:
        found = main.get_command(click.Context(main), verb)
        assert found is not None
        known |= {
            option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
    named = re.findall(r"`(--?[a-z][a-z0-9-]*)[^`\n]*`", prose(ROOT / name))
    assert set(named) - known - {"-k", "-m", "-n"} == set()


def test_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in pages():
        named = re.findall(r"(?:cuda-harness|\.)\[(\w+)\]", page.read_text())
        assert set(named) <= set(extras), page.name


# What is shown of a command is what it prints


def walked(page: Path, folder: Path) -> list[str]:
    """Do what the page says in `folder`: write its files, apply its patches, run its commands. Return where
    an output is not the one shown, with the output.
    """
    wrong = []
    for block in blocks(page):
        if block.marker == "needs":
            continue
        if block.marker == "file":
            (folder / block.name).write_text(block.text)
        elif block.marker == "patch":
            path = folder / block.name
            path.write_text(patched(path.read_text(), block.text))
        elif block.language == "console":
            for command, output in sessions(block.text):
                result = CliRunner().invoke(main, shlex.split(command)[1:], env={"COLUMNS": "80"})
                if not wanted(same(output)).match(same(result.output)):
                    wrong.append(f"{block.where}: {command}\n{result.output}")
    return wrong


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a GPU, with the records and the data of the tests in it."""
    shown = {
        v for p in pages() for b in blocks(p, "console") for v in re.findall(r"NVRTC (\d+\.\d+)", b.text)
    }
    assert len(shown) == 1, f"outputs of several versions: {shown}"
    here = compiler.compiler_version("cuda").removeprefix("NVRTC ")
    if {here} != shown:
        pytest.skip(f"the outputs shown are those of NVRTC {shown}, and {here} is installed")
    try:
        Device.open()
    except NoGpu:
        pass
    else:
        pytest.skip("the outputs shown are those of a machine without a GPU")
    for name in ("records", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name", sweep([n for n in NAMES if blocks(ROOT / n, "console")], lambda name: name == "README.md")
)
def test_outputs_are_what_the_commands_print(name: str, folder: Path) -> None:
    if not RECORDS.is_dir() and "records/" in (ROOT / name).read_text():
        pytest.skip("records/ is not in the source distribution: run this test in a checkout")
    wrong = walked(ROOT / name, folder)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["", "WAR hazard", "line 20", "findings", "\n...\ntile, 48"])
def test_another_output_is_noticed(changed: str, folder: Path, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    text = text[text.index("<!-- file: tile.cu") : text.index("The numbers were right")]
    assert changed in text
    page = planted(
        tmp_path, text.replace(changed, "other\n" if "\n" in changed else "other", 1) if changed else text
    )
    assert bool(walked(page, folder)) == bool(changed)


@pytest.mark.parametrize(
    ("shown", "renewed"),
    [
        ("a 1\n...\nlines   3-4\n", "a 10\n...\nlines  30-40\n"),
        ("...\nb 1,000\nc\n...\n", "...\nb 2\nc\n...\n"),
        ("a 1\nc\n...\n", None),  # b is between them by now
        ("...\nd 1\n", None),
    ],
)
def test_outputs_are_brought_up_to_date(shown: str, renewed: str | None) -> None:
    assert script("update_outputs").renewed(shown, "\na 10\nb 2\nc\nlines  30-40\n") == renewed


# The site


def test_links_of_the_site() -> None:
    """README.md is its front page, and files outside of docs/ have copies in it; code stays as it is."""
    linked = script("mkdocs_hooks").linked
    page = "[a](docs/sass.md#expectations) ![b](docs/images/ladder.svg)\n```sh\n[c](docs/sass.md)\n```\n"
    site = "[a](sass.md#expectations) ![b](images/ladder.svg)\n```sh\n[c](docs/sass.md)\n```\n"
    assert linked(page, ROOT, "") == site
    page = "[a](../README.md) [b](../harness) [c](../pyproject.toml) [d](sass.md) [e](https://a.b/c)"
    site = "[a](index.md) harness [c](files/pyproject.toml) [d](sass.md) [e](https://a.b/c)"
    assert linked(page, ROOT / "docs", "") == site.replace("harness", "b")
    assert linked("[a](../sass.md)", ROOT / "docs" / "notes", "notes") == "[a](../sass.md)"


@pytest.mark.slow  # with what the documentation needs, which a newcomer's tests do not
@pytest.mark.parametrize("warning", [False, True])
def test_the_site_is_built_without_a_warning(warning: bool, tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
    pytest.importorskip("material", reason="pip install '.[docs]'")
    if not RECORDS.is_dir():
        pytest.skip("records/ is not in the source distribution: build the site in a checkout")
    config = tmp_path / "mkdocs.yml"
    lines = [
        f"INHERIT: {ROOT}/mkdocs.yml",
        f"docs_dir: {ROOT}/docs",
        f"hooks: [{ROOT}/scripts/mkdocs_hooks.py]",
    ]
    config.write_text("\n".join([*lines, *(["nav: [nowhere.md]"] if warning else [])]) + "\n")
    # Not --quiet: warnings that are not printed are not counted.
    run = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(config),
        "-d",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == warning, done.stdout + done.stderr
    if not warning:
        assert (tmp_path / "site" / "first-kernel" / "index.html").exists()
        assert (tmp_path / "site" / "files" / "records" / "h200" / "bench" / "ladder.json").exists()
    shutil.rmtree(tmp_path / "site", ignore_errors=True)
