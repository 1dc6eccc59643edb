"""Every choice of architecture, one comment a field."""

from typing import Annotated, Literal

import annotated_types
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

Mixer = Literal["attention", "ssm", "sparse"]
LOOPED = "a core that loops in a pre-norm residual"
STREAMS = "a pre-norm residual without a core"
Exponent = Annotated[float, annotated_types.Interval(ge=0, le=1)]


class Architecture(BaseModel):
    """A decoder, but for its depth. Architectures of the literature are settings of these fields:

    GPT-2: norm="layer", positions="learned", mlp="gelu", bias=True, tied=True, branch_exponent=0.
    Llama: norm="rms", positions="rotary", mlp="swiglu", bias=False, branch_exponent=0.
    DeepNet (2203.00555): residual="deepnorm", norm="layer", bias=True.
    LayerNorm scaling (2502.05795): residual="pre-norm-scaled", branch_exponent=0.
    Looped, weight-tied (2606.18524): core=1, or core=L and branch_exponent=0.5.
    Gated recurrent (2608.15062): prelude=1, core=1, coda=1, gated=True.
    Sparse (2111.12763): mixers=("sparse",), mlp="sparse".
    Reversible (1707.04585): reversible=True.
    State space (2405.21060): mixers=("ssm",). Hybrid: mixers=("attention", "ssm").
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    width: PositiveInt = Field(64, description="of the residual stream")
    heads: PositiveInt = Field(4, description="query heads; each is width / heads wide")
    kv_heads: PositiveInt | None = Field(
        None, description="key and value heads, shared by groups of query heads; none: as many as heads"
    )
    mlp_width: PositiveInt | None = Field(
        None, description="hidden units of an MLP; none: 4 x width, 8/3 x width for swiglu"
    )
    norm: Literal["rms", "layer"] = Field("rms", description="RMSNorm or LayerNorm")
    norm_epsilon: PositiveFloat = Field(1e-6, description="added to the variance under the root")
    positions: Literal["rotary", "learned"] = Field("rotary", description="how order enters")
    rotary_base: PositiveFloat = Field(10_000.0, description="of the rotary wavelengths")
    mixers: tuple[Mixer, ...] = Field(
        ("attention",),
        strict=False,  # TOML has lists
        min_length=1,
        description="what mixes positions in successive blocks, in turn: attention, a state-space model "
        "(ssm), or attention with a multiplicative QKV (sparse)",
    )
    state: PositiveInt = Field(
        16, description="of an ssm: how much a head remembers of each of its dimensions"
    )
    mlp: Literal["gelu", "swiglu", "sparse"] = Field(
        "gelu", description="the MLP's nonlinearity; sparse: a controller chooses the hidden units"
    )
    sparse_block: PositiveInt = Field(
        16, description="of a sparse MLP: hidden units of which one is chosen; N in 2111.12763"
    )
    bias: bool = Field(False, description="biases in the linear layers and in LayerNorm")
    tied: bool = Field(False, description="the read-out is the embedding transposed")
    residual: Literal["pre-norm", "pre-norm-scaled", "post-norm", "deepnorm"] = Field(
        "pre-norm", description="how a module's output joins the stream; see residual.py"
    )
    branch_exponent: Exponent = Field(
        1.0,
        description="of pre-norm: a module's output is multiplied by blocks^-this before it joins the "
        "stream; at 1 one learning rate serves all depths (CompleteP, Dey et al. 2025), at 0 it is GPT-2's",
    )
    branch_factor: PositiveFloat = Field(
        1.0, description="of pre-norm: a module's output is multiplied by this as well; λ in 2606.18524"
    )
    core: PositiveInt | None = Field(
        None,
        description="blocks that are applied in turn, again and again, until the depth is reached; "
        "none: every block is applied once",
    )
    loop_exponent: Exponent = Field(
        1.0, description="of a looped core: a module's output is multiplied by loops^-this as well"
    )
    gated: bool = Field(
        False, description="each recurrence of the core starts from the prelude again and ends in a gate"
    )
    prelude: NonNegativeInt = Field(0, description="blocks before a gated core")
    coda: NonNegativeInt = Field(0, description="blocks after a gated core")
    reversible: bool = Field(
        False, description="two streams, each updated from the other: depth costs no memory for activations"
    )
    remat: bool = Field(
        False, description="the backward pass computes each block again, instead of keeping its activations"
    )
    dtype: Literal["float32", "bfloat16", "float64"] = Field(
        "float32", description="of the computation; parameters are float32 (float64 for float64)"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> "Architecture":
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not divisible by heads {self.heads}: change one of the two"
            )
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"heads {self.heads} is not divisible by kv_heads {self.kv_heads}: change one of the two"
            )
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"rotary positions need an even head width, but width {self.width} / heads {self.heads} "
                f"is {self.head_width}: change width or heads, or set positions to learned"
            )
        if self.kv_heads and ("sparse" in self.mixers or "attention" not in self.mixers):
            raise ValueError(
                f"kv_heads {self.kv_heads} is a choice of attention alone, but mixers is "
                f"{', '.join(self.mixers)}: leave kv_heads out, or change mixers"
            )
        for field, value in (("width", self.width), ("mlp_width", self.hidden)):
            if self.mlp == "sparse" and value % self.sparse_block:
                raise ValueError(
                    f"{field} {value} is not divisible by sparse_block {self.sparse_block}: change one of "
                    "the two"
                )
        return self

    @model_validator(mode="after")
    def _recurs_or_not(self) -> "Architecture":
        """A field that the others leave without a meaning is refused, not ignored."""
        pre_norm = self.residual.startswith("pre-norm")
        plain = self.mixers == ("attention",) and self.mlp != "sparse"
        if self.residual == "deepnorm" and not plain:
            raise ValueError(
                "residual deepnorm says how attention and a gelu or swiglu mlp start, but mixers is "
                f"{', '.join(self.mixers)} and mlp {self.mlp}: change one of the three"
            )
        for field, value, default, belongs, rule in [
            ("branch_exponent", self.branch_exponent, 1, pre_norm, "a pre-norm residual"),
            ("branch_factor", self.branch_factor, 1, pre_norm, "a pre-norm residual"),
            ("loop_exponent", self.loop_exponent, 1, pre_norm and self.core and not self.gated, LOOPED),
            ("gated", self.gated, False, pre_norm and self.core, "a core, and of a pre-norm residual"),
            ("prelude", self.prelude, 0, self.gated, "gated = true"),
            ("coda", self.coda, 0, self.gated, "gated = true"),
            ("reversible", self.reversible, False, pre_norm and not self.core, STREAMS),
        ]:
            if value != default and not belongs:
                raise ValueError(
                    f"{field} {value} is a choice of {rule}, but residual is {self.residual}, "
                    f"core {self.core} and gated {self.gated}: leave {field} out, or change these"
                )
        # In bfloat16 the gradient of 64 unscaled blocks is off by 14 %; by 2 % where nothing is recovered.
        if self.reversible and (self.remat or self.dtype == "bfloat16"):
            raise ValueError(
                "reversible True recovers what each block was given, which leaves nothing to remat and is "
                f"too coarse in bfloat16, but remat is {self.remat} and dtype {self.dtype}: "
                "leave reversible out, or change these"
            )
        for field, value, belongs, rule in [
            ("state", self.state, "ssm" in self.mixers, "an ssm among the mixers"),
            ("sparse_block", self.sparse_block, self.mlp == "sparse", "a sparse mlp"),
        ]:
            if value != 16 and not belongs:
                raise ValueError(
                    f"{field} {value} is a choice of {rule}, but mixers is {', '.join(self.mixers)} and mlp "
                    f"{self.mlp}: leave {field} out, or change these"
                )
        return self

    def check(self, depth: int) -> None:
        """ValueError where the blocks do not come out at this depth."""
        turns = len(self.mixers)
        for field, blocks in (
            ("depth", depth), ("core", self.core or 0), ("prelude", self.prelude), ("coda", self.coda)
        ):  # fmt: skip
            if blocks % turns:
                raise ValueError(
                    f"{field} {blocks} is not divisible by the {turns} mixers that take turns: change one of "
                    "the two"
                )
        if self.core is None:
            return
        middle = depth - self.prelude - self.coda
        if middle < self.core or middle % self.core:
            raise ValueError(
                f"depth {depth} is not prelude {self.prelude} + core {self.core} x n + coda {self.coda} "
                "with one or more recurrences n: change the depth or one of the three"
            )

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def key_value_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def hidden(self) -> int:
        """Units of an MLP; SwiGLU's default is a third smaller, and even in eights, as in Llama."""
        if self.mlp_width:
            return self.mlp_width
        return -(-8 * self.width // 24) * 8 if self.mlp == "swiglu" else 4 * self.width

    @property
    def parameter_dtype(self) -> str:
        return "float64" if self.dtype == "float64" else "float32"


class ModelConfig(Architecture):
    """An architecture at one depth, for one vocabulary and length."""

    vocabulary: PositiveInt = Field(description="token ids run from 0 to vocabulary - 1")
    length: PositiveInt = Field(description="the longest sequence, in tokens")
    depth: PositiveInt = Field(
        description="blocks that a token passes; each is one attention and one MLP. A block of a core "
        "counts as often as it is applied"
    )

    @model_validator(mode="after")
    def _blocks_come_out(self) -> "ModelConfig":
        self.check(self.depth)
        return self

    @property
    def repeated(self) -> int:
        """Blocks that are applied in turn `loops` times; with no core, all of them, once."""
        return self.core or self.depth

    @property
    def loops(self) -> int:
        return (self.depth - self.prelude - self.coda) // self.repeated

    @property
    def blocks(self) -> int:
        """Blocks with parameters of their own."""
        return self.prelude + self.repeated + self.coda

    @property
    def branch_scale(self) -> float:
        """ε of x ← x + ε·module(norm x): λ/(N √L) for L blocks looped N times in 2606.18524.

        The recurrences of a gated core do not add up, so their number does not count.
        """
        loops = 1 if self.gated else self.loops
        return self.branch_factor * self.blocks**-self.branch_exponent * loops**-self.loop_exponent
