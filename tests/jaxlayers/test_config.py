import re

import pytest
from pydantic import ValidationError

from jaxlayers import ModelConfig


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (dict(width=18), "width 18 is not divisible by heads 4: change one of the two"),
        (dict(kv_heads=3), "heads 4 is not divisible by kv_heads 3: change one of the two"),
        (
            dict(width=12, positions="rotary"),
            "rotary positions need an even head width, but width 12 / heads 4 is 3: "
            "change width or heads, or set positions to learned",
        ),
        (
            dict(residual="post-norm", branch_exponent=0.5),
            "branch_exponent 0.5 is a choice of a pre-norm residual, but residual is post-norm, core None "
            "and gated False: leave branch_exponent out, or change these",
        ),
        (
            dict(loop_exponent=0.5),
            "loop_exponent 0.5 is a choice of a core that loops in a pre-norm residual",
        ),
        (
            dict(loop_exponent=0.5, core=1, residual="deepnorm"),
            "but residual is deepnorm, core 1 and gated False",
        ),
        (dict(loop_exponent=0.5, core=1, gated=True), "but residual is pre-norm, core 1 and gated True"),
        (dict(gated=True), "gated True is a choice of a core, and of a pre-norm residual"),
        (dict(gated=True, core=1, residual="post-norm"), "but residual is post-norm, core 1 and gated True"),
        (dict(prelude=1), "prelude 1 is a choice of gated = true"),
        (dict(coda=1, core=1), "coda 1 is a choice of gated = true"),
        (
            dict(gated=True, prelude=1, core=1, coda=1, depth=2),  # no recurrences
            "depth 2 is not prelude 1 + core 1 x n + coda 1 with one or more recurrences n: "
            "change the depth or one of the three",
        ),
        (dict(core=3, depth=8), "depth 8 is not prelude 0 + core 3 x n + coda 0"),
        (
            dict(reversible=True, residual="post-norm"),
            "reversible True is a choice of a pre-norm residual without a core, but residual is post-norm, "
            "core None and gated False: leave reversible out, or change these",
        ),
        (dict(reversible=True, residual="deepnorm"), "but residual is deepnorm, core None and gated False"),
        (dict(reversible=True, core=1), "but residual is pre-norm, core 1 and gated False"),
        (dict(reversible=True, core=1, gated=True), "but residual is pre-norm, core 1 and gated True"),
        (
            dict(reversible=True, remat=True),
            "reversible True recovers what each block was given, which leaves nothing to remat and is too "
            "coarse in bfloat16, but remat is True and dtype float32: leave reversible out, or change these",
        ),
        (dict(reversible=True, dtype="bfloat16"), "but remat is False and dtype bfloat16"),
        (
            dict(mixers=("sparse",), kv_heads=2),
            "kv_heads 2 is a choice of attention alone, but mixers is sparse: leave kv_heads out, or change",
        ),
        (dict(mixers=("ssm",), kv_heads=2), "kv_heads 2 is a choice of attention alone, but mixers is ssm"),
        (dict(mlp="sparse", sparse_block=3), "width 16 is not divisible by sparse_block 3: change one"),
        (
            dict(mlp="sparse", sparse_block=8, mlp_width=12),
            "mlp_width 12 is not divisible by sparse_block 8: change one of the two",
        ),
        (
            dict(mixers=("ssm",), residual="deepnorm"),
            "but mixers is ssm and mlp gelu: change one of the three",
        ),
        (dict(mlp="sparse", residual="deepnorm"), "but mixers is attention and mlp sparse"),
        (
            dict(state=3),
            "state 3 is a choice of an ssm among the mixers, but mixers is attention and mlp gelu",
        ),
        (dict(sparse_block=8), "sparse_block 8 is a choice of a sparse mlp, but mixers is attention"),
        (
            dict(mixers=("attention", "ssm"), depth=3),
            "depth 3 is not divisible by the 2 mixers that take turns: change one of the two",
        ),
        (
            dict(mixers=("attention", "ssm"), depth=4, core=1),
            "core 1 is not divisible by the 2 mixers that take turns",
        ),
        (dict(core=2, depth=1), "depth 1 is not prelude 0 + core 2 x n + coda 0"),
    ],
)
def test_what_does_not_fit_together_is_named_with_its_numbers(config, fields, sentence):
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        config(**fields)


def test_an_odd_head_width_is_fine_where_nothing_rotates(config):
    assert config(width=12, positions="learned").head_width == 3


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("widht", 16, "Extra inputs are not permitted"),
        ("width", "wide", "valid integer"),
        ("heads", "4", "valid integer"),
        ("depth", True, "valid integer"),
        ("depth", 2.5, "valid integer"),
        ("bias", "yes", "valid boolean"),
        ("depth", 0, "greater than 0"),
        ("kv_heads", 0, "greater than 0"),
        ("norm_epsilon", 0.0, "greater than 0"),
        ("norm_epsilon", float("inf"), "finite number"),
        ("branch_exponent", 1.5, "less than or equal to 1"),
        ("residual", "sandwich", "'pre-norm', 'pre-norm-scaled', 'post-norm' or 'deepnorm'"),
        ("core", 0, "greater than 0"),
        ("mixers", (), "at least 1"),
        ("mixers", ("attention", "mamba"), "'attention', 'ssm' or 'sparse'"),
        ("prelude", -1, "greater than or equal to 0"),
        ("norm", "batch", "'rms' or 'layer'"),
        ("dtype", "float16", "'float32', 'bfloat16' or 'float64'"),
    ],
)
def test_a_wrong_key_or_value_is_named(config, field, value, reason):
    with pytest.raises(ValidationError) as refusal:
        config(**{field: value})
    (error,) = refusal.value.errors()
    named, *place = error["loc"]
    assert named == field
    assert reason in error["msg"]
    assert error["input"] == (value[place[0]] if place else value)


def test_sizes_have_no_default():
    with pytest.raises(ValidationError) as refusal:
        ModelConfig()
    assert {error["loc"] for error in refusal.value.errors()} == {("vocabulary",), ("length",), ("depth",)}


def test_a_whole_number_does_for_a_fraction(config):
    assert config(branch_exponent=1, depth=4).branch_scale == 0.25


def test_a_config_does_not_change(config):
    with pytest.raises(ValidationError, match="frozen"):
        config().width = 32


@pytest.mark.parametrize(
    ("mlp", "width", "hidden"),
    [("gelu", 768, 3072), ("swiglu", 768, 2048), ("swiglu", 64, 176), ("swiglu", 16, 48)],
)
def test_hidden_units_of_an_mlp(config, mlp, width, hidden):
    """Four widths; or 8/3 of a width, so that three matrices weigh as two do, rounded up to eights."""
    assert config(mlp=mlp, width=width).hidden == hidden
    assert config(mlp=mlp, width=width, mlp_width=5).hidden == 5
