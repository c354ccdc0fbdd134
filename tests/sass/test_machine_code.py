"""Machine code in depth: encodings, scheduling, registers, banks, and what reading it costs."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from harness.sass import listing, loops, nvdisasm, register_banks
from harness.sass.code import Code
from harness.sass.instructions import Instruction, disassemble
from harness.support import tools
from harness.support.cache import Cache
from shared import sweeps
from shared.inspected import ARCHS, Read, build, read  # noqa: F401  (fixture)
from shared.speed import Stopwatch

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


@pytest.mark.parametrize(("name", "arch"), sweeps.builds(ARCHS, each=2))
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
