"""A handful of data sets made on the host, in random order: new data for problems of any kind.

What a kernel computes from each is verified by element when its bits are seen for the first time, which a
fingerprint tells. Kernels whose bits differ from launch to launch are verified so in some launches of each
batch, chosen at random after it ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.driver import Buffer, Stream
from harness.launch.fingerprint import Fingerprint, Fingerprints
from harness.problems.protocol import Reference, outputs, references, updated
from harness.problems.verify import Verdict, compare_each
from harness.support.resources import Closing

if TYPE_CHECKING:
    from harness.launch.operands import Data, Operands

_COMPARED = 8  # outputs of a round that are compared by element, where the bits are new each time


class _One:
    """One data set: its operands on the host, copies of them in device memory, and its verdicts by output."""

    def __init__(self, data: Data, before: dict[str, NDArray[Any]], masters: dict[str, Buffer]) -> None:
        self.data, self.before, self.masters = data, before, masters
        self.inputs: dict[str, Fingerprint] = {}
        self.verdicts: dict[tuple[Fingerprint, ...], Verdict] = {}


class DataSets(Closing):
    """The given data sets for the launches on `operands`, a random one for each launch.

    Outputs hold random numbers of the size of results before a launch, or what the problem says if they are
    inputs too.
    """

    rounds = 1

    def __init__(self, operands: Operands, data: Sequence[Data], stream: Stream, *, seed: int) -> None:
        self._operands, self._stream = operands, stream
        self._rng = np.random.default_rng(seed)
        self._worst: Verdict | None = None
        self._chosen: list[tuple[int, int]] = []  # (set, data set) of each launch since `wrong`
        self._names = list(operands.host)
        self._outputs = outputs(operands.problem)
        count = len(data)
        self.label = "the same data for each launch" if count == 1 else f"{count} data sets in random order"
        with ExitStack() as owned:
            room = len(operands.buffers) * len(self._names)
            self._prints = owned.enter_context(Fingerprints(operands.context, at_once=room))
            self._sets = [self._made(one, owned, stream) for one in data]
            for one in self._sets:
                inputs = [name for name in self._names if name not in self._outputs]
                found = self._prints.of([one.masters[name] for name in inputs], stream)
                one.inputs = dict(zip(inputs, found, strict=True))
            self._prints.reset(stream)
            self._owned = owned.pop_all()

    def _made(self, data: Data, owned: ExitStack, stream: Stream) -> _One:
        """Upload a data set, with spoilt outputs but for those that are inputs too."""
        problem = self._operands.problem
        before = {name: data.host[name] for name in self._outputs}
        for name, reference in references(problem, data.reference).items():
            if name not in updated(problem):
                before[name] = spoilt(before[name], reference, self._rng)
        masters = {}
        for name in self._names:
            array = before.get(name, data.host[name])
            masters[name] = owned.enter_context(Buffer(self._operands.context, array.nbytes))
            masters[name].upload(array, stream)
        return _One(data, before, masters)

    def refresh(self, stream: Stream, count: int) -> None:
        """Queue copying a data set, chosen at random, to each of the first `count` sets."""
        for number in range(count):
            chosen = int(self._rng.integers(len(self._sets)))
            self._chosen.append((number, chosen))
            for name, master in self._sets[chosen].masters.items():
                self._operands.buffers[number][name].copy_from(master, stream)

    def verify(self, stream: Stream, count: int) -> None:
        """Queue taking the fingerprints of the operands of the first `count` sets."""
        for number in range(count):
            for name in self._names:
                self._prints.queue(self._operands.buffers[number][name], stream)

    def wrong(self, stream: Stream) -> str:
        """Wait, and return what is wrong with the launches since the last call, in words."""
        found = iter(self._prints.taken(stream))
        launches, self._chosen = self._chosen, []
        said, unseen, written = "", [], []
        for number, chosen in launches:
            one, prints = self._sets[chosen], {name: next(found) for name in self._names}
            damaged = sorted(name for name, intact in one.inputs.items() if prints[name] != intact)
            if damaged:
                said = said or f"it overwrote its input {' and '.join(damaged)}"
            output = tuple(prints[name] for name in self._outputs)
            written.append((one, output))
            if output not in one.verdicts:
                unseen.append((one, number, output))
        order = self._rng.permutation(len(unseen))
        compared = 0
        for one, number, output in (unseen[i] for i in order):
            if output in one.verdicts or compared == _COMPARED:
                continue
            compared += 1
            landing = {name: np.empty_like(array) for name, array in one.before.items()}
            for name, array in landing.items():
                self._operands.buffers[number][name].download(array, stream)
            known = references(self._operands.problem, one.data.reference)
            one.verdicts[output] = compare_each(landing, known, one.before)
        for one, output in written:
            verdict = one.verdicts.get(output)
            if verdict is None:
                continue
            if self._worst is None or _rank(verdict) > _rank(self._worst):
                self._worst = verdict
            if not verdict.ok:
                said = said or str(verdict).removeprefix("FAILED: ")
        self._prints.reset(stream)
        return said

    def keep(self, stream: Stream, rng: np.random.Generator, count: int) -> None:
        """Do nothing: outputs whose bits are new have been compared by element."""

    def verdict(self) -> Verdict | None:
        """Return the worst verdict on the outputs so far."""
        return self._worst

    def close(self) -> None:
        self._owned.close()


def _rank(verdict: Verdict) -> tuple[bool, float]:
    return not verdict.ok, verdict.worst


def spoilt(before: NDArray[Any], reference: Reference, rng: np.random.Generator) -> NDArray[Any]:
    """Return random contents for an output, about as large as its right results, padding included."""
    if before.dtype.kind == "f" or reference.dtype is not None:
        finite = reference.expected[np.isfinite(reference.expected)]
        size = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
        values = (rng.standard_normal(before.shape) * (size or 1.0)).astype(np.float32)
        if reference.dtype is not None:
            return reference.dtype.encode(values)
        return values.astype(before.dtype)
    bits = rng.integers(0, 256, before.nbytes, dtype=np.uint8)
    return bits.view(before.dtype).reshape(before.shape)
