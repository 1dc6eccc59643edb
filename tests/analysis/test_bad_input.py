"""Whatever the shapes and values: what cannot be used is refused in a sentence that names the argument."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.decomposition import decompose
from analysis.information import information
from analysis.scaling import fit
from analysis.setfunctions import diagnose, information_lattice, performance
from jaxlayers.refusal import Refusal

quick = settings(max_examples=25, deadline=None, derandomize=True)
shapes = st.sampled_from([(1, 2, 2), (3, 9, 4)])  # of few shapes: each is compiled
sizes = st.tuples(shapes, st.integers(0, 99)).map(lambda size: (*size[0], size[1]))  # K N C seed
outside = st.one_of(st.integers(-5, -1), st.integers(0, 5))


def sample(size):
    members, examples, classes, seed = size
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, examples)
    return random, labels, random.integers(0, classes, (members, examples))


def spoilt(labels, classes, off, random):
    """The labels, one of which is so far below 0 or above the last class."""
    broken = labels.copy()
    broken[random.integers(len(labels))] = off if off < 0 else classes + off
    return broken


@quick
@given(sizes, outside)
def test_labels_out_of_range(size, off):
    random, labels, predictions = sample(size)
    members, examples, classes, _ = size
    wrong = spoilt(labels, classes, off, random)
    logits = random.normal(size=(members, examples, classes))
    for loss in ("cross_entropy", "squared", "zero_one", "majority_vote"):
        with pytest.raises(ValueError, match=f"targets .* labels must lie in 0 to {classes - 1}"):
            decompose(logits, wrong, loss)
    for argument, arguments in {
        "labels": (predictions, wrong, labels),
        "member_predictions": (np.vstack([predictions[1:], wrong]), labels, labels),
        "ensemble_predictions": (predictions, labels, wrong),
    }.items():
        with pytest.raises(ValueError, match=f"{argument} holds .* must hold classes 0 to {classes - 1}"):
            information(*arguments, classes)
    with pytest.raises(ValueError, match="labels holds"):
        information_lattice(predictions, wrong, classes)


@quick
@given(sizes, st.sampled_from([np.nan, np.inf, -np.inf]))
def test_logits_that_are_not_finite(size, value):
    """A largest logit of infinity is one, so only NaN is refused where no more than the largest counts."""
    random, labels, _ = sample(size)
    logits = random.normal(size=(*size[:2], size[2]))
    example = random.integers(size[1])
    logits[random.integers(size[0]), example, random.integers(size[2])] = value
    for loss in ("cross_entropy", "squared", *(["zero_one", "majority_vote"] if np.isnan(value) else [])):
        with pytest.raises(
            ValueError, match=f"member_logits holds NaN or infinite values at example {example};"
        ):
            decompose(logits, labels, loss)


@quick
@given(sizes, st.floats(0.01, 10))
def test_weights_that_do_not_sum_to_one(size, excess):
    random, labels, _ = sample(size)
    weights = random.dirichlet(np.ones(size[0])) * (1 + excess)
    with pytest.raises(ValueError, match=r"weights sum to .*, but must sum to 1: divide them by their sum"):
        decompose(random.normal(size=(*size[:2], size[2])), labels, weights=weights)


@quick
@given(sizes)
def test_what_theory_gives_a_value(size):
    """One member, one class, one example, equal labels, copies: nothing diverse, nothing to know."""
    random, labels, predictions = sample(size)
    logits = random.normal(size=(*size[:2], size[2]))
    copies = decompose(np.repeat(logits[:1], 3, 0), labels)
    np.testing.assert_allclose(copies.diversity, 0, atol=1e-6)
    np.testing.assert_allclose(decompose(logits[:1], labels).diversity, 0, atol=1e-6)
    certain = decompose(logits[:, :, :1], labels * 0)
    np.testing.assert_array_equal(certain.bias, 0)
    one = decompose(logits[:, :1], labels[:1])
    np.testing.assert_allclose(one.ensemble_loss, decompose(logits, labels).ensemble_loss[:1], rtol=1e-6)
    equal = information_lattice(predictions, labels * 0, size[2])
    np.testing.assert_allclose(equal, 0, atol=1e-6)


@pytest.fixture(scope="module")
def evidence(planted):
    return planted(2, 0)


@quick
@given(st.integers(1, 9).filter(lambda k: k != 5), st.integers(0, 3))
def test_subsets_of_other_members(evidence, members, number):
    with pytest.raises(ValueError, match=r"subsets is bool of shape .* must be booleans of shape \[M, 5\]"):
        performance(evidence, np.zeros((number, members), bool))


@quick
@given(st.integers(0, 200).filter(lambda n: n not in {2, 4, 8, 16, 32, 64, 128}))
def test_values_of_no_lattice(number):
    with pytest.raises(ValueError, match=r"one value for each of the 2\^K subsets of K = 1 to 16 members"):
        diagnose(np.zeros(number))


@quick
@given(
    st.sampled_from(["contributions", "head", "bias"]), st.sampled_from([np.nan, np.inf]), st.integers(0, 14)
)
def test_evidence_that_is_not_finite(evidence, name, value, place):
    broken = getattr(evidence, name).copy()
    broken.flat[place % broken.size] = value
    with pytest.raises(Refusal, match=f"{name} holds NaN or infinite values"):
        replace(evidence, **{name: broken}).check()


@quick
@given(st.integers(1, 6), st.integers(1, 3), st.sampled_from(["constant", "linear", "log", "inverse"]))
def test_too_few_sizes_or_seeds(sizes, seeds, form):
    losses = 2 - 0.1 * np.log(np.arange(1, sizes + 1)) + 0.01 * np.arange(seeds)[:, None]
    if sizes >= 4 and seeds >= 2:
        assert fit(np.arange(1, sizes + 1), losses, form, resamples=20).held_out == (2 if sizes >= 6 else 1)
        return
    with pytest.raises(Refusal, match="needs at least 2" if seeds < 2 else "give at least 4"):
        fit(np.arange(1, sizes + 1), losses, form)
