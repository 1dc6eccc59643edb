"""The one linear layer: 1/√fan-in at the start, so that widths train alike."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxlayers.config import ModelConfig

Rows = Float[Array, "N I"]
Kernel = Float[Array, "I O"]


def linear(inputs: int, outputs: int, config: ModelConfig, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(
        inputs,
        outputs,
        use_bias=config.bias,
        kernel_init=nnx.initializers.lecun_normal(),
        dtype=config.dtype,
        param_dtype=config.parameter_dtype,
        dot_general=narrowing if inputs > outputs else jax.lax.dot_general,
        rngs=rngs,
    )


def narrowing(
    x: Float[Array, "*n I"], kernel: Float[Array, "I O"], *_: Any, **__: Any
) -> Float[Array, "*n O"]:
    """x @ kernel, O < I, with a cheaper derivative. What it is given beside these says the same."""
    return _product(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], -1)


@jax.custom_vjp
def _product(x: Rows, kernel: Kernel) -> Float[Array, "N O"]:
    return x @ kernel


def _backward(kept: tuple[Rows, Kernel], dy: Float[Array, "N O"]) -> tuple[Rows, Kernel]:
    """For xᵀ dy, XLA on CPU transposes the wide x, which costs as much as the product does: transpose dy."""
    x, kernel = kept
    barrier = jax.lax.optimization_barrier  # or XLA turns the product round again
    return dy @ kernel.T, barrier(barrier(dy.T) @ x).T


_product.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), _backward)


def by_head(layer: nnx.Linear, mixed: Float[Array, "B T E"], heads: int) -> Float[Array, "H B T D"]:
    """What the layer makes of each head's inputs alone; its bias belongs to none and is shared equally."""
    kernel = layer.kernel[...].astype(mixed.dtype).reshape(heads, -1, layer.out_features)
    parts = jnp.einsum("bthd,hdw->hbtw", mixed.reshape(*mixed.shape[:2], heads, -1), kernel)
    return parts if layer.bias is None else parts + layer.bias[...].astype(mixed.dtype) / heads
