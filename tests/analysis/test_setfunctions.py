"""Information and ablation over subsets: distributions whose answer is known, and the model run by hand."""

from itertools import product

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx
from scipy.stats import norm

from analysis.setfunctions import (
    ablation,
    ablation_lattice,
    all_subsets,
    diagnose,
    information,
    information_lattice,
)
from jaxlayers import Decoder, ModelConfig


def entropy(p):
    p = np.asarray(p)[np.asarray(p) > 0]
    return -(p * np.log(p)).sum()


def population(table):
    """I(O_S; Y) in nats for every S, of the distribution table[o_0, .., o_K-1, y]."""
    members = table.ndim - 1
    values = []
    for subset in all_subsets(members):
        marginal = table.sum(tuple(np.flatnonzero(~subset)))
        flat = marginal.reshape(-1, marginal.shape[-1])
        values.append(entropy(flat.sum(1)) + entropy(flat.sum(0)) - entropy(flat))
    return np.array(values)


def channels(prior, rights):
    """Members that, independently of each other given Y, are right with these probabilities, else uniform."""
    classes, table = len(prior), np.array(prior)
    for right in reversed(rights):
        channel = np.full((classes, classes), (1 - right) / (classes - 1))
        np.fill_diagonal(channel, right)
        table = np.einsum("oy,...y->o...y", channel, table)
    return table


def exact_sample(table, size):
    """Examples as frequent as the table says: `size` times each probability must be whole."""
    counts = np.rint(table * size).astype(int)
    np.testing.assert_allclose(counts, table * size, atol=1e-6)
    examples = np.repeat(np.stack([i.ravel() for i in np.indices(table.shape)]), counts.ravel(), axis=1)
    return examples[:-1], examples[-1]


def test_members_independent_given_the_label_are_submodular():
    """The population's values, to rounding (Krause & Guestrin 2005)."""
    found = diagnose(population(channels([0.5, 0.3, 0.2], [0.9, 0.6, 0.7, 0.8, 0.5])))
    assert (found.violation_rate, found.violation_mass, found.nonmonotone_rate) == (0, 0, 0)
    assert found.ratio == 1
    assert found.worst.value < 0
    assert 0 < found.curvature < 1


@pytest.mark.usefixtures("float64")
def test_plugin_values_of_an_exact_sample_are_the_populations():
    table = channels([0.5, 0.5], [0.75, 0.75, 0.5, 1.0])
    values = information_lattice(*exact_sample(table, 2 * 4**2 * 2), 2, "plugin")
    np.testing.assert_allclose(values, population(table), atol=1e-12)
    assert diagnose(values).violation_rate == 0


def test_violations_vanish_in_the_limit():
    """Members independent given the label: what the sample violates is noise, less of it in a larger one."""
    table = channels([0.5, 0.5], [0.8, 0.7, 0.6, 0.75])
    mass = []
    for examples in (100, 1_000, 10_000):
        drawn = np.random.default_rng(0).choice(table.size, examples, p=table.ravel())
        *predictions, labels = np.unravel_index(drawn, table.shape)
        mass.append(diagnose(information_lattice(np.stack(predictions), labels, 2)).violation_mass)
    assert mass[0] > mass[1] > mass[2]
    assert mass[2] < 0.01


def gaussian_grid(noises, classes=3, points=400):
    """[C, …, C] of Y, a standard normal cut into equally likely classes, and of members Y + noise, cut alike.

    Given Y itself the members are independent, so the table is an integral over Y; given its class they are
    not quite.
    """
    edges = norm.ppf(np.arange(1, classes) / classes)
    y = norm.ppf((np.arange(points * classes) + 0.5) / (points * classes))  # equally likely
    label = np.eye(classes)[np.digitize(y, edges)]
    table = label / len(y)
    for noise in reversed(noises):
        below = norm.cdf(
            (np.concatenate([[-np.inf], edges * np.hypot(1, noise), [np.inf]]) - y[:, None]) / noise
        )
        table = np.einsum("po,p...->po...", np.diff(below), table)
    return table.sum(0)


@pytest.mark.parametrize("estimator", ["miller_madow", "grassberger", "chao_shen"])
def test_the_lattice_of_a_gaussian_grid(estimator):
    """Estimates tend to what the density gives; on few examples their bias is a fraction of the plugin's."""
    table = gaussian_grid([0.5, 1.0, 2.0])
    truth = population(table)
    assert 0 < truth[4] < truth[2] < truth[1] < truth[7] < np.log(3)

    def estimate(examples, seed, estimator):
        drawn = np.random.default_rng(seed).choice(table.size, examples, p=table.ravel())
        *predictions, labels = np.unravel_index(drawn, table.shape)
        return information_lattice(np.stack(predictions), labels, 3, estimator)

    np.testing.assert_allclose(estimate(20_000, 0, estimator), truth, atol=0.012)  # three standard errors
    bias, plugin = (
        np.mean([estimate(300, seed, name)[7] for seed in range(40)]) - truth[7]
        for name in (estimator, "plugin")
    )
    assert plugin > 0.06
    assert abs(bias) < 0.6 * plugin


