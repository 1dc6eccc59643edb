"""The decoder: embed, blocks, read-out."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxlayers.config import ModelConfig
from jaxlayers.modules import MLP, Attention, Norm
from jaxlayers.residual import LedgerStream, PreNorm, Stream

AnyStream = TypeVar("AnyStream", Stream, LedgerStream)

UNROLLED = 8  # blocks: up to here an unrolled loop is faster on CPU and still compiles in seconds


class Block(nnx.Module):
    """Attention, then MLP, each on a residual branch of its own."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.attention = PreNorm(Attention(config, rngs), config)
        self.mlp = PreNorm(MLP(config, rngs), config)

    @property
    def branches(self) -> tuple[PreNorm, ...]:
        return self.attention, self.mlp


class Embedding(nnx.Module):
    """Token vectors, plus position vectors where positions are learned."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        # Tied, the same rows are the read-out, whose fan-in is the width.
        normal = nnx.initializers.normal(config.width**-0.5 if config.tied else 1.0)
        dtype = config.parameter_dtype
        self.dtype = config.dtype
        self.tokens = nnx.Param(normal(rngs.params(), (config.vocabulary, config.width), dtype))
        positions = normal(rngs.params(), (config.length, config.width), dtype)
        self.positions = nnx.Param(positions) if config.positions == "learned" else None

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        x = self.tokens[...].astype(self.dtype)[tokens]
        if self.positions is None:
            return x
        return x + self.positions[: tokens.shape[1]].astype(self.dtype)


class Decoder(nnx.Module):
    """tokens [B, T] → logits [B, T, V]; position t sees the tokens up to t.

    Parameters of the blocks are stacked: each leaf of `blocks` has a leading axis of length depth.
    """

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        self.embedding = Embedding(config, rngs)
        self.blocks = nnx.vmap(lambda each: Block(config, each))(rngs.split(config.depth))
        self.norm = Norm(config)
        shape, dtype = (config.width, config.vocabulary), config.parameter_dtype
        unembedding = nnx.initializers.lecun_normal()(rngs.params(), shape, dtype)
        self.unembedding = None if config.tied else nnx.Param(unembedding)

    def __call__(
        self, tokens: Int[Array, "B T"], keep: Float[Array, " M"] | None = None
    ) -> Float[Array, "B T V"]:
        """Logits, in float32 at least.

        Args:
            tokens: B sequences of T ≤ config.length ids.
            keep: how often what each module writes is counted, in the order embedding, attention 0,
                mlp 0, attention 1, … (M = 1 + 2 depth); 0 skips a module, and later ones see the change.
        """
        return self.read_out(self.hidden(tokens, keep))

    def hidden(
        self, tokens: Int[Array, "B T"], keep: Float[Array, " M"] | None = None
    ) -> Float[Array, "B T D"]:
        """The residual stream after the last block."""
        x = self.embedding(tokens)
        if keep is None:
            return self.through_blocks(Stream(x)).x
        keep = keep.astype(x.dtype)
        return self.through_blocks(Stream(keep[0] * x), keep[1:].reshape(-1, 2)).x

    def through_blocks(self, stream: AnyStream, keep: Float[Array, "L 2"] | None = None) -> AnyStream:
        """The depth loop: the forward pass and the ledger are the same loop over different streams."""
        structure, stacked = nnx.split(self.blocks)

        def step(stream, each):
            parameters, keep = each
            for i, branch in enumerate(nnx.merge(structure, parameters).branches):
                stream = stream.through(branch, None if keep is None else keep[i])
            return stream, None

        depth = self.config.depth
        unroll = depth if jax.default_backend() == "cpu" and depth <= UNROLLED else 1
        return jax.lax.scan(step, stream, (stacked, keep), unroll=unroll)[0]

    def head(self) -> Float[Array, "D V"]:
        """The unembedding."""
        return self.embedding.tokens[...].T if self.unembedding is None else self.unembedding[...]

    def read_out(self, x: Float[Array, "B T D"], classes: int | None = None) -> Float[Array, "B T C"]:
        """Logits of the first `classes` tokens of the vocabulary (none: all), from the stream."""
        head = self.head()[:, :classes].astype(x.dtype)
        logits = self.norm(x).reshape(-1, x.shape[-1]) @ head
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32)).reshape(*x.shape[:2], -1)
