"""The order in which kernels say that they add (`sums`, `parts`), held against their bits in the emulator.

Variants with the same `choose.order` multiply the same few rows, each at its own places among others, in
layouts and at pitches of its own. What they compute of those rows must be the same, bit for bit.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from harness import compile_kernel
from harness.dispatch import choose
from harness.dispatch.model.cost import depth
from harness.kernels import spec
from harness.kernels.epilogue import COLUMNS, PLAIN, Epilogue
from harness.kernels.spec import LAYOUT, Variant
from harness.launch import emulated
from harness.launch.builds import Built
from harness.problems.gemm import GEMMS
from shared.places import ROOT

KEPT = 4  # rows that are looked at
TYPES = ("fp32", "tf32", "3xtf32", "bf16x6", "bf16", "fp16")
WIDE = Epilogue(0, "", True)  # a result in float32 shows what rounding to 16 bits hides


@cache
def members(dtype: str) -> dict[tuple[Any, ...], dict[str, list[Variant]]]:
    """Return the candidates that say how they add, by sums and parts, and by kernel; K suits all of them."""
    found: dict[tuple[Any, ...], dict[str, list[Variant]]] = {}
    for one in choose.candidates():
        variant, key = one.fixed.variant, choose.order(one.fixed.variant, 2**20)
        if key and one.dtype.name == dtype:
            variants = found.setdefault(key, {}).setdefault(variant.kernel.name, [])
            if variant not in variants:
                variants.append(variant)
    return found


def rows(dtype: str, k: int, n: int, draw: random.Random) -> tuple[Any, Any]:
    """Return the rows that are looked at, and B; some sums are of negative products too small for float32."""
    rng = np.random.default_rng(draw.getrandbits(32))
    a, b = rng.standard_normal((KEPT, k)), rng.standard_normal((k, n))
    if dtype not in ("bf16", "fp16"):
        a[-1] = -1e-25 * np.abs(a[-1])
        b[:, ::5] = 1e-25 * np.abs(b[:, ::5])
    return a.astype(np.float32), b.astype(np.float32)


def multiplied(
    variant: Variant,
    a: Any,
    b: Any,
    draw: random.Random,
    epilogue: Epilogue = PLAIN,
    beta: float = 0,
    swapped: bool = False,
) -> Any:
    """Return the bits of the product's rows for `a`, at drawn places among others, some not finite.

    If `swapped`, the transposes are multiplied, as for a column-major result.
    """
    (_, k), n, m = a.shape, b.shape[1], KEPT + draw.randint(0, 90)
    places = draw.sample(range(m), KEPT)
    whole = np.random.default_rng(draw.getrandbits(32)).standard_normal((m, k)).astype(np.float32)
    whole[:: draw.randint(2, 9)] = draw.choice((np.inf, np.nan, 1e30))
    whole[places] = a
    left, right = (b.T, whole.T) if swapped else (whole, b)
    (m, _), n = left.shape, right.shape[1]
    flips = [draw.choice(variant.kernel.params.get(name, (0,))) for name in LAYOUT]
    laid = choose.laid_out(variant, "".join("NT"[flip] for flip in flips), "A")
    transa, transb = (laid.params.get(name, 0) for name in LAYOUT)
    widths = {"lda": m if transa else k, "ldb": k if transb else n, "ldc": n}
    pad = draw.choice((0, 4, 8, draw.randint(1, 9)))
    pitches = {name: width + (-width % 8 if pad else 0) + pad for name, width in widths.items()}
    axes: Any = {"M": m, "N": n, "K": k, **pitches, "transa": transa, "transb": transb, "beta": beta}
    problem = replace(GEMMS[variant.kernel.dtype](**axes), epilogue=epilogue)
    inputs = problem.inputs(1)
    for name, matrix, flip in (("A", left, transa), ("B", right, transb)):
        lies = matrix.T if flip else matrix
        inputs[name][:, : lies.shape[1]] = problem.dtype.encode(lies)
    if beta:
        inputs["C"][:, :n] = problem.stored.encode(np.broadcast_to(b[0], (m, n)))
    if epilogue.bias:
        inputs["bias"][...] = problem.stored.encode(b[1]).reshape(inputs["bias"].shape)
    laid = epilogue.compiled(laid)
    built = Built(variant=laid, cubin=compile_kernel(laid, "sm_90a"), sass=None)
    _, arrays = emulated.launch(built, problem, inputs, emulated.Options(check=False, count=False))
    c = arrays["C"][:, :n].T if swapped else arrays["C"][:, :n]
    return np.ascontiguousarray(c[places]).view(np.uint8)


def differing(variants: Sequence[Variant], k: int, n: int, draw: random.Random, **options: Any) -> list[str]:
    """Return the variants with other bits than the first one."""
    first, *others = variants
    dtype = first.kernel.dtype
    a, b = rows(dtype, k, n, draw)
    epilogue = options.pop("epilogue", WIDE if dtype in ("bf16", "fp16") else PLAIN)
    bits = multiplied(first, a, b, draw, epilogue, **options)
    assert (bits != 0).any()
    return [
        one.brief
        for one in (first, *others)
        if (multiplied(one, a, b, draw, epilogue, **options) != bits).any()
    ]


def sized(variants: Sequence[Variant], draw: random.Random) -> int:
    """Return a K for which the variants have one order: of whole steps, or with a rest of zeros in each."""
    parts = variants[0].kernel.parts(variants[0].params)
    whole = parts * max(depth(one) for one in variants)
    k = whole * draw.randint(0, 2) + draw.choice((whole, draw.randint(1, whole)))
    return k if len({choose.order(one, k) for one in variants}) == 1 else whole


ORDERS = [(dtype, key) for dtype in TYPES for key in members(dtype)]
BRIEF = [
    (dtype, key) for dtype, key in ORDERS if dtype != "bf16x6" or key[2] <= 2
]  # six products take longer


def test_each_type_has_orders_for_a_choice() -> None:
    assert {dtype for dtype, _ in ORDERS} == set(TYPES)
    kernels = {name for dtype in TYPES for some in members(dtype).values() for name in some}
    assert len(kernels) >= 16
    assert not kernels & {"17_skinny_rows", "18_skinny_columns", "20_stream_k", "29_wgmma_grid_split"}


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "key"), BRIEF, ids=str)
def test_one_order_one_result(dtype: str, key: tuple[Any, ...]) -> None:
    """A variant of each kernel, and two of the first: drawn, at a shape drawn."""
    draw = random.SystemRandom()
    kernels = members(dtype)[key]
    variants = [draw.choice(some) for some in kernels.values()]
    variants.append(draw.choice(next(iter(kernels.values()))))
    k, n = sized(variants, draw), draw.randint(1, 140)
    assert not differing(variants, k, n, draw), (k, n)


def both_ways(variant: Variant, k: int, draw: random.Random) -> tuple[Any, Any]:
    """Return the bits of rows of a row-major result, and of a column-major one."""
    dtype = variant.kernel.dtype
    a, b = rows(dtype, k, draw.randint(20, 70), draw)
    epilogue = WIDE if dtype in ("bf16", "fp16") else PLAIN
    plain, swapped = (multiplied(variant, a, b, draw, epilogue, swapped=turn) for turn in (False, True))
    return plain, swapped


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sorted({*TYPES} - {"3xtf32", "bf16x6"}))
def test_a_column_major_result_has_the_same_bits(dtype: str) -> None:
    draw = random.SystemRandom()
    variant = draw.choice([v for some in members(dtype).values() for vs in some.values() for v in vs])
    plain, swapped = both_ways(variant, 64 * variant.kernel.parts(variant.params), draw)
    assert (plain == swapped).all(), variant.brief


@pytest.mark.slow
def test_but_where_floats_are_split() -> None:
    """a's small part times b's large one comes before the reverse, or behind it: some bits differ."""
    plain, swapped = both_ways(planted("39_bf16x6_tiles", {}, BLOCKS=0), 512, random.Random(7))
    assert 0 < (plain != swapped).mean() < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0, 1])
@pytest.mark.parametrize("epilogue", [PLAIN, Epilogue(COLUMNS), Epilogue(COLUMNS, "silu")], ids=str)
def test_what_follows_is_rounded_alike(epilogue: Epilogue, beta: float) -> None:
    """With alpha 1 and beta 0 or 1: rows of C that begin anywhere are stored in other ways."""
    draw = random.SystemRandom()
    kernels = members("fp32")["fp32", "fma", 1, False, ""]
    names = draw.sample(sorted(kernels), 2)
    variants = [draw.choice(kernels[name]) for name in ("33_small_tiles", *names)]
    assert not differing(variants, 64, draw.randint(1, 70), draw, epilogue=epilogue, beta=beta)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dtype", "key"), ORDERS, ids=str)
def test_all_variants_of_an_order(dtype: str, key: tuple[Any, ...]) -> None:
    draw = random.SystemRandom()
    variants = list(itertools.chain(*members(dtype)[key].values()))
    k, n = sized(variants, draw), draw.randint(1, 140)
    assert not differing(variants, k, n, draw), (k, n)


# Faults


def planted(name: str, changed: Mapping[str, str], **params: int) -> Variant:
    """Return a variant of a shipped kernel's text with these changes."""
    path = next((ROOT / "cu").glob(f"*/{name}.cu"))
    source = path.read_text()
    for old, new in changed.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return spec.parse(source, path).variant(**params)


