"""A cubin -> `Sass`: its machine instructions, countable by what they are, through nvdisasm."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.errors import InspectError
from harness.kernels.compiler import Cubin
from harness.sass import nvdisasm
from harness.support.cache import Cache
from harness.support.cache import default as default_cache

INSTRUCTION_BYTES = 16  # from Volta on
# nvdisasm writes the bytes of a non-ASCII file name as octal escapes, which JSON does not know.
_ESCAPE = re.compile(rb"\\(?:([0-7]{3})|.)", re.DOTALL)
# One for the instructions with their lines, one for how many registers hold something still needed.
_VIEWS = {"sass.json": ("-json", "-g"), "live.txt": ("-c", "-plr", "-lrm", "count")}
_NOT_LIVE = {"sass.json": _VIEWS["sass.json"]}
_SECTION = re.compile(r"\.text\.(\S+):")
_LIVE_ROW = re.compile(r"\s+/\*([0-9a-f]+)\*/.*?;?\s*// \|\s*(\d*)\s*\|")
_WIDTHS = ("256", "128", "64")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """`address` counts bytes from the start of the kernel; `line` is 1-based in the file that the kernel's
    function stands in, 0 where that is unknown or another file (a function from a header). nvdisasm tells
    lines from 13.4 on. `live` counts the general registers in use there, None where nvdisasm does not say;
    `encoding` is the instruction's 16 bytes as a little-endian integer, 0 where they are not known.
    """

    address: int
    opcode: str
    operands: str
    predicate: str
    line: int
    live: int | None = None
    encoding: int = 0

    def matches(self, pattern: str) -> bool:
        """By dotted components, in order: ``LDS.128`` matches ``LDS.U.128``, not ``LDSM``, not ``LDS.64``."""
        return matches(self.opcode, pattern)

    @property
    def width(self) -> int:
        """Bits a thread of a memory instruction moves, as its modifiers say; 32 where they say nothing."""
        parts = self.opcode.split(".")
        for part in parts[1:]:
            if part in _WIDTHS:
                return int(part)
            if part in ("U8", "S8"):
                return 8
            if part in ("U16", "S16"):
                return 16
        return 32

    def __str__(self) -> str:
        return f"{self.predicate} {self.opcode} {self.operands}".strip()


@functools.cache
def matches(opcode: str, pattern: str) -> bool:
    """See `Instruction.matches`. Code has thousands of instructions and some tens of opcodes."""
    base, *modifiers = opcode.split(".")
    wanted_base, *wanted = pattern.split(".")
    rest = iter(modifiers)
    return base == wanted_base and all(part in rest for part in wanted)


def _count(mix: Counter[str], pattern: str) -> int:
    return sum(count for opcode, count in mix.items() if matches(opcode, pattern))


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What remains of a `Sass` where its instructions are not at hand; the names are its."""

    mix: Counter[str]
    code_bytes: int
    sha256: str

    def count(self, pattern: str) -> int:
        return _count(self.mix, pattern)

    @property
    def tensor_instructions(self) -> int:
        """Of any kind of MMA: HMMA, IMMA, DMMA, HGMMA and so on."""
        return sum(n for opcode, n in self.mix.items() if opcode.split(".", 1)[0].endswith("MMA"))


@dataclass(frozen=True, kw_only=True)
class Sass:
    """The instructions of one kernel, in address order, padding NOPs at the end left out.

    `file` is its source as the cubin's line table names it, `compiler` the assembler as the cubin does;
    both empty where it does not.
    """

    function: str
    arch: str
    instructions: tuple[Instruction, ...]
    file: str = ""
    compiler: str = ""

    def select(self, pattern: str) -> Iterator[Instruction]:
        return (i for i in self.instructions if i.matches(pattern))

    def count(self, pattern: str) -> int:
        return _count(self.mix, pattern)

    @property
    def has_lines(self) -> bool:
        return any(i.line for i in self.instructions)

    @cached_property
    def mix(self) -> Counter[str]:
        """How often each full opcode stands in the code."""
        return Counter(i.opcode for i in self.instructions)

    @cached_property
    def sha256(self) -> str:
        """Of the instructions and their encodings, which hold stall counts and reuse flags too: equal for
        equal code, wherever its source lay, whatever its lines and whatever else the cubin holds.
        """
        text = "\n".join(f"{i.encoding:032x} {i}" for i in self.instructions)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def peak(self) -> Instruction | None:
        """The first of those before which most registers are live; None where that is not known."""
        known = [i for i in self.instructions if i.live is not None]
        return max(known, key=lambda i: i.live or 0, default=None)

    @property
    def code_bytes(self) -> int:
        return INSTRUCTION_BYTES * len(self.instructions)

    @property
    def tally(self) -> Tally:
        return Tally(mix=self.mix, code_bytes=self.code_bytes, sha256=self.sha256)

    @property
    def vectorized_shared_loads(self) -> bool:
        """Whether the code reads shared memory 128 bits a thread at a time anywhere."""
        return self.count("LDS.128") > 0


