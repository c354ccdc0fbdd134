"""Loaded cubins and the kernels in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness.driver import api
from harness.driver.context import Context, Resource
from harness.driver.launch import Dims, PreparedLaunch
from harness.errors import DriverError, UsageError

_NOT_FOUND = 500
_INVALID_VALUE = 1
_DEFAULT_SHARED = 48 * 1024  # a block gets this much, static and dynamic together, without opting in
_WARP = 32


class Module(Resource):
    """A cubin loaded into a context. Made for one architecture: another GPU refuses it (`DriverError`)."""

    free_call = "cuModuleUnload"

    def __init__(self, context: Context, cubin: bytes) -> None:
        # The bindings write into the bytes they are given, and a length-1 bytes is one object shared by
        # the whole process; anything this short is no cubin anyway.
        if len(cubin) < 4:
            raise UsageError(f"{len(cubin)} bytes are not a cubin")
        super().__init__(context, context.call("cuModuleLoadData", cubin))

    def function(self, name: str) -> Function:
        """The kernel of that name (mangled, unless ``extern "C"``).

        `DriverError`, naming the kernels that are there, if it is not.
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
        # Kernels load lazily, at the first launch at the latest, and loading may wait for the device:
        # behind a closed Gate that would be forever.
        self.context.call("cuFuncLoad", handle)
        return Function(self, name, handle)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The kernels in the cubin."""
        count = self.context.call("cuModuleGetFunctionCount", self.handle)
        handles = self.context.call("cuModuleEnumerateFunctions", count, self.handle)
        return tuple(self.context.call("cuFuncGetName", handle).decode() for handle in handles)


@dataclass(frozen=True, kw_only=True)
class FunctionAttributes:
    """What the compiler made of a kernel. Versions are 10 * major + minor: 90 is 9.0."""

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
    """A kernel. Keeps its module alive, and refuses to work once that is closed by hand."""

    def __init__(self, module: Module, name: str, handle: Any) -> None:
        self.module = module
        self.context = module.context
        self.name = name
        self._handle = handle
        self._dynamic_allowed = 0

    @property
    def handle(self) -> Any:
        """The bindings' handle. `UsageError` once the module is closed."""
        _ = self.module.handle
        return self._handle

    @cached_property
    def attributes(self) -> FunctionAttributes:
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
        """Blocks (x, y, z) of a cluster where the kernel says so itself (``__cluster_dims__``)."""
        if self.context.device.capability < (9, 0):
            return None
        x, y, z = (self._attribute(f"REQUIRED_CLUSTER_{side}") for side in ("WIDTH", "HEIGHT", "DEPTH"))
        return (x, y, z) if x and y and z else None

    def _attribute(self, name: str) -> int:
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
                return tuple(sizes)  # there is no other way to ask how many there are
            sizes.append(int(size))

    def max_active_blocks(self, threads: int, dynamic_shared: int = 0) -> int:
        """How many blocks of that many threads and bytes of dynamic shared memory an SM holds at once."""
        self.allow_shared(dynamic_shared)
        return int(
            self.context.call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor", self.handle, threads, dynamic_shared
            )
        )

    def occupancy(self, threads: int, dynamic_shared: int = 0) -> float:
        """Active warps over the most an SM can hold, 0 to 1: what fits, not what is reached."""
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
    ) -> PreparedLaunch:
        """Check and pack a launch once, to run it often: ``launch = f.prepare(...); launch(stream)``.

        `grid` (blocks), `block` (threads) and `cluster` (blocks) are an int or up to three, x first;
        `shared` is dynamic shared memory in bytes a block. `args` are, in the kernel's order: a `Buffer`
        (or anything with ``__cuda_array_interface__``) for a pointer; NumPy or ctypes scalars and
        ctypes structures for values; `Struct` for raw bytes. Plain ints and floats are refused, for
        their size is a guess.

        `cooperative`: all blocks run at the same time, so that they may wait for one another, or the
        launch fails.

        `UsageError` if a dimension, the shared memory or the number or size of the arguments cannot be.
        """
        return PreparedLaunch(
            self, grid, block, args, shared=shared, cluster=cluster, cooperative=cooperative
        )

    def allow_shared(self, dynamic: int) -> None:
        """Opt in to that many bytes of dynamic shared memory a block; `UsageError` if the GPU has less."""
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
