"""Record what `replace` has computed, where, and why not by harness: `report`."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from harness.dispatch.prepared import GemmImage
from harness.torch import known
from harness.torch.known import Known

MOST = 10_000  # products with a record of their own; further ones share one for each operator and reason
_WHY_WIDTH = 28  # characters of a line of the reason, so that the table fits a terminal of 80


@dataclass
class Call:
    """A product of one shape that was called `calls` times within a block of `replace`.

    `op` is PyTorch's name (``"addmm"``). The product is M x K times K x N, `batch` times. `layout` is "N"
    (row-major), "T" (column-major) or "-" (neither) of both operands. `dtype` is "bf16", "fp16", or the
    precision of float32 ("fp32", "tf32", "bf16x6"), or PyTorch's name of another type. `why` is the reason
    why PyTorch computed it, empty if harness did. M, N and K are 0 for products beyond the first `MOST`.
    """

    op: str
    M: int
    N: int
    K: int
    batch: int = 1
    layout: str = ""
    dtype: str = ""
    why: str = ""
    calls: int = 0

    @property
    def size(self) -> str:
        """The shape, as ``96 of 64x64x128`` for a batch."""
        shape = f"{self.M}x{self.N}x{self.K}" if self.M or self.N or self.K else "further ones"
        return f"{self.batch} of {shape}" if self.batch > 1 else shape

    @property
    def work(self) -> int:
        """The multiply-adds of all calls."""
        return self.calls * self.batch * self.M * self.N * self.K


class Calls:
    """The calls of one block of `replace`; any number of threads may count.

    A call is found by its key: whatever the decision depends on. Keys whose records are alike share one.
    Where there is a table of known products, it counts those that it knows.
    """

    def __init__(self) -> None:
        self._decisions: dict[Any, Call] = {}
        self._records: dict[tuple[Any, ...], Call] = {}
        self._lock = threading.Lock()
        self._table: Known | None = None
        self._counted: dict[int, Call] = {}  # records of products in the table, by their places
        self._note = ""

    def begin(self, table: Known | None, note: str = "") -> None:
        """Forget all calls, and count with a table from now on. `note` is a line of the report."""
        with self._lock:
            self._decisions.clear()
            self._records.clear()
            self._counted.clear()
            self._table, self._note = table, note

    def end(self) -> None:
        """Count what the table has counted, and do without it from now on."""
        with self._lock:
            self._drain(forget=True)  # a thread that is still within a product finds none that is known
            self._table = None
            self._counted.clear()
            self._decisions.clear()

    @property
    def launches(self) -> bool:
        """True within a block whose table launches the products of harness's that it knows."""
        table = self._table
        return table is not None and table.launches

    def _drain(self, *, forget: bool = False) -> None:
        """Move the counts of the table to the records; the lock is held."""
        if self._table is not None:
            for place, calls in self._table.drain(forget=forget):
                if calls:
                    self._counted[place].calls += calls

    def stay(self, call: Call) -> None:
        """Keep the product that this thread decides in the table, if there is one: PyTorch computes it."""
        if (table := self._table) is not None:
            self._keep(call, table.stay)

    def launch(self, call: Call, image: Callable[[], GemmImage | None]) -> None:
        """Keep the product that this thread has queued in the table, by its image, if it has one.

        The image is asked for only if there is a table that launches.
        """
        table = self._table
        if table is not None and table.launches and (keep := table.launch(image)) is not None:
            self._keep(call, keep)

    def _keep(self, call: Call, keep: Callable[[], int]) -> None:
        """Count in `call` what the table counts at the place that `keep` returns."""
        with self._lock:
            place = keep()
            if place == known.FULL:
                self._drain(forget=True)
                self._counted.clear()
                place = keep()
            if place >= 0:
                self._counted[place] = call

    def find(self, key: Any) -> Call | None:
        """Return the record of a key that was decided before, or None."""
        return self._decisions.get(key)

    def add(self, key: Any, call: Call) -> Call:
        """Keep a decision, in place of an earlier one of this key, and return the record to count in."""
        alike = dataclasses.astuple(dataclasses.replace(call, calls=0))
        with self._lock:
            if len(self._records) >= MOST and alike not in self._records:
                call = Call(call.op, 0, 0, 0, dtype=call.dtype, why=call.why)
                alike = dataclasses.astuple(call)
            if len(self._decisions) >= MOST:
                self._decisions.clear()
            self._decisions[key] = self._records.setdefault(alike, dataclasses.replace(call, calls=0))
            return self._decisions[key]

    def count(self, call: Call) -> None:
        """Count one call."""
        with self._lock:
            call.calls += 1

    def report(self) -> Report:
        """Return what was counted so far, the most work first."""
        with self._lock:
            self._drain()
            found = [dataclasses.replace(call) for call in self._records.values() if call.calls]
            return Report(sorted(found, key=lambda call: call.work, reverse=True), self._note)


class Report:
    """A report of what ran where: `records` has a `Call` for each product; as text it is a table.

    `note` is a line below it, such as why products cost the host more than they need.
    """

    def __init__(self, records: Sequence[Call], note: str = "") -> None:
        self.records, self.note = list(records), note

    def __str__(self) -> str:
        if not self.records:
            return "no product was called within harness.torch.replace()"
        total = sum(call.work for call in self.records)
        ours = sum(call.work for call in self.records if not call.why)
        rows = [
            (call.op, call.size, call.layout, call.dtype, call.calls, call.why or "harness")
            for call in self.records
        ]
        headers = ("", "M x N x K", "", "type", "calls", "by harness, or why not")
        table = tabulate(
            rows,
            headers,
            maxcolwidths=[None] * 5 + [_WHY_WIDTH],
            colalign=("left", "left", "left", "left", "right", "left"),
            disable_numparse=True,
        )
        part = f"{table}\n{100 * ours / total if total else 0:.1f}% of the multiply-adds by harness"
        return f"{part}\n{self.note}" if self.note else part

    __repr__ = __str__


calls = Calls()  # of the last block


def report() -> Report:
    """Return what the products within the last block of `replace` were, also while it is open."""
    return calls.report()
