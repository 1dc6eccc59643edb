"""Information of members' predictions: known distributions, independent derivations, honest intervals."""

import dataclasses
from collections import Counter
from functools import partial
from itertools import combinations
from math import comb
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import analysis.information
from analysis.entropy import CountEstimator, entropy
from analysis.estimators import Estimator, read
from analysis.information import Terms

ESTIMATORS, COUNTING = get_args(Estimator), get_args(CountEstimator)
NAMES = [field.name for field in dataclasses.fields(Terms)]
information = partial(analysis.information.information, bootstraps=200, permutations=19)
close = partial(pytest.approx, rel=1e-12, abs=1e-12)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def known(seed=0, strength=0.5, members=3, examples=576):
    """Members that see the label, of three classes, through independent noise, and a decision that does."""
    random = np.random.default_rng(seed)
    labels = random.choice(3, examples, p=random.dirichlet(np.full(3, 5.0)))
    see = random.random((members + 1, examples)) < strength
    seen = np.where(see, labels, random.integers(0, 3, see.shape))
    return seen[:-1], labels, seen[-1]


def exactly(*rows):
    """A sample whose frequencies are a distribution's: rows of (times, state, state, …)."""
    return np.repeat(np.array([row[1:] for row in rows]), [row[0] for row in rows], axis=0).T


def plain(*columns, estimator):
    """Entropy of joint columns from a dict of counts."""
    n = np.array(list(Counter(zip(*np.asarray(columns).tolist(), strict=True)).values()))
    p = n / n.sum()
    return -(p * np.log(p)).sum() + (estimator == "miller_madow") * (len(n) - 1) / (2 * n.sum())


@pytest.mark.parametrize("estimator", ["plugin", "miller_madow", "pairwise"])
def test_terms_are_their_definitions(estimator):
    predictions, labels, decisions = known()
    h = partial(plain, estimator="plugin" if estimator == "plugin" else "miller_madow")
    found = information(predictions, labels, decisions, 3, estimator)
    if estimator == "pairwise":
        redundancy = sum(h(a) + h(b) - h(a, b) for a, b in combinations(predictions, 2))
        conditional = sum(
            h(a, labels) + h(b, labels) - h(a, b, labels) - h(labels) for a, b in combinations(predictions, 2)
        )
    else:
        redundancy = sum(map(h, predictions)) - h(*predictions)
        conditional = sum(h(o, labels) - h(labels) for o in predictions) - h(*predictions, labels) + h(labels)
    relevance = sum(h(o) + h(labels) - h(o, labels) for o in predictions)
    joint = relevance - redundancy + conditional
    expected = {
        "label_entropy": h(labels),
        "relevance": relevance,
        "redundancy": redundancy,
        "conditional_redundancy": conditional,
        "diversity": conditional - redundancy,
        "joint_information": joint,
        "excess": 0,
        "combination_loss": h(decisions, labels) - h(decisions) - (h(labels) - joint),
        "error_rate": np.mean(decisions != labels),
        "hellman_raviv_bound": (h(labels) - joint) / np.log(4),
    }
    for name, value in expected.items():
        assert getattr(found, name) == close(value), name
    e = float(found.fano_bound)
    fano = -e * np.log(e) - (1 - e) * np.log(1 - e) + e * np.log(2)
    assert fano == close(h(decisions, labels) - h(decisions))
    assert found.patterns == len(set(zip(*predictions.tolist(), strict=True)))
    if estimator != "pairwise":
        assert joint == close(h(*predictions) + h(labels) - h(*predictions, labels))


@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name != "decoder"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**16),
    strength=st.sampled_from([0.0, 0.3, 1.0]),
    copies=st.sampled_from([1, 2, 3]),
    states=st.sampled_from([2, 30, 576]),
)
def test_the_identity_holds_and_no_bound_is_passed(estimator, seed, strength, copies, states):
    """However few different examples there are, however alike the members."""
    predictions, labels, decisions = known(seed, strength)
    predictions[:copies] = predictions[0]
    few = np.random.default_rng(seed).integers(0, states, 576)
    found = jax.device_get(information(predictions[:, few], labels[few], decisions[few], 3, estimator))
    left = found.relevance - found.redundancy + found.conditional_redundancy
    assert left == close(found.joint_information + found.excess)
    for terms in (found, found.low, found.high):
        assert 0 <= terms.joint_information <= terms.label_entropy
        assert 0 <= terms.fano_bound <= 1 - 1 / 3
    assert found.excess == 0 or found.joint_information in (0, found.label_entropy)
    assert all(getattr(found.low, name) <= getattr(found.high, name) for name in NAMES)


