"""The one linear layer: 1/√fan-in at the start, so that widths train alike."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxlayers.config import ModelConfig


def linear(inputs: int, outputs: int, config: ModelConfig, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(
        inputs,
        outputs,
        use_bias=config.bias,
        kernel_init=nnx.initializers.lecun_normal(),
        dtype=config.dtype,
        param_dtype=config.parameter_dtype,
        rngs=rngs,
    )


def by_head(layer: nnx.Linear, mixed: Float[Array, "B T E"], heads: int) -> Float[Array, "H B T D"]:
    """What the layer makes of each head's inputs alone; its bias belongs to none and is shared equally."""
    kernel = layer.kernel[...].astype(mixed.dtype).reshape(heads, -1, layer.out_features)
    parts = jnp.einsum("bthd,hdw->hbtw", mixed.reshape(*mixed.shape[:2], heads, -1), kernel)
    return parts if layer.bias is None else parts + layer.bias[...].astype(mixed.dtype) / heads
