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
from harness.programs.runtime.graphs import DEFAULT, STREAMS, Graphs
from harness.programs.runtime.host import NOT_SUPPORTED, SUCCESS, UNKNOWN, Misuse
from harness.programs.runtime.launches import How, Launches
from harness.programs.runtime.memory import DeviceMemory
from harness.programs.runtime.order.clocks import Clocks
from harness.programs.runtime.order.operations import Operations
from harness.programs.runtime.order.unwaited import Guard
from harness.programs.runtime.order.waiting import Waiting
from harness.programs.runtime.registered import Registered
from harness.programs.runtime.textures import Textures

# What a program calls that may do two things at once; the latter are for the default stream of a thread.
_SEVERAL, _OF_THREADS = ("cudaStreamCreate", "cudaGraphInst", "cudaLaunchKernelExC"), ("_ptsz", "_ptds")


class Runtime:
    """The device of one program.

    sources: the program's own files
    tell: takes what happens; write: takes what kernels print
    native: the library of native/, by which host code calls
    called: the functions of CUDA that the program calls
    """

    def __init__(
        self,
        how: How,
        sources: Sequence[str],
        places: Places,
        tell: Callable[[Event], None],
        write: Callable[[bytes], None],
        native: ctypes.CDLL,
        called: Sequence[str],
    ) -> None:
        self._places, self._tell = places, tell
        memory = DeviceMemory(native)
        native.harness_thread.restype = ctypes.c_ulong
        clocks = Clocks(native.harness_thread, of_threads=any(name.endswith(_OF_THREADS) for name in called))
        watching = any(name.startswith(_SEVERAL) or name.endswith(_OF_THREADS) for name in called)
        operations = Operations(clocks, memory, places, tell, watching=watching)
        self._guard = Guard(native, memory, places, operations, tell)
        registered, textures, waiting = Registered(memory, sources), Textures(memory), Waiting(operations)
        launches = Launches(
            how, memory, registered, textures, waiting, places, operations, self._guard, tell, write
        )
        self._graphs, self._blas = Graphs(launches, waiting, operations), Blas(memory, operations)
        self._parts = (
            launches,
            Copies(memory, registered, places, operations, self._guard),
            registered,
            textures,
            self._graphs,
            waiting,
            self._blas,
        )
        self._lock = threading.RLock()  # functions of a graph's nodes may call the runtime

    def call(self, name: str, caller: int, arguments: Sequence[int]) -> int:
        """Do what the function `name` does; return its result, an error's code for most.

        caller: where it returns to
        """
        with self._lock:
            self._guard.look()
            try:
                return self._called(name, caller, arguments)
            finally:
                self._guard.waited()

    def _called(self, name: str, caller: int, arguments: Sequence[int]) -> int:
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
            if name.startswith("cublas "):
                return self._blas.do(name, caller, function, arguments)
            if name in STREAMS or name in DEFAULT:
                return self._graphs.do(name, caller, arguments, work)
            return int(work() or SUCCESS)
        except Misuse as e:
            self._tell(Misused(what=f"{name}: {e}", place=self._places.of(caller)))
            return sign * e.code
        except HarnessError as e:
            self._tell(Refused(what=f"{name}: {e}", place=self._places.of(caller)))
            return sign * UNKNOWN
