import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels.dtypes import BF16
from harness.problems import verify
from harness.problems.protocol import Reference
from harness.problems.verify import Repeats, Verdict, compare

EXPECTED = np.arange(12, dtype=np.float64).reshape(3, 4) - 5
REFERENCE = Reference(expected=EXPECTED, bound=np.full((3, 4), 0.5))


def output(ld: int = 4) -> np.ndarray:
    out = np.full((3, ld), np.nan, np.float32)
    out[:, :4] = EXPECTED
    return out


def test_right_and_on_the_bound() -> None:
    out = output()
    assert compare(out, REFERENCE).worst == 0
    out[1, 2] += 0.5
    verdict = compare(out, REFERENCE)
    assert verdict.ok and verdict.worst == 1.0 and verdict.max_error == 0.5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.5])
def test_one_bad_element_is_found(value: float) -> None:
    out = output()
    out[2, 1] = value
    verdict = compare(out, REFERENCE)
    assert (verdict.ok, verdict.bad, verdict.first_bad, verdict.expected) == (False, 1, (2, 1), 4.0)
    assert "1 of 12 elements wrong, first at [2,1]" in str(verdict)


def test_untouched_output_never_passes() -> None:
    verdict = compare(np.full((3, 4), np.nan, np.float32), REFERENCE)
    assert verdict.bad == 12 and verdict.worst == math.inf


def test_zeros_never_pass_for_random_data() -> None:
    assert compare(np.zeros((3, 4), np.float32), REFERENCE).bad == 11  # one expected value is 0


def test_nan_in_the_reference_never_passes() -> None:
    expected = EXPECTED.copy()
    expected[0, 0] = np.nan
    assert not compare(output(), Reference(expected=expected, bound=REFERENCE.bound)).ok


def test_padding_must_stay_as_it_was() -> None:
    before = output(6)
    assert compare(before.copy(), REFERENCE, before).ok
    out = before.copy()
    out[1, 5] = 0
    verdict = compare(out, REFERENCE, before)
    assert (verdict.ok, verdict.bad, verdict.stray) == (False, 0, 1)
    assert "1 elements of the padding" in str(verdict)


@pytest.mark.parametrize("index", [(0, 0), (131, 999), (132, 0), (500, 500), (1023, 1023)])
def test_chunks_cover_everything_and_count_from_the_start(index: tuple[int, int]) -> None:
    expected = np.random.default_rng(0).standard_normal((1024, 1024))
    before = np.full((1030, 1100), np.nan, np.float32)
    out = before.copy()
    out[:1024, :1024] = expected
    reference = Reference(expected=expected, bound=np.full(expected.shape, 1e-6))
    assert compare(out, reference, before).ok
    out[index] += 1
    out[1029, 5] = out[700, 1099] = 0
    verdict = compare(out, reference, before)
    assert (verdict.bad, verdict.first_bad, verdict.stray) == (1, index, 2)
    assert verdict.max_error == pytest.approx(1, abs=1e-5) and verdict.worst == pytest.approx(1e6, rel=1e-3)


def test_a_zeroed_tile_of_a_large_result_is_found() -> None:
    """A global similarity score of 0.001 would let this pass."""
    expected = np.random.default_rng(0).standard_normal((1024, 1024)) * 30
    out = expected.astype(np.float32)
    out[512:528, 512:528] = 0
    assert compare(out, Reference(expected=expected, bound=np.full(expected.shape, 1e-4))).bad == 256


SPECIAL = [0.0, -0.0, 1.0, -1.0, 1 + 2.0**-20, 3.0, math.inf, -math.inf, math.nan]


@given(
    cases=st.lists(
        st.tuples(
            st.sampled_from(SPECIAL),
            st.sampled_from(SPECIAL),
            st.sampled_from([0.0, 1e-6, 0.5, 2.0, math.inf, math.nan]),
        ),
        min_size=1,
        max_size=40,
    ),
    chunk=st.sampled_from([1, 7, 100]),
)
def test_special_values_as_a_comparison_one_by_one_has_them(
    cases: list[tuple[float, float, float]], chunk: int
) -> None:
    """In one piece or many, which threads share."""
    got, expected, bound = (np.array(column) for column in zip(*cases, strict=True))
    bad, worst, largest, squares = 0, 0.0, 0.0, 0.0
    for g, e, b in cases:
        error = 0.0 if g == e else abs(np.float64(g) - e)
        right = error <= b
        error = 0.0 if right and math.isinf(b) else error
        share = 0.0 if error == 0 else (error / b if b else math.inf)
        bad += not right
        worst = max(worst, math.inf if math.isnan(share) else share)
        largest = max(largest, math.inf if math.isnan(error) else error)
        squares += error**2
    reference = Reference(expected=expected, bound=bound, rms_bound=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "_CHUNK", chunk)
        verdict = compare(got.astype(np.float32), reference)
    assert (verdict.bad, verdict.worst, verdict.max_error) == (bad, worst, largest)
    rms = math.sqrt(squares / len(cases))
    assert verdict.rms == pytest.approx(math.inf if math.isnan(rms) else rms)


