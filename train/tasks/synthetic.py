"""The running product of permutations: no download, a best loss in closed form, and depth to be used."""

import math
from itertools import permutations
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Int
from pydantic import Field

from train.tasks.task import Rows, Task, TaskFields

_ROWS = {"train": 16384, "validation": 512, "test": 512}


class SyntheticConfig(TaskFields):
    """The running product of permutations of a few items, with noise on the labels."""

    kind: Literal["synthetic"] = Field("synthetic", description="which task this is")
    items: Annotated[int, Field(ge=2, le=5)] = Field(
        3, description="items permuted, so that there are items! classes"
    )
    noise: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="probability that a label is drawn at random instead"
    )

    @property
    def best_loss(self) -> float:
        """The cross-entropy of one who knows every product, in nats: the entropy of the noise."""
        classes = math.factorial(self.items)
        wrong = self.noise / classes
        right = 1 - self.noise + wrong
        return -sum(p * math.log(p) for p in [right, *[wrong] * (classes - 1)] if p > 0)


def load(config: SyntheticConfig) -> Task:
    """Rows of permutations g_1 … g_T; the label at t is g_t ∘ … ∘ g_1, and every position counts.

    The word problem of a group that does not commute: the products of all prefixes of length T take a depth
    of about log T (Liu et al. 2023, "Transformers Learn Shortcuts to Automata", arXiv 2210.10749).
    """
    group = np.array(list(permutations(range(config.items))))  # [classes, items]
    number = {tuple(element): index for index, element in enumerate(group)}
    after = np.array([[number[tuple(g[h])] for h in group] for g in group])  # after[g, h] = g ∘ h
    classes = len(group)
    rows = {}
    for split, (name, count) in enumerate(_ROWS.items()):
        rng = np.random.default_rng(split)
        tokens = rng.integers(classes, size=(count, config.length))
        labels = _products(tokens, after)
        noisy = rng.random(labels.shape) < config.noise
        labels = np.where(noisy, rng.integers(classes, size=labels.shape), labels)
        rows[name] = Rows(tokens, labels, np.broadcast_to(np.float32(1), labels.shape))
    return Task("synthetic", classes, classes, config.length, config.batch, rows)


def _products(tokens: Int[np.ndarray, "N T"], after: Int[np.ndarray, "G G"]) -> Int[np.ndarray, "N T"]:
    products = tokens.copy()
    for t in range(1, tokens.shape[1]):
        products[:, t] = after[tokens[:, t], products[:, t - 1]]
    return products
