"""Draw products at random: sizes, layouts and pitches that nobody chose, and the layers of known models.

Of the draws of a type a quarter are layers of `MODELS`: a layer's product at a random number of tokens, in
the forward pass or in one of the two products of its backward pass, with packed rows. The others have M, N
and K log-uniform from 16 to 16384; a quarter of them keep these sizes (ragged), three quarters are rounded to
multiples of 16 to 128. Their layout is one of four, and their rows are packed, or padded by a multiple of 16
bytes, or padded by any number of elements. No draw has more than 2^39 multiply-adds, nor operands that are
larger than `MOST_BYTES`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.errors import UsageError
from harness.kernels.dtypes import DTYPES
from harness.problems.gemm import GEMMS, Gemm
from harness.problems.protocol import Layout

MOST_WORK = 2**39  # multiply-adds
MOST_BYTES = 3 << 30  # of A and B together, and of C
_LEAST, _MOST = 16, 16384
LEAST_WORK = _LEAST**3
_RAREST = 50_000  # one in so many draws is of the classes asked for
_UNITS = (16, 32, 64, 128)  # of which sizes that are not ragged are multiples
_NEAR = math.log(1.25)
_TMA_BYTES = 16  # an operand whose pitch is no multiple of this has no tensor map

# Linear layers by model, as (inputs, outputs). Some are stored with a row for each output, as nn.Linear has
# them, those of GPT-2 with a row for each input.
MODELS: dict[str, dict[str, tuple[int, int]]] = {
    "GPT-2": {
        "attention": (768, 2304), "projection": (768, 768), "mlp up": (768, 3072), "mlp down": (3072, 768),
        "head": (768, 50257),
    },
    "Llama 8B": {
        "q": (4096, 4096), "k": (4096, 1024), "qkv": (4096, 6144), "gate": (4096, 14336),
        "gate and up": (4096, 28672), "down": (14336, 4096), "head": (4096, 128256),
    },
    "Llama 70B": {
        "q": (8192, 8192), "k": (8192, 1024), "qkv": (8192, 10240), "gate": (8192, 28672),
        "gate and up": (8192, 57344), "down": (28672, 8192), "head": (8192, 128256),
    },
    "Mixtral": {
        "qkv": (4096, 6144), "output": (4096, 4096), "router": (4096, 8), "expert up": (4096, 14336),
        "expert down": (14336, 4096), "head": (4096, 32000),
    },
    "ViT-B": {
        "patches": (768, 768), "qkv": (768, 2304), "mlp up": (768, 3072), "mlp down": (3072, 768),
        "head": (768, 1000),
    },
}  # fmt: skip
_PATCHES = 197  # tokens of a picture in ViT-B/16, whose batches count pictures
_BATCH = 4096


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A product to measure: `problem`, its number among the draws of its type, and where it comes from.

    `origin` names a model's layer and pass, or is empty. `ragged` is True if the sizes were not rounded.
    """

    index: int
    problem: Gemm
    origin: str = ""
    ragged: bool = False

    @property
    def layout(self) -> str:
        """The layout in BLAS's words: ``"NT"`` if B is stored transposed."""
        return self.problem.layout

    @property
    def pitch(self) -> str:
        """The distance of rows: ``packed``, ``padded``, or ``odd`` if an operand can have no tensor map."""
        layouts = self.problem.layouts().values()
        if any(x.ld * x.dtype.itemsize % _TMA_BYTES for x in layouts):
            return "odd"
        return "packed" if all(x.ld == x.columns for x in layouts) else "padded"

    @property
    def form(self) -> str:
        """The class of its shape.

        ``skinny`` has at most 64 rows and ``thin`` at most 64 columns. Of the others, ``square`` has sizes
        within a factor of four, K of ``deep`` is at least four times M and N, and that of ``flat`` at most a
        quarter of both. The rest is ``oblong``.
        """
        M, N, K = self.problem.M, self.problem.N, self.problem.K
        if M <= 64:
            return "skinny"
        if N <= 64:
            return "thin"
        if max(M, N, K) <= 4 * min(M, N, K):
            return "square"
        if 4 * max(M, N) <= K:
            return "deep"
        return "flat" if min(M, N) >= 4 * K else "oblong"

    @property
    def classes(self) -> tuple[str, ...]:
        """The lines of the table that it counts in, beside the one for all."""
        kind = "model" if self.origin else "ragged" if self.ragged else "round"
        return self.form, kind, self.layout, self.pitch


CLASSES = (  # lines of the table: of what a draw has one from each row, see `Draw.classes`
    *("skinny", "thin", "square", "deep", "flat", "oblong"),
    *("model", "ragged", "round"),
    *("NN", "NT", "TN", "TT"),
    *("packed", "padded", "odd"),
)


