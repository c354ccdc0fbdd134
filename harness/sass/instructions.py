"""Disassemble cubins with nvdisasm into instructions that can be counted."""

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

INSTRUCTION_BYTES = 16  # on every architecture since Volta
# nvdisasm writes the bytes of a non-ASCII file name as octal escapes, which JSON does not know.
_ESCAPE = re.compile(rb"\\(?:([0-7]{3})|.)", re.DOTALL)
# nvdisasm's options for the instructions with their source lines, and for the number of live registers.
_VIEWS = {"sass.json": ("-json", "-g"), "live.txt": ("-c", "-plr", "-lrm", "count")}
_NOT_LIVE = {"sass.json": _VIEWS["sass.json"]}
_SECTION = re.compile(r"\.text\.(\S+):")
_LIVE_ROW = re.compile(r"\s+/\*([0-9a-f]+)\*/.*?;?\s*// \|\s*(\d*)\s*\|")
_WIDTHS = ("256", "128", "64")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One machine instruction.

    `address` is in bytes from the start of the function. `line` is its source line, from 1, in the file that
    the function stands in; 0 if it is unknown or in another file (a function from a header). nvdisasm names
    lines from 13.4 on. `live` counts the general registers that are live there; None if nvdisasm does not
    say. `encoding` is the instruction's 16 bytes as a little-endian integer, 0 if they are not known.
    """

    address: int
    opcode: str
    operands: str
    predicate: str
    line: int
    live: int | None = None
    encoding: int = 0

    def matches(self, pattern: str) -> bool:
        """Return True if the opcode has the components of `pattern`.

        The first component must be equal; the dotted modifiers must occur in order, others may stand between.
        ``LDS.128`` matches ``LDS.U.128``, but not ``LDSM`` or ``LDS.64``.
        """
        return matches(self.opcode, pattern)

    @property
    def width(self) -> int:
        """The bits per thread that a memory instruction moves, as its modifiers tell; 32 if they do not."""
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
    """Match an opcode against a pattern: see `Instruction.matches`.

    Results are cached, since code has thousands of instructions but some tens of different opcodes.
    """
    base, *modifiers = opcode.split(".")
    wanted_base, *wanted = pattern.split(".")
    rest = iter(modifiers)
    return base == wanted_base and all(part in rest for part in wanted)


def _count(mix: Counter[str], pattern: str) -> int:
    """Count the instructions of a mix whose opcode matches."""
    return sum(count for opcode, count in mix.items() if matches(opcode, pattern))


@dataclass(frozen=True, kw_only=True)
class Tally:
    """A summary of a `Sass` that can be kept without its instructions; its members have the same names."""

    mix: Counter[str]
    code_bytes: int
    sha256: str

    def count(self, pattern: str) -> int:
        """Return how many instructions match `pattern`."""
        return _count(self.mix, pattern)

    @property
    def tensor_instructions(self) -> int:
        """The number of instructions that are an MMA of any kind: HMMA, IMMA, DMMA, HGMMA and so on."""
        return sum(n for opcode, n in self.mix.items() if opcode.split(".", 1)[0].endswith("MMA"))


@dataclass(frozen=True, kw_only=True)
class Sass:
    """The instructions of one function, in address order, without the padding NOPs at the end.

    `file` is the function's source file as named by the cubin's line table, and `compiler` the assembler as
    the cubin names it (``ptxas V13.5.37``); both are empty if the cubin does not name them.
    """

    function: str
    arch: str
    instructions: tuple[Instruction, ...]
    file: str = ""
    compiler: str = ""

    def __repr__(self) -> str:
        return f"<Sass {self.function}, {self.arch}: {len(self.instructions)} instructions>"

    def select(self, pattern: str) -> Iterator[Instruction]:
        """Yield the instructions that match `pattern`, in address order."""
        return (i for i in self.instructions if i.matches(pattern))

    def count(self, pattern: str) -> int:
        """Return how many instructions match `pattern`."""
        return _count(self.mix, pattern)

    @property
    def has_lines(self) -> bool:
        """True if the source line of any instruction is known."""
        return any(i.line for i in self.instructions)

    @cached_property
    def mix(self) -> Counter[str]:
        """The count of each full opcode, with its modifiers, in the code."""
        return Counter(i.opcode for i in self.instructions)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256, in hex, of the instructions and their encodings.

        Encodings include stall counts and reuse flags. Equal code gives equal sums: source paths, line
        numbers and other functions of the cubin are left out.
        """
        text = "\n".join(f"{i.encoding:032x} {i}" for i in self.instructions)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def peak(self) -> Instruction | None:
        """The first instruction at which most registers are live; None if live registers are not known."""
        known = [i for i in self.instructions if i.live is not None]
        return max(known, key=lambda i: i.live or 0, default=None)

    @property
    def code_bytes(self) -> int:
        """The size of the code in bytes, without padding."""
        return INSTRUCTION_BYTES * len(self.instructions)

    @property
    def tally(self) -> Tally:
        """The summary of the code."""
        return Tally(mix=self.mix, code_bytes=self.code_bytes, sha256=self.sha256)

    @property
    def vectorized_shared_loads(self) -> bool:
        """True if any instruction loads 128 bits per thread from shared memory."""
        return self.count("LDS.128") > 0


