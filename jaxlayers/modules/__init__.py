"""What reads the normalised stream and writes to it. Each module has

module(x)  -> what it writes, [B T D]
parts(x)   -> the same as a sum of finer parts, [P B T D]
scale_start(factor)    multiplies the weights that DeepNorm starts smaller
"""

from jaxlayers.modules.attention import Attention
from jaxlayers.modules.mlp import MLP
from jaxlayers.modules.norm import Norm
from jaxlayers.modules.ssm import SSM

Module = Attention | MLP

__all__ = ["MLP", "SSM", "Attention", "Module", "Norm"]
