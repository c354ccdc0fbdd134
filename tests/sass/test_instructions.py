"""Reading machine code: what counts as what, that nothing is missed, and where it comes from."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import InspectError, MissingDependency
from harness.kernels import catalog, spec
from harness.kernels.compiler import Cubin, compile_kernel
from harness.kernels.expectation import parse
from harness.sass import nvdisasm
from harness.sass.code import Code
from harness.sass.contract import check
from harness.sass.instructions import Instruction, Sass, disassemble, disassemble_all
from harness.support import tools
from harness.support.cache import Cache
from shared import sweeps
from shared.kernels import BODY

ARCHS = ("sm_75", "sm_80", "sm_90a", "sm_100", "sm_120")
NO_CACHE = Cache(None)

Read = Callable[..., tuple[Cubin, Sass]]


def instruction(opcode: str) -> Instruction:
    return Instruction(address=0, opcode=opcode, operands="", predicate="", line=0)


@pytest.fixture
def read(cache: Cache) -> Read:
    """The build and the instructions of a shipped kernel, by name."""

    def read(name: str, arch: str, **params: int) -> tuple[Cubin, Sass]:
        (kernel,) = catalog.find(name)
        cubin = compile_kernel(kernel.variant(**params), arch, cache)
        return cubin, disassemble(cubin, cache)

    return read


# What counts as what


@pytest.mark.parametrize(
    ("pattern", "opcode", "expected"),
    [
        ("LDS", "LDS", True),
        ("LDS", "LDS.U", True),
        ("LDS", "LDS.U.128", True),
        ("LDS", "LDSM.16.M88.4", False),
        ("LDS", "LD", False),
        ("LDS", "ULDS", False),
        ("LDSM", "LDS", False),
        ("LDS.128", "LDS.128", True),
        ("LDS.128", "LDS.U.128", True),
        ("LDS.128", "LDS", False),
        ("LDS.128", "LDS.64", False),
        ("LDS.128", "LDS.U.1280", False),
        ("LDS.128", "LDSM.16.M88.128", False),
        ("LDS.128", "STS.128", False),
        ("LDS.12", "LDS.128", False),
        ("LDS.U.128", "LDS.128", False),
        ("LDS.U.128", "LDS.U.128", True),
        ("LDS.128.U", "LDS.U.128", False),
        ("LDS.128.128", "LDS.128", False),
        ("LDG.128", "LDG.E.128.CONSTANT.SYS", True),
        ("LDG.E.CONSTANT", "LDG.E.128.CONSTANT.SYS", True),
        ("LDG.CONSTANT.E", "LDG.E.128.CONSTANT.SYS", False),
        ("LDG.SYS", "LDG.E.128.CONSTANT.SYS", True),
        ("LDG.128", "LDG.E.LTC128B", False),
        ("BAR.SYNC", "BAR.SYNC.DEFER_BLOCKING", True),
        ("BAR", "BAR.SYNC.DEFER_BLOCKING", True),
        ("HGMMA", "HGMMA.64x128x16.F32.BF16", True),
        ("HGMMA.64x128x16", "HGMMA.64x128x16.F32.BF16", True),
        ("HGMMA.F32", "HGMMA.64x128x16.F32.BF16", True),
        ("HGMMA.64x128x16.F32.BF16", "HGMMA.64x128x16.F32.BF16", True),
        ("HGMMA.64x128", "HGMMA.64x128x16.F32.BF16", False),
        ("HGMMA.F16", "HGMMA.64x128x16.F32.BF16", False),
        ("lds", "LDS", False),
        ("", "LDS", False),
        ("LDS.", "LDS", False),
    ],
)
def test_matching_by_components(pattern: str, opcode: str, expected: bool) -> None:
    assert instruction(opcode).matches(pattern) is expected


@pytest.mark.parametrize(
    ("opcode", "bits"),
    [
        ("LDS", 32),
        ("LDS.U", 32),
        ("LDS.64", 64),
        ("LDS.U.128", 128),
        ("STS.128", 128),
        ("LDG.E", 32),
        ("LDG.E.SYS", 32),
        ("LDG.E.64.CONSTANT", 64),
        ("LDG.E.128.CONSTANT.SYS", 128),
        ("LDG.E.ENL2.256", 256),
        ("LDG.E.U8", 8),
        ("LDG.E.S8.CONSTANT", 8),
        ("LDS.U16", 16),
        ("STG.E.U16.SYS", 16),
        ("LDG.E.LTC128B", 32),
        ("LDGSTS.E.BYPASS.LTC128B.128", 128),
    ],
)
def test_width(opcode: str, bits: int) -> None:
    assert instruction(opcode).width == bits


def test_an_instruction_reads_as_nvdisasm_writes_it() -> None:
    code = Instruction(address=16, opcode="BRA", operands="0xce0", predicate="@!P0", line=3)
    assert str(code) == "@!P0 BRA 0xce0"
    assert str(instruction("EXIT")) == "EXIT"


# The published observation: tiles of floats are read four at a time without anybody asking


@pytest.mark.parametrize(
    ("arch", "shared_loads"),
    [
        ("sm_75", {"LDS.U": 16, "LDS.U.128": 4}),
        ("sm_80", {"LDS": 16, "LDS.128": 4}),
        ("sm_90a", {"LDS": 16, "LDS.128": 4}),
    ],
)
def test_the_compiler_vectorises_the_tiled_kernel(
    read: Read, arch: str, shared_loads: dict[str, int]
) -> None:
    _, code = read("03_tiled", arch, TILE=16)
    assert {opcode: n for opcode, n in code.mix.items() if opcode.startswith("LDS")} == shared_loads
    assert code.count("LDS.128") == 4
    assert code.count("LDS") == 20
    assert code.vectorized_shared_loads


@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
def test_the_hand_written_kernel_reads_128_bits_only(read: Read, arch: str) -> None:
    _, code = read("08_tiled_v4", arch)
    assert code.count("LDS.128") > 0
    assert {i.width for i in code.select("LDS")} == {128}
    assert code.vectorized_shared_loads


@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
@pytest.mark.parametrize("kernel", ["01_*", "02_*"])
def test_kernels_without_tiles_read_no_shared_memory(read: Read, kernel: str, arch: str) -> None:
    """The control: the check that the others pass can fail."""
    _, code = read(kernel, arch)
    assert code.count("LDS") == code.count("LDS.128") == 0
    assert code.count("FFMA") > 0
    assert not code.vectorized_shared_loads


@pytest.mark.parametrize(
    ("type_", "arch", "bits"),
    sweeps.sweep(
        [
            ("unsigned char", "sm_80", 8),
            ("signed char", "sm_75", 8),
            ("short", "sm_90a", 16),
            ("float", "sm_75", 32),
            ("float2", "sm_90a", 64),
            ("float4", "sm_75", 128),
            ("float4", "sm_120", 128),
            ("Wide", "sm_90a", 128),
            ("Wide", "sm_100", 256),
        ],
        lambda type_, arch, bits: (type_, arch) in {("signed char", "sm_75"), ("Wide", "sm_100")},
    ),
)
def test_widths_of_what_compilers_emit(kernel_file: Any, type_: str, arch: str, bits: int) -> None:
    body = (
        "struct alignas(32) Wide { float a[8]; };\n"
        f'extern "C" __global__ void matmul(const {type_}* a, {type_}* c)\n'
        "{ c[threadIdx.x] = a[threadIdx.x]; }\n"
    )
    cubin = compile_kernel(spec.load(kernel_file(body=body)).variant(), arch, NO_CACHE)
    code = disassemble(cubin, NO_CACHE)
    assert {i.width for i in [*code.select("LDG"), *code.select("STG")]} == {bits}


# Nothing is missed: a second reader finds the same


TEXT = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arch"), sweeps.builds(["sm_75", "sm_90a", "sm_120"], each=2))
def test_the_same_as_cuobjdump_prints(read: Read, tmp_path: Path, name: str, arch: str) -> None:
    cubin, code = read(name, arch)
    file = tmp_path / "kernel.cubin"
    file.write_bytes(cubin.code)
    tool = tools.require("cuobjdump")
    text = subprocess.run([tool, "-sass", file], capture_output=True, text=True, check=True).stdout
    theirs = [(int(at, 16), predicate, opcode) for at, predicate, opcode, _ in TEXT.findall(text)]
    assert len(theirs) == text.count(";")
    while theirs[-1][2] == "NOP":
        theirs.pop()
    assert [(i.address, i.predicate, i.opcode) for i in code.instructions] == theirs
    assert code.code_bytes == theirs[-1][0] + 16
    listed = [s.replace(" ", "") for _, _, _, s in TEXT.findall(text)][: len(theirs)]
    for i, theirs_here in zip(code.instructions, listed, strict=True):
        ours = i.operands.replace(" ", "")
        unnamed = re.sub(r",?(\$\S+|matmul)$", "", ours)  # in place of a name cuobjdump has an address
        assert unnamed == (theirs_here if unnamed == ours else re.sub(r"0x\w+$", "", theirs_here)), str(i)


def test_one_kernel_of_several(kernel_file: Any) -> None:
    one = 'extern "C" __global__ void matmul(float* c) { *c = sqrtf(*c); }\n'
    two = 'extern "C" __global__ void other(float* c) { *c = __sinf(*c); }\n'
    cubin = compile_kernel(spec.load(kernel_file(body=one + two)).variant(), "sm_80", NO_CACHE)
    code = disassemble(cubin, NO_CACHE)
    assert (code.function, code.arch, code.count("MUFU.SIN")) == ("matmul", "sm_80", 0)
    other = disassemble_all(cubin.code, NO_CACHE, where="here")["other"]
    assert (other.function, other.count("MUFU.SIN")) == ("other", 1)


# Where an instruction comes from


@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("LDS", {"sum += As[ty][k] * Bs[k][tx]"}),
        ("STS", {"As[ty][tx] =", "Bs[ty][tx] ="}),
        ("BAR", {"__syncthreads()"}),
        ("STG", {"*c = beta == 0"}),
    ],
)
def test_lines_point_at_the_source(read: Read, pattern: str, texts: set[str], arch: str) -> None:
    cubin, code = read("03_tiled", arch)
    lines = cubin.variant.kernel.source.splitlines()
    found = {lines[i.line - 1] for i in code.select(pattern)}
    assert found
    assert all(any(text in line for text in texts) for line in found), found
    assert all(any(text in line for line in found) for text in texts), found


def test_every_instruction_has_a_line_of_the_file(read: Read) -> None:
    cubin, code = read("03_tiled", "sm_90a")
    lines = cubin.variant.kernel.source.splitlines()
    first = next(n for n, line in enumerate(lines, 1) if "__global__" in line)
    assert {i.line for i in code.instructions} <= set(range(first, len(lines) + 1))


def test_ptx_has_no_lines(read: Read) -> None:
    """It would need .loc directives of its own."""
    _, code = read("08_tiled_v4", "sm_90a")
    assert {i.line for i in code.instructions} == {0}


@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
def test_code_from_a_header_has_no_line(kernel_file: Any, tmp_path: Path, arch: str) -> None:
    """Its line counts in another file: shown as one of the kernel's it would be a wrong one."""
    (tmp_path / "e.h").write_text("\n" * 6 + "__device__ inline float e(float x) { return __expf(x); }\n")
    body = (
        '#include "e.h"\n'
        'extern "C" __global__ void matmul(float* c) {\n'
        "    float x = c[threadIdx.x];\n"
        "    c[threadIdx.x] = e(x) / 3.0f;\n}\n"
    )
    path = kernel_file(body=body)
    cubin = compile_kernel(spec.load(path).variant(), arch, NO_CACHE)
    code = disassemble(cubin, NO_CACHE)
    lines = path.read_text().splitlines()
    assert {i.line for i in code.select("MUFU.EX2")} == {0}
    assert {lines[i.line - 1] for i in code.select("LDG")} == {"    float x = c[threadIdx.x];"}
    assert {lines[i.line - 1] for i in code.select("STG")} == {"    c[threadIdx.x] = e(x) / 3.0f;"}


