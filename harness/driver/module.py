"""Loaded cubins and the kernels in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness.driver import api
from harness.driver.context import Context, Resource
from harness.driver.launch import Dims, PreparedLaunch
from harness.driver.stream import Stream
from harness.errors import DriverError, UsageError

_NOT_FOUND = 500
_INVALID_VALUE = 1
_DEFAULT_SHARED = 48 * 1024  # a block gets this much, static and dynamic together, without opting in
_WARP = 32


class Module(Resource):
    """A cubin loaded into a context.

    Raises UsageError for fewer than 4 bytes, and DriverError if the driver refuses the cubin: damaged, or
    built for another architecture.
    """

    free_call = "cuModuleUnload"

    def __init__(self, context: Context, cubin: bytes) -> None:
        # The bindings write into the bytes they are given, and Python shares each bytes object of length 1
        # across the whole process. Nothing this short is a cubin anyway.
        if len(cubin) < 4:
            raise UsageError(f"{len(cubin)} bytes are not a cubin")
        super().__init__(context, context.call("cuModuleLoadData", cubin))

    def function(self, name: str) -> Function:
        """Return the kernel of this name (mangled, unless declared ``extern "C"``), loaded onto the GPU.

        Raises DriverError, with the names of the kernels that are there, if there is no such kernel.
        """
        try:
            handle = self.context.call("cuModuleGetFunction", self.handle, name.encode())
        except DriverError as error:
            if error.code != _NOT_FOUND:
                raise
            held = ", ".join(self.names) or "no kernel"
            raise DriverError(
                f"{error.what}: there is no kernel {name!r}",
                call=error.call,
                code=error.code,
                name=error.name,
                hint=f'the cubin holds {held}; without extern "C" the names are mangled',
            ) from None
        # Load the kernel now: the driver would do so at the first launch, and loading may wait for the
        # device, which behind a closed Gate would never end.
        self.context.call("cuFuncLoad", handle)
        return Function(self, name, handle)

    def write(self, name: str, values: Any, stream: Stream) -> None:
        """Set a ``__constant__`` or ``__device__`` variable, by its mangled name, from a NumPy array.

        Returns when the copy is done. Raises DriverError if there is no such variable, and UsageError if it
        has another size than the C-contiguous `values`.
        """
        address, size = self.context.call("cuModuleGetGlobal", self.handle, name.encode())
        if int(size) != values.nbytes:
            raise UsageError(f"the variable {name} has {int(size)} bytes, not {values.nbytes}")
        self.context.call("cuMemcpyHtoDAsync", address, values.ctypes.data, values.nbytes, stream.handle)
        stream.synchronize()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the kernels in the cubin."""
        count = self.context.call("cuModuleGetFunctionCount", self.handle)
        handles = self.context.call("cuModuleEnumerateFunctions", count, self.handle)
        return tuple(self.context.call("cuFuncGetName", handle).decode() for handle in handles)


@dataclass(frozen=True, kw_only=True)
class FunctionAttributes:
    """The resources of a compiled kernel.

    `registers` and `local_bytes` are per thread, `static_shared` and `max_threads` per block, and
    `const_bytes` is the size of the ``__constant__`` variables that the kernel needs. Versions are 10 * major
    + minor: 90 is 9.0.
    """

    registers: int
    """A thread."""
    static_shared: int
    """Bytes a block."""
    local_bytes: int
    """Bytes a thread: spills, stack and local arrays."""
    const_bytes: int
    max_threads: int
    """Most threads a block may have, given the registers and the launch bounds."""
    ptx_version: int
    binary_version: int


