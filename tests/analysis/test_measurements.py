"""Measurements of planted evidence: NumPy on the logits, known answers, and back from a file."""

from dataclasses import fields, replace

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from analysis.evidence import Evidence, Member
from analysis.measurements import Measurements, commonest, fano_margin, measure
from analysis.predictions import verdicts
from analysis.statistics import Estimate, clustered_mean

K, N, D, C = 5, 240, 8, 3
GROUP = np.repeat(np.arange(N // 4, dtype=np.int32), 4)


def planted(members=K, **changes):
    random = np.random.default_rng(0)
    labels = random.integers(0, C, N).astype(np.int32)
    head = random.normal(size=(D, C)).astype(np.float32)
    contributions = random.normal(size=(members, N, D)) + 0.3 * head.T[labels]
    contributions /= np.sqrt((contributions.sum(0) ** 2).mean(-1, keepdims=True))
    given = {
        "contributions": contributions.astype(np.float32),
        "head": head,
        "bias": random.normal(size=C).astype(np.float32),
        "labels": labels,
        "members": tuple(Member(f"m{k}", "mlp", (k - 1) // 2) for k in range(members)),
        "norm": "rms",
        "group": GROUP,
        "task": "planted",
        "architecture": "plain",
        "depth": 2,
        "seed": 7,
    }
    return Evidence(**given | changes)


@pytest.fixture(scope="module")
def evidence():
    evidence = planted()
    evidence.check()
    return evidence


@pytest.fixture(scope="module")
def model(evidence):
    return measure(evidence)


def cross_entropy(logits, labels):
    return logsumexp(logits, axis=-1) - np.take_along_axis(logits, labels[:, None], 1)[:, 0]


@pytest.fixture(scope="module")
def by_hand(evidence):
    """Member predictions in mean form, and the model's logits, in float64."""
    parts = evidence.contributions.astype(float) @ evidence.head.astype(float)
    return K * parts + evidence.bias, parts.sum(0) + evidence.bias


def test_the_loss_its_parts_and_its_members_are_those_of_the_logits(evidence, model, by_hand):
    f, z = by_hand
    members = np.stack([cross_entropy(each, evidence.labels) for each in f])
    p = softmax(z, axis=-1)
    divergences = np.stack([(p * (np.log(p) - np.log(softmax(each, axis=-1)))).sum(-1) for each in f])
    np.testing.assert_allclose(model.loss, cross_entropy(z, evidence.labels), rtol=1e-9)
    np.testing.assert_allclose(model.bias, members.mean(0), rtol=1e-9)
    np.testing.assert_allclose(model.diversity, divergences.mean(0), rtol=1e-9)
    np.testing.assert_allclose(model.member_loss.value, members.mean(1), rtol=1e-9)
    np.testing.assert_allclose(model.member_diversity.value, divergences.mean(1), rtol=1e-9)
    assert model.ratio == pytest.approx(divergences.mean() / members.mean(), rel=1e-9)


def test_accuracies_and_the_other_losses_are_those_of_the_logits(evidence, model, by_hand):
    f, z = by_hand
    right = z.argmax(-1) == evidence.labels
    np.testing.assert_array_equal(model.correct, right)
    assert model.accuracy.value == right.mean()
    np.testing.assert_allclose(model.member_accuracy.value, (f.argmax(-1) == evidence.labels).mean(1))
    assert model.splits["zero_one"]["loss"].value == pytest.approx(1 - right.mean())
    one_hot = np.eye(C)[evidence.labels]
    assert model.splits["squared"]["loss"].value == pytest.approx(((z - one_hot) ** 2).mean(), rel=1e-5)
    assert model.splits["squared"]["diversity"].value == pytest.approx(((f - z) ** 2).mean(), rel=1e-5)


def test_errors_are_over_groups(evidence, model, by_hand):
    right = (by_hand[1].argmax(-1) == evidence.labels).astype(float)
    sums = np.bincount(GROUP, right - right.mean())
    groups = N // 4
    error = np.sqrt(groups / (groups - 1) * (sums**2).sum()) / N
    assert model.accuracy.error == pytest.approx(error, rel=1e-9)
    assert model.accuracy.freedom == groups - 1
    members = np.stack([cross_entropy(each, evidence.labels) for each in by_hand[0]], 1)
    np.testing.assert_allclose(model.member_loss.error, clustered_mean(members, GROUP).error, rtol=1e-9)


def test_diversity_is_that_within_blocks_and_that_between_them(model):
    parts = model.within_blocks.value + model.between_blocks.value
    assert parts == pytest.approx(model.diversity.mean(), rel=1e-9)
    assert model.within_blocks.value > 0.1 < model.between_blocks.value


def test_the_logit_lens_ends_at_the_model(model):
    assert model.prefix_loss.value[-1] == pytest.approx(model.loss.mean(), rel=1e-4)


def test_shapley_values_share_out_what_the_members_gain(evidence, model):
    nothing = cross_entropy(np.tile(evidence.bias.astype(float), (N, 1)), evidence.labels).mean()
    assert model.performance["shapley"].value.sum() == pytest.approx(nothing - model.loss.mean(), rel=1e-4)
    assert sorted(model.greedy_order) == list(range(K))
    assert model.performance["violation_rate"].error > 0


def test_a_member_that_repeats_another_is_all_redundant(evidence):
    contributions = evidence.contributions.copy()
    contributions[2] = contributions[1]
    found = measure(replace(evidence, contributions=contributions)).redundancy_map
    assert found.value[1, 2] == pytest.approx(found.value[1, 1], abs=1e-5)
    assert found.value[1, 3] < 0.5 * found.value[1, 1]


def test_the_models_own_loss_is_what_the_identity_is_held_to(evidence, model):
    assert {row.id: row.state for row in verdicts([model])}["P1"] == "holds"
    loss = model.loss.astype(np.float32)
    loss[3] += 0.01
    other = measure(replace(evidence, loss=loss))
    np.testing.assert_array_equal(other.loss, loss)
    assert {row.id: row.state for row in verdicts([other])}["P1"] == "fails"


@pytest.mark.slow
def test_without_groups_every_example_is_its_own(evidence):
    found = measure(replace(evidence, group=None)).accuracy
    assert found.freedom == N - 1
    assert found.error == pytest.approx(np.sqrt(found.value * (1 - found.value) / (N - 1)))


def test_a_file_gives_everything_back(model, tmp_path):
    model.save(tmp_path / "deep" / "model.measurements")
    found = Measurements.load(tmp_path / "deep" / "model.measurements")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["model.measurements"]

    def same(a, b):
        if isinstance(a, Estimate):
            return all(same(getattr(a, part), getattr(b, part)) for part in ("value", "error", "freedom"))
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
        return np.array_equal(a, b) if isinstance(a, np.ndarray | float) else a == b

    for field in fields(Measurements):
        assert same(getattr(model, field.name), getattr(found, field.name)), field.name


def test_what_is_not_there_or_of_another_version_is_measured_anew(model, tmp_path, monkeypatch):
    assert Measurements.load(tmp_path / "none") is None
    model.save(tmp_path / "old")
    monkeypatch.setattr("analysis.measurements.VERSION", "0")
    assert Measurements.load(tmp_path / "old") is None


def test_a_file_that_cannot_be_finished_leaves_the_old_one(model, tmp_path, monkeypatch):
    model.save(tmp_path / "model")
    before = (tmp_path / "model").read_bytes()

    def full(*paths):
        raise OSError("no space left")

    monkeypatch.setattr("analysis.measurements.os.replace", full)
    with pytest.raises(OSError, match="no space"):
        replace(model, seed=8).save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model").read_bytes() == before


def test_few_classes_are_kept_and_of_many_the_commonest():
    np.testing.assert_array_equal(commonest(np.zeros(5000, int), 4), np.arange(4))
    labels = np.repeat(np.arange(100), np.arange(1, 101))  # 5,050 examples: the tenth of a cube is 10
    coarse = commonest(labels, 100)
    assert coarse.max() + 1 == 10
    np.testing.assert_array_equal(coarse[91:], np.arange(8, -1, -1))
    assert (coarse[:91] == 9).all()


def channel(rates, n=40_000, key=0):
    """Labels and decisions: of each class, all errors go to the next with the rate given."""
    random = np.random.default_rng(key)
    labels = random.integers(0, 3, n)
    wrong = random.random(n) < np.array(rates)[labels]
    return labels, np.where(wrong, (labels + 1 + random.integers(0, 2, n)) % 3, labels)


def test_errors_that_are_spread_evenly_meet_fanos_bound():
    labels, decisions = channel([0.3, 0.3, 0.3])
    found = fano_margin(labels, decisions, 3, np.arange(len(labels)))
    assert abs(found.value) < 4 * found.error < 2e-3


def test_uneven_errors_stay_over_it_with_the_error_that_fresh_samples_show():
    draws = [channel([0.0, 0.1, 0.5], n=2000, key=key) for key in range(300)]
    found = [fano_margin(labels, decisions, 3, np.arange(2000)) for labels, decisions in draws]
    values = np.array([each.value for each in found])
    assert values.min() > 0
    assert np.mean([each.error for each in found]) == pytest.approx(values.std(), rel=0.1)


def test_a_decision_that_is_always_right_is_at_its_bound():
    labels = np.arange(30) % 3
    assert fano_margin(labels, labels, 3, np.arange(30)).value == 0


@pytest.mark.slow
def test_beyond_sixteen_members_chains_are_sampled():
    evidence = planted(members=18)
    found = measure(evidence)
    parts = evidence.contributions / np.sqrt((evidence.contributions**2).mean(-1, keepdims=True))
    alone = [-cross_entropy(each @ evidence.head + evidence.bias, evidence.labels).mean() for each in parts]
    greedy = found.performance["greedy_values"].value
    assert found.greedy_order[0] == np.argmax(alone)
    assert greedy[1] == pytest.approx(max(alone), rel=1e-4)
    assert greedy[-1] == pytest.approx(-found.loss.mean(), rel=1e-4)
    assert 0 < found.performance["violation_rate"].value < 1