Told = tuple[str, dict[str, str], dict[str, int]]
CHAIN = "13_cp_async", {"BM": 64, "BN": 64}
ASCENDING = "(int e = 0; e < 4; ++e){0}#pragma unroll{0}for (int i = 0; i < TM; ++i){0}    #pragma unroll"
ASCENDING = ASCENDING.format("\n" + 20 * " ")
FAULTS: dict[str, tuple[Told, tuple[str, dict[str, int]]]] = {
    "two halves": (("15_split_k", {'parts = "SPLIT"': 'parts = "1"'}, {"SPLIT": 2}), CHAIN),
    "0 + -0": (("19_pipeline_split", {'"(SPLIT > 1) * SPLIT"': '"SPLIT"'}, {"SPLIT": 1}), CHAIN),
    "a step backwards": (
        (
            "33_small_tiles",
            {ASCENDING: ASCENDING.replace("e = 0; e < 4; ++e", "e = 3; e >= 0; --e")},
            {"BLOCKS": 0},
        ),
        CHAIN,
    ),
    "parts that end elsewhere": (
        ("15_split_k", {"(tiles + SPLIT - 1) / SPLIT": "tiles / SPLIT + 1"}, {"SPLIT": 2}),
        ("19_pipeline_split", {"SPLIT": 2}),
    ),
    "the last part first": (
        (
            "15_split_k",
            {"(int from = 0; from < SPLIT; ++from)": "(int from = SPLIT; from-- > 0;)"},
            {"SPLIT": 4},
        ),
        ("19_pipeline_split", {"SPLIT": 4}),
    ),
    "as many parts as fill the GPU": (
        ("33_small_tiles", {'"(BLOCKS == 0) * (SLICES == 1) * SPLIT"': '"SPLIT"'}, {"BLOCKS": 4}),
        CHAIN,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_that_adds_in_another_order_is_found(fault: str) -> None:
    """It says the same as an honest one, which is right; its faults show at a K of whole steps."""
    (name, changed, params), (other, chosen) = FAULTS[fault]
    honest, wrong = planted(other, {}, **chosen), planted(name, changed, **params)
    k = 256
    assert choose.order(honest, k) == choose.order(wrong, k) is not None
    draw = random.Random(7)
    assert differing([honest, wrong], k, 40, draw) == [wrong.brief]
    right = planted(name, {}, **params)
    if choose.order(right, k) == choose.order(honest, k):
        assert not differing([honest, right], k, 40, draw)


@pytest.mark.slow
def test_zeros_after_the_last_k_are_an_order_of_their_own() -> None:
    """They make a sum of -0 to 0: of k = 48 rung 14 adds 48, and 33 adds 64."""
    variants = [planted("14_warp_tiles", {}), planted("33_small_tiles", {}, BLOCKS=0)]
    assert len({choose.order(one, 64) for one in variants}) == 1
    assert len({choose.order(one, 48) for one in variants}) == 2
    assert differing(variants, 48, 40, random.Random(7))