def test_bounds_without_end_beside_bounds_that_are_none() -> None:
    expected, bound = np.array([math.inf, 1.0, 2.0]), np.array([math.inf, math.nan, 1.0])
    verdict = compare(np.array([-math.inf, 1.0, 2.5], np.float32), Reference(expected=expected, bound=bound))
    assert (verdict.bad, verdict.first_bad, verdict.worst, verdict.max_error) == (1, (1,), 0.5, 0.5)


def test_an_output_without_elements() -> None:
    nothing = np.empty((0, 4))
    verdict = compare(nothing.astype(np.float32), Reference(expected=nothing, bound=nothing))
    assert verdict.ok and (verdict.elements, verdict.worst, verdict.max_error) == (0, 0.0, 0.0)


def test_bounds_of_zero_and_infinities_warn_of_nothing() -> None:
    """0 / 0, inf - inf and x / 0 are part of the comparison, not accidents in it."""
    expected, bound = np.array([0.0, math.inf, 1.0, 2.0]), np.array([0.0, 1.0, 0.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdict = compare(
            np.array([0.0, math.inf, 2.0, 2.0], np.float32), Reference(expected=expected, bound=bound)
        )
    assert (verdict.bad, verdict.first_bad, verdict.worst, verdict.bound) == (1, (2,), math.inf, 0.0)


# ---- padding, and the root mean square ---------------------------------------------------------------


@given(
    st.tuples(st.integers(1, 6), st.integers(1, 6)), st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.sampled_from([1, 3, 100]), st.data(),
)  # fmt: skip
def test_every_write_outside_is_counted_and_none_inside(
    shape: tuple[int, int], padding: tuple[int, int], chunk: int, data: st.DataObject
) -> None:
    """Padding of rows, of columns or of both, none of them square."""
    whole = (shape[0] + padding[0], shape[1] + padding[1])
    before = np.arange(whole[0] * whole[1], dtype=np.float32).reshape(whole)
    written = data.draw(st.sets(st.tuples(st.integers(0, whole[0] - 1), st.integers(0, whole[1] - 1))))
    out = before.copy()
    for at in written:
        out[at] += 1
    expected = out[: shape[0], : shape[1]].astype(np.float64)
    reference = Reference(expected=expected, bound=np.zeros(shape))
    outside = sum(row >= shape[0] or column >= shape[1] for row, column in written)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "_CHUNK", chunk)
        found = compare(out, reference, before)
    assert (found.stray, found.bad, found.ok, found.elements) == (outside, 0, not outside, expected.size)
    unwatched = compare(out, reference)
    assert unwatched.ok and unwatched.stray == 0


def test_the_bits_of_the_padding_count_and_not_its_values() -> None:
    before = np.array([[1.0, np.nan, 0.0]], np.float32)
    reference = Reference(expected=np.array([[1.0]]), bound=np.zeros((1, 1)))
    assert compare(before.copy(), reference, before).ok
    assert compare(np.array([[1.0, np.nan, -0.0]], np.float32), reference, before).stray == 1


@pytest.mark.parametrize(
    ("bound", "rms", "ok"), [(0.5, 1.0, True), (0.25, 2.0, False), (1.0, 0.5, True), (0.4, 1.25, False)]
)
def test_the_root_mean_square_of_all_errors_has_a_bound_of_its_own(
    bound: float, rms: float, ok: bool
) -> None:
    """Errors of 0.5 everywhere, all within the bound of their elements."""
    reference = Reference(expected=EXPECTED, bound=np.ones((3, 4)), rms_bound=bound)
    found = compare((EXPECTED + 0.5).astype(np.float32), reference)
    assert (found.rms, found.ok, found.bad, found.worst) == (rms, ok, 0, 0.5)


def test_a_bound_of_zero_on_the_root_mean_square_lets_no_error_pass() -> None:
    reference = Reference(expected=EXPECTED, bound=np.ones((3, 4)), rms_bound=0.0)
    right, wrong = compare(output(), reference), compare((EXPECTED + 0.5).astype(np.float32), reference)
    assert (right.rms, right.ok) == (0.0, True) and (wrong.rms, wrong.ok) == (math.inf, False)
    assert (
        compare((EXPECTED + 0.5).astype(np.float32), Reference(expected=EXPECTED, bound=np.ones((3, 4)))).rms
        == 0
    )


def test_the_bound_that_is_told_is_that_of_the_worst_element() -> None:
    """The worst by its share: 0.25 of 0.5, not 1 of 4; and none where there is no error."""
    bound = np.full((3, 4), 0.5)
    bound[2, 3] = 4.0
    out = output()
    out[2, 3] += 1.0
    out[0, 0] += 0.25
    found = compare(out, Reference(expected=EXPECTED, bound=bound))
    assert (found.worst, found.bound, found.max_error) == (0.5, 0.5, 1.0)
    assert compare(output(), REFERENCE).bound == 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "_CHUNK", 4)  # of equal shares in two parts the first
        out[2, 3] += 1.0
        assert compare(out, Reference(expected=EXPECTED, bound=bound)).bound == 0.5
    nothing = np.empty((0, 4))
    assert compare(nothing.astype(np.float32), Reference(expected=nothing, bound=nothing)).bound == 0.0


