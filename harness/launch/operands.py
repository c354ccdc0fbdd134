"""The operands of a problem in device memory, in as many copies as a batch of timed launches visits.

After launches, they give a verdict on each output and name the inputs that were overwritten.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from harness.driver import Buffer, Context, Stream
from harness.errors import OutOfMemory, UsageError
from harness.kernels.dtypes import DType
from harness.launch.fingerprint import Fingerprint, Fingerprints
from harness.launch.fresh.code import Code, derive
from harness.launch.fresh.zones import ZONE, Fenced, Zones
from harness.problems import checks
from harness.problems.protocol import Problem, Reference, constants, outputs, references
from harness.problems.verify import Verdict, compare_each
from harness.support.processes import free_memory
from harness.support.resources import Closing

_MEMORY_SHARE = 0.25  # fraction of the free device memory for all copies; a single one may take more


@dataclass(frozen=True, kw_only=True)
class Data:
    """A problem's data on the host: every operand by name, and the reference result."""

    host: dict[str, NDArray[Any]]
    reference: Reference

    @classmethod
    def of(cls, problem: Problem, seed: int, kept: Mapping[str, NDArray[Any]] | None = None) -> Self:
        """Make the operands from a random seed, but for those in `kept`, and compute the reference.

        Raises OutOfMemory if they do not fit in host memory, before they are made where that can be foretold,
        and SpecError if they do not fit the problem.
        """
        needed, free = checks.host_bytes(problem), free_memory()
        if needed > free:
            raise OutOfMemory(
                f"{problem.label}: its data and their float64 reference take about {_gib(needed)} of host "
                f"memory, {_gib(free)} is free",
                hint="choose a smaller size with -a",
            )
        try:
            host, reference = checks.data(problem, seed, kept)
            if reference is None:
                raise UsageError(
                    "there is no reference to verify a kernel with whose arguments are guesses",
                    hint="give it front matter and a problem: `harness new` writes both",
                )
            return cls(host=host, reference=reference)
        except MemoryError:
            raise OutOfMemory(
                f"{problem.label}: the inputs and their float64 reference do not fit in host memory",
                hint="choose a smaller size with -a",
            ) from None


