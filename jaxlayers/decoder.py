"""The decoder: embed, blocks, read-out."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, UInt32

from jaxlayers.config import Mixer, ModelConfig
from jaxlayers.modules import MLP, SSM, Attention, Norm, SparseAttention, SparseMLP
from jaxlayers.residual import (
    QUIET,
    RULES,
    AnyStream,
    Branch,
    Keys,
    Noise,
    Pair,
    Position,
    Recurrence,
    Stream,
    through,
)
from jaxlayers.reversible import reversible

# Blocks up to which training unrolls the depth loop on CPU. Rolled, it keeps what the backward pass needs in
# arrays of all blocks, which are filled with zeros, written to and read from: of 24 blocks (width 128) a step
# takes 354 ms and not 300, of 6 blocks 89 and not 83. Unrolled, 24 blocks compile in 5.3 s and not 3.3.
UNROLLED = 24


@jax.custom_vjp
def settled(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """x, whose derivative is computed once.

    Where blocks are unrolled, XLA on CPU copies sums into all that read them, so that each module's backward
    pass would add up again what all later modules contribute: 442 ms a step and not 322 at 24 blocks, and
    10 s to compile and not 5. It copies no quotient; the divisor is 1.
    """
    return x


settled.defvjp(lambda x: (x, x), lambda x, dx: (dx / (1 + 0 * x),))


MIXERS: dict[Mixer, type[Attention | SSM]] = {"attention": Attention, "ssm": SSM, "sparse": SparseAttention}


class Block(nnx.Module):
    """A mixer of positions, then an MLP, each on a residual branch of its own."""

    def __init__(self, config: ModelConfig, turn: int, rngs: nnx.Rngs):
        rule = RULES[config.residual]
        self.mixer = rule(MIXERS[config.mixers[turn]](config, rngs), config, turn)
        self.mlp = rule((SparseMLP if config.mlp == "sparse" else MLP)(config, rngs), config, turn)

    @property
    def branches(self) -> tuple[Branch, ...]:
        return self.mixer, self.mlp


class Embedding(nnx.Module):
    """Token vectors, plus position vectors where positions are learned."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        # Tied, the same rows are the read-out, whose fan-in is the width.
        normal = nnx.initializers.normal(config.width**-0.5 if config.tied else 1.0)
        dtype = config.parameter_dtype
        self.dtype, self.length = config.dtype, config.length
        self.tokens = nnx.Param(normal(rngs.params(), (config.vocabulary, config.width), dtype))
        positions = normal(rngs.params(), (config.length, config.width), dtype)
        self.positions = nnx.Param(positions) if config.positions == "learned" else None

    def __call__(self, tokens: Int[Array, "B T"], first: Position = 0) -> Float[Array, "B T D"]:
        """Of tokens whose positions are `first`, `first` + 1, …"""
        self.check(tokens)
        x = self.tokens[...].astype(self.dtype)[tokens]
        if self.positions is None:
            return x
        places = jnp.broadcast_to(first + jnp.arange(tokens.shape[1]), tokens.shape)
        return x + self.positions[...].astype(self.dtype)[places]

    def check(self, tokens: Int[Array, "B T"]) -> None:
        """ValueError where sequences are too long; or an id is out of range, which jax would clamp, and
        which can be seen only outside of a compiled function."""
        vocabulary, longest = len(self.tokens), self.length
        if tokens.shape[1] > longest:
            raise ValueError(
                f"tokens has {tokens.shape[1]} positions, but the model's length is {longest}: "
                "shorten the sequences, or build the model with a greater length"
            )
        if tokens.size and not isinstance(tokens, jax.core.Tracer):
            ids = np.asarray(tokens)
            for worst in (ids.min(), ids.max()):
                if not 0 <= worst < vocabulary:
                    raise ValueError(
                        f"tokens holds the id {worst}, but the model's ids run from 0 to {vocabulary - 1}: "
                        "correct the ids, or build the model with a larger vocabulary"
                    )


