"""Graph kernels of irregular memory accesses, sound ones and ones with a bug planted, generated.

The patterns and kinds of bugs are those of Indigo (Liu et al., ISPASS 2022); the code is our own. A kernel
gets a graph in compressed rows (the edges of node v are ``edges[first[v]]`` to ``edges[first[v + 1] - 1]``),
values ``in`` of the nodes, results ``out``, and counts ``count``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from harness.emulator import Emulation
from shared.emulator_kernels import launch

NODES, THREADS = 48, 64
# Who works on a node: its number, the first edge that a thread takes, the step, and how many nodes at a time.
WORKERS = {
    "thread": ("block * THREADS + t", "0", "1", "gridDim.x * THREADS"),
    "warp": ("(block * THREADS + t) / 32", "t % 32", "32", "gridDim.x * THREADS / 32"),
    "block": ("block", "t", "THREADS", "gridDim.x"),
}
HEAD = f"""
#define THREADS {THREADS}
extern "C" __global__ void k(const int* first, const int* edges, int* in, int* out, int* count, int nodes) {{
  int t = threadIdx.x, block = blockIdx.x;
  __shared__ int sum;
"""
OVER = "for (int e = first[v] + START; e < first[v + 1]PAST; e += STEP) { int n = edges[e]; BODY STOP }"

# By pattern: what is done for each node v; PUT combines the sums of the threads that work on it.
PATTERNS = {
    "pull": "int s = 0; OVER PUT",
    "push": "OVER",
    "count": "int s = 0; OVER PUT",
    "worklist": "OVER",
}
BODIES = {
    "pull": "s += SOURCE[n];",
    "push": "GUARD OPERATION;",
    "count": "if (in[n] > in[v]) s++;",
    "worklist": "if (in[n] > in[v]) { int slot = SLOT; out[slot] = n * 64 + v; }",
}
PUTS = {  # of the threads that work on a node
    "thread": "RESULT",
    "warp": """for (int d = 16; d; d /= 2) s += __shfl_xor_sync(0xffffffff, s, d);
      if (t % 32 == 0) { RESULT }""",
    "block": """if (t == 0) sum = 0; SYNC1 ADD SYNC2 if (t == 0) { s = sum; RESULT } SYNC3""",
}


@dataclass(frozen=True)
class Variant:
    """A kernel: its pattern, workers and options; `bug` is "" for a sound one."""

    pattern: str
    worker: str
    persistent: bool
    stops: bool
    operation: str
    bug: str

    @property
    def sound(self) -> bool:
        """Without the third barrier thread 0 reads and resets the sum itself: nothing is wrong."""
        return self.bug in ("", "sync3")

    def __str__(self) -> str:
        parts = [
            self.pattern,
            self.worker,
            "persistent" * self.persistent,
            "stops" * self.stops,
            self.operation,
            self.bug,
        ]
        return "-".join(filter(None, parts))

    def source(self) -> str:
        """Return the CUDA source."""
        value = "in[v] + v"
        operation = f"atomic{self.operation}(&out[n], {value})"
        if self.bug == "atomic" and self.pattern == "push":
            operation = f"out[n] = max(out[n] + 1, {value})"
        result = "out[v] = s * 64 + v;" if self.pattern == "pull" else "atomicAdd(count, s);"
        if self.bug == "atomic" and self.pattern == "count":
            result = "*count += s + 1;"
        if self.bug == "race" and self.pattern == "pull":
            result = "out[v] = s * 64 + v; in[v] = s * 64 + v;"
        put = PUTS[self.worker].replace("RESULT", result)
        put = put.replace("ADD", "sum += s + 1;" if self.bug == "shared atomic" else "atomicAdd(&sum, s);")
        for number in "123":
            put = put.replace(f"SYNC{number}", "" if self.bug == f"sync{number}" else "__syncthreads();")
        node, start, step, count = WORKERS[self.worker]
        text = PATTERNS[self.pattern].replace("OVER", OVER).replace("PUT", put)
        text = text.replace("BODY", BODIES[self.pattern])
        for name, meaning in {
            "SOURCE": "in",
            "GUARD": f"if (out[n] < {value})" if self.bug == "guard" else "",
            "OPERATION": operation,
            "SLOT": "(*count)++" if self.bug == "atomic" else "atomicAdd(count, 1)",
            "STOP": "if (n % 7 == 3) break;" if self.stops else "",
            "START": start,
            "STEP": step,
            "PAST": " + (v == nodes - 1)" if self.bug == "bounds" else "",
        }.items():
            text = text.replace(name, meaning)
        loop = f"for (int v = {node}; v < nodes; v += {count}) {{ {text} }}"
        once = f"int v = {node}; if (v < nodes) {{ {text} }}"
        return HEAD + (loop if self.persistent else once) + "}"

    def run(self, seed: int) -> Emulation:
        """Run the kernel on a graph drawn from `seed`."""
        rng = np.random.default_rng(seed)
        pairs = np.unique(rng.integers(0, NODES, (6 * NODES, 2)), axis=0)
        first = np.searchsorted(pairs[:, 0], np.arange(NODES + 1)).astype(np.int32)
        edges = pairs[:, 1].astype(np.int32)
        values, out = rng.permutation(NODES).astype(np.int32), np.zeros(8 * NODES, np.int32)
        a_block = {"thread": THREADS, "warp": THREADS // 32, "block": 1}[self.worker]
        blocks = 2 if self.persistent else max(2, -(-NODES // a_block))
        arrays = (first, edges, values, out, np.zeros(1, np.int32))
        return launch(self.source(), "k", (blocks,), (THREADS,), *arrays, np.int32(NODES))


def variants() -> Iterator[Variant]:
    """Yield all variants."""
    for pattern, worker, persistent, stops in product(PATTERNS, WORKERS, (False, True), (False, True)):
        bugs = ["", "bounds", *{"pull": ["race"], "push": ["atomic", "guard"]}.get(pattern, ["atomic"])]
        if worker == "block" and pattern in ("pull", "count"):
            bugs += ["sync1", "sync2", "shared atomic", *(["sync3"] if persistent else [])]
        for bug in bugs:
            operations = ("Add", "Max", "Min") if pattern == "push" and bug != "atomic" else ("",)
            for operation in operations:
                yield Variant(pattern, worker, persistent, stops, operation, bug)
