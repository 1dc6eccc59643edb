"""How a module's output joins the residual stream, stated once.

A rule is `join(x, update, freeze)`. It may compute statistics of the stream, and passes them through
`freeze`; once they are frozen it is affine in (x, update). From this one statement follow both

- the forward pass: join with live statistics, and
- the ledger: the derivative of join with frozen statistics (`jax.lax.stop_gradient`). Of an affine
  map the derivative is exact, so the entries sum to the stream at every step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxlayers.config import ModelConfig
from jaxlayers.modules import Norm
from jaxlayers.modules.norm import Freeze, live

Keep = Float[Array, ""]


class PreNorm(nnx.Module):
    """x ← x + depth^-exponent · module(norm(x))."""

    def __init__(self, module: nnx.Module, config: ModelConfig):
        self.norm = Norm(config)
        self.module = module
        self.scale = config.branch_scale

    def read(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """What the module is given."""
        return self.norm(x)

    def join(
        self, x: Float[Array, "B T D"], update: Float[Array, "B T D"], freeze: Freeze = live
    ) -> Float[Array, "B T D"]:
        return x + self.scale * update


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stream:
    """The residual stream on its own."""

    x: Float[Array, "B T D"]

    def through(self, branch: PreNorm, keep: Keep | None = None) -> "Stream":
        """After one more module, whose output counts `keep` times (none: once)."""
        update = branch.module(branch.read(self.x))
        return Stream(branch.join(self.x, update if keep is None else keep * update))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LedgerStream:
    """The residual stream beside its ledger: Σ_k entries[k] = x at all times."""

    x: Float[Array, "B T D"]
    entries: Float[Array, "K B T D"]  # zero where nothing is written yet
    written: Int[Array, ""]
    parts: Callable[[nnx.Module, jax.Array], jax.Array] = field(metadata={"static": True})
    # what a module writes, whole or finer: [P B T D]

    def through(self, branch: PreNorm, keep: Keep | None = None) -> "LedgerStream":
        parts = self.parts(branch.module, branch.read(self.x))
        if keep is not None:
            parts = keep * parts
        update, nothing = parts.sum(0), jnp.zeros_like(self.x)
        x, derivative = jax.linearize(
            lambda x, u: branch.join(x, u, freeze=jax.lax.stop_gradient), self.x, update
        )
        constant = (x - derivative(self.x, update)) / len(parts)  # a β, credited to the new member
        earlier = jax.vmap(lambda entry: derivative(entry, nothing))(self.entries)
        new = jax.vmap(lambda part: derivative(nothing, part) + constant)(parts)
        entries = jax.lax.dynamic_update_slice_in_dim(earlier, new, self.written, 0)
        return LedgerStream(x, entries, self.written + len(parts), self.parts)