class Operands(Closing):
    """Copies of one problem's operands in device memory, called sets, each between red zones.

    All sets are made with the same data, whose right result is known by element: `verdicts` compares with it.
    `host` has that data by name, `constants` what goes to ``__constant__`` variables instead of a set.
    While a launch is timed, every set gets new data instead (`harness.launch.fresh`); `restore` undoes that.
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
        constant = constants(problem)
        self.host = {name: array for name, array in made.host.items() if name not in constant}
        self.constants = {name: made.host[name] for name in constant}
        self.reference, self._outputs = made.reference, outputs(problem)
        self._data = [made]  # a twin shares it
        self.buffers: list[dict[str, Fenced]] = []
        with ExitStack() as undo:
            self._owned = ExitStack()
            undo.callback(self.close)
            self.code = self._owned.enter_context(Code(context))
            self._known = self._owned.enter_context(
                _Known(context, references(problem, self.reference), self.host)
            )
            self._zones = Zones(self.code, key=secrets.randbits(64))
            for _ in range(sets):
                copy = {name: Fenced(context, array.nbytes) for name, array in self.host.items()}
                self.buffers.append(copy)
            self._zones.write(self._fenced, stream)
            self.restore(stream)
            self._intact = self._inputs(stream)
            undo.pop_all()

    def twin(self, stream: Stream) -> Operands:
        """Return as many sets with the same data in memory of their own, for code that is timed in turn."""
        twin = Operands(
            self.context,
            self.problem,
            stream,
            seed=self.seed,
            sets=len(self.buffers),
            data=lambda: self._data[0],
        )
        twin._data = self._data
        return twin

    def data_sets(self, count: int) -> Sequence[Data]:
        """Return the known data and `count` - 1 more data sets of the problem, made when first asked for."""
        while len(self._data) < count:
            seed = derive(self.seed, "data set", len(self._data)) >> 33
            self._data.append(Data.of(self.problem, seed, self.constants))  # the module has one set of these
        return self._data[:count]

    @property
    def bytes(self) -> int:
        """The bytes that one launch on each set reads and writes, without padding."""
        return len(self.buffers) * self.problem.bytes

    def restore(self, stream: Stream) -> None:
        """Give every set the data that `verdicts` knows the result of, and wait until that is done."""
        for name, array in self.host.items():
            first, *others = (copy[name] for copy in self.buffers)
            first.upload(array, stream)
            for other in others:
                other.copy_from(first, stream)
        stream.synchronize()

    def fill_output(self, stream: Stream) -> None:
        """Fill the outputs of every set with their initial contents, and wait until that is done.

        These are NaN, or the C that beta multiplies.
        """
        for name in self._outputs:
            filled = [copy[name] for copy in self.buffers]
            if (word := self._known.words[name]) is not None:
                for output in filled:
                    output.fill_u32(word, stream)
            else:
                filled[0].upload(self.host[name], stream)
                for output in filled[1:]:
                    output.copy_from(filled[0], stream)
        stream.synchronize()

    def verdicts(self, stream: Stream, *, sets: int) -> Iterator[Verdict]:
        """Yield the verdict on the outputs of each of the first `sets` sets, which hold the known data."""
        return self._known.verdicts(self.buffers[:sets], stream)

    def repeated(
        self, launch: Callable[[Stream], object], stream: Stream, count: int
    ) -> Iterator[Fingerprint]:
        """Yield fingerprints of the first set's outputs: of their present contents, then after each launch.

        `launch` must run on the first set. It is called `count` times, each time after the outputs have been
        filled with their initial contents again. Hundreds of launches are queued at a time, and no output is
        downloaded.
        """
        buffers, words = self.buffers[0], self._known.words
        with ExitStack() as owned:
            fresh = {}
            for name in self._outputs:
                if words[name] is None:
                    fresh[name] = owned.enter_context(Buffer(self.context, buffers[name].nbytes))
                    fresh[name].upload(self.host[name], stream)

            def launched() -> Iterator[Buffer]:
                yield from (buffers[name] for name in self._outputs)
                for _ in range(count):
                    for name, word in words.items():
                        if word is None:
                            buffers[name].copy_from(fresh[name], stream)
                        else:
                            buffers[name].fill_u32(word, stream)
                    launch(stream)
                    yield from (buffers[name] for name in self._outputs)

            prints = self._known.fingerprints.of(launched(), stream)
            while several := b"".join(itertools.islice(prints, len(self._outputs))):
                yield several

    def damaged_inputs(self, stream: Stream) -> list[str]:
        """Return the names of inputs that launches have overwritten in any set, sorted, and restore them."""
        damaged = set()
        for (number, name), now in self._inputs(stream).items():
            if now != self._intact[number, name]:
                damaged.add(name)
                self.buffers[number][name].upload(self.host[name], stream)
        return sorted(damaged)

    def stray_writes(self, stream: Stream, scratch: Mapping[str, Fenced] | None = None) -> list[str]:
        """Return in words where launches wrote outside of the operands, and restore the red zones there.

        `scratch` has further buffers, which `fence` was called with.
        """
        return self._zones.stray({**self._fenced, **(scratch or {})}, stream)

    def fence(self, scratch: Mapping[str, Fenced], stream: Stream) -> None:
        """Write the red zones of further buffers that a launch uses, such as a workspace."""
        self._zones.write(scratch, stream)

    def outputs(self, stream: Stream) -> Iterator[NDArray[Any]]:
        """Yield the first output of each set, downloaded into one host array that is reused for the next."""
        landing = self._known.landing[self.problem.output]
        for copy in self.buffers:
            copy[self.problem.output].download(landing, stream)
            yield landing

    @property
    def _fenced(self) -> dict[str, Fenced]:
        return {
            f"{name} (set {i})": buffer
            for i, copy in enumerate(self.buffers)
            for name, buffer in copy.items()
        }

    def _inputs(self, stream: Stream) -> dict[tuple[int, str], Fingerprint]:
        """Return the fingerprint of each input, by the number of its set and its name."""
        names = self.host.keys() - set(self._outputs)
        places = list(itertools.product(range(len(self.buffers)), sorted(names)))
        inputs = [self.buffers[number][name] for number, name in places]
        return dict(zip(places, self._known.fingerprints.of(inputs, stream), strict=True))

    def close(self) -> None:
        for copy in reversed(self.buffers):
            for buffer in copy.values():
                buffer.close()
        self.buffers.clear()
        self._owned.close()


class _Known(Closing):
    """Verdicts by the fingerprints of outputs, so that the same bits are compared with the reference once.

    `references` has the reference of each output, `fresh` the initial contents of these, both by name.
    """

    def __init__(
        self, context: Context, references: Mapping[str, Reference], fresh: Mapping[str, NDArray[Any]]
    ) -> None:
        self.fingerprints = Fingerprints(context)
        self._references = references
        self._fresh = {name: fresh[name] for name in references}
        self._verdicts: dict[tuple[Fingerprint, ...], Verdict] = {}

    def verdicts(self, sets: Sequence[Mapping[str, Buffer]], stream: Stream) -> Iterator[Verdict]:
        """Yield the verdict on the outputs of each set.

        Outputs are downloaded and compared in float64 only if none with the same bits were before.
        """
        names = list(self._references)
        prints = self.fingerprints.of((copy[name] for copy in sets for name in names), stream)
        for copy in sets:
            found = tuple(itertools.islice(prints, len(names)))
            if found not in self._verdicts:
                for name in names:
                    copy[name].download(self.landing[name], stream)
                self._verdicts[found] = compare_each(self.landing, self._references, self._fresh)
            yield self._verdicts[found]

    @cached_property
    def landing(self) -> dict[str, NDArray[Any]]:
        """The host arrays that outputs are downloaded into, by name."""
        return {name: np.empty_like(array) for name, array in self._fresh.items()}

    @cached_property
    def words(self) -> dict[str, int | None]:
        """The 32-bit word that the initial contents of each output repeat, or None."""
        return {name: _word(array) for name, array in self._fresh.items()}

    def close(self) -> None:
        self.fingerprints.close()


def _word(array: NDArray[Any]) -> int | None:
    if array.nbytes % 4 or not array.nbytes:
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


def rotation_sets(context: Context, problem: Problem, *, most: int) -> int:
    """Return how many sets of operands to make, for a batch of up to `most` launches on one set each.

    Fewer where they would take more than a quarter of the free device memory (a baseline has as many of its
    own), but at least one.
    """
    free, _ = context.memory_info()
    fitting = int(free * _MEMORY_SHARE) // (problem.buffer_bytes + len(problem.arguments()) * 2 * ZONE)
    return max(1, min(most, fitting))


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
