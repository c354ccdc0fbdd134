"""The arithmetic of the statistics, each piece against its definition: summaries, block lengths, Student's t,
the bootstrap, pooled rounds and decisions. Their promises on streams of samples are in test_stats.
"""

from __future__ import annotations

import itertools
import math
import warnings
from statistics import NormalDist, median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bench import stats
from harness.bench.stats import FAST, INCONCLUSIVE, SAME, SLOW, Interval, decide

# ---- summaries ---------------------------------------------------------------------------------------


def test_a_summary_by_hand() -> None:
    found = stats.summarize([4.0, 1.0, 3.0, 2.0, 10.0])
    assert (found.samples, found.minimum, found.maximum) == (5, 1.0, 10.0)
    assert (found.median, found.mean) == (3.0, 4.0)
    assert found.noise == pytest.approx((4 - 2) / 3)
    assert found.stdev == pytest.approx(math.sqrt((0 + 9 + 1 + 4 + 36) / 4) / 4)
    assert all(type(x) is float for x in (found.median, found.mean, found.noise, found.stdev, found.minimum))


def test_summaries_of_next_to_nothing() -> None:
    one, two = stats.summarize([2]), stats.summarize([1.0, 3.0])
    assert (one.samples, one.median, one.noise, one.stdev) == (1, 2.0, 0.0, 0.0)
    assert two.stdev == pytest.approx(math.sqrt(2) / 2) and two.noise == pytest.approx(0.5)
    none = stats.summarize([0.0, 0.0, 0.0])  # below the clock's resolution: no 0 / 0
    assert (none.noise, none.stdev, none.mean) == (0.0, 0.0, 0.0)
    small = stats.summarize([0.1, 0.2, 0.9])  # times of less than a second, of which there are most
    assert small.noise == pytest.approx(2.0) and small.stdev == pytest.approx(math.sqrt(0.19) / 0.4)
    with pytest.raises(ValueError, match=r"^no samples to summarize$"):
        stats.summarize([])


def test_the_inverse_of_a_ratio() -> None:
    interval = Interval(low=0.8, estimate=1.0, high=1.25)
    assert interval.half_width == pytest.approx(0.225)
    assert interval.inverse == Interval(low=0.8, estimate=1.0, high=1.25)
    lopsided = Interval(low=2.0, estimate=4.0, high=5.0)
    assert lopsided.inverse == Interval(low=0.2, estimate=0.25, high=0.5)


# ---- how many neighbours belong together ------------------------------------------------------------


