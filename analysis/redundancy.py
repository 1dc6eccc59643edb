"""How redundancy spreads over the members: pair by pair, and as members are added in their order."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Key

from analysis.arguments import AnyArray
from analysis.entropy import surprises
from analysis.estimators import Estimator, check, read_prefixes
from analysis.pairwise import lay_out, pair_draws, pair_entropies
from analysis.resampling import bootstrap_means, draw, interval
from analysis.sample import sample


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Maps:
    """Member × member, in nats. What lies above the diagonal sums to the pairwise redundancy."""

    redundancy: Float[AnyArray, "*B K K"]  # I(O_i; O_j); on the diagonal H(O_i)
    conditional_redundancy: Float[AnyArray, "*B K K"]  # I(O_i; O_j | Y); on the diagonal H(O_i | Y)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PairwiseMaps(Maps):
    low: Maps  # the ends of the 95 % bootstrap intervals
    high: Maps
    saturated: Bool[AnyArray, "K K"]  # over N/5 states with the label: draw no conclusions


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Curves:
    """Of the first k = 1..K members, in nats; a slope is that of the least-squares line over k."""

    redundancy: Float[AnyArray, "*B K"]
    conditional_redundancy: Float[AnyArray, "*B K"]
    redundancy_slope: Float[AnyArray, "*B"] | float
    conditional_redundancy_slope: Float[AnyArray, "*B"] | float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prefixes(Curves):
    low: Curves  # the ends of the 95 % bootstrap intervals
    high: Curves
    saturated: Bool[AnyArray, "K"]  # over N/5 states, as in `information`: draw no conclusions


def pairwise_maps(
    member_predictions: ArrayLike,
    labels: ArrayLike,
    classes: int,
    *,
    group: ArrayLike | None = None,
    bootstraps: int = 200,
    seed: int = 0,
    budget: int = 2**30,
) -> PairwiseMaps:
    """Redundancy of each pair of the members of [K, N] predictions, alone and given the labels [N].

    Arguments, estimator and errors are those of `information(..., estimator="pairwise")`.
    """
    data = sample(member_predictions, labels, classes, group)
    check("pairwise", data.predictions.shape, classes, budget)
    key = jax.random.key(seed)
    return _maps(data.predictions, data.labels, data.group, key, classes, data.groups, bootstraps)


@partial(jax.jit, static_argnames=("classes", "groups", "bootstraps"))
def _maps(
    predictions: Int[Array, "K N"],
    labels: Int[Array, "N"],
    group: Int[Array, "N"],
    key: Key[Array, ""],
    classes: int,
    groups: int,
    bootstraps: int,
) -> PairwiseMaps:
    def maps(pairs, pairs_y, label):
        alone, alone_y = (jnp.diagonal(x, axis1=-2, axis2=-1) for x in (pairs, pairs_y))
        return Maps(
            alone[..., :, None] + alone[..., None, :] - pairs,
            alone_y[..., :, None] + alone_y[..., None, :] - pairs_y - label,
        )

    layout = lay_out(predictions, labels, classes)
    label = surprises(labels, "miller_madow")
    times = jax.vmap(lambda key: draw(key, groups)[group])(jax.random.split(key, bootstraps))
    label_drawn = times @ label / times.sum(-1)
    low, high = interval(maps(*pair_draws(layout, times), label_drawn[:, None, None]))
    pairs, pairs_y, states = pair_entropies(layout)
    value = maps(pairs, pairs_y, label.mean())
    return PairwiseMaps(**vars(value), low=low, high=high, saturated=states > labels.size / 5)


def prefixes(
    member_predictions: ArrayLike,
    labels: ArrayLike,
    classes: int,
    estimator: str = "pairwise",
    *,
    group: ArrayLike | None = None,
    bootstraps: int = 1000,
    seed: int = 0,
    budget: int = 2**30,
) -> Prefixes:
    """Redundancy and conditional redundancy of the first k of the members, for each k of [K, N] predictions.

    Arguments and errors are those of `information`; at least two members, for a slope; and `decoder` is
    refused, for it does not tell the two apart.
    """
    data = sample(member_predictions, labels, classes, group)
    estimator = check(estimator, data.predictions.shape, classes, budget)
    if estimator == "decoder":
        raise ValueError("estimator is decoder, which does not tell redundancy from conditional redundancy")
    if data.predictions.shape[0] < 2:
        raise ValueError("member_predictions has one member, but must have at least 2 for a slope")
    key = jax.random.key(seed)
    settings = classes, estimator, data.groups, bootstraps
    return _prefixes(data.predictions, data.labels, data.group, key, *settings)


@partial(jax.jit, static_argnames=("classes", "estimator", "groups", "bootstraps"))
def _prefixes(
    predictions: Int[Array, "K N"],
    labels: Int[Array, "N"],
    group: Int[Array, "N"],
    key: Key[Array, ""],
    classes: int,
    estimator: Estimator,
    groups: int,
    bootstraps: int,
) -> Prefixes:
    known, states = read_prefixes(predictions, labels, classes, estimator)
    centred = jnp.arange(predictions.shape[0]) - (predictions.shape[0] - 1) / 2

    def curves(means):
        slopes = means @ centred / (centred**2).sum()
        return Curves(means[..., 0, :], means[..., 1, :], slopes[..., 0], slopes[..., 1])

    per_example = jnp.stack([known.redundancy, known.conditional_redundancy], 1)
    low, high = interval(curves(bootstrap_means(key, per_example, group, groups, bootstraps)))
    value = curves(per_example.mean(0))
    return Prefixes(**vars(value), low=low, high=high, saturated=states > labels.size / 5)
