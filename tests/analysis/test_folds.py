"""Errors over folds: those of a mean are known; those of a rate are tried."""

from dataclasses import dataclass

import numpy as np
import pytest

from analysis.chains import chains
from analysis.folds import Folds
from analysis.lattice import all_subsets, diagnose
from analysis.statistics import Estimate


@dataclass(frozen=True)
class Statistic:
    """One of each kind of field."""

    mean: float
    each: np.ndarray
    known: Estimate
    count: int
    nothing: None


def statistic(values):
    return Statistic(float(values.mean()), values, Estimate(values.mean(), 3.0, 5), 7, None)


def test_the_mean_is_over_examples():
    folds = Folds(np.array([[1.0, 2.0], [4.0, 8.0]]), np.array([3.0, 1.0]))
    np.testing.assert_allclose(folds.mean, [1.75, 3.5])


def test_errors_of_means_are_the_textbooks_and_add_to_errors_of_their_own():
    values = np.random.default_rng(0).normal(size=(10, 4))
    found = Folds(values, np.full(10, 6.0)).estimates(statistic)
    assert found.keys() == {"mean", "each", "known"}  # numbers that could be others
    by_fold = values.std(0, ddof=1) / np.sqrt(10)
    np.testing.assert_allclose(found["each"].error, by_fold, rtol=1e-12)
    of_mean = values.mean(1).std(ddof=1) / np.sqrt(10)
    np.testing.assert_allclose(found["mean"].error, of_mean, rtol=1e-12)
    np.testing.assert_allclose(found["known"].error, np.hypot(of_mean, 3), rtol=1e-12)
    assert [found[name].freedom for name in ("mean", "each", "known")] == [9, 9, 5]
    np.testing.assert_allclose(found["each"].value, values.mean(0), rtol=1e-12)


def test_leaving_out_a_fold_leaves_the_mean_of_the_others():
    seen = []

    def spy(values):
        seen.append(values)
        return statistic(values)

    Folds(np.array([[1.0], [4.0], [10.0]]), np.array([3.0, 1.0, 2.0])).estimates(spy)
    np.testing.assert_allclose(np.concatenate(seen)[:3], [24 / 3, 23 / 5, 7 / 4])


@pytest.mark.parametrize("sampled", [False, True])
def test_intervals_cover_the_truth(sampled):
    """A function of five members on 20 folds with noise, 200 times; 95 % are promised."""
    rng = np.random.default_rng(0)
    subsets = all_subsets(5)
    truth = np.sqrt(subsets @ rng.uniform(0.3, 1, 5)) + 0.02 * rng.normal(size=32)
    drawn = chains(5, permutations=40, squares=500)
    read, at = (drawn.read, drawn.subsets @ (1 << np.arange(5))) if sampled else (diagnose, np.arange(32))
    names = ("violation_rate", "shapley", "depth_values")
    covered = {name: [] for name in names}
    for _ in range(200):
        noise = 0.2 * rng.normal(size=(20, 5)) @ subsets.T + 0.02 * rng.normal(size=(20, 32))
        found = Folds((truth + noise)[:, at], np.ones(20)).estimates(read)
        for name in names:
            low, high = found[name].interval()
            whole = getattr(diagnose(truth), name)
            covered[name].append(((low <= whole) & (whole <= high)).mean())
    for name in names:
        assert np.mean(covered[name]) > 0.9, name
        assert sampled or name == "violation_rate" or np.mean(covered[name]) < 0.98, name


def test_one_fold_has_no_error():
    with pytest.raises(ValueError, match="ask for more folds"):
        Folds(np.zeros((1, 4)), np.ones(1)).estimates(diagnose)
