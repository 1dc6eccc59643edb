"""What a loss owes to the seed: bias, variance and diversity over trained copies, exactly.

The seeds' predictions f_k^s of a member are an ensemble about their mean f°_k, as the members of one
copy are about theirs, z^s = Σ_k w_k f_k^s; and the z^s about z° (Wood et al. 2023, arXiv 2301.03962).
With E_s the mean over the S copies at hand, and B the loss's Bregman divergence,

    E_s ℓ(y, z^s)  =  noise  +  bias           +  variance                      -  diversity
                            Σ w_k ℓ(y, f°_k)      Σ w_k E_s B(f_k^s ‖ f°_k)        E_s Σ w_k B(f_k^s ‖ z^s)
                   =  noise  +  ensemble_bias  +  ensemble_variance
                            ℓ(y, z°)              E_s B(z^s ‖ z°)

with the noise taken out of the two biases: the loss of the best of all predictions, which is the entropy
of a target that is a distribution, and zero for the squared loss and for labels. What an ensemble's
variance has beyond that of independent members, Σ_k w_k² of theirs, is the covariance (Ueda & Nakano
1996): for squares Σ_{j≠k} w_j w_k Cov(f_j, f_k), for the cross-entropy the same to second order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import entr
from jaxtyping import Float, Int

from analysis.arguments import AnyArray, check_potential, check_targets, check_weights, checked, finite
from analysis.decomposition import Reading, by_runs, decompose_rows, mix, read_rows, weighted_mean
from analysis.evidence import BUDGET, Evidence
from analysis.streaming import POTENTIALS, Potential, block_size, stream


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AcrossSeeds:
    """The terms above, and each member's variance. Variances divide by S, so that the sums are exact."""

    loss: Float[Array, " N"]  # the mean over the seeds
    noise: Float[Array, " N"]
    bias: Float[Array, " N"]
    variance: Float[Array, " N"]
    diversity: Float[Array, " N"]
    ensemble_bias: Float[Array, " N"]
    ensemble_variance: Float[Array, " N"]
    covariance: Float[Array, " N"]
    member_variance: Float[Array, "K N"]


def across_seeds(
    member_logits: Float[AnyArray, "S K N C"],
    targets: Int[AnyArray, " N"] | Float[AnyArray, "N C"],
    loss: Potential = "cross_entropy",
    weights: Float[AnyArray, " K"] | None = None,
) -> AcrossSeeds:
    """The loss of S trained copies taken apart; predictions in mean form, arguments as `decompose`'s."""
    if np.ndim(member_logits) != 4 or 0 in np.shape(member_logits):
        raise ValueError(
            f"member_logits has shape {np.shape(member_logits)}, but must be "
            "[seeds, members, examples, classes] with at least one of each"
        )
    seeds, members, examples, classes = np.shape(member_logits)
    check_potential(loss)
    f, t, w = checked(np.reshape(member_logits, (seeds * members, examples, classes)), targets, loss, None)
    f = f.reshape(seeds, members, examples, classes)
    w = check_weights(weights, members).astype(f.dtype)
    block = block_size(2 * members, classes, BUDGET)
    return finite(_across_seeds(f, t, w, loss, block), "member_logits")


def across_seeds_evidence(
    evidences: Sequence[Evidence],
    loss: Potential = "cross_entropy",
    reading: Reading = "contribution",
    weights: Float[AnyArray, " K"] | None = None,
    budget: int = BUDGET,
) -> AcrossSeeds:
    """`across_seeds` for trained copies of one model, seen on the same examples, some at a time."""
    check_potential(loss)
    first = evidences[0]
    for i, other in enumerate(evidences):
        if other.contributions.shape[:2] != first.contributions.shape[:2] or other.classes != first.classes:
            raise ValueError(f"evidences[{i}] differs from evidences[0] in members, examples or classes")
        if not np.array_equal(other.labels, first.labels):
            raise ValueError(f"evidences[{i}] has other labels than evidences[0]: take the same examples")
    members, examples, width = first.contributions.shape
    w = check_weights(weights, members, positive=reading == "contribution")
    targets = first.labels if loss != "squared" or first.targets is None else first.targets
    check_targets(targets, examples, first.classes, loss)
    block = block_size(2 * members, first.classes, budget // 2)

    def of_run(run: slice) -> AcrossSeeds:
        rows = [read_rows(evidence, run, w, reading) for evidence in evidences]
        f = [
            jnp.matmul(x, jnp.asarray(e.head, float), precision="highest") + jnp.asarray(e.bias, float)
            for x, e in zip(rows, evidences, strict=True)
        ]
        return _across_seeds(jnp.stack(f), jnp.asarray(targets[run]), w, loss, block)

    per_example = 4 * len(evidences) * members * (width + first.classes) * w.dtype.itemsize
    return by_runs(of_run, examples, budget // 2 // per_example)


@partial(jax.jit, static_argnames=("loss", "block"))
def _across_seeds(
    f: Float[Array, "S K N C"],
    targets: Int[Array, " N"] | Float[Array, "N C"],
    weights: Float[Array, " K"],
    loss: Potential,
    block: tuple[int, int],
) -> AcrossSeeds:
    equal = jnp.full(len(f), 1 / len(f), f.dtype)
    sums, centre = POTENTIALS[loss], mix(equal[None], f)[0]
    z = lax.map(lambda copy: mix(weights[None], copy)[0], f)
    copies = lax.map(lambda copy: decompose_rows(copy, None, targets, weights, block, loss), f)
    members = lax.map(lambda copy: stream(sums, copy, centre, None, targets, block), f)
    ensemble = stream(sums, z, mix(equal[None], z), None, targets, block)
    soft = loss == "cross_entropy" and targets.ndim == 2
    noise = entr(targets).sum(1) if soft else jnp.zeros_like(copies.bias[0])
    member_variance = members.divergence.mean(0)
    ensemble_variance = weighted_mean(equal, ensemble.divergence)
    return AcrossSeeds(
        weighted_mean(equal, copies.ensemble_loss),
        noise,
        weighted_mean(weights, members.reference_loss[0]) - noise,
        weighted_mean(weights, member_variance),
        weighted_mean(equal, copies.diversity),
        ensemble.reference_loss[0] - noise,
        ensemble_variance,
        ensemble_variance - weighted_mean(weights**2, member_variance),
        member_variance,
    )
