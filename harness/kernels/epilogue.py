"""Epilogues: a bias and an activation that a kernel applies to a product before it rounds and stores it.

A kernel that includes ``cu/include/epilogue.cuh`` is compiled with an epilogue by the macros explained there,
which stand among a variant's parameters. No kernel file lists them: without them the product is plain.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.errors import UsageError
from harness.kernels.spec import Kernel, Variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS, COLUMNS = 1, 2  # a bias has an element for each of them
ACTIVATIONS = ("", "relu", "gelu", "gelu_tanh", "silu")  # as epilogue.cuh numbers them; none is 0
STEEPEST = 1.13  # by which an activation enlarges an error at most: the largest slope, that of gelu
_MARK = "BIAS_PARAMETER"  # in the source of a kernel that can have an epilogue


class Epilogue(NamedTuple):
    """An epilogue of ``alpha * A @ B + beta * C``: a bias is added, and the activation applied.

    `bias` is `ROWS`, `COLUMNS` or 0 for none. With `float_c` C and the bias are of float32.
    """

    bias: int = 0
    activation: str = ""
    float_c: bool = False

    @property
    def params(self) -> dict[str, int]:
        """Return the macros of epilogue.cuh that are not 0."""
        values = (self.bias, ACTIVATIONS.index(self.activation), int(self.float_c))
        return {name: x for name, x in zip(("BIAS", "ACTIVATION", "FLOAT_C"), values, strict=True) if x}

    @property
    def label(self) -> str:
        """Return it in words, such as ``bias by column, gelu``; empty for a plain product."""
        bias = ("", "bias by row", "bias by column")[self.bias]
        return ", ".join(x for x in (bias, self.activation, "float32 C" if self.float_c else "") if x)

    @property
    def flipped(self) -> Epilogue:
        """The epilogue of the transposed product."""
        return self._replace(bias=(0, COLUMNS, ROWS)[self.bias])

    def serves(self, kernel: Kernel) -> bool:
        """Return True if the kernel can be compiled with this epilogue; every kernel can without one."""
        return not any(self) or _MARK in kernel.source

    def check_rounding(self, alpha: float, beta: float) -> None:
        """Raise UsageError if kernels may round ``alpha * sum + beta * c + bias`` differently.

        A compiler makes one instruction, with one rounding, of a product and an addition, or two. That makes
        no difference where the product is exact.
        """
        if beta not in (0, 1) or (alpha != 1 and (beta or self.bias)):
            what = f"invariant with alpha={alpha:g} and beta={beta:g}: kernels round that differently"
            raise UsageError(what, hint="beta must be 0 or 1, and alpha 1 if beta is 1 or there is a bias")

    def compiled(self, variant: Variant) -> Variant:
        """Return the variant with this epilogue compiled in."""
        return replace(variant, params={**variant.params, **self.params}) if any(self) else variant

    def finish(self, values: NDArray[Any], bias: NDArray[Any] | None) -> NDArray[Any]:
        """Return what becomes of ``alpha * A @ B + beta * C``, in float64; `bias` is None without one."""
        import numpy as np

        x: Any = values
        if bias is not None:
            x = x + (bias[:, None] if self.bias == ROWS else bias)
        with np.errstate(over="ignore"):
            match self.activation:
                case "relu":
                    x = np.maximum(x, 0)
                case "gelu":
                    x = 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))
                case "gelu_tanh":
                    x = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
                case "silu":
                    x = x / (1 + np.exp(-x))
        return np.asarray(x)


PLAIN = Epilogue()
