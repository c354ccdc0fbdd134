"""NVIDIA's own choice of a GEMM kernel, by the wheel nvidia-matmul-heuristics, mapped to our nearest variant.

The library names tiles, stages, split and cluster of a CUTLASS 3 kernel for a GPU that need not be there.
Ours with the nearest tile and split stands for it: this judges the choice, not the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from harness.kernels.spec import Variant
from harness.problems.gemm import Gemm

_GPUS = {"H200": "H200_SXM", "H100 PCIe": "H100_PCIE", "H100 NVL": "H100_NVL", "H100": "H100_SXM"}
# The types of A and B, of sums and of C in the library's letters (nvMatmulHeuristics.h).
_PRECISIONS = {"fp32": "SSS", "tf32": "SFS", "bf16": "TST", "fp16": "HSH"}


class Heuristics:
    """The library, asked for one kind of GPU.

    `unavailable` says why it cannot be asked; empty if it can.
    """

    def __init__(self, gpu: str) -> None:
        self._api: Any = None
        self.unavailable = ""
        try:
            import nvMatmulHeuristics as api
        except (ImportError, OSError) as e:
            self.unavailable = f"nvidia-matmul-heuristics is not installed: {e}"
            return
        known = next((found for name, found in _GPUS.items() if name in gpu), "")
        if not known:
            self.unavailable = f"nvidia-matmul-heuristics does not know {gpu}"
            return
        self._api = api
        self._asked = api.NvMatmulHeuristicsInterfaceEx(
            backend=api.NvMatmulHeuristicsTarget.CUTLASS3,
            flags=api.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
            gpu=api.NvMatmulHeuristicsNvidiaGpu[known],
        )

    def nearest(self, problem: Gemm, variants: Sequence[Variant]) -> Variant | None:
        """Return the variant nearest to what the library names; None if it names nothing.

        The distance is the sum of the logarithms of how far rows and columns of the tile and the split of k
        are apart; of equals the first is taken.
        """
        precision = _PRECISIONS.get(problem.dtype.name)
        if self._api is None or precision is None or not variants:
            return None
        layout = self._api.boolsToNvMatmulHeuristicsLayout(bool(problem.transa), bool(problem.transb))
        asked = self._asked.makeNvMatmulHeuristicsProblem(problem.M, problem.N, problem.K, layout, 1)
        found = self._asked.get(asked, 1, precision)
        if not found:
            return None
        named = found[0]["kernel"]
        wanted = named.cta_tile_m, named.cta_tile_n, named.split_k

        def distance(variant: Variant) -> float:
            own = *variant.tile, variant.params.get("SPLIT", 1)
            return sum(abs(math.log2(x / max(1, y))) for x, y in zip(own, wanted, strict=True))

        return min(variants, key=distance)
