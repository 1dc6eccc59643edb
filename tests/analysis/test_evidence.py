"""The file between a model and its analysis: what is saved comes back, what is broken is refused."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.evidence import Evidence
from jaxlayers.refusal import Refusal


def test_what_is_saved_comes_back(planted, tmp_path):
    evidence = replace(planted(2, 1), parameters=12, training_flops=3.5e9, config_hash="abc")
    evidence.save(tmp_path / "e.safetensors")
    found = Evidence.load(tmp_path / "e.safetensors")
    for name in ("contributions", "head", "bias", "labels", "group"):
        np.testing.assert_array_equal(getattr(found, name), getattr(evidence, name))
    for name in ("members", "norm", "task", "architecture", "depth", "seed", "parameters", "config_hash"):
        assert getattr(found, name) == getattr(evidence, name)
    assert found.training_flops == 3.5e9
    assert found.targets is None
    assert [path.name for path in tmp_path.iterdir()] == ["e.safetensors"]


def test_logits_are_the_sum_in_any_budget(planted):
    evidence = planted(2, 1)
    expected = evidence.contributions.astype(np.float64).sum(0) @ evidence.head + evidence.bias
    for budget in (1, 1 << 20):
        found = np.concatenate([part for _, part in evidence.logits(budget)])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def nan(array):
    broken = array.copy()
    broken.flat[3] = np.nan
    return broken


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: dict(contributions=nan(e.contributions)), "contributions holds NaN or infinite"),
        (lambda e: dict(head=nan(e.head)), "head holds NaN or infinite"),
        (lambda e: dict(labels=e.labels + 2), "labels must lie in 0 to 2, but runs from 2 to 4"),
        (lambda e: dict(members=e.members[:-1]), "members names 4 members, but contributions holds 5"),
        (lambda e: dict(members=e.members[:-1] + e.members[:1]), "names 'embedding' twice"),
        (lambda e: dict(norm="batch"), "norm is 'batch', but must be 'rms', 'layer' or 'none'"),
        (lambda e: dict(norm="rms"), "identity is broken at example"),
        (lambda e: dict(loss=np.zeros(64, np.float32)), "identity is broken at example"),
        (lambda e: dict(predictions=1 - np.minimum(e.labels, 1)), "identity is broken at example"),
        (lambda e: dict(regulariser=float("nan")), "regulariser is nan: give the λ of training"),
        (lambda e: dict(epsilon=np.full(64, -1.0, np.float32)), "not negative"),
    ],
)
def test_what_is_broken_is_refused_with_the_reason(planted, tmp_path, change, words):
    evidence = planted(2, 1)
    # bypass the shape checker of the tests: what a file holds is known only once it is read
    for name, value in change(evidence).items():
        object.__setattr__(evidence, name, value)
    with pytest.raises(Refusal, match=words):
        evidence.save(tmp_path / "e.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_true_loss_and_true_predictions_pass(planted):
    evidence = planted(2, 1)
    (_, z), *_ = evidence.logits()
    loss = np.log(np.exp(z).sum(1)) - z[np.arange(64), evidence.labels]
    replace(evidence, loss=loss.astype(np.float32), predictions=z.argmax(1).astype(np.int32)).check()


def normed(evidence, norm, epsilon):
    """The same contributions as a final norm would leave them."""
    c = evidence.contributions.astype(np.float64)
    if norm == "layer":
        c -= c.mean(2, keepdims=True)
    c *= np.sqrt((1 - epsilon) / (c.sum(0) ** 2).mean(1))[:, None]
    given = np.full(64, epsilon, np.float32)
    return replace(evidence, contributions=c.astype(np.float32), norm=norm, epsilon=given)


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_the_norm_of_the_sum_is_one_less_epsilon(planted, norm):
    evidence = normed(planted(2, 1), norm, 0.2)
    evidence.check()
    with pytest.raises(Refusal, match="mean square of the sum plus epsilon differs from 1 by"):
        replace(evidence, epsilon=None).check()


def test_under_layernorm_no_contribution_has_a_mean(planted):
    """Means that cancel in the sum are no member's to have either."""
    evidence = normed(planted(2, 1), "layer", 0.0)
    moved = evidence.contributions.copy()
    moved[0, 5] += 0.5
    moved[1, 5] -= 0.5
    with pytest.raises(
        Refusal, match="at example 5: norm is 'layer', but the mean of a contribution differs from 0 by"
    ):
        replace(evidence, contributions=moved).check()


def test_files_that_are_no_evidence_are_refused_by_name(tmp_path):
    with pytest.raises(Refusal, match=r"absent\.safetensors: there is no such file"):
        Evidence.load(tmp_path / "absent.safetensors")
    (tmp_path / "text.safetensors").write_text("hello, this is no tensor file")
    with pytest.raises(Refusal, match=r"text\.safetensors: not a whole safetensors file"):
        Evidence.load(tmp_path / "text.safetensors")
