"""Every choice of architecture, one comment a field."""

from typing import Annotated, Literal

import annotated_types
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

Exponent = Annotated[float, annotated_types.Interval(ge=0, le=1)]


class Architecture(BaseModel):
    """A pre-norm decoder, but for its depth. GPT-2 and Llama are two of its settings.

    GPT-2: norm="layer", positions="learned", mlp="gelu", bias=True, tied=True, branch_exponent=0.
    Llama: norm="rms", positions="rotary", mlp="swiglu", bias=False, branch_exponent=0.
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
    mlp: Literal["gelu", "swiglu"] = Field("gelu", description="the MLP's nonlinearity")
    bias: bool = Field(False, description="biases in the linear layers and in LayerNorm")
    tied: bool = Field(False, description="the read-out is the embedding transposed")
    branch_exponent: Exponent = Field(
        1.0,
        description="a module's output is multiplied by depth^-this before it joins the stream; "
        "at 1 one learning rate serves all depths (CompleteP, Dey et al. 2025), at 0 it is GPT-2's stream",
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
        return self

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
        return 4 * self.width if self.mlp == "gelu" else -(-8 * self.width // 24) * 8

    @property
    def parameter_dtype(self) -> str:
        return "float64" if self.dtype == "float64" else "float32"


class ModelConfig(Architecture):
    """An architecture at one depth, for one vocabulary and length."""

    vocabulary: PositiveInt = Field(description="token ids run from 0 to vocabulary - 1")
    length: PositiveInt = Field(description="the longest sequence, in tokens")
    depth: PositiveInt = Field(description="blocks; each is one attention and one MLP")

    @property
    def branch_scale(self) -> float:
        return self.depth**-self.branch_exponent
