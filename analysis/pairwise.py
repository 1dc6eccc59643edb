"""Dependence between members, pair by pair: exact counts of every pair of predictions, by matrix products.

With the predictions one-hot, X [N, K*C], the counts of all pairs are XᵀX, and those given a label are XᵀX
over its examples. Two matrices of entropies follow, H(O_i, O_j) and H(O_i, O_j, Y), with H(O_i) and
H(O_i, Y) on their diagonals; all second-order information is a signed sum of these. The entropies are
Miller-Madow's: the plug-in bias of K(K-1)/2 tables would add up to more than H(Y).

The examples are laid out by label in blocks, so that the tables of all labels together cost no more than the
unconditional one, and only one table of [K*C, K*C] is held at a time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped


class PairEntropies(NamedTuple):
    """For each member j: its own entropy, and the sum of its entropies with the members before it.

    `alone` is H(O_j), `before` is Σ_{i<j} H(O_i, O_j), and the two `_y` are the same of (·, Y).
    As means they are [K]; as surprises of each example, [N, K].
    """

    alone: Float[Array, "*N K"]
    before: Float[Array, "*N K"]
    alone_y: Float[Array, "*N K"]
    before_y: Float[Array, "*N K"]


class Layout(NamedTuple):
    """A sample in the order of its labels, in blocks of `size` slots, each label filled up to whole blocks.

    A table is [R, R] with R = K*C: the counts of pairs of predictions, or the surprises at them.
    """

    predictions: Int[Array, "N K"]
    classes: int
    example: Int[Array, "slots"]  # in each slot; N, which is none, where a label is filled up
    slot: Int[Array, "N"]  # of each example
    first: Int[Array, "C+1"]  # the blocks of label y are first[y] to first[y + 1]
    size: int

    def shuffled(self, order: Int[Array, "N"]) -> "Layout":
        """The predictions in this order against the same labels."""
        return self._replace(example=jnp.append(order, order.size)[self.example])

    def block(self, block: Array, rows: Shaped[Array, "N K"], none: int) -> Shaped[Array, "B K"]:
        """The rows of the examples in a block, and `none` where it is filled up."""
        examples = jax.lax.dynamic_slice_in_dim(self.example, block * self.size, self.size)
        return jnp.take(rows, examples, axis=0, mode="fill", fill_value=none)

    def one_hot(self, block: Array, columns: int) -> Float[Array, "B R"]:
        """The predictions in a block, by the first `columns` classes."""
        return jax.nn.one_hot(self.block(block, self.predictions, self.classes), columns).reshape(
            self.size, -1
        )

    def counts(self, root: Float[Array, "N"], first: Array | int, last: Array | int) -> Float[Array, "R R"]:
        """Over the blocks first..last-1, an example counting `root` squared.

        Whole numbers are exact in float32 up to 2**24 examples. A member's last class is what the others
        leave of all examples, so one column of ones takes the place of the last classes of all members.
        """
        members = self.predictions.shape[1]
        others = self.classes - 1

        def add(block, table):
            rows = jnp.pad(self.one_hot(block, others), ((0, 0), (0, 1)), constant_values=1)
            rows *= self.block(block, root[:, None], 0)
            return table + rows.T @ rows

        def complete(table):
            given = table[:-1].reshape(members, others, -1)
            rest = table[-1] - given.sum(1, keepdims=True)
            return jnp.concatenate([given, rest], 1).reshape(members * self.classes, -1)

        width = members * others + 1
        table = jax.lax.fori_loop(first, last, add, jnp.zeros((width, width)))
        return complete(complete(table).T)

    def counts_of(self, label: Array, root: Float[Array, "N"]) -> Float[Array, "R R"]:
        return self.counts(root, self.first[label], self.first[label + 1])

    def by_pair(self, table: Shaped[Array, "R R"]) -> Shaped[Array, "K K"]:
        members = self.predictions.shape[1]
        return table.reshape(members, self.classes, members, self.classes).sum((1, 3))


def lay_out(predictions: Int[Array, "K N"], labels: Int[Array, "N"], classes: int) -> Layout:
    examples = labels.size
    size = min(256, max(8, examples // (2 * classes)))  # large for the products, small against the filling up
    sizes = jnp.bincount(labels, length=classes)
    first = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(-(-sizes // size))])
    order = jnp.argsort(labels)
    ordered = labels[order]
    slots = first[ordered] * size + jnp.arange(examples) - (jnp.cumsum(sizes) - sizes)[ordered]
    example = jnp.full((examples // size + classes) * size, examples, order.dtype).at[slots].set(order)
    slot = jnp.zeros(examples, slots.dtype).at[order].set(slots)
    return Layout(predictions.T, classes, example, slot, first, size)


def _surprise(counts: Float[Array, "R R"], examples: int) -> Float[Array, "R R"]:
    """Miller and Madow's, of an example in each cell; an empty cell's is never asked for."""
    counts = jnp.maximum(counts, 1)
    return jnp.log(examples / counts) + 1 / (2 * counts) - 1 / (2 * examples)


def pair_entropies(layout: Layout) -> tuple[Float[Array, "K K"], Float[Array, "K K"], Int[Array, "K K"]]:
    """H(O_i, O_j) and H(O_i, O_j, Y) in nats, and how many states of (O_i, O_j, Y) the sample shows."""
    (examples, members), classes, once = layout.predictions.shape, layout.classes, jnp.ones(layout.slot.size)

    def means(counts):
        return layout.by_pair(counts / examples * _surprise(counts, examples))

    def add(carry, label):
        total, pairs_y, states = carry
        counts = layout.counts_of(label, once)
        return (total + counts, pairs_y + means(counts), states + layout.by_pair(counts > 0)), None

    pairs = jnp.zeros((members, members))
    nothing = jnp.zeros((members * classes,) * 2), pairs, pairs.astype(int)
    (total, pairs_y, states), _ = jax.lax.scan(add, nothing, jnp.arange(classes))
    return means(total), pairs_y, states


def sums(pairs: Float[Array, "K K"], pairs_y: Float[Array, "K K"]) -> PairEntropies:
    """What `pair_entropies` comes to for each member."""
    before, before_y = jnp.triu(pairs, 1).sum(0), jnp.triu(pairs_y, 1).sum(0)
    return PairEntropies(jnp.diag(pairs), before, jnp.diag(pairs_y), before_y)


def pair_surprises(layout: Layout) -> PairEntropies:
    """The same for each example: their means over the examples are those `sums`."""
    (examples, members), classes, once = layout.predictions.shape, layout.classes, jnp.ones(layout.slot.size)
    before = jnp.kron(jnp.triu(jnp.ones((members, members)), 1), jnp.ones((classes, classes)))
    total = _surprise(layout.counts(once, 0, layout.first[-1]), examples)

    def read(rows, table):
        pairs = jnp.matmul(rows, table * before, precision="highest")
        return [(rows * x).reshape(-1, members, classes).sum(-1) for x in (jnp.diag(table), pairs)]

    def of_label(laid, label):
        table = _surprise(layout.counts_of(label, once), examples)

        def of_block(block, laid):
            rows = layout.one_hot(block, classes)
            new = jnp.stack([*read(rows, total), *read(rows, table)])
            return jax.lax.dynamic_update_slice_in_dim(laid, new, block * layout.size, axis=1)

        first, last = layout.first[label], layout.first[label + 1]
        return jax.lax.fori_loop(first, last, of_block, laid), None

    nothing = jnp.zeros((4, layout.example.size, members))
    laid, _ = jax.lax.scan(of_label, nothing, jnp.arange(classes))
    return PairEntropies(*laid[:, layout.slot])


def pair_draws(
    layout: Layout, times: Float[Array, "D N"]
) -> tuple[Float[Array, "D K K"], Float[Array, "D K K"]]:
    """What `pair_entropies` comes to if examples count `times`, at the surprises of the sample itself."""
    (examples, members), classes, once = layout.predictions.shape, layout.classes, jnp.ones(layout.slot.size)
    total = _surprise(layout.counts(once, 0, layout.first[-1]), examples)

    def of_label(means, label):
        table = _surprise(layout.counts_of(label, once), examples)

        def of_draw(times):
            counts = layout.counts_of(label, jnp.sqrt(times)) / times.sum()
            return layout.by_pair(counts * total), layout.by_pair(counts * table)

        return jax.tree.map(jnp.add, means, jax.lax.map(of_draw, times)), None

    nothing = (jnp.zeros((times.shape[0], members, members)),) * 2
    return jax.lax.scan(of_label, nothing, jnp.arange(classes))[0]
