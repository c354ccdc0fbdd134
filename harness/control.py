"""The scheduling fields in an instruction's encoding: what ptxas tells the hardware to wait for.

NVIDIA does not document them. Layout of the 21 bits from bit 105 on, Volta and later: Jia et al., "Dissecting
the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018, section 2.1. They are written as CuAssembler
writes them: ``[B0-----:R-:W1:Y:S04]``.
"""

from __future__ import annotations

from dataclasses import dataclass

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
