"""Bounds between entropy and error, against cases where they are known exactly."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.bounds import fano_bound, hellman_raviv_bound


def entropy(*p):
    p = np.array([x for x in p if x > 0])
    return -(p * np.log(p)).sum()


@pytest.mark.usefixtures("float64")
@settings(max_examples=50, deadline=None, derandomize=True)
@given(classes=st.integers(2, 1000), share=st.floats(1e-6, 0.999))
def test_a_decision_whose_errors_are_spread_evenly_meets_fanos_bound(classes, share):
    error = share * (1 - 1 / classes)
    h = entropy(1 - error, *[error / (classes - 1)] * (classes - 1))
    # near its top the entropy is flat: an error of 1e-16 in it is one of 1e-8 in e
    assert fano_bound(jnp.asarray(h), classes) == pytest.approx(error, rel=1e-9, abs=1e-8 * (share > 0.9))


@pytest.mark.parametrize("classes", [2, 3, 50_000])
def test_the_ends_of_fanos_bound(classes):
    assert fano_bound(jnp.asarray(0.0), classes) == 0
    assert fano_bound(jnp.asarray(-1e-3), classes) == 0
    assert fano_bound(jnp.asarray(np.log(classes) + 1), classes) == pytest.approx(1 - 1 / classes, rel=1e-6)


@pytest.mark.usefixtures("float64")
@settings(max_examples=50, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**16), classes=st.integers(2, 6))
def test_the_best_decision_errs_between_the_two_bounds(seed, classes):
    p = np.random.default_rng(seed).dirichlet(np.full(4 * classes, 0.3)).reshape(4, classes)  # O, Y
    error = 1 - p.max(1).sum()
    decision = np.zeros((classes, classes))  # Ŷ, Y
    for row in p:
        decision[row.argmax()] += row
    h = entropy(*decision.ravel()) - entropy(*decision.sum(1))
    h_best = entropy(*p.ravel()) - entropy(*p.sum(1))
    assert fano_bound(jnp.asarray(h), classes) <= error + 1e-12
    assert error <= hellman_raviv_bound(jnp.asarray(h_best)) + 1e-12


def test_hellman_raviv_is_tight_where_one_of_two_is_as_likely_as_the_other():
    assert hellman_raviv_bound(jnp.asarray(np.log(2))) == pytest.approx(0.5)
