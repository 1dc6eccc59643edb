"""Causal self-attention: any number of query heads on each key and value head."""

from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxlayers.config import ModelConfig
from jaxlayers.modules.gather import gather
from jaxlayers.modules.linear import by_head, linear


class Memory(NamedTuple):
    """The keys and values of the positions so far, with room for the longest sequence."""

    keys: Float[Array, "*n B S KV d"]
    values: Float[Array, "*n B S KV d"]
    positions: Int[Array, "*n"]  # that are filled
    seen: Array | None = None  # what the projection must see again to go on


def rotate(
    x: Float[Array, "B T H d"], base: float, first: Int[Array, ""] | int = 0
) -> Float[Array, "B T H d"]:
    """Rotary positions (Su et al. 2021) from `first`, pairing dimension i with i + d/2, as Llama does."""
    length, half = x.shape[1], x.shape[3] // 2
    angle = (first + jnp.arange(length))[:, None] * base ** (-jnp.arange(half) / half)
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

    def before(self, batch: int) -> Array | None:
        """What the projection sees of the positions before the first."""
        return None

    def project(
        self, x: Float[Array, "B T D"], seen: Array | None
    ) -> tuple[Float[Array, "B T C d"], Array | None]:
        """Queries, keys and values, in this order, by head; and what the next positions must see of them."""
        # A linear layer sees two dimensions: with three, XLA on CPU copies transposed
        # activations in the backward pass (about a quarter of a step).
        return self.qkv(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:2], -1, self.config.head_width), seen

    def placed(
        self, qkv: Float[Array, "B T C d"], first: Int[Array, ""] | int = 0
    ) -> tuple[Float[Array, "B T KV G d"], Float[Array, "B T KV d"], Float[Array, "B T KV d"]]:
        """Queries, keys and values apart, at positions from `first` on."""
        heads, kv, d = self.config.heads, self.config.key_value_heads, self.config.head_width
        q, k, v = jnp.split(qkv, [heads, heads + kv], axis=2)
        if self.config.positions == "rotary":
            base = self.config.rotary_base
            q, k = rotate(q, base, first), rotate(k, base, first)
        return q.reshape(*q.shape[:2], kv, heads // kv, d), k, v

    def mix(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """What each head gathers from the past, the heads side by side."""
        qkv, _ = self.project(x, self.before(len(x)))
        return gather(*self.placed(qkv), jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool)))

    def empty(self, batch: int) -> Memory:
        """Of a batch of sequences, before the first position."""
        config = self.config
        room = jnp.zeros((batch, config.length, config.key_value_heads, config.head_width), config.dtype)
        return Memory(room, room, jnp.int32(0), self.before(batch))

    def advance(self, x: Float[Array, "B T D"], memory: Memory) -> tuple[Float[Array, "B T D"], Memory]:
        """What is written to T new positions, and the memory with them."""
        B, T, _ = x.shape
        qkv, seen = self.project(x, memory.seen)
        q, k, v = self.placed(qkv, memory.positions)
        at = memory.positions + jnp.arange(T)
        keys, values = memory.keys.at[:, at].set(k), memory.values.at[:, at].set(v)
        memory = Memory(keys, values, memory.positions + T, seen)
        past = jnp.arange(memory.keys.shape[1]) <= at[:, None]
        mixed = gather(q, memory.keys, memory.values, past)
        return self.out(mixed.reshape(B * T, -1)).reshape(B, T, -1), memory

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self.out(self.mix(x).reshape(-1, x.shape[-1])).reshape(x.shape)

    def parts(self, x: Float[Array, "B T D"]) -> Float[Array, "H B T D"]:
        """By head; the output bias belongs to none and is shared equally."""
        return by_head(self.out, self.mix(x), self.config.heads)
