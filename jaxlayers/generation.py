"""Decoding: tokens one by one, each from a pass over itself alone and what is remembered of the past."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxlayers.decoder import Decoder
from jaxlayers.modules import MLP, SparseMLP
from jaxlayers.residual import DecodingStream


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Past:
    """What a model remembers of the positions before."""

    memory: tuple[Any, ...]  # of each mixer that takes turns; a leading axis over its blocks, as applied
    positions: Int[Array, ""]


def empty(model: Decoder, batch: int) -> Past:
    """Before the first position."""
    mixers = (block.mixer.module for block in model.blocks)
    memory = tuple(mixer.empty(batch) for mixer in mixers if not isinstance(mixer, MLP | SparseMLP))
    rounds = model.config.depth // len(memory)
    return Past(
        jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rounds, *leaf.shape)), memory), jnp.int32(0)
    )


def advance(model: Decoder, tokens: Int[Array, "B T"], past: Past) -> tuple[Float[Array, "B T V"], Past]:
    """The logits at T more positions, as the model gives them for the whole sequence."""
    x = model.embedding(tokens, past.positions)
    stream = model.through_blocks(DecodingStream(x, past.memory))
    return model.read_out(stream.x), Past(stream.memory, past.positions + tokens.shape[1])


def generate(
    model: Decoder,
    prompt: Int[Array, "B T"],
    count: int,
    key: Key[Array, ""] | None = None,
    temperature: float = 1.0,
) -> Int[Array, "B N"]:
    """`count` tokens that follow the prompt: the likeliest each time or, with a key, drawn.

    Args:
        prompt: B sequences of one token or more.
        key: of the draws; none: greedy decoding.
        temperature: divides the logits before a draw.
    """
    length, longest = prompt.shape[1] + count, model.config.length
    if prompt.shape[1] < 1 or count < 1 or length > longest:
        raise ValueError(
            f"prompt of {prompt.shape[1]} tokens and count {count}: give at least one of each, and at most "
            f"length {longest} together"
        )
    if temperature <= 0:
        raise ValueError(f"temperature {temperature} is not positive: for greedy decoding give no key")
    model.embedding.check(prompt)
    structure, parameters = nnx.split(model)
    return _generate(structure, parameters, prompt, count, key, temperature)


@partial(jax.jit, static_argnums=(0, 3))
def _generate(structure, parameters, prompt, count, key, temperature):
    model = nnx.merge(structure, parameters)

    def chosen(logits: Float[Array, "B V"], i: Int[Array, ""] | int) -> Int[Array, " B"]:
        if key is None:
            return logits.argmax(-1)
        return jax.random.categorical(jax.random.fold_in(key, i), logits / temperature)

    def step(carried, i):
        token, past = carried
        logits, past = advance(model, token[:, None], past)
        following = chosen(logits[:, 0], i)
        return (following, past), following

    logits, past = advance(model, prompt, empty(model, len(prompt)))
    first = chosen(logits[:, -1], 0)
    _, rest = jax.lax.scan(step, (first, past), jnp.arange(1, count))
    return jnp.concatenate([first[:, None], rest.T], 1)
