"""What the code that nvcc adds to a program registers: modules, kernels and variables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from harness.errors import EmulatorError
from harness.programs.runtime import host
from harness.programs.runtime.host import INVALID_FUNCTION, INVALID_SYMBOL, Misuse
from harness.programs.runtime.linking import join
from harness.programs.runtime.memory import DeviceMemory
from harness.programs.runtime.modules import Module, ordered, texts

_LINKED = 1  # the handle of what is compiled apart


class Registered:
    """Modules by handle; kernels and variables by what host code has of them, the address of a stub or of a
    variable of its own.

    The functions are those of CUDA's runtime, without the underscores before their names.
    """

    def __init__(self, memory: DeviceMemory, sources: Sequence[str]) -> None:
        self._memory, self._sources = memory, sources
        self._handles = itertools.count(_LINKED + 1)
        self._apart: list[str] = []
        self._modules: dict[int, list[Module]] = {}
        self._kernels: dict[int, tuple[int, str]] = {}
        self._variables: dict[int, tuple[int, str]] = {}
        self._managed: dict[int, list[str]] = {}

    def cudaRegisterFatBinary(self, _: int, binary: int) -> int:
        handle = next(self._handles)
        self._modules[handle] = [Module(ptx=ordered(text, self._sources)) for text in texts(binary)]
        return handle

    def a_linked_binary(self, caller: int, binary: int) -> int:
        """Join what is compiled apart to one module; return its handle."""
        self._apart += texts(binary)
        self._modules[_LINKED] = [Module(ptx=ordered(join(self._apart), self._sources))]
        return _LINKED

    def cudaUnregisterFatBinary(self, _: int, module: int) -> None:
        """Keep the module: destructors may launch."""

    def cudaRegisterFunction(self, _: int, module: int, stub: int, name: int) -> None:
        self._kernels[stub] = module, host.text(name)

    def cudaRegisterVar(self, _: int, module: int, stub: int, name: int, size: int) -> None:
        self._variables[stub] = module, host.text(name)

    def cudaRegisterManagedVar(self, _: int, module: int, stub: int, name: int, size: int) -> None:
        """Host code goes through the pointer at `stub`, and asks for the symbol at what it points to."""
        self._managed.setdefault(module, []).append(host.text(name))
        for one in self._modules[module]:
            address = one.place(self._memory, self._managed[module]).get(host.text(name))
            if address is not None:
                host.put(stub, address)
                self._variables[address] = module, host.text(name)

    def cudaGetSymbolAddress(self, _: int, to: int, stub: int) -> None:
        host.put(to, self.symbol(stub)[0])

    def cudaGetSymbolSize(self, _: int, to: int, stub: int) -> None:
        host.put(to, self.symbol(stub)[1])

    def kernel(self, stub: int) -> tuple[Module, str]:
        """Return a kernel's module and PTX name."""
        handle, name = self._kernels.get(stub, (0, ""))
        for module in self._modules.get(handle, ()):
            if name in module.entries:
                module.place(self._memory, self._managed.get(handle, ()))
                return module, name
        raise Misuse(INVALID_FUNCTION, f"there is no PTX of {name or 'that kernel'}")

    def symbol(self, stub: int) -> tuple[int, int]:
        """Return the address and the size of a variable."""
        handle, name = self._variables.get(stub, (0, ""))
        for module in self._modules.get(handle, ()):
            if name in module.variables:
                places = module.place(self._memory, self._managed.get(handle, ()))
                return places[name], module.variables[name].size
        if not name:
            raise Misuse(INVALID_SYMBOL, "that is no variable of the device")
        raise EmulatorError(f"nvcc left out the variable {name}: no kernel uses it")
