"""What reads the normalised stream and writes to it. Each module has

module(x)  -> what it writes, [B T D]
parts(x)   -> the same as a sum of finer parts, [P B T D]
scale_start(factor)    multiplies the weights that DeepNorm starts smaller (attention and MLP)

and, where it reads other positions than the one that it writes to,

advance(x, memory) -> what it writes to new positions, and the memory after them
empty(batch)       -> the memory before the first position

or, where it does not, decode(x) -> what it writes when few positions are asked for
"""

from jaxlayers.modules.attention import Attention, Memory
from jaxlayers.modules.mlp import MLP
from jaxlayers.modules.norm import Norm
from jaxlayers.modules.sparse import SparseAttention, SparseMLP
from jaxlayers.modules.ssm import SSM

Module = Attention | SSM | MLP | SparseMLP

__all__ = ["MLP", "SSM", "Attention", "Memory", "Module", "Norm", "SparseAttention", "SparseMLP"]
