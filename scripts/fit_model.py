"""Fit the cost model of `harness.dispatch.choose` to times of many shapes, and say what its choices lose.

    python benchmarks/shapes.py --regret 200 --json shapes.json
    python benchmarks/batches.py --regret 6 --json batches.json
    python scripts/fit_model.py shapes.json batches.json [--mapped older.json ...] [--write]

Times are those of the model's best candidates and, where that was a single launch, of what was chosen.

For each candidate of ``table.json`` the constants `start`, `step`, `tile`, `memory`, `straddle`, `crowded`,
`thin`, `turned_a`, `turned_b`, `ragged` and, where they have a meaning, `alone` and `sharing` are fitted by
least squares of the logarithms of predicted and measured times. `resident` is left as it is: it follows from
registers and shared memory.
What the rows say little about stays near today's value, which counts as one more row with a weight of its own
(`_PRIOR`). The times of bf16 and fp16 count for both: their kernels differ in one instruction's type.
`unmapped`, and of kernels that take tensor maps `fed`, are fitted after these, to draws with operands that
have none. Of records given as ``--mapped`` such draws do not count: they are from before copies of rows that
begin anywhere became as fast as others.

Draws are divided at random into those that are fitted and those that only test the result. The regret is how
much longer than the fastest of the timed candidates the model's choice takes; it is given for both, before
and after.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.dispatch import choose, shipped_table
from harness.dispatch.model.cost import Candidate
from harness.dispatch.model.traffic import Pitches, dram_bytes
from harness.driver import Device
from harness.errors import HarnessError, UsageError
from harness.kernels import catalog
from harness.kernels.dtypes import DTYPES
from harness.kernels.spec import LAYOUT, Variant
from harness.problems.gemm import GEMMS, Gemm
from harness.results import record
from harness.results.tables import plain_table
from harness.support import files
from tune_matmul import TABLE, text

_HINT = "benchmarks/shapes.py --regret N --json FILE"
_KINDS = "[:odd, :unmapped, :late, :written, :PARAM=VALUE]"
_SINCE = f"--since UTC KERNEL{_KINDS} ...: when they changed, as 2026-11-28T15:30"
_ODD = ":odd"
_UNMAPPED = ":unmapped"
_LATE = ":late"
_WRITTEN = ":written"
_LEAST_K = 64  # with which a product is more than writing its result
_MUCH = 16 << 20  # bytes, with which dependent_launch.cuh calls a launch one that reads much
_PRIOR = 0.5  # weight of today's constants, in rows
_PRIORS = {"turned_a": 4.0, "turned_b": 4.0}  # of what differs little from 1
_AXES = ("M", "N", "K", "lda", "ldb", "ldc", "transa", "transb")
_FACTORS = ("memory", "straddle", "crowded", "thin", "turned_a", "turned_b", "unmapped", "fed")
_APART = ("fed", "unmapped")  # constants fitted to draws without tensor maps
_LEAST = 1.0  # cycles, of constants that are 0 today
_STEPS, _TINY = 20, 1e-4
_ENOUGH = 30  # times of a trial, to be chosen from then on

Key = tuple[str, str, str]  # type, kernel, parameters as text
Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Time:
    """One candidate's time for a product, in cycles at the rated clock. `draw` tells the products apart.

    `variant` is what was timed: the candidate's, compiled for a layout. `earlier` times are of another
    version of its code, or of another number of stages: they say what a shape changes, not what a time is.
    """

    draw: tuple[str, int]
    key: Key
    variant: Variant
    shape: tuple[int, int, int]
    layout: str
    pitches: Pitches
    sms: int
    dram: float
    cycles: float
    batch: int = 1
    earlier: bool = False


# --since, of this script and of fit_corrections.py.
SINCE: dict[str, Any] = {
    "nargs": "+",
    "action": "append",
    "default": [],
    "metavar": ("UTC", f"KERNEL{_KINDS}"),
    "help": "when kernels became what they are, such as 2026-11-28T15:30: their times in records from before "
    "that are earlier ones, or with :odd those of products whose results have rows that begin anywhere, with "
    ":unmapped those of operands whose rows do, with :late those of launches at whose end the next one "
    "begins (`dependents_wait`), with :written those with a k of at most 64 and rows of the result across "
    "sectors, and with :BN=96 those with that parameter",
}


def key_of(dtype: str, kernel: str, params: Mapping[str, int]) -> Key:
    """Return what tells a candidate from others, whatever the layout it is compiled for."""
    own = {name: value for name, value in params.items() if name not in LAYOUT}
    return dtype, kernel, json.dumps(own, sort_keys=True)


kernel_of = functools.cache(catalog.kernel)


@functools.cache
def defaults(kernel: str) -> Mapping[str, int]:
    """Return a kernel's parameters by default: a record from before a parameter does not name it."""
    return {name: values[0] for name, values in kernel_of(kernel).params.items()}


