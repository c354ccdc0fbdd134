"""NVIDIA's disassembler: a cubin in, its answers out. Starting it is nearly all the time that it takes."""

from __future__ import annotations

import struct
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.errors import InspectError
from harness.support import tools
from harness.support.cache import digest

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


TIMEOUT = 120  # seconds; it takes 0.2 to 0.4

Options = Sequence[str]


def key(code: bytes, views: Collection[Options]) -> str:
    """Under which its answers may be kept: another version may answer otherwise.

    Raises MissingDependency where it is not installed.
    """
    stamp = tools.require("nvdisasm").stat()
    options = [option for view in views for option in view]
    return digest("nvdisasm", *options, str(stamp.st_size), str(stamp.st_mtime_ns), code)


def ask(code: bytes, views: Collection[Options], where: str) -> list[bytes]:
    """What it says of a cubin with each set of options, all at the same time. Raises InspectError."""
    tool = tools.require("nvdisasm")
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(code)

        def view(options: Options) -> bytes:
            try:
                done = subprocess.run(
                    [tool, *options, file], capture_output=True, timeout=TIMEOUT, check=False
                )
            except subprocess.TimeoutExpired:
                raise InspectError(f"nvdisasm gave no answer within {TIMEOUT} s", where=where) from None
            except OSError as e:
                raise InspectError(f"nvdisasm cannot be run: {e}", where=where) from None
            if done.returncode != 0:
                message = done.stderr.decode(errors="replace").replace(str(file), "the cubin").strip()
                message = message or f"it ends with {done.returncode} and says nothing"
                raise InspectError(f"nvdisasm refuses the cubin: {message}", where=where)
            return done.stdout

        with ThreadPoolExecutor(len(views)) as pool:
            return list(pool.map(view, views))
