"""What a model is: a Transformer whose prediction comes apart exactly into its layers."""

from jaxlayers import xla  # noqa: I001, F401  before anything is computed
from jaxlayers import ledger
from jaxlayers.config import ModelConfig
from jaxlayers.decoder import Decoder

__all__ = ["Decoder", "ModelConfig", "ledger"]
