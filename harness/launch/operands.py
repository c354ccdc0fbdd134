"""The operands of a problem in device memory, in as many copies as a cold measurement needs.

After launches, they give a verdict on each output and name the inputs that were overwritten.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from harness.driver import Buffer, Context, Stream
from harness.errors import OutOfMemory
from harness.kernels.dtypes import DType
from harness.launch.fingerprint import Fingerprint, Fingerprints
from harness.problems import checks
from harness.problems.protocol import Problem, Reference
from harness.problems.verify import Verdict, compare
from harness.support.resources import Closing

MAX_SETS = 512  # copies of the operands; tiny problems still fit the L2 cache, and are then not `cold`
_MEMORY_SHARE = 0.5  # fraction of the free device memory for all copies; a single one may take more


@dataclass(frozen=True, kw_only=True)
class Data:
    """A problem's data on the host: every operand by name, and the reference result."""

    host: dict[str, NDArray[Any]]
    reference: Reference

    @classmethod
    def of(cls, problem: Problem, seed: int) -> Self:
        """Make the operands from a random seed, and compute the reference.

        Raises OutOfMemory if they do not fit in host memory, and SpecError if they do not fit the problem.
        """
        try:
            host, reference = checks.data(problem, seed)
            return cls(host=host, reference=reference)
        except MemoryError:
            raise OutOfMemory(
                f"{problem.label}: the inputs and their float64 reference do not fit in host memory",
                hint="choose a smaller size with -a",
            ) from None


class Operands(Closing):
    """Copies of one problem's operands in device memory, called sets: the same data at different addresses.

    Launches use the sets in turn. If all together are large enough (`cold`), a launch finds none of its
    inputs in the L2 cache. Kernels and baseline share one Operands, so that all are measured on the same
    memory.
    """

    def __init__(
        self,
        context: Context,
        problem: Problem,
        stream: Stream,
        *,
        seed: int,
        sets: int,
        data: Callable[[], Data] | None = None,
    ) -> None:
        """Make the data from `seed`, allocate `sets` copies of the operands and upload them.

        `data`, if given, is called to supply the data instead of `Data.of`. Raises OutOfMemory, before
        anything is made or allocated, if not even one set fits in the free device memory.
        """
        free, _ = context.memory_info()
        if problem.buffer_bytes > free:
            raise OutOfMemory(
                f"{problem.label} needs {_gib(problem.buffer_bytes)} of device memory, {_gib(free)} is free",
                hint="choose a smaller size with -a",
            )
        self.context, self.problem, self.seed = context, problem, seed
        made = data() if data else Data.of(problem, seed)
        self.host, self.reference = made.host, made.reference
        self.buffers: list[dict[str, Buffer]] = []
        self._known = _Known(context, self.reference, self.host[problem.output])
        with ExitStack() as undo:
            undo.callback(self.close)
            for _ in range(sets):
                copy = {name: Buffer(context, array.nbytes) for name, array in self.host.items()}
                self.buffers.append(copy)
                for name, array in self.host.items():
                    if self.buffers[0] is copy:
                        copy[name].upload(array, stream)
                    else:
                        copy[name].copy_from(self.buffers[0][name], stream)
            self._intact = self._inputs(stream)
            undo.pop_all()

    @property
    def bytes(self) -> int:
        """The bytes that one launch on each set reads and writes, without padding."""
        return len(self.buffers) * self.problem.bytes

    @property
    def cold(self) -> bool:
        """True if there are several sets and one launch on each touches at least twice the L2 cache."""
        return len(self.buffers) > 1 and self.bytes >= 2 * self.context.device.l2_bytes

    def fill_output(self, stream: Stream, *, spoilt: bool = False) -> None:
        """Fill the output of every set with its initial contents, and wait until that is done.

        These are NaN, or the C that beta multiplies. If `spoilt`, fill them with a value that no result has.
        """
        content, word = self._known.filling(spoilt)
        outputs = [copy[self.problem.output] for copy in self.buffers]
        if word is not None:
            for output in outputs:
                output.fill_u32(word, stream)
        else:
            outputs[0].upload(content, stream)
            for output in outputs[1:]:
                output.copy_from(outputs[0], stream)
        stream.synchronize()

    def verdicts(self, stream: Stream, *, sets: int, spoilt: bool = False) -> Iterator[Verdict]:
        """Yield the verdict on the output of each of the first `sets` sets.

        `spoilt` must be what `fill_output` was called with before the launches.
        """
        outputs = [copy[self.problem.output] for copy in self.buffers[:sets]]
        return self._known.verdicts(outputs, stream, spoilt=spoilt)

    def repeated(
        self, launch: Callable[[Stream], object], stream: Stream, count: int
    ) -> Iterator[Fingerprint]:
        """Yield fingerprints of the first set's output: of its present contents, then after each new launch.

        `launch` must run on the first set. It is called `count` times, each time after the output has been
        filled with its initial contents again. Hundreds of launches are queued at a time, and no output is
        downloaded.
        """
        output = self.buffers[0][self.problem.output]
        content, word = self._known.filling(False)
        with ExitStack() as owned:
            fresh = None
            if word is None:
                fresh = owned.enter_context(Buffer(self.context, output.nbytes))
                fresh.upload(content, stream)

            def outputs() -> Iterator[Buffer]:
                yield output
                for _ in range(count):
                    if fresh is not None:
                        output.copy_from(fresh, stream)
                    elif word is not None:
                        output.fill_u32(word, stream)
                    launch(stream)
                    yield output

            yield from self._known.fingerprints.of(outputs(), stream)

    def damaged_inputs(self, stream: Stream) -> list[str]:
        """Return the names of inputs that launches have overwritten in any set, sorted, and restore them."""
        damaged = set()
        for (number, name), now in self._inputs(stream).items():
            if now != self._intact[number, name]:
                damaged.add(name)
                self.buffers[number][name].upload(self.host[name], stream)
        return sorted(damaged)

    def outputs(self, stream: Stream) -> Iterator[NDArray[Any]]:
        """Yield the output of each set, downloaded into one host array that is reused for the next."""
        for copy in self.buffers:
            copy[self.problem.output].download(self._known.landing, stream)
            yield self._known.landing

    def _inputs(self, stream: Stream) -> dict[tuple[int, str], Fingerprint]:
        """Return the fingerprint of each input, by the number of its set and its name."""
        names = self.host.keys() - {self.problem.output}
        places = list(itertools.product(range(len(self.buffers)), sorted(names)))
        inputs = [self.buffers[number][name] for number, name in places]
        return dict(zip(places, self._known.fingerprints.of(inputs, stream), strict=True))

    def close(self) -> None:
        for copy in reversed(self.buffers):
            for buffer in copy.values():
                buffer.close()
        self.buffers.clear()
        self._known.close()


