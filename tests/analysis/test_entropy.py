"""Entropies from counts: by their definitions on tables, and against the entropy that made the sample."""

from collections import Counter
from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import digamma

from analysis.entropy import CountEstimator, entropy, joint_information, pattern_ids, surprises

ESTIMATORS = get_args(CountEstimator)
MEAN, EACH = (jax.jit(f, static_argnames="estimator") for f in (entropy, surprises))


def by_definition(counts, estimator):
    """The estimate as its paper writes it: a sum over the observed states."""
    n = np.asarray(counts, float)
    total, p = n.sum(), n / n.sum()
    plugin = -(p * np.log(p)).sum()
    if estimator == "plugin":
        return plugin
    if estimator == "miller_madow":
        return plugin + (len(n) - 1) / (2 * total)
    if estimator == "grassberger":
        g = digamma(n) + (-1.0) ** n / 2 * (digamma((n + 1) / 2) - digamma(n / 2))
        return np.log(total) - (n * g).sum() / total
    coverage = 1 - (n == 1).sum() / total
    return -(coverage * p * np.log(coverage * p) / (1 - (1 - coverage * p) ** total)).sum()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("estimator", ESTIMATORS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**16), states=st.integers(2, 40))
def test_every_estimator_is_its_papers_sum_over_states(estimator, seed, states):
    random = np.random.default_rng(seed)
    sample = random.choice(states, 41, p=random.dirichlet(np.ones(states))) * 7 - 3
    counts = np.unique(sample, return_counts=True)[1]
    assume(1 < len(counts) < 41)
    expected = by_definition(counts, estimator)
    assert MEAN(jnp.asarray(sample), estimator) == pytest.approx(expected, rel=1e-12)
    assert EACH(jnp.asarray(sample), estimator).mean() == pytest.approx(expected, rel=1e-12)


def test_a_surprise_stands_at_its_own_example(float64):
    states = jnp.array([5, 2, 5, 5, 2, 9])
    np.testing.assert_allclose(
        surprises(states, "plugin"), np.log(6 / np.array([3, 2, 3, 3, 2, 1])), rtol=1e-12
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("total", [2, 3, 50])
def test_one_state_has_no_entropy(estimator, total):
    assert entropy(jnp.full(total, 3), estimator) == 0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_sample_of_singletons_has_a_finite_entropy_of_at_least_the_plugin(estimator):
    assert np.log(50) * (1 - 1e-6) <= entropy(jnp.arange(50), estimator) < 20


@pytest.mark.usefixtures("float64")
def test_bias_of_the_corrected_estimators_is_a_fraction_of_the_plugins():
    """A distribution of 30 states, samples from sparse to plenty; the truth is known."""
    random = np.random.default_rng(0)
    p = random.dirichlet(np.ones(30))
    truth = -(p * np.log(p)).sum()
    for examples in (30, 60, 120, 250, 500):
        samples = jnp.asarray(random.choice(30, (2000, examples), p=p))
        bias = {
            name: float(jax.vmap(partial(MEAN, estimator=name))(samples).mean() - truth)
            for name in ESTIMATORS
        }
        assert bias["plugin"] < -0.02
        assert abs(bias["miller_madow"]) < 0.5 * abs(bias["plugin"]), (examples, bias)
        assert abs(bias["grassberger"]) < 0.35 * abs(bias["plugin"]), (examples, bias)
        assert abs(bias["chao_shen"]) < 0.7 * abs(bias["plugin"]), (examples, bias)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    members=st.integers(1, 70), classes=st.sampled_from([2, 3, 4, 257, 50_000]), seed=st.integers(0, 2**16)
)
def test_ids_are_equal_exactly_where_patterns_are(members, classes, seed):
    random = np.random.default_rng(seed)
    distinct = random.integers(0, classes, (members, 6))
    distinct[:, 1] = distinct[:, 0]
    distinct[-1, 1] = (distinct[-1, 0] + 1) % classes  # differs in the last member only
    predictions = distinct[:, random.integers(0, 6, 40)]
    ids = np.asarray(pattern_ids(jnp.asarray(predictions, jnp.int32), classes))
    patterns = list(map(tuple, predictions.T))
    assert len(set(zip(patterns, ids.tolist(), strict=True))) == len(set(patterns)) == len(set(ids.tolist()))
    assert set(ids.tolist()) == set(range(len(set(patterns))))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_joint_information_of_subsets_under_vmap(float64, estimator):
    """The use it was made for: a subset's pattern puts 0 for the members outside it."""
    random = np.random.default_rng(1)
    predictions, labels = random.integers(0, 3, (3, 200)), random.integers(0, 3, 200)
    predictions[0] = np.where(random.random(200) < 0.6, labels, predictions[0])
    subsets = (np.arange(8)[:, None] >> np.arange(3)) & 1 == 1
    given = jnp.asarray(predictions), jnp.asarray(labels)

    def of(subset):
        ids = pattern_ids(jnp.where(subset[:, None], given[0], 0), 3)
        return joint_information(ids, given[1], 3, estimator)

    for subset, value in zip(subsets, jax.vmap(of)(jnp.asarray(subsets)), strict=True):
        patterns = list(zip(*predictions[subset], strict=True)) or [()] * 200
        h = {
            name: by_definition(list(Counter(states).values()), estimator)
            for name, states in {
                "o": patterns,
                "y": labels.tolist(),
                "oy": list(zip(patterns, labels.tolist(), strict=True)),
            }.items()
        }
        h["o"] = h["o"] if subset.any() else 0
        expected = h["o"] + h["y"] - h["oy"] if subset.any() else 0
        assert value == pytest.approx(np.clip(expected, 0, h["y"]), rel=1e-12, abs=1e-14)


def test_joint_information_is_clipped_to_what_there_is_to_know(float64):
    """Each example its own pattern: Chao-Shen's raw value would leave [0, H(Y)], the clipped one does not."""
    labels = jnp.arange(40) % 2
    for estimator in ESTIMATORS:
        value = joint_information(jnp.arange(40), labels, 2, estimator)
        assert 0 <= value <= entropy(labels, estimator)
    alternating = jnp.tile(jnp.arange(2), 20)
    independent = jnp.repeat(jnp.arange(2), 20)
    assert joint_information(independent, alternating, 2, "miller_madow") == 0  # raw: -1/80
