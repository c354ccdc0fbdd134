"""`harness.matmul` against cuBLAS on products that nobody chose.

    python benchmarks/shapes.py [--draws 400] [--dtype bf16]... [--seconds 300] [--json FILE]

For each draw (`sampler.draws`) the launches that `harness.matmul` would queue take turns with cuBLAS
(cublasGemmEx, in fp32 SGEMM, as PyTorch calls it) and with the algorithm that cuBLASLt's heuristic puts
first, in CUDA graphs back to back, on operands rotated over twice the L2 cache. The ratio is the time of the
faster of the two over ours. Outputs are compared with cuBLAS's on the GPU before and after.

`--regret N` also times the cost model's best for the first N draws of each type: what the choice loses,
and the rows from which scripts/fit_model.py fits the model. `--trials N` times N of the table's trials beside
them, of which it is not known yet how fast they are: the choice may lose to these, too. With `--within
PERCENT` these are only those that the model takes to be at most so much slower than its best, and draws
without one are left out. `--invariant` also times what ``harness.matmul(invariant=True)`` launches: the price
of rows that do not depend on how many there are. The seed is a new one unless it is given. The record is
written every few seconds; `--resume` goes on with one, and so does a run that a fault has ended. 3xtf32,
fp16x3 and bf16x6 are compared with cuBLAS in fp32.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from harness.cli.options import about
from harness.dispatch import choose
from harness.dispatch.model import cost
from harness.dispatch.model.traffic import DRAM_BYTES
from harness.dispatch.split import divided
from harness.driver import Device
from harness.errors import ContextLost, HarnessError, UsageError
from harness.kernels.arch import Arch
from harness.kernels.compiler import Cubin, compile_kernel
from harness.kernels.spec import Variant
from harness.problems.gemm import GEMMS, Gemm
from harness.results import record
from harness.support.processes import ENDED, cores, processes
from sampler import tables
from sampler.contest import Arena, Entry
from sampler.draws import CLASSES, LEAST_WORK, MOST_WORK, Draw, draws
from sampler.heuristics import Heuristics

DTYPES = ("fp32", "tf32", "bf16", "fp16")
LIMITS: dict[str, Any] = {"most": 0, "over": 0, "madds": MOST_WORK, "only": [], "near": []}
CANDIDATES = 8  # the model's best, of which --regret times each, by default
_IN_TURN = 20  # draws of one type before the next type has its turn
_SAVED_EVERY = 10.0  # seconds
_FEW = 64  # draws that are not worth a process


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a draw was wrong or failed, else 0."""
    given = parsed(arguments)
    if given.compile:
        return compiled(given)
    rows: list[dict[str, Any]] = []
    if given.resume:
        kept = record.load(given.json)
        if kept.get("kind") != "shapes":
            raise UsageError("not a record of this script", where=str(given.json), hint="leave out --resume")
        rows, given.seed = list(kept["rows"]), kept["meta"]["seed"]
        # Other limits would be other draws under the same numbers.
        vars(given).update({name: kept["meta"].get(name, default) for name, default in LIMITS.items()})
        if kept["meta"].get("within") != given.within:
            begun = (
                f"begun with --within {kept['meta']['within']}"
                if "within" in kept["meta"]
                else "begun without --within"
            )
            raise UsageError(begun, where=str(given.json), hint="go on with the options that it has in argv")
    elif given.json:
        record.check_writable(given.json)
    device = Device.open(given.device)
    heuristics = Heuristics(device.name)
    done = {(row["dtype"], row["index"]) for row in rows}
    left = list(entries(given, heuristics, done, gpu=device.name, **cost.card(device)))
    until = time.monotonic() + given.seconds
    meta = {**record.provenance(seed=given.seed), "gpu": about(device), "draws": given.draws}
    meta |= {name: limit for name, limit in limits_of(given).items() if limit != LIMITS[name]}
    meta |= {} if given.within is None else {"within": given.within}
    meta |= {"algorithms": given.algorithms, "heuristics": heuristics.unavailable or "asked"}
    lost: ContextLost | None = None
    try:
        lost = measure(left, rows, given, device, meta, until)
    finally:
        save(given.json, rows, meta)
    if lost is not None and given.json:
        go_on(until)
    print(tables.summary(rows))
    asked = len(done) + len(left)
    print(f"\nseed {given.seed}, {len(rows)} of {asked} draws, {device.name}")
    if lost is not None:
        raise lost
    return int(any(row["status"] == "error" for row in rows))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--dtype", nargs="+", choices=list(GEMMS), default=list(DTYPES), help="default: %(default)s")
    add("--draws", type=positive, default=400, help="of each type (default: 400)")
    add("--seed", type=int, default=secrets.randbits(32), help="default: a new one")
    add("--seconds", type=float, default=300.0, help="of measuring; no draw begins after them (default: 300)")
    add("--most", type=int, metavar="N", help="only products with at most N rows or columns")
    add("--over", type=int, metavar="N", help="only those of more than N multiply-adds")
    add("--madds", type=int, metavar="N", help="only those of at most N multiply-adds")
    add("--only", nargs="+", choices=CLASSES, metavar="CLASS", help=f"of {', '.join(CLASSES)}")
    add("--near", nargs="+", metavar="RECORD", help=f"only draws near those of records below {tables.LOST}")
    parser.set_defaults(**LIMITS)
    add("--regret", type=int, default=0, metavar="N", help="time the model's best for N draws of each type")
    add("--trials", type=int, default=0, metavar="N", help="beside these, time N of the table's trials")
    add("--within", type=float, metavar="PERCENT", help="leave out trials that are said to be slower by more")
    add("--invariant", action="store_true", help="also time what invariant rows take")
    add("--candidates", type=positive, default=CANDIDATES, help="of the model, for --regret (%(default)s)")
    add("--events", action="store_true", help="also time launches with an event around each")
    add("--algorithms", type=positive, default=1, help="of cuBLASLt's heuristic; the fastest counts")
    add("--memory", type=float, default=6.5, metavar="GIB", help="for inputs, and as much for outputs")
    add("--device", help="index or UUID of the GPU")
    add("--json", type=Path, metavar="FILE", help="the record")
    add("--resume", action="store_true", help="go on with the record of --json, and its seed")
    add("--compile", metavar="ARCH", help="only compile what the draws need, as sm_90a; needs no GPU")
    add("--sms", type=int, default=cost.H200_SMS, help="for --compile (default: %(default)s)")
    add("--gpu", default="NVIDIA H200", help="for --compile (default: %(default)s)")
    given = parser.parse_args(arguments)
    if given.madds < LEAST_WORK:
        parser.error(f"--madds N: no product has fewer than {LEAST_WORK} multiply-adds")
    if given.over >= given.madds:
        parser.error(f"--over {given.over}: no product has more, and at most the {given.madds} of --madds")
    if given.trials < 0 or (given.trials and not given.regret):
        parser.error("--trials N times N trials for the draws that --regret says")
    if given.within is not None and not given.trials:
        parser.error("--within PERCENT is of the trials: say how many of them, with --trials N")
    if given.resume and not given.json:
        parser.error("--resume goes on with the record that --json names")
    return given


