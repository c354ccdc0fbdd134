"""How fast this machine is now: what a bound in seconds means on a slow or a busy one.

``python tests/shared/speed.py`` prints it every ten seconds until ended: `.ci/run` reads it beside pytest.
"""

from __future__ import annotations

import resource
import time

ADDITIONS = 1_000_000
REFERENCE = 0.025  # seconds of ADDITIONS on an idle core of the machine that the bounds were written on


def slowness() -> float:
    """Return how many times as long as on the reference Python's own work takes now; at least 1."""
    began, total = time.process_time(), 0
    for number in range(ADDITIONS):
        total += number
    return max(1.0, (time.process_time() - began) / REFERENCE)


def _seconds() -> float:
    """Return the seconds of a core that this process and its ended children have taken."""
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in of)


class Stopwatch:
    """The seconds of a core that a block took, its children's included, as they would be on the reference.

    The machine's speed is looked at before and after, and the slower of both counts: a neighbour may come or
    go meanwhile.
    """

    def __enter__(self) -> Stopwatch:
        self._slow = slowness()
        self._began = _seconds()
        return self

    def __exit__(self, *_: object) -> None:
        taken = _seconds() - self._began
        self.seconds = taken / max(self._slow, slowness())


if __name__ == "__main__":
    while True:
        print(f"{slowness():.2f}", flush=True)
        time.sleep(10)
