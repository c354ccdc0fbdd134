"""Choose by measurement: under ``HARNESS_MATMUL=measure`` the first call of a shape times the model's best.

The candidates are timed on the call's own `a` and `b`, with an output of their own, in a stream that waits
for the call's. They take turns, each several launches back to back. Small operands therefore lie in the L2
cache, as they do for whoever has just computed them. The fastest is kept in the user's table
(`harness.dispatch.user_table`), for this very shape and layout: it runs from then on in every process.

Shapes that a table contains are not timed, and neither are products that `harness.dispatch.split` divides or
whose stream is being captured: what is chosen without measurement is taken for these.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

from harness.dispatch import choose, user_table
from harness.dispatch.call.side_streams import Forks, order
from harness.dispatch.model import cost
from harness.dispatch.split import Part
from harness.dispatch.workspaces import Workspaces
from harness.driver import Buffer, Context, Event, Gate, Stream, outside_captures
from harness.errors import ContextLost, HarnessError, UsageError
from harness.kernels.spec import LAYOUT, Variant
from harness.problems.gemm import Gemm

VARIABLE, MEASURE = "HARNESS_MATMUL", "measure"
CANDIDATES = 3  # the model's best, which are timed
_TURN_SECONDS, MOST_LAUNCHES = 200e-6, 40  # of a candidate's launches back to back, which a gate holds
_LEAST_TURNS, _MOST_TURNS, _SECONDS = 3, 15, 0.05  # turns of each, the least unless they take that long

Run = Callable[[Stream], object]
Timed = TypeVar("Timed")
Bound = Callable[[Sequence[int], tuple[float, float], Stream], object]  # a `prepared.GemmLaunch`
Bind = Callable[[tuple[Part, ...], Workspaces, Forks], Bound]


def asked() -> bool:
    """Return True if the environment asks for measurement; raises UsageError for an unknown value."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", MEASURE):
        raise UsageError(f"{VARIABLE}={value} means nothing", hint=f"{VARIABLE}={MEASURE}, or unset it")
    return value == MEASURE


def faster(
    parts: tuple[Part, ...],
    problem: Gemm,
    first: tuple[Sequence[int], Stream],
    context: Context,
    bind: Bind,
    invariant: str = "",
    *,
    unmapped: str = "",
) -> tuple[Part, ...]:
    """Return the fastest launch of a product, after timing it against others; `parts` if none is timed.

    `parts` is the choice without measurement. `first` has the addresses of A and B, and the stream that the
    product goes to. `bind` makes a launch. The fastest is remembered unless an operand is `unmapped` (can
    have no tensor map): the same shape may be faster otherwise at other addresses. An `invariant` choice is
    not remembered either: for other calls it may be slow. A candidate that fails is passed over. Raises
    ContextLost if one faults.
    """
    device, sizes = context.device, (problem.M, problem.N, problem.K)
    if len(parts) > 1 or first[1].capturing:
        return parts
    about = choose.about(problem, invariant)
    where = cost.card(device)
    known = {name: about[name] for name in ("dtype", "layout", "epilogue", "invariant")}
    if choose.measured(*sizes, sms=where["sms"], arch=where["arch"], gpu=device.name, **known):
        return parts
    best = [variant for variant, _ in choose.ranked(*sizes, **{**where, **about})[:CANDIDATES]]
    options = [(Part(variant=variant, rows=problem.M, columns=problem.N),) for variant in best]
    try:
        times = _times(options, problem, first, context, bind)
    except ContextLost:
        raise
    except HarnessError:  # no room for another output, or a driver that refuses: the product goes on
        return parts
    if not times:
        return parts
    fastest = min(times, key=times.__getitem__)
    if not unmapped and not invariant:
        _remember(best[fastest], problem, context)
    return options[fastest]


def _times(
    options: Sequence[tuple[Part, ...]],
    problem: Gemm,
    first: tuple[Sequence[int], Stream],
    context: Context,
    bind: Bind,
) -> dict[int, float]:
    """Return the median seconds of a launch of each option, by its place, without those that do not run."""
    (a, b, _, *bias), queue = first
    size = problem.M * problem.ldc * problem.stored.itemsize
    with ExitStack() as owned:
        owned.enter_context(outside_captures())  # other streams may be captured now
        out = owned.enter_context(Buffer(context, size))
        stream = owned.enter_context(Stream(context))
        workspaces, forks = owned.enter_context(Workspaces(context)), owned.enter_context(Forks(context))
        order(queue, stream)
        runs: dict[int, Run] = {}
        for place, parts in enumerate(options):
            try:
                launch = bind(parts, workspaces, forks)
                run = functools.partial(launch, (a, b, out.ptr, *bias), (1.0, 0.0))
                run(stream)  # loads the code and makes its workspace, which nothing held may do
                stream.synchronize()
            except ContextLost:
                raise
            except HarnessError:
                continue
            runs[place] = run
        with Gate(context) as gate, Event(context) as start, Event(context) as end:

            def timed(run: Run, count: int) -> float:
                with gate.holding(stream):
                    start.record(stream)
                    for _ in range(count):
                        run(stream)
                    end.record(stream)
                stream.synchronize()
                return end.seconds_since(start) / count

            return in_turn(runs, timed)


def in_turn(runs: Mapping[int, Timed], timed: Callable[[Timed, int], float]) -> dict[int, float]:
    """Return the median seconds of each, which take turns, in the opposite order every second time.

    `timed` returns the seconds of one of so many launches back to back.
    """
    found: dict[int, list[float]] = {place: [] for place in runs}
    counts = {
        place: max(1, min(MOST_LAUNCHES, math.ceil(_TURN_SECONDS / max(timed(run, 1), 1e-6))))
        for place, run in runs.items()
    }
    turns, spent = list(runs), 0.0
    for number in range(_MOST_TURNS):
        if number >= _LEAST_TURNS and spent > _SECONDS:
            break
        for place in turns:
            seconds = timed(runs[place], counts[place])
            found[place].append(seconds)
            spent += seconds * counts[place]
        turns.reverse()
    return {place: statistics.median(times) for place, times in found.items()}


def _remember(variant: Variant, problem: Gemm, context: Context) -> None:
    """Write the variant into the user's table for this very product, and let it be chosen from now on."""
    device = context.device
    entry = {
        "gpu": device.name,
        "sms": device.sms,
        "dtype": problem.dtype.name,
        "layout": problem.layout,
        **{axis: [getattr(problem, axis)] * 2 for axis in ("M", "N", "K")},
        "kernel": variant.kernel.name,
        "params": {n: x for n, x in variant.params.items() if n in variant.kernel.params and n not in LAYOUT},
    }
    try:
        user_table.keep([entry])
    except HarnessError as e:
        warnings.warn(f"what was measured is not remembered: {e}", stacklevel=2)
    choose.reread()
