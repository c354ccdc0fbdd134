"""The library in a REPL and a notebook: names, versions, help, one-line reprs, examples that run."""

from __future__ import annotations

import doctest
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import harness
from harness import assertions
from harness.sass.code import Code
from shared.kernels import TILED
from shared.places import ROOT


def test_dir_shows_the_library_and_nothing_that_it_is_made_of() -> None:
    names = [n for n in dir(harness) if not n.startswith("__")]
    assert set(harness.__all__) <= set(names) and {"driver", "sass", "emulator"} <= set(names)
    assert not {"importlib", "sys", "Any", "annotations", "TYPE_CHECKING", "Moved"} & set(names)
    for name in names:
        assert getattr(harness, name) is not None


def test_help_names_everything() -> None:
    shown = pydoc.plain(pydoc.render_doc(harness))
    assert not [name for name in harness.__all__ if name not in shown]
    assert not [name for name in harness.__all__ if name not in str(harness.__doc__)]


def test_modules_are_attributes_without_an_import_of_their_own() -> None:
    code = "import harness; print(harness.sass.code.Code.__name__, harness.__version__); harness.sass.nope"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    version = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
    assert done.stdout.split() == ["Code", version]
    assert "AttributeError: module 'harness.sass' has no attribute 'nope'" in done.stderr


def test_the_package_is_typed() -> None:
    assert (ROOT / "harness" / "py.typed").is_file()


def test_examples_run() -> None:
    found = doctest.testmod(harness)
    assert found.attempted >= 6 and found.failed == 0


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    variant = harness.kernel("tiled").variant(TILE=16)
    cubin = harness.compile_kernel(variant, "sm_90a")
    sass = harness.disassemble(cubin)
    run = assertions.emulate(variant, "sm_90a", 48)
    return {
        "Kernel": variant.kernel,
        "Variant": variant,
        "Cubin": cubin,
        "Sass": sass,
        "Code": Code.of(cubin, sass),
        "Measurement": run,
        "Emulation": run.emulation,
        "Built": run.built,
    }


def test_reprs_are_one_line(objects: dict[str, Any]) -> None:
    for name, value in objects.items():
        shown = repr(value)
        assert shown.startswith(f"<{name}") and shown.endswith(">"), shown
        assert len(shown) < 120 and "\n" not in shown, shown
    assert "registers" in repr(objects["Cubin"]) and "0 findings" in repr(objects["Measurement"])


def test_a_kernel_without_a_title_has_a_repr(tmp_path: Path) -> None:
    (tmp_path / "plain.cu").write_text("__global__ void k(float* x) { *x = 1; }\n")
    assert repr(harness.kernel(str(tmp_path / "plain.cu"))) == "<Kernel plain: no front matter>"


def test_notebooks_get_html(objects: dict[str, Any], kernel_file: Any) -> None:
    code = objects["Code"]._repr_html_()
    assert code.startswith("<pre>") and "LDS" in code and "&lt;Code 03_tiled" in code
    table = objects["Measurement"]._repr_html_()
    assert table.startswith("<table>") and "sectors a request" in table
    racy = kernel_file(body=TILED.replace("        __syncthreads();\n    }", "    }"))
    found = assertions.emulate(harness.kernel(str(racy)).variant(), "sm_90a", 48)
    assert "<th>finding</th><td>WAR hazard" in found._repr_html_()


def test_assertions_quote_the_source(kernel_file: Any) -> None:
    racy = harness.kernel(str(kernel_file(body=TILED.replace("        __syncthreads();\n    }", "    }"))))
    with pytest.raises(AssertionError, match=r"mine\.cu:\d+: As\[y\]\[x\] = row < M") as caught:
        assertions.assert_race_free(racy.variant(), "sm_90a", 48)
    assert "WAR hazard: As[" in str(caught.value)
    wrong = harness.kernel(str(kernel_file(body=TILED.replace("float sum = 0;", "float sum = 1;"))))
    with pytest.raises(AssertionError, match="2304 of 2304 elements wrong"):
        assertions.assert_right(wrong.variant(), "sm_90a", 48)
    right = harness.kernel("tiled").variant()
    assert assertions.assert_right(right, "sm_90a", 48).right


def test_a_limit_on_registers_lists_no_instructions() -> None:
    variant = harness.kernel("tiled").variant()
    with pytest.raises(AssertionError) as caught:
        assertions.assert_holds(variant, "sm_90a", ["registers <= 4"])
    told = str(caught.value).splitlines()
    assert len(told) <= 5 and "FAILED registers <= 4" in told[1]
    assert any(re.match(r"most are live \(\d+\) at 03_tiled\.cu:\d+: ", line) for line in told)
    with pytest.raises(AssertionError, match="hot loop at"):
        assertions.assert_holds(variant, "sm_90a", ["registers <= 4", "LDS.64 in loop"])
