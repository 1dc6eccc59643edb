"""What a model's members are worth together, by the read-out of their contributions alone.

A cross-entropy is the logsumexp of the logits less the label's. Logits are linear in the subset, so a block
of classes is one matrix product, subsets by members, and only the exponentials are left; the maximum (0 at
least, the label's) and the sum are carried from block to block. Nothing of the stream's width is summed for a
subset: the norm of a sum of members is that of their coordinates in an orthonormal basis, at most K numbers
each (their Gram matrix would square what cancellation does to the rounding).
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from analysis.evidence import BUDGET, Evidence
from analysis.folds import Folds, in_turn
from analysis.lattice import AnyArray, checked_subsets

Renorm: TypeAlias = Literal["recomputed", "frozen"]
LANES = 1 << 18  # examples x subsets at once
CPU_LANES = 1 << 12  # as many numbers as the first cache of a core holds
BLOCK = 64  # classes at once, at most


def performance(
    evidence: Evidence,
    subsets: Bool[AnyArray, "M K"],
    norm: Renorm = "recomputed",
    folds: int = 1,
    budget: int = BUDGET,
) -> Folds:
    """Minus the mean cross-entropy, in nats, of the read-out of Σ_{k∈S} contributions[k].

    The final norm's statistic is that subset's own (`recomputed`), or stays the full model's (`frozen`). All
    members give the model's performance, none that of the read-out's bias. Whole groups of examples go to the
    folds in turn. `budget` bytes are worked in, beside the result. `ValueError` for arguments out of range.
    """
    members, examples, width = evidence.contributions.shape
    if norm not in get_args(Renorm):
        raise ValueError(f"norm is {norm!r}, but must be 'recomputed' or 'frozen'")
    chosen = checked_subsets(subsets, members)
    group = np.arange(examples) if evidence.group is None else evidence.group
    fold = in_turn(np.unique(group, return_inverse=True)[1], folds)
    on_cpu, wide = jax.default_backend() == "cpu", jnp.zeros(()).dtype == np.float64
    workers = (os.cpu_count() or 1) if on_cpu else 1  # these loops are too small for XLA to share out
    lanes = CPU_LANES if on_cpu else LANES
    batch = min(len(chosen), math.isqrt(lanes))
    missing = -len(chosen) % batch  # the last batch is filled up with empty sets
    batches = np.pad(chosen, ((0, missing), (0, 0))).reshape(-1, batch, members).swapaxes(1, 2)
    tiles = jnp.asarray(batches, float)
    head, bias = _in_blocks(evidence.head, evidence.bias)
    numbers = 2 * bias.shape[1] * (batch + members) + 4 * tiles.size // members + 4 * members * width
    per_example = numbers * tiles.itemsize
    renormalised = norm == "recomputed" and evidence.norm != "none"
    runs = list(evidence.chunks(per_example, min(budget // workers, lanes // batch * per_example)))

    def of_runs(runs: list[slice]) -> Float[np.ndarray, "rows B"]:
        sums = np.zeros((tiles.size // members, folds))
        with jax.enable_x64(wide):  # which a thread does not inherit
            for run in runs:
                contributions = evidence.contributions[:, run].astype(tiles.dtype)
                epsilon = np.zeros(1) if evidence.epsilon is None else evidence.epsilon[run]
                losses = _fold_losses(
                    jnp.asarray(contributions),
                    jnp.asarray(_coordinates(contributions)) if renormalised else None,
                    jnp.asarray(epsilon, float),
                    head,
                    bias,
                    jnp.asarray(evidence.labels[run]),
                    jnp.asarray(fold[run], float),
                    tiles,
                )
                sums += np.asarray(losses)
        return sums

    with ThreadPoolExecutor(workers) as pool:
        sums = np.sum(list(pool.map(of_runs, [runs[worker::workers] for worker in range(workers)])), 0)
    return Folds.of_losses(sums[: len(chosen)], fold.sum(0), tiles.dtype)


def _in_blocks(
    head: Float[np.ndarray, "D C"], bias: Float[np.ndarray, " C"]
) -> tuple[Float[Array, "G D c"], Float[Array, "G c"]]:
    """The read-out in blocks of classes; the last one is filled up with classes of probability 0."""
    width, classes = head.shape
    blocks = -(-classes // BLOCK)
    missing = -classes % blocks
    bias = np.pad(bias, (0, missing), constant_values=-np.inf).reshape(blocks, -1)
    head = np.pad(head, ((0, 0), (0, missing))).reshape(width, blocks, -1).swapaxes(0, 1)
    return jnp.asarray(head, float), jnp.asarray(bias, float)


def _coordinates(contributions: Float[np.ndarray, "K n D"]) -> Float[np.ndarray, "r n K"]:
    """Of each example's contributions in an orthogonal basis of its own, r = min(D, K): the mean square of a
    sum of some is that of their coordinates.

    By NumPy: two programs of XLA that factorise at once on a CPU can wait for each other for ever, each
    holding one of the threads that the other's parts are to run on.
    """
    basis = np.asarray(np.linalg.qr(contributions.transpose(1, 2, 0), mode="r"))
    return basis.swapaxes(0, 1) * basis.dtype.type(contributions.shape[2] ** -0.5)


@jax.jit
def _fold_losses(
    contributions: Float[Array, "K n D"],
    coordinates: Float[Array, "r n K"] | None,
    epsilon: Float[Array, " #n"],
    head: Float[Array, "G D c"],
    bias: Float[Array, "G c"],
    labels: Int[Array, " n"],
    fold: Float[Array, "n B"],
    tiles: Float[Array, "T K h"],
) -> Float[Array, "T*h B"]:
    """The subsets' cross-entropies, summed over the examples of each fold.

    Within a block the classes are gone through one by one, each n x h lanes: on a CPU XLA reduces an array of
    three axes at half that speed.
    """
    dot = partial(jnp.tensordot, axes=1, precision="highest")
    einsum = partial(jnp.einsum, precision="highest")
    place = jnp.divmod(labels, bias.shape[1])
    at_label = einsum("knd,nd->nk", contributions, head[place[0], :, place[1]])
    lanes = (len(tiles), len(labels), tiles.shape[2])
    scales = jnp.ones(lanes)
    if coordinates is not None:

        def scale(tile):
            square = jnp.square(dot(coordinates, tile)).sum(0) + epsilon[:, None]
            return (square + 1e-30) ** -0.5

        scales = jax.lax.map(scale, tiles)

    def add(carry, block):
        head, offset = block
        logits = einsum("knd,dc->cnk", contributions, head) - at_label
        offset = (offset[:, None] - bias[place])[..., None]

        def of_tile(arguments):
            tile, scale, top, total = arguments
            z = dot(logits, tile) * scale + offset  # [c, n, h]
            higher, _ = jax.lax.scan(lambda top, z: (jnp.maximum(top, z), None), top, z)
            total *= jnp.exp(top - higher)
            total, _ = jax.lax.scan(lambda total, z: (total + jnp.exp(z - higher), None), total, z)
            return higher, total

        return jax.lax.map(of_tile, (tiles, scales, *carry)), None

    (top, total), _ = jax.lax.scan(add, (jnp.zeros(lanes), jnp.zeros(lanes)), (head, bias))
    return einsum("tnh,nb->thb", top + jnp.log(total), fold).reshape(-1, fold.shape[1])
