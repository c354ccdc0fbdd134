"""Products of matrices sharded over the GPUs of one host, against PyTorch's, and against each GPU by itself.

    torchrun --nproc-per-node 4 benchmarks/sharded.py [--size 16384]... [--dtype bf16]... [--json FILE]

For each case (`sharded_contenders.CASES`) `harness.torch.sharded.matmul` takes turns with PyTorch's gather or
reduction and cuBLAS one after the other, with DTensor's own product, and with the fused operators on
symmetric memory, whose NVLink multicast is off. A turn is a few calls; its time is that of the slowest
process. Rows of every result are compared with float64 before and after. `sharded.matmul_lists` is timed by
the first process alone. The bounds are products on each GPU by itself, at the same time: as much as its part
of C (`part`), and all of C over the number of GPUs (`whole`).

A peer that fails is left out, with its reason. `--device cpu` runs all of it without a GPU, over gloo.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

# Before anything imports PyTorch or NCCL. Multicast is off because not all hosts permit it.
os.environ |= {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1"}

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.bench.nvml import Telemetry, summarize
from harness.cli.options import about
from harness.driver import Device
from harness.errors import HarnessError, UsageError
from harness.results import record
from harness.results.tables import plain_table
from sharded_contenders import CASES, Arena, alone, contenders, error, here, lists, sampled, together

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = {x: x for x in ("tf32", "3xtf32", "fp16x3", "bf16x6")}  # of float32: harness alone
_TURN = 0.05  # seconds, about, of a contender's turn
_PATIENCE = timedelta(minutes=5)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line in each process; return 1 if a result of harness was wrong or failed, else 0."""
    given = parsed(arguments)
    if "RANK" not in os.environ:
        raise UsageError(
            "this is one of several processes", hint="torchrun --nproc-per-node 2 " + sys.argv[0]
        )
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if given.json and rank == 0:
        record.check_writable(given.json)
    if given.ctas:
        os.environ |= {"NCCL_MAX_CTAS": str(given.ctas), "NCCL_MAX_P2P_NCHANNELS": str(given.ctas)}
    cuda = given.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
    options: dict[str, Any] = {"timeout": _PATIENCE} | ({"device_id": device} if cuda else {})
    dist.init_process_group("nccl" if cuda else "gloo", **options)
    try:
        run = Run(given, rank, count, device)
        until = time.monotonic() + given.seconds
        for dtype in given.dtype:
            for size in given.size:
                for name in given.case:
                    if agreed(time.monotonic() > until, run.control):
                        break
                    run.case(name, size, dtype)
        if rank == 0:
            print(run.table())
            print(f"\nseed {given.seed}, {count} x {run.cards[0]['name'] if cuda else 'CPU'}")
        ours = [row for row in run.rows if row["contender"].startswith("harness")]
        return int(any(row["status"] not in ("ok", "bound") for row in ours))
    finally:
        dist.destroy_process_group()


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--size", nargs="+", type=int, default=[16384, 32768], help="M = N = K (default: %(default)s)")
    add(
        "--dtype",
        nargs="+",
        choices=[*DTYPES, *PRECISIONS],
        default=["bf16", "fp32"],
        help="default: %(default)s",
    )
    add("--case", nargs="+", choices=list(CASES), default=list(CASES), help="default: all")
    add("--turns", type=int, default=10, help="of each contender (default: %(default)s)")
    add("--seconds", type=float, default=500.0, help="after which no case begins (default: 500)")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    add("--ctas", type=int, default=0, help="most SMs that NCCL may take (default: as NCCL likes)")
    add("--seed", type=int, default=None, help="default: a new one")
    add("--json", type=Path, metavar="FILE", help="the record")
    return parser.parse_args(arguments)


def agreed(value: Any, group: Any) -> Any:
    """Return what the first process says."""
    box = [value]
    dist.broadcast_object_list(box, src=0, group=group)
    return box[0]


