"""RMSNorm and LayerNorm, split into a statistic and the linear map that it leaves."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxlayers.config import ModelConfig

Freeze = Callable[[jax.Array], jax.Array]


def live(statistic: jax.Array) -> jax.Array:
    """Gradients flow through the statistic: training. The other choice is `jax.lax.stop_gradient`."""
    return statistic


class Norm(nnx.Module):
    """γ ⊙ (x − mean x) / σ(x) + β; RMSNorm has no mean and no β."""

    def __init__(self, config: ModelConfig):
        self.centred = config.norm == "layer"
        self.epsilon = config.norm_epsilon
        dtype = config.parameter_dtype
        self.scale = nnx.Param(jnp.ones(config.width, dtype))
        self.shift = nnx.Param(jnp.zeros(config.width, dtype)) if self.centred and config.bias else None

    def centre(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return x - x.mean(-1, keepdims=True) if self.centred else x

    def statistic(self, x: Float[Array, "... D"]) -> Float[Array, "... 1"]:
        """σ(x), in float32 at least."""
        x = self.centre(x.astype(jnp.promote_types(x.dtype, jnp.float32)))
        return jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + self.epsilon)

    def standardise(
        self, x: Float[Array, "... D"], statistic: Float[Array, "... 1"]
    ) -> Float[Array, "... D"]:
        """Linear in x for a given statistic."""
        return self.centre(x) / statistic.astype(x.dtype)

    def __call__(self, x: Float[Array, "... D"], freeze: Freeze = live) -> Float[Array, "... D"]:
        y = self.standardise(x, freeze(self.statistic(x))) * self.scale.astype(x.dtype)
        return y if self.shift is None else y + self.shift.astype(x.dtype)
