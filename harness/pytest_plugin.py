"""The pytest plugin: fixtures and markers that check kernels in a test suite, mostly without a GPU.

    def test_tiled(assert_sass):
        assert_sass("tiled", "LDS.128 in loop", "no LDL", arch="sm_75", TILE=16)

    @pytest.mark.harness(kernels=["tiled", "cu/*.cu"], archs=["sm_75", "sm_90a"], sweep=True)
    def test_no_spills(variant, arch, assert_sass):
        assert_sass(variant, "spills == 0", arch=arch)

pytest loads it through its entry point. A kernel is given as the stem of a shipped one, a path (absolute, or
relative to the test file's folder), a Kernel or a Variant. Without expectations, those in the kernel's own
file are checked. Without an architecture, a fixture uses the first of the ini option ``harness_arch``, and
the marker all of them. Every pytest run of every user imports this module, so whatever it needs is imported
on use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from harness.bench.row import Measurement
    from harness.kernels.compiler import Cubin
    from harness.kernels.spec import Kernel, Variant
    from harness.sass.code import Code

    KernelLike = str | os.PathLike[str] | Kernel | Variant

MARKERS = (
    "gpu: needs an NVIDIA GPU (skipped without one; fails instead under HARNESS_REQUIRE_GPU=1)",
    "requires_arch(name): needs an NVIDIA GPU that runs code for this architecture, such as sm_90",
    "harness(kernels=..., archs=..., sweep=False): run once for each kernel (stem, path or glob; with sweep, "
    "each of its parameter sets) and architecture; the test takes them as `variant` and `arch`",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option ``harness_arch``."""
    parser.addini("harness_arch", "Architectures where a test names none (default: sm_90a).", type="args")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and raise pytest.UsageError if ``harness_arch`` names no architecture."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    try:
        if config.getini("harness_arch"):
            _archs(config, None)
    except UsageError as e:
        raise pytest.UsageError(f"harness_arch: {e}") from None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose kernel does not fit its architecture, or that needs a GPU that this machine lacks.

    Under ``HARNESS_REQUIRE_GPU=1`` a test that needs a GPU fails if there is none.
    """
    chosen = getattr(getattr(item, "callspec", None), "params", {})
    if item.get_closest_marker("harness") and {"variant", "arch"} <= chosen.keys():
        kernel = chosen["variant"].kernel
        if not kernel.fits(chosen["arch"]):
            pytest.skip(f"{kernel.name} needs {kernel.min_arch}")
    least = item.get_closest_marker("requires_arch")
    if least is None and item.get_closest_marker("gpu") is None:
        return
    from harness.driver import Device
    from harness.kernels.arch import Arch

    try:
        wanted = None if least is None else Arch.parse(*map(str, least.args), **least.kwargs)
    except (TypeError, UsageError) as e:
        pytest.fail(f"@pytest.mark.requires_arch takes one architecture: {e}", pytrace=False)
    try:
        own = Arch.of_capability(*Device.open().capability)
    except HarnessError as e:
        if os.environ.get("HARNESS_REQUIRE_GPU") == "1":
            pytest.fail(f"HARNESS_REQUIRE_GPU=1 and there is no GPU: {e.what}", pytrace=False)
        pytest.skip(f"needs a GPU: {e.what}")
    if wanted is not None and not own.satisfies(wanted):
        pytest.skip(f"needs a GPU for {wanted}; this one is {own}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that has the ``harness`` marker; fail it if the marker's arguments are wrong."""
    marker = metafunc.definition.get_closest_marker("harness")
    if marker is not None:
        try:
            _parametrize(metafunc, *marker.args, **marker.kwargs)
        except (HarnessError, TypeError) as e:
            pytest.fail(f"{metafunc.definition.nodeid}: @pytest.mark.harness: {e}", pytrace=False)


@pytest.fixture
def cubin(request: pytest.FixtureRequest) -> Callable[..., Cubin]:
    """Compile a kernel, or take it from the cache: ``cubin(kernel, arch=None, **params)`` returns a Cubin."""
    return partial(_call, request, "compile_kernel", ())


@pytest.fixture
def sass(request: pytest.FixtureRequest) -> Callable[..., Code]:
    """Disassemble a kernel: ``sass(kernel, arch=None, **params)`` returns its `Code`.

    Among its members are `sass`, `loops`, `hot_loop` and `registers`.
    """
    return partial(_call, request, "machine_code", ())


@pytest.fixture
def emulate(request: pytest.FixtureRequest) -> Callable[..., Measurement]:
    """Run a kernel in the emulator: ``emulate(kernel, shape, arch=None, schedule="lockstep", **params)``.

    Returns a Measurement with the verdict, findings and counts. See `harness.assertions.emulate`, also for
    the options ``seed`` and ``as_compiled``.
    """
    return partial(_behave, request, "emulate", ("seed", "schedule", "as_compiled"))


