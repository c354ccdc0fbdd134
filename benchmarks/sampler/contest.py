"""Measure one draw: `harness.matmul`'s launches, cuBLAS, cuBLASLt and, where asked, the model's candidates.

Each is verified before it is timed, and `harness.matmul`'s after that too, by comparing its outputs with
those of cuBLAS on the GPU. What goes wrong with a draw becomes its row.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

from harness.bench.nvml import Reading, Telemetry
from harness.dispatch import prepared
from harness.dispatch.split import Part, brief
from harness.driver import Context, Device, Stream
from harness.errors import ContextLost, HarnessError, OutOfMemory
from harness.kernels.arch import Arch
from harness.kernels.compiler import Cubin
from harness.kernels.spec import Variant
from harness.launch.cublas import CuBlas
from harness.launch.cublaslt import CuBlasLt
from harness.launch.kernel import Launch
from harness.launch.operands import Operands
from harness.support.resources import Closing
from sampler.draws import Draw
from sampler.pool import Pool, Sets
from sampler.sides import Clock, Side

Row = dict[str, Any]
Cubins = Mapping[str, Future[Cubin]]  # by the variants' labels
OURS, CUBLAS, LT = "matmul", "cuBLAS", "cuBLASLt"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A draw with what is to run for it.

    `parts` are the launches of `harness.matmul`, `others` further variants to time, and `named` the label of
    the one among them that NVIDIA's heuristics come closest to, or empty. `invariant` is what it takes if no
    row may depend on how many there are, if that is to be timed. `failure` says why there are no parts, if
    there are none.
    """

    draw: Draw
    parts: tuple[Part, ...] = ()
    failure: str = ""
    others: tuple[Variant, ...] = ()
    named: str = ""
    invariant: Variant | None = None

    @property
    def beside(self) -> tuple[Variant, ...]:
        """All variants that are timed beside `parts`."""
        return (*self.others, *((self.invariant,) if self.invariant else ()))

    @property
    def variants(self) -> dict[str, Variant]:
        """All variants that it needs, by label."""
        return {v.label: v for v in (*(part.variant for part in self.parts), *self.beside)}

    @property
    def alone(self) -> str:
        """The label of the only variant of `harness.matmul`, or empty if there are several."""
        return self.parts[0].variant.label if len(self.parts) == 1 else ""

    @property
    def row(self) -> Row:
        """The part of its row that is known beforehand."""
        problem = self.draw.problem
        axes = ("M", "N", "K", "lda", "ldb", "ldc", "transa", "transb")
        return {
            "dtype": problem.dtype.name,
            "index": self.draw.index,
            **{axis: getattr(problem, axis) for axis in axes},
            "origin": self.draw.origin,
            "classes": list(self.draw.classes),
            "chosen": brief(part.variant for part in self.parts),
            "status": "error" if self.failure else "ok",
            "error": self.failure,
        }


