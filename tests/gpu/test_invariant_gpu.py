"""``invariant=True`` on a real GPU: a row has the same bits however many there are, wherever they lie."""

from __future__ import annotations

import random
from typing import Any

import pytest

import harness

pytestmark = pytest.mark.gpu

ROWS = (1, 3, 17, 64, 200, 1031)
KINDS = {
    "fp32": ("float32", "ieee"),
    "tf32": ("float32", "tf32"),
    "bf16x6": ("float32", "bf16x6"),
    "bf16": ("bfloat16", "ieee"),
    "fp16": ("float16", "ieee"),
}


def differing(torch: Any, seed: int, kind: str, invariant: bool) -> int:
    """Return how many products of a drawn layer have other bits in the rows that all of them have.

    Each is verified. Results of 200 rows are column-major, but in bf16x6; weights lie in either order.
    """
    draw = random.Random(seed)
    n, k = (8 * draw.randint(2, 500) + draw.choice([0, 0, 1, 5]) for _ in range(2))
    dtype, precision = getattr(torch, KINDS[kind][0]), KINDS[kind][1]
    x, w = torch.randn(max(ROWS), k, device="cuda").to(dtype), torch.randn(n, k, device="cuda").to(dtype)
    b = w.t() if draw.random() < 0.7 else w.t().contiguous()
    bias = torch.randn(n, device="cuda").to(dtype)
    unit = {"tf32": 2**-8, "bf16": 2**-8, "fp16": 2**-10}.get(kind, 2**-18)
    first = draw.randrange(max(ROWS))  # the row that is in all of them
    found = []
    for count in ROWS:
        begin = min(first, max(ROWS) - count)
        out = torch.empty(count, n, device="cuda", dtype=dtype)
        out = out.t().contiguous().t() if count == 200 and kind != "bf16x6" else out
        rows = x[begin : begin + count]
        harness.matmul(rows, b, out, bias=bias, precision=precision, invariant=invariant)
        exact = rows.double() @ b.double() + bias.double()
        size = rows.double().abs() @ b.double().abs() + bias.double().abs()
        assert bool(((out.double() - exact).abs() <= unit * (exact.abs() + size / 8)).all()), (count, n, k)
        found.append(out[first - begin].clone())
    return sum(not torch.equal(row, found[0]) for row in found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits(torch: Any, kind: str) -> None:
    for _ in range(3):
        seed = random.SystemRandom().randrange(2**32)
        assert differing(torch, seed, kind, invariant=True) == 0, seed


def test_the_free_choice_is_told_apart(torch: Any) -> None:
    """The control: it adds in other orders for other numbers of rows."""
    assert any(differing(torch, seed, "bf16", invariant=False) for seed in range(5))


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_a_model_in_replace(torch: Any, kind: str) -> None:
    """The answer to a request has the same bits, whatever else is in its batch."""
    from harness import torch as ours

    dtype = getattr(torch, KINDS[kind][0])
    layers = [torch.nn.Linear(768, 3072), torch.nn.GELU(), torch.nn.Linear(3072, 768, bias=False)]
    model = torch.nn.Sequential(*layers).to("cuda", dtype)
    x = torch.randn(64, 50, 768, device="cuda", dtype=dtype)
    with torch.no_grad(), ours.replace(invariant=True):
        answers = [model(x[:count])[0] for count in (1, 2, 9, 64)]
        assert all(torch.equal(answer, answers[0]) for answer in answers)
        assert {call.why for call in ours.report().records} == {""}
    near = {"atol": 0.03, "rtol": 0.03} if kind == "bf16" else {"atol": 1e-4, "rtol": 1e-4}
    with torch.no_grad():
        assert torch.allclose(answers[0], model(x[:1])[0], **near)
