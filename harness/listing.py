"""Machine code as text: by address under its source lines, or beside its source; coloured by what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness import control
from harness.code import Code
from harness.loops import is_arithmetic
from harness.sass import Instruction

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
    return f"{paint(str(control.decode(i.encoding)), 'control')} {text}" if controls and i.encoding else text


def _kind(i: Instruction) -> str:
    return "arithmetic" if is_arithmetic(i) else _KINDS.get(i.opcode.split(".")[0], "other")
