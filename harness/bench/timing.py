"""Take GPU times with CUDA events, and measure the SM clock while it does.

`Timer` is the protocol that all other modules use, so that tests can pass in a clock of their own;
`EventTimer` is the real one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from harness.bench.nvml import Reading, Telemetry
from harness.driver import Context, Event, Gate, Module, PinnedBuffer, Stream
from harness.kernels import spec
from harness.kernels.arch import Arch
from harness.kernels.compiler import compile_kernel
from harness.launch.fresh.visits import Visits
from harness.support.resources import Closing

STAMP = Path(__file__).with_name("stamp.cu")
_SMS = 1024  # entries, by the number of the SM; the numbers may have gaps
# %globaltimer advances in steps of up to 1 us (32 ns on recent GPUs): shorter spans would show the step.
_SHORTEST_NS = 400_000


class ClockProbe(Closing):
    """Measures the SM clock between two points in a stream.

    Call ``probe.start(stream)``, launch work, call ``probe.end(stream)``, synchronize, then call `hertz`.
    Each of the two launches one block per SM that stores the SM's cycle counter and the global nanosecond
    timer.
    """

    def __init__(self, context: Context) -> None:
        kernel = spec.load(STAMP)
        cubin = compile_kernel(kernel.variant(), str(Arch.of_capability(*context.device.capability)))
        self._module = Module(context, cubin.code)
        self._stamps = PinnedBuffer(context, 2 * _SMS * 16)
        self._entries = self._stamps.array(np.uint64, (2, _SMS, 2))
        function = self._module.function(kernel.entry)
        blocks = context.device.sms  # one on each SM, as idle SMs are filled first
        self.start, self.end = (
            function.prepare(blocks, 32, [np.uint64(self._stamps.ptr + half), np.uint32(_SMS)])
            for half in (0, self._entries[0].nbytes)
        )

    def reset(self) -> None:
        """Forget the stamps of the last measurement. No stamp kernel may be running."""
        self._entries[:] = 0

    def hertz(self) -> float | None:
        """Return the SM clock in Hz between the last two stamps, the median over the SMs.

        None if they were less than 0.4 ms apart, too short for the resolution of the global timer.
        """
        seen = self._entries.all(axis=(0, 2))
        cycles, nanoseconds = (self._entries[1, seen] - self._entries[0, seen]).T.astype(np.float64)
        if not len(cycles) or nanoseconds.min() < _SHORTEST_NS:
            return None
        return float(np.median(cycles / nanoseconds)) * 1e9

    def close(self) -> None:
        self._stamps.close()
        self._module.close()


Run = Callable[[Stream], object]

# Launches and their events wait behind a gate in the driver's queue, which is about 1024 entries deep; a full
# queue would block the host, which is to open the gate. A run takes at most nine entries: a product of three
# launches, two of them in a side stream. With `hot` data, seven more are queued around it, for fewer runs.
MOST = 100  # runs in a batch


@dataclass(frozen=True)
class Work:
    """Code to time: ``run(stream)`` queues `repeats` runs, more than one where it launches a CUDA graph.

    With `visits` each run is a launch on new data; without, nothing is changed between runs.
    """

    run: Run
    repeats: int = 1
    visits: Visits | None = None

    @property
    def most(self) -> int:
        """The most calls of `run` in a batch."""
        return MOST if self.visits is None else max(1, min(MOST, self.visits.most // self.repeats))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Runs that were queued together.

    `times` are GPU seconds per run, one for each call of `Work.run`. `wall` is seconds per run on the host's
    clock, from when the GPU may start until the host knows that it has finished; None where the host was busy
    then. `sm_hz` is the measured SM clock (`ClockProbe`), `rated_hz` the highest that the driver reports;
    `reading` is NVML's, taken while the batch ran.
    """

    times: tuple[float, ...]
    wall: float | None
    sm_hz: float | None = None
    rated_hz: float | None = None
    reading: Reading | None = None

    @property
    def median(self) -> float:
        """The median GPU time of a run in seconds."""
        return float(np.median(self.times))

    @property
    def clock_share(self) -> float | None:
        """The SM clock as a fraction of the rated one: as measured, else as NVML reports it; None if neither
        is known.
        """
        hertz = self.sm_hz or (self.reading.sm_mhz * 1e6 if self.reading else None)
        return hertz / self.rated_hz if hertz and self.rated_hz else None


