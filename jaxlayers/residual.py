"""How a module's output joins the residual stream, stated once.

A rule is a function of streams, such as `join(x, update, freeze)`, in the order in which they came to be.
It may compute statistics of them, and passes these through `freeze`; once they are frozen it is affine.
From this one statement follow both

- the forward pass: the rule with live statistics, and
- the ledger: the derivative of the rule with frozen statistics (`jax.lax.stop_gradient`). Of an affine
  map the derivative is exact, so the entries sum to the stream at every step. A module's update is a
  stream too, whose ledger has entries for what that module wrote alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxlayers.config import ModelConfig
from jaxlayers.modules import MLP, Attention, Module, Norm, SparseMLP
from jaxlayers.modules.norm import Freeze, live

Scalar = Float[Array, ""]
Keys = Key[Array, " B"]  # one a sequence, so that its noise does not depend on how a batch is split
Rule = Callable[..., Float[Array, "B T D"]]
Position = Int[Array, ""] | int  # of a block among all that are applied, from 0


class Branch(nnx.Module):
    """A module and the rule by which it reads the stream and writes to it."""

    def __init__(self, module: Module, config: ModelConfig, turn: int):
        self.norm = Norm(config)
        self.module = module
        self.turn = turn  # of its block among those whose mixers take turns

    def read(self, x: Float[Array, "B T D"], at: Position) -> Float[Array, "B T D"]:
        """What the module is given, in the block at a position."""
        raise NotImplementedError

    def join(
        self, x: Float[Array, "B T D"], update: Float[Array, "B T D"], freeze: Freeze = live
    ) -> Float[Array, "B T D"]:
        """The stream after the module."""
        raise NotImplementedError


class PreNorm(Branch):
    """x ← x + ε · module(norm x); ε is the config's branch_scale."""

    def __init__(self, module: Module, config: ModelConfig, turn: int):
        super().__init__(module, config, turn)
        self.scale = config.branch_scale

    def read(self, x, at):
        return self.norm(x)

    def join(self, x, update, freeze=live):
        return x + self.scale * update


class ScaledPreNorm(PreNorm):
    """x ← x + ε · module(norm(x) / √ℓ) in the ℓ-th block, from 1 (LayerNorm scaling, 2502.05795)."""

    def read(self, x, at):
        return self.norm(x) * jnp.asarray(at + 1, x.dtype) ** -0.5


class PostNorm(Branch):
    """x ← norm(α x + module(x)) with α = 1 (Vaswani et al. 2017)."""

    alpha = 1.0

    def read(self, x, at):
        return x

    def join(self, x, update, freeze=live):
        return self.norm(self.alpha * x + update, freeze)


class DeepNorm(PostNorm):
    """Post-norm with α = (2L)^¼; weights in which the update is linear start (8L)^-¼ times as large.

    For L blocks of a decoder on its own: Wang et al. 2022, 2203.00555, figure 2.
    """

    def __init__(self, module: Attention | MLP, config: ModelConfig, turn: int):
        super().__init__(module, config, turn)
        self.alpha = (2 * config.depth) ** 0.25
        module.scale_start((8 * config.depth) ** -0.25)


RULES: dict[str, type[Branch]] = {
    "pre-norm": PreNorm,
    "pre-norm-scaled": ScaledPreNorm,
    "post-norm": PostNorm,
    "deepnorm": DeepNorm,
}


class Noise(NamedTuple):
    """What training adds in one recurrence; by default nothing."""

    stream: Float[Array, "B T D"] | float = 0.0
    gate: Float[Array, "B T D"] | float = 0.0

    @classmethod
    def drawn(cls, keys: Keys, r: Position, loops: int, like: Float[Array, "B T D"]) -> "Noise":
        """In recurrence r of `loops`. Each sequence has a number of recurrences of its own, uniform from
        1 to `loops`; after them its gate is shut, which is noise of ∞."""

        def normal(key: Key[Array, ""], which: int) -> Float[Array, "T D"]:
            key = jax.random.fold_in(jax.random.fold_in(key, r), which)
            return 0.1 * jax.random.normal(key, like.shape[1:], like.dtype)

        def of_sequence(key: Key[Array, ""]) -> tuple[Float[Array, "T D"], Float[Array, "T D"]]:
            own = jax.random.randint(jax.random.fold_in(key, loops), (), 1, loops + 1)
            return normal(key, 0), jnp.where(r < own, normal(key, 1), jnp.inf)

        return cls(*jax.vmap(of_sequence)(keys))


QUIET = Noise()