def by_the_paper(series: list[float]) -> int:
    """Choose the block length as Politis and White write it, with sums over single lags.

    R(k) are autocovariances; m is the first lag after which K of them in a row lie within 2 sqrt(log10(n)/n);
    M = 2m; lambda(t) is 1 to 1/2 and falls to 0 at 1; G = sum lambda(k/M) |k| R(k) and D = 4/3 g(0)^2 with
    g(0) = sum lambda(k/M) R(k), over k from -M to M; the length is (2 G^2 n / D)^(1/3).
    """
    n = len(series)
    if n < 8:
        return 1
    middle = math.fsum(series) / n

    def covariance(k: int) -> float:
        return math.fsum((series[i] - middle) * (series[i + k] - middle) for i in range(n - k)) / n

    zero = covariance(0)
    if zero <= 0:
        return 1
    most = min(n - 1, math.ceil(n**0.5) + 5)
    run = max(5, math.ceil(math.log10(n) ** 0.5))
    band = 2 * math.sqrt(math.log10(n) / n)
    small = [abs(covariance(k) / zero) <= band for k in range(1, most + 1)]
    m = next((lag for lag in range(most) if all(small[lag : lag + run])), most)
    if m == 0:
        return 1
    window = {k: min(1.0, max(0.0, 2 * (1 - k / (2 * m)))) for k in range(1, min(2 * m, most) + 1)}
    big_g = 2 * math.fsum(weight * k * covariance(k) for k, weight in window.items())
    at_zero = zero + 2 * math.fsum(weight * covariance(k) for k, weight in window.items())
    if at_zero <= 0:
        return 1
    length = math.ceil((2 * big_g**2 * n / (4 / 3 * at_zero**2)) ** (1 / 3))
    return max(1, min(length, n // 4))


def moving_average(n: int, width: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=n + width - 1)
    return 5 + np.convolve(noise, np.ones(width), mode="valid")


def wave(n: int, phi: float, seed: int) -> np.ndarray:
    """An autoregressive series; a negative `phi` makes neighbours alternate."""
    rng, x = np.random.default_rng(seed), np.zeros(n)
    for i in range(1, n):
        x[i] = phi * x[i - 1] + rng.normal()
    return x


@pytest.mark.parametrize("n", [8, 9, 12, 20, 37, 64, 100, 150])
def test_block_length_as_the_paper_has_it(n: int) -> None:
    series = [wave(n, phi, seed) for phi in (-0.8, -0.3, 0.3, 0.6, 0.9, 0.99) for seed in range(4)]
    series += [moving_average(n, width, 7) for width in (1, 2, 3, 5, 8)]
    series += [np.arange(n, dtype=float), np.arange(n) % 2.0, np.arange(n) // 2 % 2.0]
    found = [stats.block_length(s) for s in series]
    assert found == [by_the_paper(s.tolist()) for s in series]
    assert n < 20 or len(set(found)) >= 3  # the control: they are not all alike


def test_block_lengths_of_short_series() -> None:
    """All lags count, the last of them too; a length of 1 although neighbours are correlated."""
    for n in (8, 9, 11, 14, 30):
        noise = np.random.default_rng(n).normal(size=(300, n))
        series = [*noise[:100], *noise[100:200].cumsum(axis=1), *(noise[200:] * (-1) ** np.arange(n) + 3)]
        series += [x + 3 * np.cos(np.pi * np.arange(n) / k) for k in (1, 2, 3, 4) for x in noise[:20]]
        assert [stats.block_length(s) for s in series] == [by_the_paper(s.tolist()) for s in series]


def test_a_series_that_does_not_vary_divides_by_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [stats.block_length(np.full(n, 3.0)) for n in (2, 7, 8, 50)] == [1, 1, 1, 1]


def test_block_length_is_a_quarter_at_most_and_one_at_least() -> None:
    assert [stats.block_length(np.arange(n, dtype=float)) for n in (7, 8, 40)] == [1, 1, 10]
    assert stats.block_length(np.full(20, 3.0)) == 1


# ---- Student's t and the normal ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [
        (3, 3.1824463), (4, 2.7764451), (5, 2.5705818), (6, 2.4469119), (8, 2.3060041), (10, 2.2281389),
        (15, 2.1314495), (20, 2.0859634),
    ],
)  # fmt: skip
def test_student_t_is_short_of_the_printed_tables_by_the_next_term(freedom: int, quantile: float) -> None:
    """The expansion in 1 / freedom is cut after its third power. The fourth's coefficient is 1.571 at this
    quantile (Abramowitz and Stegun, 26.7.5), and the fifth's near 1.
    """
    missing = (quantile - stats.student_t(freedom)) * freedom**4
    assert missing == pytest.approx(1.571 + 1 / freedom, abs=0.03)


def test_student_t_where_it_is_exact() -> None:
    assert stats.student_t(1) == pytest.approx(12.7062047, rel=1e-8)
    assert stats.student_t(2) == pytest.approx(4.3026527, rel=1e-8)
    assert stats.student_t(63) == pytest.approx(1.9983405, rel=1e-7)


def test_student_t_between_whole_degrees_of_freedom() -> None:
    """Series of few blocks have such: at most as wide as for one, and ever narrower."""
    below_one = stats.student_t(0.5)
    assert below_one == stats.student_t(1)
    found = [stats.student_t(f) for f in (1.0, 2.0, 3.0, 3.5, 5.0, 1e9)]
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(NormalDist().inv_cdf(0.975), rel=1e-7)
    assert stats.student_t(1.5) == pytest.approx(4.3026527)  # as for 2, the nearest that is exact


# ---- location and resampling -------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_the_location_is_the_mean_without_a_fifth_at_either_end(values: list[float]) -> None:
    cut = len(values) // 5
    kept = sorted(values)[cut : len(values) - cut]
    found = stats._location(np.array([values, values[::-1]]))
    assert found.tolist() == pytest.approx([math.fsum(kept) / len(kept)] * 2, rel=1e-9, abs=1e-6)


def test_chunks_are_neighbours_and_at_most_64() -> None:
    samples = np.random.default_rng(0).uniform(1, 2, 200)
    found = stats._chunk_medians(samples.tolist())
    assert len(found) == 64
    parts = [list(part) for part in np.array_split(samples, 64)]
    assert found.tolist() == [median(part) for part in parts]
    assert stats._chunk_medians([3, 1, 2]).tolist() == [3.0, 1.0, 2.0]


def spread(series: np.ndarray) -> float:
    return float(np.std(stats._deviations(series, 1)))


def test_resampling_is_centred_and_as_wide_as_the_mean_is_uncertain() -> None:
    """White noise: the deviations have the standard error of a 20% trimmed mean of normal data, 1.06 to 1.1
    times sigma / sqrt(n), widened by Student's t over the normal and sqrt(n / (n - 1)).
    """
    for n in (16, 50, 400):
        widths = []
        for seed in range(12):
            series = np.random.default_rng(seed).normal(size=n)
            deviations = stats._deviations(series, seed)
            assert deviations.shape == (2000,)
            assert abs(deviations.mean()) < 0.2 * deviations.std() + 0.05
            widths.append(float(deviations.std()) * math.sqrt(n))
        widen = stats.student_t(n - 1) / NormalDist().inv_cdf(0.975) * math.sqrt(n / (n - 1))
        assert float(np.mean(widths)) == pytest.approx(1.08 * widen, rel=0.12), n


def test_few_blocks_are_widened_by_their_own_degrees_of_freedom() -> None:
    """Two values: m = 2 blocks, t of 1 degree of freedom and sqrt(2 / 1), over the means of draws of two."""
    widen = stats.student_t(1) / NormalDist().inv_cdf(0.975) * math.sqrt(2)
    found = stats._deviations(np.array([1.0, 3.0]), 0)
    np.testing.assert_allclose(sorted(set(np.round(found / widen, 9))), [-1.0, 0.0, 1.0])
    assert 0.4 < np.mean(found == 0) < 0.6 and 0.2 < np.mean(found > 0) < 0.3


def test_neighbours_are_drawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4 of 8, in a circle: each draw is of two runs, so of these values as many at most."""
    monkeypatch.setattr(stats, "block_length", lambda _series: 4)
    monkeypatch.setattr(stats, "_location", lambda values: values.sum(axis=-1))
    series = 10.0 ** np.arange(8)
    widen = stats.student_t(1) / NormalDist().inv_cdf(0.975) * math.sqrt(2)
    runs = [float(sum(series[(start + i) % 8] for i in range(4))) for start in range(8)]
    sums = np.unique([a + b for a, b in itertools.product(runs, runs)])
    draws = np.unique(np.round(stats._deviations(series, 3) / widen + series.sum()))
    np.testing.assert_array_equal(draws, sums)


def test_a_length_that_does_not_divide_cuts_the_last_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 values in blocks of 3: two whole runs and one value of a third, and m = 7 / 3 for the widening."""
    monkeypatch.setattr(stats, "block_length", lambda _series: 3)
    monkeypatch.setattr(stats, "_location", lambda values: values.sum(axis=-1))
    found = stats._deviations(np.ones(7), 3)
    np.testing.assert_array_equal(found, np.zeros(2000))  # always seven of them
    series = np.array([1.0, 0, 0, 0, 0, 0, 0])
    m = 7 / 3
    widen = stats.student_t(m - 1) / NormalDist().inv_cdf(0.975) * math.sqrt(m / (m - 1))
    counts = np.round(stats._deviations(series, 3) / widen + 1, 6)
    assert set(counts) == {0.0, 1.0, 2.0, 3.0}


# ---- intervals ---------------------------------------------------------------------------------------


def test_an_interval_holds_the_middle_of_the_deviations_and_its_estimate() -> None:
    found = stats._interval(math.log(2), np.linspace(-1, 1, 2001))
    assert found.estimate == pytest.approx(2)
    assert found.low == pytest.approx(2 * math.exp(-0.95)) and found.high == pytest.approx(2 * math.exp(0.95))
    above = stats._interval(0.0, np.linspace(1, 2, 101))  # all on one side: the estimate is the other end
    assert (above.low, above.estimate) == (1.0, 1.0) and above.high == pytest.approx(math.exp(1.975))
    below = stats._interval(0.0, np.linspace(-2, -1, 101))
    assert (below.estimate, below.high) == (1.0, 1.0) and below.low == pytest.approx(math.exp(-1.975))


@settings(max_examples=15, deadline=None)
@given(st.floats(0.2, 5), st.integers(0, 50), st.sampled_from([2, 3, 30, 200]))
def test_ratios_know_no_unit_and_are_candidate_over_baseline(factor: float, seed: int, n: int) -> None:
    a, b = np.exp(0.02 * np.random.default_rng(seed).normal(size=(2, n)))
    for ratio in (stats.paired_ratio, stats.unpaired_ratio):
        plain, scaled = ratio(a, b, seed=seed), ratio(factor * a, b, seed=seed)
        assert plain is not None and scaled is not None
        assert scaled.low <= scaled.estimate <= scaled.high
        for end in ("low", "estimate", "high"):
            assert getattr(scaled, end) == pytest.approx(factor * getattr(plain, end), rel=1e-9)
        seconds = ratio(a * 1e-6, b * 1e-6, seed=seed)
        assert seconds is not None and seconds.estimate == pytest.approx(plain.estimate, rel=1e-9)
    paired, apart = stats.paired_ratio(a, b, seed=seed), stats.unpaired_ratio(a, b, seed=seed)
    assert paired is not None and apart is not None
    if n < 5:  # nothing is trimmed, and the mean of differences is the difference of means
        expected = math.exp(np.mean(np.log(a)) - np.mean(np.log(b)))
        assert paired.estimate == pytest.approx(expected) and apart.estimate == pytest.approx(expected)


def test_what_is_common_to_a_pair_cancels() -> None:
    drift = np.exp(np.linspace(0, 1, 40))
    noise = np.exp(0.001 * np.random.default_rng(0).normal(size=(2, 40)))
    paired = stats.paired_ratio(drift * noise[0], drift * noise[1], seed=0)
    apart = stats.unpaired_ratio(drift * noise[0], drift * noise[1], seed=0)
    assert paired is not None and apart is not None
    assert paired.high / paired.low < 1.003 and apart.high / apart.low > 1.2


def test_series_taken_apart_are_resampled_apart() -> None:
    """Both vary, so their ratio is as uncertain as the root of two of them; drawn alike it would not be."""
    series = np.exp(0.01 * np.random.default_rng(4).normal(size=60))
    own = stats.unpaired_ratio(series, series, seed=1)
    alone = stats.unpaired_ratio(series, np.ones(60), seed=1)
    assert own is not None and alone is not None and own.estimate == 1.0
    assert own.half_width == pytest.approx(math.sqrt(2) * alone.half_width, rel=0.1)
    other = stats.unpaired_ratio(np.ones(60), series, seed=1)
    assert other is not None and other.half_width == pytest.approx(alone.half_width, rel=0.15)


def test_a_ratio_turned_round_is_its_inverse() -> None:
    """The interval of skewed samples reaches further to one side; each side has a seed of its own."""
    skewed = np.exp(np.random.default_rng(2).exponential(0.05, size=50) ** 2 * 9)
    over = stats.unpaired_ratio(skewed, np.ones(50), seed=6)
    under = stats.unpaired_ratio(np.ones(50), skewed, seed=5)
    assert over is not None and under is not None
    for end in ("low", "estimate", "high"):
        assert getattr(under, end) == pytest.approx(getattr(over.inverse, end), rel=1e-12)
    assert over.high / over.estimate > 1.003 * over.estimate / over.low


def test_samples_in_single_precision_are_not_rounded_again() -> None:
    neighbours = np.array([1, 1 + 2.0**-23] * 64, np.float32)
    found = stats.summarize(neighbours)
    assert found.median == found.mean == 1 + 2.0**-24
    assert stats._chunk_medians(neighbours).tolist() == [1 + 2.0**-24] * 64


def test_fewer_than_two_say_nothing_and_two_do() -> None:
    assert stats.paired_ratio([1.0], [1.0], seed=0) is stats.paired_ratio([], [], seed=0) is None
    for few in ([1.0], []):
        assert stats.unpaired_ratio(few, [1.0, 2.0], seed=0) is None
        assert stats.unpaired_ratio([1.0, 2.0], few, seed=0) is None
    assert stats.paired_ratio([2, 2], [1, 1], seed=0) == Interval(low=2.0, estimate=2.0, high=2.0)
    assert stats.unpaired_ratio([2, 2], [1, 1], seed=0) == Interval(low=2.0, estimate=2.0, high=2.0)


# ---- rounds ------------------------------------------------------------------------------------------


def around(estimate: float, half: float) -> Interval:
    """An interval, of logarithms `half` to either side."""
    return Interval(low=estimate * math.exp(-half), estimate=estimate, high=estimate * math.exp(half))


def test_rounds_that_differ_widen_the_interval() -> None:
    """Logs 0, 0.1 and 0.2: their mean is 0.1, its standard error 0.1 / sqrt(3), and t(2) is 4.303."""
    found = stats.pooled_ratio([around(math.exp(x), 1e-3) for x in (0.0, 0.1, 0.2)])
    assert found is not None
    half = 4.3026527 * 0.1 / math.sqrt(3)
    for end, expected in ((found.low, 0.1 - half), (found.estimate, 0.1), (found.high, 0.1 + half)):
        assert math.log(end) == pytest.approx(expected, rel=1e-6)


def test_rounds_that_agree_are_no_narrower_than_the_widest() -> None:
    found = stats.pooled_ratio([around(1.5, 0.01), around(1.5, 0.04), around(1.5, 0.02)])
    assert found is not None and found.estimate == pytest.approx(1.5)
    assert math.log(found.high / 1.5) == pytest.approx(0.04) == -math.log(found.low / 1.5)


def test_one_round_is_not_pooled_and_two_are() -> None:
    assert stats.pooled_ratio([]) is stats.pooled_ratio([around(1.0, 0.1)]) is None
    assert stats.pooled_ratio([around(1.0, 0.1)] * 2) is not None


# ---- decisions ---------------------------------------------------------------------------------------


@given(st.floats(0.5, 2), st.floats(0, 0.5), st.floats(0, 0.3))
def test_a_decision_is_where_the_whole_interval_lies(low: float, width: float, threshold: float) -> None:
    interval = Interval(low=low, estimate=low + width / 2, high=low + width)
    top, bottom = 1 + threshold, 1 / (1 + threshold)
    inside = bottom <= interval.low and interval.high <= top
    outside = SLOW if interval.low > top else FAST if interval.high < bottom else INCONCLUSIVE
    assert decide(interval, threshold) == (SAME if inside else outside)


def test_the_threshold_itself_is_the_same() -> None:
    assert decide(Interval(low=0.8, estimate=1, high=1.25), 0.25) == SAME
    assert decide(Interval(low=1.25, estimate=1.25, high=1.25), 0.25) == SAME
    assert decide(Interval(low=0.8, estimate=0.8, high=0.8), 0.25) == SAME
    assert decide(Interval(low=1.25, estimate=1.26, high=1.27), 0.25) == INCONCLUSIVE
    assert decide(Interval(low=0.7, estimate=0.75, high=0.8), 0.25) == INCONCLUSIVE


def test_absurd_times_have_a_ratio_too() -> None:
    """Take times as a damaged file has them: what is beyond a float is its end."""
    tiny, huge = [1e-300, 1.1e-300, 1e-300], [1e300, 1.2e300, 1e300]
    for a, b in ((tiny, huge), (huge, tiny)):
        found = stats.unpaired_ratio(a, b, seed=0)
        assert found is not None and 0 < found.low <= found.estimate <= found.high < math.inf
        assert found.inverse.high < math.inf
