"""The pytest plugin: expectations on machine code in a test suite, without a GPU. pytest loads it by itself.

    def test_tiled(assert_sass):
        assert_sass("tiled", "LDS.128 in loop", "no LDL", arch="sm_75", TILE=16)

    @pytest.mark.harness(kernels=["tiled", "cu/*.cu"], archs=["sm_75", "sm_90a"], sweep=True)
    def test_no_spills(variant, arch, assert_sass):
        assert_sass(variant, "spills == 0", arch=arch)

A kernel is a shipped one's stem, a path (from the test file's folder, or absolute), a Kernel or a Variant.
Where no expectation is given those of its own file count; where no architecture is, the first of the ini
option ``harness_arch``, and for the marker all of them.
Every pytest run of every user imports this module, so whatever it needs is imported on use.
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
    parser.addini("harness_arch", "Architectures where a test names none (default: sm_90a).", type="args")


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    try:
        if config.getini("harness_arch"):
            _archs(config, None)
    except UsageError as e:
        raise pytest.UsageError(f"harness_arch: {e}") from None


def pytest_runtest_setup(item: pytest.Item) -> None:
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
    marker = metafunc.definition.get_closest_marker("harness")
    if marker is not None:
        try:
            _parametrize(metafunc, *marker.args, **marker.kwargs)
        except (HarnessError, TypeError) as e:
            pytest.fail(f"{metafunc.definition.nodeid}: @pytest.mark.harness: {e}", pytrace=False)


@pytest.fixture
def cubin(request: pytest.FixtureRequest) -> Callable[..., Cubin]:
    """``cubin(kernel, arch=None, **params)`` compiles a kernel, or takes it from the cache."""
    return partial(_call, request, "compile_kernel", ())


@pytest.fixture
def sass(request: pytest.FixtureRequest) -> Callable[..., Code]:
    """``sass(kernel, arch=None, **params)``: its machine code: .sass, .loops, .hot_loop, .registers."""
    return partial(_call, request, "machine_code", ())


@pytest.fixture
def emulate(request: pytest.FixtureRequest) -> Callable[..., Measurement]:
    """``emulate(kernel, shape, arch=None, schedule="lockstep", **params)``: verdict, findings and counts."""
    return partial(_behave, request, "emulate", ("seed", "schedule", "as_compiled"))


@pytest.fixture
def assert_race_free(request: pytest.FixtureRequest) -> Callable[..., Measurement]:
    """``assert_race_free(kernel, shape, arch=None, **params)``: no finding of any kind."""
    return partial(_behave, request, "assert_race_free", ())


@pytest.fixture
def assert_coalesced(request: pytest.FixtureRequest) -> Callable[..., Measurement]:
    """``assert_coalesced(kernel, shape, max_sectors=4, arch=None, **params)``."""
    return partial(_behave, request, "assert_coalesced", ("max_sectors",))


@pytest.fixture
def assert_no_bank_conflicts(request: pytest.FixtureRequest) -> Callable[..., Measurement]:
    """``assert_no_bank_conflicts(kernel, shape, as_compiled=False, arch=None, **params)``."""
    return partial(_behave, request, "assert_no_bank_conflicts", ("as_compiled",))


@pytest.fixture
def assert_sass(request: pytest.FixtureRequest) -> Callable[..., Code]:
    """``assert_sass(kernel, *expectations, arch=None, **params)``, and returns the machine code."""

    def call(kernel: KernelLike, /, *expectations: str, arch: str | None = None, **params: int) -> Any:
        __tracebackhide__ = True
        return _call(request, "assert_holds", (expectations,), kernel, arch, **params)

    return call


def _call(
    request: pytest.FixtureRequest, act: str, more: Any, kernel: Any, /, arch: Any = None, **params: Any
) -> Any:
    """A function of `assertion`. Errors end at the test's own line: their message says it all."""
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
    shape: Any,
    /,
    arch: Any = None,
    **params: Any,
) -> Any:
    """Call a function of `harness.assertions`: `options` are its own, other names are parameters."""
    __tracebackhide__ = True
    from harness import assertions
    from harness.kernels import catalog

    own = {name: params.pop(name) for name in options if name in params}
    try:
        variant = catalog.variant(kernel, params, request.path.parent)
        return getattr(assertions, act)(variant, _archs(request.config, arch)[0], shape, **own)
    except (AssertionError, HarnessError) as e:
        raise e.with_traceback(None) from None


def _archs(config: pytest.Config, names: Any) -> list[str]:
    from harness.kernels import arch

    return arch.listed(config.getini("harness_arch") or arch.DEFAULT if names is None else names)


def _parametrize(
    metafunc: pytest.Metafunc, /, *, kernels: Any = (), archs: Any = None, sweep: bool = False
) -> None:
    """Give the test whichever it takes of ``variant`` and ``arch``."""
    from harness.kernels import catalog

    wanted = _archs(metafunc.config, archs)
    if "variant" in metafunc.fixturenames:
        variants = catalog.variants(kernels, sweep, metafunc.definition.path.parent)
        metafunc.parametrize("variant", variants, ids=[v.label.replace(" ", "-") for v in variants])
    if "arch" in metafunc.fixturenames:
        metafunc.parametrize("arch", wanted)