# The tool behind it


@pytest.fixture
def cubin(read: Read) -> Cubin:
    return read("02_*", "sm_80")[0]


def entries(store: Cache) -> list[Path]:
    assert store.root is not None
    return [p for p in store.root.rglob("*") if p.is_file() and p.name != "CACHEDIR.TAG"]


def test_the_second_time_starts_nothing(
    cubin: Cubin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = disassemble(cubin, Cache(tmp_path))

    def forbidden(*_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("nvdisasm was started")

    monkeypatch.setattr(subprocess, "Popen", forbidden)
    assert disassemble(cubin, Cache(tmp_path)) == first
    with pytest.raises(AssertionError, match="started"):
        disassemble(cubin, NO_CACHE)


def test_without_live_registers_one_answer_is_asked_for_and_a_whole_one_serves(
    cubin: Cubin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ask = [], nvdisasm.ask
    monkeypatch.setattr(nvdisasm, "ask", lambda *args: asked.append(len(args[1])) or ask(*args))
    fewer, whole = disassemble(cubin, Cache(tmp_path / "a"), live=False), disassemble(cubin, Cache(tmp_path))
    assert asked == [1, 2] and fewer.tally == whole.tally
    assert fewer.peak is None and whole.peak is not None
    assert disassemble(cubin, Cache(tmp_path), live=False) == fewer and asked == [1, 2]


def test_a_torn_answer_is_asked_for_again(cubin: Cubin, tmp_path: Path) -> None:
    first = disassemble(cubin, Cache(tmp_path))
    (answer,) = tmp_path.rglob("sass.json")
    answer.write_bytes(answer.read_bytes()[:-100])
    assert disassemble(cubin, Cache(tmp_path)) == first
    assert len(answer.read_bytes()) > 100


@pytest.mark.parametrize(
    "damage",
    [
        lambda code: b"",
        lambda code: b"\n",
        lambda code: b"#!/bin/sh\necho no cubin\n",
        lambda code: code[:64],
        lambda code: code[: len(code) // 2],
        lambda code: code[:-100],
        lambda code: code[:64] + bytes(len(code) - 64),
    ],
    ids=["empty", "newline", "text", "header-only", "half", "end-cut", "zeroed"],
)
def test_what_is_not_a_cubin(cubin: Cubin, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    store = Cache(tmp_path)
    with pytest.raises(InspectError, match=r"^my kernel: nvdisasm refuses the cubin: .*\w") as e:
        disassemble_all(damage(cubin.code), store, where="my kernel")
    assert "harness-" not in str(e.value), "names a temporary file"
    assert entries(store) == []


def test_a_function_that_is_not_there(cubin: Cubin) -> None:
    with pytest.raises(InspectError, match=r": no function 'nope' in the cubin \(functions: matmul\)"):
        disassemble(replace(cubin, entry="nope"), NO_CACHE)


def test_no_nvdisasm(cubin: Cubin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "find", lambda _name: None)
    with pytest.raises(MissingDependency, match="nvdisasm is not installed\n.*pip install 'nvidia-cuda-nv"):
        disassemble(cubin, NO_CACHE)


def test_a_tool_that_no_package_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "find", lambda _name: None)
    with pytest.raises(MissingDependency, match="ncu is not installed\n.*put ncu on the PATH"):
        tools.require("ncu")


def test_a_tool_is_found_on_the_path_where_no_wheel_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / ("nvdisasm.exe" if sys.platform == "win32" else "nvdisasm")
    tool.write_text("")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)  # what makes its import fail
    tools.find.cache_clear()
    try:
        assert tools.find("nvdisasm") == tool
        assert tools.find("cuobjdump") is None
    finally:
        tools.find.cache_clear()


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")
@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("exec sleep 60", r"nvdisasm gave no answer within 0\.3 s"),
        ("kill -SEGV $$", r"nvdisasm refuses the cubin: it ends with -11 and says nothing"),
        ("echo 'out of luck' >&2; exit 3", r"nvdisasm refuses the cubin: out of luck"),
        ("echo not json", r"nvdisasm's answer cannot be read"),
        ("echo '[{}]'", r"nvdisasm's answer cannot be read"),
        ("echo '[{}, [{\"function-name\": 1}]]'", r"nvdisasm's answer cannot be read"),
        ("echo '[{}, []]'", r"no function 'matmul' in the cubin \(functions: none\)"),
        ("", r"nvdisasm's answer cannot be read"),
        (None, r"nvdisasm cannot be run: .*Permission denied"),
    ],
    ids=["hangs", "crashes", "fails", "text", "short", "other", "nothing-in-it", "silent", "no-program"],
)
def test_an_nvdisasm_that_misbehaves(
    cubin: Cubin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, text: str
) -> None:
    tool = tmp_path / "nvdisasm"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755 if script is not None else 0o644)
    monkeypatch.setattr(tools, "find", lambda _name: tool)
    monkeypatch.setattr(nvdisasm, "PER_MB", 0)
    monkeypatch.setattr(nvdisasm, "TIMEOUT", 0.3 if script == "exec sleep 60" else 60)
    store = Cache(tmp_path / "cache")
    with pytest.raises(InspectError, match=rf"^{re.escape(cubin.variant.label)}: {text}"):
        disassemble(cubin, store)
    assert "cannot be read" not in text or entries(store) == []


