"""Machine code as text: by address under its source lines, or beside its source; coloured by what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.sass.code import Code
from harness.sass.instructions import Instruction
from harness.sass.loops import is_arithmetic

LEGEND = (
    "[B barriers awaited : R barrier set when operands are read :\n"
    " W when the result is there : Y prefer another warp : S stall cycles];\n"
    "undocumented by NVIDIA, layout from Jia et al. 2018"
)
_FIRST_BIT = 105
_NONE = 7  # a barrier's number where none is set
_BARRIERS = 6


@dataclass(frozen=True, kw_only=True)
class Control:
    """`wait`: barriers (0 to 5) awaited before issue. `read`, `write`: barrier released when the operands
    have been read and when the result is there, None for none. `stall`: cycles before the warp's next issue.
    `yields`: another warp is preferred then. `reuse`: operand slots kept in the reuse cache.
    """

    stall: int
    yields: bool
    write: int | None
    read: int | None
    wait: tuple[int, ...]
    reuse: tuple[int, ...]

    def __str__(self) -> str:
        waits = "".join(str(b) if b in self.wait else "-" for b in range(_BARRIERS))
        read, write = ("-" if b is None else str(b) for b in (self.read, self.write))
        return f"[B{waits}:R{read}:W{write}:{'Y' if self.yields else '-'}:S{self.stall:02}]"


def decode(encoding: int) -> Control:
    """Of an instruction's 16 bytes as a little-endian integer."""
    bits = encoding >> _FIRST_BIT

    def field(first: int, width: int) -> int:
        return bits >> first & (1 << width) - 1

    def barrier(number: int) -> int | None:
        return None if number == _NONE else number

    return Control(
        stall=field(0, 4),
        yields=not field(4, 1),  # the bit says: stay with this warp
        write=barrier(field(5, 3)),
        read=barrier(field(8, 3)),
        wait=_set(field(11, 6)),
        reuse=_set(field(17, 4)),
    )


def _set(mask: int) -> tuple[int, ...]:
    return tuple(n for n in range(mask.bit_length()) if mask >> n & 1)


Paint = Callable[[str, str], str]  # text, kind -> text

# Kinds of instructions by their opcode's first component; the rest is "other".
_KINDS = {
    **dict.fromkeys(("LDS", "STS", "LDSM", "STSM", "ATOMS"), "shared"),
    **dict.fromkeys(
        ("LDG", "STG", "LDGSTS", "ATOMG", "RED", "REDG", "UTMALDG", "UTMASTG", "LD", "ST"), "global"
    ),
    **dict.fromkeys(("LDL", "STL"), "local"),
    **dict.fromkeys(("BAR", "DEPBAR", "LDGDEPBAR", "SYNCS", "WARPSYNC", "MEMBAR", "FENCE"), "barrier"),
    **dict.fromkeys(("BRA", "BRX", "EXIT", "RET", "CALL", "BSSY", "BSYNC", "JMP"), "branch"),
}
_COLUMN = 24  # the least width of the source beside its code


def plain(text: str, kind: str) -> str:
    return text


def by_address(code: Code, *, controls: bool = False, paint: Paint = plain) -> Iterator[str]:
    """Each run of instructions of one source line under that line."""
    at = None
    for i in code.sass.instructions:
        if i.line != at:
            at = i.line
            yield paint(
                f"{code.place(i) or '(not in the source)'}: {code.line(at).strip()}".rstrip(": "), "source"
            )
        yield f"  {_loop_mark(code, i)} {_instruction(i, controls, paint)}"


def by_source(code: Code, *, width: int, controls: bool = False, paint: Paint = plain) -> Iterator[str]:
    """The source line by line at the left, its instructions, wherever they went, at the right.

    Lines without code stand between the first and the last that have some. Code of no known line comes last.
    The source gets what the longest instruction leaves of `width`, and a little in any case.
    """
    by_line: dict[int, list[Instruction]] = {}
    for i in code.sass.instructions:
        by_line.setdefault(i.line, []).append(i)
    known = [line for line in by_line if line]
    longest = max((len(_instruction(i, controls, plain)) for i in code.sass.instructions), default=0)
    left = max(_COLUMN, min(width - longest - 3, width // 2))
    for line in range(min(known), max(known) + 1) if known else ():
        text = code.line(line).expandtabs(4).rstrip()
        indent = (len(text) - len(text.lstrip())) // 2  # half of it: there is little room
        source = f"{line:4} {' ' * indent}{text.lstrip()}"
        if len(source) > left:
            source = source[: left - 1] + "~"
        yield from _beside(
            code, paint(source.ljust(left), "source"), left, by_line.get(line, []), controls, paint
        )
    if by_line.get(0):
        yield from _beside(code, "     (not in the source)".ljust(left), left, by_line[0], controls, paint)


def _beside(
    code: Code, source: str, left: int, found: list[Instruction], controls: bool, paint: Paint
) -> Iterator[str]:
    if not found:
        yield source.rstrip()
    for n, i in enumerate(found):
        yield f"{' ' * left if n else source} {_loop_mark(code, i)} {_instruction(i, controls, paint)}"


def _loop_mark(code: Code, i: Instruction) -> str:
    loop = code.hot_loop
    return "*" if loop is not None and i.address in loop.addresses else " "


def _instruction(i: Instruction, controls: bool, paint: Paint) -> str:
    text = f"{i.address:04x} {i.predicate:>4} {paint(f'{i.opcode} {i.operands}'.rstrip(), _kind(i))}"
    return f"{paint(str(decode(i.encoding)), 'control')} {text}" if controls and i.encoding else text


def _kind(i: Instruction) -> str:
    return "arithmetic" if is_arithmetic(i) else _KINDS.get(i.opcode.split(".")[0], "other")
