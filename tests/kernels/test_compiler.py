"""Compiling without a GPU: what comes out, what the refusals say, and when the cache answers instead."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import BuildError, MissingDependency, UsageError
from harness.kernels import catalog, compiler, spec
from harness.kernels.arch import Arch
from harness.kernels.compiler import Cubin, compile_kernel
from harness.kernels.cpp import nvrtc
from harness.kernels.spec import Variant
from harness.sass.instructions import disassemble
from harness.support import tools
from harness.support.cache import Cache
from shared import sweeps
from shared.kernels import parameter_sets

ARCHS = ("sm_75", "sm_80", "sm_90a", "sm_100", "sm_120")
NO_CACHE = Cache(None)
KERNEL = """\
extern "C" __global__ void matmul(const float* A, float* C, int n)
{
    C[threadIdx.x] = A[threadIdx.x] + VALUE;
}
"""
PTX = """\
// Adds nothing
//
// /// kernel
// entry = "matmul"
// block = 32
// tile  = 32
// ///
.version 6.3
.target sm_75
.address_size 64
.visible .entry matmul(.param .u64 A)
{
    .reg .u64 %a;
    ld.param.u64 %a, [A];
    ret;
}
"""

Write = Callable[..., Path]


@pytest.fixture
def ptx_file(tmp_path: Path) -> Write:
    """Writes a small PTX kernel with `old` replaced by `new`."""

    def write(old: str = "", new: str = "", name: str = "mine.ptx") -> Path:
        assert old in PTX
        path = tmp_path / name
        path.write_text(PTX.replace(old, new) if old else PTX, encoding="utf-8")
        return path

    return write


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of the variants that a compiler had to be started for, in order."""
    labels: list[str] = []

    def watch(name: str) -> None:
        real = getattr(compiler, name)

        def watched(variant: Variant, arch: str, *included: Any) -> Any:
            labels.append(f"{variant.label} {arch}")
            return real(variant, arch, *included)

        monkeypatch.setattr(compiler, name, watched)

    watch("_nvrtc")
    watch("_nvjitlink")
    return labels


def compile_file(path: Path | str, arch: str = "sm_80", cache: Cache = NO_CACHE, **params: int) -> Cubin:
    return compile_kernel(spec.load(path).variant(**params), arch, cache)


def refusal(path: Path | str, arch: str = "sm_80") -> BuildError:
    with pytest.raises(BuildError) as e:
        compile_file(path, arch)
    return e.value


def line_of(path: Path, text: str) -> int:
    """The 1-based number of the only line that holds `text`."""
    (found,) = (n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)
    return found


# What comes out


