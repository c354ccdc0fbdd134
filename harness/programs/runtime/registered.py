"""What the code that nvcc adds to a program registers: modules, kernels and variables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from harness.errors import EmulatorError
from harness.programs.runtime import raw
from harness.programs.runtime.codes import INVALID_FUNCTION, INVALID_SYMBOL, Misuse
from harness.programs.runtime.memory import DeviceMemory
from harness.programs.runtime.modules import Module, read


class Registered:
    """Modules by handle; kernels and variables by what host code has of them, the address of a stub or of a
    variable of its own.

    The functions are those of CUDA's runtime, without the underscores before their names.
    """

    def __init__(self, memory: DeviceMemory, sources: Sequence[str]) -> None:
        self._memory, self._sources = memory, sources
        self._handles = itertools.count(1)
        self._modules: dict[int, list[Module]] = {}
        self._kernels: dict[int, tuple[int, str]] = {}
        self._variables: dict[int, tuple[int, str]] = {}
        self._managed: dict[int, list[str]] = {}

    def cudaRegisterFatBinary(self, _: int, binary: int) -> int:
        handle = next(self._handles)
        self._modules[handle] = read(binary, self._sources)
        return handle

    def cudaRegisterFunction(self, _: int, module: int, host: int, name: int) -> None:
        self._kernels[host] = module, raw.text(name)

    def cudaRegisterVar(self, _: int, module: int, host: int, name: int, size: int) -> None:
        self._variables[host] = module, raw.text(name)

    def cudaRegisterManagedVar(self, _: int, module: int, host: int, name: int, size: int) -> None:
        """Host code goes through the pointer at `host`, and asks for the symbol at what it points to."""
        self._managed.setdefault(module, []).append(raw.text(name))
        for one in self._modules[module]:
            address = one.place(self._memory, self._managed[module]).get(raw.text(name))
            if address is not None:
                raw.put(host, address)
                self._variables[address] = module, raw.text(name)

    def cudaGetSymbolAddress(self, _: int, to: int, host: int) -> None:
        raw.put(to, self.symbol(host)[0])

    def cudaGetSymbolSize(self, _: int, to: int, host: int) -> None:
        raw.put(to, self.symbol(host)[1])

    def kernel(self, host: int) -> tuple[Module, str]:
        """Return a kernel's module and PTX name."""
        handle, name = self._kernels.get(host, (0, ""))
        for module in self._modules.get(handle, ()):
            if name in module.entries:
                module.place(self._memory, self._managed.get(handle, ()))
                return module, name
        raise Misuse(INVALID_FUNCTION, f"there is no PTX of {name or 'that kernel'}")

    def symbol(self, host: int) -> tuple[int, int]:
        """Return the address and the size of a variable."""
        handle, name = self._variables.get(host, (0, ""))
        for module in self._modules.get(handle, ()):
            if name in module.variables:
                places = module.place(self._memory, self._managed.get(handle, ()))
                return places[name], module.variables[name].size
        if not name:
            raise Misuse(INVALID_SYMBOL, "that is no variable of the device")
        raise EmulatorError(f"nvcc left out the variable {name}: no kernel uses it")
