"""Entropies of discrete variables from a sample, each a mean of surprises.

A sample shows a variable's states only through counts: example n sits in a state that m[n] of the N
examples share. Every estimator here gives that example a surprise s(m[n]), and the entropy is the mean of
the surprises over the sample, in nats. So an entropy is a per-example array until the caller takes the
mean; information, which is a signed sum of entropies, is one too, and the spread of either is that of a mean.

No count is dropped, and a variable seen in one state only has entropy 0 by every estimator.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

CountEstimator = Literal["plugin", "miller_madow", "grassberger", "chao_shen"]


def surprise(multiplicity: Int[Array, "N"], estimator: CountEstimator) -> Float[Array, "N"]:
    """The surprise of each example, of whose state the sample has `multiplicity` examples.

    With m the multiplicity and N the size of the sample:

    - `plugin`: -ln(m/N), the maximum-likelihood estimate. It is too low by about (states - 1)/2N.
    - `miller_madow`: adds that much back (Miller 1955): every observed state gives 1/2N to the mean.
    - `grassberger`: ln N - G(m), G as in Grassberger 2003/2008 ("Entropy estimates from insufficient
      samplings", arXiv physics/0307138), eq. 35.
    - `chao_shen`: the sample covers 1 - (share of singletons) of the probability, and each state is
      weighted by the inverse of its chance to have been seen at all (Chao & Shen 2003).
    """
    total = multiplicity.shape[-1]
    m = multiplicity.astype(float)
    if estimator == "plugin":
        return jnp.log(total / m)
    if estimator == "miller_madow":
        return jnp.log(total / m) + 1 / (2 * m) - 1 / (2 * total)
    if estimator == "grassberger":
        return jnp.asarray(_grassberger(total), m.dtype)[multiplicity]
    singletons = jnp.minimum((multiplicity == 1).sum(), total - 1)  # all: 0 covers nothing
    coverage = 1 - singletons / total
    p = coverage * m / total
    return coverage * jnp.log(p) / jnp.expm1(total * jnp.log1p(-p))


def _grassberger(total: int) -> np.ndarray:
    """ln N - G(m) for m = 0..N. G(2j) = G(2j+1) for j > 0, and G(2j+2) = G(2j) + 2/(2j+1)."""
    odd = np.arange(1, total + 1, 2)
    even = -np.euler_gamma - np.log(2) + np.concatenate([[0], np.cumsum(2 / odd)])
    surprises = np.log(total) - even[np.arange(total + 1) // 2]
    surprises[total] = 0  # one state only
    return surprises


def pattern_ids(predictions: Int[Array, "K N"], classes: int) -> Int[Array, "N"]:
    """A number in 0..P-1 for each example, equal for two examples if and only if all K predictions are.

    The predictions are packed into as few words of 31 bits as they need, and the words are sorted, so
    K log2(classes) may be any number. To number the patterns of a subset of members, put 0 for the others.
    """
    members, examples = predictions.shape
    bits = max(1, (classes - 1).bit_length())
    per_word = 31 // bits
    words = [
        sum(row << (bits * place) for place, row in enumerate(predictions[first : first + per_word]))
        for first in range(0, members, per_word)
    ]
    *words, order = jax.lax.sort((*words, jnp.arange(examples)), num_keys=len(words))
    starts = jnp.stack([_starts(word) for word in words]).any(0)
    return jnp.zeros(examples, jnp.int32).at[order].set(jnp.cumsum(starts, dtype=jnp.int32))


def _starts(ordered: Int[Array, "N"]) -> Array:
    """Where a sorted array takes a new value; not at the first, so that the running sum counts from 0."""
    return jnp.concatenate([jnp.zeros(1, bool), ordered[1:] != ordered[:-1]])


def _run_lengths(ordered: Int[Array, "N"]) -> Int[Array, "N"]:
    run = jnp.cumsum(_starts(ordered))
    return jax.ops.segment_sum(jnp.ones_like(ordered), run, ordered.size, indices_are_sorted=True)[run]


def surprises(key: Int[Array, "N"], estimator: CountEstimator) -> Float[Array, "N"]:
    """The surprise of each example at its own state, where `key` names the states by any integers."""
    order = jnp.argsort(key)
    return jnp.zeros(key.size).at[order].set(surprise(_run_lengths(key[order]), estimator))


def entropy(key: Int[Array, "N"], estimator: CountEstimator) -> Float[Array, ""]:
    """The mean of `surprises`, in a fifth of the time: a mean needs no order."""
    return surprise(_run_lengths(jnp.sort(key)), estimator).mean()


@partial(jax.jit, static_argnames=("classes", "estimator"))
def joint_information(
    ids: Int[Array, "N"], labels: Int[Array, "N"], classes: int, estimator: CountEstimator
) -> Float[Array, ""]:
    """I(O; Y) in nats, of a variable whose states `ids` names by 0..N-1 (as `pattern_ids` gives them).

    Within [0, H(Y)]: where a corrected estimate leaves that interval, its nearest end is returned.
    It may be called under jit, vmap and scan; N * classes must stay below 2**31.
    """
    label_entropy = entropy(labels, estimator)
    information = entropy(ids, estimator) + label_entropy - entropy(ids * classes + labels, estimator)
    return jnp.clip(information, 0, label_entropy)
