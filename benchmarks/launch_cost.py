"""Time what a kernel launch costs the host: our driver layer beside cuda.core, CuPy's RawKernel and Triton.

    python benchmarks/launch_cost.py [--json FILE]

Every peer launches the same empty kernel with the same eight arguments, one thread, from one process, in
turn: rounds of all of them in a random order, so that a slow moment of the host is nobody's in particular.
The cost is the wall time of a launch call while the stream has room; the stream is drained outside of it.
Peers that are not installed are named and left out. Each is used as its documentation says to launch often.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.bench.stats import paired_ratio
from harness.driver import Buffer, Context, Device, Module, Stream, driver_version
from harness.errors import HarnessError
from harness.results import record
from harness.results.tables import plain_table

KERNEL = Path(__file__).with_name("nothing.cu")
LAUNCHES = 300  # of one peer in a round: well below the 1024 that the driver's queue holds
ROUNDS = 200


@dataclass
class Peer:
    """`launch()` queues one launch, `drain()` waits for all of them."""

    name: str
    version: str
    launch: Callable[[], object]
    drain: Callable[[], object]


def ours(owned: ExitStack, context: Context, cubin: bytes) -> Peer:
    stream, buffer = owned.enter_context(Stream(context)), owned.enter_context(Buffer(context, 4096))
    scalars = [np.int32(1), np.int32(2), np.int32(3), np.float32(1), np.float32(0)]
    module = owned.enter_context(Module(context, cubin))
    run = module.function("nothing").prepare(1, 1, [buffer, buffer, buffer, *scalars])
    return Peer("harness", record.provenance()["commit"] or "", lambda: run(stream), stream.synchronize)


def cuda_core(owned: ExitStack, context: Context, cubin: bytes) -> Peer:
    from importlib import metadata

    from cuda import core

    if not hasattr(core, "Device"):  # before 1.0 the API lived one level down
        import cuda.core.experimental as core  # type: ignore[import-not-found, no-redef]
    device = core.Device(context.device.ordinal)
    device.set_current()
    stream = device.create_stream()
    kernel = core.ObjectCode.from_cubin(cubin).get_kernel("nothing")
    config = core.LaunchConfig(grid=1, block=1)
    at = owned.enter_context(Buffer(context, 4096)).ptr
    scalars = (np.int32(1), np.int32(2), np.int32(3), np.float32(1), np.float32(0))
    return Peer(
        "cuda.core",
        metadata.version("cuda-core"),
        lambda: core.launch(stream, config, kernel, at, at, at, *scalars),
        stream.sync,
    )


def cupy(owned: ExitStack, context: Context, cubin: bytes) -> Peer:
    import cupy as cp

    kernel = cp.RawKernel(KERNEL.read_text(), "nothing")
    array = cp.zeros(1024, cp.float32)
    arguments = (array, array, array, np.int32(1), np.int32(2), np.int32(3), np.float32(1), np.float32(0))
    stream = cp.cuda.Stream(non_blocking=True)
    owned.enter_context(stream)
    return Peer("CuPy RawKernel", cp.__version__, lambda: kernel((1,), (1,), arguments), stream.synchronize)


def triton(owned: ExitStack, context: Context, cubin: bytes) -> Peer:
    import torch
    import triton as tr
    import triton_nothing

    tensor = torch.zeros(1024, device="cuda")
    grid = (1,)
    kernel = triton_nothing.nothing
    return Peer(
        "Triton",
        tr.__version__,
        lambda: kernel[grid](tensor, tensor, tensor, 1, 2, 3, 1.0, 0.0, num_warps=1),
        torch.cuda.synchronize,
    )


def compiled(context: Context) -> bytes:
    from harness.kernels import spec
    from harness.kernels.arch import Arch
    from harness.kernels.compiler import compile_kernel

    arch = str(Arch.of_capability(*context.device.capability))
    return compile_kernel(spec.load(KERNEL).variant(), arch).code


def round_cost(peer: Peer) -> float:
    """Seconds a launch, of LAUNCHES of them."""
    launch = peer.launch
    peer.drain()
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        launch()
    cost = (time.perf_counter() - began) / LAUNCHES
    peer.drain()
    return cost


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    with ExitStack() as owned:
        try:
            gpu = Device.open()
        except HarnessError as e:
            print(f"error: {e}", file=sys.stderr)
            return 1
        context = owned.enter_context(Context(gpu))
        cubin = compiled(context)
        peers, absent = [], []
        for make in (ours, cuda_core, cupy, triton):
            try:
                peer = make(owned, context, cubin)
                peer.launch()
                peer.drain()
                peers.append(peer)
            except Exception as e:  # whatever a peer does when it cannot work here
                absent.append(f"{make.__name__}: {type(e).__name__}: {str(e).partition(chr(10))[0]}")
        costs: dict[str, list[float]] = {p.name: [] for p in peers}
        shuffle = random.Random(1)
        gc.disable()
        for _ in range(given.rounds):
            for peer in shuffle.sample(peers, len(peers)):
                costs[peer.name].append(round_cost(peer))
        gc.enable()
    rows = [row(p, costs[p.name], costs["harness"]) for p in peers]
    cells = [[r["peer"], r["version"][:12], f"{r['median'] * 1e6:.2f} us", r["text"]] for r in rows]
    print(f"{gpu.name}, {given.rounds} rounds of {LAUNCHES} launches\n")
    print(plain_table(cells, ["", "version", "a launch", "over harness"]))
    for reason in absent:
        print(f"left out: {reason}")
    if given.json:
        meta: dict[str, Any] = {**record.provenance(), "gpu": gpu.name, "uuid": gpu.uuid, "absent": absent}
        meta["driver"] = "{}.{}".format(*driver_version())
        record.write_json(given.json, record.document("launch-cost", rows, meta))
    return 0


def row(peer: Peer, costs: list[float], own: list[float]) -> dict[str, Any]:
    ratio = None if peer.name == "harness" else paired_ratio(costs, own, seed=1)
    text = f"{ratio.estimate:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" if ratio else "-"
    interval = [ratio.low, ratio.estimate, ratio.high] if ratio else None
    median = statistics.median(costs)
    return {
        "peer": peer.name,
        "version": peer.version,
        "median": median,
        "ratio": interval,
        "text": text,
        "rounds": [float(f"{c:.5g}") for c in costs],
    }


if __name__ == "__main__":
    sys.exit(main())