def candidates() -> dict[Key, Candidate]:
    """Return the candidates of the shipped table, and its trials."""
    both = choose.candidates(), choose.candidates("trials")
    return {key_of(c.dtype.name, c.variant.kernel.name, c.variant.params): c for some in both for c in some}


def times(
    paths: Sequence[Path],
    known: Mapping[Key, Candidate],
    mapped: Sequence[Path] = (),
    since: Sequence[Sequence[str]] = (),
) -> list[Time]:
    """Return the times of candidates in records of benchmarks/shapes.py and benchmarks/batches.py.

    Of the files `mapped` only draws count whose operands both have tensor maps. Each of `since` is a moment
    in UTC and kernels that changed then: times of them in records from before are `Time.earlier`. Where
    ``:odd`` follows a name they are only if rows of the result are not all at multiples of 16 bytes, where
    ``:unmapped`` does, only if rows of an operand are not, where ``:late`` does, only if `dependents_wait`,
    where ``:written`` does, only if K is at most 64 and rows of C lie across sectors, and where ``:BN=96``
    does, only with that parameter. Times
    with a number of stages for which there is no candidate, but one that takes as many as fit, are earlier
    ones, too.

    Raises UsageError if a file is another kind of record, if a kernel of `since` has no earlier times, or if
    there are no times.
    """
    became = changes(since)
    seen = set[str]()
    found = []
    variants: dict[tuple[Key, str], Variant] = {}
    for number, path in enumerate([*paths, *mapped]):
        content = record.load(path)
        if content.get("kind") not in ("shapes", "batches"):
            raise UsageError("not a record of draws", where=str(path), hint=_HINT)
        gpu = content["meta"]["gpu"]
        begun = content["meta"].get("utc", "")  # all records of a card have it
        older = {kernel for kernel, at in became.items() if datetime.fromisoformat(begun) < at}
        dram = dram_bytes(Device.of_record(gpu))
        for row in content["rows"]:
            if row["status"] != "ok":
                continue
            problem = GEMMS[row["dtype"]](**{name: row[name] for name in _AXES})
            steps = row.get("steps", (0, 0))
            pitches = choose.about(problem, steps=steps)["pitches"]
            odd = problem.ldc * problem.layouts()["C"].dtype.itemsize % 16 != 0
            if pitches.unmapped and number >= len(paths):
                continue
            for one in (*row.get("candidates", ()), *chosen(row)):
                params = {**defaults(one["kernel"]), **one["params"]}
                # Of 3xtf32 and the like it may be a kernel of another type.
                key = own = key_of(kernel_of(one["kernel"]).dtype, one["kernel"], params)
                if key not in known and "STAGES" in params:
                    key = key_of(key[0], one["kernel"], {**params, "STAGES": 0})
                if key in known:
                    given = known[key].variant
                    timed = {name: value for name, value in params.items() if name in (*LAYOUT, "STAGES")}
                    laid_out = variants.setdefault(
                        (own, str(timed)), replace(given, params={**given.params, **timed})
                    )
                    launched = replace(known[key], variant=laid_out, batch=row.get("size", 1))
                    late = dependents_wait(launched, problem, gpu["sms"])
                    kinds = ["", *([_ODD] if odd else []), *([_LATE] if late else [])]
                    kinds += [_UNMAPPED] if pitches.unmapped else []
                    kinds += [_WRITTEN] if pitches.c_straddled and problem.K <= _LEAST_K else []
                    kinds += [f":{name}={n}" for name, n in params.items()]
                    changed = {one["kernel"] + kind for kind in kinds} & older
                    seen |= changed
                    found.append(
                        Time(
                            draw=(f"{number} {row['dtype']}", row["index"]),
                            key=key,
                            variant=laid_out,
                            shape=(row["M"], row["N"], row["K"]),
                            layout="".join("NT"[row[axis]] for axis in ("transa", "transb")),
                            pitches=pitches,
                            sms=gpu["sms"],
                            dram=dram,
                            cycles=one["seconds"] * gpu["clock_hz"],
                            batch=row.get("size", 1),
                            earlier=bool(changed) or key != own,
                        )
                    )
    if strange := sorted(became.keys() - seen):
        raise UsageError(
            f"no times of {strange[0]} from before {became[strange[0]]:%Y-%m-%dT%H:%M}", hint=_SINCE
        )
    if not found:
        raise UsageError("no times of candidates", hint=_HINT)
    return found


