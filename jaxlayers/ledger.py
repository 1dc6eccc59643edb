"""The exact sum over modules: what each one contributed to the logits of a trained model."""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxlayers.config import ModelConfig
from jaxlayers.decoder import Decoder, reconfigured
from jaxlayers.residual import LedgerStream

Granularity = Literal["block", "module", "head"]


class Member(NamedTuple):
    """One term of the sum."""

    name: str
    kind: str  # embedding, attention, ssm, mlp, head, block
    block: int  # -1: the embedding


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ledger:
    """Σ_k contributions[k] @ head + bias = logits, to rounding.

    A contribution is centred (LayerNorm) and divided by the *frozen* statistic of the final norm; the
    norm's γ is folded into the head, its β into the bias.
    """

    contributions: Float[Array, "K B T D"]
    head: Float[Array, "D V"]
    bias: Float[Array, " V"]
    epsilon: Float[Array, "B T"]  # the final norm's ε, as a fraction of its squared statistic
    members: tuple[Member, ...] = field(metadata={"static": True})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    def member_logits(self) -> Float[Array, "K B T V"]:
        return self.contributions @ self.head

    def logits(self) -> Float[Array, "B T V"]:
        return self.contributions.sum(0) @ self.head + self.bias


def trace(model: Decoder, tokens: Int[Array, "B T"], granularity: Granularity = "module") -> Ledger:
    """Runs the model and keeps account of what each member wrote to the stream.

    Args:
        tokens: B sequences of T ids.
        granularity: the members are the embedding and each block ("block"), each attention and each MLP
            ("module"), or each attention head and each MLP ("head"; an attention's output bias is shared
            equally by its heads).

    Computed in float32 at the highest matmul precision, whatever the model was trained in (in float64
    if its dtype is float64).
    """
    model.embedding.check(tokens)
    structure, parameters = nnx.split(full_precision(model))
    with jax.default_matmul_precision("highest"):
        return _trace(structure, parameters, tokens, granularity)


def full_precision(model: Decoder) -> Decoder:
    """The same parameters, computing in float32 where the model was trained in bfloat16."""
    if model.config.dtype != "bfloat16":
        return model
    return reconfigured(model, dtype="float32")


@partial(jax.jit, static_argnums=(0, 3))
def _trace(structure, parameters, tokens, granularity: Granularity) -> Ledger:
    model = nnx.merge(structure, parameters)
    config: ModelConfig = model.config
    by_head = granularity == "head"
    fine = members(config, "head" if by_head else "module")

    x = model.embedding(tokens)
    entries = jnp.zeros((len(fine), *x.shape), x.dtype).at[0].set(x)
    parts = (lambda module, h: module.parts(h)) if by_head else (lambda module, h: module(h)[None])
    stream = model.through_blocks(LedgerStream(x, entries, jnp.int32(1), parts))

    entries = stream.entries
    if granularity == "block":
        blocks = entries[1:].reshape(config.depth, 2, *x.shape).sum(1)
        entries = jnp.concatenate([entries[:1], blocks])
    norm = model.norm
    statistic = norm.statistic(stream.x)
    head = model.head()
    return Ledger(
        contributions=norm.standardise(entries, statistic),
        head=norm.scale[...][:, None] * head,
        bias=jnp.zeros(head.shape[1], head.dtype) if norm.shift is None else norm.shift[...] @ head,
        epsilon=(config.norm_epsilon / jnp.square(statistic))[..., 0],
        members=members(config, granularity),
    )


def members(config: ModelConfig, granularity: Granularity) -> tuple[Member, ...]:
    """The members of a model's ledger, in order."""
    found = [Member("embedding", "embedding", -1)]
    for b in range(config.depth):
        if granularity == "block":
            found.append(Member(f"block {b}", "block", b))
            continue
        if granularity == "head":
            found += [Member(f"head {b}.{h}", "head", b) for h in range(config.heads)]
        else:
            mixer = config.mixers[b % len(config.mixers)]
            kind = "ssm" if mixer == "ssm" else "attention"
            found.append(Member(f"{kind} {b}", kind, b))
        found.append(Member(f"mlp {b}", "mlp", b))
    return tuple(found)
