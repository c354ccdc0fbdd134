"""NVIDIA's disassembler: a cubin in, its answers out. Starting it is nearly all the time that it takes."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import tools
from harness.cache import digest
from harness.errors import InspectError

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
