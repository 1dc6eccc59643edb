"""The read-out of subsets against a straightforward computation in float64, subset by subset."""

import dataclasses

import jax
import jaxtyping
import numpy as np
import pytest

import analysis.performance
from analysis.evidence import Evidence
from analysis.lattice import all_subsets
from analysis.performance import performance
from analysis.setfunctions import performance_lattice
from jaxlayers.ledger import Member


def plant(members=4, examples=37, width=6, classes=5, norm="rms", seed=0, share=0.1, **fields):
    """Random evidence whose ledger is as it should be: renormalising all members gives back the model."""
    rng = np.random.default_rng(seed)
    c = rng.normal(size=(members, examples, width))
    if norm == "layer":
        c -= c.mean(-1, keepdims=True)
    epsilon = rng.uniform(0, share, examples)
    if norm != "none":
        c *= np.sqrt((1 - epsilon) / np.square(c.sum(0)).mean(-1))[:, None]
    return Evidence(
        **{
            "contributions": c.astype(np.float32),
            "head": (2 * rng.normal(size=(width, classes))).astype(np.float32),
            "bias": rng.normal(size=classes).astype(np.float32),
            "labels": rng.integers(0, classes, examples).astype(np.int32),
            "members": tuple(Member(f"mlp {k}", "mlp", k) for k in range(members)),
            "norm": norm,
            "epsilon": None if norm == "none" else epsilon.astype(np.float32),
        }
        | fields
    )


def losses(evidence, subset, norm):
    """[N], all of it plain."""
    stream = evidence.contributions[subset].sum(0, dtype=np.float64)
    if norm == "recomputed" and evidence.norm != "none" and subset.any():
        epsilon = 0 if evidence.epsilon is None else evidence.epsilon.astype(np.float64)
        stream = stream / np.sqrt(np.square(stream).mean(-1) + epsilon)[:, None]
    z = stream @ evidence.head.astype(np.float64) + evidence.bias
    top = z.max(-1)
    at_label = z[np.arange(len(z)), evidence.labels]
    return top + np.log(np.exp(z - top[:, None]).sum(-1)) - at_label


def lattice(evidence, norm):
    subsets = all_subsets(len(evidence.contributions))
    return np.array([-losses(evidence, subset, norm).mean() for subset in subsets])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("norm", ["recomputed", "frozen"])
@pytest.mark.parametrize(
    "evidence",
    [
        plant(),
        plant(norm="layer"),
        plant(norm="none"),
        plant(share=0, epsilon=None),
        plant(members=7, width=3),  # fewer coordinates than members
        plant(members=1, examples=1, classes=2),
        plant(members=7, examples=70, classes=151),  # blocks of classes, batches of subsets and of examples
    ],
    ids=["rms", "layer", "none", "no epsilon", "narrow", "least", "blocks"],
)
def test_the_lattice_is_that_of_a_plain_computation(evidence, norm):
    values = performance_lattice(evidence, norm)
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, lattice(evidence, norm), rtol=1e-12, atol=1e-15)


def test_float32_is_right_to_its_rounding():
    evidence = plant(members=6, examples=200, classes=80, width=32)
    values = performance_lattice(evidence)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, lattice(evidence, "recomputed"), rtol=3e-6)


@pytest.mark.usefixtures("float64")
def test_all_members_are_the_model_and_none_is_the_bias():
    evidence = plant()
    model, nothing = evidence.contributions.sum(0) @ evidence.head + evidence.bias, evidence.bias[None]

    def mean_loss(z):
        z = np.broadcast_to(z, model.shape).astype(float)
        return np.mean(np.log(np.exp(z).sum(-1)) - z[np.arange(len(z)), evidence.labels])

    for norm in ("recomputed", "frozen"):
        values = performance_lattice(evidence, norm)
        np.testing.assert_allclose(-values[[0, -1]], [mean_loss(nothing), mean_loss(model)], rtol=2e-6)


@pytest.mark.usefixtures("float64")
def test_a_copy_of_a_member_changes_nothing_once_renormalised():
    one = plant(members=1, examples=20, share=0).contributions
    evidence = plant(
        members=2, examples=20, contributions=np.repeat(one, 2, 0) / 2, epsilon=np.zeros(20, np.float32)
    )
    recomputed, frozen = (performance_lattice(evidence, norm) for norm in ("recomputed", "frozen"))
    np.testing.assert_allclose(recomputed[1:3], recomputed[3], rtol=1e-12)
    assert abs(frozen[1] - frozen[3]) > 0.1


