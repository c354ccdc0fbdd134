"""Bias, activations and float32 results on a real GPU: each kernel of the choice, and products of PyTorch."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

import harness
from harness.dispatch import choose
from harness.driver import Context
from harness.kernels import compiler
from harness.kernels.arch import Arch
from harness.kernels.epilogue import ACTIVATIONS, COLUMNS, ROWS, Epilogue
from harness.problems.gemm import GEMMS
from harness.support.cache import Cache
from shared.on_card import verified

pytestmark = pytest.mark.gpu

EPILOGUES = [
    Epilogue(COLUMNS, "gelu"),
    Epilogue(ROWS, "silu"),
    Epilogue(COLUMNS, "relu", True),
    *(Epilogue(0, name, name == "relu", True) for name in ACTIVATIONS[1:]),
]
SHAPES = [(520, 777, 136), (300, 264, 2000), (1030, 2056, 72)]


KERNELS = sorted({c.variant.kernel.name for c in choose.candidates()})


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=lambda e: e.label)
def test_every_kernel_of_the_choice(gpu: Context, cache: Cache, epilogue: Epilogue, kernel: str) -> None:
    """One or two of its candidates, by the bounds of the reference; memory beside the result is as before."""
    arch = str(Arch.of_capability(*gpu.device.capability))
    fit = [c.variant for c in choose.candidates() if c.variant.kernel.name == kernel]
    if not fit[0].kernel.fits(arch):
        pytest.skip(f"{kernel} is not for {arch}")
    for variant in fit[: 2 if epilogue == EPILOGUES[0] else 1]:
        kind = variant.kernel.dtype
        given = epilogue if kind in ("bf16", "fp16") else epilogue._replace(float_c=False)
        cubin = compiler.compile_kernel(given.compiled(variant), arch, cache)
        for (m, n, k), beta in zip(SHAPES, (0, 0.5, 0), strict=True):
            stored = {"transa": variant.params.get("TRANSA", 0), "transb": variant.params.get("TRANSB", 0)}
            problem = GEMMS[kind](M=m, N=n, K=k, beta=beta, ldc=n + 8, alpha=0.7, **stored)
            problem = dataclasses.replace(problem, epilogue=given)
            verified(gpu, cubin, problem)


def finished(torch: Any, x: Any, activation: str) -> Any:
    functional = torch.nn.functional
    functions = {
        "": lambda x: x,
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "silu": functional.silu,
    }
    return functions[activation](x)


@pytest.mark.parametrize("layout", ["N", "T"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("kind", "to"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float32")]
)
def test_matmul(torch: Any, kind: str, to: str, activation: str, layout: str) -> None:
    """Small, ragged, divided and large products, of row- and column-major results, by row and by column."""
    unit = {"float32": 2**-20, "bfloat16": 2**-8, "float16": 2**-11}[to]
    for (m, n, k), axis in itertools.product(
        [(5, 777, 300), (513, 511, 1023), (2049, 2055, 100), (1024, 3072, 768)], (0, 1)
    ):
        a, w = (torch.randn(s, k, device="cuda").to(getattr(torch, kind)) for s in (m, n))
        bias = torch.randn((m, n)[axis], device="cuda").to(getattr(torch, to))
        out = torch.full((m, n), 7.0, device="cuda", dtype=bias.dtype)
        out = out.t().contiguous().t() if layout == "T" else out
        harness.matmul(a, w.t(), out, bias=bias, bias_axis=axis, activation=activation, alpha=0.1)
        before = 0.1 * (a.double() @ w.double().t()) + (bias[:, None] if axis == 0 else bias).double()
        wanted = finished(torch, before, activation)
        size = 0.1 * (a.double().abs() @ w.double().abs().t())
        bound = 1.2 * 4 * (k + 3) ** 0.5 * 2**-23 * size + unit * (wanted.abs() + 0.01)
        assert bool(((out.double() - wanted).abs() <= bound).all()), (m, n, k, axis)


@pytest.mark.parametrize("batch", [(), (1,), (6,)])
@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
@pytest.mark.parametrize(("kind", "to"), [("float32", "float32"), ("bfloat16", "bfloat16")])
def test_a_gradient_through_an_activation(
    torch: Any, kind: str, to: str, activation: str, batch: tuple[int, ...]
) -> None:
    """By PyTorch's own gradient, in float64; of column-major results, too, and in a graph."""
    unit = {"float32": 2**-20, "bfloat16": 2**-8}[to]
    for m, n, k in [(5, 777, 300), (130, 264, 96), (513, 511, 1023)][: 2 if batch else 3]:
        a = torch.randn(*batch, m, k, device="cuda").to(getattr(torch, kind))
        w = torch.randn(*batch, k, n, device="cuda").to(getattr(torch, kind))
        for flip in (False, True):
            x, out = (torch.randn(*batch, m, n, device="cuda").to(a.dtype) for _ in range(2))
            if flip:
                x, out = (y.mT.contiguous().mT for y in (x, out))
            graph = torch.cuda.CUDAGraph()
            harness.matmul(a, w, out, activation=activation, derivative_at=x)
            first = out.clone()
            with torch.cuda.graph(graph):
                harness.matmul(a, w, out.fill_(7), activation=activation, derivative_at=x)
            graph.replay()
            assert torch.equal(out, first)
            exact, plain = x.double().requires_grad_(), a.double() @ w.double()
            (wanted,) = torch.autograd.grad(finished(torch, exact, activation), exact, plain)
            size = 4 * (k + 3) ** 0.5 * 2**-23 * (a.double().abs() @ w.double().abs())
            bound = 1.2 * size + unit * (wanted.abs() + plain.abs() * 2**-10 + 1e-3)
            assert bool(((out.double() - wanted).abs() <= bound).all()), (m, n, k, flip)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_layers_of_a_model(torch: Any, kind: str) -> None:
    """In `replace` and by the operators, also in a graph: the bias is the kernel's."""
    from harness import torch as ours

    dtype = getattr(torch, kind)
    layer = torch.nn.Linear(768, 3072, device="cuda", dtype=dtype)
    x = torch.randn(8, 300, 768, device="cuda", dtype=dtype)
    with torch.no_grad():
        wanted = torch.nn.functional.gelu(layer(x))
        with ours.replace(worth=lambda *product, **more: True):
            replaced = torch.nn.functional.gelu(layer(x))
        assert [c.why for c in ours.report().records] == [""]
        fused = ours.linear(x, layer.weight, layer.bias, activation="gelu")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = ours.linear(x, layer.weight, layer.bias, activation="gelu")
        graph.replay()
    near = {"atol": 0.03, "rtol": 0.02} if kind == "bfloat16" else {"atol": 1e-4, "rtol": 1e-4}
    for found in (replaced, fused, captured):
        assert torch.allclose(found, wanted, **near)
    assert torch.equal(fused, captured)
