"""What a model is: a Transformer whose prediction comes apart exactly into its layers."""

from jaxlayers import ledger
from jaxlayers.config import ModelConfig
from jaxlayers.decoder import Decoder

__all__ = ["Decoder", "ModelConfig", "ledger"]
