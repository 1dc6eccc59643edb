import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxlayers import Decoder, ModelConfig
from jaxlayers.config import Architecture
from train.cost import matched, training_flops


def product_flops(jaxpr) -> int:
    """Of the matrix products alone, in a jaxpr and all that it calls."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
        for value in equation.params.values():
            if inner := getattr(value, "jaxpr", value if hasattr(value, "eqns") else None):
                total += product_flops(inner) * equation.params.get("length", 1)
    return total


@pytest.mark.parametrize(
    "fields",
    [
        dict(mlp="gelu"),
        dict(mlp="swiglu"),
        dict(core=1),
        dict(gated=True, prelude=1, core=1),
        dict(reversible=True),
    ],
    ids=["gelu", "swiglu", "looped", "gated", "reversible"],
)
def test_training_flops_are_those_of_the_products(fields):
    """The program computes the whole square of attention's pairs, of which the causal half is counted."""
    config = ModelConfig(
        vocabulary=40, length=32, depth=3, width=64, heads=4, kv_heads=2, mlp_width=96, **fields
    )
    structure, parameters = nnx.split(Decoder(config, nnx.Rngs(0)))
    tokens = jnp.zeros((4, 32), jnp.int32)
    forward = jax.make_jaxpr(lambda p: nnx.merge(structure, p)(tokens))(parameters)
    not_counted = 2 * (4 * 32) * config.depth * config.width * (32 - 1)
    assert 3 * (product_flops(forward.jaxpr) - not_counted) == training_flops(config, 40, tokens=4 * 32)


@pytest.mark.parametrize(
    ("fields", "pairs"),
    [
        (dict(mixers=("sparse",)), 64 * 63),  # of attention that are not causal, times width
        (dict(mlp="sparse", sparse_block=8), 64 * 63),
        (dict(mixers=("ssm",), state=8), 31 / 2 * (8 + 64) + 4 * 32**2),  # ... of a chunk, and the decays
        (dict(mixers=("attention", "ssm"), state=8), (64 * 63 + 31 / 2 * (8 + 64) + 4 * 32**2) / 2),
    ],
    ids=["sparse attention", "sparse mlp", "ssm", "hybrid"],
)
def test_training_flops_of_other_modules_leave_out_bookkeeping_alone(fields, pairs):
    config = ModelConfig(vocabulary=40, length=64, depth=2, width=64, heads=4, mlp_width=96, **fields)
    structure, parameters = nnx.split(Decoder(config, nnx.Rngs(0)))
    tokens = jnp.zeros((4, 64), jnp.int32)
    forward = jax.make_jaxpr(lambda p: nnx.merge(structure, p)(tokens))(parameters)
    done = product_flops(forward.jaxpr) - 2 * (4 * 64) * config.depth * pairs
    assert 3 * done == pytest.approx(training_flops(config, 40, tokens=4 * 64), rel=0.01)


REFERENCE = Architecture(width=64, heads=4)


def parameters(architecture, depth):
    """Of blocks and gates, counted in a model."""
    model = nnx.eval_shape(
        lambda: Decoder(ModelConfig(**dict(architecture), depth=depth, vocabulary=7, length=32), nnx.Rngs(0))
    )
    leaves = nnx.to_flat_state(nnx.state(model))
    return sum(leaf.size for path, leaf in leaves if path[0] in ("blocks", "recurrence"))


def operations(architecture, depth):
    config = ModelConfig(**dict(architecture), depth=depth, vocabulary=7, length=32)
    return training_flops(config, classes=0, tokens=1)


@pytest.mark.parametrize(
    "fields",
    [
        dict(core=1),
        dict(core=2),
        dict(gated=True, prelude=1, core=1, coda=1, heads=1),
        dict(mlp="swiglu", heads=2),
    ],
    ids=["looped", "looped blocks", "gated", "swiglu"],
)
@pytest.mark.parametrize(("of", "count"), [("parameters", parameters), ("flops", operations)])
def test_a_matched_architecture_costs_the_same(fields, of, count):
    """As nearly as widths of whole heads allow: neither neighbour is nearer."""
    found = matched(Architecture(**fields), REFERENCE, 4, 32, of)
    step, wanted = 2 * found.heads, count(REFERENCE, 4)
    assert found == Architecture(**{**fields, "width": found.width})
    assert found.width % step == 0

    def off(width):
        return abs(math.log(count(found.model_copy(update={"width": width}), 4) / wanted))

    assert off(found.width) < 0.12
    assert off(found.width) < min(off(found.width - step), off(found.width + step))


def test_one_block_in_place_of_four_is_about_twice_as_wide():
    assert matched(Architecture(core=1), REFERENCE, 4, 32, "parameters").width == 128
    assert matched(Architecture(core=1), REFERENCE, 4, 32, "flops").width == 64
    assert matched(REFERENCE, REFERENCE, 4, 32, "parameters") == REFERENCE
