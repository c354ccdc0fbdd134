"""Compiling without a GPU: what the refusals say, and what is said where a compiler is not installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import MissingDependency, UsageError
from harness.kernels import compiler
from harness.kernels.arch import Arch
from harness.kernels.cpp.compilers import nvjitlink, nvrtc
from shared.compiling import KERNEL, Write, compile_file, line_of, refusal


@pytest.mark.parametrize("given", ["bad.cu", "./bad.cu", "sub/../bad.cu", "{absolute}"])
def test_a_compile_error_names_file_and_line(
    kernel_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    path = kernel_file("bad.cu", body=KERNEL.replace("VALUE;", "1"))
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    given = given.format(absolute=path)
    shown = str(Path(given))  # pathlib drops ./
    error = refusal(given)
    assert error.where == shown
    assert f'{shown}({line_of(path, "}")}): error: expected a ";"' in error.log
    assert shown == str(path) or str(tmp_path) not in str(error)
    assert str(error).startswith(f"{shown}: bad TILE=16 does not compile for sm_80")
    assert error.log in str(error)


def test_a_failed_static_assert_says_its_text(kernel_file: Write) -> None:
    body = 'static_assert(TILE % 5 == 0, "TILE must be a multiple of 5");\n' + KERNEL.replace("VALUE", "1")
    assert "TILE must be a multiple of 5" in refusal(kernel_file(body=body)).log


def test_an_error_in_a_header_names_the_header(kernel_file: Write, tmp_path: Path) -> None:
    (tmp_path / "broken.h").write_text("\nint f( {\n")
    assert "broken.h(2): error" in refusal(kernel_file(body='#include "broken.h"\n' + KERNEL)).log


def test_a_missing_header(kernel_file: Write) -> None:
    path = kernel_file(body='#include "gone.h"\n' + KERNEL)
    assert f'{path}({line_of(path, "gone.h")}): catastrophic error: cannot open source file "gone.h"' in str(
        refusal(path)
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("    ld.param.u64 %a, [A];", "    ld.param.u64 %a, [A]", "ret;", "syntax error"),
        ("    ret;", "    ret;\n    frobnicate;", "frobnicate", "Not a name of any known instruction"),
        (".target sm_75", ".target sm_90a", ".target", "does not support .target sm_90a"),
        (".version 6.3", ".version 99.0", ".version", "Unsupported .version 99.0; current version is"),
    ],
    ids=["syntax", "instruction", "target", "newer-ptx"],
)
def test_a_ptx_error_names_file_and_line(ptx_file: Write, old: str, new: str, line: str, text: str) -> None:
    path = ptx_file(old, new)
    error = refusal(path)
    assert error.where == str(path)
    assert re.search(rf"^{re.escape(str(path))}:{line_of(path, line)}; .*{re.escape(text)}", error.log, re.M)
    assert str(error).startswith(f"{path}: mine does not assemble for sm_80")


@pytest.mark.parametrize(
    ("body", "there"),
    [
        (KERNEL.replace("matmul", "other"), "other"),
        (KERNEL.replace("matmul", "one") + KERNEL.replace("matmul", "two"), "one, two"),
        ("__device__ int x;", "none"),
    ],
    ids=["another", "two", "none"],
)
def test_a_wrong_entry_names_those_there_are(kernel_file: Write, body: str, there: str) -> None:
    path = kernel_file(body=body.replace("VALUE", "1"))
    error = refusal(path)
    assert error.where == str(path)
    kernels = re.search(r"\(in the text: (.+)\)", error.what)
    assert kernels is not None
    assert sorted(kernels[1].split(", ")) == there.split(", ")
    assert "__global__" in error.hint


def test_a_wrong_entry_in_ptx(ptx_file: Write) -> None:
    assert "'matmul' in the compiled code (kernels: other)" in str(refusal(ptx_file(" matmul", " other")))


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100a", "sm_120"])
def test_below_min_arch(kernel_file: Write, arch: str) -> None:
    path = kernel_file(extra='min_arch = "sm_90a"', body=KERNEL.replace("VALUE", "1"))
    with pytest.raises(UsageError, match=re.escape(f"{path}: needs sm_90a, asked for {arch}")):
        compile_file(path, arch)
    assert compile_file(path, "sm_90a").arch == "sm_90a"


@pytest.mark.parametrize(
    ("arch", "text"),
    [
        ("sm_91", r"NVRTC [\d.]+ does not know sm_91\n  -> known: sm_75, .*sm_90, .*sm_120"),
        ("sm_70", "does not know sm_70"),
        ("sm_999", "does not know sm_999"),
        ("sm_9x", "'sm_9x' is not an architecture\n  -> such as sm_75, "),
        ("compute_80", "not an architecture"),
        ("sm_80 ", "not an architecture"),
        ("", "not an architecture"),
        ("sm_75a", "'sm_75a' is not an architecture\n  -> there is 'a' from sm_90 on"),
        ("sm_90f", "'sm_90f' is not an architecture\n  -> there is 'f' from sm_100 on"),
    ],
)
@pytest.mark.parametrize("language", ["cuda", "ptx"])
def test_an_unknown_architecture(
    kernel_file: Write, ptx_file: Write, language: str, arch: str, text: str
) -> None:
    path = kernel_file() if language == "cuda" else ptx_file()
    with pytest.raises(UsageError, match=text):
        compile_file(path, arch)


@pytest.mark.slow
def test_every_architecture_it_offers_compiles(kernel_file: Write, ptx_file: Write) -> None:
    """With each suffix that Arch.parse lets through: no such name ends in a compiler's option error."""
    names = [
        *compiler.supported_archs(),
        *(f"{a}a" for a in compiler.supported_archs() if Arch.parse(a).number >= 90),
        *(f"{a}f" for a in compiler.supported_archs() if Arch.parse(a).number >= 100),
    ]
    assert {"sm_75", "sm_90a", "sm_100f"} <= set(names)
    for name in names:
        assert compile_file(kernel_file(), name).resources.registers > 0
        assert compile_file(ptx_file(), name).resources.registers > 0


