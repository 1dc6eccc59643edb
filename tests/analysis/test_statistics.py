"""Intervals and families of tests, against explicit formulas, SciPy and simulated coverage."""

import numpy as np
import pytest
from scipy import stats

from analysis.statistics import Estimate, clustered_mean, holm, mean_of, pooled, regression
from jaxlayers.refusal import Refusal


def test_the_interval_of_a_mean_is_students():
    values = np.random.default_rng(0).normal(size=7)
    low, high = stats.t.interval(0.95, 6, values.mean(), stats.sem(values))
    found = clustered_mean(values, np.arange(7))
    np.testing.assert_allclose((found.low, found.high), (low, high), rtol=1e-12)
    assert found.p_value(0.3) == pytest.approx(stats.ttest_1samp(values, 0.3).pvalue, rel=1e-12)


def test_an_end_of_the_interval_is_the_null_at_the_level_of_the_p_value():
    estimate = Estimate(0.4, 0.3, 5)
    assert estimate.interval(estimate.p_value(1.0))[1] == pytest.approx(1.0, rel=1e-9)
    assert estimate.interval(estimate.p_value(0.1))[0] == pytest.approx(0.1, rel=1e-9)


def test_without_an_error_a_number_is_what_it_is():
    assert Estimate(0.4, 0.0, 5).p_value(0.4) == 1
    assert Estimate(0.4, 0.0, 5).p_value(0.5) == 0
    assert Estimate(0.4, 0.0, 5).interval() == (0.4, 0.4)


def test_examples_of_a_group_count_as_one_where_they_are_equal():
    values = np.random.default_rng(0).normal(size=9)
    apart = clustered_mean(values, np.arange(9))
    together = clustered_mean(values.repeat(5), np.arange(9).repeat(5))
    assert together.error == pytest.approx(float(apart.error), rel=1e-12)
    assert together.freedom == apart.freedom


def test_a_mean_over_unequal_groups_has_the_error_that_drawing_groups_shows():
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(60), random.integers(1, 9, 60))
    values = random.normal(size=60)[group] + random.normal(size=len(group))
    means = []
    for _ in range(4000):
        counts = np.bincount(random.integers(0, 60, 60), minlength=60)[group]
        means.append(counts @ values / counts.sum())
    assert clustered_mean(values, group).error == pytest.approx(np.std(means), rel=0.06)


def test_one_group_tells_nothing_of_the_error():
    found = clustered_mean(np.arange(4.0), np.zeros(4, int))
    assert found.p_value(100.0) == 1


def test_holm_by_hand():
    """The smallest two pass .05/4 and .05/3; .03 fails at .05/2, and .04 with it."""
    found = holm([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(found.adjusted, [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(found.level, [0.05 / 3, 0.05 / 2, 0.05 / 2, 0.05 / 4])
    assert len(holm([]).adjusted) == 0


def test_holms_rejections_are_those_of_the_intervals_at_its_levels():
    random = np.random.default_rng(0)
    for _ in range(300):
        family = [Estimate(random.normal(), 0.4, 6) for _ in range(5)]
        adjusted, level = holm([estimate.p_value() for estimate in family])
        for estimate, p, at in zip(family, adjusted, level, strict=True):
            low, high = estimate.interval(at)
            assert (low > 0 or high < 0) == (p <= 0.05)


def test_regression_is_least_squares_and_its_error_the_explicit_jackknife():
    random = np.random.default_rng(0)
    cluster = np.repeat(np.arange(8), 3)
    design = np.column_stack([np.ones(24), random.normal(size=(24, 2))])
    outcome = design @ [1, 2, -1] + random.normal(size=24)
    found = regression(outcome, design, cluster)
    np.testing.assert_allclose(found.value, np.linalg.lstsq(design, outcome)[0], rtol=1e-12)
    without = [np.linalg.lstsq(design[cluster != c], outcome[cluster != c])[0] for c in range(8)]
    error = np.sqrt(7 / 8 * ((without - np.mean(without, 0)) ** 2).sum(0))
    np.testing.assert_allclose(found.error, error, rtol=1e-10)
    assert found.freedom == 5


def test_regression_refuses_what_does_not_determine_it():
    design = np.column_stack([np.ones(4), np.arange(4.0)])
    with pytest.raises(Refusal, match="do not determine"):
        regression(np.arange(4.0), design, np.array([0, 0, 1, 1]))
    with pytest.raises(Refusal, match="do not vary"):
        regression(np.arange(4.0), np.column_stack([np.ones(4), [0.0, 0, 0, 1]]), np.arange(4))


def test_the_mean_of_independent_numbers_has_welchs_freedom():
    a, b = np.array([1.0, 2, 4]), np.array([0.0, 3, 1, 5, 2])
    parts = [Estimate(x.mean(), stats.sem(x), len(x) - 1) for x in (a, -b)]
    test = stats.ttest_ind(a, b, equal_var=False)
    assert mean_of(parts).freedom == pytest.approx(test.df, rel=1e-12)
    assert mean_of(parts).p_value() == pytest.approx(test.pvalue, rel=1e-12)


def pool(values, error):
    seeds, depths = values.shape
    places = [(seed, depth) for seed in range(seeds) for depth in range(depths)]
    estimates = [Estimate(values[place], error, 99) for place in places]
    return pooled(estimates, ["a"] * len(places), [d for _, d in places], [s for s, _ in places])


def test_pooled_models_differ_by_their_seeds_not_by_their_depths():
    """Without an error of the examples: that of the mean over the seeds, each a mean over the depths."""
    random = np.random.default_rng(0)
    values = random.normal(size=(4, 5)) + 100 * np.arange(5)
    found = pool(values, 0.0)
    assert found.value == pytest.approx(values.mean())
    assert found.error == pytest.approx(stats.sem(values.mean(1)), rel=1e-9)
    assert found.freedom == pytest.approx(3)


def test_a_model_that_is_missing_makes_no_seed_of_its_depth():
    """Seed 0 was not trained at the one depth that differs; that is no difference between the seeds."""
    depths, seeds = [1, 2, 1, 2, 1], [1, 1, 2, 2, 0]
    estimates = [Estimate(float(10 * depth), 0.0, 99) for depth in depths]
    assert pooled(estimates, ["a"] * 5, depths, seeds).error == 0


def test_pooled_models_of_one_seed_have_the_error_of_their_shared_examples():
    found = pool(np.arange(5.0)[None], 0.2)
    assert (found.error, found.freedom) == (pytest.approx(0.2), 99)


def test_pooled_errors_add():
    values = np.array([[0.0], [1.0]])
    assert pool(values, 0.3).error == pytest.approx(np.hypot(0.5, 0.3))
