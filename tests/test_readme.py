"""What the README says is so: its tables, its code, its commands."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import fake_driver
import fake_gemm
import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def update_readme() -> Any:
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "records" / "update_readme.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_what_the_records_say() -> None:
    text = README.read_text()
    assert text.count("<!-- table:") >= 1
    assert update_readme().updated(text) == text, "run: python records/update_readme.py"


def test_a_stale_table_is_noticed() -> None:
    text = re.sub(r"(\| 03_tiled[^\n]*?\|\s+)\d", r"\g<1>9", README.read_text())
    assert text != README.read_text()
    assert update_readme().updated(text) != text


def test_the_library_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = fake_driver.install(monkeypatch)
    fake.functions = {"matmul": fake_gemm.SIZES}
    fake.execute = fake_gemm.gemm
    (block,) = python_blocks()
    exec(compile(block, "README.md", "exec"), {})
    assert "ok: worst error" in capsys.readouterr().out


def test_the_kernel_example_is_a_kernel(tmp_path: Path) -> None:
    from harness import build, spec

    (source,) = re.findall(r"```cuda\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "mine.cu").write_text(source)
    kernel = spec.load(tmp_path / "mine.cu")
    assert build.compile_kernel(kernel.variant(), "sm_80").resources.registers > 0


def test_the_finding_it_shows_is_what_the_command_prints() -> None:
    from click.testing import CliRunner

    from harness.cli import main

    printed = CliRunner().invoke(main, ["sass", "tiled", "--arch", "sm_75"]).stdout
    (finding,) = [s for s in printed.splitlines() if "vectorised shared loads" in s]
    assert finding in README.read_text()


def test_every_expectation_it_shows_can_be_read() -> None:
    from harness import expect

    table = README.read_text().split("| expectation |")[1].split("\n\n")[0]
    shown = [text for row in table.splitlines()[2:] for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(shown) >= 7
    for text in shown:
        expect.parse(text)


def test_every_key_and_option_is_documented() -> None:
    from harness import frontmatter
    from harness.cli import VERBS

    text = README.read_text()
    assert not [key for key in frontmatter.KEYS if f"`{key}`" not in text]
    assert not [verb for verb in VERBS if f"harness {verb}" not in text]


def test_names_of_the_library() -> None:
    """What type checkers see and what is imported lazily are the same list."""
    import harness

    source = Path(harness.__file__).read_text()
    typed = set(re.findall(r"import (\w+) as \1", source))
    assert typed == set(harness.__all__)
    for name in harness.__all__:
        assert getattr(harness, name).__module__.startswith("harness.")
    with pytest.raises(AttributeError):
        _ = harness.nothing