@pytest.mark.parametrize("estimator", [*COUNTING, "pairwise"])
def test_xor_is_all_synergy(estimator):
    """Two fair bits, and a constant, of which the label is the exclusive or: alone they know nothing."""
    *predictions, labels = exactly((144, 0, 0, 0, 0), (144, 0, 1, 0, 1), (144, 1, 0, 0, 1), (144, 1, 1, 0, 0))
    found = information(np.stack(predictions), labels, labels, 3, estimator)
    corrections = 0 if estimator in ("plugin", "chao_shen") else 2.5 / 576
    assert found.diversity == close(np.log(2), abs=1e-12 + corrections)
    assert found.joint_information == close(np.log(2), abs=1e-12 + corrections)
    assert found.relevance == close(0, abs=1e-12 + corrections)
    assert found.redundancy == close(0, abs=1e-12 + corrections)
    assert found.error_rate == found.fano_bound == 0
    assert found.p_value.joint_information == 0.05
    assert not found.saturated


@pytest.mark.parametrize("estimator", COUNTING)
def test_duplicated_members_repeat_their_entropy(estimator):
    (member, *_), labels, decisions = known()
    found = information(np.stack([member] * 3), labels, decisions, 3, estimator)
    h, h_y, h_both = (
        float(entropy(jnp.asarray(states), estimator)) for states in (member, labels, member * 3 + labels)
    )
    assert found.redundancy == close(2 * h)
    assert found.conditional_redundancy == close(2 * (h_both - h_y))
    assert found.relevance == close(3 * (h + h_y - h_both))
    assert found.joint_information == close(h + h_y - h_both)


def test_members_independent_given_the_label_have_no_conditional_redundancy():
    """The frequencies of the sample are exactly those of p(y) Π_k p(o_k | y)."""
    see = np.array([[2, 1, 1], [1, 2, 1], [1, 1, 2]])  # quarters: o given y
    *predictions, labels = exactly(
        *((3 * see[a, y] * see[b, y] * see[c, y], a, b, c, y) for a, b, c, y in np.ndindex(3, 3, 3, 3))
    )
    found = information(np.stack(predictions), labels, labels, 3, "plugin")
    assert found.conditional_redundancy == close(0)
    assert found.relevance == close(3 * (np.log(3) - 1.5 * np.log(2)))  # three times I(O_k; Y)
    assert found.diversity < -0.01


@pytest.mark.parametrize("estimator", ["miller_madow", "pairwise", "decoder"])
def test_one_member_has_nothing_to_repeat(estimator):
    found = information(*known(members=1), 3, estimator)
    if estimator == "decoder":
        assert found.relevance - 0.02 < found.joint_information < found.relevance
    else:
        assert found.redundancy == close(0)
        assert found.conditional_redundancy == close(0)
        assert found.joint_information == close(float(found.relevance))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_where_all_labels_are_equal_there_is_nothing_to_know(estimator):
    predictions, _, decisions = known()
    found = information(predictions, np.full(576, 2), decisions, 3, estimator)
    assert found.label_entropy == found.joint_information == found.hellman_raviv_bound == 0
    assert found.relevance == close(0)
    assert found.combination_loss == close(0)
    assert found.fano_bound == pytest.approx(0, abs=1e-6)
    assert found.p_value.relevance == 1
    assert found.error_rate == close(np.mean(decisions != 2))


def test_decoder_stays_below_the_truth_where_counts_overrate_it():
    """Twelve members, at first independent of the label, then each right with probability 0.7."""
    random = np.random.default_rng(3)
    labels = random.integers(0, 2, 1000)
    noise = random.integers(0, 2, (12, 1000))
    counts = information(noise, labels, labels, 2, "plugin")
    decoder = information(noise, labels, labels, 2, "decoder")
    assert counts.joint_information > 0.5
    assert counts.saturated
    assert decoder.joint_information < 0.01
    assert np.isnan(decoder.redundancy) & np.isnan(decoder.conditional_redundancy)

    right = 0.7 ** np.arange(13) * 0.3 ** np.arange(12, -1, -1)
    times = [comb(12, agreeing) for agreeing in range(13)]
    truth = np.log(2) + (times * right * np.log(right / (right + right[::-1]))).sum()
    decoder = information(
        np.where(random.random((12, 1000)) < 0.4, labels, noise), labels, labels, 2, "decoder"
    )
    assert 0.85 * truth < decoder.joint_information < truth
    assert decoder.low.joint_information < truth < decoder.high.joint_information + 0.05
    assert decoder.p_value.joint_information == 0.05
    assert not decoder.saturated


