"""GPT-2 and Llama once more, in NumPy, from their published formulas: what the decoder is held to."""

from typing import NamedTuple

import jax
import numpy as np
import pytest
from flax import nnx

from jaxlayers import Decoder, ModelConfig

SMALL = dict(width=16, heads=4, depth=2, vocabulary=11, length=6)
GPT2 = dict(norm="layer", positions="learned", mlp="gelu", bias=True, tied=True, norm_epsilon=1e-5)
LLAMA = dict(norm="rms", positions="rotary", mlp="swiglu", kv_heads=2, norm_epsilon=1e-5)


@pytest.fixture
def config():
    """config(field=value, ...): a small model's, but for the fields named."""
    return lambda **fields: ModelConfig(**SMALL | fields)


@pytest.fixture
def random_model(config):
    """random_model(field=value, ...): a decoder none of whose parameters is 0 or 1."""

    def build(**fields) -> Decoder:
        config_ = config(**fields)
        with jax.disable_jit(False):
            structure, shapes = nnx.split(nnx.eval_shape(lambda: Decoder(config_, nnx.Rngs(0))))
        draw = np.random.default_rng(0)

        def leaf(path, shape):
            centre = 1 if "scale" in jax.tree_util.keystr(path) else 0
            return jax.numpy.asarray(centre + 0.3 * draw.normal(size=shape.shape), shape.dtype)

        return nnx.merge(structure, jax.tree_util.tree_map_with_path(leaf, shapes))

    return build


@pytest.fixture
def eager():
    """Nothing is compiled as a whole: of many small models, each run once, that is most of the time."""
    with jax.disable_jit():
        yield


@pytest.fixture
def tokens():
    return jax.numpy.asarray(np.random.default_rng(1).integers(SMALL["vocabulary"], size=(2, 6)))


class Reference(NamedTuple):
    """What a plain float64 implementation gives."""

    written: np.ndarray  # [M, B, T, D], to the stream: embedding, head 0.0, 0.1, …, mlp 0, head 1.0, …
    logits: np.ndarray  # [B, T, V]


@pytest.fixture(params=["gpt2", "llama", "llama with one key head"])
def family(request):
    """The fields of a family of models, and its implementation: model, tokens [B, T] -> Reference."""
    fields, forward = {
        "gpt2": (GPT2, gpt2),
        "llama": (LLAMA, llama),
        "llama with one key head": (LLAMA | {"kv_heads": 1}, llama),  # Shazeer 2019
    }[request.param]

    def reference(model, tokens) -> Reference:
        written, logits = zip(*(forward(model, sequence) for sequence in np.asarray(tokens)), strict=True)
        return Reference(np.stack(written, 1), np.stack(logits))

    return fields | {"branch_exponent": 0, "dtype": "float64"}, reference


def numbers(parameter, block=...):
    return np.asarray(parameter[...])[block]


def gpt2(model, tokens):
    """Radford et al. 2019; the GELU of Hendrycks & Gimpel 2016 in its tanh form."""
    width, heads = model.config.width, model.config.heads
    embedding = numbers(model.embedding.tokens)

    def linear(layer, x, b):
        return x @ numbers(layer.kernel, b) + numbers(layer.bias, b)

    def norm(layer, x, b=...):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * numbers(layer.scale, b) + numbers(layer.shift, b)

    written = [embedding[tokens] + numbers(model.embedding.positions)[: len(tokens)]]
    for b in range(model.config.depth):
        attention, mlp = model.blocks[0].branches
        q, k, v = np.split(linear(attention.module.qkv, norm(attention.norm, sum(written), b), b), 3, axis=1)
        out = np.split(numbers(attention.module.out.kernel, b), heads)
        by_head = (np.split(x, heads, axis=1) for x in (q, k, v))
        share = numbers(attention.module.out.bias, b) / heads
        written += [attend(*qkv) @ o + share for *qkv, o in zip(*by_head, out, strict=True)]

        h = linear(mlp.module.inner, norm(mlp.norm, sum(written), b), b)
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        written.append(linear(mlp.module.out, h, b))
    assert written[-1].shape == (len(tokens), width)
    return np.stack(written), norm(model.norm, sum(written)) @ embedding.T


def llama(model, tokens):
    """Touvron et al. 2023; grouped queries, Ainslie et al. 2023; SwiGLU, Shazeer 2020."""
    heads, groups = model.config.heads, model.config.kv_heads
    d = model.config.width // heads

    def norm(layer, x, b=...):
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-5) * numbers(layer.scale, b)

    def rotate(x):
        """Su et al. 2021: the pair (i, i + d/2) is a complex number, turned by position × base^(−2i/d)."""
        turned = x[:, : d // 2] + 1j * x[:, d // 2 :]
        turned *= np.exp(1j * np.outer(np.arange(len(x)), 10_000.0 ** (-2 * np.arange(d // 2) / d)))
        return np.concatenate([turned.real, turned.imag], 1)

    written = [numbers(model.embedding.tokens)[tokens]]
    for b in range(model.config.depth):
        attention, mlp = model.blocks[0].branches
        projected = norm(attention.norm, sum(written), b) @ numbers(attention.module.qkv.kernel, b)
        columns = np.split(projected, heads + 2 * groups, axis=1)
        q, k, v = columns[:heads], columns[heads : heads + groups], columns[heads + groups :]
        out = np.split(numbers(attention.module.out.kernel, b), heads)
        shared = [h * groups // heads for h in range(heads)]
        written += [
            attend(rotate(q[h]), rotate(k[g]), v[g]) @ out[h]
            for h, g in zip(range(heads), shared, strict=True)
        ]

        h = norm(mlp.norm, sum(written), b) @ numbers(mlp.module.inner.kernel, b)
        gate, up = np.split(h, 2, axis=1)
        written.append(gate / (1 + np.exp(-gate)) * up @ numbers(mlp.module.out.kernel, b))
    return np.stack(written), norm(model.norm, sum(written)) @ numbers(model.unembedding)


def attend(q, k, v):
    """One head, position by position: an average of the values so far. [T, d] each."""
    gathered = []
    for t in range(len(q)):
        weight = np.exp(k[: t + 1] @ q[t] / np.sqrt(q.shape[1]))
        gathered.append(weight @ v[: t + 1] / weight.sum())
    return np.stack(gathered)
