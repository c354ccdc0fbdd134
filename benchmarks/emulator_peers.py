"""The same kernels in numba's CUDA simulator and here: seconds of CPU time.

    python benchmarks/emulator_peers.py [--peers PYTHON] [--json FILE]

Each kernel is written once for each of them, and its result is verified. numba-cuda need not be installed
beside harness: `--peers` names the interpreter of another environment, which runs this file by itself. A peer
that is not there is left out. The emulator has all checks and counts on; the simulator has none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RNG = np.random.default_rng(1)
N, ROWS, COLUMNS, CELLS = 64, 64, 256, 1 << 14


def problems() -> dict[str, tuple[Any, ...]]:
    """Return the arrays of each kernel, its output last, and what the output has to be."""
    a, b = (RNG.standard_normal((N, N)).astype(np.float32) for _ in range(2))
    x = RNG.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    e = np.exp(x - x.max(1, keepdims=True))
    v = RNG.standard_normal(CELLS).astype(np.float32)
    s = v.copy()
    s[1:-1] = (v[:-2] + v[1:-1] + v[2:]) / 3
    k = RNG.integers(0, 64, CELLS).astype(np.int32)
    return {
        "tiled matmul": (a, b, np.zeros((N, N), np.float32), a @ b),
        "softmax": (x, np.zeros_like(x), e / e.sum(1, keepdims=True)),
        "reduction": (v, np.zeros(1, np.float32), np.array([v.sum()])),
        "stencil": (v, np.zeros_like(v), s),
        "histogram": (k, np.zeros(64, np.int32), np.bincount(k, minlength=64)),
    }


CUDA = """
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float s[16][16], t[16][16];
  int x = threadIdx.x, y = threadIdx.y, q = blockIdx.x * 16 + x, r = blockIdx.y * 16 + y; float sum = 0;
  for (int k = 0; k < n; k += 16) {
    s[y][x] = a[r * n + k + x]; t[y][x] = b[(k + y) * n + q]; __syncthreads();
    for (int j = 0; j < 16; j++) sum += s[y][j] * t[j][x];
    __syncthreads(); }
  c[r * n + q] = sum; }
extern "C" __global__ void softmax(const float* x, float* o, int n) {
  __shared__ float part[128]; int i = threadIdx.x; x += blockIdx.x * n; o += blockIdx.x * n;
  float m = -1e30f, s = 0; for (int j = i; j < n; j += 128) m = fmaxf(m, x[j]);
  part[i] = m; __syncthreads();
  for (int d = 64; d; d /= 2) { if (i < d) part[i] = fmaxf(part[i], part[i + d]); __syncthreads(); }
  m = part[0]; __syncthreads();
  for (int j = i; j < n; j += 128) s += expf(x[j] - m);
  part[i] = s; __syncthreads();
  for (int d = 64; d; d /= 2) { if (i < d) part[i] += part[i + d]; __syncthreads(); }
  for (int j = i; j < n; j += 128) o[j] = expf(x[j] - m) / part[0]; }
extern "C" __global__ void reduction(const float* v, float* o, int n) {
  __shared__ float part[128]; int i = threadIdx.x; float s = 0;
  for (int j = blockIdx.x * 128 + i; j < n; j += 128 * gridDim.x) s += v[j];
  part[i] = s; __syncthreads();
  for (int d = 64; d; d /= 2) { if (i < d) part[i] += part[i + d]; __syncthreads(); }
  if (i == 0) atomicAdd(o, part[0]); }
extern "C" __global__ void stencil(const float* v, float* o, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) o[i] = i == 0 || i == n - 1 ? v[i] : (v[i - 1] + v[i] + v[i + 1]) / 3.f; }
extern "C" __global__ void histogram(const int* k, int* o, int n) {
  __shared__ int part[64]; int i = threadIdx.x; if (i < 64) part[i] = 0; __syncthreads();
  for (int j = blockIdx.x * 128 + i; j < n; j += 128 * gridDim.x) atomicAdd(&part[k[j]], 1);
  __syncthreads(); if (i < 64) atomicAdd(o + i, part[i]); }
"""
LAUNCHES = {  # (entry, grid, block, the last argument)
    "tiled matmul": ("matmul", (N // 16, N // 16), (16, 16), N),
    "softmax": ("softmax", (ROWS,), (128,), COLUMNS),
    "reduction": ("reduction", (8,), (128,), CELLS),
    "stencil": ("stencil", (CELLS // 128,), (128,), CELLS),
    "histogram": ("histogram", (8,), (128,), CELLS),
}


def ours() -> dict[str, float]:
    """Return the CPU seconds of each kernel here."""
    from harness.emulator import emulate

    ptx = compiled(CUDA)
    found = {}
    for name, (*arrays, output, wanted) in problems().items():
        entry, grid, block, n = LAUNCHES[name]

        launch = {"grid": grid, "block": block, "arguments": [*arrays, output, np.int32(n)]}

        def run(entry: str = entry, launch: Any = launch, output: Any = output) -> None:
            output[...] = 0
            result = emulate(ptx, entry, **launch)
            if result.findings:
                raise SystemExit(f"error: {result.findings[0].message}")

        found[name] = timed(run, output, wanted)
    return found


def compiled(text: str) -> str:
    """Return the PTX of CUDA C++."""
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"peers.cu", 0, None, None)
    nvrtc.nvrtcCompileProgram(program, 2, [b"--gpu-architecture=compute_90", b"-lineinfo"])
    ptx = bytes(nvrtc.nvrtcGetPTXSize(program)[1])
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.rstrip(b"\0").decode()


def timed(run: Callable[[], None], output: Any, wanted: Any) -> float:
    """Return the least CPU seconds of three runs. Raises SystemExit for a wrong result."""
    seconds = []
    for _ in range(3):
        began = time.process_time()
        run()
        seconds.append(time.process_time() - began)
    if not np.allclose(np.asarray(output), wanted, rtol=1e-3, atol=1e-3):
        raise SystemExit("error: a wrong result")
    return min(seconds)


def numba() -> dict[str, float]:
    """Return the CPU seconds of each kernel in numba's simulator."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    import numba_kernels

    found = {}
    for name, (*arrays, output, wanted) in problems().items():
        entry, grid, block, n = LAUNCHES[name]
        kernel = getattr(numba_kernels, entry)[grid, block]

        def run(kernel: Any = kernel, arrays: Any = (*arrays, output, n), output: Any = output) -> None:
            output[...] = 0
            kernel(*arrays)

        found[name] = timed(run, output, wanted)
    return found


PEERS = {"numba": numba}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=PEERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(PEERS[arguments.only]()))
        return
    from harness.results import record
    from harness.results.tables import plain_table

    columns = {"harness": ours()}
    for name in PEERS:
        command = [arguments.peers, __file__, "--only", name]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            print(f"without {name}: {(ended.stderr.strip().splitlines() or ['?'])[-1]}")
        else:
            columns[name] = json.loads(ended.stdout)
    rows = [{"kernel": name, **{peer: times[name] for peer, times in columns.items()}} for name in LAUNCHES]
    table = [[r["kernel"], *(f"{r[c]:.3g}" for c in columns)] for r in rows]
    print(plain_table(table, ["CPU seconds", *columns]))
    if arguments.json:
        record.write_json(arguments.json, record.document("emulator-peers", rows, record.provenance(seed=1)))


if __name__ == "__main__":
    main()
