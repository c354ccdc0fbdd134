"""Invariant products: one order of sums for all M, held by every way to choose, on the fake driver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import harness
from fakes import gemm as fake_gemm
from fakes.driver import FakeDriver
from harness.dispatch import choose, split
from harness.dispatch.model.traffic import Pitches
from harness.driver import Context
from harness.errors import UsageError
from harness.kernels.dtypes import BF16, FP32
from harness.kernels.epilogue import COLUMNS, PLAIN, Epilogue
from harness.kernels.spec import Variant
from shared.arrays import Typed, fake, gpu, kernels  # noqa: F401  (fixtures)

H200: dict[str, Any] = {"sms": 132, "arch": "sm_90a"}
TUNED: dict[str, Any] = {**H200, "gpu": "NVIDIA H200"}
TYPES = ("fp32", "tf32", "3xtf32", "fp16x3", "bf16x6", "bf16", "fp16")
SIZES = st.integers(1, 20_000)


@given(
    SIZES,
    SIZES,
    st.lists(SIZES, min_size=2, max_size=4),
    st.sampled_from(TYPES),
    st.sampled_from(["NN", "NT", "TN", "TT"]),
    st.sampled_from(["", "A", "AB"]),
    st.sampled_from([PLAIN, Epilogue(COLUMNS, "silu")]),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_the_order_depends_on_n_and_k_only(
    n: int, k: int, rows: list[int], dtype: str, layout: str, unmapped: str, epilogue: Epilogue
) -> None:
    """Nor on layouts, pitches and what follows, nor on the side from which the product is computed."""
    plain = choose.choose(1, n, k, **TUNED, dtype=dtype, invariant=choose.ROWS)
    pitches = Pitches(unmapped=unmapped)
    made: Any = {**TUNED, "dtype": dtype, "layout": layout, "pitches": pitches, "epilogue": epilogue}
    found = {choose.order(plain, k)}
    for m in rows:
        found.add(choose.order(choose.choose(m, n, k, **made, invariant=choose.ROWS), k))
        found.add(choose.order(choose.choose(n, m, k, **made, invariant=choose.COLUMNS), k))
        assert len(split.divided(m, n, k, **made, invariant=choose.ROWS)) == 1
    assert len(found) == 1 and None not in found


def test_a_free_choice_has_several_orders() -> None:
    chosen = [choose.choose(m, 4096, 4096, **TUNED, dtype="bf16") for m in (1, 64, 512, 4096)]
    assert len({choose.order(one, 4096) for one in chosen}) > 1


@pytest.mark.slow
def test_an_older_gpu() -> None:
    for arch, dtype in (("sm_75", "fp32"), ("sm_80", "bf16"), ("sm_80", "3xtf32")):
        assert choose.choose(7, 512, 100, sms=80, arch=arch, dtype=dtype, invariant="M")
    with pytest.raises(UsageError, match="no kernel for 7x512x100 in bf16 on sm_75"):
        choose.choose(7, 512, 100, sms=80, arch="sm_75", dtype="bf16", invariant="M")
    with pytest.raises(UsageError, match="invariant='rows'"):
        choose.choose(7, 512, 100, **H200, invariant="rows")


def entry(variant: Variant, m: int, n: int, k: int) -> dict[str, Any]:
    sizes = {axis: [size, size] for axis, size in zip("MNK", (m, n, k), strict=True)}
    params = {name: x for name, x in variant.params.items() if name not in ("TRANSA", "TRANSB")}
    about: dict[str, Any] = {"gpu": "NVIDIA H200", "sms": 132, "dtype": variant.kernel.dtype, "layout": "NT"}
    return {**about, **sizes, "kernel": variant.kernel.name, "params": params}


@pytest.mark.parametrize("fits", [True, False])
def test_a_table_is_asked_for_variants_of_the_order(
    fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, n, k = 300, 1024, 4096
    wanted = choose.order(choose.choose(m, n, k, **TUNED, layout="NT", dtype="bf16", invariant="M"), k)
    able = [c.variant for c in choose.candidates() if c.dtype is BF16]
    least = [v for v in able if (choose.order(v, k) == wanted) == fits][-1]
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"tuned": [entry(least, m, n, k)]}))
    monkeypatch.setenv("HARNESS_TABLE", str(table))
    choose.reread()
    about: dict[str, Any] = {**TUNED, "layout": "NT", "dtype": "bf16"}
    named = choose.choose(m, n, k, **about).kernel.name, choose.choose(m, n, k, **about, invariant="M")
    choose.reread()
    assert named[0] == least.kernel.name
    assert choose.order(named[1], k) == wanted
    assert (choose.laid_out(least, "NT", "A") == named[1]) == fits


def products(gpu: Context, *, beta: float = 0, **options: Any) -> None:
    for m in (1, 24, 200):
        a, b, c = Typed(gpu, BF16, m, 512), Typed(gpu, BF16, 512, 40), Typed(gpu, BF16, m, 40)
        harness.matmul(a, b, c, beta=beta, **options)


def test_the_kernels_that_run_have_one_order(kernels: FakeDriver, gpu: Context) -> None:
    kernels.execute = fake_gemm.no_write
    products(gpu, invariant=True)
    labels = [label.removesuffix(" sm_90a") for label in kernels.compiled]
    pitches = Pitches(straddled="B")  # rows of 80 bytes
    about: dict[str, Any] = {**H200, "dtype": "bf16", "pitches": pitches}
    chosen = [choose.choose(m, 40, 512, **about, invariant="M").label for m in (1, 24, 200)]
    assert labels == list(dict.fromkeys(chosen))
    products(gpu, invariant=True)
    assert len(kernels.compiled) == len(labels)
    products(gpu)  # from other plans
    assert len(kernels.compiled) > len(labels)


def test_of_a_column_major_result_the_columns_are_what_must_not_matter(
    kernels: FakeDriver, gpu: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels.execute = fake_gemm.no_write
    seen = []
    chosen = choose.choose
    monkeypatch.setattr(
        choose, "choose", lambda *a, **k: seen.append((*a, k["invariant"])) or chosen(*a, **k)
    )
    c = Typed(gpu, FP32, 40, 24)
    c.host, c.shape = c.host.T, (24, 40)
    harness.matmul(Typed(gpu, FP32, 24, 16), Typed(gpu, FP32, 16, 40), c, invariant=True)
    assert seen == [(40, 24, 16, "N")]


@pytest.mark.parametrize(
    ("options", "fine"),
    [
        ({"alpha": 0.5}, True),
        ({"alpha": 0.5, "activation": "silu"}, True),
        ({"beta": 1}, True),
        ({"bias": True, "activation": "gelu", "beta": 1}, True),
        ({"beta": 0.5}, False),
        ({"alpha": 0.5, "beta": 1}, False),
        ({"alpha": 2, "bias": True}, False),
    ],
)
def test_what_kernels_round_differently_is_refused(
    kernels: FakeDriver, gpu: Context, options: dict[str, Any], fine: bool
) -> None:
    kernels.execute = fake_gemm.no_write
    a, b, c = Typed(gpu, FP32, 24, 16), Typed(gpu, FP32, 16, 40), Typed(gpu, FP32, 24, 40)
    if "bias" in options:
        options = {**options, "bias": (made := Typed(gpu, FP32, 1, 40))}
        made.host, made.shape = made.host[0], (40,)  # type: ignore[assignment]
    if fine:
        harness.matmul(a, b, c, **options, invariant=True)
        return
    harness.matmul(a, b, c, **options)
    with pytest.raises(UsageError, match="kernels round that differently") as refused:
        harness.matmul(a, b, c, **options, invariant=True)
    assert "alpha 1" in refused.value.hint