@pytest.mark.parametrize(("noisy", "share", "saturated"), [(4, 0.3, True), (6, 0.1, False)])
def test_many_patterns_saturate_an_estimate_that_the_null_does_not_doubt(noisy, share, saturated):
    """A copy of the label beside noise: 25 patterns of 100 examples are too many, 19 are not."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 100)
    noise = random.random((noisy, 100)) < share
    found = information(np.vstack([labels, noise]).astype(int), labels, labels, 2)
    assert found.patterns == (25 if saturated else 19)
    assert np.quantile(found.null.joint_information, 0.95) < 0.2 * found.joint_information
    assert found.saturated == saturated


@pytest.mark.parametrize("estimator", sorted({*ESTIMATORS} - {"decoder"}))
def test_the_null_is_of_the_shuffled_sample(estimator):
    """What depends on the order is what the shuffled predictions have anew, by their surprises."""
    predictions, labels, _ = known(members=4)
    order = np.random.default_rng(1).permutation(labels.size)

    def of(predictions):
        given = jnp.asarray(labels)
        return read(jnp.asarray(predictions), given, 3, estimator, half=given % 2)

    members_y, left_open = of(predictions).with_labels(jnp.asarray(order))
    shuffled = of(predictions[:, order]).surprises
    assert members_y == close(float(shuffled.members_y.mean()))
    assert left_open == close(float(shuffled.left_open.mean()))


def test_a_sum_over_pairs_that_cannot_be_is_clipped_and_says_so():
    """Twenty copies hold one bit; their 190 pairs count its redundancy 190 times."""
    labels = np.arange(400) % 2
    found = information(np.tile(labels, (20, 1)), labels, labels, 2, "pairwise")
    assert found.redundancy == pytest.approx(190 * np.log(2), rel=0.01)
    assert found.joint_information == 0
    assert found.excess == pytest.approx((20 - 190) * np.log(2), rel=0.01)
    assert found.saturated


@pytest.mark.parametrize("estimator", ["miller_madow", "grassberger"])
def test_intervals_cover_what_made_the_sample(estimator):
    """200 samples of K = 2, C = 3, N = 2,000 from one distribution of (O_1, O_2, Ŷ, Y)."""
    random = np.random.default_rng(5)
    p = random.dirichlet(np.full(81, 0.5)).reshape(3, 3, 3, 3)

    def h(*axes):
        q = p.sum(tuple(axis for axis in range(4) if axis not in axes)).ravel()
        return -(q * np.log(q)).sum()

    relevance = h(0) + h(1) + 2 * h(3) - h(0, 3) - h(1, 3)
    redundancy = h(0) + h(1) - h(0, 1)
    conditional = h(0, 3) + h(1, 3) - h(0, 1, 3) - h(3)
    truth = {
        "label_entropy": h(3),
        "relevance": relevance,
        "redundancy": redundancy,
        "conditional_redundancy": conditional,
        "diversity": conditional - redundancy,
        "joint_information": relevance - redundancy + conditional,
        "combination_loss": h(2, 3) - h(2) - (h(0, 1, 3) - h(0, 1)),
        "error_rate": 1 - np.einsum("abcc->", p),
        "hellman_raviv_bound": (h(0, 1, 3) - h(0, 1)) / np.log(4),
    }
    covered = dict.fromkeys(truth, 0)
    for _ in range(200):
        *predictions, decisions, labels = np.unravel_index(random.choice(81, 2000, p=p.ravel()), p.shape)
        found = information(np.stack(predictions), labels, decisions, 3, estimator)
        low, high = jax.device_get((found.low, found.high))
        for name, value in truth.items():
            covered[name] += getattr(low, name) <= value <= getattr(high, name)
    assert all(180 <= count <= 196 for count in covered.values()), covered


@pytest.mark.parametrize("estimator", ["miller_madow", "pairwise", "decoder"])
def test_the_null_is_rejected_as_often_as_it_says(estimator):
    random = np.random.default_rng(7)
    rejected = np.zeros(2)
    for _ in range(200):
        predictions, labels = random.integers(0, 3, (3, 576)), random.integers(0, 3, 576)
        found = information(predictions, labels, labels, 3, estimator)
        rejected += np.array(jax.device_get(found.p_value)) <= 0.05
    assert rejected.min() >= 0.02 * 200
    assert rejected.max() <= 0.08 * 200


def test_groups_are_shuffled_as_wholes():
    """Predictions and labels are constant within sequences, and independent of each other."""
    random = np.random.default_rng(8)
    sequence = np.repeat(np.arange(48), 12)
    rejected = {True: 0, False: 0}
    for _ in range(200):
        predictions, labels = random.integers(0, 3, (3, 48))[:, sequence], random.integers(0, 3, 48)[sequence]
        for whole in rejected:
            group = sequence if whole else None
            found = information(predictions, labels, labels, 3, group=group)
            rejected[whole] += int(found.p_value.relevance <= 0.05)
    assert 0.02 * 200 <= rejected[True] <= 0.08 * 200
    assert rejected[False] > 0.5 * 200


def test_copies_of_an_example_make_no_interval_narrower_in_its_group():
    predictions, labels, decisions = known(examples=144)
    four = np.arange(144).repeat(4)
    once = information(predictions, labels, decisions, 3, "plugin", bootstraps=2000)
    for group, ratio in ((four, 1.0), (None, 0.5)):
        found = information(
            predictions[:, four], labels[four], decisions[four], 3, "plugin", group=group, bootstraps=2000
        )
        for name in ("relevance", "redundancy", "joint_information", "error_rate"):
            assert getattr(found, name) == close(float(getattr(once, name)))
            width = float(getattr(once.high, name) - getattr(once.low, name))
            wide = float(getattr(found.high, name) - getattr(found.low, name))
            assert wide == pytest.approx(ratio * width, rel=0.1)


def test_neither_the_order_of_examples_nor_the_names_of_groups_matter():
    predictions, labels, decisions = known()
    group = np.arange(576) // 12
    order = np.random.default_rng(0).permutation(576)
    found = information(predictions, labels, decisions, 3, group=group)
    other = information(
        predictions[:, order], labels[order], decisions[order], 3, group=group[order] * 3 - 90
    )
    for name in NAMES:
        for mine, its in ((found, other), (found.low, other.low), (found.high, other.high)):
            assert getattr(mine, name) == close(float(getattr(its, name)))


@pytest.mark.parametrize("estimator", ["miller_madow", "pairwise"])
def test_float32_is_as_good_as_it_can_be(estimator):
    found = information(*known(), 3, estimator)
    with jax.enable_x64(False):
        single = information(*known(), 3, estimator)
    for name in NAMES:
        assert getattr(single, name).dtype == jnp.float32
        assert getattr(single, name) == pytest.approx(float(getattr(found, name)), rel=1e-5, abs=3e-6), name


def test_one_compilation_serves_all_samples_of_a_shape():
    information(*known(seed=1), 3)
    with jax.no_tracing():
        information(*known(seed=2), 3, seed=4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"labels": np.r_[3, np.zeros(99, int)]}, "labels holds 3, but must hold classes 0 to 2"),
        ({"labels": np.zeros(99, int)}, "member_predictions has 100 examples, but labels has 99"),
        ({"labels": np.zeros(1, int)}, "labels has 1 example"),
        ({"labels": np.zeros((2, 100), int)}, r"labels is int64 of shape \(2, 100\)"),
        ({"labels": np.zeros(100)}, "labels is float64"),
        ({"member_predictions": np.full((2, 100), -1)}, "member_predictions holds -1"),
        ({"member_predictions": np.zeros((0, 100), int)}, "member_predictions has no members"),
        ({"ensemble_predictions": np.zeros(7, int)}, "ensemble_predictions has 7 examples"),
        ({"ensemble_predictions": np.full(100, 5)}, "ensemble_predictions holds 5"),
        ({"classes": 1}, "classes is 1, but must be at least 2"),
        ({"classes": 2**30}, "classes is 1073741824, but with 100 examples must stay below 21474836"),
        ({"estimator": "miller"}, "estimator is 'miller', but must be one of plugin, miller_madow"),
        ({"group": np.zeros(100, int)}, "group holds one group"),
        ({"group": np.zeros(3, int)}, "group has 3 examples"),
        ({"permutations": 5}, "permutations is 5, but must be at least 19"),
        ({"bootstraps": 5}, "bootstraps is 5, but must be at least 40"),
        ({"estimator": "pairwise", "classes": 50_000}, "budget is 1,073,741,824 bytes, but pairwise needs"),
        ({"estimator": "decoder", "classes": 50_000}, "budget is 1,073,741,824 bytes, but decoder needs"),
        ({"budget": 100}, "budget is 100 bytes, but miller_madow needs"),
    ],
)
def test_what_cannot_be_estimated_is_refused(change, says):
    arguments = {
        "member_predictions": np.zeros((2, 100), int),
        "labels": np.arange(100) % 3,
        "ensemble_predictions": np.zeros(100, int),
        "classes": 3,
    }
    with pytest.raises(ValueError, match=says):
        information(**(arguments | change))


def test_a_vocabulary_of_classes_is_no_obstacle_to_counts():
    random = np.random.default_rng(0)
    labels = random.choice(50_000, 200)[random.integers(0, 200, 576)]
    found = information(np.stack([labels] * 3), labels, labels, 50_000)
    assert found.joint_information == close(float(found.label_entropy))
    assert found.saturated
