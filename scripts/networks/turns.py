"""Time a work in turn, with PyTorch's own products and with harness's: stock, harness, harness, stock."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

import torch

import harness.torch
from harness.bench.nvml import Telemetry, summarize
from networks.works import Row, Work

LEG = 0.05  # seconds of one leg, about
LEAST, MOST = 3, 100  # fours of a comparison
OPTIONS: Row = {}  # of `harness.torch.replace`


class Clock:
    """The time between two points of the current stream."""

    def __init__(self) -> None:
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._begin.record()

    def stop(self) -> None:
        self._end.record()

    def seconds(self) -> float:
        """Return the time, after waiting for it."""
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1e3


def synchronize() -> None:
    torch.cuda.synchronize()


def everything(*product: Any, **more: Any) -> bool:
    """Give harness all it takes: small batches, and operands that it copies."""
    return True


def replacing(ours: bool, **options: str) -> contextlib.AbstractContextManager[None]:
    return harness.torch.replace(**OPTIONS | options) if ours else contextlib.nullcontext()


def leg(work: Work, count: int) -> float:
    """Return the seconds of a call, as a mean over some that are queued one behind the other."""
    work.prepare()
    synchronize()
    clock = Clock()
    for _ in range(count):
        work.call()
    clock.stop()
    return clock.seconds() / count


def captured(work: Work) -> Work:
    """Return the replay of a graph of one call, as it is computed here."""
    work.prepare()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work.call()
    return Work(graph.replay, work.prepare, work.most)


def split(report: harness.torch.Report) -> Row:
    """Return the part of the multiply-adds that harness computed, and the largest that it did not."""
    total = sum(call.work for call in report.records) or 1
    left = [call for call in report.records if call.why][:6]
    return {
        "by_harness": sum(call.work for call in report.records if not call.why) / total,
        "calls": sum(call.calls for call in report.records),
        "left": [f"{c.calls} {c.op} {c.size} {c.layout} {c.dtype}: {c.why}" for c in left],
    }


def compare(work: Work, mode: str, until: float, sensor: Telemetry | None) -> Row:
    """Time a work in turn until a time of `time.perf_counter`, but `LEAST` fours."""
    start = time.perf_counter()
    pair = [work, work]
    for ours in (False, True):
        with replacing(ours):
            leg(work, min(2, work.most))  # compiles kernels
            if mode == "graph":
                pair[ours] = captured(work)
    found = split(harness.torch.report())
    count = max(1, min(work.most, round(LEG / max(leg(one, 1) for one in pair))))
    warm = time.perf_counter() - start
    stock, ours, ratios, readings = [], [], [], []
    while len(ratios) < LEAST or (time.perf_counter() < until and len(ratios) < MOST):
        first = leg(pair[0], count)
        with replacing(mode != "graph"):
            leg(pair[1], 1)  # decides where each product runs
            pairs = [leg(pair[1], count), leg(pair[1], count)]
        readings += [reading] if sensor is not None and (reading := sensor.read()) is not None else []
        last = leg(pair[0], count)
        stock += [first, last]
        ours += pairs
        ratios.append((first + last) / sum(pairs))
    low, middle, high = statistics.quantiles(ratios, n=4)
    state = summarize(readings)
    return {
        "stock_ms": 1e3 * statistics.median(stock),
        "harness_ms": 1e3 * statistics.median(ours),
        "ratio": middle,
        "quartiles": [low, high],
        "fours": len(ratios),
        "calls_a_leg": count,
        "warm_s": warm,
        **found,
        "sm_mhz": state and state.sm_mhz,
        "power": state and state.power,
        "throttle": list(state.throttle) if state else [],
    }