def draws(
    dtype: str,
    count: int,
    seed: int,
    most: int = 0,
    over: int = 0,
    madds: int = MOST_WORK,
    only: Sequence[str] = (),
    near: Sequence[Gemm] = (),
) -> list[Draw]:
    """Return `count` draws of an element type (a key of `GEMMS`); the same seed gives the same draws.

    With `most` they are those with at most so many rows or columns, with `over` and `madds` those of more
    multiply-adds and of at most so many, with `only` those of all these `Draw.classes`. With `near` they are
    no draws of all products, but each is near one of these. Raises UsageError if there are next to none.
    """
    rng = random.Random(f"{seed} {dtype}")
    found: list[Draw] = []
    tried = 0
    while len(found) < count:
        if tried > _RAREST * (len(found) + 1):
            raise UsageError(
                f"only {len(found)} of {tried} draws are as asked for", hint="wider limits, or fewer classes"
            )
        tried += 1
        if near:
            drawn = _near(rng, rng.choice(near))
        else:
            drawn = _model(rng, dtype) if rng.random() < 0.25 else _random(rng, dtype)
        for problem, origin, ragged in drawn:
            thin = not most or min(problem.M, problem.N) <= most
            one = Draw(index=len(found), problem=problem, origin=origin, ragged=ragged)
            worth = over < problem.M * problem.N * problem.K <= madds
            if thin and worth and set(only) <= set(one.classes):
                found.append(one)
    return found


Drawn = Iterator[tuple[Gemm, str, bool]]  # one, or none where it is too large


def _random(rng: random.Random, dtype: str) -> Drawn:
    """Yield a product of random sizes, layout and pitches, unless it is too large."""
    ragged = rng.random() < 0.25
    unit = rng.choice(_UNITS)
    sizes = [_log_uniform(rng, _LEAST, _MOST) for _ in range(3)]
    M, N, K = (size if ragged else _rounded(size, unit) for size in sizes)
    transa, transb = rng.randrange(2), rng.randrange(2)
    pitch = rng.choice(("packed", "packed", "packed", "padded", "padded", "odd"))
    rows = (M if transa else K), (K if transb else N), N
    lda, ldb, ldc = (_padded(rng, pitch, length, dtype) for length in rows)
    if problem := _bounded(dtype, M, N, K, transa=transa, transb=transb, lda=lda, ldb=ldb, ldc=ldc):
        yield problem, "", ragged


def _rounded(size: int, unit: int) -> int:
    """Return the multiple of `unit` nearest to `size`, or of a smaller power of two where `size` is less."""
    unit = min(unit, 1 << size.bit_length() - 1)
    return round(size / unit) * unit


def _padded(rng: random.Random, pitch: str, length: int, dtype: str) -> int:
    """Return the elements from row to row, for rows of `length` elements."""
    if pitch == "packed":
        return length
    if pitch == "odd":
        return length + rng.randrange(1, 64)
    unit = _TMA_BYTES // DTYPES[dtype].itemsize
    return (-(-length // unit) + rng.randrange(1, 17)) * unit


def _model(rng: random.Random, dtype: str) -> Drawn:
    """Yield one of the products of a model's layer, unless it is too large.

    The batch is a power of two in half of the cases.
    """
    model = rng.choice(list(MODELS))
    layer = rng.choice(list(MODELS[model]))
    inputs, outputs = MODELS[model][layer]
    batch = 2 ** rng.randrange(13) if rng.random() < 0.5 else _log_uniform(rng, 1, _BATCH)
    tokens = batch * (_PATCHES if model == "ViT-B" and layer != "head" else 1)
    by_output = 0 if model == "GPT-2" else 1  # how the weights are stored
    which = rng.choice(("forward", "forward", "gradient of inputs", "gradient of weights"))
    if which == "forward":
        problem = _bounded(dtype, tokens, outputs, inputs, transb=by_output)
    elif which == "gradient of inputs":
        problem = _bounded(dtype, tokens, inputs, outputs, transb=1 - by_output)
    elif by_output:
        problem = _bounded(dtype, outputs, inputs, tokens, transa=1)
    else:
        problem = _bounded(dtype, inputs, outputs, tokens, transa=1)
    if problem:
        yield problem, f"{model} {layer}, {which}, {batch}", False


def _near(rng: random.Random, problem: Gemm) -> Drawn:
    """Yield a product in the layout of `problem`, of about its sizes and paddings, unless it is too large.

    Two sizes in three change, by up to a quarter. A size remains a multiple of the power of two that it was
    a multiple of, up to 64, and a pitch one of 16 bytes.
    """

    def moved(size: int) -> int:
        unit = min(size & -size, _UNITS[2])
        changed = size * math.exp(rng.uniform(-_NEAR, _NEAR)) if rng.randrange(3) else size
        return max(round(changed / unit), 1) * unit

    def pitch(was: Layout, length: int) -> int:
        unit = _TMA_BYTES // was.dtype.itemsize
        unit = 1 if was.ld % unit else unit
        return -(-(length + was.ld - was.columns) // unit) * unit

    M, N, K = moved(problem.M), moved(problem.N), moved(problem.K)
    rows = (M if problem.transa else K), (K if problem.transb else N), N
    lda, ldb, ldc = map(pitch, problem.layouts().values(), rows)
    axes = {"transa": problem.transa, "transb": problem.transb, "lda": lda, "ldb": ldb, "ldc": ldc}
    if found := _bounded(problem.dtype.name, M, N, K, **axes):
        yield found, "", any(size % _LEAST for size in (M, N, K))


def _log_uniform(rng: random.Random, least: int, most: int) -> int:
    return round(math.exp(rng.uniform(math.log(least), math.log(most))))


def _bounded(dtype: str, M: int, N: int, K: int, **axes: int) -> Gemm | None:
    """Return the product, or None if it is too large."""
    if M * N * K > MOST_WORK:
        return None
    problem = GEMMS[dtype](M=M, N=N, K=K, **axes)
    a, b, c = (x.rows * x.ld * x.dtype.itemsize for x in problem.layouts().values())
    return problem if max(a + b, c) <= MOST_BYTES else None
