"""The narrow formats beside ml-dtypes', which JAX and others use: bits and values, written independently."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.emulator.numbers import formats
from harness.kernels.dtypes import DTYPES

THEIRS = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
}
BITS = {name: form.sign + 1 for name, form in formats.FORMATS.items()} | {"ue8m0": 8}


@pytest.mark.parametrize("name", THEIRS)
def test_every_pattern_means_the_same(name: str) -> None:
    bits = np.arange(1 << BITS[name], dtype=np.uint16 if BITS[name] == 16 else np.uint8)
    with np.errstate(invalid="ignore"):  # NaN that signal
        theirs = bits.view(THEIRS[name]).astype(np.float64)
    np.testing.assert_array_equal(formats.decode(bits, name), theirs)


@pytest.mark.parametrize("name", [name for name in THEIRS if name != "ue8m0"])
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_rounding_to_nearest_even_is_the_same(name: str, values: list[float]) -> None:
    """Within the range of finite numbers: PTX and ml-dtypes say other things of what is larger."""
    form = formats.FORMATS[name]
    exact = np.clip(np.array(values), -form.largest, form.largest)
    theirs = exact.astype(THEIRS[name]).astype(np.float64)
    np.testing.assert_array_equal(formats.decode(formats.encode(exact, name), name), theirs)


@given(values=st.lists(st.floats(width=32), min_size=1))
def test_bf16_as_it_is_stored_is_the_same(values: list[float]) -> None:
    stored = DTYPES["bf16"].encode(np.array(values, np.float32))
    theirs = np.array(values, np.float32).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(DTYPES["bf16"].decode(stored), theirs.astype(np.float64))
