"""``harness doctor``: show which tools and libraries are installed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import metadata

import click

from harness.errors import HarnessError

_NO_GPU = "nothing is timed; compiling, inspecting and the emulator work"

Check = tuple[str, Callable[[], str], str]  # name, function that finds it, what its absence means


@click.command(name="doctor")
def command() -> None:
    """Say what is installed, in which version, and what its absence means."""
    from tabulate import tabulate

    checks: list[Check] = [
        ("driver", _driver, _NO_GPU),
        ("GPU", _gpus, _NO_GPU),
        ("cuda-bindings", lambda: _package("cuda-bindings"), "no compiling, no running"),
        ("NVRTC", lambda: _compiler("cuda"), "nothing can be compiled"),
        ("nvJitLink", lambda: _compiler("ptx"), "PTX kernels cannot be assembled"),
        ("nvdisasm", lambda: _tool("nvdisasm"), "no SASS inspection"),
        ("cuobjdump", lambda: _tool("cuobjdump"), "no second opinion on SASS (tests)"),
        ("nvcc", _nvcc, "`harness run` cannot build programs"),
        ("cuBLAS", _cublas, "no baseline column"),
        ("nvidia-ml-py", lambda: _package("nvidia-ml-py"), "clock and power are not recorded"),
        ("cuda-bench", lambda: _package("cuda-bench"), "`harness selftest` has no nvbench to compare with"),
        ("ncu", lambda: _program("ncu"), "no profiling"),
        ("compute-sanitizer", lambda: _program("compute-sanitizer"), "no memory checks on a GPU"),
        ("cache", _cache, "every kernel is compiled anew"),
    ]
    rows = []
    for what, find, absent in checks:
        try:
            rows.append([what, "found", find()])
        except (HarnessError, metadata.PackageNotFoundError) as e:
            reason = str(e).splitlines()[0] if isinstance(e, HarnessError) else "not installed"
            hint = f" ({e.hint})" if isinstance(e, HarnessError) and e.hint else ""
            rows.append([what, "MISSING", f"{absent}: {reason}{hint}"])
    click.echo(tabulate(rows, tablefmt="plain", maxcolwidths=[None, None, 52], disable_numparse=True))
    try:
        click.echo(f"\nharness {metadata.version('cuda-harness')}")
    except metadata.PackageNotFoundError:
        click.echo("\nharness, run from a checkout")


def _driver() -> str:
    """Return the CUDA version that the driver supports. Raises HarnessError without a driver."""
    from harness import driver
    from harness.driver import api

    api.init()
    return "supports CUDA {}.{}".format(*driver.driver_version())


def _gpus() -> str:
    """Return a line for each GPU. Raises HarnessError without one."""
    from harness.driver import Device

    return "\n".join(
        f"{d.ordinal}: {d.name}, {d.arch}, {d.sms} SMs, {d.memory_bytes / 2**30:.0f} GiB"
        for d in Device.all()
    )


def _compiler(language: str) -> str:
    """Return the compiler's version and, for CUDA C++, the architectures it supports."""
    from harness.kernels import compiler

    version = compiler.compiler_version(language)
    if language == "ptx":
        return version
    archs = compiler.supported_archs()
    return f"{version}, {archs[0]} to {archs[-1]}"


def _tool(name: str) -> str:
    """Return the version of a tool that `support.tools` finds."""
    from harness.support import tools

    return _version_of([str(tools.require(name)), "--version"])


def _nvcc() -> str:
    """Return the versions of nvcc and of the host's C++ compiler."""
    from harness.programs import build

    found = build.compilers()
    return f"{_version_of([str(found.nvcc), '--version'])}, with {found.host.name}"


def _program(name: str) -> str:
    """Return the version of a program on the PATH. Raises HarnessError if it is not there."""
    path = shutil.which(name)
    if path is None:
        raise HarnessError("not on the PATH")
    return _version_of([path, "--version"])


def _version_of(command: list[str]) -> str:
    """Run a command that prints a version, and return that line. Raises HarnessError if it cannot be run."""
    from harness.support import tools

    done = tools.run(command, "", timeout=20)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "silently").splitlines()[-1]
        raise HarnessError(f"cannot be run: it ends with code {done.returncode}: {said}")
    lines = [s.strip() for s in done.stdout.splitlines() if "ersion" in s or "release" in s]
    return lines[-1] if lines else "version unknown"


def _package(name: str) -> str:
    """Return the version of an installed distribution."""
    return metadata.version(name)


def _cublas() -> str:
    """Return the version of cuBLAS and its math mode for fp32."""
    from harness.launch import cublas, cublas_bindings

    return f"{cublas_bindings.Functions(cublas.LABEL).version}, used as {cublas.MATH_MODES['fp32']}"


def _cache() -> str:
    """Return the cache's folder and size. Raises HarnessError if there is none."""
    import warnings

    from harness.support.cache import Cache, default_root

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        root = Cache(default_root()).root
    if root is None:
        raise HarnessError(str(said[0].message))
    size = sum(p.stat().st_size for p in root.rglob("*") if p.is_file())
    return f"{root}, {size / 1e6:.1f} MB"
