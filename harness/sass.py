"""A cubin -> `Sass`: its machine instructions, countable by what they are, through ``nvdisasm -json``."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness import tools
from harness.build import Cubin
from harness.cache import Cache, digest
from harness.cache import default as default_cache
from harness.errors import InspectError

INSTRUCTION_BYTES = 16  # from Volta on
_TIMEOUT = 120  # seconds; nvdisasm takes 0.2 to 0.4
# nvdisasm writes the bytes of a non-ASCII file name as octal escapes, which JSON does not know.
_ESCAPE = re.compile(rb"\\(?:([0-7]{3})|.)", re.DOTALL)
_WIDTHS = ("256", "128", "64")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """`address` counts bytes from the start of the kernel; `line` is 1-based in the file that the kernel's
    function stands in, 0 where that is unknown or another file (a function from a header). nvdisasm tells
    lines from 13.4 on.
    """

    address: int
    opcode: str
    operands: str
    predicate: str
    line: int

    def matches(self, pattern: str) -> bool:
        """By dotted components, in order: ``LDS.128`` matches ``LDS.U.128``, not ``LDSM``, not ``LDS.64``."""
        base, *modifiers = self.opcode.split(".")
        wanted_base, *wanted = pattern.split(".")
        rest = iter(modifiers)
        return base == wanted_base and all(part in rest for part in wanted)

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


@dataclass(frozen=True, kw_only=True)
class Sass:
    """The instructions of one kernel, in address order, padding NOPs at the end left out."""

    function: str
    arch: str
    instructions: tuple[Instruction, ...]

    def select(self, pattern: str) -> Iterator[Instruction]:
        return (i for i in self.instructions if i.matches(pattern))

    def count(self, pattern: str) -> int:
        return sum(1 for _ in self.select(pattern))

    @property
    def has_lines(self) -> bool:
        return any(i.line for i in self.instructions)

    @cached_property
    def mix(self) -> Counter[str]:
        """How often each full opcode stands in the code."""
        return Counter(i.opcode for i in self.instructions)

    @cached_property
    def sha256(self) -> str:
        """Of the instructions alone: equal for equal code, wherever its source lay and whatever its lines."""
        return hashlib.sha256("\n".join(map(str, self.instructions)).encode()).hexdigest()

    @property
    def code_bytes(self) -> int:
        return INSTRUCTION_BYTES * len(self.instructions)

    @property
    def vectorized_shared_loads(self) -> bool:
        """Whether the code reads shared memory 128 bits a thread at a time anywhere."""
        return self.count("LDS.128") > 0


def disassemble(cubin: Cubin, cache: Cache | None = None) -> Sass:
    """The kernel of a built cubin. nvdisasm's answer is cached (None: in the user's cache), since starting
    it dominates the time.
    """
    kernel = cubin.variant.kernel
    cache = default_cache() if cache is None else cache
    return disassemble_code(cubin.code, kernel.entry, cubin.arch, cache, where=cubin.variant.label)


def disassemble_code(code: bytes, function: str, arch: str, cache: Cache, *, where: str) -> Sass:
    """`function` of any cubin. Raises InspectError where nvdisasm refuses it or it has no such function."""
    tool = tools.require("nvdisasm")
    stamp = tool.stat()
    key = digest("nvdisasm -json -g", str(stamp.st_size), str(stamp.st_mtime_ns), code)
    entry = cache.get(key)
    answer = entry["sass.json"] if entry else _run(tool, code, where)
    try:
        document = json.loads(_ESCAPE.sub(_byte, answer).decode(errors="replace"), strict=False)
        functions = {f["function-name"]: f["sass-instructions"] for f in document[1]}
    except (ValueError, KeyError, IndexError, TypeError) as e:
        raise InspectError(f"nvdisasm's answer cannot be read: {e!r}", where=where) from None
    if entry is None:
        cache.put(key, {"sass.json": answer})
    if function not in functions:
        have = ", ".join(functions) or "none"
        raise InspectError(f"no function {function!r} in the cubin (functions: {have})", where=where)
    return Sass(function=function, arch=arch, instructions=_instructions(functions[function]))


def _byte(escape: re.Match[bytes]) -> bytes:
    return bytes([int(escape[1], 8)]) if escape[1] else escape[0]


def _run(tool: Path, code: bytes, where: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(code)
        try:
            done = subprocess.run(
                [tool, "-json", "-g", file], capture_output=True, timeout=_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise InspectError(f"nvdisasm gave no answer within {_TIMEOUT} s", where=where) from None
        except OSError as e:
            raise InspectError(f"nvdisasm cannot be run: {e}", where=where) from None
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").replace(str(file), "the cubin").strip()
        message = message or f"it ends with {done.returncode} and says nothing"
        raise InspectError(f"nvdisasm refuses the cubin: {message}", where=where)
    return done.stdout


def _instructions(rows: list[dict[str, Any]]) -> tuple[Instruction, ...]:
    """nvdisasm names a source line where it changes; it holds until the next. File 0 is the kernel's own."""
    found = []
    line = 0
    for index, row in enumerate(rows):
        if "source-line" in row:
            line = row["source-line"] if row.get("source-file-id", 0) == 0 else 0
        found.append(
            Instruction(
                address=INSTRUCTION_BYTES * index,
                opcode=row["opcode"],
                operands=row.get("operands", ""),
                predicate=row.get("predicate", ""),
                line=line,
            )
        )
    while found and found[-1].opcode == "NOP":
        found.pop()
    return tuple(found)
