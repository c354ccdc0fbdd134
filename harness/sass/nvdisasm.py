"""Run nvdisasm, NVIDIA's disassembler, on a cubin, and read the sections of the cubin's ELF file.

Starting nvdisasm takes nearly all of its time.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from harness.errors import InspectError
from harness.support import tools
from harness.support.cache import digest

_SECTIONS = struct.Struct("<40xQ10xHHH")  # file header: e_shoff, e_shentsize, e_shnum, e_shstrndx
_SECTION = struct.Struct("<II16xQQ24x")  # sh_name, sh_type, sh_offset, sh_size
_CUDA = 190  # EM_CUDA, e_machine of a cubin
_NO_BITS = 8  # SHT_NOBITS: a section of zeros that takes no space in the file


def is_cubin(data: bytes) -> bool:
    """Return True if the data begins with the header of a 64-bit ELF file for CUDA."""
    return data[:5] == b"\x7fELF\x02" and data[18:20] == _CUDA.to_bytes(2, "little")


def sections(data: bytes) -> dict[str, bytes]:
    """Return the bytes of each ELF section by name; an empty dictionary if the file is damaged."""
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


TIMEOUT = 30  # seconds; nvdisasm usually takes 0.2 to 0.4
PER_MB = 60  # seconds more for each 2**20 bytes of a cubin

Options = Sequence[str]


def key(code: bytes, views: Collection[Options]) -> str:
    """Return the cache key for nvdisasm's output on this code with these sets of options.

    It depends on the nvdisasm that is installed, since another version may print something else. Raises
    MissingDependency if there is none.
    """
    stamp = tools.require("nvdisasm").stat()
    options = [option for view in views for option in view]
    return digest("nvdisasm", *options, str(stamp.st_size), str(stamp.st_mtime_ns), code)


def ask(code: bytes, views: Collection[Options], where: str) -> list[bytes]:
    """Return nvdisasm's output for a cubin, one for each set of options in `views`, run in parallel.

    `where` names the cubin in errors. Raises MissingDependency without nvdisasm, InspectError if it cannot be
    run, refuses the cubin or takes more than `TIMEOUT` seconds and `PER_MB` more.
    """
    tool = tools.require("nvdisasm")
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(code)

        commands: list[list[str | Path]] = [[tool, *options, file] for options in views]
        limit = round(TIMEOUT + PER_MB * len(code) / 2**20, 1)
        outcomes = tools.run_each(commands, where, timeout=limit, raises=InspectError)
        for done in outcomes:
            if done.returncode != 0:
                message = done.stderr.decode(errors="replace").replace(str(file), "the cubin").strip()
                message = message or f"it ends with {done.returncode} and says nothing"
                raise InspectError(f"nvdisasm refuses the cubin: {message}", where=where)
        return [done.stdout for done in outcomes]