def test_another_nvdisasm_is_asked_again(
    cubin: Cubin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of one version say nothing about the next."""
    disassemble(cubin, Cache(tmp_path / "cache"))
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\necho newer >&2; exit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(tools, "find", lambda _name: tool)
    with pytest.raises(InspectError, match=r"newer|cannot be run"):
        disassemble(cubin, Cache(tmp_path / "cache"))


@pytest.mark.parametrize(
    "folder",
    sweeps.sweep(["jürgen", "日本", "back\\slash", 'quo"te', "new\nline"], lambda f: f == "back\\slash"),
)
def test_any_folder_name(tmp_path: Path, kernel_file: Any, folder: str) -> None:
    """nvdisasm writes the folder into its answer, in its own way of escaping."""
    path = tmp_path / folder / "k.cu"
    path.parent.mkdir()
    path.write_text(kernel_file().read_text())
    code = disassemble(compile_kernel(spec.load(path).variant(), "sm_80", NO_CACHE), NO_CACHE)
    assert 17 in {i.line for i in code.select("FFMA")}  # the loop


def test_the_hash_of_the_code_ignores_where_its_source_lay(tmp_path: Path, kernel_file: Any) -> None:
    first = kernel_file()
    moved = tmp_path / "elsewhere" / "other.cu"
    moved.parent.mkdir()
    moved.write_text(first.read_text().replace("// A kernel", "// A kernel\n// one line further down"))
    changed = kernel_file("changed.cu", body=BODY.replace("sum += A", "sum -= A"))

    @functools.cache
    def both(path: Path) -> tuple[str, str]:
        cubin = compile_kernel(spec.load(path).variant(), "sm_80", NO_CACHE)
        return cubin.sha256, disassemble(cubin, NO_CACHE).sha256

    assert both(first)[0] != both(moved)[0]
    assert both(first)[1] == both(moved)[1]
    assert both(first)[1] != both(changed)[1]


def test_an_nvdisasm_without_lines(kernel_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 13.4 its answer has none (seen with 13.0, 13.2 and 13.3): counts hold, lines are unknown."""
    cubin = compile_kernel(spec.load(kernel_file()).variant(), "sm_80", NO_CACHE)
    told = disassemble(cubin, NO_CACHE)
    real = nvdisasm.ask
    strip = re.compile(rb',"source-(file-id|line)":\d+')
    monkeypatch.setattr(nvdisasm, "ask", lambda *args: [strip.sub(b"", answer) for answer in real(*args)])
    silent = disassemble(cubin, NO_CACHE)
    assert told.has_lines and not silent.has_lines
    assert silent.mix == told.mix and silent.sha256 == told.sha256
    (finding,) = check([parse("FFMA in loop at 17")], Code.of(cubin, silent))
    assert not finding.holds and "no source lines" in finding.note