def dependents_wait(candidate: Candidate, problem: Gemm, sms: int) -> bool:
    """Return True if the next launch begins at the end of this one; see cu/include/dependent_launch.cuh.

    Of 26, at whose loop's end the next launch always begins, those are told apart where that matters.
    """
    params = candidate.variant.params
    places = candidate.room(sms) * max(1, params.get("BLOCKS", 1))
    work = math.prod(candidate.clusters(problem.M, problem.N)) * candidate.batch
    together = candidate.split * params.get("CLUSTER", 1)
    if "SPLIT" not in params and "SHARE" in params:  # 35
        work = places if params["SHARE"] else min(work, places)
    elif params.get("SHARE"):  # 25 with as many blocks as find room
        return False
    elif "SHARE" not in params and candidate.split > 1:  # 26
        together = 1
    size = (problem.M + problem.N) * problem.K * candidate.dtype.itemsize * candidate.batch
    some = 2 * ((work - 1) % places + 1) > places
    return some and size > _MUCH and (together < 4 or 5 * work <= 4 * places)


def changes(since: Sequence[Sequence[str]]) -> dict[str, datetime]:
    """Return when each kernel became what it is. Raises UsageError for what is no such list."""
    found = dict[str, datetime]()
    for moment, *kernels in since:
        try:
            at = datetime.fromisoformat(moment)
        except ValueError:
            raise UsageError(f"--since {moment}: not a moment", hint=_SINCE) from None
        if not kernels:
            raise UsageError(f"--since {moment} names no kernel", hint=_SINCE)
        if twice := [kernel for kernel in kernels if kernel in found]:
            raise UsageError(f"--since names {twice[0]} twice", hint="its last change")
        found |= dict.fromkeys(kernels, at.replace(tzinfo=at.tzinfo or UTC))
    return found


