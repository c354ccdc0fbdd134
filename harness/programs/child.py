"""The process that a program runs in: ``python -m harness.programs.child``, with what to do as JSON.

It is a process of its own because host code may end it, or crash. What happens goes into a file at once, and
that is opened each time: programs close descriptors that are not theirs.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.programs.build import MISSING, NAME
from harness.programs.events import Event, Refused
from harness.programs.places import Place, Places
from harness.programs.runtime import Runtime
from harness.programs.runtime.host import UNKNOWN
from harness.programs.runtime.launches import How

_CALL = ctypes.CFUNCTYPE(
    ctypes.c_long, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int
)


def _base(program: Path) -> int:
    """Return where a shared library of this process is loaded; 0 if it is not yet."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(program)):
            return int(line.partition("-")[0], 16)
    return 0


def main(asked: dict[str, Any]) -> None:
    """Run the program, and end as it does."""
    program, told = Path(asked["program"]), Path(asked["events"])

    def tell(event: Event) -> None:
        with told.open("ab") as stream:
            stream.write(pickle.dumps(event))

    try:
        _run(asked, program, tell)
    except (HarnessError, OSError) as e:
        tell(Refused(what=f"the program cannot be loaded: {e}", place=Place()))


def _run(asked: dict[str, Any], program: Path, tell: Callable[[Event], None]) -> None:
    """Load the program and its runtime, and call ``main``."""
    library = ctypes.CDLL(str(program.with_name(NAME)), mode=ctypes.RTLD_GLOBAL)
    places = Places(program, lambda: _base(program), asked["sources"], asked["foreign"])
    library.harness_print.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    runtime = Runtime(
        How(**asked["how"]),
        asked["sources"],
        places,
        tell,
        lambda text: library.harness_print(text, len(text)),
        library,
        asked["called"],
    )

    def call(name: bytes, caller: int | None, arguments: Any, count: int) -> int:
        try:
            return runtime.call(name.decode(), caller or 0, arguments[:count])
        except Exception as e:  # nothing passes through the program's own frames
            at = traceback.extract_tb(e.__traceback__)[-1]
            said = f"a fault of harness, {type(e).__name__}: {e}, {Path(at.filename).name}:{at.lineno}"
            tell(Refused(what=f"{name.decode()}: {said}", place=Place()))
            return UNKNOWN

    held = _CALL(call)
    library.harness_connect(held, asked["how"]["sms"])
    if (missing := program.with_name(MISSING)).exists():
        ctypes.CDLL(str(missing), mode=ctypes.RTLD_GLOBAL)
    code = ctypes.CDLL(str(program), mode=ctypes.RTLD_GLOBAL)
    words = [os.fsencode(word) for word in asked["arguments"]]
    given = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    ctypes.CDLL(None).exit(code.main(len(words), given))  # with the program's own handlers of exit


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
