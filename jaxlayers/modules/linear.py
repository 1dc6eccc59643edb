"""The one linear layer: 1/√fan-in at the start, so that widths train alike."""

from flax import nnx

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
