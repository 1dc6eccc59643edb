"""The position-wise MLP: GELU (GPT-2) or SwiGLU (Shazeer 2020; Llama)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxlayers.config import ModelConfig
from jaxlayers.modules.linear import linear

# Of a GELU (in its tanh form) the backward pass keeps the input alone, and computes the rest again: cheaper
# than to write and read it, and a quarter less memory in a training step.
gelu = jax.checkpoint(jax.nn.gelu)


class MLP(nnx.Module):
    """out(gelu(in x)), or out(silu(gate x) ⊙ up x) with gate and up in one matrix."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.gated = config.mlp == "swiglu"
        self.inner = linear(config.width, config.hidden * (2 if self.gated else 1), config, rngs)
        self.out = linear(config.hidden, config.width, config, rngs)

    def scale_start(self, factor: float) -> None:
        """Multiplies the weights of both layers."""
        self.inner.kernel[...] *= factor
        self.out.kernel[...] *= factor

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        hidden = self.inner(x.reshape(-1, x.shape[-1]))  # two dimensions: see Attention.project
        if self.gated:
            gate, up = jnp.split(hidden, 2, axis=-1)
            hidden = jax.nn.silu(gate) * up
        else:
            hidden = gelu(hidden)
        return self.out(hidden).reshape(x.shape)

    def decode(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self(x)

    def parts(self, x: Float[Array, "B T D"]) -> Float[Array, "1 B T D"]:
        return self(x)[None]
