"""The CUDA runtime of a program on the emulator: what the functions in native/ do.

Work is done at once, in the order in which host code asks for it. What a GPU's runtime refuses is refused
with the same error, and told, since many programs do not look at errors.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import partial

from harness.errors import HarnessError
from harness.programs.events import Event, Misused, Refused
from harness.programs.places import Places
from harness.programs.runtime.blas import Blas
from harness.programs.runtime.copies import Copies
from harness.programs.runtime.graphs import STREAMS, Graphs
from harness.programs.runtime.host import NOT_SUPPORTED, SUCCESS, UNKNOWN, Misuse
from harness.programs.runtime.launches import How, Launches
from harness.programs.runtime.memory import DeviceMemory
from harness.programs.runtime.registered import Registered
from harness.programs.runtime.textures import Textures
from harness.programs.runtime.unwaited import WAITS, Guard
from harness.programs.runtime.waiting import Waiting


class Runtime:
    """The device of one program.

    sources: the program's own files
    tell: takes what happens; write: takes what kernels print
    native: the library of native/, by which host code calls
    """

    def __init__(
        self,
        how: How,
        sources: Sequence[str],
        places: Places,
        tell: Callable[[Event], None],
        write: Callable[[bytes], None],
        native: ctypes.CDLL,
    ) -> None:
        self._places, self._tell = places, tell
        memory = DeviceMemory()
        self._guard = Guard(native, memory, places, tell)
        registered, textures, waiting = Registered(memory, sources), Textures(memory), Waiting()
        launches = Launches(how, memory, registered, textures, waiting, places, self._guard, tell, write)
        self._graphs = Graphs(launches, waiting)
        self._parts = (
            launches,
            Copies(memory, registered, places, self._guard),
            registered,
            textures,
            self._graphs,
            waiting,
            Blas(memory),
        )
        self._lock = threading.RLock()  # functions of a graph's nodes may call the runtime

    def call(self, name: str, caller: int, arguments: Sequence[int]) -> int:
        """Do what the function `name` does; return its result, an error's code for most.

        caller: where it returns to
        """
        with self._lock:
            return self._called(name, caller, arguments)

    def _called(self, name: str, caller: int, arguments: Sequence[int]) -> int:
        self._guard.look()
        if name in WAITS:
            self._guard.waited()
        wanted = name.removeprefix("__").replace(" ", "_")
        function = next((f for part in self._parts if (f := getattr(part, wanted, None))), None)
        sign = -1 if name.startswith("the ") else 1  # a question's errors are negative
        if function is None:
            self._tell(Refused(what=f"{name} is not emulated", place=self._places.of(caller)))
            return NOT_SUPPORTED
        try:
            work = partial(function, caller, *arguments)
            if name.startswith("cudaLaunch"):
                work = work()
            if name in STREAMS:
                return self._graphs.do(arguments[STREAMS[name]], name, work)
            return int(work() or SUCCESS)
        except Misuse as e:
            self._tell(Misused(what=f"{name}: {e}", place=self._places.of(caller)))
            return sign * e.code
        except HarnessError as e:
            self._tell(Refused(what=f"{name}: {e}", place=self._places.of(caller)))
            return sign * UNKNOWN