class Run:
    """The state of one process: its GPU, the group for what is said between all, and the rows so far."""

    def __init__(self, given: argparse.Namespace, rank: int, count: int, device: Any) -> None:
        self.given, self.rank, self.count, self.device = given, rank, count, device
        self.control = dist.new_group(backend="gloo", timeout=_PATIENCE)  # takes no SMs
        given.seed = agreed(secrets.randbits(32) if given.seed is None else given.seed, self.control)
        self.mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)
        self.rows: list[dict[str, Any]] = []
        self.bounds: dict[tuple[int, str], dict[str, dict[str, Any]]] = {}
        self.telemetry: Telemetry | None = None
        card: dict[str, Any] = {}
        if device.type == "cuda":
            opened = Device.open(device.index)
            card, self.telemetry = about(opened), Telemetry(opened.uuid)
        self.cards = self.gathered(card)
        versions = {"torch": torch.__version__, "nccl": _nccl(device)}
        settings = {
            name: x
            for name, x in sorted(os.environ.items())
            if name.startswith(("NCCL_", "NVSHMEM_", "TORCH_SYMM"))
        }
        self.meta = {**record.provenance(seed=given.seed), "gpus": count, "cards": self.cards}
        self.meta |= {"gpu": self.cards[0] or None, "versions": versions, "environment": settings}

    def gathered(self, value: Any) -> list[Any]:
        """Return what every process says."""
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value, group=self.control)
        return found

    def synchronize(self) -> None:
        """Wait for this process's GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def case(self, name: str, size: int, dtype: str) -> None:
        """Verify and time all contenders of one case, and append their rows."""
        kind = torch.float32 if dtype in PRECISIONS else DTYPES[dtype]
        seed, precision = self.given.seed, PRECISIONS.get(dtype, "ieee")
        arena = Arena.drawn(CASES[name], size, kind, self.mesh, self.device, seed, precision, self.rank)
        known = sampled(arena, self.control, seed)
        calls = contenders(arena)
        about_case = {"case": name, "size": size, "dtype": dtype, "gpus": self.count}
        rows = {who: {**about_case, "contender": who, "status": "ok"} for who in calls}
        for who, call in calls.items():
            rows[who] |= self.verified(call, arena, known, "before")
            if who == "harness" and rows[who]["status"] == "ok":
                self.control_of_check(call, arena, known)
        running = {who: call for who, call in calls.items() if rows[who]["status"] == "ok"}
        bounds = {} if (size, dtype) in self.bounds else alone(arena)
        timed = self.timed({**running, **bounds})
        for who, call in running.items():
            rows[who] |= self.statistics(timed[who], arena) | self.verified(call, arena, known, "after")
        if bounds:
            bound = {**about_case, "case": "", "status": "bound"}
            self.bounds[size, dtype] = {
                who: {**bound, "contender": who, **self.statistics(timed[who], arena, who)} for who in bounds
            }
            self.rows += self.bounds[size, dtype].values()
        del bounds
        rows["harness lists"] = {**about_case, "contender": "harness lists", "status": "ok"}
        rows["harness lists"] |= self.by_lists(arena, known)
        self.rows += [rated(row, rows, self.bounds[size, dtype]) for row in rows.values()]
        if self.rank == 0:
            if self.given.json:
                record.write_json(self.given.json, record.document("sharded", self.rows, self.meta))
            print(f"{name} {size} {dtype}: {rows['harness']['status']}", file=sys.stderr, flush=True)

    def verified(self, call: Callable[[], Any], arena: Arena, known: Any, when: str) -> dict[str, Any]:
        """Return what a row says of a call's result: an error over what is allowed, or why it failed."""
        try:
            found, why = call(), ""
            self.synchronize()
        except Exception as e:  # a peer may raise anything, such as for a device that it does not know
            found, why = None, _said(e)
        reasons = [said for said in self.gathered(why) if said]
        if reasons:
            return {"status": "failed", "why": reasons[0]}
        ratio = self.error(arena, found, *known)
        return {f"error_{when}": ratio} | ({} if ratio <= 1 else {"status": f"wrong, {when} timing"})

    def error(self, arena: Arena, found: Any, rows: list[int], exact: Any) -> float:
        """Return the error of all processes' parts of C, over what is allowed."""
        mine = here(found, arena.blocks[2], rows, arena.size)
        return error(arena, together(mine, arena.splits.c, self.control), exact)

    def control_of_check(self, call: Callable[[], Any], arena: Arena, known: Any) -> None:
        """Raise HarnessError unless the check finds a wrong element in a sampled row."""
        found = call().clone()
        (top, end), (left, right) = arena.blocks[2]
        if top == 0 < end and left < right:
            found[0, -1] += 0.5 * arena.size**0.5
        if self.error(arena, found, *known) <= 1:
            raise HarnessError("the check of results finds no planted fault", where="benchmarks/sharded.py")

    def timed(self, calls: Mapping[str, Callable[[], Any]]) -> dict[str, list[dict[str, Any]]]:
        """Return the turns of all contenders, in an order that is drawn for each turn."""
        reps = {}
        for who, call in calls.items():
            once = min(self.turn(call, 1)["seconds"] for _ in range(3))
            reps[who] = max(1, min(100, round(_TURN / once)))
        found: dict[str, list[dict[str, Any]]] = {who: [] for who in calls}
        generator = torch.Generator().manual_seed(self.given.seed)
        for _ in range(self.given.turns):
            for i in torch.randperm(len(calls), generator=generator).tolist():
                who = list(calls)[i]
                found[who].append(self.turn(calls[who], reps[who]))
        return found

    def turn(self, call: Callable[[], Any], reps: int, by_all: bool = True) -> dict[str, Any]:
        """Return the seconds for a call of the slowest process, and NVML's readings under the last one."""
        self.synchronize()
        if by_all:
            dist.barrier(group=self.control)
        if self.device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(reps):
                call()
            end.record()
            reading = self.telemetry.read() if self.telemetry else None
            end.synchronize()
            seconds = start.elapsed_time(end) / 1e3 / reps
        else:
            began, reading = time.perf_counter(), None
            for _ in range(reps):
                call()
            seconds = (time.perf_counter() - began) / reps
        if by_all:
            said = self.gathered((seconds, reading))
            return {"seconds": max(s for s, _ in said), "readings": [r for _, r in said if r]}
        return {"seconds": seconds, "readings": [reading] if reading else []}

    def statistics(self, turns: Sequence[Mapping[str, Any]], arena: Arena, bound: str = "") -> dict[str, Any]:
        """Return what a row says of its times. A bound is that of all GPUs together."""
        times = [turn["seconds"] for turn in turns]
        seconds = statistics.median(times) / (self.count if bound.endswith("whole") else 1)
        found = {"seconds": seconds, "times": times, "flops_rate": arena.flops / seconds}
        reading = summarize([r for turn in turns for r in turn["readings"]])
        if reading:
            found |= {"sm_mhz": reading.sm_mhz, "power": reading.power, "throttle": list(reading.throttle)}
        return found

    def by_lists(self, arena: Arena, known: Any) -> dict[str, Any]:
        """Return what the row of `matmul_lists` says; the first process has all GPUs, the others wait."""
        found: dict[str, Any] = {}
        if self.rank == 0:
            try:
                found = self.alone(arena, *known)
            except Exception as e:
                found = {"status": "failed", "why": _said(e)}
        return agreed(found, self.control)

    def alone(self, arena: Arena, rows: list[int], exact: Any) -> dict[str, Any]:
        """Verify and time `matmul_lists` in this process."""
        cuda = self.device.type == "cuda"
        about_all = (arena.splits, arena.size, arena.a.dtype, arena.mesh)
        arenas = [
            Arena.drawn(
                *about_all,
                torch.device("cuda", i) if cuda else self.device,
                self.given.seed,
                arena.precision,
                i,
            )
            for i in range(self.count)
        ]
        call = lists(arenas)

        def wrong() -> float:
            parts = [here(x, one.blocks[2], rows, arena.size) for x, one in zip(call(), arenas, strict=True)]
            return error(arena, parts[0] if arena.splits.c is None else sum(parts), exact)

        before = wrong()
        called = _on_all(call, self.count if cuda else 0)
        turns = [self.turn(called, 3, by_all=False) for _ in range(self.given.turns)]
        after = wrong()
        status = {} if max(before, after) <= 1 else {"status": "wrong"}
        return {**self.statistics(turns, arena), "error_before": before, "error_after": after, **status}

    def table(self) -> str:
        """Return the rows as a table."""
        cells = []
        for row in self.rows:
            rate = f"{row['flops_rate'] / 1e12:.4g}" if "flops_rate" in row else row.get("why", "")[:40]
            ratios = [
                f"{row[key]:.3f}" if key in row else "" for key in ("of_whole", "of_part", "of_best_peer")
            ]
            cells.append(
                [row["case"], str(row["size"]), row["dtype"], row["contender"], row["status"], rate, *ratios]
            )
        heads = ["case", "size", "type", "by", "status", "TFLOP/s", "of whole", "of part", "of the best peer"]
        return plain_table(cells, heads)


