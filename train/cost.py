"""What a model costs, and the width at which one architecture costs as much as another."""

from functools import lru_cache
from typing import Literal

import jax
from flax import nnx

from jaxlayers import Decoder, ModelConfig
from jaxlayers.config import Architecture, Mixer
from jaxlayers.modules.ssm import CHUNK

Cost = Literal["parameters", "flops"]


def training_flops(config: ModelConfig, classes: int, tokens: int) -> float:
    """Floating-point operations of training on so many tokens: a multiplication and an addition for each
    weight and token, the same for each pair of positions in attention (causal: half of them count), and
    twice the forward pass for the backward pass (Kaplan et al. 2020); what it computes again to save memory
    does not count. A gated core is counted in full for all recurrences, since all are computed whatever
    number a sequence draws."""
    mixers = sum(multiplications(config, mixer) for mixer in config.mixers) / len(config.mixers)
    mlp = config.width * config.hidden * (3 if config.mlp == "swiglu" else 2)
    if config.mlp == "sparse":  # in training every unit is computed, and the controller
        mlp += (config.width + config.hidden) * config.width // config.sparse_block
    gates = config.loops * 5 * config.width**2 if config.gated else 0
    return 6.0 * tokens * (config.depth * (mixers + mlp) + gates + config.width * classes)


def multiplications(config: ModelConfig, mixer: Mixer) -> int | float:
    """Of a mixer's forward pass, for each token."""
    D, heads, d = config.width, config.heads, config.head_width
    pairs = D * (config.length + 1)  # queries with keys and weights with values, the causal half
    if mixer == "attention":
        return D * (2 * D + 2 * config.key_value_heads * d) + pairs
    if mixer == "sparse":  # the multiplicative layer as one product, the convolution of 3 x 3, the output
        return D * D + 27 * D * d + D * D + pairs
    state, chunk = config.state, min(CHUNK, config.length)
    within = (chunk + 1) / 2 * (state + D)  # a chunk's pairs: b with c, and weights with x
    return D * (3 * D + 2 * state + heads) + within + 2 * state * D  # states are written and read


@lru_cache(maxsize=4096)
def cost(architecture: Architecture, depth: int, length: int, of: Cost) -> float:
    """Parameters of a model, or operations of training it on one token; without embedding and read-out,
    which are not what an architecture is about (Kaplan et al. 2020)."""
    config = ModelConfig(**dict(architecture), depth=depth, vocabulary=1, length=length)
    if of == "flops":
        return training_flops(config, classes=0, tokens=1)
    model = nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0)))
    return float(sum(leaf.size for leaf in jax.tree.leaves(nnx.state((model.blocks, model.recurrence)))))


def matched(
    architecture: Architecture, reference: Architecture, depth: int, length: int, of: Cost
) -> Architecture:
    """The architecture at the width whose cost is nearest to the reference's, in proportion."""
    wanted = cost(reference, depth, length, of)
    step = architecture.heads * (2 if architecture.positions == "rotary" else 1)

    def at(steps: int) -> Architecture:
        return architecture.model_copy(update={"width": steps * step})

    def costs(steps: int) -> float:
        return cost(at(steps), depth, length, of)

    low, high = 1, 1  # costs grow with width
    while costs(high) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if costs(middle) < wanted else (low, middle)
    return at(min(low, high, key=lambda steps: max(costs(steps) / wanted, wanted / costs(steps))))