class Decoder(nnx.Module):
    """tokens [B, T] → logits [B, T, V]; position t sees the tokens up to t.

    `blocks` has one block for each of the mixers that take turns. The parameters of those that have the same
    mixer are stacked: each leaf has a leading axis.
    """

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        self.embedding = Embedding(config, rngs)
        turns = range(len(config.mixers))
        self.blocks = nnx.vmap(lambda each: nnx.List([Block(config, turn, each) for turn in turns]))(
            rngs.split(config.blocks // len(turns))
        )
        self.norm = Norm(config)
        shape, dtype = (config.width, config.vocabulary), config.parameter_dtype
        unembedding = nnx.initializers.lecun_normal()(rngs.params(), shape, dtype)
        self.unembedding = None if config.tied else nnx.Param(unembedding)
        self.recurrence = Recurrence(config, rngs) if config.gated else None

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
        self,
        tokens: Int[Array, "B T"],
        keep: Float[Array, " M"] | None = None,
        noise: UInt32[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """The residual stream after the last block.

        Args:
            noise: in training, what the randomness of each sequence is drawn from; none: there is none.
        """
        x = self.embedding(tokens)
        keys = None if noise is None else jax.vmap(jax.random.key)(noise)
        if keep is None:
            return self.through_blocks(Stream(x, keys), keys=keys).x
        keep = keep.astype(x.dtype)
        return self.through_blocks(Stream(keep[0] * x, keys), keep[1:].reshape(-1, 2), keys).x

    def through_blocks(
        self, stream: AnyStream, keep: Float[Array, "L 2"] | None = None, keys: Keys | None = None
    ) -> AnyStream:
        """The depth loop: the forward pass and the ledger are the same loop over different streams."""
        config, recurrence = self.config, self.recurrence
        branches = [branch for block in self.blocks for branch in block.branches]
        structures, stacked = zip(*map(nnx.split, branches), strict=True)
        plain, on_cpu = isinstance(stream, Stream), jax.default_backend() == "cpu"
        unroll = plain and on_cpu and config.depth <= UNROLLED and not config.remat
        turns = len(config.mixers)
        keep = None if keep is None else keep.reshape(-1, len(branches))

        def write(structure, own, at, stream):
            parameters, counts = own
            branch = nnx.merge(structure, parameters)
            return through(stream, branch, at + branch.turn, counts)

        writes = [partial(write, structure) for structure in structures]

        def step(stream, each):
            own, at = each
            for write, of_branch in zip(writes, own, strict=True):
                stream = write(of_branch, at, stream)
                if unroll:
                    stream = replace(stream, x=settled(stream.x))
            return stream, None

        if config.remat:
            step = jax.checkpoint(step, prevent_cse=False)  # the loop, which is rolled, prevents it

        def apply(stream: AnyStream, first: int, count: int, at: Position) -> AnyStream:
            """`count` blocks in turn, the first of which is applied as number `at` of all."""
            if not count:
                return stream
            rounds = slice(first // turns, (first + count) // turns)
            parameters = jax.tree.map(lambda leaf: leaf[rounds], stacked)
            places = at + turns * jnp.arange(count // turns)
            counts = [None] * len(branches) if keep is None else keep[places // turns].T
            own = tuple(zip(parameters, counts, strict=True))
            if not config.reversible:
                return jax.lax.scan(step, stream, (own, places), unroll=unroll)[0]
            pair = Pair(stream, stream)
            if not isinstance(stream, Stream):
                return jax.lax.scan(step, pair, (own, places), unroll=unroll)[0].mean()
            return recomputing(writes, own, places, pair).mean()

        start = apply(stream, 0, config.prelude, 0)

        def recur(stream, r):
            at = config.prelude + r * config.repeated
            core = partial(apply, first=config.prelude, count=config.repeated, at=at)
            if recurrence is None:
                return core(stream), None
            noise = QUIET if keys is None else Noise.drawn(keys, r, config.loops, stream.x)
            o = core(start.by(partial(recurrence.enter, noise=noise), stream))
            return start.by(partial(recurrence.leave, noise=noise), stream, o), None

        if config.loops == 1:
            stream, _ = recur(start, 0)
        else:
            stream, _ = jax.lax.scan(recur, start, jnp.arange(config.loops), unroll=unroll)
        return apply(stream, config.blocks - config.coda, config.coda, config.depth - config.coda)

    def head(self) -> Float[Array, "D V"]:
        """The unembedding."""
        return self.embedding.tokens[...].T if self.unembedding is None else self.unembedding[...]

    def read_out(self, x: Float[Array, "B T D"], classes: int | None = None) -> Float[Array, "B T C"]:
        """Logits of the first `classes` tokens of the vocabulary (none: all), from the stream."""
        head = self.head()[:, :classes].astype(x.dtype)
        logits = self.norm(x).reshape(-1, x.shape[-1]) @ head
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32)).reshape(*x.shape[:2], -1)


def recomputing(writes, own, places: Int[Array, " n"], pair: Pair[Stream]) -> Pair[Stream]:
    """The depth loop over a pair: its gradient computes again what modules were given, and stores nothing."""
    keys = pair.newer.keys

    def on_arrays(write, own, constants, pair):
        at, keys = constants
        pair = write(own, at, Pair(*(Stream(x, keys) for x in pair)))
        return pair.older.x, pair.newer.x

    steps = tuple(partial(on_arrays, write) for write in writes)
    each = None if keys is None else jnp.broadcast_to(keys, (len(places), len(keys)))
    end = reversible(steps, own, (places, each), (pair.older.x, pair.newer.x))
    return Pair(*(Stream(x, keys) for x in end))


def reconfigured(model: Decoder, **changes) -> Decoder:
    """The same parameters in a model of another config: computed more finely, or with more recurrences.

    ValueError where the other config has parameters of other shapes.
    """
    config = ModelConfig(**dict(model.config) | changes)
    structure, shapes = nnx.split(nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0))))
    parameters = nnx.state(model)
    if jax.tree.map(jnp.shape, shapes) != jax.tree.map(jnp.shape, parameters):
        raise ValueError(f"{changes} give the model parameters of other shapes: train another one")
    return nnx.merge(structure, parameters)