def positive(text: str) -> int:
    """Return a number of the command line that is at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def limits_of(given: argparse.Namespace) -> dict[str, Any]:
    """Return which draws are taken, as `draws` has it."""
    return {name: getattr(given, name) for name in LIMITS}


def in_turn(
    dtypes: Sequence[str], count: int, seed: int, near: Sequence[str] = (), **limits: Any
) -> Iterator[Draw]:
    """Yield the draws of all types, some of each in turn, so that a run that ends early has all types."""
    kept = {path: record.load(Path(path)).get("rows", ()) for path in near}
    all_of_them = {
        dtype: draws(dtype, count, seed, near=lost(dtype, kept), **limits) for dtype in dict.fromkeys(dtypes)
    }
    for start in range(0, count, _IN_TURN):
        for drawn in all_of_them.values():
            yield from drawn[start : start + _IN_TURN]


def lost(dtype: str, records: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Gemm]:
    """Return the products of an element type below `tables.LOST`, of the rows of `records` by path.

    Raises UsageError if records are given and have none.
    """
    axes = ("M", "N", "K", "lda", "ldb", "ldc", "transa", "transb")
    found = [
        GEMMS[dtype](**{name: row[name] for name in axes})
        for rows in records.values()
        for row in rows
        if row.get("dtype") == dtype and 0 < row.get("ratio", 0) < tables.LOST
    ]
    if records and not found:
        raise UsageError(f"no draw of {dtype} is below {tables.LOST}", where=", ".join(records))
    return found


def entries(
    given: argparse.Namespace, heuristics: Heuristics, done: Set[tuple[str, int]], *, gpu: str, **card: Any
) -> Iterator[Entry]:
    """Yield what is to be measured of the draws that are not `done`, in their order.

    To choose for one takes tens of milliseconds: many are shared out to processes. Raises HarnessError where
    one of these was killed.
    """
    drawn = [
        draw
        for draw in in_turn(given.dtype, given.draws, given.seed, **limits_of(given))
        if (draw.problem.dtype.name, draw.index) not in done
    ]
    chosen = partial(entry, given=given, heuristics=heuristics, gpu=gpu, **card)
    if len(drawn) < _FEW or not heuristics.unavailable:
        found = list(map(chosen, drawn))
    else:
        try:
            with processes(min(cores(), len(drawn) // _FEW)) as pool:
                found = list(pool.map(chosen, drawn, chunksize=_FEW // 8))
        except BrokenProcessPool:
            raise HarnessError("a process that chose kernels was killed", hint=ENDED) from None
    yield from (one for one in found if given.within is None or one.others or one.failure)


def entry(draw: Draw, given: argparse.Namespace, heuristics: Heuristics, *, gpu: str, **card: Any) -> Entry:
    """Return what `harness.matmul` would launch, and for the first ``--regret`` draws the model's best."""
    problem = draw.problem
    shape, about = (problem.M, problem.N, problem.K), choose.about(problem)
    try:
        parts = divided(*shape, gpu=gpu, **card, **about)
        same = choose.about(problem, choose.ROWS)
        rows = choose.choose(*shape, gpu=gpu, **card, **same) if given.invariant else None
        if draw.index >= given.regret:
            return Entry(draw=draw, parts=parts, invariant=rows)
        ranked = choose.ranked(*shape, **card, **about)
        best = tuple(variant for variant, _ in ranked[: given.candidates])
        tried = trials(problem, given.within, **card)[: given.trials]
        others = best + tried if tried or given.within is None else ()
    except HarnessError as e:
        return Entry(draw=draw, failure=str(e))
    named = heuristics.nearest(problem, best)
    name = named.label if named else ""
    return Entry(draw=draw, parts=parts, others=others, named=name, invariant=rows)


