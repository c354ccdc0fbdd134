"""Machine code in depth: scheduling, registers, banks, differences; and code that we did not build."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.errors import BuildError, HarnessError, InspectError, UsageError
from harness.kernels import catalog
from harness.kernels.compiler import Cubin, compile_kernel
from harness.sass import binary, listing, loops, nvdisasm, register_banks
from harness.sass.code import Code
from harness.sass.diff import compare
from harness.sass.instructions import Instruction, disassemble
from harness.support import tools
from harness.support.cache import Cache
from shared import sweeps
from shared.binaries import fatbin
from shared.kernels import BODY
from shared.speed import Stopwatch

ARCHS = ("sm_75", "sm_80", "sm_90a", "sm_100", "sm_120")

Read = Callable[..., Code]


def build(name: str, arch: str, cache: Cache, **params: int) -> Cubin:
    return compile_kernel(catalog.kernel(name).variant(**params), arch, cache)


@pytest.fixture
def read(cache: Cache) -> Read:
    def read(name: str, arch: str, **params: int) -> Code:
        cubin = build(name, arch, cache, **params)
        return Code.of(cubin, disassemble(cubin, cache))

    return read


def harness(*args: str) -> Result:
    """Run `harness sass` without a width: a line with a long temporary path would be broken anywhere."""
    return CliRunner().invoke(main, ["sass", *args], env={"COLUMNS": None})


# Encodings and what they say


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arch"), sweeps.builds(ARCHS, each=2))
def test_encodings_are_those_that_cuobjdump_prints(
    name: str, arch: str, cache: Cache, tmp_path: Path
) -> None:
    cubin = build(name, arch, cache)
    file = tmp_path / "k.cubin"
    file.write_bytes(cubin.code)
    tool = tools.require("cuobjdump")
    text = subprocess.run([tool, "-sass", file], capture_output=True, text=True, check=True).stdout
    words = [int(w, 16) for w in re.findall(r"/\* 0x([0-9a-f]{16}) \*/", text)]
    theirs = [low | high << 64 for low, high in zip(words[::2], words[1::2], strict=True)]
    ours = [i.encoding for i in disassemble(cubin, cache).instructions]
    assert ours == theirs[: len(ours)] and all(ours)


@pytest.mark.parametrize(("name", "arch"), sweeps.builds(ARCHS))
def test_control_fields_agree_with_the_text_and_with_themselves(name: str, arch: str, read: Read) -> None:
    """Reuse flags are printed by nvdisasm too; a barrier that is waited for has been set by something."""
    code = read(name, arch)
    fields = [listing.decode(i.encoding) for i in code.sass.instructions]
    for i, c in zip(code.sass.instructions, fields, strict=True):
        assert len(c.reuse) == i.operands.count(".reuse"), i
    waited = {b for c in fields for b in c.wait}
    barriers_set = {b for c in fields for b in (c.read, c.write) if b is not None}
    assert waited and waited <= barriers_set
    # Of a group that returns in order, the last one may speak for all.
    pairs = list(zip(code.sass.instructions, fields, strict=True))
    for loads in (("LDG",), ("LDS", "LDSM")):
        found = [c for i, c in pairs if any(i.matches(load) for load in loads)]
        assert not found or any(c.write is not None for c in found), f"nothing says when a {loads[0]} is done"


def test_a_control_field_at_a_time() -> None:
    def bits(**fields: int) -> int:
        first = {"stall": 0, "stay": 4, "write": 5, "read": 8, "wait": 11, "reuse": 17}
        return sum(value << 105 + first[name] for name, value in fields.items())

    idle = {"stay": 1, "write": 7, "read": 7}
    assert str(listing.decode(bits(**idle))) == "[B------:R-:W-:-:S00]"
    assert str(listing.decode(bits(**idle | {"stall": 15}))) == "[B------:R-:W-:-:S15]"
    assert str(listing.decode(bits(**idle | {"stay": 0}))) == "[B------:R-:W-:Y:S00]"
    assert str(listing.decode(bits(**idle | {"write": 2, "read": 5}))) == "[B------:R5:W2:-:S00]"
    assert str(listing.decode(bits(**idle | {"wait": 0b100011}))) == "[B01---5:R-:W-:-:S00]"
    assert listing.decode(bits(**idle | {"reuse": 0b0101})).reuse == (0, 2)


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(60), bytes(200)])
def test_sections_of_what_is_no_elf_file(damage: bytes) -> None:
    assert ".text.matmul" not in nvdisasm.sections(damage)
    assert not nvdisasm.is_cubin(damage)


def test_sections_of_a_cut_file(cache: Cache) -> None:
    code = build("tiled", "sm_80", cache).code
    whole = nvdisasm.sections(code)[".text.matmul"]
    assert nvdisasm.is_cubin(code) and len(whole) % 128 == 0
    for size in range(0, len(code), 97):
        assert nvdisasm.sections(code[:size]).get(".text.matmul", b"") in (b"", whole)


# Live registers


@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
def test_live_registers(arch: str, read: Read) -> None:
    code = read("tiled_coarse", arch)
    assert code.sass.peak is not None and code.registers is not None
    assert all(i.live is not None for i in code.sass.instructions)
    assert 16 < (code.sass.peak.live or 0) <= code.registers, "16 sums live through the loop"
    assert min(i.live or 0 for i in code.hot_loop.instructions) > 16  # type: ignore[union-attr]
    fewer = read("tiled_coarse", arch, COARSE=4).sass.peak
    assert fewer is not None and (fewer.live or 0) < (code.sass.peak.live or 0)


def test_an_nvdisasm_that_says_nothing_of_live_registers(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = nvdisasm.ask
    monkeypatch.setattr(nvdisasm, "ask", lambda *args: [real(*args)[0], b""])
    code = disassemble(build("tiled", "sm_80", cache), Cache(None))
    assert code.peak is None and code.count("FFMA")


# Register banks


def ffma(operands: str, opcode: str = "FFMA") -> Instruction:
    return Instruction(address=0, opcode=opcode, operands=operands, predicate="", line=0)


@pytest.mark.parametrize(
    ("operands", "cycles"),
    [
        ("R2,R4,R6,R8", 3),  # three of one bank: measured 3.03
        ("R3,R5,R7,R9", 3),
        ("R2,R4,R7,R8", 2),  # two of one: 2.03
        ("R2,R4,R4,R8", 2),  # one register twice is read once
        ("R2,R4,R4,R7", 1),
        ("R2,R4,c[0x0][0x10],R7", 1),  # constants and uniform registers are elsewhere
        ("R2,R4,UR6,R8", 2),
        ("R2,-R4,|R6|,RZ", 2),
    ],
)
def test_cycles_of_one_ffma_over_and_over(operands: str, cycles: int) -> None:
    found = register_banks.pressure([ffma(operands)] * 1000)
    assert found.cycles == pytest.approx(1000 * cycles, abs=2)


def test_a_reused_operand_is_not_read_again() -> None:
    flagged = register_banks.pressure([ffma("R2,R4.reuse,R6,R7")] * 1000)
    assert (flagged.reused, flagged.even, flagged.odd) == (999, 1001, 1000)
    assert flagged.cycles == pytest.approx(1000, abs=2) and flagged.ffma_per_cycle > 0.99
    unflagged = register_banks.pressure([ffma("R2,R4,R6,R7")] * 1000)
    assert unflagged.reused == 0 and unflagged.cycles == pytest.approx(2000, abs=2)
    other_slot = register_banks.pressure([ffma("R2,R4.reuse,R6,R7"), ffma("R2,R6,R4,R7")] * 500)
    assert other_slot.reused == 0, "the cache is one of operand slots"


def test_other_instructions_take_a_slot_and_no_operands() -> None:
    found = register_banks.pressure([ffma("R2,R4,R5,R6"), ffma("R9,[R1]", "LDS.128")] * 10)
    assert (found.ffma, found.instructions) == (10, 20)
    assert found.ffma_per_cycle == pytest.approx(0.5, abs=0.01)
    assert register_banks.pressure([]).ffma_per_cycle == 0


# Loops of many blocks


def test_loops_of_a_thousand_blocks_take_no_time() -> None:
    """A chain of 2,000 diamonds in a loop: the sets of dominators that one would write down have millions."""
    code = []
    for n in range(2000):
        at = 48 * n
        code += [
            (at, "BRA", f"{at + 32:#x}", "@P0"),
            (at + 16, "FFMA", "R1,R2,R3,R4", ""),
            (at + 32, "FADD", "", ""),
        ]
    code.append((96_000, "BRA", "0x0", "@P1"))
    code.append((96_016, "EXIT", "", ""))
    instructions = [Instruction(address=a, opcode=o, operands=x, predicate=p, line=0) for a, o, x, p in code]
    with Stopwatch() as watch:
        (loop,) = loops.loops(instructions)
    assert watch.seconds < 1
    assert (loop.header, len(loop.instructions)) == (0, 6001)


# Differences


def test_identical_code(read: Read, cache: Cache, tmp_path: Path) -> None:
    a, b = read("tiled", "sm_90"), read("tiled", "sm_90a")
    found = compare(a, b)
    assert found.identical and not found.loop and not found.kernel
    file = tmp_path / "k.cubin"
    file.write_bytes(build("tiled", "sm_90", cache).code)
    (foreign,) = binary.read(file, cache, threads=256)
    assert compare(a, foreign).identical


def test_a_changed_stall_count_is_not_identical(cache: Cache, read: Read, tmp_path: Path) -> None:
    """The text is the same: only the encoding tells that the schedule is another."""
    code = bytearray(build("tiled", "sm_90", cache).code)
    text = nvdisasm.sections(bytes(code))[".text.matmul"]
    code[bytes(code).index(text) + 13] ^= 2  # bit 105: the lowest of the first instruction's stall count
    file = tmp_path / "k.cubin"
    file.write_bytes(code)
    (patched,) = binary.read(file, cache)
    original = read("tiled", "sm_90")
    assert [str(i) for i in patched.sass.instructions] == [str(i) for i in original.sass.instructions]
    found = compare(original, patched)
    assert not found.identical and not found.kernel
    result = harness("tiled", "--arch", "sm_90", "--diff", str(file))
    assert result.exit_code == 0 and "operands, order or scheduling differ" in result.output


def test_what_changed(read: Read) -> None:
    a, b = read("tiled", "sm_80", TILE=16), read("tiled", "sm_80", TILE=32)
    found = compare(a, b)
    assert found.loop["FFMA"] == (16, 32) and found.loop["LDS.128"] == (4, 8)
    assert found.kernel["FFMA"] == (a.sass.count("FFMA"), b.sass.count("FFMA"))
    assert found.figures["shared bytes"] == (2048, 8192)
    assert "BAR.SYNC.DEFER_BLOCKING" not in found.loop, "it did not change"


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("TILE=32", "03_tiled TILE=32, sm_80"),
        ("sm_75", "03_tiled TILE=16, sm_75"),
        ("TILE=8 sm_75", "03_tiled TILE=8, sm_75"),
        ("coalesced", "02_coalesced BX=32 BY=32, sm_80"),
        ("tiled", "identical code"),
    ],
)
def test_diff_on_the_command_line(what: str, text: str) -> None:
    result = harness("tiled", "--arch", "sm_80", "--diff", what)
    assert result.exit_code == 0, result.output
    assert text in result.output
    assert max(map(len, result.output.splitlines())) <= 80


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["0[1-3]*", "--diff", "tiled"], "compares one kernel with another; the command line selects 3"),
        (["tiled", "--diff", ""], "a kernel without a name"),
        (["tiled", "--diff", "naive coalesced"], "does not say one thing"),
        (["tiled", "--diff", "'"], "no closing quotation"),
        (["tiled", "--diff", "nope"], "no kernel 'nope'"),
        (["tiled", "--diff", "T=1"], "no kernel here has a parameter T"),
        (["tiled", "--diff", "sm_12"], "sm_12"),
    ],
)
def test_diffs_that_make_no_sense(args: list[str], text: str) -> None:
    result = harness(*args)
    assert result.exit_code == 2 and text in result.output


def test_diff_as_json(tmp_path: Path) -> None:
    file = tmp_path / "d.json"
    assert harness("tiled", "--diff", "TILE=32", "--json", str(file)).exit_code == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert not row["identical"] and row["loop"]["FFMA"] == [16, 32]
    assert row["a"]["sass_sha256"] != row["b"]["sass_sha256"]


# Listings


@pytest.mark.parametrize(("name", "arch"), sweeps.builds(["sm_90a"]))
def test_a_listing_holds_every_instruction_once(name: str, arch: str, read: Read) -> None:
    code = read(name, arch)
    wanted = sorted(str(i) for i in code.sass.instructions)
    for rows in (listing.by_address(code), listing.by_source(code, width=160)):
        found = [re.search(r"([ *]) ([0-9a-f]{4,5}) {1,6}(@\S+)? *(\S+.*)$", row) for row in rows]
        shown = [f for f in found if f and int(f[2], 16) % 16 == 0 and f[4].split(" ")[0][0].isupper()]
        assert sorted(f"{f[3] or ''} {f[4]}".strip() for f in shown) == wanted
        assert code.hot_loop is not None
        starred = {int(f[2], 16) for f in shown if f[1] == "*"}
        assert starred == code.hot_loop.addresses


def test_source_beside_its_code() -> None:
    args = ["sass", "tiled", "--arch", "sm_80", "--source"]
    result = CliRunner().invoke(main, args, env={"COLUMNS": "80"})
    assert result.exit_code == 0
    lines = result.output.splitlines()
    (at,) = (n for n, row in enumerate(lines) if "sum += " in row)
    mine = list(itertools.takewhile(lambda row: row.startswith(" " * 24), lines[at + 1 :]))
    assert sum(" FFMA " in row for row in mine) == 16, "they lie apart in the code, and side by side here"
    assert "[B" not in result.output, "not asked for"
    assert max(map(len, lines)) <= 80


def test_control_codes_in_the_listing() -> None:
    result = harness("tiled", "--arch", "sm_80", "--listing", "--control")
    assert "undocumented by NVIDIA" in result.output
    assert len(re.findall(r"\[B[0-5-]{6}:R[0-5-]:W[0-5-]:[Y-]:S\d\d\]", result.output)) > 100
    alone = harness("tiled", "--control")
    assert alone.exit_code == 2 and "--listing or --source" in alone.output


def test_colours_on_a_terminal_only() -> None:
    plain = harness("tiled", "--arch", "sm_80", "--source")
    args = ["sass", "tiled", "--arch", "sm_80", "--source"]
    coloured = CliRunner().invoke(main, args, color=True)
    assert "\x1b[" not in CliRunner().invoke(main, args, color=True, env={"NO_COLOR": "1"}).output
    assert "\x1b[" not in plain.output
    assert "\x1b[32mFFMA " in coloured.output and "\x1b[36mLDS" in coloured.output


# Code from elsewhere


@pytest.mark.parametrize("arch", sweeps.archs(ARCHS))
def test_a_cubin_of_ours_read_as_a_foreign_one(arch: str, cache: Cache, read: Read, tmp_path: Path) -> None:
    file = tmp_path / "k.cubin"
    file.write_bytes(build("tiled", arch, cache).code)
    ours, (theirs,) = read("tiled", arch), binary.read(file, cache, threads=256)
    for name in ("arch", "registers", "shared", "stack", "occupancy", "sass", "file"):
        wanted = getattr(ours, name)
        if name == "sass":
            assert theirs.sass == wanted
        else:
            assert getattr(theirs, name) == wanted, name
    assert theirs.spills is None and ours.spills == 0
    assert theirs.line(41) == ours.line(41) != ""


def test_a_library_is_listed_and_shown_for_one_architecture(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "k.fatbin"
    file.write_bytes(
        fatbin((75, build("tiled", "sm_75", cache).code), (90, build("copy", "sm_90", cache).code))
    )
    tiled, copied = binary.listed(file)
    assert (tiled.name, tiled.arch, tiled.shared) == ("matmul", "sm_75", 2048)
    assert (copied.name, copied.arch, copied.shared) == ("copy", "sm_90", 0), (
        "the system's share is not its own"
    )
    assert tiled.registers == build("tiled", "sm_75", cache).resources.registers
    listed = harness(str(file), "--list")
    assert [line.split()[:2] for line in listed.output.splitlines()[2:]] == [
        ["matmul", "sm_75"],
        ["copy", "sm_90"],
    ]
    assert "copy" not in harness(str(file), "--list", "--arch", "sm_75").output
    shown = harness(str(file))
    assert "copy, sm_90" in shown.output and "matmul, sm_75" not in shown.output
    assert "k.fatbin: code for sm_90; --arch shows sm_75" in shown.stderr
    assert "matmul, sm_75" in harness(str(file), "--arch", "sm_75").output
    for args in (
        ["tiled", "--list"],
        [str(file), "--list", "-f", "nope"],
        [str(tmp_path / "no.so"), "--list"],
    ):
        refused = harness(*args)
        assert refused.exit_code != 0 and "Traceback" not in refused.output, args


@pytest.mark.parametrize("missing", [(), ("cxxfilt",)])
def test_names_are_demangled_by_whatever_is_there(
    missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    if "cxxfilt" in missing and tools.find("c++filt") is None:
        pytest.skip("c++filt is not installed")
    if not missing:
        pytest.importorskip("cxxfilt")
    names = ["_Z3fooIfLi16EEvPT_", "matmul", "_Zbad"]
    assert binary.demangled(names) == {
        names[0]: "void foo<float, 16>(float*)",
        "matmul": "matmul",
        "_Zbad": "_Zbad",
    }
    monkeypatch.setitem(sys.modules, "cxxfilt", None)
    monkeypatch.setattr(tools, "find", lambda name: None)
    assert binary.demangled(names) == {name: name for name in names}, "without either they stay as they are"


def test_several_functions_and_architectures(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "k.fatbin"
    file.write_bytes(
        fatbin((75, build("tiled", "sm_75", cache).code), (90, build("copy", "sm_90", cache).code))
    )
    found = binary.read(file, cache)
    assert [(c.arch, c.sass.function) for c in found] == [("sm_75", "matmul"), ("sm_90", "copy")]
    (one,) = binary.read(file, cache, archs=("sm_90",))
    assert one.sass.function == "copy" and one.occupancy is None
    with pytest.raises(UsageError, match=r"no code for sm_80\n  -> it has sm_75, sm_90"):
        binary.read(file, cache, archs=("sm_80",))
    with pytest.raises(UsageError, match=r"no function 'x'\n  -> functions: matmul, copy"):
        binary.read(file, cache, function="x")
    (one,) = binary.read(file, cache, function="*op*")
    assert one.sass.function == "copy"
    compared = harness("tiled", "--arch", "sm_75", "--diff", str(file))
    assert compared.exit_code == 0 and "identical code" in compared.output, "the one for that architecture"
    result = harness(str(file), "-f", "matmul", "--diff", "sm_90")
    assert result.exit_code == 2 and "no function 'matmul'" in result.output


@pytest.mark.slow
def test_identical_code_is_noise_only_where_all_else_is_equal(
    cache: Cache, tmp_path: Path, kernel_file: Any
) -> None:
    """Another number of threads, or another function called, makes another speed of the same code."""
    one = kernel_file("k.cu", body=BODY.replace("TILE", "16"))
    other = kernel_file("other.cu", body=BODY.replace("TILE", "16"))
    other.write_text(other.read_text().replace('block = ["TILE", "TILE"]', 'block = ["TILE", "8"]'))
    same = harness(str(one), "--diff", "TILE=16")
    assert "would be noise" in same.output
    result = harness(str(one), "--diff", str(other))
    assert "identical code" in result.output and "noise" not in result.output
    assert "threads a block" in result.output and "128" in result.output
    texts = [DEVICE_FUNCTION, DEVICE_FUNCTION.replace("mul.f32 %f2, %f1, %f1;", "add.f32 %f2, %f1, %f1;")]
    files = [tmp_path / "a.ptx", tmp_path / "b.ptx"]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    called = harness(str(files[0]), "-f", "k", "--diff", str(files[1]))
    assert "identical code" in called.output and "noise" not in called.output, called.output


def test_dynamic_shared_memory_of_foreign_code_is_what_one_says(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "k.cubin"
    file.write_bytes(build("tiled", "sm_90", cache).code)
    assert "2048 B static shared" in harness(str(file)).output
    result = harness(str(file), "--threads", "256", "--shared", "100000")
    assert "102048 B shared" in result.output and "occupancy 25%: 2 blocks" in result.output


def test_a_bare_word_is_a_kernel_whatever_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiled").write_text("hi")
    assert harness("tiled").exit_code == 0
    assert "no device code in it" in harness("./tiled").output
    assert harness("a" * 300).exit_code == 2


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to make a library")
def test_a_library_with_embedded_cubins(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "x.fatbin").write_bytes(fatbin((80, build("tiled", "sm_80", cache).code)))
    (tmp_path / "m.s").write_text(
        '.section .nv_fatbin,"a"\n.align 8\nfb: .incbin "x.fatbin"\n'
        '.section .nvFatBinSegment,"aw"\n.align 8\n'
        '.long 0x466243b1\n.long 1\n.quad fb\n.quad 0\n.section .note.GNU-stack,"",@progbits\n'
    )
    subprocess.run(["gcc", "-shared", "-o", "libx.so", "m.s"], cwd=tmp_path, check=True)
    (code,) = binary.read(tmp_path / "libx.so", cache)
    assert code.arch == "sm_80" and code.sass.count("LDS.128") == 4
    result = harness(str(tmp_path / "libx.so"), "-e", "LDS.128 in loop", "-e", "spills == 0")
    assert result.exit_code == 1
    assert "holds   LDS.128 in loop: 4" in result.output
    assert "FAILED  spills == 0: a cubin does not say" in result.output


@pytest.mark.slow
def test_ptx_without_metadata(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "k.ptx"
    file.write_text(build("tiled", "sm_75", cache).ptx)
    (code,) = binary.read(file, cache)
    assert code.arch == "sm_75" and code.sass.count("FFMA") == 17
    assert [c.arch for c in binary.read(file, cache, archs=("sm_80", "sm_90"))] == ["sm_80", "sm_90"]
    file.write_text(file.read_text().replace("fma.rn.f32", "fma.rn.f33"))
    with pytest.raises(BuildError, match=r"k.ptx does not assemble for sm_75"):
        binary.read(file, cache)
    file.write_text("hello")
    with pytest.raises(UsageError, match=r"no \.target line: not PTX"):
        binary.read(file, cache)
    file.write_text(".version 7.0\n.target sm_52\n.address_size 64\n")
    with pytest.raises(UsageError, match=r"(?s)k\.ptx: nvJitLink .* does not assemble for sm_52 .*--arch"):
        binary.read(file, cache)


DEVICE_FUNCTION = """\
.version 7.0
.target sm_80
.address_size 64
.func (.param .f32 r) f(.param .f32 a)
{
    .reg .f32 %f<3>;
    ld.param.f32 %f1, [a];
    mul.f32 %f2, %f1, %f1;
    st.param.f32 [r], %f2;
    ret;
}
.visible .entry k(.param .u64 p)
{
    .reg .u64 %p;
    .reg .f32 %f<3>;
    ld.param.u64 %p, [p];
    ld.global.f32 %f1, [%p];
    {
        .param .f32 x;
        .param .f32 y;
        st.param.f32 [x], %f1;
        call (y), f, (x);
        ld.param.f32 %f2, [y];
    }
    st.global.f32 [%p], %f2;
    ret;
}
"""


def test_a_device_function_has_no_resources(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "k.ptx"
    file.write_text(DEVICE_FUNCTION)
    by_name = {c.sass.function: c for c in binary.read(file, cache, threads=32)}
    assert by_name["f"].registers is None and by_name["f"].occupancy is None
    assert by_name["k"].registers and by_name["k"].occupancy
    result = harness(str(file), "-f", "f", "-e", "registers <= 10")
    assert result.exit_code == 1 and "a device function" in result.output


@pytest.mark.parametrize(
    ("name", "content", "error", "text"),
    [
        ("a.cubin", b"hello\n", InspectError, "not a cubin: no CUDA ELF header"),
        ("a.cubin", b"", InspectError, "not a cubin"),
        ("a.so", b"\x7fELF\x02\x01\x01" + bytes(57), UsageError, "no device code in it"),
        ("a.txt", b"hello\n", UsageError, "no device code in it"),
        ("a.cubin", None, UsageError, "no such file"),
    ],
)
def test_files_without_code(
    tmp_path: Path, cache: Cache, name: str, content: bytes | None, error: type[HarnessError], text: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(error, match=text) as e:
        binary.read(file, cache)
    assert str(file) in str(e.value)
    result = harness(str(file))
    assert result.exit_code == e.value.exit_code and text in " ".join(result.output.split())


def test_a_truncated_cubin(tmp_path: Path, cache: Cache) -> None:
    whole = build("tiled", "sm_80", cache).code
    file = tmp_path / "k.cubin"
    for size in (64, 1000, len(whole) // 2, len(whole) - 100):
        file.write_bytes(whole[:size])
        with pytest.raises(InspectError, match=r"k\.cubin: nvdisasm refuses the cubin: .*\w"):
            binary.read(file, cache)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["{cubin}", "tiled"], "goes without other kernels"),
        (["{cubin}", "-p", "TILE=8"], "has no parameters"),
        (["tiled", "--threads", "32"], "for code that harness did not build"),
        (["tiled", "-f", "matmul"], "for code that harness did not build"),
        (["tiled", "-f", "matmul", "--diff", "TILE=8"], "for code that harness did not build"),
        (["tiled", "--diff", "TILE=8", "-e", "no LDL"], "no --expect, --source, --listing or --html with it"),
        (["{cubin}", "--diff", "sm_90"], "no code for sm_90"),
        (["{cubin}", "--arch", "sm_90"], "no code for sm_90"),
    ],
)
def test_options_that_do_not_go_together(args: list[str], text: str, tmp_path: Path, cache: Cache) -> None:
    file = tmp_path / "k.cubin"
    file.write_bytes(build("tiled", "sm_80", cache).code)
    result = harness(*(a.format(cubin=file) for a in args))
    assert result.exit_code == 2 and text in " ".join(result.output.split()), result.output


# What it costs


def test_a_second_inspection_starts_no_nvdisasm(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cubin = build("tiled_coarse", "sm_90a", cache)
    store = Cache(tmp_path)
    first = disassemble(cubin, store)
    monkeypatch.setattr(nvdisasm, "ask", None)
    assert disassemble(cubin, store) == first
    with pytest.raises(TypeError):
        disassemble(replace(cubin, code=cubin.code + b"\0"), store)


def test_inspecting_a_cached_cubin_takes_less_than_150_ms(cache: Cache) -> None:
    """The largest loop there is among the shipped kernels, all that ``harness sass`` prints of it."""
    cubin = build("tiled_coarse", "sm_100", cache)
    disassemble(cubin, cache)
    times = []
    for _ in range(3):
        with Stopwatch() as watch:
            code = Code.of(cubin, disassemble(cubin, cache))
            assert code.hot_loop and code.banks and code.sass.sha256
        times.append(watch.seconds)
    assert min(times) < 0.15