class Arena(Closing):
    """A GPU with the memory, libraries and sensor that all draws share.

    `memory` is what the pool asks for, in bytes. cuBLASLt's heuristic is asked for `algorithms` algorithms,
    of which the fastest counts. With `events` single launches are timed, too. `seed` makes the data.
    """

    def __init__(
        self, device: Device, *, memory: int, algorithms: int = 1, events: bool = False, seed: int = 1
    ) -> None:
        self._events, self._seed, self._filled = events, seed, ""
        self.arch = str(Arch.of_capability(*device.capability))
        with ExitStack() as owned:
            self.context = owned.enter_context(Context(device))
            self.stream = owned.enter_context(Stream(self.context))
            self.pool = owned.enter_context(Pool(self.context, self.stream, memory))
            self.cublas = owned.enter_context(CuBlas(self.context))
            self.lt = owned.enter_context(CuBlasLt(self.context, algorithms=algorithms))
            self._sensor = owned.enter_context(Telemetry(device.uuid))
            self._clock = Clock(self.context, self.stream)
            self._owned = owned.pop_all()

    def measured(self, entry: Entry, cubins: Cubins) -> tuple[Row, ContextLost | None]:
        """Return the row of one draw, and the fault after which nothing more can be measured, or None."""
        row = entry.row
        if entry.failure:
            return row, None
        try:
            sets = self.pool.sets(entry.draw.problem)
        except OutOfMemory as e:
            return {**row, "status": "left out", "error": str(e)}, None
        try:
            self._fill(row["dtype"])
            with ExitStack() as owned:
                self._measure(row, entry, sets, cubins, owned)
        except ContextLost as e:
            return {**row, "status": "error", "error": str(e)}, e
        except Exception as e:  # whatever it is, the draws after it are worth more
            return {**row, "status": "error", "error": said(e)}, None
        return row, None

    def _fill(self, dtype: str) -> None:
        if self._filled != dtype:
            self.pool.fill(dtype, self._seed)
            self._filled = dtype

    def _measure(
        self, row: Row, entry: Entry, sets: tuple[Sets, Sets], cubins: Cubins, owned: ExitStack
    ) -> None:
        """Bind, verify and time all sides, and write into `row` what was found.

        Raises HarnessError if `harness.matmul` fails or differs from cuBLAS.
        """
        mine, theirs = sets
        row |= {"sets": len(mine.buffers), "footprint": mine.footprint}
        sides = {CUBLAS: self._side(self.cublas.prepare, theirs, None, owned)}
        failures = row["failures"] = {}
        for name, prepare in self._contestants(entry, cubins).items():
            try:
                sides[name] = self._side(prepare, mine, theirs, owned)
            except ContextLost:
                raise
            except Exception as e:
                failures[name] = said(e)
                if name == OURS:
                    raise
        readings: list[Reading | None] = []
        named = list(sides)
        times = self._clock.graphs(list(sides.values()), lambda: readings.append(self._sensor.read()))
        seconds = {name: statistics.median(taken) for name, taken in zip(named, times, strict=True)}
        self._verify(sides[OURS], mine, theirs)
        row |= {
            "launches": sides[OURS].launches,
            "algorithm": sides[LT].launch.algorithm.partition(": ")[2] if LT in sides else "",
            "seconds": {name: seconds[name] for name in (OURS, CUBLAS, LT) if name in seconds},
            "times": {n: [round(t, 10) for t in taken] for n, taken in zip(named, times, strict=True)},
            "ratio": ratio(seconds),
            "sm_mhz": readings[-1].sm_mhz if readings and readings[-1] else None,
            "watts": readings[-1].power if readings and readings[-1] else None,
        }
        if entry.others:
            row |= self._candidates(entry, seconds)
        if entry.invariant and (taken := seconds.get(side_of(entry, entry.invariant))) is not None:
            price = taken / seconds[OURS] - 1
            row["invariant"] = {"chosen": entry.invariant.brief, "seconds": taken, "price": price}
        if self._events:
            times = self._clock.launches([sides[name] for name in row["seconds"]])
            single = {
                name: statistics.median(taken) for name, taken in zip(row["seconds"], times, strict=True)
            }
            row |= {"event_seconds": single, "event_ratio": ratio(single)}

    def _contestants(self, entry: Entry, cubins: Cubins) -> dict[str, Callable[[Operands], Launch]]:
        """Return what is to be compared with cuBLAS, by name: `harness.matmul` first."""
        problem = entry.draw.problem

        def bound(parts: Sequence[Part]) -> Callable[[Operands], Launch]:
            def prepare(operands: Operands) -> Launch:
                built = [(cubins[part.variant.label].result(), part) for part in parts]
                return prepared.prepare(built, operands)

            return prepare

        found = {OURS: bound(entry.parts), LT: self.lt.prepare}
        for variant in entry.beside:
            if variant.label != entry.alone:
                found[variant.label] = bound([Part(variant=variant, rows=problem.M, columns=problem.N)])
        return found

    def _side(
        self, prepare: Callable[[Operands], Launch], sets: Sets, reference: Sets | None, owned: ExitStack
    ) -> Side:
        """Bind and capture one side, run it, and verify it unless it is the reference itself."""
        launch = owned.enter_context(prepare(cast(Operands, sets)))
        side = owned.enter_context(Side(launch, self.stream))
        self._verify(side, sets, reference)
        return side

    def _verify(self, side: Side, sets: Sets, reference: Sets | None) -> None:
        """Run one side with blank outputs; raises HarnessError if they then differ from the reference."""
        self.pool.blank(sets)
        side(self.stream)
        if reference is None:
            self.stream.synchronize()
        elif wrong := self.pool.wrong(sets, reference):
            raise HarnessError(wrong)

    def _candidates(self, entry: Entry, seconds: Mapping[str, float]) -> Row:
        """Return the times of the candidates, and how much longer than the best of them the chosen takes."""
        taken = {v.label: seconds.get(side_of(entry, v)) for v in entry.others}
        best = min(found for name, found in seconds.items() if name not in (CUBLAS, LT))
        named = taken.get(entry.named)
        return {
            "candidates": [
                {"kernel": v.kernel.name, "params": dict(v.params), "seconds": taken[v.label]}
                for v in entry.others
                if taken[v.label] is not None
            ],
            "regret": seconds[OURS] / best - 1,
            "named": entry.named,
            "named_regret": named / best - 1 if named is not None else None,
        }

    def close(self) -> None:
        self._owned.close()


def side_of(entry: Entry, variant: Variant) -> str:
    """Return the name of the side that times a variant."""
    return OURS if variant.label == entry.alone else variant.label


def said(error: Exception) -> str:
    """Return what an error says, with its type unless it is one of harness."""
    return str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"


def ratio(seconds: Mapping[str, float]) -> float:
    """Return the time of the faster of cuBLAS and cuBLASLt over that of `harness.matmul`."""
    return min(seconds[name] for name in (CUBLAS, LT) if name in seconds) / seconds[OURS]
