"""Device memory for all draws: random inputs that are made once, and outputs that are compared on the GPU.

The operands of every draw are views of one buffer that is filled once for each element type; making them
costs nothing. Its elements are standard normal, padding included. The outputs of cuBLAS are one part of a
second buffer and those of everything else another, so that the two can be compared while both are there.
"""

from __future__ import annotations

import ctypes
import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.driver import Buffer, Context, Module, Stream, fill_u32
from harness.errors import OutOfMemory
from harness.kernels import spec
from harness.kernels.arch import Arch
from harness.kernels.compiler import compile_kernel
from harness.kernels.dtypes import DTYPES
from harness.launch.fresh.code import KINDS, Code
from harness.problems import bounds
from harness.problems.gemm import Gemm
from harness.support.resources import Closing

SOURCE = Path(__file__).with_name("compare.cu")
_ALIGN = 256  # bytes: what an allocation of its own would have, and cuBLAS's heuristics assume
_OVER_L2 = 2
_MOST_SETS = 256
_SHARE = 0.4  # of the free memory, for inputs and again for outputs, where there is less than is asked for
_FOUND = np.dtype(
    [(name, "f8") for name in ("differences", "outputs", "halves")]
    + [(name, "u8") for name in ("worst", "bad", "first", "stray")]
)
_BLOCKS_AN_SM = 8
_APART = 3.0  # the rms of differences over that of one side's errors: 2 if both have all they may


@dataclass(frozen=True)
class View:
    """A matrix in the pool: its address and size in bytes."""

    ptr: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Sets:
    """The operands of one product in the pool: `buffers` has A, B and C of each set, as `Operands` has.

    `footprint` is the bytes of all sets.
    """

    context: Context
    problem: Gemm
    buffers: list[dict[str, View]]

    @property
    def footprint(self) -> int:
        """The bytes that one launch on each set visits, padding included."""
        return sum(view.nbytes for copy in self.buffers for view in copy.values())


