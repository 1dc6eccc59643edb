"""What the members' predictions know of the label, together and apart.

With O_k the prediction of member k and Y the label (Brown 2009; Zhou & Li 2010), in nats:

    I(O_1..K; Y) = Σ_k I(O_k; Y) - TC(O)      + TC(O | Y),    TC(O) = Σ_k H(O_k) - H(O_1..K)
                 = relevance     - redundancy + conditional redundancy

Every term is a signed sum of entropies, each the mean of a surprise over the examples (`analysis.entropy`):
a term has a value per example, its mean is the estimate, and the bootstrap of its mean the interval.

Estimators (`analysis.estimators`):

- `plugin`, `miller_madow`, `grassberger`, `chao_shen`: from the counts of the joint patterns;
- `pairwise`: truncated at second order, from the tables of pairs. It needs few examples, but it is another
  quantity: among many members that repeat each other it counts the same redundancy once a pair;
- `decoder`: a held-out lower bound of the joint information. It does not tell redundancy from conditional
  redundancy (both are NaN), only their difference, `diversity`.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Key

from analysis.arguments import AnyArray
from analysis.bounds import fano_bound, hellman_raviv_bound
from analysis.entropy import pattern_ids, surprises
from analysis.estimators import Estimator, Reading, check, counting, read
from analysis.resampling import bootstrap_means, interval, shuffle
from analysis.sample import sample

Nats: TypeAlias = Float[AnyArray, "*B"] | float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Terms:
    """In nats, but the last three, which are error rates.

    relevance - redundancy + conditional_redundancy = joint_information + excess, exactly. An estimate of the
    left side may leave [0, H(Y)]: joint_information is then the nearest end, and excess the way from it.
    """

    label_entropy: Nats
    relevance: Nats
    redundancy: Nats
    conditional_redundancy: Nats
    diversity: Nats  # conditional redundancy - redundancy
    joint_information: Nats
    excess: Nats
    combination_loss: Nats  # H(Y | Ŷ) - H(Y | O): information that the read-out throws away
    error_rate: Nats  # of Ŷ
    fano_bound: Nats  # no decision that leaves H(Y | Ŷ) errs less
    hellman_raviv_bound: Nats  # the best decision from O errs no more


class Tested(NamedTuple):
    """The terms that are 0 if the members know nothing of the label, but for the bias of their estimates."""

    relevance: Float[Array, "*P"]
    joint_information: Float[Array, "*P"]  # with the excess: not clipped


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Information(Terms):
    """The estimates, and what they are worth."""

    low: Terms  # the ends of the 95 % bootstrap intervals
    high: Terms
    null: Tested  # the estimates with the labels shuffled, [permutations]
    p_value: Tested  # one-sided, of the members knowing nothing
    patterns: Int[AnyArray, ""] | int  # how many joint patterns the examples show
    saturated: Bool[AnyArray, ""] | bool  # draw no conclusions


class _Means(NamedTuple):
    """What the terms follow from: values per example, or means."""

    label_entropy: Float[Array, "*B"]
    relevance: Float[Array, "*B"]
    redundancy: Float[Array, "*B"]
    conditional_redundancy: Float[Array, "*B"]
    joint_information: Float[Array, "*B"]
    decision_entropy: Float[Array, "*B"]  # H(Y | Ŷ)
    error_rate: Float[Array, "*B"]

    def terms(self, classes: int) -> Terms:
        joint = jnp.clip(self.joint_information, 0, self.label_entropy)
        left_open = self.label_entropy - joint  # H(Y | O)
        return Terms(
            label_entropy=self.label_entropy,
            relevance=self.relevance,
            redundancy=self.redundancy,
            conditional_redundancy=self.conditional_redundancy,
            diversity=self.joint_information - self.relevance,
            joint_information=joint,
            excess=jnp.minimum(self.joint_information, 0)
            + jnp.maximum(0, self.joint_information - self.label_entropy),
            combination_loss=self.decision_entropy - left_open,
            error_rate=self.error_rate,
            fano_bound=fano_bound(self.decision_entropy, classes),
            hellman_raviv_bound=hellman_raviv_bound(left_open),
        )


def information(
    member_predictions: ArrayLike,
    labels: ArrayLike,
    ensemble_predictions: ArrayLike,
    classes: int,
    estimator: str = "miller_madow",
    *,
    group: ArrayLike | None = None,
    bootstraps: int = 1000,
    permutations: int = 99,
    seed: int = 0,
    budget: int = 2**30,
) -> Information:
    """The information terms of `member_predictions` [K, N] about `labels` [N], with intervals and a null.

    `ensemble_predictions` [N] is Ŷ; all three hold classes, 0..classes-1. `group` [N] says which examples
    depend on each other, such as the sequence each is from: the bootstrap draws whole groups, and the null
    shuffles them. The null lays the predictions of other examples against the labels.

    An estimate is `saturated` if its table shows over N/5 states (joint patterns; by `pairwise`, those of the
    fullest pair with the label), if the null's 95 % point is over half of it, or if 0 is outside the interval
    of its excess. `budget` is in bytes. Raises ValueError for what no estimate can be made of.
    """
    data = sample(member_predictions, labels, classes, group, ensemble_predictions)
    estimator = check(estimator, data.predictions.shape, classes, budget)
    if permutations < 19:
        raise ValueError(f"permutations is {permutations}, but must be at least 19 to show p = 0.05")
    arrays = data.predictions, data.labels, data.decisions, data.group
    settings = classes, estimator, data.groups, bootstraps, permutations
    return _information(*arrays, jax.random.key(seed), *settings)


@partial(jax.jit, static_argnames=("classes", "estimator", "groups", "bootstraps", "permutations"))
def _information(
    predictions: Int[Array, "K N"],
    labels: Int[Array, "N"],
    decisions: Int[Array, "N"],
    group: Int[Array, "N"],
    key: Key[Array, ""],
    classes: int,
    estimator: Estimator,
    groups: int,
    bootstraps: int,
    permutations: int,
) -> Information:
    drawing, shuffling, halving = jax.random.split(key, 3)
    half = shuffle(halving, jnp.arange(groups), groups)[group] % 2
    reading = read(predictions, labels, classes, estimator, half)

    known = reading.surprises
    decision = pattern_ids(decisions[None], classes)
    of_decision, of_both = jax.vmap(partial(surprises, estimator=counting(estimator)))(
        jnp.stack([decision, decision * classes + labels])
    )
    per_example = _Means(
        known.label,
        known.relevance,
        known.redundancy,
        known.conditional_redundancy,
        known.joint_information,
        of_both - of_decision,
        (decisions != labels).astype(known.label.dtype),
    )
    means = jax.tree.map(jnp.mean, per_example)
    drawn = _Means(*bootstrap_means(drawing, jnp.stack(per_example, -1), group, groups, bootstraps).T)
    low, high = interval(drawn.terms(classes))

    shuffling_keys = jax.random.split(shuffling, permutations)
    null, p_value = _test(
        reading, means, jax.lax.map(lambda key: shuffle(key, group, groups), shuffling_keys)
    )
    saturated = (
        (reading.states > labels.size / 5)
        | (jnp.quantile(null.joint_information, 0.95) > means.joint_information / 2)
        | (high.excess < -1e-3 * means.label_entropy)
        | (low.excess > 1e-3 * means.label_entropy)
    )
    patterns = pattern_ids(predictions, classes).max() + 1
    return Information(
        **vars(means.terms(classes)),
        low=low,
        high=high,
        null=null,
        p_value=p_value,
        patterns=patterns,
        saturated=saturated,
    )


def _test(reading: Reading, means: _Means, orders: Int[Array, "P N"]) -> tuple[Tested, Tested]:
    """The terms in each order of the predictions, and how often these are as large as the estimates."""
    as_it_is = jnp.arange(orders.shape[1])[None]
    with_labels = jax.lax.map(reading.with_labels, jnp.concatenate([as_it_is, orders]))
    gain = Tested(*(h[0] - h[1:] for h in with_labels))  # no other entropy depends on the order
    null = jax.tree.map(jnp.add, Tested(means.relevance, means.joint_information), gain)

    members_y, left_open = (h[0] for h in with_labels)
    rounding = 16 * jnp.finfo(members_y.dtype).eps * (members_y + jnp.abs(left_open))  # a tie is a tie
    as_large = jax.tree.map(lambda more: (more >= -rounding).sum(), gain)
    return null, jax.tree.map(lambda count: (1 + count) / (1 + len(orders)), as_large)
