"""Compiling without a GPU: what comes out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.kernels import catalog, spec
from harness.kernels.arch import Arch
from harness.kernels.compiler import Cubin, compile_kernel
from harness.sass.instructions import disassemble
from harness.support import tools
from harness.support.cache import Cache
from shared import sweeps
from shared.compiling import ARCHS, INDEXED, KERNEL, NO_CACHE, Write, compile_file, line_of, refusal
from shared.kernels import parameter_sets


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
