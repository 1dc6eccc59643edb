"""Causal self-attention: any number of query heads on each key and value head."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxlayers.config import ModelConfig
from jaxlayers.modules.linear import by_head, linear


def rotate(x: Float[Array, "B T H d"], base: float) -> Float[Array, "B T H d"]:
    """Rotary positions (Su et al. 2021), pairing dimension i with i + d/2, as Llama does."""
    length, half = x.shape[1], x.shape[3] // 2
    angle = jnp.arange(length)[:, None] * base ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[:, None].astype(x.dtype), jnp.sin(angle)[:, None].astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nnx.Module):
    """softmax(Q Kᵀ / √d + causal mask) V, by head, then one linear map over all heads."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        columns = (config.heads + 2 * config.key_value_heads) * config.head_width
        self.qkv = linear(config.width, columns, config, rngs)
        self.out = linear(config.width, config.width, config, rngs)

    def scale_start(self, factor: float) -> None:
        """Multiplies the weights that the output is linear in: values and out, not queries and keys."""
        values = (self.config.heads + self.config.key_value_heads) * self.config.head_width
        self.qkv.kernel[...] = self.qkv.kernel[...].at[:, values:].multiply(factor)
        self.out.kernel[...] *= factor

    def mix(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """What each head gathers from the past, the heads side by side."""
        B, T, D = x.shape
        kv, d = self.config.key_value_heads, self.config.head_width
        group = self.config.heads // kv
        # A linear layer sees two dimensions: with three, XLA on CPU copies transposed
        # activations in the backward pass (about a quarter of a step).
        projected = self.qkv(x.reshape(B * T, D)).reshape(B, T, -1, d)
        q, k, v = jnp.split(projected, [self.config.heads, self.config.heads + kv], axis=2)
        if self.config.positions == "rotary":
            q, k = rotate(q, self.config.rotary_base), rotate(k, self.config.rotary_base)
        q = q.reshape(B, T, kv, group, d)
        scores = jnp.einsum("btkgd,bskd->bkgts", q * d**-0.5, k)
        scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
        causal = jnp.tril(jnp.ones((T, T), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1).astype(x.dtype)
        return jnp.einsum("bkgts,bskd->btkgd", weights, v).reshape(B, T, D)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self.out(self.mix(x).reshape(-1, x.shape[-1])).reshape(x.shape)

    def parts(self, x: Float[Array, "B T D"]) -> Float[Array, "H B T D"]:
        """By head; the output bias belongs to none and is shared equally."""
        return by_head(self.out, self.mix(x), self.config.heads)
