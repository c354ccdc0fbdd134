"""Element types of matrices: how they lie in memory, and what rounding to them costs.

bf16 has no NumPy type and is stored as the uint16 of its bits; tf32 is float32 in memory, of whose
significand the tensor cores take 11 bits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ELEMENT = "ELEMENT"  # the macro that holds the C++ type of an element, in a file of several types


@dataclass(frozen=True, kw_only=True)
class DType:
    """A binary floating-point type.

    `storage` is the NumPy type of its arrays and `cpp` the C++ type of an element in kernels
    (``cu/include/elements.cuh`` defines ``Bf16`` and ``Fp16``). `precision` counts the significant bits that
    are stored, the leading one included, and `reads` those that a product takes of an input; the unit
    roundoff is 2^-bits.
    `emin` and `emax` are the exponents of the least normal and the largest number. `accumulate` bounds the
    relative error of one addition of a sum of products: 2^-24 for float32 rounded to nearest, 2^-23 for
    tensor cores, which truncate (Fasi, Higham, Mikaitis, Pranesh, PeerJ Comput. Sci. 7, 2021, e330).
    `beside_largest` is an error of each input relative to the largest of its row of A or column of B, for
    types that scale these.
    """

    name: str
    storage: str
    cpp: str = "float"
    precision: int
    reads: int
    emin: int
    emax: int
    accumulate: float
    beside_largest: float = 0.0

    @functools.cached_property  # read several times in each call of harness.matmul
    def itemsize(self) -> int:
        """Return the size of an element in bytes."""
        return 2 if self.storage.endswith("16") else 4

    @property
    def unrounded(self) -> DType:
        """Return a type for the same products, whose results are stored in float32."""
        return self if self.itemsize == 4 else replace(FP32, accumulate=self.accumulate)

    @property
    def largest(self) -> float:
        """Return the largest finite number of this type."""
        return (2 - 2.0 ** (1 - self.precision)) * 2.0**self.emax

    @property
    def overflow(self) -> float:
        """Return the least magnitude that rounds to infinity: half a step above the largest number."""
        return (2 - 2.0**-self.precision) * 2.0**self.emax

    def encode(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """Round float32 `values` to this type, to nearest even, and return them as they are stored.

        The shape is kept and NaN stays NaN. Values of at least `overflow` become infinite.
        """
        import numpy as np

        if self.storage != "uint16":
            with np.errstate(over="ignore"):  # to infinity, as the hardware does
                return values.astype(self.storage, copy=False)
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        even = (bits >> 16) & 1
        rounded = ((bits + 0x7FFF + even) >> 16).astype(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)

    def decode(self, stored: NDArray[Any]) -> NDArray[np.float64]:
        """Return `stored` values in float64, exactly. The shape is kept."""
        import numpy as np

        if self.storage == "uint16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float64)

    def half_spacing(self, magnitude: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the most that rounding to nearest changes numbers of these magnitudes.

        Subnormal numbers are included: below the least normal number the spacing is constant.
        """
        import numpy as np

        # f * 2^exponent with 1/2 <= f < 1; numbers below the least normal one are as far apart as above it
        _, exponent = np.frexp(np.maximum(magnitude, 2.0**self.emin))
        half: NDArray[np.float64] = np.ldexp(1.0, exponent - 1 - self.precision)
        return half


# 3xtf32 adds three tf32 products, which leaves an error of 2^-21 of a product's magnitude
# (cu/tensor/28_3xtf32.cu explains why; 38_3xtf32_panels.cu has half of that), as if both inputs were read
# with 22 bits.
FP32 = DType(name="fp32", storage="float32", precision=24, reads=24, emin=-126, emax=127, accumulate=2.0**-24)
TF32 = DType(name="tf32", storage="float32", precision=24, reads=11, emin=-126, emax=127, accumulate=2.0**-23)
TF32X3 = DType(
    name="3xtf32", storage="float32", precision=24, reads=22, emin=-126, emax=127, accumulate=2.0**-23
)
# fp16x3 adds three products of fp16 (cu/tensor/36_fp16x3.cu), with the error of 3xtf32 for elements that are
# not far smaller than the largest of their row of A or column of B; all have one of up to 2^-39 of that.
FP16X3 = DType(
    name="fp16x3",
    storage="float32",
    precision=24,
    reads=22,
    emin=-126,
    emax=127,
    accumulate=2.0**-23,
    beside_largest=2.0**-39,
)
# bf16x6 adds six products of bf16 (cu/tensor/31_bf16x6.cu): its errors have the bounds of fp32.
BF16X6 = DType(
    name="bf16x6", storage="float32", precision=24, reads=24, emin=-126, emax=127, accumulate=2.0**-24
)
BF16 = DType(
    name="bf16",
    storage="uint16",
    cpp="Bf16",
    precision=8,
    reads=8,
    emin=-126,
    emax=127,
    accumulate=2.0**-23,
)
FP16 = DType(
    name="fp16",
    storage="float16",
    cpp="Fp16",
    precision=11,
    reads=11,
    emin=-14,
    emax=15,
    accumulate=2.0**-23,
)
DTYPES = {t.name: t for t in (FP32, TF32, TF32X3, FP16X3, BF16X6, BF16, FP16)}