def disassemble(cubin: Cubin, cache: Cache | None = None, *, live: bool = True) -> Sass:
    """Disassemble the kernel of a cubin that harness built.

    nvdisasm's output is kept in `cache` (None: the user's cache), since starting nvdisasm dominates the time.
    Without `live` the number of live registers is left out, which halves the time. Raises InspectError if the
    cubin cannot be disassembled or lacks the kernel.
    """
    entry, where = cubin.entry, cubin.variant.label
    cache = default_cache() if cache is None else cache
    functions = disassemble_all(cubin.code, cache, where=where, live=live)
    if entry not in functions:
        have = ", ".join(functions) or "none"
        raise InspectError(f"no function {entry!r} in the cubin (functions: {have})", where=where)
    return replace(functions[entry], arch=cubin.arch)


def disassemble_all(code: bytes, cache: Cache, *, where: str, live: bool = True) -> dict[str, Sass]:
    """Disassemble every function of any cubin, and return them by name.

    `where` names the cubin in errors; `cache` and `live` are as in `disassemble`. Raises InspectError if
    nvdisasm refuses the cubin or its output cannot be read.
    """
    views = _VIEWS if live else _NOT_LIVE
    key = nvdisasm.key(code, views.values())
    entry = cache.get(key)
    if entry is None and not live:  # what was asked for with them has all of it
        entry = cache.get(nvdisasm.key(code, _VIEWS.values()))
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
    """Return the byte that an octal escape stands for; other escapes are returned as they are."""
    return bytes([int(escape[1], 8)]) if escape[1] else escape[0]


def _instructions(rows: list[dict[str, Any]], live: dict[int, int], text: bytes) -> tuple[Instruction, ...]:
    """Build the instructions of one function from nvdisasm's JSON rows.

    `live` maps addresses to live registers, `text` holds the encodings. A row names its source line only if
    that differs from the row before. NOPs at the end are dropped.
    """
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
    """Return the predicate and the operands of a row.

    nvdisasm mistakes the operand PR, which means all predicates, for the instruction's predicate (``P2R
    R22,PR,RZ,0x1``); it is put back among the operands.
    """
    predicate, operands = row.get("predicate", ""), row.get("operands", "")
    if predicate != "PR":
        return predicate, operands
    first, *others = operands.split(",")
    return "", ",".join([first, "PR", *others] if row["opcode"].startswith("P2R") else ["PR", first, *others])


def _live(text: str) -> dict[str, dict[int, int]]:
    """Return the number of live general registers by function and address, from the comments of ``-plr``."""
    found: dict[str, dict[int, int]] = {}
    here: dict[int, int] = {}
    for line in text.splitlines():
        if match := _SECTION.match(line):
            here = found.setdefault(match[1], {})
        elif match := _LIVE_ROW.match(line):
            here[int(match[1], 16)] = int(match[2] or 0)
    return found


def _arch(about: dict[str, Any]) -> str:
    """Return the architecture that the assembler was told, with its suffix (``sm_90a``).

    A cubin without a note on that has it in its file header, without a suffix.
    """
    told = re.search(r"-arch[ =](sm_\w+)", about.get(".note.nv.tkinfo", {}).get("tki_toolOptions", ""))
    version = about["SM"]["version"]
    return told[1] if told else f"sm_{version['major']}{version['minor']}"


def _compiler(about: dict[str, Any]) -> str:
    """Return the assembler and its version, as ``ptxas V13.5.37``; "" if the cubin does not name it."""
    note = about.get(".note.nv.tkinfo", {})
    version = note.get("tki_toolVersion", "").rpartition(" ")[2]
    return f"{note['tki_toolName']} {version}" if version else ""


def _own_file(rows: list[dict[str, Any]]) -> int:
    """Return the id of the file that defines the function.

    It is the file of its first line, which comes before any inlined call.
    """
    return next((row.get("source-file-id", 0) for row in rows if "source-line" in row), 0)


def _file(tables: list[Any], number: int) -> str:
    """Return the path of file `number` in the line table; "" without a line table."""
    if not tables or not tables[0]["files"]:
        return ""
    file = tables[0]["files"][number]
    return str(Path(tables[0]["directories"][file["dir-idx"]]) / file["file"])
