"""Loss = bias - diversity and what follows from it, against plain float64 NumPy by probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from analysis.decomposition import (
    decompose,
    decompose_evidence,
    hierarchy,
    hierarchy_evidence,
    mean_form,
    prefix_losses,
    weighted_mean,
)
from analysis.seeds import across_seeds

RNG = np.random.default_rng


def random(members=5, examples=7, classes=4, scale=3.0, seed=0):
    rng = RNG(seed)
    weights = rng.dirichlet(np.ones(members))
    return (
        rng.normal(size=(members, examples, classes)) * scale,
        rng.integers(0, classes, examples),
        weights,
    )


def log_softmax(z):
    top = z.max(-1, keepdims=True)
    return z - top - np.log(np.exp(z - top).sum(-1, keepdims=True))


def reference(f, labels, weights, loss):
    """Ensemble loss, member losses and divergences, from the definitions."""
    z = np.einsum("k,knc->nc", weights, f)
    n = np.arange(len(labels))
    if loss == "cross_entropy":
        p, q = log_softmax(z), log_softmax(f)
        return -p[n, labels], -q[:, n, labels], (np.exp(p) * (p - q)).sum(-1)
    t = np.eye(f.shape[2])[labels]
    return ((z - t) ** 2).mean(-1), ((f - t) ** 2).mean(-1), ((f - z) ** 2).mean(-1)


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
@pytest.mark.parametrize(("members", "classes"), [(1, 2), (5, 4), (18, 700)])
def test_terms_are_their_definitions_and_sum_exactly(float64, loss, members, classes):
    f, labels, weights = random(members, 33, classes)
    found = decompose(f, labels, loss, weights)
    ensemble, member, divergence = reference(f, labels, weights, loss)
    np.testing.assert_allclose(found.ensemble_loss, ensemble, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(found.member_loss, member, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(found.member_diversity, divergence, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.bias, weights @ member, rtol=1e-12)
    scale = 1 + np.abs(found.bias)
    assert np.max(np.abs(found.residual) / scale) < 1e-12


def test_float32_keeps_the_identity_to_its_rounding():
    f, labels, weights = random(7, 50, 30)
    found = decompose(f.astype(np.float32), labels, "cross_entropy", weights)
    assert np.max(np.abs(found.residual) / (1 + np.abs(found.bias))) < 1e-5
    np.testing.assert_allclose(
        found.ensemble_loss, reference(f, labels, weights, "cross_entropy")[0], rtol=1e-5, atol=1e-5
    )


logits = arrays(np.float64, (3, 2, 4), elements=st.floats(-1e4, 1e4, allow_nan=False, allow_infinity=False))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(f=logits, labels=arrays(np.int64, 2, elements=st.integers(0, 3)))
def test_consequences_for_any_logits_up_to_ten_thousand(f, labels):
    """0 ≤ diversity ≤ bias, the identity, and no overflow."""
    with jax.enable_x64(True):
        for loss in ("cross_entropy", "squared"):
            found = decompose(f, labels, loss)
            slack = 1e-11 * (1 + np.abs(np.asarray(found.bias)))
            assert np.all(np.asarray(found.diversity) >= 0)
            assert np.all(np.asarray(found.diversity) <= np.asarray(found.bias) + slack)
            assert np.all(np.abs(np.asarray(found.residual)) <= slack)


def test_fifty_thousand_classes(float64):
    f, labels, weights = random(3, 4, 50_000)
    found = decompose(f, labels, "cross_entropy", weights)
    ensemble, _, divergence = reference(f, labels, weights, "cross_entropy")
    np.testing.assert_allclose(found.ensemble_loss, ensemble, rtol=1e-12)
    np.testing.assert_allclose(found.member_diversity, divergence, rtol=1e-10)
    assert np.max(np.abs(found.residual)) < 1e-11


def test_equal_members_have_no_diversity_and_order_is_of_no_account(float64):
    f, labels, weights = random()
    same = decompose(np.stack([f[0]] * 4), labels)
    assert np.max(np.abs(same.diversity)) < 1e-14
    order = np.array([3, 1, 4, 0, 2])
    a, b = decompose(f, labels, weights=weights), decompose(f[order], labels, weights=weights[order])
    np.testing.assert_allclose(a.bias, b.bias, rtol=1e-13)
    np.testing.assert_allclose(a.member_diversity[order], b.member_diversity, rtol=1e-12)


def test_rounding_makes_no_diversity_negative():
    f, labels, _ = random(1, 2000, 3, scale=30.0)
    nearly = f + 1e-7 * RNG(1).normal(size=(3, 1, 1))
    assert np.min(decompose(nearly.astype(np.float32), labels).member_diversity) >= 0


def test_large_terms_are_summed_as_if_in_double_precision():
    """Bias and diversity are large and their difference is small: 4,000 members, each about 1e4."""
    terms = RNG(0).normal(1e4, 3e3, (4000, 5)).astype(np.float32)
    weights = np.full(4000, 2**-12, np.float32)
    exact = (weights[:, None].astype(float) * terms).sum(0)
    assert np.max(np.abs(weighted_mean(jnp.asarray(weights), jnp.asarray(terms)) / exact - 1)) < 2**-23


def test_the_lowest_of_equal_classes_is_chosen_whatever_block_it_is_in():
    f = np.zeros((1, 3, 2000), np.float32)
    for n, tied in enumerate([(7, 1500), (600, 1999), (0, 513)]):
        f[0, n, tied] = 1.0
    assert decompose(f, np.array([7, 600, 0]), "zero_one").ensemble_loss.sum() == 0


def test_a_gauge_moves_bias_and_diversity_alike(float64):
    """What is added to one member and taken from another leaves the loss alone."""
    f, labels, _ = random()
    moved = f.copy()
    shift = RNG(1).normal(size=f.shape[1:])
    moved[0], moved[1] = f[0] + shift, f[1] - shift
    a, b = decompose(f, labels), decompose(moved, labels)
    np.testing.assert_allclose(a.ensemble_loss, b.ensemble_loss, rtol=1e-12)
    np.testing.assert_allclose(b.bias - a.bias, b.diversity - a.diversity, rtol=1e-9)
    assert np.abs(b.bias - a.bias).min() > 1e-3


def test_mean_form_has_the_logits_as_its_mean(float64):
    f, _, weights = random()
    bias = RNG(2).normal(size=4)
    members = mean_form(f, bias, weights)
    np.testing.assert_allclose(np.einsum("k,knc->nc", weights, members), f.sum(0) + bias, rtol=1e-12)


def test_zero_one_by_argmax_and_by_vote():
    """Three members, two classes: the vote is 0, the mean of logits 1; a tie goes to the lowest class."""
    f = np.array([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 9.0]]])
    labels = np.array([0])
    argmax, vote = decompose(f, labels, "zero_one"), decompose(f, labels, "majority_vote")
    assert argmax.ensemble_loss[0] == 1
    assert vote.ensemble_loss[0] == 0
    np.testing.assert_array_equal(argmax.member_loss[:, 0], [0, 0, 1])
    np.testing.assert_allclose(argmax.diversity, [1 / 3 - 1], rtol=1e-6)  # negative: it depends on the label
    np.testing.assert_allclose(vote.diversity, [1 / 3], rtol=1e-6)
    tie = decompose(f[[0, 2]], labels, "majority_vote")
    assert tie.ensemble_loss[0] == 0


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
def test_diversity_splits_at_any_partition(float64, loss):
    f, labels, weights = random(6)
    groups = [0, 1, 1, 2, 2, 2]
    found = hierarchy(f, labels, groups, loss, weights)
    whole = decompose(f, labels, loss, weights)
    np.testing.assert_allclose(
        found.weights @ found.within + found.groups.diversity, whole.diversity, rtol=1e-11
    )
    inside = decompose(f[1:3], labels, loss, weights[1:3] / weights[1:3].sum())
    np.testing.assert_allclose(found.within[1], inside.diversity, rtol=1e-10)
    np.testing.assert_allclose(found.groups.ensemble_loss, whole.ensemble_loss, rtol=1e-11)


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
def test_across_seeds_the_terms_sum_to_the_expected_loss(float64, loss):
    f = RNG(5).normal(size=(4, 3, 6, 5)) * 2
    labels = RNG(6).integers(0, 5, 6)
    found = across_seeds(f, labels, loss)
    single = [decompose(copy, labels, loss) for copy in f]
    np.testing.assert_allclose(found.loss, np.mean([s.ensemble_loss for s in single], 0), rtol=1e-11)
    np.testing.assert_allclose(found.diversity, np.mean([s.diversity for s in single], 0), rtol=1e-10)
    np.testing.assert_allclose(
        found.loss, found.noise + found.bias + found.variance - found.diversity, rtol=1e-10
    )
    np.testing.assert_allclose(
        found.loss, found.noise + found.ensemble_bias + found.ensemble_variance, rtol=1e-10
    )
    if loss == "squared":  # the variance of the ensemble's copies, computed plainly
        np.testing.assert_allclose(found.ensemble_variance, f.mean(1).var(0).mean(-1), rtol=1e-10)


@pytest.mark.parametrize("budget", [1 << 12, 1 << 29])
def test_a_model_is_taken_apart_as_its_arrays_are(float64, planted, budget):
    """Streamed in any budget: the same as from all members' logits at once."""
    evidence = planted(2, 0)
    logits = np.stack([evidence.member_logits(k) for k in range(5)]).astype(np.float64)
    arrays = decompose(mean_form(logits, evidence.bias), evidence.labels)
    found = decompose_evidence(evidence, budget=budget)
    np.testing.assert_allclose(found.bias, arrays.bias, rtol=1e-5)
    np.testing.assert_allclose(found.member_diversity, arrays.member_diversity, rtol=1e-4, atol=1e-5)
    assert np.max(np.abs(found.residual) / (1 + np.abs(found.bias))) < 1e-12
    blocks = hierarchy_evidence(evidence, budget=budget)
    np.testing.assert_allclose(
        blocks.weights @ blocks.within + blocks.groups.diversity, found.diversity, rtol=1e-11
    )
    lens = prefix_losses(evidence, budget)
    z = np.concatenate([part for _, part in evidence.logits()])
    np.testing.assert_allclose(
        lens[-1], -log_softmax(z)[np.arange(64), evidence.labels], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(targets=np.array([0, 4, 0, 0, 0, 0, 0])), "4"),
        (dict(weights=np.array([0.5, 0.5, 0.5, 0, 0])), "sum to 1"),
        (dict(weights=np.array([1.5, -0.5, 0, 0, 0])), "zero or more"),
        (dict(member_logits=np.full((5, 7, 4), np.nan)), "member_logits"),
        (dict(member_logits=np.full((5, 7, 4), np.inf)), "member_logits"),
    ],
)
def test_unusable_arguments_are_named(change, words):
    f, labels, weights = random()
    arguments = dict(member_logits=jnp.asarray(f), targets=labels, loss="cross_entropy", weights=weights)
    with pytest.raises(ValueError, match=words):
        decompose(**{**arguments, **change})