def _on_all(call: Callable[[], Any], count: int) -> Callable[[], Any]:
    """Return the call between events of GPU 0 that all `count` GPUs wait for."""

    def ordered() -> Any:
        streams = [torch.cuda.current_stream(i) for i in range(count)]
        for stream in streams[1:]:
            stream.wait_stream(streams[0])
        found = call()
        for stream in streams[1:]:
            streams[0].wait_stream(stream)
        return found

    return ordered


def rated(row: dict[str, Any], rows: Mapping[str, Any], bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its rate over those of the bounds and of the best peer that ran, if it has one."""
    if "seconds" not in row:
        return row
    ours = [x for who, x in rows.items() if who.startswith("harness")]
    peers = [x["seconds"] for x in rows.values() if x["status"] == "ok" and x not in ours and "seconds" in x]
    for key in ("whole", "part"):
        row[f"of_{key}"] = bounds[f"harness, {key}"]["seconds"] / row["seconds"]
    if row["contender"].startswith("harness") and peers:
        row["of_best_peer"] = min(peers) / row["seconds"]
    return row


def _said(e: Exception) -> str:
    """Return the first line of what an exception says."""
    return f"{type(e).__name__}: {next(iter(str(e).splitlines()), '')}"[:300]


def _nccl(device: Any) -> str:
    """Return NCCL's version; empty without a GPU."""
    return ".".join(map(str, torch.cuda.nccl.version())) if device.type == "cuda" else ""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HarnessError as e:
        sys.exit(f"error: {e}")