# What is not installed


@pytest.fixture
def forgetful() -> Any:
    """Make the build module forget its compilers before and after the test."""
    remembered = (
        compiler.supported_archs,
        compiler.compiler_version,
        nvrtc.api,
        nvjitlink.api,
    )
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


def no_library(*_args: Any) -> Any:
    raise RuntimeError('Failure finding "libnvrtc.so"')  # cuda.pathfinder's DynamicLibNotFoundError is one


@pytest.mark.usefixtures("forgetful")
def test_no_nvrtc(kernel_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    api = SimpleNamespace(nvrtcVersion=no_library, nvrtcGetSupportedArchs=no_library)
    monkeypatch.setattr(nvrtc, "api", lambda: api)
    with pytest.raises(MissingDependency, match="NVRTC cannot be loaded: Failure finding.*\n.*pip install"):
        compile_file(kernel_file())


@pytest.mark.usefixtures("forgetful")
def test_no_nvjitlink(ptx_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    real = nvrtc.bindings
    fake = SimpleNamespace(version=no_library)
    monkeypatch.setattr(nvrtc, "bindings", lambda name: fake if name == "nvjitlink" else real(name))
    with pytest.raises(MissingDependency, match="nvJitLink cannot be loaded: .*\n.*nvidia-nvjitlink"):
        compile_file(ptx_file())


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("name", ["nvrtc", "nvjitlink"])
def test_no_bindings(ptx_file: Write, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, f"cuda.bindings.{name}", None)  # what makes its import fail
    with pytest.raises(MissingDependency, match="pip install 'cuda-python"):
        compile_file(ptx_file())


@pytest.mark.parametrize("size", range(4))
def test_the_bindings_never_get_a_shared_byte(size: int) -> None:
    """They write into the bytes object they are given; those of length 0 and 1 belong to everybody."""
    given: list[bytes] = []
    library = SimpleNamespace(
        nvrtcResult=SimpleNamespace(NVRTC_SUCCESS=0),
        nvrtcGetPTXSize=lambda _program: (0, size),
        nvrtcGetPTX=lambda _program, buffer: given.append(buffer) or (0,),
    )
    assert nvrtc.fetch(library, "nvrtcGetPTX", None) == bytes(size)
    assert len(given[0]) >= 2
