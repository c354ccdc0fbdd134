"""The examples: right, clean, as they claim, and templates of `harness new` that pass at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.assertions import assert_holds, assert_race_free, assert_right
from harness.cli import main
from harness.kernels import catalog, spec
from harness.problems.registry import resolve
from harness.support.files import SHIPPED
from shared.sweeps import sweep

FOLDERS = sorted(p.name for p in (SHIPPED / "examples").iterdir() if p.is_dir())
KERNELS = sorted(p.relative_to(SHIPPED / "examples").as_posix() for p in SHIPPED.glob("examples/*/*.cu"))


def path(name: str) -> Path:
    return SHIPPED / "examples" / name


def test_every_example_is_a_ladder() -> None:
    assert {"attention", "layernorm", "reduction", "softmax", "stencil", "transpose"} <= set(FOLDERS)
    for folder in FOLDERS:
        steps = [spec.load(p) for p in sorted(path(folder).glob("*.cu"))]
        assert 2 <= len(steps) <= 4 and all(k.claim and k.predict for k in steps), folder
        for kernel, before in zip(steps[1:], steps, strict=False):
            found = catalog.predecessor(kernel)
            assert found is not None and found.path == before.path, kernel.path
        assert steps[0].after == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep(KERNELS, lambda name: name.startswith(("scale/", "softmax/03"))))
def test_right_at_every_shape_and_parameter_set(name: str) -> None:
    kernel = spec.load(path(name))
    shapes = resolve(kernel).verify_axes
    for variant in kernel.variants():
        for shape in shapes[: 1 if variant.params != kernel.variant().params else None]:
            assert_right(variant, "sm_80", shape)
            assert_race_free(variant, "sm_80", shape)


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep(KERNELS, lambda name: name.startswith(("scale/", "softmax/"))))
@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_machine_code_is_as_expected(name: str, arch: str) -> None:
    kernel = spec.load(path(name))
    if kernel.expectations(arch):
        assert_holds(kernel.variant(), arch, [])


@pytest.mark.slow
@pytest.mark.parametrize("folder", sweep(FOLDERS, lambda name: name == "transpose"))
def test_claims_hold(folder: str) -> None:
    words = [str(p) for p in sorted(path(folder).glob("*.cu"))]
    result = CliRunner().invoke(main, ["explain", "--claims", *words])
    assert result.exit_code == 0 and "not known" not in result.output, result.output


def test_a_claim_that_does_not_hold_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "transpose.py").write_text(path("transpose/transpose.py").read_text())
    shared = path("transpose/02_shared.cu").read_text()
    (tmp_path / "k.cu").write_text(
        shared.replace("conflicts > 0", "conflicts == 0").replace("// after", "// #")
    )
    result = CliRunner().invoke(main, ["explain", "--claims", str(tmp_path / "k.cu")])
    assert result.exit_code == 1 and "NOT HELD" in result.output


# harness new


@pytest.mark.parametrize("template", sweep([*FOLDERS, "layernorm/03_vector"], lambda name: name == "scale"))
def test_what_is_written_passes_at_once(template: str, pytester: pytest.Pytester) -> None:
    name = template if "/" not in template else "norm"  # also the name of one of CUDA's functions
    made = CliRunner().invoke(main, ["new", name, "-t", template, "-o", str(pytester.path)])
    assert made.exit_code == 0, made.output
    assert {p.name for p in pytester.path.iterdir()} == {f"{name}.cu", f"{name}.py", f"test_{name}.py"}
    assert "after" not in (pytester.path / f"{name}.cu").read_text()
    result = pytester.runpytest_inprocess("-p", "no:randomly", "-q")
    outcomes = result.parseoutcomes()
    assert outcomes.get("passed", 0) >= 3 and set(outcomes) <= {"passed", "warning", "warnings"}


WRONG = {  # a change to the first kernel of each template that makes its numbers wrong, and nothing else
    "attention": ("= o[d] / sum", "= 2 * o[d] / sum"),
    "layernorm": ("(x[i] - m) * (x[i] - m)", "x[i] * x[i]"),
    "reduction": ("(total, x[i])", "(total, 2 * x[i])"),
    "scale": ("factor * src", "src"),
    "softmax": (") / sum", ") / 2 / sum"),
    "stencil": ("] = value", "] = 2 * value"),
    "transpose": ("] = x[", "] = 2 * x["),
}


@pytest.mark.slow
@pytest.mark.parametrize("template", sweep(FOLDERS, lambda name: name == "layernorm"))
def test_what_is_written_notices_a_wrong_number(template: str, pytester: pytest.Pytester) -> None:
    """The test that was written looked for races only, and passed whatever the kernel computed."""
    made = CliRunner().invoke(main, ["new", "mine", "-t", template, "-o", str(pytester.path)])
    assert made.exit_code == 0, made.output
    file = pytester.path / "mine.cu"
    right = file.read_text()
    assert WRONG[template][0] in right
    file.write_text(right.replace(*WRONG[template]))
    outcomes = pytester.runpytest_inprocess("-p", "no:randomly", "-q").parseoutcomes()
    assert outcomes.get("failed", 0) >= 1, outcomes


def test_any_name_gives_a_kernel_and_nothing_is_overwritten(tmp_path: Path) -> None:
    words = ["new", "anything", "-o", str(tmp_path / "deep" / "er")]
    made = CliRunner().invoke(main, words)
    assert made.exit_code == 0 and "from the template scale" in made.output
    kernel = spec.load(tmp_path / "deep" / "er" / "anything.cu")
    assert kernel.entry == "anything" and kernel.problem == "anything.py:anything"
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 2 and "nothing was written" in again.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["3d"], "is no name"),
        (["a/b"], "is no name"),
        (["x", "-t", "nope"], "no template 'nope'\n  -> attention, layernorm"),
    ],
)
def test_bad_words_for_new(words: list[str], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["new", *words, "-o", str(tmp_path)])
    assert result.exit_code == 2 and said in result.output and not list(tmp_path.iterdir())


def test_templates_are_listed() -> None:
    result = CliRunner().invoke(main, ["new"])
    assert result.exit_code == 0 and "softmax/03_warp" in result.output
    assert max(map(len, result.output.splitlines())) < 100


def test_a_missing_pytest_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for found, said in ((True, False), (False, True)):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, found=found: found or None)
        result = CliRunner().invoke(main, ["new", "mine", "-o", str(tmp_path / str(found))])
        assert result.exit_code == 0 and ("pip install pytest" in result.output) is said
