"""``harness explain B``: against the kernel that B was derived from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from harness.cli import main
from harness.cli.verbs import explain
from harness.kernels import catalog

Write = Callable[..., Path]
HERE = ["-d", "emulator", "--arch", "sm_90a", "-a", "N=64"]


def run(*args: Any) -> Result:
    return CliRunner().invoke(main, ["explain", *map(str, args)], env={"COLUMNS": "200"})


def test_it_is_explained_against_its_predecessor() -> None:
    one, two = run("07", *HERE), run("06", "07", *HERE)
    assert one.exit_code == two.exit_code == 0, one.output
    assert one.stdout == two.stdout and "06_bank_conflict" in one.stdout
    assert run("06", *HERE).stdout == run("03", "06", *HERE).stdout != run("05", "06", *HERE).stdout


def test_chosen_parameters_are_those_of_both() -> None:
    def before(text: str) -> str:
        return explain._predecessor(text, explain._variant(text)).label

    assert before("tiled_coarse") == "03_tiled TILE=16"
    assert before("tiled_coarse TILE=32 COARSE=8") == "03_tiled TILE=32"
    assert before("29_wgmma_grid_split_fp16").startswith("23_wgmma_pipeline_fp16 ")


def test_a_kernel_without_a_predecessor(kernel_file: Write) -> None:
    for word in ("01", "copy", kernel_file()):
        done = run(word, *HERE)
        assert done.exit_code == 2 and "has no predecessor to be compared with" in done.stderr
        assert "after = ..." in done.stderr


def test_a_predecessor_that_is_none(kernel_file: Write) -> None:
    path = kernel_file(extra='after = "03_tyled"')
    done = run(path, *HERE)
    assert done.exit_code != 0 and "after = '03_tyled': no kernel '03_tyled'" in done.stderr
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert run("01", path, *HERE).exit_code == 0, "nobody asks for it"


def test_how_many_kernels() -> None:
    for words in ([], ["01", "02", "03"]):
        done = run(*words)
        assert done.exit_code == 2 and f"explain compares two kernels, not {len(words)}" in done.stderr


def test_the_list_shows_it_where_there_is_room() -> None:
    def shown(*args: str, columns: str) -> bool:
        done = CliRunner().invoke(main, ["list", *args], env={"COLUMNS": columns})
        return "pipeline" in done.stdout and "14_warp_tiles" in done.stdout.partition("16_pipeline")[2]

    assert not shown(columns="80") and shown(columns="200")
    assert shown("16", columns="80") and shown("16", "--md", columns="80")
    assert catalog.kernel("16").after == "14_warp_tiles"