def chosen(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what was launched for a draw, like one of its candidates; nothing if launches were several.

    Where the model is too fast it is chosen, and wrong: these times correct it.
    """
    label, seconds = row.get("chosen", ""), row.get("seconds", {}).get("matmul")
    if not label or " + " in label or seconds is None:
        return []
    kernel, *pairs = label.split()
    params = {name: int(value) for name, value in (pair.split("=") for pair in pairs)}
    return [{"kernel": kernel, "params": params, "seconds": seconds}]


def predicted(candidate: Candidate, time: Time) -> float:
    """Return the cycles of a product by the model."""
    return all_predicted(candidate, [time])[0]


def all_predicted(candidate: Candidate, measured: Sequence[Time]) -> list[float]:
    """Return the cycles of products by the model, for times of one candidate."""
    laid_out: dict[tuple[int, int, float], Candidate] = {}  # few: copying takes as long as half a prediction
    found = []
    for time in measured:
        about = id(time.variant), time.batch, time.dram
        if about not in laid_out:
            laid_out[about] = replace(candidate, variant=time.variant, batch=time.batch, dram=time.dram)
        found.append(laid_out[about].cycles(*time.shape, time.sms, time.layout, time.pitches))
    return found


def fitted(known: Mapping[Key, Candidate], measured: Sequence[Time]) -> dict[Key, Candidate]:
    """Return the candidates with the constants that fit best."""
    by_code: defaultdict[Key, list[Time]] = defaultdict(list)
    for time in measured:
        by_code[code_of(time.key)].append(time)
    return {key: of_one(one, by_code[code_of(key)])[1] for key, one in known.items()}


def code_of(key: Key) -> Key:
    """Return what candidates have in common whose code differs in the 16-bit type only."""
    dtype, kernel, params = key
    alike = kernel.removesuffix("_fp16").removesuffix("_bf16")
    return ("16 bits", alike, params) if dtype in ("bf16", "fp16") else key


def of_one(candidate: Candidate, measured: Sequence[Time]) -> tuple[float, Candidate]:
    """Return the sum of squares that is left, and the candidate with the constants that fit best.

    Draws with operands that it would read by a tensor map, and that have none, only say how fast these are
    `fed`, and again what `ragged` rows take, which most of them have. So do they of a kernel that takes no
    maps and has a factor for them, 37_small_tiles_16_bits.
    """
    if not measured:
        return 0.0, candidate
    if candidate.resident > 1 and not candidate.alone:
        candidate = replace(candidate, alone=candidate.step)
    apart: dict[bool, list[Time]] = {False: [], True: []}
    told = bool(candidate.variant.boxes) or candidate.unmapped != 1
    for time in measured:
        apart[told and time.pitches.unmapped != ""].append(time)
    left, one = of_these(candidate, apart[False], constants_of(candidate))
    more, one = of_these(one, apart[True], (*apart_of(candidate), "ragged"))
    # No kernel reads rows without maps faster, nor DRAM twice as fast as a copy.
    slow = math.ceil(100 / one.straddle) / 100 if not candidate.variant.boxes else 1.0
    floors = {"unmapped": max(1.0, slow), "memory": 0.5, "straddle": 0.5}
    return left + more, replace(one, **{name: max(x, getattr(one, name)) for name, x in floors.items()})


def of_these(candidate: Candidate, measured: Sequence[Time], names: Sequence[str]) -> tuple[float, Candidate]:
    """Return the sum of squares that is left, and the candidate with those constants that fit best."""
    if not measured:
        return 0.0, candidate
    now = np.log([max(getattr(candidate, n), _TINY if n in _FACTORS else _LEAST) for n in names])
    logs = np.log([time.cycles for time in measured])
    weights = np.sqrt([_PRIORS.get(n, _PRIOR) for n in names])

    def given(constants: Vector) -> Candidate:
        values = dict(zip(names, map(float, np.exp(constants)), strict=True))
        return replace(candidate, **values)  # type: ignore[arg-type]

    def residuals(constants: Vector) -> Vector:
        one = given(constants)
        errors = np.log(all_predicted(one, measured)) - logs
        return np.concatenate([errors, weights * (constants - now)])

    constants = least_squares(residuals, now)
    return float(np.sum(residuals(constants) ** 2)), given(constants)


def apart_of(candidate: Candidate) -> tuple[str, ...]:
    """Return the names of the constants that are fitted to draws without tensor maps."""
    return _APART if candidate.variant.boxes else _APART[1:]


def constants_of(candidate: Candidate) -> tuple[str, ...]:
    """Return the names of the constants that are fitted to draws with tensor maps."""
    some = ["start", "step", "tile", "memory", "straddle", "crowded", "thin", "ragged"]
    # Before products of panels other kernels read the operands. Of skinny ones one is too small to matter.
    some += ["turned_a", "turned_b"] if candidate.shares != "panels" and not candidate.skinny else []
    some += ["alone"] if candidate.resident > 1 else []
    some += ["sharing"] if candidate.shares else []
    return tuple(some)


def least_squares(residuals: Callable[[Vector], Vector], start: Vector) -> Vector:
    """Return the argument near `start` with the least sum of squares, by Levenberg and Marquardt's method."""
    at, now, damping = start, residuals(start), 1e-3
    for _ in range(_STEPS):
        slopes = np.stack([(residuals(at + _TINY * e) - now) / _TINY for e in np.eye(len(at))], axis=1)
        normal = slopes.T @ slopes
        damped = normal + damping * np.diag(np.diag(normal) + _TINY)
        step = -np.linalg.solve(damped, slopes.T @ now)
        there = residuals(at + step)
        if there @ there < now @ now:
            done = np.max(np.abs(step)) < _TINY
            at, now, damping = at + step, there, damping / 10
            if done:
                break
        elif damping > 1e6:
            break
        else:
            damping *= 10
    return at


def regrets(known: Mapping[Key, Candidate], measured: Sequence[Time]) -> Vector:
    """Return for each draw how much longer than the fastest the choice of those that are `known` takes.

    A draw of which one time is known is left out: there is nothing to lose.
    """
    by_draw: defaultdict[tuple[str, int], list[Time]] = defaultdict(list)
    for time in measured:
        by_draw[time.draw].append(time)
    found = []
    for some in by_draw.values():
        able = [time for time in some if time.key in known]
        if not able or len(some) == 1:
            continue
        chosen = min(able, key=lambda time: predicted(known[time.key], time))
        found.append(chosen.cycles / min(time.cycles for time in some) - 1)
    return np.array(found)


def parted(measured: Sequence[Time], share: float, seed: int) -> tuple[list[Time], list[Time]]:
    """Return the times to fit and those to test, which are of other draws: a `share` of them, at random."""
    draws = sorted({time.draw for time in measured})
    apart = set(random.Random(seed).sample(draws, round(share * len(draws))))
    return [t for t in measured if t.draw not in apart], [t for t in measured if t.draw in apart]


def written(table: Mapping[str, Any], found: Mapping[Key, Candidate], counts: Mapping[Key, int]) -> str:
    """Return the text of ``table.json`` with these constants, an entry a line.

    A trial with `_ENOUGH` times, as `counts` says by `code_of`, is a candidate from now on.
    """
    rows: dict[str, list[dict[str, Any]]] = {"candidates": [], "trials": []}
    for listed, entry in [(name, entry) for name in rows for entry in table[name]]:
        variant = catalog.kernel(entry["kernel"]).variant(**entry["params"])
        key = key_of(entry.get("dtype", "fp32"), variant.kernel.name, variant.params)
        one = found[key]
        values = {name: getattr(one, name) for name in (*constants_of(one), *apart_of(one))}
        rounded = {n: round(x, 2) if n in _FACTORS else round(x) for n, x in values.items()}
        known = listed == "candidates" or counts.get(code_of(key), 0) >= _ENOUGH
        rows["candidates" if known else "trials"].append({**entry, **rounded})
    return text({**table, **rows})


def report(
    before: Mapping[Key, Candidate],
    after: Mapping[Key, Candidate],
    parts: Mapping[str, Sequence[Time]],
) -> str:
    """Return errors and regrets of both models by type, on the draws that were fitted and on the others."""
    cells = []
    for dtype in DTYPES:
        for name, measured in parts.items():
            some = [time for time in measured if time.key[0] == dtype]
            if not some:
                continue
            for when, known in (("now", before), ("fitted", after)):
                errors = [math.log(predicted(known[t.key], t) / t.cycles) for t in some if t.key in known]
                lost = regrets(known, some)
                if not lost.size:  # of each of these draws one time is known
                    continue
                rms = math.exp(math.sqrt(float(np.mean(np.square(errors))))) - 1
                numbers = (np.mean(lost), np.percentile(lost, 95), np.max(lost))
                cells.append(
                    [dtype, name, when, str(len(lost)), f"{rms:.0%}", *(f"{x:.1%}" for x in numbers)]
                )
    headings = ["type", "draws", "model", "number", "error", "regret", "95th pct", "most"]
    return plain_table(cells, headings, keys=3)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="records of benchmarks/shapes.py --regret")
    parser.add_argument("--mapped", nargs="+", type=Path, default=[], help="older records")
    parser.add_argument("--since", **SINCE)
    parser.add_argument("--test", type=float, default=0.3, help="share of the draws that only test (0.3)")
    parser.add_argument("--seed", type=int, default=1, help="of the division (1)")
    parser.add_argument("--kernels", nargs="+", default=[], metavar="NAME", help="fit these alone (all)")
    parser.add_argument("--write", action="store_true", help=f"put the constants into {TABLE.name}")
    given = parser.parse_args(arguments)
    if not 0 < given.test < 1:
        parser.error("--test is a share between 0 and 1")
    known, table = candidates(), shipped_table.contents()
    measured = times(given.files, known, given.mapped, given.since)
    fit, test = parted([time for time in measured if not time.earlier], given.test, given.seed)
    if not fit or not test:
        raise UsageError("too few draws to fit some and test others", hint="more draws, or another --test")
    alone = {key: one for key, one in known.items() if one.variant.kernel.name in given.kernels}
    if given.kernels and not alone:
        raise UsageError(f"no candidate is one of {', '.join(given.kernels)}")
    found = known | fitted(alone or known, fit)
    counts = Counter(code_of(time.key) for time in (*fit, *test) if time.key in (alone or known))
    shipped = {c.variant.label for c in choose.candidates()}
    before = {key: one for key, one in known.items() if one.variant.label in shipped}
    after = {key: found[key] for key in known if key in before or counts[code_of(key)] >= _ENOUGH}
    print(report(before, after, {"fitted": fit, "test": test}))
    if given.write:
        files.write_file(TABLE, written(table, found, counts).encode())


if __name__ == "__main__":
    try:
        main()
    except HarnessError as e:
        sys.exit(f"error: {e}")