class Pool(Closing):
    """The memory, `asked` bytes for inputs and as many for outputs, or less where the GPU has not so much."""

    def __init__(self, context: Context, stream: Stream, asked: int) -> None:
        self.context, self._stream = context, stream
        free, _ = context.memory_info()
        self.size = min(asked, int(free * _SHARE)) // _ALIGN * _ALIGN
        with ExitStack() as owned:
            self._inputs, self._outputs = (owned.enter_context(Buffer(context, self.size)) for _ in range(2))
            self._code = owned.enter_context(Code(context))
            self._found = owned.enter_context(Buffer(context, _FOUND.itemsize))
            arch = str(Arch.of_capability(*context.device.capability))
            cubin = compile_kernel(spec.load(SOURCE).variant(), arch)
            module = owned.enter_context(Module(context, cubin.code))
            self._compare = module.function(cubin.entry)
            self._table = owned.enter_context(self._code.table([self._inputs.ptr], stream))
            self._owned = owned.pop_all()

    def fill(self, dtype: str, seed: int) -> None:
        """Queue filling the inputs with random numbers of an element type (a key of `DTYPES`)."""
        kind = DTYPES[dtype]
        count = self.size // kind.itemsize
        u64, u32 = np.uint64, np.uint32
        arguments = [self._table, u64(1), u64(count), u64(count), u64(seed), np.float32(1)]
        arguments += [u32(0), u32(KINDS[kind.storage]), u32(1)]
        self._code.prepare("fill", count, arguments)(self._stream)

    def sets(self, problem: Gemm) -> tuple[Sets, Sets]:
        """Return the operands of a product, in so many sets that they are twice as large as the L2 cache.

        The two results share A and B; the C of the second are for the reference. There are at most 256 sets.
        Raises OutOfMemory if not even one fits.
        """
        a, b, c = (
            View(0, x.rows * x.ld * x.dtype.itemsize) for x in (problem.layouts()[name] for name in "ABC")
        )
        inputs, output = _aligned(a.nbytes) + _aligned(b.nbytes), _aligned(c.nbytes)
        fitting = min(self.size // inputs, self.size // 2 // output)
        if fitting < 1:
            raise OutOfMemory(f"{problem.label} does not fit the {self.size >> 20} MiB of the pool")
        wanted = math.ceil(_OVER_L2 * self.context.device.l2_bytes / (inputs + output))
        count = min(fitting, wanted, _MOST_SETS)
        made = []
        for start in (self._outputs.ptr, self._outputs.ptr + self.size // 2 // _ALIGN * _ALIGN):
            buffers = []
            for i in range(count):
                at = self._inputs.ptr + i * inputs
                buffers.append(
                    {
                        "A": View(at, a.nbytes),
                        "B": View(at + _aligned(a.nbytes), b.nbytes),
                        "C": View(start + i * output, c.nbytes),
                    }
                )
            made.append(Sets(context=self.context, problem=problem, buffers=buffers))
        return made[0], made[1]

    def blank(self, sets: Sets) -> None:
        """Queue writing 0xFF, which is NaN in all types, into all outputs of `sets`."""
        first, last = sets.buffers[0]["C"], sets.buffers[-1]["C"]
        size = last.ptr - first.ptr + _aligned(last.nbytes)
        fill_u32(first.ptr, 0xFFFFFFFF, size // 4, self._stream)

    def wrong(self, mine: Sets, reference: Sets) -> str:
        """Wait, and return in words how the outputs of `mine` differ from the reference; empty if they agree.

        Two right results differ by the errors of both: by element, and in the root mean square of all, by
        `harness.problems.bounds` for standard normal inputs.
        """
        problem, dtype = mine.problem, mine.problem.dtype
        M, N, K, ld = problem.M, problem.N, problem.K, problem.ldc
        first = [sets.buffers[0]["C"].ptr for sets in (mine, reference)]
        count, stride = len(mine.buffers), _aligned(mine.buffers[0]["C"].nbytes)
        narrow = dtype.itemsize < 4
        precision = dtype.precision if narrow else 0
        arguments: list[Any] = [np.uint64(x) for x in (*first, stride)]
        arguments += [self._found, *(np.uint64(x) for x in (M, N, ld)), np.float64(2 * _by_element(problem))]
        arguments += [np.int32(precision), np.int32(dtype.emin), np.uint32(KINDS[dtype.storage])]
        blocks = max(1, min(-(-M * ld // 256), _BLOCKS_AN_SM * self.context.device.sms))
        self._found.fill_u32(0, self._stream)
        self._compare.prepare((blocks, count), 256, arguments)(self._stream)
        found = np.zeros(1, _FOUND)
        self._found.download(found, self._stream)
        (seen,) = found
        elements = count * M * N
        if seen["bad"]:
            place = ~int(seen["first"]) & (2**64 - 1)
            worst = ctypes.c_double.from_buffer(ctypes.c_uint64(int(seen["worst"]))).value
            row, column = divmod(place, ld)
            many = f"{seen['bad']} of {elements} elements differ from cuBLAS's"
            return f"{many}, one at [{row},{column}], by up to {worst:.3g} times the bounds"
        if seen["stray"]:
            return f"{seen['stray']} elements of C's padding were written"
        # Of random inputs, as if they came out a little larger than they should.
        squares = K + 8 * math.sqrt(K)
        outputs, halves = float(seen["outputs"]) / elements, float(seen["halves"]) / elements
        most = _APART * bounds.root_mean_square(
            dtype, (count * M, N, K), squares=squares, outputs=outputs, halves=halves if narrow else 0.0
        )
        rms = math.sqrt(float(seen["differences"]) / elements)
        if not rms <= most:
            return (
                f"it differs from cuBLAS by {rms:.3g} (rms); two right results differ by {most:.3g} at most"
            )
        return ""

    def close(self) -> None:
        self._owned.close()


def _by_element(problem: Gemm) -> float:
    """Return a bound on each element's error for standard normal inputs, without rounding to a narrow type.

    As in `harness.problems.bounds`, with |A||B| of such inputs: a mean of 2 / pi for each product.
    """
    dtype, K = problem.dtype, problem.K
    magnitudes = 2 / math.pi * K + 8 * math.sqrt(K)
    bound = bounds.summing(dtype, K) * magnitudes + bounds.smallest(K)
    unit = bounds.reading(dtype)
    typical = math.sqrt(K + 8 * math.sqrt(K))
    return bound + min((2 * unit + unit**2) * magnitudes, 8 * math.sqrt(2 / 3) * (1 + unit) * unit * typical)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
