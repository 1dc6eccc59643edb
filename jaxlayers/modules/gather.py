"""What a query gathers from the past: softmax(q kᵀ / √d) v, with its derivative written out.

Left to itself, autodiff keeps the scores' mask and each step of the softmax, and on CPU XLA copies scores
into other layouts for the backward pass. Here every product is one of plain matrices for each key head, and
of the [S, T] arrays one alone is kept: exp(score), not yet divided by its sum, which divides instead what is
gathered, and in the backward pass the derivative that comes in, both of them d wide. Queries are the last
dimension of scores, since a maximum over the last is the one that XLA on CPU does not vectorise.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Rows = Float[Array, "B KV T d"]  # queries: of all heads that share a key, one group below the other
Columns = Float[Array, "B KV S d"]
Scores = Float[Array, "B KV S T"]
Kept = tuple[Rows, Columns, Columns, Scores, Float[Array, "B KV T 1"], Rows]


def gather(
    q: Float[Array, "B T KV G d"],
    k: Float[Array, "B S KV d"],
    v: Float[Array, "B S KV d"],
    past: Bool[Array, "T S"],
) -> Float[Array, "B T D"]:
    """The mean of the values that each query may see, weighted by softmax(q·k / √d); heads side by side."""
    B, T, KV, G, d = q.shape
    rows = q.transpose(0, 2, 3, 1, 4).reshape(B, KV, G * T, d)
    mean = _mean(rows, k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3), jnp.tile(past, (G, 1)))
    return mean.reshape(B, KV, G, T, d).transpose(0, 3, 1, 2, 4).reshape(B, T, -1)


@jax.custom_vjp
def _mean(q: Rows, k: Columns, v: Columns, past: Bool[Array, "T S"]) -> Rows:
    return _forward(q, k, v, past)[0]


def _forward(q: Rows, k: Columns, v: Columns, past: Bool[Array, "T S"]) -> tuple[Rows, Kept]:
    scores = _full(k @ q.mT) * q.shape[-1] ** -0.5
    scores = jnp.where(past.T, scores, -jnp.inf)
    weights = jnp.exp(scores - scores.max(-2, keepdims=True))
    share = 1 / weights.sum(-2)[..., None]
    weights = weights.astype(q.dtype)
    mean = (_full(_over_keys(weights, v)) * share).astype(q.dtype)
    return mean, (q, k, v, weights, share, mean)


def _backward(kept: Kept, dmean: Rows) -> tuple[Rows, Columns, Columns, None]:
    """With p the softmax and dp = dmean vᵀ: dscores = p (dp − Σ p dp), where Σ p dp = dmean · mean
    (Dao et al. 2022, appendix B.2), and p = 0 where the mask is."""
    q, k, v, weights, share, mean = kept
    dsum = (_full(dmean) * share).astype(q.dtype)
    along = (_full(dsum) * _full(mean)).sum(-1)[..., None, :]
    dscores = _full(weights) * (_full(v @ dsum.mT) - along) * q.shape[-1] ** -0.5
    dscores = dscores.astype(q.dtype)
    return _over_keys(dscores, k), dscores @ q, weights @ dsum, None


def _over_keys(scores: Scores, columns: Columns) -> Rows:
    """scoresᵀ @ columns. The narrow factor is transposed and not the wide one, as XLA on CPU would: a third
    less time."""
    barrier = jax.lax.optimization_barrier  # or XLA turns the product round again
    return barrier(barrier(columns.mT) @ scores).mT


_mean.defvjp(_forward, _backward)


def _full(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """In float32 at least."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
