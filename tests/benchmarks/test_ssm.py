"""A state-space block trains about as fast as an attention block."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxlayers import ModelConfig
from jaxlayers.modules import MLP, SSM, Attention, Norm

WIDTH, LENGTH, BATCH, DEPTH, VOCABULARY = 128, 128, 16, 6, 1024


class Block(nnx.Module):
    """A mixer, then an MLP, pre-norm."""

    def __init__(self, mixer: str, config: ModelConfig, rngs: nnx.Rngs):
        self.mixer = Attention(config, rngs) if mixer == "attention" else SSM(config, rngs)
        self.mlp = MLP(config, rngs)
        self.norms = nnx.List([Norm(config), Norm(config)])

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.mixer(self.norms[0](x)) / DEPTH
        return x + self.mlp(self.norms[1](x)) / DEPTH


def training_step(mixer: str):
    """AdamW on next-token cross-entropy: the compiled step, its arguments, and the seconds of compilation."""
    config = ModelConfig(width=WIDTH, length=LENGTH, depth=DEPTH, vocabulary=VOCABULARY)
    blocks = nnx.vmap(lambda rngs: Block(mixer, config, rngs))(nnx.Rngs(0).split(DEPTH))
    graph, stacked = nnx.split(blocks)
    embedding = 0.1 * jax.random.normal(jax.random.key(0), (VOCABULARY, WIDTH))
    optimiser = optax.adamw(1e-3)

    def loss(parameters, tokens):
        def through(x, each):
            return nnx.merge(graph, each)(x), None

        stacked, embedding = parameters
        x, _ = jax.lax.scan(through, embedding[tokens], stacked, unroll=DEPTH)
        logits = x.reshape(-1, WIDTH) @ embedding.T
        labels = jnp.roll(tokens, -1, axis=1).ravel()
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def update(parameters, moments, tokens):
        value, gradient = jax.value_and_grad(loss)(parameters, tokens)
        change, moments = optimiser.update(gradient, moments, parameters)
        return optax.apply_updates(parameters, change), moments, value

    parameters = stacked, embedding
    tokens = jnp.asarray(np.random.default_rng(0).integers(VOCABULARY, size=(BATCH, LENGTH)))
    arguments = parameters, optimiser.init(parameters), tokens
    start = time.perf_counter()
    compiled = jax.jit(update).lower(*arguments).compile()
    return compiled, arguments, time.perf_counter() - start


@pytest.mark.slow
def test_training_step(benchmark):
    """Six blocks of width 128, 16 sequences of 128 tokens: at most 3 times attention's step.

    Predicted: about 1, since within chunks of 32 the scan is attention's two products on a quarter of the
    pairs. Measured on 2 cores of an AMD EPYC with AVX-512, beside other work:
    1.00 (247 ms against 248 ms), compiled in 7.0 s.
    """
    state_space, arguments, compile_s = training_step("ssm")
    attention, others, _ = training_step("attention")

    def seconds(step, arguments):
        start = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        return time.perf_counter() - start

    seconds(state_space, arguments), seconds(attention, others)  # memory is touched once
    turns = [(seconds(state_space, arguments), seconds(attention, others)) for _ in range(31)]
    ssm_s, attention_s = np.median(turns, 0)
    benchmark.extra_info |= {"ssm_s": ssm_s, "attention_s": attention_s, "compile_s": compile_s}
    benchmark.pedantic(seconds, (state_space, arguments), rounds=1)
    assert ssm_s / attention_s < 3
    assert compile_s < 10
