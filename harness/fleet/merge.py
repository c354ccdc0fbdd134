"""Put together what several GPUs have measured: the rows of all units, and how far apart the GPUs are."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.fleet.cards import Card
from harness.results import rows
from harness.results.rows import Row


def together(found: Iterable[tuple[Card, Sequence[Row]]]) -> list[Row]:
    """Return the rows of all units, each with the UUID of its ``gpu``.

    The baseline is measured beside every kernel, and one row of it for each size will do: the first.
    """
    seen: set[tuple[str, str, str]] = set()
    kept: list[Row] = []
    for card, measured in found:
        for row in measured:
            key = rows.label(row), row["problem"], row["shape"]
            if key not in seen or not row.get("baseline"):
                seen.add(key)
                kept.append({**row, "gpu": card.uuid})
    return kept


def apart(found: Iterable[tuple[Card, Sequence[Row]]]) -> dict[str, float]:
    """Return by how much a baseline takes longer on each GPU than on the median GPU, as a fraction, by UUID.

    It is what candidates were timed in turn with, and the mean over the sizes at which at least two GPUs have
    timed the same baseline, of logarithms. Without such a size a GPU has no entry.
    """
    times: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for card, measured in found:
        for row in measured:
            if pair := row.get("pair"):
                size = row["problem"], row["shape"], row.get("against") or ""
                times[size][card.uuid].append(statistics.median(pair["baseline"]))
    ratios: dict[str, list[float]] = defaultdict(list)
    for by in times.values():
        own = {uuid: statistics.median(seconds) for uuid, seconds in by.items()}
        if len(own) > 1:
            middle = statistics.median(own.values())
            for uuid, seconds in own.items():
                ratios[uuid].append(math.log(seconds / middle))
    return {uuid: math.expm1(statistics.fmean(logs)) for uuid, logs in ratios.items()}


def entry(cards: Iterable[Card], differing: Mapping[str, float]) -> dict[str, Any]:
    """Return a record's entry for the GPUs: what each is and did, and by how much it is slower (`apart`)."""
    return {"cards": [{**card.record(), "apart": differing.get(card.uuid)} for card in cards]}
