"""Which GPU may have which unit of work, and which is left out because it fails where others do not.

A unit that faults on one GPU is tried once on another. If it succeeds there, the first GPU failed; after two
such failures it is left out, with its reason. If it faults there too, the kernel is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

FAILURES = 2  # of a GPU, after which it is left out


@dataclass(kw_only=True)
class Card:
    """A GPU, by the name of its worker: what the driver says of it (`gpu`), and how it fared."""

    name: str
    host: str
    gpu: Mapping[str, Any]
    units: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    out: str = ""
    """Why it is left out; empty if it is not."""

    @property
    def uuid(self) -> str:
        """The GPU's UUID, as nvidia-smi prints it."""
        return str(self.gpu["uuid"])

    @property
    def model(self) -> tuple[Any, ...]:
        """The key that GPUs of one model have in common: times on these may be compared."""
        return tuple(self.gpu[key] for key in ("name", "sms", "memory_bytes", "clock_hz", "driver"))

    def record(self) -> dict[str, Any]:
        """Return the card's entry in a record."""
        return {
            **self.gpu,
            "host": self.host,
            "units": self.units,
            "busy": self.seconds,
            "failures": list(self.failures),
            "left_out": self.out,
        }


class Cards:
    """The GPUs of a fleet by their workers' names, those that have gone included."""

    def __init__(self) -> None:
        self.known: dict[str, Card] = {}
        self.present: set[str] = set()

    def add(self, card: Card) -> None:
        """Take a card in, or back: what a GPU did before is remembered, under whichever name it comes."""
        before = next((c for c in self.known.values() if c.uuid == card.uuid), None)
        if before is not None:
            del self.known[before.name]
            before.name, before.host, card = card.name, card.host, before
        elif card.name in self.known:  # another GPU by now: what the first one did stays under its UUID
            former = self.known.pop(card.name)
            former.name = former.uuid
            self.known[former.uuid] = former
        self.known[card.name] = card
        self.present.add(card.name)

    def there(self) -> list[Card]:
        """Return the cards that are present, those that are left out included."""
        return [card for name, card in self.known.items() if name in self.present]

    def keep(self, names: Collection[str]) -> None:
        """Forget as present all that are not in `names`."""
        self.present &= set(names)

    def able(self, without: Iterable[str] = ()) -> list[Card]:
        """Return the cards that may be given work, except for those in `without`."""
        return [card for card in self.there() if card.name not in set(without) and not card.out]

    def of(self, model: tuple[Any, ...]) -> list[Card]:
        """Return all cards of a model that were ever here, by host and name."""
        mine = (card for card in self.known.values() if card.model == model)
        return sorted(mine, key=lambda card: (card.host, card.name))

    def failed(self, name: str, why: str) -> bool:
        """Note that a card failed at what another one did; return True if it is left out from now on."""
        card = self.known[name]
        card.failures.append(why)
        if len(card.failures) >= FAILURES and not card.out:
            card.out = f"{len(card.failures)} units failed here and not elsewhere: {why}"
            return True
        return False

    def models(self) -> dict[tuple[Any, ...], list[Card]]:
        """Return the present cards by model, the most numerous first."""
        found: dict[tuple[Any, ...], list[Card]] = {}
        for card in sorted(self.able(), key=lambda card: (card.host, card.name)):
            found.setdefault(card.model, []).append(card)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))
