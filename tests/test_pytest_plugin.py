"""The pytest plugin, in a pytest of its own: what it gives tests, and what failing ones say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.driver import Device
from harness.errors import NoDevice

Run = pytest.RunResult


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a test file with this plugin and no other, in this process."""
    monkeypatch.delenv("HARNESS_REQUIRE_GPU", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(code: str, *arguments: str, ini: str = "") -> Run:
        pytester.makepyfile(test_inner=f"import pytest\n{code}")
        pytester.makeini(f"[pytest]\n{ini}")
        plugins = ("-p", "harness.pytest_plugin", "-p", "no:cacheprovider")
        # Of an editable install, whose asserts pytest does not rewrite.
        quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
        return pytester.runpytest_inprocess(*plugins, *quiet, "--strict-markers", *arguments)

    return run


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(selector: object = None) -> None:
        raise NoDevice("the driver sees no GPU")

    monkeypatch.setattr(Device, "open", none)


@pytest.fixture
def old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "open", lambda selector=None: SimpleNamespace(capability=(8, 0)))


def text(result: Run) -> str:
    return result.stdout.str() + result.stderr.str()


# What a test gets


def test_the_fixtures_give_code(inner: Any, kernel_file: Any, pytester: pytest.Pytester) -> None:
    (pytester.path / "cu").mkdir()
    (pytester.path / "cu" / "mine.cu").write_text(kernel_file(extra='sass = ["FFMA in loop"]').read_text())
    result = inner(
        """
from pathlib import Path
import harness

def test_default_arch(cubin):
    assert cubin("tiled").arch == "sm_90a"

def test_params(cubin):
    built = cubin("tiled", "sm_75", TILE=32)
    assert built.arch == "sm_75" and built.variant.params == {"TILE": 32}
    assert cubin(built.variant).variant == built.variant

def test_code(sass):
    code = sass("03_tiled", arch="sm_75")
    assert code.sass.count("LDS.128") and code.hot_loop.count("FFMA") and code.loops and code.registers

@pytest.mark.parametrize("name", ["cu/mine.cu", "./cu/mine.cu", Path("cu/mine.cu"), "cu/m*.cu"])
def test_beside_the_test_not_the_working_directory(name, cubin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cubin(name).variant.kernel.name == "mine"

def test_absolute(cubin, assert_sass):
    path = Path(__file__).parent / "cu" / "mine.cu"
    assert cubin(path).sha256 == cubin(str(path)).sha256 == cubin(harness.kernel(str(path))).sha256

def test_given(assert_sass):
    code = assert_sass("tiled", "LDS.128 in loop", "no LDL", "BAR in loop >= 2", arch="sm_75")
    assert code.hot_loop

def test_the_files_own(assert_sass):
    assert_sass("cu/mine.cu", TILE=8)

def test_an_error_can_be_caught(cubin):
    Path("bad.cu").write_text(Path("cu/mine.cu").read_text().replace("float sum", "flaot sum"))
    with pytest.raises(harness.HarnessError, match="does not compile"):
        cubin("bad.cu")
"""
    )
    result.assert_outcomes(passed=11)


SCALE = """\
// /// kernel
// entry = "scale"
// problem = "scale.py:scale"
// block = 256
// grid = "(N + 255) // 256"
// ///
__global__ void scale(const float* src, float* dst, int N)
{
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < N) dst[i] = (N == 500 ? 3 : 2) * src[i];
}
"""


