"""Time the same cubin with nvbench (``cuda-bench``) and ncu, to compare with harness's own times.

Each instrument works in a process of its own, with CUDA_VISIBLE_DEVICES set, on operands with the same data.
It shares with harness the loading and launching of kernels; clock, cache control and statistics are its own.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.driver import BorrowedStream, Context, Device, Stream
from harness.errors import HarnessError, MissingDependency
from harness.kernels import catalog
from harness.kernels.arch import Arch
from harness.kernels.compiler import compile_kernel
from harness.launch import cublas
from harness.launch import kernel as launch
from harness.launch.kernel import Launch
from harness.launch.operands import Operands
from harness.problems.gemm import Gemm

METRIC = "gpu__time_duration.sum"
_WARM, _PROFILED = 5, 20  # launches under ncu; the mean is over all of them
_TIMEOUT = 300  # seconds, for either instrument


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel by name, or ``cuBLAS``, on the product of square matrices of size n."""

    kernel: str
    n: int


def nvbench_seconds(case: Case, device: Device) -> float:
    """Return nvbench's mean cold GPU time in seconds.

    Raises MissingDependency without the cuda-bench package, HarnessError if it fails or measures nothing.
    """
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bench") is None:
        raise MissingDependency("cuda-bench is not installed", hint="pip install 'cuda-bench[cu13]'")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "nvbench.json")
        _run([sys.executable, "-c", _entry("under_nvbench", case, str(path))], device)
        content = json.loads(path.read_text())
    summaries = content["benchmarks"][0]["states"][0]["summaries"] or []
    for summary in summaries:
        if summary["tag"] == "nv/cold/time/gpu/mean":
            return float(next(d["value"] for d in summary["data"] if d["name"] == "value"))
    raise HarnessError("cuda-bench measured nothing")


def ncu_seconds(case: Case, device: Device) -> float:
    """Return the mean of ncu's gpu__time_duration in seconds, with caches flushed and clocks left alone.

    Raises MissingDependency without ncu, HarnessError if it fails or may not profile.
    """
    tool = shutil.which("ncu")
    if tool is None:
        raise MissingDependency("ncu is not installed", hint="it comes with the CUDA toolkit")
    options = ["--csv", "--print-units", "base", "--metrics", METRIC, "--clock-control", "none"]
    command = [tool, *options, "--cache-control", "all", sys.executable, "-c", _entry("under_ncu", case)]
    total = sum(durations(_run(command, device)))
    if not total:
        raise HarnessError("ncu reported no durations", hint="`ncu` may need permission: ERR_NVGPUCTRPERM")
    return total / (_WARM + _PROFILED)


def durations(output: str) -> list[float]:
    """Return the time of each kernel in seconds, from the output of ``ncu --csv --print-units base``.

    Lines of ncu's log before the table are skipped. Raises HarnessError if the times are not in ns.
    """
    lines = output.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    rows = csv.DictReader(io.StringIO("\n".join(lines[start:])))
    found = [row for row in rows if row.get("Metric Name") == METRIC]
    units = {row["Metric Unit"] for row in found}
    if units - {"ns", "nsecond"}:
        raise HarnessError(f"ncu gave {METRIC} in {', '.join(units)}, not in ns")
    return [float(row["Metric Value"].replace(",", "")) * 1e-9 for row in found]


def under_nvbench(kernel: str, n: int, path: str) -> None:
    """Run one nvbench benchmark of one launch, in the child process; its results go to the file `path`."""
    from cuda import bench

    with _prepared(kernel, n) as (context, run):
        streams: dict[int, BorrowedStream] = {}

        def launched(at: bench.Launch) -> None:
            address = at.get_stream().addressof()
            if address not in streams:
                streams[address] = BorrowedStream(context, address)
            run(streams[address])

        def once(state: bench.State) -> None:
            state.exec(launched, batched=False)

        bench.register(once)
        bench.run_all_benchmarks(["harness", "--devices", "0", "--json", path])


def under_ncu(kernel: str, n: int) -> None:
    """Launch the kernel some times, and no other kernel, in the child process under ncu."""
    with _prepared(kernel, n) as (context, run), Stream(context) as stream:
        for _ in range(_WARM + _PROFILED):
            run(stream)
            stream.synchronize()


@contextmanager
def _prepared(kernel: str, n: int) -> Iterator[tuple[Context, Launch]]:
    """Yield a context and the prepared launch of a kernel, or of cuBLAS, on the GPU of this process."""
    with ExitStack() as owned:
        context = owned.enter_context(Context(Device.open()))
        stream = owned.enter_context(Stream(context))
        problem = Gemm(M=n, N=n, K=n)
        operands = owned.enter_context(Operands(context, problem, stream, seed=1, sets=1))
        if kernel == cublas.LABEL:
            run = owned.enter_context(cublas.CuBlas(context)).prepare(operands)
        else:
            arch = str(Arch.of_capability(*context.device.capability))
            run = launch.prepare(compile_kernel(catalog.kernel(kernel).variant(), arch), operands)
        yield context, owned.enter_context(run)


def _entry(function: str, case: Case, *more: str) -> str:
    """Return the Python code that runs `function` of this module in a child process."""
    arguments = ", ".join(map(repr, (case.kernel, case.n, *more)))
    return f"from harness.instruments import calibration; calibration.{function}({arguments})"


def _run(command: list[str], device: Device) -> str:
    """Run a command that sees only this GPU, and return its standard output.

    With one GPU visible, index 0 means the same GPU to every tool. Raises HarnessError if it fails or does
    not end in time.
    """
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": device.uuid}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise HarnessError(f"{Path(command[0]).name} was not done after {_TIMEOUT} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "silently").splitlines()[-1]
        raise HarnessError(f"{Path(command[0]).name} ended with code {done.returncode}: {said}")
    return done.stdout
