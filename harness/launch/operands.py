"""The operands of a problem on a device, in as many copies as a cold measurement needs, and what became of
them: the verdict on each output, and which inputs were overwritten.
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

MAX_SETS = 512  # copies of the operands; tiny problems stay inside the L2 cache beyond this, and say so
_MEMORY_SHARE = 0.5  # of the free device memory, at most, for copies beyond the first


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is made on the host: every operand, and the answer."""

    host: dict[str, NDArray[Any]]
    reference: Reference

    @classmethod
    def of(cls, problem: Problem, seed: int) -> Self:
        try:
            host, reference = checks.data(problem, seed)
            return cls(host=host, reference=reference)
        except MemoryError:
            raise OutOfMemory(
                f"{problem.label}: the inputs and their float64 reference do not fit in host memory",
                hint="choose a smaller size with -a",
            ) from None


class Operands(Closing):
    """Device copies (`sets`) of one problem's operands: the same data at different addresses.

    Launches that go round them find none of their inputs in the L2 cache once the copies together exceed
    it (`cold`). Kernels and baseline share one Operands, so each is measured on the same memory.
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
        """`data`: gives what `Data.of` would make, where somebody has it already.

        Raises OutOfMemory before anything is made or allocated where one set does not fit.
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
        """What a round of the sets touches, padding left out."""
        return len(self.buffers) * self.problem.bytes

    @property
    def cold(self) -> bool:
        """Whether a round of the sets displaces at least twice the L2 cache."""
        return len(self.buffers) > 1 and self.bytes >= 2 * self.context.device.l2_bytes

    def fill_output(self, stream: Stream, *, spoilt: bool = False) -> None:
        """Every output as the problem made it, NaN or the C that beta multiplies; or `spoilt`, with numbers
        that no result has.
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
        """On the outputs of the first `sets` sets, filled before as `fill_output` was told."""
        outputs = [copy[self.problem.output] for copy in self.buffers[:sets]]
        return self._known.verdicts(outputs, stream, spoilt=spoilt)

    def repeated(
        self, launch: Callable[[Stream], object], stream: Stream, count: int
    ) -> Iterator[Fingerprint]:
        """Of the first set's output: as it is, then as each of `count` launches on that set leaves it, all of
        it filled anew before. They are queued by the hundred, and no output is downloaded.
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
        """Inputs that some launch has overwritten, in any set; they are put right again."""
        damaged = set()
        for (number, name), now in self._inputs(stream).items():
            if now != self._intact[number, name]:
                damaged.add(name)
                self.buffers[number][name].upload(self.host[name], stream)
        return sorted(damaged)

    def outputs(self, stream: Stream) -> Iterator[NDArray[Any]]:
        """The output of each set, downloaded one at a time into one host array that is reused."""
        for copy in self.buffers:
            copy[self.problem.output].download(self._known.landing, stream)
            yield self._known.landing

    def _inputs(self, stream: Stream) -> dict[tuple[int, str], Fingerprint]:
        """The fingerprint of each, by number of its set and name."""
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
    """The inputs of other operands, which are borrowed, and outputs of its own: for a second kernel that
    runs in turn with the first without writing what the first is verified by.
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
    """What need not be found out twice about outputs; twins share it."""

    def __init__(self, context: Context, reference: Reference, fresh: NDArray[Any]) -> None:
        self.fingerprints = Fingerprints(context)
        self._reference, self._fresh = reference, fresh
        self._padded = fresh.shape != reference.expected.shape
        self._verdicts: dict[tuple[Fingerprint, bool], Verdict] = {}

    def verdicts(self, outputs: Sequence[Buffer], stream: Stream, *, spoilt: bool) -> Iterator[Verdict]:
        """Each by element in float64 on the host, but the same bits only once."""
        for output, found in zip(outputs, self.fingerprints.of(outputs, stream), strict=True):
            key = found, spoilt and self._padded  # only of padding does it matter what was there before
            if key not in self._verdicts:
                output.download(self.landing, stream)
                self._verdicts[key] = compare(self.landing, self._reference, self.filling(spoilt)[0])
            yield self._verdicts[key]

    def filling(self, spoilt: bool) -> tuple[NDArray[Any], int | None]:
        """What an output is filled with, and the word that this repeats, if it is a single one."""
        return self._spoilt if spoilt else (self._fresh, self._word)

    @cached_property
    def landing(self) -> NDArray[Any]:
        return np.empty_like(self._fresh)

    @cached_property
    def _word(self) -> int | None:
        return _word(self._fresh)

    @cached_property
    def _spoilt(self) -> tuple[NDArray[Any], int | None]:
        wrong = np.array(wrong_value(self._fresh.dtype, self._reference.dtype), self._fresh.dtype)
        word = None if self._fresh.nbytes % 4 else _word(np.tile(wrong, 4))
        everywhere = np.broadcast_to(wrong, self._fresh.shape)
        return everywhere if word is not None else everywhere.copy(), word  # a copy can be uploaded

    def close(self) -> None:
        self.fingerprints.close()


def _word(array: NDArray[Any]) -> int | None:
    if array.nbytes % 4:
        return None
    words = array.reshape(-1).view(np.uint32)
    return int(words[0]) if bool((words == words[0]).all()) else None


def wrong_value(dtype: np.dtype[Any], element: DType | None) -> Any:
    """The largest there is: no result has it, and unlike NaN it is not what an empty output is known by."""
    if element is not None:
        return element.encode(np.full(1, element.largest, np.float32))[0]
    return np.finfo(dtype).max if dtype.kind == "f" else np.iinfo(dtype).max


def rotation_sets(context: Context, problem: Problem) -> int:
    """How many copies of the operands displace twice the L2 cache (NVIDIA's GEMM measurement guideline):
    at least two, at most MAX_SETS, and no more than half of the free memory holds.
    """
    wanted = max(2, math.ceil(2 * context.device.l2_bytes / max(1, problem.bytes)))
    free, _ = context.memory_info()
    fitting = int(free * _MEMORY_SHARE) // problem.buffer_bytes
    return max(1, min(wanted, MAX_SETS, fitting))


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
