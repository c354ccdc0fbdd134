"""Draw batches for benchmarks/batches.py: heads of attention, small matrices, thin k, any."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.dispatch import choose
from harness.dispatch.call.batch import Batch, compiled, fastest, ranked
from harness.kernels.spec import Variant
from harness.problems.gemm import GEMMS, Gemm

KINDS = ("attention", "small", "thin k", "any")
MOST_ELEMENTS = 1 << 27  # of the three operands
LEAST, MOST = 1 << 22, 1 << 33  # multiply-adds of a batch


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A batch of `size` products; `gaps` are the elements between matrices of A, and of B."""

    kind: str
    dtype: str
    size: int
    M: int
    N: int
    K: int
    layout: str
    gaps: tuple[int, int]

    @property
    def problem(self) -> Gemm:
        """One of the products."""
        transa, transb = (int(letter == "T") for letter in self.layout)
        return GEMMS[self.dtype](M=self.M, N=self.N, K=self.K, transa=transa, transb=transb)

    @property
    def batch(self) -> Batch:
        """All of them."""
        return Batch(
            self.size, self.M * self.K + self.gaps[0], self.K * self.N + self.gaps[1], self.M * self.N
        )

    @property
    def axes(self) -> dict[str, Any]:
        """Pitches, layout and steps, which scripts/fit_model.py asks for beside the sizes."""
        found = {name: getattr(self.problem, name) for name in ("lda", "ldb", "ldc", "transa", "transb")}
        return {**found, "steps": list(self.batch[1:3])}

    def chosen(self, card: Mapping[str, Any]) -> tuple[Variant, bool]:
        """Return the variant that harness.matmul launches, and whether it does so once."""
        sizes: Any = {"M": self.M, "N": self.N, "K": self.K, **card}
        about = choose.about(self.problem, steps=self.batch[1:3])
        once = fastest(self.size, **sizes, **about).variant
        return once or choose.choose(**sizes, **choose.about(self.problem)), once is not None

    def best(self, count: int, card: Mapping[str, Any]) -> list[Variant]:
        """Return the fastest launches by the model."""
        about = choose.about(self.problem, steps=self.batch[1:3])
        pitches = about.pop("pitches")
        shape = self.M, self.N, self.K, card["sms"]
        able = choose.able(*shape, card["arch"], **about, dram=card["dram"])
        able = [replace(c, batch=self.size) for c in able]
        found = ranked(able, shape, layout=about["layout"], pitches=pitches)
        return [compiled(variant) for variant, _ in found[:count]]


def draws(seed: int, dtypes: Sequence[str]) -> Iterator[Draw]:
    """Yield draws without end, of all types and kinds in turn; a type's do not depend on the others."""
    sources = {dtype: random.Random(f"{seed} {dtype}") for dtype in dtypes}
    while True:
        for kind in KINDS:
            for dtype, rng in sources.items():
                yield drawn(rng, kind, dtype)


def drawn(rng: random.Random, kind: str, dtype: str) -> Draw:
    """Return a batch of a kind that is neither too short nor too large."""
    while True:
        layout = rng.choice(("NN", "NT", "TN", "TT"))
        size = between(rng, 2, 4096)
        if kind == "attention":
            head, tokens = rng.choice((32, 64, 80, 96, 128)), between(rng, 16, 4096)
            queries = rng.choice((tokens, between(rng, 1, tokens)))
            scores = rng.random() < 0.5  # or what they weigh
            (M, N, K), layout = ((queries, tokens, head), "NT") if scores else ((queries, head, tokens), "NN")
        elif kind == "small":
            M, N, K = (between(rng, 8, 256) for _ in range(3))
        elif kind == "thin k":
            M, N, K = between(rng, 16, 2048), between(rng, 16, 2048), between(rng, 1, 32)
        else:
            M, N, K = (between(rng, 1, 2048) for _ in range(3))
        elements = size * (M * K + K * N + M * N)
        if LEAST <= size * M * N * K <= MOST and elements <= MOST_ELEMENTS:
            break
    gaps = (0, 0) if rng.random() < 0.5 else (rng.choice((0, 1, 4, 8, 24)), rng.choice((0, 1, 3, 8, 40)))
    return Draw(kind=kind, dtype=dtype, size=size, M=M, N=N, K=K, layout=layout, gaps=gaps)


def between(rng: random.Random, least: int, most: int) -> int:
    """Return a size, small ones as often as large ones, and every second time a multiple of 8."""
    size = round(least * (most / least) ** rng.random())
    return -(-size // 8) * 8 if rng.random() < 0.5 and size > 4 else size