@pytest.fixture
def assert_race_free(request: pytest.FixtureRequest) -> Callable[..., Measurement]:
    """Assert that it has no finding: ``assert_race_free(kernel, shape=None, arch=None, **params)``.

    Returns the Measurement; see `harness.assertions.assert_race_free`, also for the option ``strict``.
    """
    return partial(_behave, request, "assert_race_free", ("strict",))


@pytest.fixture
def assert_right(request: pytest.FixtureRequest) -> Callable[..., Measurement]:
    """Assert right numbers in the emulator: ``assert_right(kernel, shape=None, arch=None, **params)``.

    Returns the Measurement; see `harness.assertions.assert_right`, also for the option ``seed``.
    """
    return partial(_behave, request, "assert_right", ("seed",))


@pytest.fixture
def assert_coalesced(request: pytest.FixtureRequest) -> Callable[..., Measurement]:
    """Assert coalesced accesses: ``assert_coalesced(kernel, shape=None, max_sectors=4, **params)``.

    Global requests of each source line may touch at most `max_sectors` 32-byte sectors on average. Returns
    the Measurement; see `harness.assertions.assert_coalesced`.
    """
    return partial(_behave, request, "assert_coalesced", ("max_sectors",))


@pytest.fixture
def assert_no_bank_conflicts(request: pytest.FixtureRequest) -> Callable[..., Measurement]:
    """Assert the absence of shared-memory bank conflicts in the emulator.

    Call it as ``assert_no_bank_conflicts(kernel, shape=None, arch=None, as_compiled=False, **params)``. With
    `as_compiled` accesses have the widths of the machine code, otherwise those of the PTX. Returns the
    Measurement.
    """
    return partial(_behave, request, "assert_no_bank_conflicts", ("as_compiled",))


@pytest.fixture
def assert_sass(request: pytest.FixtureRequest) -> Callable[..., Code]:
    """Assert expectations on machine code: ``assert_sass(kernel, *expectations, arch=None, **params)``.

    Without expectations, those in the kernel's own file are checked. Returns the `Code`.
    """

    def call(kernel: KernelLike, /, *expectations: str, arch: str | None = None, **params: int) -> Any:
        __tracebackhide__ = True
        return _call(request, "assert_holds", (expectations,), kernel, arch, **params)

    return call


def _call(
    request: pytest.FixtureRequest, act: str, more: Any, kernel: Any, /, arch: Any = None, **params: Any
) -> Any:
    """Call the function `act` of `harness.assertions` with a kernel, an architecture and arguments `more`.

    Its errors lose their traceback, so that pytest shows them at the test's own line.
    """
    __tracebackhide__ = True
    from harness import assertions
    from harness.kernels import catalog

    try:
        variant = catalog.variant(kernel, params, request.path.parent)
        return getattr(assertions, act)(variant, _archs(request.config, arch)[0], *more)
    except (AssertionError, HarnessError) as e:
        raise e.with_traceback(None) from None


def _behave(
    request: pytest.FixtureRequest,
    act: str,
    options: tuple[str, ...],
    kernel: Any,
    shape: Any = None,
    /,
    arch: Any = None,
    **params: Any,
) -> Any:
    """Call the function `act` of `harness.assertions` that emulates a kernel on `shape`.

    Without `shape` on every size that `harness verify` visits, one after the other; the last result is
    returned. Of the keyword arguments those named in `options` go to the function; the others are the
    kernel's parameters.
    """
    __tracebackhide__ = True
    from harness import assertions
    from harness.kernels import catalog

    own = {name: params.pop(name) for name in options if name in params}
    try:
        variant = catalog.variant(kernel, params, request.path.parent)
        target = _archs(request.config, arch)[0]
        shapes = assertions.sizes(variant) if shape is None else [shape]
        return [getattr(assertions, act)(variant, target, one, **own) for one in shapes][-1]
    except (AssertionError, HarnessError) as e:
        raise e.with_traceback(None) from None


def _archs(config: pytest.Config, names: Any) -> list[str]:
    """Return the architectures `names`; if None, those of the ini option, or else the default one."""
    from harness.kernels import arch

    return arch.listed(config.getini("harness_arch") or arch.DEFAULT if names is None else names)


def _parametrize(
    metafunc: pytest.Metafunc, /, *, kernels: Any = (), archs: Any = None, sweep: bool = False
) -> None:
    """Parametrize the test by ``variant`` and ``arch``, or whichever of them it takes.

    The keyword arguments are those of the marker.
    """
    from harness.kernels import catalog

    wanted = _archs(metafunc.config, archs)
    if "variant" in metafunc.fixturenames:
        variants = catalog.variants(kernels, sweep, metafunc.definition.path.parent)
        metafunc.parametrize("variant", variants, ids=[v.label.replace(" ", "-") for v in variants])
    if "arch" in metafunc.fixturenames:
        metafunc.parametrize("arch", wanted)
