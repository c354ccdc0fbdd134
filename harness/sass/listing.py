"""Format machine code by address under its source lines, or beside its source, coloured by kind."""

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
_NONE = 7  # the number of a barrier field if no barrier is used
_BARRIERS = 6


@dataclass(frozen=True, kw_only=True)
class Control:
    """The control fields of an instruction's encoding.

    `wait` holds the barriers (0 to 5) awaited before issue. `read` and `write` are the barriers released once
    the operands have been read and once the result is there; None for none. `stall` is the number of cycles
    before the warp's next issue. `yields` is True if another warp is then preferred. `reuse` holds the
    operand slots that are kept in the reuse cache.
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
    """Decode the control fields of an instruction from its 16 bytes as a little-endian integer.

    The layout is undocumented by NVIDIA; source: Jia et al., Dissecting the NVIDIA Volta GPU Architecture via
    Microbenchmarking, 2018.
    """
    bits = encoding >> _FIRST_BIT

    def field(first: int, width: int) -> int:
        return bits >> first & (1 << width) - 1

    def barrier(number: int) -> int | None:
        return None if number == _NONE else number

    return Control(
        stall=field(0, 4),
        yields=not field(4, 1),  # a set bit means: stay with this warp
        write=barrier(field(5, 3)),
        read=barrier(field(8, 3)),
        wait=_set(field(11, 6)),
        reuse=_set(field(17, 4)),
    )


def _set(mask: int) -> tuple[int, ...]:
    """Return the numbers of the bits that are set."""
    return tuple(n for n in range(mask.bit_length()) if mask >> n & 1)


Paint = Callable[[str, str], str]  # text, kind -> text

# Kinds of instructions by the first component of the opcode; all others are "other".
_KINDS = {
    **dict.fromkeys(("LDS", "STS", "LDSM", "STSM", "ATOMS"), "shared"),
    **dict.fromkeys(
        ("LDG", "STG", "LDGSTS", "ATOMG", "RED", "REDG", "UTMALDG", "UTMASTG", "LD", "ST"), "global"
    ),
    **dict.fromkeys(("LDL", "STL"), "local"),
    **dict.fromkeys(("BAR", "DEPBAR", "LDGDEPBAR", "SYNCS", "WARPSYNC", "MEMBAR", "FENCE"), "barrier"),
    **dict.fromkeys(("BRA", "BRX", "EXIT", "RET", "CALL", "BSSY", "BSYNC", "JMP"), "branch"),
}
_COLUMN = 24  # least width, in characters, of the source beside its code


def plain(text: str, kind: str) -> str:
    """Return the text without colours: the `Paint` for files and pipes."""
    return text


def by_address(code: Code, *, controls: bool = False, paint: Paint = plain) -> Iterator[str]:
    """Yield the listing in address order, with a heading wherever the source line changes.

    Instructions of the hot loop are marked with ``*``. With `controls`, each begins with its control fields.
    """
    at = None
    for i in code.sass.instructions:
        if i.line != at:
            at = i.line
            yield paint(
                f"{code.place(i) or '(not in the source)'}: {code.line(at).strip()}".rstrip(": "), "source"
            )
        yield f"  {_loop_mark(code, i)} {_instruction(i, controls, paint)}"


def by_source(code: Code, *, width: int, controls: bool = False, paint: Paint = plain) -> Iterator[str]:
    """Yield the listing with the source at the left and the instructions of each line at its right.

    All lines from the first to the last with code are shown. Instructions without a known line come last. The
    source gets the columns of `width` that the longest instruction leaves, but at most half and at least 24.
    Marks and `controls` are as in `by_address`.
    """
    by_line: dict[int, list[Instruction]] = {}
    for i in code.sass.instructions:
        by_line.setdefault(i.line, []).append(i)
    known = [line for line in by_line if line]
    longest = max((len(_instruction(i, controls, plain)) for i in code.sass.instructions), default=0)
    left = max(_COLUMN, min(width - longest - 3, width // 2))
    for line in range(min(known), max(known) + 1) if known else ():
        text = code.line(line).expandtabs(4).rstrip()
        indent = (len(text) - len(text.lstrip())) // 2  # half of the indentation, to save room
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
    """Yield the instructions of one source line, the first beside `source` and the others below it."""
    if not found:
        yield source.rstrip()
    for n, i in enumerate(found):
        yield f"{' ' * left if n else source} {_loop_mark(code, i)} {_instruction(i, controls, paint)}"


def _loop_mark(code: Code, i: Instruction) -> str:
    """Return ``*`` for an instruction of the hot loop."""
    loop = code.hot_loop
    return "*" if loop is not None and i.address in loop.addresses else " "


def _instruction(i: Instruction, controls: bool, paint: Paint) -> str:
    """Return an instruction as it is printed, with its control fields if `controls` is set."""
    text = f"{i.address:04x} {i.predicate:>4} {paint(f'{i.opcode} {i.operands}'.rstrip(), kind(i))}"
    return f"{paint(str(decode(i.encoding)), 'control')} {text}" if controls and i.encoding else text


def kind(i: Instruction) -> str:
    """Return the kind of an instruction, by which it is coloured."""
    return "arithmetic" if is_arithmetic(i) else _KINDS.get(i.opcode.split(".")[0], "other")