class Twin(Operands):
    """Operands that borrow the inputs of an `original` and have outputs of their own.

    They are used for a second kernel that is timed in turn with the first, so that it does not overwrite the
    outputs that are checked for the first. The original must outlive them.
    """

    def __init__(self, original: Operands, stream: Stream) -> None:
        self.context, self.problem, self.seed = original.context, original.problem, original.seed
        self.host, self.reference = original.host, original.reference
        self._known, self._intact = original._known, original._intact
        self.buffers, self._own = [], []
        name = self.problem.output
        with ExitStack() as undo:
            undo.callback(self.close)
            for copy in original.buffers:
                self._own.append(Buffer(self.context, copy[name].nbytes))
                self.buffers.append({**copy, name: self._own[-1]})
            self.fill_output(stream)
            undo.pop_all()

    def close(self) -> None:
        for buffer in reversed(self._own):
            buffer.close()
        self._own.clear()
        self.buffers.clear()


class _Known(Closing):
    """Verdicts by the fingerprint of the output, so that the same bits are compared with the reference once.

    It also holds the contents that outputs are filled with; `fresh` is their initial contents. An `Operands`
    and its twins share one.
    """

    def __init__(self, context: Context, reference: Reference, fresh: NDArray[Any]) -> None:
        self.fingerprints = Fingerprints(context)
        self._reference, self._fresh = reference, fresh
        self._padded = fresh.shape != reference.expected.shape
        self._verdicts: dict[tuple[Fingerprint, bool], Verdict] = {}

    def verdicts(self, outputs: Sequence[Buffer], stream: Stream, *, spoilt: bool) -> Iterator[Verdict]:
        """Yield the verdict on each output.

        An output is downloaded and compared in float64 only if no output with the same bits was before.
        """
        for output, found in zip(outputs, self.fingerprints.of(outputs, stream), strict=True):
            key = found, spoilt and self._padded  # the earlier contents matter only for padding
            if key not in self._verdicts:
                output.download(self.landing, stream)
                self._verdicts[key] = compare(self.landing, self._reference, self.filling(spoilt)[0])
            yield self._verdicts[key]

    def filling(self, spoilt: bool) -> tuple[NDArray[Any], int | None]:
        """Return the contents that outputs are filled with, and the 32-bit word that they repeat, or None."""
        return self._spoilt if spoilt else (self._fresh, self._word)

    @cached_property
    def landing(self) -> NDArray[Any]:
        """The host array that outputs are downloaded into."""
        return np.empty_like(self._fresh)

    @cached_property
    def _word(self) -> int | None:
        return _word(self._fresh)

    @cached_property
    def _spoilt(self) -> tuple[NDArray[Any], int | None]:
        wrong = np.array(wrong_value(self._fresh.dtype, self._reference.dtype), self._fresh.dtype)
        word = None if self._fresh.nbytes % 4 else _word(np.tile(wrong, 4))
        everywhere = np.broadcast_to(wrong, self._fresh.shape)
        return everywhere if word is not None else everywhere.copy(), word  # an upload needs real memory

    def close(self) -> None:
        self.fingerprints.close()


def _word(array: NDArray[Any]) -> int | None:
    """Return the 32-bit word that the array's bytes repeat, or None."""
    if array.nbytes % 4:
        return None
    words = array.reshape(-1).view(np.uint32)
    return int(words[0]) if bool((words == words[0]).all()) else None


def wrong_value(dtype: np.dtype[Any], element: DType | None) -> Any:
    """Return the largest finite number of the type, as an element of an output with this NumPy `dtype`.

    No result has it, and unlike NaN it does not mark an output as never written. `element` is the element
    type where the NumPy type does not tell it (bf16 is stored as uint16).
    """
    if element is not None:
        return element.encode(np.full(1, element.largest, np.float32))[0]
    return np.finfo(dtype).max if dtype.kind == "f" else np.iinfo(dtype).max


def rotation_sets(context: Context, problem: Problem) -> int:
    """Return how many copies of the operands a cold measurement needs: enough to touch twice the L2 cache.

    That is NVIDIA's guideline for measuring GEMMs. At least two copies, at most `MAX_SETS`, and no more than
    fit in half of the free device memory (which may leave one).
    """
    wanted = max(2, math.ceil(2 * context.device.l2_bytes / max(1, problem.bytes)))
    free, _ = context.memory_info()
    fitting = int(free * _MEMORY_SHARE) // problem.buffer_bytes
    return max(1, min(wanted, MAX_SETS, fitting))


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