def trials(
    problem: Gemm, within: float | None = None, *, arch: str, sms: int, dram: float = DRAM_BYTES
) -> tuple[Variant, ...]:
    """Return the table's trials for a product, those first that the model takes for the fastest.

    Those that it takes to be slower than its best candidate by more than `within` per cent are left out.
    """
    shape = problem.M, problem.N, problem.K, sms
    dtype, layout, pitches = problem.dtype.name, problem.layout, choose.about(problem)["pitches"]

    def ranked(listed: str) -> list[tuple[cost.Candidate, float]]:
        about = arch, dtype, layout, problem.epilogue, "", dram, listed
        able = choose.able(*shape, *about, uneven=pitches.uneven)
        return cost.ranked(able, shape, layout=layout, pitches=pitches)

    found = ranked("trials")
    if within is not None:
        most = ranked("candidates")[0][1] * (1 + within / 100)
        found = [(one, cycles) for one, cycles in found if cycles <= most]
    return tuple(one.variant for one, _ in found)


def measure(
    left: Sequence[Entry],
    rows: list[dict[str, Any]],
    given: argparse.Namespace,
    device: Device,
    meta: dict[str, Any],
    until: float,
) -> ContextLost | None:
    """Append a row for each entry until the time is up; return the fault that ended it, or None."""
    saved = time.monotonic()
    memory = int(given.memory * 2**30)
    options = {"algorithms": given.algorithms, "events": given.events, "seed": given.seed}
    arch = str(Arch.of_capability(*device.capability))
    with compiling(left, arch) as cubins, Arena(device, memory=memory, **options) as arena:
        meta["gpu"] |= {"cublas": arena.cublas.version, "cublaslt": arena.lt.version}
        for one in left:
            if time.monotonic() > until:
                break
            row, lost = arena.measured(one, cubins)
            rows.append(row)
            if lost is not None:
                return lost
            if time.monotonic() - saved > _SAVED_EVERY:
                save(given.json, rows, meta)
                saved = time.monotonic()
                print(f"{len(rows)} draws, {until - saved:.0f} s left", file=sys.stderr, flush=True)
    return None


@contextmanager
def compiling(entries: Sequence[Entry], arch: str) -> Iterator[Mapping[str, Future[Cubin]]]:
    """Compile what the entries need, in their order, in other threads while the block runs."""
    variants = {label: variant for one in entries for label, variant in one.variants.items()}
    with ThreadPoolExecutor(cores(spared=1)) as threads:
        try:
            yield {label: threads.submit(compile_kernel, v, arch) for label, v in variants.items()}
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def compiled(given: argparse.Namespace) -> int:
    """Compile what the draws need into the cache, for a GPU that need not be there."""
    nothing, given.compile = Heuristics(""), str(Arch.parse(given.compile))
    needed = list(entries(given, nothing, set(), sms=given.sms, arch=given.compile, gpu=given.gpu))
    with compiling(needed, given.compile) as cubins:
        for number, one in enumerate(cubins.values(), 1):
            one.result()
            print(f"{number} of {len(cubins)} compiled", file=sys.stderr, flush=True)
    failed = [one for one in needed if one.failure]
    for one in failed:
        print(f"{one.draw.problem.label}: {one.failure}")
    print(f"seed {given.seed}")
    return int(bool(failed))


def save(path: Path | None, rows: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> None:
    """Write the record, whole or not at all, if there is to be one."""
    if path is not None:
        record.write_json(path, record.document("shapes", rows, meta))


def go_on(until: float) -> None:
    """Replace this process by a new one that resumes the record: after a fault only a new one has a GPU."""
    left = max(0.0, until - time.monotonic())
    print(f"a kernel faulted: going on in a new process, {left:.0f} s left", file=sys.stderr, flush=True)
    again = [*sys.argv, "--resume", "--seconds", f"{left:.1f}"]
    os.execv(sys.executable, [sys.executable, *again])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HarnessError as e:
        sys.exit(f"error: {e}")