@pytest.mark.slow
def test_without_a_shape_every_size_of_verify_is_run(inner: Any, pytester: pytest.Pytester) -> None:
    """A kernel that is wrong at the last size only, and one that says it does not take that size."""
    (pytester.path / "ragged.cu").write_text(SCALE)
    (pytester.path / "even.cu").write_text(SCALE.replace("// block", '// requires = ["N != 500"]\n// block'))
    (pytester.path / "scale.py").write_text(
        "from harness.problems import problem\n"
        "@problem(src='float32[N]', dst='out float32[N]', N=64, verify=({}, {'N': 500}))\n"
        "def scale(src):\n    return 2 * src\n"
    )
    result = inner(
        """
def test_ragged(assert_right):
    assert_right("ragged.cu")

def test_even(assert_right):
    assert assert_right("even.cu").right

def test_one(assert_right):
    assert assert_right("ragged.cu", 64).right
"""
    )
    assert result.parseoutcomes()["passed"] == 2 and result.parseoutcomes()["failed"] == 1
    assert "ragged, 500: FAILED" in text(result)


def test_the_vector_expectation_fails_on_a_scalar_kernel(inner: Any) -> None:
    """The control: the compiler vectorises the tiled kernel's reads and leaves the naive one without any."""
    result = inner(
        """
def test_naive(assert_sass):
    assert_sass("naive", "no STL", "LDS.128 in loop", "registers <= 1", "FFMA share in loop >= 0.9")
def test_tiled(assert_sass):
    assert_sass("tiled", "LDS.128 in loop")
"""
    )
    result.assert_outcomes(passed=1, failed=1)
    assert "3 of 4 expectations do not hold" in text(result)


def test_a_failure_shows_the_loop(inner: Any) -> None:
    result = inner(
        """
def test_it(assert_sass):
    assert_sass("tiled", "no STL", "LDS.128 in loop >= 9", "no FFMA in loop", "FFMA share in loop >= 0.9",
                arch="sm_75")
"""
    )
    result.assert_outcomes(failed=1)
    out = text(result)
    result.stdout.fnmatch_lines(
        [
            '>       assert_sass("tiled", *',
            "E       AssertionError: 03_tiled TILE=16, sm_75: 3 of 4 expectations do not hold",
            "E         FAILED LDS.128 in loop >= 9: 4",
            "E           0x* LDS.U.128 R*  03_tiled.cu:42",
            "E         FAILED no FFMA in loop: 16",
            "E           ... and 12 more",
            "E         FAILED FFMA share in loop >= 0.9: 28.1%",
            "E       hot loop at 0x1e0, 57 instructions:",
            "E         03_tiled.cu:3[0-9]: *",
            "E           0x01e0 *",
            "E         ... 17 instructions left out ...",
            "E         03_tiled.cu:*",
            "E           0x* BRA *",
        ]
    )
    assert "STL: 0" not in out, "what holds is not shown"
    assert "harness/assertion.py" not in out and "_call" not in out, "our own frames are hidden"
    assert sum(line.startswith("E           0x") for line in out.splitlines()) == 40 + 3 * 4


def test_a_short_loop_is_whole_and_no_loop_is_said(inner: Any, kernel_file: Any) -> None:
    body = 'extern "C" __global__ void matmul(const float* A, const float* B, float* C) { C[0] = A[0]; }'
    path = kernel_file(body=body)
    result = inner(f"def test_it(assert_sass):\n    assert_sass({str(path)!r}, 'FFMA in loop')\n")
    result.assert_outcomes(failed=1)
    assert "FAILED FFMA in loop: the code has no loop" in text(result)
    assert "left out" not in text(result)


def test_a_misspelt_opcode_that_holds_is_a_warning(inner: Any) -> None:
    result = inner("def test_it(assert_sass):\n    assert_sass('tiled', 'no LDLL')\n")
    result.assert_outcomes(passed=1, warnings=1)
    assert "LDLL is no opcode known here; did you mean" in text(result)
    assert "test_inner.py:3: " in text(result)


