"""The five entropies of which all information terms are made, by each estimator.

`plugin`, `miller_madow`, `grassberger` and `chao_shen` see the counts of joint patterns; `pairwise` truncates
H(O) and H(O, Y) at second order; `decoder` has a held-out loss in place of H(Y | O), and knows no H(O).
What an estimator does not define itself (H(Y), the entropies of single members) is Miller-Madow's.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from analysis.decoding import held_out_surprises
from analysis.entropy import CountEstimator, entropy, pattern_ids, surprises
from analysis.pairwise import PairEntropies, lay_out, pair_entropies, pair_surprises, sums

Estimator = Literal["plugin", "miller_madow", "grassberger", "chao_shen", "pairwise", "decoder"]


def counting(estimator: Estimator) -> CountEstimator:
    """The estimator of the entropies that `estimator` has no way of its own for."""
    return "miller_madow" if estimator == "pairwise" or estimator == "decoder" else estimator


def check(estimator: str, shape: tuple[int, ...], classes: int, budget: int) -> Estimator:
    """Raises ValueError unless the estimator exists, and needs no more than `budget` bytes for [K, N]."""
    if estimator not in get_args(Estimator):
        raise ValueError(f"estimator is {estimator!r}, but must be one of {', '.join(get_args(Estimator))}")
    members, examples = shape
    width = members * classes
    numbers = 10 * examples * members
    if estimator == "pairwise":
        numbers += 10 * width**2  # one table, and what is read from it
    if estimator == "decoder":
        numbers += 4 * examples * width + 60 * width * classes  # the inputs, and what L-BFGS remembers
    needed = numbers * jnp.zeros(()).dtype.itemsize
    if needed > budget:
        raise ValueError(
            f"budget is {budget:,} bytes, but {estimator} needs {needed:,} for {members} members of "
            f"{classes} classes: raise it, take fewer members, or merge rare classes"
        )
    return cast(Estimator, estimator)


class Entropies(NamedTuple):
    """Surprises of each example, [N], or means; along a last axis M of the first k members, for several k."""

    label: Float[Array, "*N"]  # H(Y)
    members: Float[Array, "*N"]  # Σ_k H(O_k)
    joint: Float[Array, "*N"]  # H(O)
    members_y: Float[Array, "*N"]  # Σ_k H(O_k, Y)
    left_open: Float[Array, "*N"]  # H(Y | O)
    number: Int[Array, "*M"]  # k

    @property
    def relevance(self) -> Float[Array, "*N"]:
        return self.members + self.number * self.label - self.members_y

    @property
    def redundancy(self) -> Float[Array, "*N"]:
        return self.members - self.joint

    @property
    def conditional_redundancy(self) -> Float[Array, "*N"]:
        return self.members_y - (self.number - 1) * self.label - self.joint - self.left_open

    @property
    def joint_information(self) -> Float[Array, "*N"]:
        return self.label - self.left_open


class Reading(NamedTuple):
    """An estimator at work on one sample."""

    surprises: Entropies  # [N]
    with_labels: Callable[[Array], tuple[Array, Array]]  # order of the predictions -> means of the last two
    states: Array  # how many the fullest of its tables shows


def read(
    predictions: Int[Array, "K N"],
    labels: Int[Array, "N"],
    classes: int,
    estimator: Estimator,
    half: Int[Array, "N"],
) -> Reading:
    """Puts an estimator to work; `half` (0, 1) says in which half of the sample `decoder` puts an example."""
    if estimator == "pairwise":
        return _from_pairs(predictions, labels, classes)
    if estimator == "decoder":
        return _from_decoder(predictions, labels, classes, half)
    return _from_counts(predictions, labels, classes, estimator)


def read_prefixes(
    predictions: Int[Array, "K N"], labels: Int[Array, "N"], classes: int, estimator: Estimator
) -> tuple[Entropies, Int[Array, "K"]]:
    """The surprises [N, K] of the first k = 1..K members, and the states [K] of the fullest table of each.

    Not by `decoder`, which knows no H(O).
    """
    if estimator == "pairwise":
        layout = lay_out(predictions, labels, classes)
        *_, states = pair_entropies(layout)
        fullest = jax.lax.cummax(jnp.triu(states).max(0))
        return _truncated(pair_surprises(layout), surprises(labels, "miller_madow")), fullest
    number = jnp.arange(1, predictions.shape[0] + 1)
    prefixes, _, joint = _counted(predictions, labels, classes, counting(estimator), number)
    return prefixes, joint.max(1) + 1


def _all_members(prefixes: Entropies) -> Entropies:
    return jax.tree.map(lambda of_prefix: of_prefix[..., -1], prefixes)


def _counted(
    predictions: Int[Array, "K N"],
    labels: Int[Array, "N"],
    classes: int,
    estimator: CountEstimator,
    number: Int[Array, "M"],
) -> tuple[Entropies, Int[Array, "K N"], Int[Array, "M N"]]:
    """Surprises [N, M] of the first `number` members; names below N of the states of one, and of theirs."""
    member = jnp.arange(predictions.shape[0])[:, None]
    single = jax.vmap(partial(pattern_ids, classes=classes))(predictions[:, None])
    joint = jax.lax.map(lambda k: pattern_ids(jnp.where(member < k, predictions, 0), classes), number)
    names = jnp.concatenate([single, joint])

    each = jax.vmap(partial(surprises, estimator=estimator), out_axes=-1)
    (single_h, joint_h), (single_y, joint_y) = (
        jnp.split(each(keys), [len(member)], axis=-1) for keys in (names, names * classes + labels)
    )
    members, members_y = (h.cumsum(-1)[:, number - 1] for h in (single_h, single_y))
    entropies = Entropies(each(labels[None]), members, joint_h, members_y, joint_y - joint_h, number)
    return entropies, single, joint


def _from_counts(
    predictions: Int[Array, "K N"], labels: Int[Array, "N"], classes: int, estimator: CountEstimator
) -> Reading:
    members = jnp.array(predictions.shape[:1])
    prefixes, single, joint = _counted(predictions, labels, classes, estimator, members)
    entropies, names = _all_members(prefixes), jnp.concatenate([single, joint])

    def with_labels(order):
        h = jax.vmap(partial(entropy, estimator=estimator))(names[:, order] * classes + labels)
        return h[:-1].sum(), h[-1] - entropies.joint.mean()

    return Reading(entropies, with_labels, joint.max() + 1)


def _from_decoder(
    predictions: Int[Array, "K N"], labels: Int[Array, "N"], classes: int, half: Int[Array, "N"]
) -> Reading:
    """The reader is not fitted anew to shuffled labels: it has not seen those that it is tested on, so under
    the null as well it is a fixed reader of the predictions."""
    counts = _from_counts(predictions, labels, classes, "miller_madow")
    losses = held_out_surprises(predictions, labels, half, classes)

    def loss(order):
        return jnp.take_along_axis(losses[order], labels[:, None], axis=1)[:, 0]

    def with_labels(order):
        return counts.with_labels(order)[0], loss(order).mean()

    unknown = jnp.full(labels.size, jnp.nan)
    entropies = counts.surprises._replace(joint=unknown, left_open=loss(jnp.arange(labels.size)))
    return Reading(entropies, with_labels, jnp.zeros((), int))


def _from_pairs(predictions: Int[Array, "K N"], labels: Int[Array, "N"], classes: int) -> Reading:
    layout = lay_out(predictions, labels, classes)
    label = surprises(labels, "miller_madow")
    joint, _, states = pair_entropies(layout)

    def with_labels(order):
        _, pairs_y, _ = pair_entropies(layout.shuffled(order))
        shuffled = _all_members(_truncated(sums(joint, pairs_y), label.mean()))
        return shuffled.members_y, shuffled.left_open

    entropies = _all_members(_truncated(pair_surprises(layout), label))
    return Reading(entropies, with_labels, states.max())


def _truncated(pairs: PairEntropies, label: Float[Array, "*N"]) -> Entropies:
    """TC(O_1..k) as Σ_{i<j≤k} I(O_i; O_j), TC(O | Y) as Σ I(O_i; O_j | Y), solved for H(O) and H(Y | O)."""
    label = label[..., None]
    k = jnp.arange(1, pairs.alone.shape[-1] + 1)
    members, members_y = pairs.alone.cumsum(-1), pairs.alone_y.cumsum(-1)
    joint = pairs.before.cumsum(-1) - (k - 2) * members
    joint_y = pairs.before_y.cumsum(-1) - (k - 2) * members_y + (k - 1) * (k - 2) / 2 * label
    return Entropies(label, members, joint, members_y, joint_y - joint, k)
