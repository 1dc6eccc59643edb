"""What a task is: rows of tokens and labels in three splits, and the batches drawn from them."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, NotRequired, TypedDict

import grain
import numpy as np
from jaxtyping import Float32, Int32, Integer, UInt32
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

ALL = slice(None)


class TaskFields(BaseModel):
    """What every task has to know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    length: Annotated[int, Field(ge=2)] = Field(64, description="tokens of a row")
    batch: PositiveInt = Field(32, description="rows of a batch, all devices together")
    steps: PositiveInt = Field(1000, description="updates of a training run")
    learning_rate: PositiveFloat = Field(3e-3, description="at its peak; one for all depths")


class Batch(TypedDict):
    """Rows as a model takes them. A position with weight 0 does not count."""

    tokens: Int32[np.ndarray, "B T"]
    labels: Int32[np.ndarray, "B T"]
    weights: Float32[np.ndarray, "B T"]
    noise: NotRequired[UInt32[np.ndarray, " B"]]  # in training: what a model's own randomness is drawn from


@dataclass(frozen=True)
class Rows:
    """A split in full; the arrays may be views, and of a narrower type than a batch has."""

    tokens: Integer[np.ndarray, "N T"]
    labels: Integer[np.ndarray, "N T"]
    weights: Float32[np.ndarray, "N T"]

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, indices: Integer[np.ndarray, " B"]) -> Batch:
        """The rows at `indices`, as one batch."""
        return Batch(
            tokens=self.tokens[indices].astype(np.int32),
            labels=self.labels[indices].astype(np.int32),
            weights=self.weights[indices],
        )


@dataclass(frozen=True)
class Task:
    """A classification at every position: the labels are the first `classes` of the `vocabulary` ids."""

    name: str
    vocabulary: int
    classes: int
    length: int
    batch: int
    rows: Mapping[str, Rows]

    def training(self, seed: int, part: slice = ALL) -> grain.MapDataset:
        """Element `step` is the batch of that step: a pure function of (`seed`, `step`), without an end.

        Every row comes once an epoch, and every epoch of every seed in an order of its own. Of each batch the
        rows in `part` alone are read.
        """
        rows = self.rows["train"]

        # The stream is at most in two epochs at a time. A whole batch of indices is drawn at once: an element
        # of `MapDataset.shuffle().batch()` costs 5 µs a row, more than a small model's whole step.
        @lru_cache(maxsize=2)
        def order(epoch: int) -> Integer[np.ndarray, " N"]:
            return np.random.default_rng((seed, epoch)).permutation(len(rows))

        def batch(step: int) -> Batch:
            epochs, places = np.divmod(step * self.batch + np.arange(self.batch)[part], len(rows))
            taken = rows.take(np.concatenate([order(int(e))[places[epochs == e]] for e in np.unique(epochs)]))
            noise = np.random.default_rng((seed, step, 1)).integers(2**32, size=self.batch, dtype=np.uint32)
            return Batch(**taken, noise=noise[part])

        return grain.MapDataset.range(sys.maxsize).map(batch)

    def evaluation(self, split: str, part: slice = ALL) -> grain.MapDataset:
        """The rows of `split` ("validation" or "test"), once and in order: row r is in batch r // `batch`.

        The last batch is filled up with rows of weight 0. Of each batch the rows in `part` alone are read.
        """
        rows = self.rows[split]

        def batch(index: int) -> Batch:
            indices = index * self.batch + np.arange(self.batch)[part]
            filled = rows.take(np.minimum(indices, len(rows) - 1))
            filled["weights"] *= (indices < len(rows))[:, None]
            return filled

        return grain.MapDataset.range(-(-len(rows) // self.batch)).map(batch)
