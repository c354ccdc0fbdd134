"""The widths in which the compiler carries out the memory accesses of a PTX kernel.

It merges neighbouring accesses into wider ones and drops others, and the hardware's counters count the
machine instructions that result. nvdisasm names the PTX line of each instruction of a cubin that was built
with line information.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import InspectError
from harness.kernels.compiler import Cubin
from harness.sass import nvdisasm
from harness.sass.instructions import Sass
from harness.support.cache import Cache

_VIEWS = [("-c", "-gp")]
_PTX_LINE = re.compile(r'\s*//## File "\.nv_debug_ptx_txt[^"]*", line (\d+)')
_FUNCTION = re.compile(r"\.text\.(\S+):")
_ADDRESS = re.compile(r"\s+/\*([0-9a-f]+)\*/")
_MEMORY = {"LDG", "STG", "LDS", "STS", "LD", "ST", "LDGSTS"}
_ACCESS = re.compile(r"\s*(?:@!?%\w+\s+)?(?:ld|st)\.(?:volatile\.|relaxed\.\w+\.)?(?:global|shared)\b")


@dataclass(frozen=True, kw_only=True)
class Widths:
    """The width of each load and store of global or shared memory in the PTX.

    `bytes` maps a PTX line (from 1) to bytes per thread, 0 if the access was merged into another or dropped.
    Lines in `ambiguous` became accesses of several widths, in an unrolled loop and its remainder, say: their
    width is unknown, and `bytes` lacks them.
    """

    bytes: Mapping[int, int]
    ambiguous: tuple[int, ...]


def widths(cubin: Cubin, sass: Sass, cache: Cache) -> Widths:
    """Find the width of every load and store of global and shared memory in the cubin's PTX.

    `sass` is the disassembly of the same cubin; nvdisasm's output is kept in `cache`. Raises InspectError if
    the cubin does not name PTX lines.
    """
    where = cubin.variant.label
    origin = _ptx_lines(cubin, cache)
    found: dict[int, set[int]] = {}
    for i in sass.instructions:
        if i.opcode.split(".")[0] in _MEMORY and i.address in origin:
            found.setdefault(origin[i.address], set()).add(i.width // 8)
    if not found and any(i.opcode.split(".")[0] in _MEMORY for i in sass.instructions):
        raise InspectError("the cubin does not tell PTX lines", where=where, hint="see `harness doctor`")
    accesses = [n for n, line in enumerate(cubin.ptx.splitlines(), 1) if _ACCESS.match(line)]
    return Widths(
        bytes={n: sum(found.get(n, ())) for n in accesses if len(found.get(n, ())) < 2},
        ambiguous=tuple(n for n in accesses if len(found.get(n, ())) > 1),
    )


def _ptx_lines(cubin: Cubin, cache: Cache) -> dict[int, int]:
    """Return the PTX line of each instruction of the kernel, by the instruction's address."""
    key = nvdisasm.key(cubin.code, _VIEWS)
    entry = cache.get(key)
    answer = entry["lines.txt"] if entry else nvdisasm.ask(cubin.code, _VIEWS, cubin.variant.label)[0]
    if entry is None:
        cache.put(key, {"lines.txt": answer})
    found: dict[int, int] = {}
    line, here = 0, ""
    for text in answer.decode(errors="replace").splitlines():
        if match := _FUNCTION.match(text):
            line, here = 0, match[1]
        elif match := _PTX_LINE.match(text):
            line = int(match[1])
        elif (match := _ADDRESS.match(text)) and line and here == cubin.entry:
            found[int(match[1], 16)] = line
    return found