# Bad input


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("assert_sass('tild')", ["no kernel 'tild'", "did you mean tiled"]),
        ("assert_sass('nope.cu')", ["nope.cu: no such file"]),
        ("assert_sass('cu/*.cu')", ["no such file"]),
        ("assert_sass('0*')", ["'0*' names "]),
        ("assert_sass(7)", ["a kernel is a stem, a path, a Kernel or a Variant, not 7"]),
        (
            "assert_sass('tiled', 'LDS.128 inn loop')",
            ["cannot read the expectation", "LDS.128 inn loop", "^"],
        ),
        ("assert_sass('tiled', ['no LDL'])", ["an expectation is text, not ['no LDL']"]),
        ("assert_sass('tiled', arch='sm90')", ["'sm90' is not an architecture"]),
        ("assert_sass('tiled', arch='sm_999')", ["does not know sm_999"]),
        ("assert_sass('tiled', arch=[])", ["no architecture: []"]),
        ("assert_sass('tiled', TILES=4)", ["no parameter TILES"]),
        ("assert_sass('tiled', TILE='4')", ["the parameter TILE is an integer, not '4'"]),
        ("assert_sass(write())", ["nothing to check"]),
    ],
)
def test_bad_calls_are_told_at_the_tests_line(
    call: str,
    says: list[str],
    kernel_file: Any,
    request: pytest.FixtureRequest,
    assert_sass: Any,
) -> None:
    """In this process: the fixture is the installed plugin's own."""
    from harness.errors import UsageError

    scope = {"assert_sass": assert_sass, "write": kernel_file}
    with pytest.raises(UsageError) as caught:
        exec(call, scope)
    for part in says:
        assert part in str(caught.value)
    assert [entry.name for entry in caught.traceback][-1] == "_call"
    assert caught.value.__suppress_context__


def test_bad_input_is_never_an_internal_error(inner: Any) -> None:
    result = inner(
        """
def test_kernel(sass):
    sass("tild")
def test_expectation(assert_sass):
    assert_sass("tiled", "LDS.128 inn loop")
"""
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines([">       sass(*", "E       harness.errors.UsageError: no kernel 'tild'"])
    assert "INTERNALERROR" not in text(result) and "harness/catalog.py" not in text(result)


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("kernels=['tild']", "no kernel 'tild'"),
        ("kernels=[]", "no kernels: []"),
        ("archs=['sm_75']", "no kernels: ()"),
        ("kernels=['tiled', 4]", "a kernel is a stem"),
        ("kernels=['tiled'], archs=['sm90']", "'sm90' is not an architecture"),
        ("kernels=['tiled'], archs=7", "no architecture: 7"),
        ("'tiled'", "positional argument"),
        ("kernel='tiled'", "unexpected keyword argument 'kernel'"),
    ],
)
def test_bad_marks_are_told_at_collection(mark: str, says: str, inner: Any) -> None:
    result = inner(f"@pytest.mark.harness({mark})\ndef test_it(variant, arch):\n    pass\n")
    result.assert_outcomes(errors=1)
    assert says in text(result) and "INTERNALERROR" not in text(result)
    assert "pytest_plugin.py" not in text(result)


def test_a_bad_ini_option_is_a_usage_error(inner: Any) -> None:
    result = inner("def test_it(): pass", ini="harness_arch = sm_75 sm90")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: harness_arch: 'sm90' is not an architecture" in text(result)


# Parametrisation


def test_kernels_and_architectures(inner: Any, kernel_file: Any, pytester: pytest.Pytester) -> None:
    (pytester.path / "cu").mkdir()
    for name, least in (("a.cu", "sm_75"), ("b.cu", "sm_80")):
        source = kernel_file(extra=f'min_arch = "{least}"').read_text()
        (pytester.path / "cu" / name).write_text(source)
    (pytester.path / "cu" / "notes.txt").write_text("not a kernel")
    result = inner(
        """
@pytest.mark.harness(kernels=["cu/*", "cu/a.cu"], archs=["sm_75", "sm_90a"], sweep=True)
def test_both(variant, arch, cubin):
    assert cubin(variant, arch).arch == arch
@pytest.mark.harness(kernels="tiled")
def test_of_the_ini(variant, arch): pass
@pytest.mark.harness(kernels="tiled")
def test_variant_only(variant): pass
@pytest.mark.harness(archs="sm_80")
def test_arch_only(arch): pass
@pytest.mark.parametrize("arch", [1])
def test_not_ours(arch): assert arch == 1
""",
        "-v",
        ini="harness_arch = sm_75 sm_80",
    )
    result.assert_outcomes(passed=6 + 2 + 1 + 1 + 1, skipped=2)
    for line in (
        "*::test_both?a-TILE=16-sm_75? PASSED*",
        "*::test_both?a-TILE=8-sm_90a? PASSED*",
        "*::test_both?b-TILE=16-sm_75? SKIPPED (b needs sm_80)*",
        "*::test_both?b-TILE=8-sm_90a? PASSED*",
        "*::test_of_the_ini?03_tiled-TILE=16-sm_80? PASSED*",
        "*::test_variant_only?03_tiled-TILE=16? PASSED*",
        "*::test_arch_only?sm_80? PASSED*",
    ):
        result.stdout.fnmatch_lines([line])