def test_the_type_is_told() -> None:
    assert compare(output(), REFERENCE).dtype == "fp32"
    bits = BF16.encode(EXPECTED.astype(np.float32))
    found = compare(bits, Reference(expected=EXPECTED, bound=np.zeros((3, 4)), dtype=BF16))
    assert (found.dtype, found.ok) == ("bf16", True)
    bits[1, 1] ^= 1
    wrong = compare(bits, Reference(expected=EXPECTED, bound=np.zeros((3, 4)), dtype=BF16))
    assert (wrong.first_bad, wrong.expected) == ((1, 1), 0.0) and type(wrong.got) is float


# ---- what a verdict says ---------------------------------------------------------------------------


def verdict(**changes: object) -> str:
    made = {
        "ok": False, "elements": 12, "bad": 0, "stray": 0, "worst": 0.5, "rms": 0.0, "max_error": 1e-3,
        "first_bad": None, "got": None, "expected": None, **changes,
    }  # fmt: skip
    return str(Verdict(**made))  # type: ignore[arg-type]


def test_a_right_result_tells_how_near_it_came() -> None:
    assert verdict(ok=True, rms=0.9) == "ok: worst error 0.50 of the bound, 1.00e-03 absolute"


@pytest.mark.parametrize(
    ("dtype", "cause"),
    [
        ("fp32", "reduced precision, such as TF32?"),
        ("tf32", "inputs truncated, not rounded to nearest?"),
        ("bf16", "rounded more than once, or truncated?"),
    ],
)
def test_errors_that_are_all_too_large_name_the_likely_cause(dtype: str, cause: str) -> None:
    expected = (
        "FAILED: each element within its bound, but the errors' root mean square is 1.5 times what "
        f"{dtype} gives ({cause})"
    )
    assert verdict(rms=1.5, dtype=dtype) == verdict(rms=1.5, dtype=dtype, stray=3) == expected


def test_padding_alone_and_with_wrong_elements() -> None:
    assert verdict(stray=3) == verdict(stray=3, rms=1.0) == "FAILED: 3 elements of the padding were written"
    wrong = {"bad": 2, "first_bad": (1, 3), "got": 0.25, "expected": -1.0, "rms": 9.0}
    text = "FAILED: 2 of 12 elements wrong, first at [1,3]: 0.25 instead of -1"
    assert verdict(**wrong) == text
    assert verdict(**wrong, stray=4) == f"{text}, 4 elements of the padding written"


def test_repeats_count_what_is_equal_and_name_the_first_that_is_not() -> None:
    found = Repeats.of(b"a", [b"a", b"b", b"a", b"c"])
    assert (found.launches, found.equal, found.first, found.ok) == (4, 2, 2, False)
    assert str(found) == (
        "FAILED: not deterministic: launch 2 after the verified one wrote other bits from the same inputs, "
        "as did 2 of 4 in all"
    )
    same = Repeats.of(b"a", iter([b"a"] * 1000))
    assert (same.launches, same.equal, same.first, str(same)) == (1000, 1000, None, "1,000 equal")
    assert Repeats.of(b"a", []) == Repeats(launches=0, equal=0, first=None) and Repeats.of(b"a", []).ok
