"""Measure what a fleet costs beside the work: units a second through the scheduler, by the number of workers.

    python benchmarks/fleet_overhead.py [--workers 1,8,64] [--units 2000] [--seconds 0] [--kilobytes 150]

Workers are processes of this machine without a GPU. A unit sleeps, in place of a command, and takes along as
much as a compiled kernel. From the units a second that come through with nothing to do follows how many GPUs
are kept busy by units of a given length.
"""

from __future__ import annotations

import argparse
import os
import resource
import time

from harness.fleet import cluster, sweep
from harness.fleet.units import Outcome, Unit
from harness.results.tables import plain_table

GPU = {"name": "none", "sms": 0, "memory_bytes": 0, "clock_hz": 0, "driver": "", "uuid": ""}


def describe() -> dict[str, object]:
    """Stands for `units.describe`: each worker has a GPU of its own."""
    return {"host": "here", "code": "same", "error": "", "gpu": {**GPU, "uuid": f"GPU-{os.getpid()}"}}


def perform(unit: Unit, *_: object, **__: object) -> Outcome:
    """Stands for `units.perform`."""
    time.sleep(unit.timeout)
    return Outcome(content="x" * 3000, seconds=unit.timeout)


def install() -> None:
    """Put `perform` in place in a worker's process."""
    from harness.fleet import sweep

    sweep.perform = perform


def measured(count: int, units: int, seconds: float, size: int) -> tuple[float, float]:
    """Return the seconds for all units on `count` workers, and this process's processor time of them."""
    import distributed

    sweep.describe = describe  # which goes to workers by value; `perform` they look up themselves
    options = {"nthreads": 1, "resources": {"GPU": 1}, "memory_limit": 0, "silence_logs": 50}
    with (
        cluster.quiet(),
        distributed.SpecCluster(
            scheduler={
                "cls": distributed.Scheduler,
                "options": {"dashboard": False, "dashboard_address": ":0"},
            },
            workers={i: {"cls": distributed.Nanny, "options": options} for i in range(count)},
            silence_logs=50,
        ) as workers,
        distributed.Client(workers, set_as_default=False) as client,
    ):
        client.wait_for_workers(count)
        client.run(install)
        fleet = sweep.Fleet(client, patience=120)
        fleet._code = "same"
        fleet.wait(count)
        work = [
            Unit(words=(), label=str(i), timeout=seconds, cubins={str(i): {"code": os.urandom(size)}})
            for i in range(units)
        ]
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        done = sum(1 for _ in fleet.run(work))
        now = resource.getrusage(resource.RUSAGE_SELF)
        assert done == units
        return time.monotonic() - began, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", default="1,8,64")
    parser.add_argument("--units", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--kilobytes", type=int, default=150)
    given = parser.parse_args()
    rows = []
    for count in map(int, given.workers.split(",")):
        whole, used = measured(count, given.units, given.seconds, 1000 * given.kilobytes)
        per_unit = f"{1e3 * used / given.units:.2f} ms"
        rows.append([str(count), f"{whole:.1f}", f"{given.units / whole:.0f}", per_unit])
    print(plain_table(rows, ["workers", "seconds", "units/s", "CPU a unit, scheduler and client"]))


if __name__ == "__main__":
    main()
