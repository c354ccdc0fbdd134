"""Correct the cost model by what was learnt from times: regression trees on its errors.

The constants of a candidate cannot tell everything that a product's shape does to it. ``corrections.npz``
beside this file holds, for kernels of a type, trees that were boosted (T. Chen and C. Guestrin, XGBoost,
KDD 2016) on the logarithm of measured over modelled cycles, by scripts/fit_corrections.py with LightGBM.
`features.FEATURES` says what they ask. Their sum corrects the cycles of the candidates that the model takes
for the fastest; of the others it would change no choice.

They hold for a single product on GPUs like those on which the times were taken: sm_90a with 132
multiprocessors, and DRAM between the slowest and the fastest of theirs. Elsewhere the model is all there is.
They belong to the constants in ``table.json`` and to the features: a file that was fitted to others is
refused, because its corrections would be those of other errors.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.dispatch import shipped_table
from harness.dispatch.model import cost
from harness.dispatch.model.cost import Candidate
from harness.dispatch.model.features import FEATURES, described
from harness.dispatch.model.traffic import Pitches
from harness.errors import UsageError

Values = NDArray[np.float64]

FILE = Path(__file__).with_name("corrections.npz")
ARCH = "sm_90a"
LEAF = 255  # in place of a feature
_ABOUT = 1.02  # by which the DRAM of GPUs of one kind may differ
# Candidates that are corrected: in 4 of 920 draws another one was faster than these by 1% (regret-30, -31).
MOST = 32
_TIMED = 2**39  # multiply-adds of the largest products that were timed
_ALIKE_TIMES = 1.01  # of two, what is predicted for larger ones tells no difference
# Types whose kernels differ in one instruction's type have the same trees.
_ALIKE = {"bf16": "16 bits", "fp16": "16 bits"}


@dataclass(frozen=True)
class Forest:
    """Trees, one after the other, whose values add up.

    A node of `feature` f leads to the node `left` of it where ``x[f] <= threshold`` and else to `right`; a
    leaf leads to itself. `roots` are the first nodes of the trees, and `depth` is the most steps to a leaf.
    """

    roots: NDArray[np.int32]
    feature: NDArray[np.uint8]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: NDArray[np.float32]
    depth: int

    def predict(self, rows: Values) -> Values:
        """Return the sum over all trees for each of the rows, of as many values as there are `FEATURES`."""
        lines, at = np.arange(len(rows))[:, None], np.tile(self.roots, (len(rows), 1))
        for _ in range(self.depth):
            lower = rows[lines, self.feature[at]] <= self.threshold[at]
            at = np.where(lower, self.left[at], self.right[at])
        return np.asarray(self.value[at].sum(axis=1, dtype=np.float64))


def ranked(
    candidates: Sequence[Candidate],
    shape: tuple[int, int, int, int],
    *,
    arch: str,
    layout: str,
    pitches: Pitches,
) -> list[tuple[Candidate, float]]:
    """Return candidates with their cycles as `cost.ranked` does, but corrected.

    Only the model's first `MOST` are corrected, by the trees of their kernels' types, and come first. On a
    GPU for which there are no trees none is. Of those that are alike for a product larger than all that were
    timed, the one comes first that reads least from the L2 cache: it takes the least energy.
    """
    found = cost.ranked(candidates, shape, layout=layout, pitches=pitches)
    if not found or not holds(shape[-1], arch, found[0][0].dram):
        return found
    first, rest = found[:MOST], found[MOST:]
    types = [_type_of(c.dtype.name) for c, _ in first]
    factors = np.ones(len(first))
    for name in shipped().keys() & set(types):
        own = [i for i, other in enumerate(types) if other == name]
        some = (first[i] for i in own)
        rows = [described(c, shape, layout=layout, pitches=pitches, cycles=cycles) for c, cycles in some]
        factors[own] = np.exp(shipped()[name].predict(np.array(rows)))
    known = [(c, cycles * float(factor)) for (c, cycles), factor in zip(first, factors, strict=True)]
    known.sort(key=lambda one: one[1])
    if math.prod(shape[:3]) > _TIMED:
        alike = [one for one in known if one[1] <= _ALIKE_TIMES * known[0][1]]
        known[: len(alike)] = sorted(alike, key=lambda one: one[0].l2_bytes(*shape[:3]))
    return [*known, *rest]


@functools.cache
def holds(sms: int, arch: str, dram: float) -> bool:
    """Return True for GPUs like those on which the times were taken; `dram` is `traffic.dram_bytes`."""
    if (sms, arch) != (cost.H200_SMS, ARCH):
        return False
    with np.load(FILE) as arrays:
        slowest, fastest = arrays["dram"].tolist()
    return bool(slowest / _ABOUT <= dram <= fastest * _ABOUT)


@functools.cache
def shipped() -> Mapping[str, Forest]:
    """Return the trees of the kernels of each type, or of "16 bits".

    Raises UsageError if they belong to other constants or features.
    """
    with np.load(FILE) as arrays:
        names = arrays["types"].tolist()
        for name in names:
            if str(arrays[f"{name} constants"]) != constants(name):
                raise UsageError(
                    f"corrections of {name} for other constants than table.json has, or of other features",
                    where=str(FILE),
                    hint="python scripts/fit_corrections.py, with the records that these were fitted to",
                )
        return {name: unpacked(arrays, name) for name in names}


def constants(name: str) -> str:
    """Return the SHA-256 of what a type's corrections belong to: its candidates, and `FEATURES`."""
    listed = shipped_table.contents()["candidates"]
    own = [c for c in listed if _type_of(c.get("dtype", "fp32")) == name]
    return hashlib.sha256(json.dumps([own, FEATURES], sort_keys=True).encode()).hexdigest()


def _type_of(dtype: str) -> str:
    """Return the name of the trees of an element type."""
    return _ALIKE.get(dtype, dtype)


def unpacked(arrays: Mapping[str, Any], name: str) -> Forest:
    """Return the trees of a type from the arrays of a file.

    `sizes` counts the nodes of each tree, which stand level by level: so the two that follow the n-th that
    asks come after those of all before it. `feature` is `LEAF` in those that ask nothing. Of the others
    `threshold` has one each, and `value` of the leaves.
    """
    sizes, feature = arrays[f"{name} sizes"].astype(np.int32), arrays[f"{name} feature"]
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
    first, asks = np.repeat(roots, sizes), feature != LEAF
    before = np.cumsum(asks, dtype=np.int32) - asks  # nodes that ask, in all trees
    left = np.where(asks, first + 1 + 2 * (before - before[first]), np.arange(len(feature), dtype=np.int32))
    threshold, value = np.zeros((2, len(feature)), np.float32)
    threshold[asks], value[~asks] = arrays[f"{name} threshold"], arrays[f"{name} value"]
    depth = int(arrays[f"{name} depth"])
    return Forest(roots, np.where(asks, feature, 0), threshold, left, left + asks, value, depth)
