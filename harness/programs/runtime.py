"""The CUDA runtime of a program on the emulator: what the functions of runtime.cpp do.

Work is done at once, in the order in which host code asks for it. What a GPU's runtime refuses is refused
with the same error, and told, since many programs do not look at errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.errors import HarnessError
from harness.programs.codes import NOT_SUPPORTED, SUCCESS, UNKNOWN, Misuse
from harness.programs.copies import Copies
from harness.programs.events import Event, Misused, Refused
from harness.programs.launches import How, Launches
from harness.programs.memory import DeviceMemory
from harness.programs.places import Places
from harness.programs.registered import Registered
from harness.programs.waiting import Waiting


class Runtime:
    """The device of one program.

    sources: the program's own files
    tell: takes what happens; write: takes what kernels print
    """

    def __init__(
        self,
        how: How,
        sources: Sequence[str],
        places: Places,
        tell: Callable[[Event], None],
        write: Callable[[bytes], None],
    ) -> None:
        self._places, self._tell = places, tell
        memory = DeviceMemory()
        registered, waiting = Registered(memory, sources), Waiting()
        launches = Launches(how, memory, registered, waiting, places, tell, write)
        self._parts = (launches, Copies(memory, registered, places), registered, waiting)

    def call(self, name: str, caller: int, arguments: Sequence[int]) -> int:
        """Do what the function `name` does; return its result, an error's code for most.

        caller: where it returns to
        """
        wanted = name.removeprefix("__").replace(" ", "_")
        function = next((f for part in self._parts if (f := getattr(part, wanted, None))), None)
        if function is None:
            self._tell(Refused(what=f"{name} is not emulated", place=self._places.of(caller)))
            return NOT_SUPPORTED
        try:
            return int(function(caller, *arguments) or SUCCESS)
        except Misuse as e:
            self._tell(Misused(what=f"{name}: {e}", place=self._places.of(caller)))
            return e.code
        except HarnessError as e:
            self._tell(Refused(what=f"{name}: {e}", place=self._places.of(caller)))
            return UNKNOWN
