"""The machine code in a cubin's ELF sections, for what nvdisasm's JSON leaves out: the encodings.

The layout is that of ELF64 (System V ABI, chapter 4); a kernel's code is its section ``.text.<kernel>``.
"""

from __future__ import annotations

import struct

_SECTIONS = struct.Struct("<40xQ10xHHH")  # of the file header: e_shoff, e_shentsize, e_shnum, e_shstrndx
_SECTION = struct.Struct("<II16xQQ24x")  # sh_name, sh_type, sh_offset, sh_size
_CUDA = 190  # EM_CUDA, e_machine of a cubin
_NO_BITS = 8  # a section of zeros that the file does not hold


def is_cubin(data: bytes) -> bool:
    return data[:5] == b"\x7fELF\x02" and data[18:20] == _CUDA.to_bytes(2, "little")


def sections(data: bytes) -> dict[str, bytes]:
    """Each section's bytes by name; empty where the file is not what it says it is."""
    try:
        start, size, count, names = _SECTIONS.unpack_from(data)
        table = [_SECTION.unpack_from(data, start + n * size) for n in range(count)]
        first = table[names][2]
        found = {}
        for offset, kind, begin, length in table:
            if kind != _NO_BITS:
                name = data[first + offset : data.index(b"\0", first + offset)]
                found[name.decode(errors="replace")] = data[begin : begin + length]
    except (struct.error, IndexError, ValueError):
        return {}
    return found