def used(cubin: Cubin, folder: Path) -> dict[str, int]:
    """REG, STACK, SHARED and so on as cuobjdump reads them from the machine code itself."""
    file = folder / "kernel.cubin"
    file.write_bytes(cubin.code)
    tool = tools.require("cuobjdump")
    text = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, check=True).stdout
    assert f"Function {cubin.variant.kernel.entry}:" in text
    return {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", text)}


def same_as_cuobjdump(cubin: Cubin, folder: Path, *, uses_shared: bool | None = None) -> None:
    """cuobjdump's SHARED has 1 KiB more from sm_90 on, which the system reserves in every block of a kernel
    that uses shared memory, static or dynamic; ptxas's report, and so ours, is what the source asks for.
    """
    resources, theirs = cubin.resources, used(cubin, folder)
    uses_shared = resources.shared > 0 if uses_shared is None else uses_shared
    reserved = 1024 if uses_shared and Arch.parse(cubin.arch).number >= 90 else 0
    assert (resources.registers, resources.stack) == (theirs["REG"], theirs["STACK"])
    assert resources.shared + reserved == theirs["SHARED"]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kernel", catalog.shipped(), ids=lambda k: k.name)
def test_shipped_kernels_refuse_what_is_too_old_for_them(
    kernel: spec.Kernel, arch: str, cache: Cache
) -> None:
    if Arch.parse(arch).satisfies(Arch.parse(kernel.min_arch)):
        assert kernel.fits(arch)
        return
    with pytest.raises(UsageError, match=kernel.min_arch):
        compile_kernel(kernel.variant(), arch, cache)


@pytest.mark.parametrize(("name", "arch", "sets"), sweeps.builds_and_sets(ARCHS))
def test_shipped_kernels(name: str, arch: str, sets: str, cache: Cache, tmp_path: Path) -> None:
    """No warning, no spill, and resources as a second reader finds them."""
    kernel = catalog.kernel(name)
    for variant in [kernel.variant()] if sets == "default" else parameter_sets(kernel, arch):
        cubin = compile_kernel(variant, arch, cache)
        assert cubin.warnings == "", variant.label
        assert (cubin.resources.spill_stores, cubin.resources.spill_loads) == (0, 0), variant.label
        same_as_cuobjdump(cubin, tmp_path, uses_shared=cubin.shared > 0)


SPILLS = """\
extern "C" __global__ void __launch_bounds__(1024, 2) matmul(float* c, int n)
{
    float s[80];
    #pragma unroll
    for (int i = 0; i < 80; ++i) s[i] = c[i * n + threadIdx.x];
    for (int k = 0; k < n; ++k)
        #pragma unroll
        for (int i = 0; i < 80; ++i) s[i] = s[i] * s[(i + 1) % 80] + c[i + k * n];
    #pragma unroll
    for (int i = 0; i < 80; ++i) c[threadIdx.x * n + i] = s[i];
}
"""
INDEXED = """\
extern "C" __global__ void matmul(float* c, int n)
{
    float s[64];
    for (int i = 0; i < 64; ++i) s[i] = c[i];
    for (int i = 0; i < n; ++i) s[i * 7 & 63] += c[i];
    c[threadIdx.x] = s[n & 63];
}
"""
DYNAMIC = """\
extern "C" __global__ void matmul(float* c)
{
    extern __shared__ float s[];
    s[threadIdx.x] = c[threadIdx.x];
    __syncthreads();
    c[threadIdx.x] = s[31 - threadIdx.x];
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
def test_spills_are_what_the_code_stores_and_loads(kernel_file: Write, tmp_path: Path, arch: str) -> None:
    """The other half of `test_shipped_kernels`: zero is not what the report always says."""
    cubin = compile_file(kernel_file(body=SPILLS), arch)
    code = disassemble(cubin, NO_CACHE)
    stores, loads = (sum(i.width // 8 for i in code.select(opcode)) for opcode in ("STL", "LDL"))
    assert 0 < stores < loads  # so that one cannot stand for the other
    assert (cubin.resources.spill_stores, cubin.resources.spill_loads) == (stores, loads)
    same_as_cuobjdump(cubin, tmp_path)


@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
def test_a_stack_is_not_a_spill(kernel_file: Write, tmp_path: Path, arch: str) -> None:
    cubin = compile_file(kernel_file(body=INDEXED), arch)
    assert (cubin.resources.stack, cubin.resources.spill_loads) == (256, 0)
    same_as_cuobjdump(cubin, tmp_path)


@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
def test_dynamic_shared_memory_is_the_front_matters(kernel_file: Write, tmp_path: Path, arch: str) -> None:
    cubin = compile_file(kernel_file(extra='shared = "4 * TILE"', body=DYNAMIC), arch)
    assert (cubin.resources.shared, cubin.shared) == (0, 64)
    same_as_cuobjdump(cubin, tmp_path, uses_shared=True)


def test_only_the_entry_counts(kernel_file: Write) -> None:
    alone = KERNEL.replace("VALUE", "1")
    hungry = [SPILLS.replace("matmul", "first"), SPILLS.replace("matmul", "last")]
    among = compile_file(kernel_file(body=hungry[0] + alone + hungry[1]))
    assert among.resources == compile_file(kernel_file(body=alone)).resources


def test_warnings_without_the_report(kernel_file: Write) -> None:
    path = kernel_file(body=KERNEL.replace("{\n", "{\n    int unused;\n").replace("VALUE", "1"))
    cubin = compile_file(path)
    assert cubin.warnings.startswith(f"{path}({line_of(path, 'unused')}): warning")
    assert "ptxas" not in cubin.warnings
    assert "Used" in cubin.log


@pytest.mark.parametrize("params", [1, 3])
def test_lines_are_those_of_the_file(kernel_file: Write, params: int) -> None:
    """Although #define lines stand in front of what the compiler reads."""
    path = kernel_file()
    more = "".join(f"// P{i} = {i}\n" for i in range(1, params))
    path.write_text(path.read_text().replace("// [params]\n", f"// [params]\n{more}"))
    at = 0
    lines: dict[str, set[int]] = {}
    for line in compile_file(path).ptx.splitlines():
        if loc := re.match(r"\s*\.loc\s+1 (\d+) ", line):
            at = int(loc[1])
        elif op := re.match(r"\s*(fma|st\.global)\b", line):
            lines.setdefault(op[1], set()).add(at)
    product, result = line_of(path, "sum +="), line_of(path, "beta == 0")
    assert lines == {"fma": {product, result}, "st.global": {result}}


def test_the_file_is_recorded_where_it_lies(kernel_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kernel_file()
    monkeypatch.chdir(path.parent)
    assert re.findall(r'\.file\s+1 "(.+)"', compile_file(path.name).ptx) == [str(path.resolve())]


@pytest.mark.parametrize("name", ["T", "N", "threads", "_"])
def test_any_name_may_be_a_parameter(kernel_file: Write, name: str) -> None:
    """T breaks NVRTC's own header where it is given by -D."""
    path = kernel_file(body=KERNEL.replace("VALUE", f"{name} * 1.5f"))
    path.write_text(path.read_text().replace("TILE", name))
    assert "0f41400000" in compile_file(path, **{name: 8}).ptx  # 12.0f


@pytest.mark.parametrize(
    "name",
    ["with space.cu", "it's.cu", "naïve.cu", "核.cu", "a+b,c=d%20&$HOME;#.cu"]
    + ['"quoted".cu', "back\\slash\\new.cu", 'dir "q"/it\'s/k.cu'] * (sys.platform != "win32"),
)
def test_any_file_name(
    kernel_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).with_name("value.h").write_text("#define VALUE 2.0f\n")
    kernel_file(name, body='#include "value.h"\n' + KERNEL)
    assert "0f40000000" in compile_file(name).ptx
    kernel_file(name, body=KERNEL)  # VALUE is not defined
    log = refusal(name).log
    assert f"{name}({line_of(Path(name), 'VALUE')}): error" in log
    assert str(tmp_path) not in log


@pytest.mark.parametrize("ends", ["\n", "\r\n", ""])
def test_comments_in_any_language(kernel_file: Write, ptx_file: Write, ends: str) -> None:
    path = kernel_file(body="// λ × µ 核 🚀\n" + KERNEL.replace("VALUE", "1 /* ½ */"), title="Noël")
    path.write_bytes(path.read_text(encoding="utf-8").rstrip("\n").replace("\n", ends or "\n").encode())
    assert compile_file(path).warnings == ""
    assert compile_file(ptx_file("    ret;", "    ret;  // λ 核")).resources.registers > 0


# What the refusals say


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
    kernels = re.search(r"\(kernels: (.+)\)", error.what)
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
        compiler._nvjitlink_api,
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


# When the cache answers


@pytest.fixture
def store(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.mark.parametrize("language", ["cuda", "ptx"])
def test_the_second_build_compiles_nothing(
    kernel_file: Write, ptx_file: Write, store: Cache, compiled: list[str], language: str
) -> None:
    path = kernel_file() if language == "cuda" else ptx_file()
    first = compile_file(path, cache=store)
    second = compile_file(path, cache=Cache(store.root))
    assert len(compiled) == 1
    assert second == first
    assert first.code[:4] == b"\x7fELF"


def test_what_makes_another_build(kernel_file: Write, store: Cache, compiled: list[str]) -> None:
    builds: list[Cubin] = []

    def build_one(path: Path, arch: str = "sm_80", **params: int) -> None:
        builds.append(compile_file(path, arch, store, **params))
        assert len(compiled) == len(builds), "came from the cache"

    build_one(path := kernel_file())
    build_one(path, TILE=8)
    build_one(path, TILE=7)
    build_one(path, "sm_86")
    build_one(path, "sm_90")
    build_one(path, "sm_90a")
    text = path.read_text()
    path.write_text(text.replace("float sum = 0;", "float sum = 1;"))
    build_one(path)
    path.write_text(text + "\n")
    build_one(path)  # the front matter and the comments are part of the lines
    build_one(kernel_file("other.cu"))  # its line table names another file
    path.write_text(text)
    compile_file(path, cache=store)
    assert len(compiled) == len(builds)


def test_options_and_compiler_are_part_of_the_key(
    kernel_file: Write, store: Cache, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kernel_file()
    compile_file(path, cache=store)
    monkeypatch.setattr(nvrtc, "OPTIONS", (*nvrtc.OPTIONS, "--use_fast_math"))
    compile_file(path, cache=store)
    assert len(compiled) == 2
    monkeypatch.setattr(compiler, "compiler_version", lambda _language: "NVRTC 99.0")
    assert compile_file(path, cache=store).compiler == "NVRTC 99.0"
    assert len(compiled) == 3


def test_another_entry_is_another_build(kernel_file: Write, store: Cache) -> None:
    """Each of two kernels in one file has its own resources."""
    body = INDEXED + KERNEL.replace("matmul", "second").replace("VALUE", "1")
    path = kernel_file(body=body)
    stack = [compile_file(path, cache=store).resources.stack]
    path.write_text(path.read_text().replace('entry = "matmul"', 'entry = "second"'))
    stack.append(compile_file(path, cache=store).resources.stack)
    assert stack == [256, 0]


HEADERS = {
    "direct": {"k.cu": '#include "a.h"', "a.h": "{value}"},
    "recursive": {"k.cu": '#include "a.h"', "a.h": '#include "b.h"', "b.h": "{value}"},
    "spaces": {"k.cu": '  #  include  "a.h"', "a.h": "{value}"},
    "after-comment": {"k.cu": '/* x */ #include "a.h"', "a.h": "{value}"},
    "angle-brackets": {"k.cu": "#include <a.h>", "a.h": "{value}"},
    "subfolder": {"k.cu": '#include "sub/a.h"', "sub/a.h": '#include "b.h"', "sub/b.h": "{value}"},
    "up-again": {"k.cu": '#include "sub/a.h"', "sub/a.h": '#include "b.h"', "b.h": "{value}"},
    "parent": {"k/k.cu": '#include "../a.h"', "a.h": "{value}"},
    "latin-1": {"k.cu": '#include "a.h"', "a.h": "// caf\xe9\n{value}"},
    "guarded-circle": {"k.cu": '#include "a.h"', "a.h": '#pragma once\n#include "a.h"\n{value}'},
}


@pytest.mark.parametrize("files", HEADERS.values(), ids=HEADERS)
def test_a_changed_header_is_another_build(
    kernel_file: Write, tmp_path: Path, store: Cache, compiled: list[str], files: dict[str, str]
) -> None:
    (kernel, include), *headers = files.items()
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
    path = kernel_file(kernel, body=f"{include}\n{KERNEL}")

    def build_with(value: str) -> str:
        for name, text in headers:
            defined = text.replace("{value}", f"#define VALUE {value}\n")
            (tmp_path / name).write_text(defined, encoding="latin-1")
        return compile_file(path, cache=store).ptx

    assert "0f3F800000" in build_with("1.0f")
    assert "0f40000000" in build_with("2.0f")
    assert len(compiled) == 2
    assert "0f3F800000" in build_with("1.0f")
    assert len(compiled) == 2


def test_headers_lie_beside_the_file_that_includes_them(
    kernel_file: Write, tmp_path: Path, store: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like nvcc. NVRTC, left to itself, takes what the working directory holds under the same name."""
    for folder, value in (("cwd", "1.0f"), ("k", "2.0f"), ("k/sub", "3.0f")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "value.h").write_text(f"#define VALUE {value}\n")
    (tmp_path / "k" / "sub" / "a.h").write_text('#include "value.h"\n')
    monkeypatch.chdir(tmp_path / "cwd")
    assert "0f40000000" in compile_file(kernel_file("k/k.cu", body='#include "value.h"\n' + KERNEL)).ptx
    assert "0f40400000" in compile_file(kernel_file("k/k.cu", body='#include "sub/a.h"\n' + KERNEL)).ptx


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    sweeps.sweep(
        ["15_split_k", "16_pipeline", "21_mma_sync", "29_wgmma_grid_split"],
        lambda name: name == "21_mma_sync",
    ),
)
def test_a_copy_of_a_rung_finds_the_ladders_headers(tmp_path: Path, store: Cache, name: str) -> None:
    """The code is the same, so it is found in the cache under its own name only."""
    rung = catalog.kernel(name)
    copy = tmp_path / "mine.cu"
    copy.write_text(rung.path.read_text())
    assert "#include" in rung.source
    resources = [
        compiler.compile_kernel(spec.load(p).variant(), "sm_90a", store).resources for p in (rung.path, copy)
    ]
    assert resources[0] == resources[1] and resources[0].registers > 30


def test_headers_beside_a_copy_come_before_the_ladders(
    kernel_file: Write, tmp_path: Path, store: Cache, compiled: list[str]
) -> None:
    """Under a name that the ladder has, too, however it is reached; and a change of either is seen."""
    path = kernel_file(body='#include "stage.cuh"\n' + KERNEL)
    for value, expected in (("1.0f", "0f3F800000"), ("2.0f", "0f40000000")):
        (tmp_path / "stage.cuh").write_text(f"#define VALUE {value}\n")
        assert expected in compile_file(path, cache=store).ptx
    assert len(compiled) == 2


def test_a_header_beside_a_linked_file(
    kernel_file: Write, tmp_path: Path, store: Cache, compiled: list[str]
) -> None:
    """A symbolic link stands for its target, whose folder has the headers."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "value.h").write_text("#define VALUE 1.0f\n")
    link = tmp_path / "link.cu"
    link.symlink_to(kernel_file("real/k.cu", body='#include "value.h"\n' + KERNEL))
    compile_file(link, cache=store)
    (tmp_path / "real" / "value.h").write_text("#define VALUE 2.0f\n")
    assert "0f40000000" in compile_file(link, cache=store).ptx
    assert len(compiled) == 2


def test_many_headers_that_include_each_other(kernel_file: Write, tmp_path: Path) -> None:
    """Each is read once: 2^30 ways lead through these."""
    for i in range(30):
        (tmp_path / f"h{i}.h").write_text(f'#pragma once\n#include "h{i + 1}.h"\n#include "./h{i + 1}.h"\n')
    (tmp_path / "h30.h").write_text("#define VALUE 1.0f\n")
    assert "0f3F800000" in compile_file(kernel_file(body='#include "h0.h"\n' + KERNEL)).ptx


@pytest.mark.parametrize("name", ["kernel.cu", "kernel.cubin", "compiled.ptx", "log.txt", "manifest.json"])
def test_a_torn_entry_is_built_again(
    kernel_file: Write, store: Cache, compiled: list[str], name: str
) -> None:
    path = kernel_file()
    first = compile_file(path, cache=store)
    assert store.root is not None
    (file,) = store.root.rglob(name)
    file.write_bytes(file.read_bytes()[:-5])
    again = compile_file(path, cache=store)
    assert (again.code, again.ptx, again.resources) == (first.code, first.ptx, first.resources)
    assert len(compiled) == 2
    assert compile_file(path, cache=store) == again
    assert len(compiled) == 2


def test_an_entry_that_lacks_a_file_is_not_taken(kernel_file: Write, store: Cache) -> None:
    """Whole by its own account, and still no build: written by another version, say."""
    path = kernel_file()
    first = compile_file(path, cache=store)
    assert store.root is not None
    (file,) = store.root.rglob("kernel.cubin")
    shutil.rmtree(file.parent)
    store.put(file.parent.name, {"kernel.cubin": b"old"})
    assert compile_file(path, cache=store).code == first.code


def test_a_failed_build_is_not_kept(kernel_file: Write, store: Cache, compiled: list[str]) -> None:
    for body in ("int f( {", KERNEL.replace("matmul", "other").replace("VALUE", "1")):
        path = kernel_file(body=body)
        for _ in range(2):
            with pytest.raises(BuildError):
                compile_file(path, cache=store)
    assert len(compiled) == 4


def test_a_cached_warning_names_the_file_as_it_is_given_now(
    kernel_file: Write, tmp_path: Path, store: Cache, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    path = kernel_file(body=KERNEL.replace("{\n", "{\n    int unused;\n").replace("VALUE", "1"))
    (tmp_path / "sub").mkdir()
    for folder, given in ((".", "mine.cu"), ("sub", "../mine.cu"), (".", str(path))):
        monkeypatch.chdir(tmp_path / folder)
        assert compile_file(given, cache=store).warnings.startswith(f"{given}(")
    assert len(compiled) == 1


def test_an_unusable_cache_compiles_all_the_same(kernel_file: Write, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot use the cache"):
        store = Cache(tmp_path / "file")
    assert compile_file(kernel_file(), cache=store).code == compile_file(kernel_file()).code


@pytest.mark.slow
def test_eight_threads_at_once(kernel_file: Write, ptx_file: Write, tmp_path: Path) -> None:
    kernel, ptx = spec.load(kernel_file()), spec.load(ptx_file())
    work = [(kernel.variant(TILE=tile), arch) for tile in (16, 8) for arch in ("sm_80", "sm_90a")]
    work = [*work, (ptx.variant(), "sm_80")] * 8
    one_by_one = [compile_kernel(v, a, NO_CACHE).code for v, a in work[:5]] * 8
    shared = Cache(tmp_path / "shared")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda job: compile_kernel(*job, NO_CACHE).code, work)) == one_by_one
        assert list(pool.map(lambda job: compile_kernel(*job, shared).code, work)) == one_by_one
    assert len(set(one_by_one)) == 5
