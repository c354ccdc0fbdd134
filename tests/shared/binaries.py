"""Files of machine code: fat binaries, and what may have happened to a file on its way."""

from __future__ import annotations

import random
import struct

_SECTIONS_AT = 40  # e_shoff: where an ELF file says where its table of sections begins
_NUMBERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def fatbin(*cubins: tuple[int, bytes]) -> bytes:
    """The container that nvcc embeds; its layout is undocumented, cuobjdump judges it."""
    body = b""
    for number, code in cubins:
        size = len(code) + -len(code) % 8
        body += struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, size, 0, 0, 0, 0, number, 0, 0, 0x11, 0, 0)
        body += code.ljust(size, b"\0")
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def damaged(content: bytes, seed: int) -> bytes:
    """Return the file with one to four damages: mostly to what describes it, its headers and numbers."""
    draw = random.Random(seed)
    data = bytearray(content)
    table = min(int.from_bytes(data[_SECTIONS_AT : _SECTIONS_AT + 8], "little"), len(data) - 64)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) - 8)
        match draw.randrange(7):
            case 0:
                data[draw.randrange(64)] = draw.randrange(256)
            case 1:
                data[draw.randrange(table, len(data))] = draw.randrange(256)
            case 2:
                data[at] ^= 1 << draw.randrange(8)
            case 3:
                struct.pack_into("<Q", data, at // 8 * 8, draw.choice([*_NUMBERS, len(data)]))
            case 4:
                struct.pack_into("<I", data, at // 4 * 4, draw.choice(_NUMBERS) % 2**32)
            case 5 if draw.random() < 0.3:
                return bytes(data[:at])
            case _:
                size = draw.randrange(1, 64)
                other = draw.randrange(len(data) - size)
                data[at : at + size] = data[other : other + size]
                del data[len(content) :]
    return bytes(data)
