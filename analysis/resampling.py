"""Resampling whole groups of examples: the bootstrap of a mean, and the shuffles of a permutation null.

Examples of one group (the positions of a sequence) depend on each other, so groups are drawn, and shuffled,
as wholes. Where every example is a group of its own, both are the plain bootstrap and the plain shuffle.
Groups are numbered 0..G-1, and the examples lie in the order of their groups.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key

Tree = TypeVar("Tree")


def draw(key: Key[Array, ""], groups: int) -> Float[Array, "G"]:
    """How often each group is in a draw of as many groups as there are, with replacement."""
    drawn = (jax.random.uniform(key, (groups,)) * groups).astype(int)  # in half the time of randint
    return jnp.bincount(drawn, length=groups).astype(float)


def bootstrap_means(
    key: Key[Array, ""], values: Float[Array, "N *Q"], group: Int[Array, "N"], groups: int, draws: int
) -> Float[Array, "draws *Q"]:
    """The mean of `values` over the examples of drawn groups, `draws` times (Field & Welsh 2007)."""
    sums = jax.ops.segment_sum(values, group, groups)
    sizes = jnp.bincount(group, length=groups).astype(values.dtype)

    def mean(key):
        times = draw(key, groups)
        return jnp.tensordot(times, sums, 1, precision="highest") / (times @ sizes)

    return jax.lax.map(mean, jax.random.split(key, draws))


def interval(draws: Tree) -> tuple[Tree, Tree]:
    """The ends of the 95 % interval of each number in a tree, from draws along the leading axis."""
    count = len(jax.tree.leaves(draws)[0])
    if count < 40:
        raise ValueError(f"bootstraps is {count}, but must be at least 40 for a 95 % interval")
    numbers = jax.vmap(lambda tree: ravel_pytree(tree)[0])(draws)
    _, as_tree = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], draws))
    low, high = jnp.quantile(
        numbers, jnp.array([0.025, 0.975]), axis=0
    )  # one sort: each takes long to compile
    return as_tree(low), as_tree(high)


def shuffle(key: Key[Array, ""], group: Int[Array, "N"], groups: int) -> Int[Array, "N"]:
    """An order of the examples in which the groups follow each other at random, each in its own order."""
    return jnp.argsort(jax.random.bits(key, (groups,))[group])
