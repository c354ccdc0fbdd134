"""Fit what `harness.dispatch.model.corrections` adds to the cost model, and say what the choice loses then.

    pip install '.[fit]'
    python scripts/fit_corrections.py shapes.json ... [--mapped older.json ...] [--write]

Give it the records and the `--since` that scripts/fit_model.py had, after that has written its constants:
the trees learn what these leave. Times count the more the nearer they are to the draw's fastest, for only
there an error changes a choice. The first trees learn from all times, from before a kernel changed too: what
a shape does to it mostly stays. The last ones learn what is left, from those of today's code.

The table is of three fits, each to two thirds of the draws, and tested on the others, but for draws with
earlier times and those with one time: how much longer than the fastest timed candidate the choice takes, by
the model alone and corrected. What is written is fitted to all of them.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fit_model
import lightgbm
import numpy as np
from fit_model import Time, Vector

from harness.dispatch.model import corrections
from harness.dispatch.model.features import described
from harness.errors import HarnessError, UsageError
from harness.results.tables import plain_table
from harness.support import files

TYPES = {"16 bits": ("bf16", "fp16"), "tf32": ("tf32",), "fp32": ("fp32",), "bf16x6": ("bf16x6",)}
FOLDS = 3
_NEAR = 0.25  # of the logarithm of times: what is so far from the fastest counts 1/e as much
_FIRST, _LAST = 400, 200  # trees
_TIMES = 60  # for a tree, at least: of 7,600 in bf16x6 120 trees learn as much as 600
_OPTIONS = {
    "objective": "l2",
    "learning_rate": 0.15,
    "num_leaves": 127,
    "min_data_in_leaf": 20,
    "lambda_l2": 1.0,
    "seed": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}


Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Sample:
    """Times of one type, a row each: features, draws as numbers, modelled and measured cycles, if earlier."""

    rows: Vector
    draws: np.ndarray[Any, np.dtype[np.int64]]
    modelled: Vector
    measured: Vector
    earlier: Flags

    @property
    def errors(self) -> Vector:
        """The logarithms of measured over modelled cycles."""
        return np.asarray(np.log(self.measured / self.modelled))

    @property
    def weights(self) -> Vector:
        """How much each row counts: 1 for the fastest of a draw, less for those that are slower."""
        return np.asarray(np.exp(-np.log(self.measured / self._fastest()) / _NEAR))

    def _fastest(self) -> Vector:
        best = np.full(self.draws.max() + 1, np.inf)
        np.minimum.at(best, self.draws, self.measured)
        return np.asarray(best[self.draws])

    def only(self, chosen: Flags) -> Sample:
        """Return some of the rows."""
        return Sample(*(column[chosen] for column in vars(self).values()))

    def regrets(self, cycles: Vector) -> Vector:
        """Return for each draw how much longer than the fastest the one with the least `cycles` takes."""
        order = np.lexsort((cycles, self.draws))
        first = np.unique(self.draws[order], return_index=True)[1]
        return np.asarray((self.measured / self._fastest())[order[first]] - 1)


def sampled(times: Sequence[Time], dtypes: Sequence[str]) -> Sample:
    """Return the times of kernels of these types with what the trees are told of them, but for batches."""
    known, numbers = fit_model.candidates(), dict[tuple[str, int], int]()
    by_key: defaultdict[fit_model.Key, list[Time]] = defaultdict(list)
    for time in times:
        if time.key[0] in dtypes and time.batch == 1:
            by_key[time.key].append(time)
    rows, draws, modelled = [], [], []
    found = list[Time]()
    for key, some in by_key.items():
        for time, cycles in zip(some, fit_model.all_predicted(known[key], some), strict=True):
            one = replace(known[key], variant=time.variant, dram=time.dram)
            about = {"layout": time.layout, "pitches": time.pitches, "cycles": cycles}
            rows.append(described(one, (*time.shape, time.sms), **about))
            draws.append(numbers.setdefault(time.draw, len(numbers)))
            modelled.append(cycles)
            found.append(time)
    measured, earlier = (np.array([getattr(t, name) for t in found]) for name in ("cycles", "earlier"))
    return Sample(np.array(rows), np.array(draws), np.array(modelled), measured, earlier)


def counts(sample: Sample) -> tuple[int, int]:
    """Return how many trees are fitted to a whole sample, and how many to what is left of today."""
    share = min(1.0, len(sample.draws) / _TIMES / (_FIRST + _LAST))
    return max(round(share * _FIRST), 1), max(round(share * _LAST), 1)


def boosted(sample: Sample, first: int = _FIRST, last: int = _LAST) -> list[lightgbm.Booster]:
    """Return trees whose sum is fitted: the first to a whole sample, the last to what is left of today."""
    data = lightgbm.Dataset(sample.rows, sample.errors, weight=sample.weights)
    all_of_it = lightgbm.train(dict(_OPTIONS), data, num_boost_round=first)
    today = ~sample.earlier
    if not today.any():
        raise UsageError("no times of today's code", hint="records from after --since")
    before = np.asarray(all_of_it.predict(sample.rows[today]))
    rest = lightgbm.Dataset(
        sample.rows[today], sample.errors[today], weight=sample.weights[today], init_score=before
    )
    return [all_of_it, lightgbm.train(dict(_OPTIONS), rest, num_boost_round=last)]


def grown(sample: Sample, first: int = _FIRST, last: int = _LAST) -> dict[str, Any]:
    """Return the arrays of trees that are fitted to a sample, as `corrections.unpacked` reads them."""
    trees = [tree for b in boosted(sample, first, last) for tree in b.dump_model()["tree_info"]]
    nodes, sizes, depths = list[tuple[int, float, float]](), [], []
    for tree in trees:
        flat = list(flattened(tree["tree_structure"]))
        nodes += [node for node, _ in flat]
        sizes.append(len(flat))
        depths.append(max(depth for _, depth in flat))
    feature, threshold, value = (np.array(column) for column in zip(*nodes, strict=True))
    return {
        "sizes": np.array(sizes, np.uint16),
        "feature": feature.astype(np.uint8),
        "threshold": threshold[feature != corrections.LEAF].astype(np.float32),
        "value": value[feature == corrections.LEAF].astype(np.float16),
        "depth": np.array(max(depths)),
    }


def flattened(root: Mapping[str, Any]) -> Iterator[tuple[tuple[int, float, float], int]]:
    """Yield the nodes of a tree, level by level, each with its depth: feature, threshold and value."""
    waiting = [(root, 0)]
    for node, depth in waiting:  # it grows under way
        if "split_feature" not in node:
            yield (corrections.LEAF, 0.0, node["leaf_value"]), depth
            continue
        # float32 must not move a value to the other side: the next one below would, one above cannot.
        threshold = np.nextafter(np.float32(node["threshold"]), np.float32(np.inf))
        yield (node["split_feature"], float(threshold), 0.0), depth
        waiting += [(node["left_child"], depth + 1), (node["right_child"], depth + 1)]


def tested(sample: Sample, first: int = _FIRST, last: int = _LAST) -> tuple[Vector, Vector]:
    """Return the regrets of draws by the model and corrected, each by a fit to other draws.

    They are those with no earlier times, which would be compared with those of today, and with several.
    """
    alone = np.bincount(sample.draws)[sample.draws] == 1  # only what was chosen: nothing to lose
    mixed = np.isin(sample.draws, sample.draws[sample.earlier]) | alone
    part = np.random.default_rng(1).permutation(int(sample.draws.max()) + 1)[sample.draws] % FOLDS
    before, after = [], []
    for fold in range(FOLDS):
        own = sample.only((part == fold) & ~mixed)
        both = boosted(sample.only(part != fold), first, last)
        errors = sum(np.asarray(booster.predict(own.rows)) for booster in both)
        before.append(own.regrets(own.modelled))
        after.append(own.regrets(own.modelled * np.exp(errors)))
    return np.concatenate(before), np.concatenate(after)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", type=Path, help="records of draws")
    parser.add_argument("--mapped", nargs="+", type=Path, default=[], help="older ones, as of fit_model.py")
    parser.add_argument("--since", **fit_model.SINCE)
    parser.add_argument(
        "--types", nargs="+", choices=TYPES, default=list(TYPES), help="fit these alone (all)"
    )
    parser.add_argument(
        "--untested", action="store_true", help="make no fits to parts: a quarter of the time"
    )
    parser.add_argument("--write", action="store_true", help="write corrections.npz; other types' trees stay")
    given = parser.parse_args(arguments)
    times = fit_model.times(given.results, fit_model.candidates(), given.mapped, given.since)
    cells, written, drams = [], dict[str, Any](), [time.dram for time in times]
    if set(given.types) < set(TYPES):
        with np.load(corrections.FILE) as arrays:
            written |= arrays
        drams += written["dram"].tolist()
    for name in given.types:
        sample = sampled(times, TYPES[name])
        number = counts(sample)
        for label, regrets in (
            () if given.untested else zip(("model", "corrected"), tested(sample, *number), strict=True)
        ):
            shown = (f"{100 * x:.1f}%" for x in (regrets.mean(), np.percentile(regrets, 95), regrets.max()))
            cells.append([name, label, str(len(regrets)), *shown])
        if given.write:
            written |= {f"{name} {part}": array for part, array in grown(sample, *number).items()}
            written[f"{name} constants"] = np.array(corrections.constants(name))
    if cells:
        print(plain_table(cells, ["type", "choice", "draws", "regret", "95th pct", "most"], keys=2))
    if given.write:
        written |= {"dram": np.array([min(drams), max(drams)]), "types": np.array(list(TYPES))}
        content = io.BytesIO()
        np.savez_compressed(content, **written)
        files.write_file(corrections.FILE, content.getvalue())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HarnessError as e:
        sys.exit(f"error: {e}")
