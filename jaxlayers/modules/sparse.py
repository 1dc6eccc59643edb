"""Sparse is Enough (Jaszczur et al. 2021, 2111.12763): decoding that reads few of the weights."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from jaxlayers.config import ModelConfig
from jaxlayers.modules.attention import Attention
from jaxlayers.modules.linear import linear

NOISE = 0.1  # times a standard Gumbel variable, on the controller's logits in training
HARD = 0.3  # of the sequences in training take the one unit; the rest a softmax over the block
TAPS = 3  # positions, and neighbouring heads, that the convolution sees


def select(logits: Float[Array, "... G N"], key: Key[Array, ""] | None) -> Float[Array, "... G N"]:
    """How far each unit counts: one of each block of N, or in training with `key` sometimes a mixture.

    A sequence is hard or soft as a whole, with the same gradient (straight-through; §3.1).
    """
    if key is None:
        return jax.nn.one_hot(logits.argmax(-1), logits.shape[-1], dtype=logits.dtype)
    noise, coin = jax.random.split(key)
    logits = logits + NOISE * jax.random.gumbel(noise, logits.shape, logits.dtype)
    soft = jax.nn.softmax(logits)
    away = jax.lax.stop_gradient(select(logits, None) - soft)
    return soft + jnp.where(jax.random.bernoulli(coin, HARD), away, 0)


class SparseMLP(nnx.Module):
    """out(relu(in x) ⊙ chosen), where a controller chooses one hidden unit in each block of N.

    Args:
        config: hidden is the number of units, sparse_block is N; the controller is a linear map of rank
            width / N.
    """

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        self.block = block = config.sparse_block
        self.reduce = linear(config.width, config.width // block, config, rngs)
        self.score = linear(config.width // block, config.hidden, config, rngs)
        # A unit is a row in both matrices, so that decoding reads the chosen ones alone.
        dtype, shape = config.parameter_dtype, (config.hidden, config.width)
        by_row = nnx.initializers.lecun_normal(in_axis=1, out_axis=0)
        self.inner = nnx.Param(by_row(rngs.params(), shape, dtype))
        self.inner_bias = nnx.Param(jnp.zeros(config.hidden, dtype)) if config.bias else None
        self.out = linear(config.hidden, config.width, config, rngs)

    def logits(self, x: Float[Array, "S D"]) -> Float[Array, "S G N"]:
        """The controller's, by block."""
        return self.score(self.reduce(x)).reshape(len(x), -1, self.block)

    def __call__(
        self, x: Float[Array, "B T D"], keys: Key[Array, " B"] | None = None
    ) -> Float[Array, "B T D"]:
        """Every unit is computed, and those not chosen are masked; with keys as in training, else hard."""
        rows = x.reshape(-1, x.shape[-1])
        hidden = rows @ self.inner[...].astype(x.dtype).T
        if self.inner_bias is not None:
            hidden += self.inner_bias[...].astype(x.dtype)
        logits = self.logits(rows).reshape(*x.shape[:2], -1, self.block)
        chosen = select(logits, None) if keys is None else jax.vmap(select)(logits, keys)
        chosen = chosen.reshape(hidden.shape)
        return self.out(jax.nn.relu(hidden) * chosen).reshape(x.shape)

    def decode(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The same in evaluation, from the chosen units alone: hidden / N rows of each matrix."""
        rows = x.reshape(-1, x.shape[-1])
        units = self.logits(rows).argmax(-1) + self.block * jnp.arange(self.config.hidden // self.block)

        def of_chosen(parameter: nnx.Param) -> jax.Array:
            return parameter.at[units].get(mode="promise_in_bounds").astype(x.dtype)

        hidden = jnp.einsum("sgd,sd->sg", of_chosen(self.inner), rows)
        if self.inner_bias is not None:
            hidden += of_chosen(self.inner_bias)
        written = jnp.einsum("sg,sgd->sd", jax.nn.relu(hidden), of_chosen(self.out.kernel))
        if self.out.bias is not None:
            written += self.out.bias[...].astype(x.dtype)
        return written.reshape(x.shape)

    def parts(self, x: Float[Array, "B T D"]) -> Float[Array, "1 B T D"]:
        return self(x)[None]


class MultiplicativeQKV(nnx.Module):
    """Queries, keys and values of S heads of width M from D (S + M) + 27 M² numbers, not 3 D² (§3.2).

    y[s, m] = Σ_i x_i by_head[i, s] by_dimension[i, m], then a convolution of 3 × 3 over length, causal, and
    heads, from M channels to M for each of the three.
    """

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        # The products have variance 1/D, as the entries of a linear layer.
        normal = nnx.initializers.normal(config.width**-0.25)
        width, heads, d, dtype = config.width, config.heads, config.head_width, config.parameter_dtype
        self.by_head = nnx.Param(normal(rngs.params(), (width, heads), dtype))
        self.by_dimension = nnx.Param(normal(rngs.params(), (width, d), dtype))
        self.convolution = linear(TAPS * TAPS * d, 3 * d, config, rngs)

    def empty(self, batch: int) -> Float[Array, "B P H d"]:
        """What comes before the first position."""
        config = self.config
        return jnp.zeros((batch, TAPS - 1, config.heads, config.head_width), config.dtype)

    def advance(
        self, x: Float[Array, "B T D"], past: Float[Array, "B P H d"]
    ) -> tuple[Float[Array, "B T 3*H d"], Float[Array, "B P H d"]]:
        """Queries, keys and values, in this order, and what the convolution must see of them to go on."""
        B, T, D = x.shape
        H, d = self.config.heads, self.config.head_width
        kernels = (parameter[...].astype(x.dtype) for parameter in (self.by_head, self.by_dimension))
        y = jnp.einsum("ti,ih,id->thd", x.reshape(B * T, D), *kernels).reshape(B, T, H, d)
        y = jnp.concatenate([past, y], axis=1)
        padded = jnp.pad(y, [(0, 0), (0, 0), (TAPS // 2, TAPS // 2), (0, 0)])
        seen = [padded[:, i : i + T, j : j + H] for i in range(TAPS) for j in range(TAPS)]
        qkv = self.convolution(jnp.concatenate(seen, -1).reshape(B * T * H, -1)).reshape(B, T, H, 3, d)
        return qkv.swapaxes(2, 3).reshape(B, T, 3 * H, d), y[:, T:]


class SparseAttention(Attention):
    """Attention whose queries, keys and values are `MultiplicativeQKV`'s; as many keys as queries."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        self.multiplicative = MultiplicativeQKV(config, rngs)
        self.out = linear(config.width, config.width, config, rngs)

    def before(self, batch: int) -> Float[Array, "B P H d"]:
        return self.multiplicative.empty(batch)

    def project(
        self, x: Float[Array, "B T D"], seen: Array | None
    ) -> tuple[Float[Array, "B T C d"], Array | None]:
        assert seen is not None
        return self.multiplicative.advance(x, seen)