class Timer(Protocol):
    """The clock of a measurement."""

    def batch(self, work: Work, count: int) -> Batch:
        """Call `work.run` `count` times, at most `work.most`, and return how long each run took."""
        ...


class EventTimer(Closing):
    """Times runs with a CUDA event before and after each call; a whole batch is queued before the GPU may
    begin.

    The GPU then goes from event to kernel to event without waiting for the host, and launch latency stays out
    of the times. The cost of the events themselves remains, a microsecond or two (`overhead`).

    A gate holds the GPU back until all is queued. For graphs, whose launches may fill the driver's queue, one
    run of the graph that is not timed does; new data is written after it.
    """

    def __init__(self, context: Context, stream: Stream, telemetry: Telemetry) -> None:
        self._stream, self._telemetry = stream, telemetry
        self._rated = float(context.device.clock_hz)
        self._reads = False
        with ExitStack() as owned:
            self._clock = owned.enter_context(ClockProbe(context))
            self._gate = owned.enter_context(Gate(context))
            self._events = [
                (owned.enter_context(Event(context)), owned.enter_context(Event(context)))
                for _ in range(MOST)
            ]
            self._owned = owned.pop_all()

    def batch(self, work: Work, count: int) -> Batch:
        """Queue `count` calls of `work.run` between events, wait for them, and return their times."""
        events, stream, visits = self._events[:count], self._stream, work.visits
        runs = count * work.repeats
        self._clock.reset()
        if visits is not None:
            visits.run.operands.context.reset_persisting_l2()
        began = time.perf_counter()
        if work.repeats > 1:
            work.run(stream)
            runs += work.repeats
            if visits is not None:
                visits.begin(stream, count * work.repeats)
            self._queue(work, count)
        else:
            if visits is not None:
                visits.begin(stream, count)
                stream.synchronize()
            with self._gate.holding(stream):
                self._queue(work, count)
                began = time.perf_counter()
        if visits is not None:
            visits.end(stream)
        # NVML is read in every second batch only: reading takes longer than some batches do, and would
        # distort their wall time.
        self._reads = not self._reads
        reading = self._telemetry.read() if self._reads else None
        late = self._reads and events[-1][1].done
        events[-1][1].synchronize()
        wall = time.perf_counter() - began
        stream.synchronize()  # for the clock's second stamp
        times = tuple(end.seconds_since(start) / work.repeats for start, end in events)
        if visits is not None:
            visits.collect(stream)
        mixed = visits is not None and (visits.hot or work.repeats > 1)  # data is written in between
        return Batch(
            times=times,
            wall=None if late or mixed else wall / runs,
            sm_hz=self._clock.hertz(),
            rated_hz=self._rated,
            reading=None if late else reading,  # a reading after the batch has ended shows another clock
        )

    def _queue(self, work: Work, count: int) -> None:
        """Queue the first clock stamp, the calls between their events, and the second clock stamp."""
        stream, visits = self._stream, work.visits
        self._clock.start(stream)
        for start, end in self._events[:count]:

            def timed(stream: Stream, start: Event = start, end: Event = end) -> None:
                start.record(stream)
                work.run(stream)
                end.record(stream)

            timed(stream) if visits is None else visits.around(timed, stream)
        self._clock.end(stream)

    def overhead(self) -> float:
        """Return the seconds between two events with nothing between them, which every time taken here
        includes.
        """
        nothing = Work(lambda _stream: None)
        self.batch(nothing, MOST)
        return self.batch(nothing, MOST).median

    def close(self) -> None:
        self._owned.close()