class Recurrence(nnx.Module):
    """The two ends of one recurrence of a gated core (2608.15062).

    h̃ = W [h + ε; start];  o = core(h̃);  g = σ(f([norm h; norm start]) + ε');  h ← g ⊙ h + (1 − g) ⊙ o

    `start` is the stream that the prelude leaves, f an MLP of two layers and a SiLU, whose last bias
    starts at 4, so that little changes at first. ε and ε' are noise of training, N(0, 0.1²).
    """

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        D = config.width
        layer = partial(nnx.Linear, dtype=config.dtype, param_dtype=config.parameter_dtype, rngs=rngs)
        self.inject = layer(2 * D, D, use_bias=False)
        self.norm, self.start_norm = Norm(config), Norm(config)
        self.gate_in = layer(2 * D, D)
        self.gate_out = layer(D, D, bias_init=nnx.initializers.constant(4.0))

    def enter(
        self,
        start: Float[Array, "B T D"],
        h: Float[Array, "B T D"],
        freeze: Freeze = live,
        noise: Noise = QUIET,
    ) -> Float[Array, "B T D"]:
        """What the core is given."""
        return self.inject(jnp.concatenate([h + noise.stream, start], -1))

    def leave(
        self,
        start: Float[Array, "B T D"],
        h: Float[Array, "B T D"],
        o: Float[Array, "B T D"],
        freeze: Freeze = live,
        noise: Noise = QUIET,
    ) -> Float[Array, "B T D"]:
        """The stream after the recurrence; the gate is a frozen coefficient."""
        hidden = jax.nn.silu(self.gate_in(jnp.concatenate([self.norm(h), self.start_norm(start)], -1)))
        gate = freeze(jax.nn.sigmoid(self.gate_out(hidden) + noise.gate))
        return gate * h + (1 - gate) * o


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stream:
    """The residual stream on its own."""

    x: Float[Array, "B T D"]
    keys: Keys | None = None  # of what is random in training

    def by(self, rule: Rule, *later: "Stream") -> "Stream":
        """What a rule makes of this stream and later ones."""
        return Stream(rule(self.x, *(other.x for other in later)), self.keys)

    def written(self, branch: Branch, at: Position, keep: Scalar | None) -> "Stream":
        """What a branch's module writes, as a stream; it counts `keep` times (none: once)."""
        h = branch.read(self.x, at)
        if self.keys is not None and isinstance(branch.module, SparseMLP):
            of_block = partial(jax.random.fold_in, data=2)  # 0 and 1 are a recurrence's
            update = branch.module(h, jax.vmap(lambda key: of_block(jax.random.fold_in(key, at)))(self.keys))
        else:
            update = branch.module(h)
        return Stream(update if keep is None else keep * update, self.keys)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LedgerStream:
    """The residual stream beside its ledger: Σ_k entries[k] = x at all times."""

    x: Float[Array, "B T D"]
    entries: Float[Array, "K B T D"]  # zero where nothing is written yet
    count: Int[Array, ""]  # of entries that are written
    parts: Callable[[Module, jax.Array], jax.Array] = field(metadata={"static": True})
    # what a module writes, whole or finer: [P B T D]

    def by(self, rule: Rule, *later: "LedgerStream") -> "LedgerStream":
        streams = (self, *later)
        x, derivative = jax.linearize(
            partial(rule, freeze=jax.lax.stop_gradient), *(stream.x for stream in streams)
        )
        entries = jax.vmap(derivative)(*(stream.entries for stream in streams))
        constant = x - derivative(*(stream.x for stream in streams))  # a β, credited to what is new
        count, k = later[-1].count, jnp.arange(len(entries))
        new = ((self.count <= k) & (k < count)).astype(x.dtype)
        share = new / jnp.maximum(new.sum(), 1)
        return LedgerStream(x, entries + share[:, None, None, None] * constant, count, self.parts)

    def written(self, branch: Branch, at: Position, keep: Scalar | None) -> "LedgerStream":
        parts = self.parts(branch.module, branch.read(self.x, at))
        if keep is not None:
            parts = keep * parts
        entries = jax.lax.dynamic_update_slice_in_dim(jnp.zeros_like(self.entries), parts, self.count, 0)
        return LedgerStream(parts.sum(0), entries, self.count + len(parts), self.parts)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodingStream:
    """The residual stream of new positions, beside what each mixer remembers of those before."""

    x: Float[Array, "B T D"]
    memory: tuple[Any, ...]  # of each that takes turns; with a leading axis over rounds, as they are applied

    def by(self, rule: Rule, *later: "DecodingStream") -> "DecodingStream":
        return DecodingStream(rule(self.x, *(other.x for other in later)), later[-1].memory)

    def written(self, branch: Branch, at: Position, keep: Scalar | None) -> "DecodingStream":
        h, module, turn = branch.read(self.x, at), branch.module, branch.turn
        if isinstance(module, MLP | SparseMLP):
            return DecodingStream(module.decode(h), self.memory)
        turns = at // len(self.memory)
        update, own = module.advance(h, jax.tree.map(lambda leaf: leaf[turns], self.memory[turn]))
        known = jax.tree.map(lambda leaf, new: leaf.at[turns].set(new), self.memory[turn], own)
        return DecodingStream(update, (*self.memory[:turn], known, *self.memory[turn + 1 :]))


AnyStream = TypeVar("AnyStream", Stream, LedgerStream, DecodingStream)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pair(Generic[AnyStream]):
    """Two streams that take turns (Gomez et al. 2017, 1707.04585): (x, y) ← (y, join(x, module(read y))).

    What a module was given is still there after it, so what it wrote can be computed again and taken back.
    """

    older: AnyStream
    newer: AnyStream  # knows of all that is written so far

    def by(self, rule: Rule, *later: AnyStream) -> "Pair[AnyStream]":
        return Pair(self.newer, self.older.by(rule, *later))

    def written(self, branch: Branch, at: Position, keep: Scalar | None) -> AnyStream:
        return self.newer.written(branch, at, keep)

    def mean(self) -> AnyStream:
        """For the read-out: both started as the embedding, and its scale stays."""
        return self.older.by(lambda x, y, freeze=live: (x + y) / 2, self.newer)


AnyStreams = TypeVar(
    "AnyStreams",
    Stream,
    LedgerStream,
    DecodingStream,
    Pair[Stream],
    Pair[LedgerStream],
    Pair[DecodingStream],
)


def through(stream: AnyStreams, branch: Branch, at: Position, keep: Scalar | None = None) -> AnyStreams:
    """The stream after one more module."""
    return stream.by(branch.join, stream.written(branch, at, keep))
