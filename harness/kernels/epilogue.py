"""Epilogues: what a kernel does to a product before it rounds and stores it: bias, activation, derivative.

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
MACROS = ("BIAS", "ACTIVATION", "FLOAT_C", "DERIVATIVE")  # of epilogue.cuh, in the order of `Epilogue`
STEEPEST = 1.13  # by which an activation enlarges an error at most: the largest slope, that of gelu
_MARK = "EPILOGUE_PARAMETER"  # in the source of a kernel that can have an epilogue


class Epilogue(NamedTuple):
    """An epilogue of ``alpha * A @ B + beta * C``: a bias is added, and the activation applied.

    `bias` is `ROWS`, `COLUMNS` or 0 for none. With `float_c` C, the bias and `at` are of float32. With
    `derivative` the product is multiplied by the activation's derivative at the elements of a matrix ``at``
    instead, which lies in memory as C does: a gradient that goes back through the activation. There is no
    bias then.
    """

    bias: int = 0
    activation: str = ""
    float_c: bool = False
    derivative: bool = False

    @property
    def operand(self) -> str:
        """Return the name of the operand that it reads: ``"bias"``, ``"at"``, or ``""`` for none."""
        return "bias" if self.bias else "at" if self.derivative else ""

    @property
    def params(self) -> dict[str, int]:
        """Return the macros of epilogue.cuh that are not 0."""
        values = (self.bias, ACTIVATIONS.index(self.activation), int(self.float_c), int(self.derivative))
        return {name: x for name, x in zip(MACROS, values, strict=True) if x}

    @property
    def label(self) -> str:
        """Return it in words, such as ``bias by column, gelu``; empty for a plain product."""
        bias = ("", "bias by row", "bias by column")[self.bias]
        activation = f"derivative of {self.activation}" if self.derivative else self.activation
        return ", ".join(x for x in (bias, activation, "float32 C" if self.float_c else "") if x)

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

    def finish(self, values: NDArray[Any], operand: NDArray[Any] | None) -> NDArray[Any]:
        """Return what becomes of ``alpha * A @ B + beta * C``, in float64.

        `operand` is the bias or ``at``, None if it reads neither (`operand`).
        """
        import numpy as np

        x: Any = values
        with np.errstate(over="ignore"):
            if self.derivative:
                return np.asarray(x * _derivative(self.activation, operand))
            if operand is not None:
                x = x + (operand[:, None] if self.bias == ROWS else operand)
            match self.activation:
                case "relu":
                    x = np.maximum(x, 0)
                case "gelu":
                    x = x * _normal(x)
                case "gelu_tanh":
                    x = 0.5 * x * (1 + np.tanh(_argument(x)))
                case "silu":
                    x = x / (1 + np.exp(-x))
        return np.asarray(x)


def _normal(x: Any) -> Any:
    """Return the distribution function of the normal distribution."""
    import numpy as np

    return 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def _argument(x: Any) -> Any:
    """Return what gelu's approximation takes tanh of."""
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def _derivative(activation: str, x: Any) -> Any:
    """Return the derivative of an activation at each element of `x`, in float64; 0 for relu at 0."""
    import numpy as np

    match activation:
        case "relu":
            return np.where(x <= 0, 0.0, 1.0)
        case "gelu":
            return _normal(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        case "gelu_tanh":
            tanh, slope = np.tanh(_argument(x)), math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
            return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * slope
        case _:
            sigmoid = 1 / (1 + np.exp(-x))
            return sigmoid * (1 + x * (1 - sigmoid))


PLAIN = Epilogue()