def test_members_that_cancel_leave_the_bias():
    one = plant(members=1, examples=20, share=0).contributions
    evidence = plant(members=3, examples=20, contributions=np.concatenate([one, -one, one]), epsilon=None)
    values = performance_lattice(evidence)
    np.testing.assert_allclose(values[0b011], values[0], rtol=1e-6)
    np.testing.assert_allclose(values[0b111], values[0b001], rtol=1e-6)


def test_norms_survive_large_members_that_cancel():
    """Members of size 300 whose sum is of size 1: by a Gram matrix in float32 a tenth of the norm is lost."""
    evidence = plant(members=3, examples=50, width=16, share=0)
    large = 300 * np.random.default_rng(1).normal(size=(50, 16)).astype(np.float32)
    together = evidence.contributions[0]
    spread = np.stack([together + large, -large, evidence.contributions[1]])
    evidence = dataclasses.replace(evidence, contributions=spread)
    np.testing.assert_allclose(performance_lattice(evidence), lattice(evidence, "recomputed"), rtol=2e-4)


def test_logits_of_ten_thousand():
    evidence = plant(
        members=3, norm="none", head=(4e3 * np.random.default_rng(2).normal(size=(6, 5))).astype(np.float32)
    )
    plain = lattice(evidence, "frozen")
    assert plain.min() < -1e4
    np.testing.assert_allclose(performance_lattice(evidence), plain, rtol=1e-5)


@pytest.mark.parametrize("budget", [1, 20_000])
def test_the_budget_changes_nothing(budget):
    evidence = plant(classes=70)
    np.testing.assert_allclose(
        performance_lattice(evidence, budget=budget), performance_lattice(evidence), rtol=1e-6
    )


def test_one_class_is_always_right():
    assert not performance_lattice(plant(classes=1)).any()


@pytest.mark.usefixtures("float64")
def test_folds_are_whole_groups():
    group = np.random.default_rng(3).integers(0, 9, 37).astype(np.int32) * 5
    evidence = plant(group=group)
    subsets = all_subsets(4)[[5, 0, 15]]
    found = performance(evidence, subsets, folds=4)
    by_example = np.array([-losses(evidence, subset, "recomputed") for subset in subsets])
    names = np.unique(group)
    for b in range(4):
        within = np.isin(group, names[b::4])
        assert found.sizes[b] == within.sum()
        np.testing.assert_allclose(found.values[b], by_example[:, within].mean(1), rtol=1e-12)
    np.testing.assert_allclose(found.mean, by_example.mean(1), rtol=1e-12)


def test_float64_reaches_the_threads():
    """As each thread of JAX has settings of its own."""
    with jax.enable_x64(True):
        assert performance(plant(), all_subsets(4)).values.dtype == np.float64
    assert performance(plant(), all_subsets(4)).values.dtype == np.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norm": "thawed"}, "norm is 'thawed', but must be 'recomputed' or 'frozen'"),
        ({"subsets": np.ones((2, 3), bool)}, r"subsets is bool of shape \(2, 3\), but must be .* \[M, 4\]"),
        ({"subsets": np.ones((0, 4), bool)}, r"subsets is bool of shape \(0, 4\)"),
        ({"subsets": np.ones(4, bool)}, r"subsets is bool of shape \(4,\)"),
        ({"folds": 0}, "folds is 0, but must be 1 to 37"),
        ({"folds": 38}, "folds is 38, but must be 1 to 37, the number of groups"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # or the checker would speak first
    with pytest.raises(ValueError, match=message):
        performance(plant(), **{"subsets": all_subsets(4)} | arguments)


def test_seventeen_members_are_too_many_for_a_lattice():
    with pytest.raises(ValueError, match="there are 17: use sampled chains"):
        performance_lattice(plant(members=17, examples=2))


def test_no_program_waits_for_threads_that_another_may_hold(monkeypatch):
    """Two factorisations at once stop for ever on a CPU: their parts need the threads that wait for them."""
    programs, fold_losses = [], analysis.performance._fold_losses

    def lowered(*arguments):
        programs.append(fold_losses.lower(*arguments).as_text())
        return fold_losses(*arguments)

    monkeypatch.setattr(analysis.performance, "_fold_losses", lowered)
    performance_lattice(plant())
    assert programs
    assert not any("lapack" in program for program in programs)