def disassemble(cubin: Cubin, cache: Cache | None = None, *, live: bool = True) -> Sass:
    """The kernel of a built cubin. nvdisasm's answers are cached (None: in the user's cache), since starting
    it dominates the time: half of it goes without how many registers are `live` where.
    """
    entry, where = cubin.variant.kernel.entry, cubin.variant.label
    cache = default_cache() if cache is None else cache
    functions = disassemble_all(cubin.code, cache, where=where, live=live)
    if entry not in functions:
        have = ", ".join(functions) or "none"
        raise InspectError(f"no function {entry!r} in the cubin (functions: {have})", where=where)
    return replace(functions[entry], arch=cubin.arch)


def disassemble_all(code: bytes, cache: Cache, *, where: str, live: bool = True) -> dict[str, Sass]:
    """Every function of any cubin, by name. Raises InspectError where nvdisasm refuses it."""
    views = _VIEWS if live else _NOT_LIVE
    key = nvdisasm.key(code, views.values())
    entry = cache.get(key)
    answers = entry or dict(zip(views, nvdisasm.ask(code, views.values(), where), strict=True))
    try:
        text = _ESCAPE.sub(_byte, answers["sass.json"]).decode(errors="replace")
        about, functions, *rest = json.loads(text, strict=False)
        lives = _live(answers["live.txt"].decode(errors="replace")) if live else {}
        sections = nvdisasm.sections(code)
        found = {
            f["function-name"]: Sass(
                function=f["function-name"],
                arch=_arch(about),
                instructions=_instructions(
                    f["sass-instructions"],
                    lives.get(f["function-name"], {}),
                    sections.get(f".text.{f['function-name']}", b""),
                ),
                file=_file(rest, _own_file(f["sass-instructions"])),
                compiler=_compiler(about),
            )
            for f in functions
        }
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise InspectError(f"nvdisasm's answer cannot be read: {e!r}", where=where) from None
    if entry is None:
        cache.put(key, answers)
    return found


def _byte(escape: re.Match[bytes]) -> bytes:
    return bytes([int(escape[1], 8)]) if escape[1] else escape[0]


def _instructions(rows: list[dict[str, Any]], live: dict[int, int], text: bytes) -> tuple[Instruction, ...]:
    """nvdisasm names a source line where it changes; it holds until the next."""
    found = []
    own = _own_file(rows)
    line = 0
    for index, row in enumerate(rows):
        if "source-line" in row:
            line = row["source-line"] if row.get("source-file-id", 0) == own else 0
        address = INSTRUCTION_BYTES * index
        predicate, operands = _guard(row)
        found.append(
            Instruction(
                address=address,
                opcode=row["opcode"],
                operands=operands,
                predicate=predicate,
                line=line,
                live=live.get(address),
                encoding=int.from_bytes(text[address : address + INSTRUCTION_BYTES], "little"),
            )
        )
    while found and found[-1].opcode == "NOP":
        found.pop()
    return tuple(found)


def _guard(row: dict[str, Any]) -> tuple[str, str]:
    """Predicate and operands. nvdisasm takes PR, all predicates as one operand, for the predicate of the
    instruction: P2R R22,PR,RZ,0x1.
    """
    predicate, operands = row.get("predicate", ""), row.get("operands", "")
    if predicate != "PR":
        return predicate, operands
    first, *others = operands.split(",")
    return "", ",".join([first, "PR", *others] if row["opcode"].startswith("P2R") else ["PR", first, *others])


def _live(text: str) -> dict[str, dict[int, int]]:
    """Live general registers by function and address, from the comments of ``-plr`` behind the code."""
    found: dict[str, dict[int, int]] = {}
    here: dict[int, int] = {}
    for line in text.splitlines():
        if match := _SECTION.match(line):
            here = found.setdefault(match[1], {})
        elif match := _LIVE_ROW.match(line):
            here[int(match[1], 16)] = int(match[2] or 0)
    return found


def _arch(about: dict[str, Any]) -> str:
    """As the assembler was told, with its suffix; from the file header where the cubin has no such note."""
    told = re.search(r"-arch[ =](sm_\w+)", about.get(".note.nv.tkinfo", {}).get("tki_toolOptions", ""))
    version = about["SM"]["version"]
    return told[1] if told else f"sm_{version['major']}{version['minor']}"


def _compiler(about: dict[str, Any]) -> str:
    """``ptxas V13.5.37``."""
    note = about.get(".note.nv.tkinfo", {})
    version = note.get("tki_toolVersion", "").rpartition(" ")[2]
    return f"{note['tki_toolName']} {version}" if version else ""


def _own_file(rows: list[dict[str, Any]]) -> int:
    """Where the function stands: its first line is its own, before any call is inlined."""
    return next((row.get("source-file-id", 0) for row in rows if "source-line" in row), 0)


def _file(tables: list[Any], number: int) -> str:
    """A file of the line table."""
    if not tables or not tables[0]["files"]:
        return ""
    file = tables[0]["files"][number]
    return str(Path(tables[0]["directories"][file["dir-idx"]]) / file["file"])