class Function:
    """A kernel. It keeps its module alive, and raises UsageError once the module is closed by hand."""

    def __init__(self, module: Module, name: str, handle: Any) -> None:
        self.module = module
        self.context = module.context
        self.name = name
        self._handle = handle
        self._dynamic_allowed = 0

    @property
    def handle(self) -> Any:
        """The bindings' handle. Raises UsageError once the module is closed."""
        _ = self.module.handle
        return self._handle

    @cached_property
    def attributes(self) -> FunctionAttributes:
        """The kernel's resources, as the driver reports them."""
        return FunctionAttributes(
            registers=self._attribute("NUM_REGS"),
            static_shared=self._attribute("SHARED_SIZE_BYTES"),
            local_bytes=self._attribute("LOCAL_SIZE_BYTES"),
            const_bytes=self._attribute("CONST_SIZE_BYTES"),
            max_threads=self._attribute("MAX_THREADS_PER_BLOCK"),
            ptx_version=self._attribute("PTX_VERSION"),
            binary_version=self._attribute("BINARY_VERSION"),
        )

    @cached_property
    def compiled_cluster(self) -> tuple[int, int, int] | None:
        """The blocks (x, y, z) of a cluster if the kernel fixes them (``__cluster_dims__``), or else None."""
        if self.context.device.capability < (9, 0):
            return None
        x, y, z = (self._attribute(f"REQUIRED_CLUSTER_{side}") for side in ("WIDTH", "HEIGHT", "DEPTH"))
        return (x, y, z) if x and y and z else None

    def _attribute(self, name: str) -> int:
        """Return ``CU_FUNC_ATTRIBUTE_<name>`` of the kernel."""
        attribute = getattr(api.bindings().CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(self.context.call("cuFuncGetAttribute", attribute, self.handle))

    @cached_property
    def parameter_sizes(self) -> tuple[int, ...]:
        """The size in bytes of each parameter, as the cubin records it."""
        sizes: list[int] = []
        while True:
            try:
                _, size = self.context.call("cuFuncGetParamInfo", self.handle, len(sizes))
            except DriverError as error:
                if error.code != _INVALID_VALUE:
                    raise
                return tuple(sizes)  # the driver has no other way to tell the number of parameters
            sizes.append(int(size))

    def max_active_blocks(self, threads: int, dynamic_shared: int = 0) -> int:
        """Return how many blocks an SM holds at once.

        `threads` are those of a block, `dynamic_shared` its dynamic shared memory in bytes. Raises UsageError
        if the GPU does not have that much.
        """
        self.allow_shared(dynamic_shared)
        return int(
            self.context.call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor", self.handle, threads, dynamic_shared
            )
        )

    def occupancy(self, threads: int, dynamic_shared: int = 0) -> float:
        """Return the theoretical occupancy: the warps that fit on an SM over the most it can hold, 0 to 1.

        The arguments are those of `max_active_blocks`. The occupancy reached at run time may be lower.
        """
        warps = self.max_active_blocks(threads, dynamic_shared) * -(-threads // _WARP)
        return warps / (self.context.device.max_threads_per_sm // _WARP)

    def prepare(
        self,
        grid: Dims,
        block: Dims,
        args: Sequence[Any],
        *,
        shared: int = 0,
        cluster: Dims | None = None,
        cooperative: bool = False,
        programmatic: bool = False,
    ) -> PreparedLaunch:
        """Check and pack a launch once, to run it often: ``launch = f.prepare(...); launch(stream)``.

        `grid` (blocks), `block` (threads) and `cluster` (blocks) are an int or up to three, x first; `shared`
        is dynamic shared memory in bytes per block. `args` are, in the kernel's order: a `Buffer` (or
        anything with ``__cuda_array_interface__``) for a pointer; NumPy or ctypes scalars and ctypes
        structures for values; `Struct` for raw bytes. Plain ints and floats are refused, since their size
        would be a guess.

        With `cooperative`, either all blocks run at the same time, so that they may wait for one another, or
        the launch fails. With `programmatic` it may begin before the kernel that was launched before it in
        the stream has ended (programmatic dependent launch; without effect below compute capability 9.0): the
        kernel itself waits for that, with ``griddepcontrol.wait``, before it touches global memory.

        Raises UsageError for impossible dimensions, too much shared memory, or arguments whose number or
        sizes are not those of the kernel's parameters.
        """
        return PreparedLaunch(
            self,
            grid,
            block,
            args,
            shared=shared,
            cluster=cluster,
            cooperative=cooperative,
            programmatic=programmatic,
        )

    def allow_shared(self, dynamic: int) -> None:
        """Opt in to `dynamic` bytes of dynamic shared memory per block.

        Raises UsageError if a block cannot have that much on this GPU beside its static shared memory.
        """
        static = self.attributes.static_shared
        limit = self.context.device.shared_per_block_optin
        if not 0 <= dynamic <= limit - static:
            raise UsageError(
                f"{self.name}: {dynamic} bytes of dynamic shared memory do not fit: a block on "
                f"{self.context.device.name} has {limit}, {static} of them static here"
            )
        if static + dynamic > _DEFAULT_SHARED and dynamic > self._dynamic_allowed:
            attribute = api.bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.context.call("cuFuncSetAttribute", self.handle, attribute, dynamic)
            self._dynamic_allowed = dynamic