# GPU markers

GPU_TESTS = """
@pytest.mark.gpu
def test_gpu(): pass
@pytest.mark.requires_arch("sm_80")
def test_same(): pass
@pytest.mark.requires_arch("sm_90")
def test_newer(): pass
@pytest.mark.requires_arch("sm_90a")
def test_own(): pass
def test_plain(): pass
"""


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu(inner: Any) -> None:
    result = inner(GPU_TESTS, "-rs")
    result.assert_outcomes(passed=1, skipped=4)
    assert "needs a GPU: the driver sees no GPU" in text(result)


@pytest.mark.usefixtures("no_gpu")
def test_a_required_gpu_is_missing(inner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_REQUIRE_GPU", "1")
    result = inner(GPU_TESTS.replace("def test_newer", "def test_still"))
    result.assert_outcomes(passed=1, errors=4)
    assert "HARNESS_REQUIRE_GPU=1 and there is no GPU: the driver sees no GPU" in text(result)


@pytest.mark.usefixtures("old_gpu")
def test_on_an_older_gpu(inner: Any) -> None:
    result = inner(GPU_TESTS, "-rs")
    result.assert_outcomes(passed=3, skipped=2)
    assert "needs a GPU for sm_90; this one is sm_80" in text(result)


@pytest.mark.usefixtures("no_gpu")
def test_a_bad_requirement_is_told_without_a_gpu_too(inner: Any) -> None:
    marks = ("'sm90'", "", "'sm_80', 'sm_90'")
    code = "".join(f"@pytest.mark.requires_arch({m})\ndef test_{n}(): pass\n" for n, m in enumerate(marks))
    result = inner(code)
    result.assert_outcomes(errors=3)
    assert text(result).count("@pytest.mark.requires_arch takes one architecture: ") >= 3


# What it costs those who do not use it


@pytest.mark.slow
def test_it_is_known_and_light(pytester: pytest.Pytester) -> None:
    """Loaded by its entry point, in a process of its own; pytest-randomly imports NumPy."""
    pytester.makepyfile(
        """
import sys
def test_it():
    heavy = {"cuda", "numpy", "click", "tabulate", "harness.kernels.compiler", "harness.kernels.spec"}
    loaded = heavy & set(sys.modules)
    assert "harness.pytest_plugin" in sys.modules and not loaded
"""
    )
    pytester.runpytest_subprocess("-p", "no:randomly").assert_outcomes(passed=1)
    marks = pytester.runpytest_subprocess("--markers").stdout.str()
    assert all(f"@pytest.mark.{name}" in marks for name in ("gpu", "requires_arch(name)", "harness(kernels"))


def test_its_import_is_quick() -> None:
    """Importing the plugin, with pytest loaded already, took 2 to 5 ms as measured."""
    ask = (
        "import pytest, time; t = time.perf_counter(); import harness.pytest_plugin; "
        "print(time.perf_counter() - t)"
    )
    times = [float(subprocess.check_output([sys.executable, "-c", ask], cwd=Path("/"))) for _ in range(5)]
    assert min(times) < 0.05