def test_exclusive_or_violates_by_ln_2():
    bits = np.array(list(product(range(2), repeat=2))).T
    found = diagnose(information_lattice(bits, bits[0] ^ bits[1], 2, "plugin"))
    assert (found.violation_rate, found.violation_mass, found.worst.subset) == (1, 1, ())
    np.testing.assert_allclose(found.worst.value, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(found.shapley, np.log(2) / 2, rtol=1e-6)
    assert abs(found.ratio) < 1e-5


def test_copies_of_a_member_know_no_more_than_one():
    predictions = np.tile(np.repeat([0, 1, 2], 20), (3, 1))
    labels = np.concatenate([np.repeat([0, 1, 2], 18), np.repeat([1, 2, 0], 2)])
    values = information_lattice(predictions, labels, 3, "plugin")
    np.testing.assert_allclose(values[0], 0, atol=1e-6)
    np.testing.assert_allclose(values[1:], values[1], rtol=1e-6)
    assert diagnose(values).curvature == pytest.approx(1)


@pytest.mark.parametrize("estimator", ["plugin", "miller_madow", "grassberger", "chao_shen"])
def test_a_subset_is_worth_what_its_members_are_alone(estimator):
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 3, 80)
    predictions = np.where(rng.random((5, 80)) < 0.5, labels, rng.integers(0, 3, (5, 80)))
    subset = np.array([[True, False, True, True, False]])
    chosen, alone = (
        information(p, labels, 3, s, estimator)
        for p, s in ((predictions, subset), (predictions[[0, 2, 3]], np.ones((1, 3), bool)))
    )
    assert 0 < alone[0] < np.log(3)
    np.testing.assert_allclose(chosen, alone, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"member_predictions": np.zeros((17, 4), int)}, "there are 17: use sampled chains"),
        ({"labels": np.array([0, 1, 2, 5])}, "labels holds 5, but must hold classes 0 to 2"),
        ({"classes": 1}, "classes is 1, but must be at least 2"),
        ({"estimator": "pairwise"}, "estimator is 'pairwise', but must be one of plugin, miller_madow"),
    ],
)
def test_no_information_without_a_sample(arguments, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    good = {"member_predictions": np.zeros((2, 4), int), "labels": np.array([0, 1, 2, 1]), "classes": 3}
    with pytest.raises(ValueError, match=message):
        information_lattice(**good | arguments)


@pytest.fixture(scope="module")
def model():
    config = ModelConfig(width=8, heads=2, depth=2, vocabulary=11, length=6, branch_exponent=0.0)
    return Decoder(config, nnx.Rngs(0))


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.5, 1, (7, 6)) * (rng.random((7, 6)) < 0.7)
    labels = np.where(weights > 0, rng.integers(0, 4, (7, 6)), -1)  # where nothing counts, no label is needed
    return {"tokens": rng.integers(0, 11, (7, 6)), "labels": labels, "weights": weights}


def mean_loss(model, keep, tokens, labels, weights):
    """Over the first four classes; the model run as anyone would."""
    z = jax.nn.log_softmax(model(jnp.asarray(tokens), keep)[..., :4])
    loss = -np.take_along_axis(np.asarray(z), np.maximum(labels, 0)[..., None], -1)[..., 0]
    return (loss * weights).sum() / weights.sum()


def test_ablation_is_the_model_run_without_the_other_modules(model, batch):
    subsets = all_subsets(5)[[1, 5, 15, 23, 27, 29]]
    found = ablation(model, **batch, classes=4, subsets=subsets)
    by_hand = [-mean_loss(model, jnp.asarray(subset, float), **batch) for subset in subsets]
    np.testing.assert_allclose(found.mean, by_hand, rtol=1e-5)
    assert np.diff(np.sort(by_hand)).min() > 1e-3  # every module matters


def test_ablation_of_nothing_is_the_model_and_of_all_but_the_read_out_is_chance(model, batch):
    values = ablation_lattice(model, **batch, classes=4)
    assert values.shape == (32,)
    np.testing.assert_allclose(values[-1], -mean_loss(model, None, **batch), rtol=1e-5)
    np.testing.assert_allclose(values[0], -np.log(4), rtol=1e-5)  # a stream of zeros, and no biases


def test_ablation_in_folds_and_within_a_budget(model, batch):
    subsets = all_subsets(5)[[7, 31]]
    whole = ablation(model, **batch, classes=4, subsets=subsets, folds=3)
    for b in range(3):
        part = {name: array[b::3] for name, array in batch.items()}
        np.testing.assert_allclose(whole.sizes[b], part["weights"].sum(), rtol=1e-12)
        np.testing.assert_allclose(-whole.values[b, 1], mean_loss(model, None, **part), rtol=1e-5)
    by_ones = ablation(model, **batch, classes=4, subsets=subsets, folds=3, budget=1)
    np.testing.assert_allclose(by_ones.values, whole.values, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 3}, "labels that count must lie in 0 to 2"),
        ({"weights": np.zeros((7, 6))}, "labels that count"),
        (
            {"tokens": np.zeros((7, 5), int)},
            r"shapes \(7, 5\), \(7, 6\) and \(7, 6\), but must have the same",
        ),
        ({"subsets": np.ones((2, 4), bool)}, r"must be booleans of shape \[M, 5\]"),
        ({"folds": 8}, "folds is 8, but must be 1 to 7"),
        (
            {"weights": np.eye(7, 6), "labels": np.zeros((7, 6), int), "folds": 7},
            "no example of fold 6 counts",
        ),
    ],
)
def test_ablations_that_make_no_sense_are_refused(model, batch, arguments, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        ablation(model, **batch | {"classes": 4, "subsets": all_subsets(5)} | arguments)
