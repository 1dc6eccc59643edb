"""A diagonal selective state-space model: Mamba (Gu & Dao 2023) in the form of Dao & Gu 2024 (2405.21060).

Each head carries a state h [N d], and position t decides how much of it is kept and what is written:

    h_t = exp(-Δ_t a) h_{t-1} + Δ_t b_t x_tᵀ        y_t = h_tᵀ c_t + skip · x_t

with Δ_t > 0 by head, b_t and c_t [N] for all heads, x_t [d]. The transition is a multiple of the identity, so
what s leaves of itself at t is one number, exp(-a Σ_{s<r≤t} Δ_r), and a chunk of positions is three matrix
products. Between chunks the states go through an associative scan. Before it all, x, b and c are a short
convolution of their own past.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxlayers.config import ModelConfig
from jaxlayers.modules.linear import by_head, linear

CHUNK = 32  # positions: on CPU, at length 128, 16 to 64 are about as fast and 128 is slower

TAPS = 4  # positions of the convolution

Step = tuple[jax.Array, jax.Array]


def compose(earlier: Step, later: Step) -> Step:
    """Two steps of h ← decay · h + write, as one."""
    return earlier[0] * later[0], earlier[1] * later[0] + later[1]


def selective_scan(
    log_decay: Float[Array, "B T H"],
    x: Float[Array, "B T H d"],
    b: Float[Array, "B T N"],
    c: Float[Array, "B T N"],
    state: Float[Array, "B H N d"],
) -> tuple[Float[Array, "B T H d"], Float[Array, "B H N d"]]:
    """h_t = exp(log_decay_t) h_{t-1} + b_t x_tᵀ, from h_0 = state: h_tᵀ c_t at every t, and the last h."""
    length = x.shape[1]
    chunk = min(CHUNK, length)

    def chunked(array: jax.Array) -> jax.Array:
        # Zeros fill the last chunk: they keep the state whole and write nothing.
        padding = [(0, 0)] * array.ndim
        padding[1] = (0, -length % chunk)
        return jnp.pad(array, padding).reshape(array.shape[0], -1, chunk, *array.shape[2:])

    x, b, c, log_decay = chunked(x), chunked(b), chunked(c), chunked(log_decay).transpose(0, 1, 3, 2)

    # What t keeps of s, exp(Σ_{s<r≤t} log_decay_r), summed for each pair: a difference of two running sums
    # would blur small steps after large ones.
    r, t, s = jnp.ogrid[:chunk, :chunk, :chunk]
    between = jnp.asarray((s < r) & (r <= t), x.dtype)
    exponent = jnp.einsum("bkhr,rts->bkhts", log_decay, between, precision="highest")
    keeps = jnp.where(s[0] <= t[0], jnp.exp(exponent), 0.0)
    y = jnp.einsum("bkhts,bkts,bkshd->bkthd", keeps, jnp.einsum("bktn,bksn->bkts", c, b), x)

    written = jnp.einsum("bksn,bkhs,bkshd->bkhnd", b, keeps[..., -1, :], x)
    kept = jnp.exp(jnp.cumsum(log_decay, axis=-1))  # of the state before the chunk
    decay = kept[..., -1, None, None]
    steps = jnp.pad(decay, [(0, 0), (1, 0)] + [(0, 0)] * 3), jnp.concatenate([state[:, None], written], 1)
    _, states = jax.lax.associative_scan(compose, steps, axis=1)
    y += jnp.einsum("bkht,bktn,bkhnd->bkthd", kept, c, states[:, :-1])
    return y.reshape(y.shape[0], -1, *y.shape[3:])[:, :length], states[:, -1]


class State(NamedTuple):
    """What a sequence leaves behind, whatever its length."""

    recent: Float[Array, "B P C"]  # the last inputs of the convolution
    memory: Float[Array, "B H N d"]


class SSM(nnx.Module):
    """out(y ⊙ silu(gate)), with y from the heads' states; gate, x, b, c and Δ in one linear map.

    x, b and c are silu of a causal convolution, channel by channel. It earns its place: on bytes of English,
    three blocks of width 64 end 500 steps at 1.19 nats with it and at 1.25 and 1.29 without (two seeds).

    Args:
        config: heads is the number of states side by side, each head_width wide; state is N, how much a head
            remembers of each of its dimensions.
    """

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        self.state = state = config.state
        heads, dtype = config.heads, config.parameter_dtype
        self.inner = linear(config.width, 2 * config.width + 2 * state + heads, config, rngs)
        self.out = linear(config.width, config.width, config, rngs)
        # As in Mamba-2: a from 1 to 16, steps from 0.001 to 0.1, so that memories last 1 to 1,000 positions.
        uniform = jax.random.uniform(rngs.params(), (2, heads), dtype)
        step = 0.001 * 100 ** uniform[1]
        self.log_rate = nnx.Param(jnp.log(1 + 15 * uniform[0]))
        self.step_bias = nnx.Param(step + jnp.log(-jnp.expm1(-step)))  # softplus of it is step
        self.skip = nnx.Param(jnp.ones(heads, dtype))
        taps = 0.25 * jax.random.normal(rngs.params(), (TAPS, config.width + 2 * state), dtype)
        self.taps = nnx.Param(taps.at[-1].add(1.0))  # near the identity at the start

    def empty(self, batch: int) -> State:
        """The state before the first position, in float32 at least."""
        config = self.config
        dtype = jnp.promote_types(config.dtype, jnp.float32)
        recent = jnp.zeros((batch, TAPS - 1, config.width + 2 * self.state), dtype)
        memory = jnp.zeros((batch, config.heads, self.state, config.head_width), dtype)
        return State(recent, memory)

    def mix(self, x: Float[Array, "B T D"], state: State) -> tuple[Float[Array, "B T D"], State]:
        """What each head recalls of the past, gated, the heads side by side; and the state it leaves."""
        B, T, D = x.shape
        H, N = self.config.heads, self.state
        projected = self.inner(x.reshape(B * T, D)).reshape(B, T, -1)  # two dimensions: see Attention.project
        gate, rest = projected[..., :D], projected[..., D:].astype(state.memory.dtype)
        rest, step = jnp.split(rest, [D + 2 * N], axis=-1)
        seen = jnp.concatenate([state.recent, rest], axis=1)
        convolved = jax.nn.silu(sum(seen[:, i : i + T] * self.taps[i] for i in range(TAPS)))
        u, b, c = jnp.split(convolved, [D, D + N], axis=-1)
        u = u.reshape(B, T, H, -1)
        step = jax.nn.softplus(step + self.step_bias[...])
        log_decay = -step * jnp.exp(self.log_rate[...])
        y, memory = selective_scan(log_decay, step[..., None] * u, b, c, state.memory)
        y += self.skip[...][:, None] * u
        mixed = y.reshape(B, T, D).astype(x.dtype) * jax.nn.silu(gate)
        return mixed, State(seen[:, T:], memory)

    def advance(self, x: Float[Array, "B T D"], state: State) -> tuple[Float[Array, "B T D"], State]:
        """What it writes, and the state to go on from: decoding is T = 1, with no past to recompute."""
        mixed, state = self.mix(x, state)
        return self.out(mixed.reshape(-1, x.shape[-1])).reshape(x.shape), state

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self.advance(x, self.empty(len(x)))[0]

    def parts(self, x: Float[Array, "B T D"]) -> Float[Array, "H B T D"]:
        """By head; the output bias belongs to none and is shared equally."""
        mixed, _ = self.mix(x, self.empty(len(x)))
        return by_head(self.out, mixed, self.config.heads)
