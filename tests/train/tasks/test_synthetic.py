"""Running products of permutations, against products of permutation matrices; and their best loss."""

import itertools
import math

import numpy as np
import pytest

from train.tasks import SyntheticConfig, load
from train.tasks.datasets import SPLITS


def matrices(items: int) -> np.ndarray:
    """Permutation matrices [items!, items, items] in lexicographic order: g takes column i to row g(i)."""
    return np.array([np.eye(items, dtype=int)[:, list(g)] for g in itertools.permutations(range(items))])


@pytest.mark.parametrize("items", [2, 3, 4])
def test_labels_are_the_products_of_the_prefixes(items):
    task = load(SyntheticConfig(items=items, length=9, noise=0.0))
    group = matrices(items)
    assert task.vocabulary == task.classes == math.factorial(items)
    for split in SPLITS:
        rows = task.rows[split]
        product = np.broadcast_to(np.eye(items, dtype=int), (len(rows), items, items))
        for t in range(9):
            product = group[rows.tokens[:, t]] @ product
            assert np.array_equal(product, group[rows.labels[:, t]])


def test_the_best_loss_is_what_knowing_the_products_costs():
    noisy, clean = (
        load(SyntheticConfig(items=3, length=16, noise=noise)).rows["train"] for noise in (0.3, 0.0)
    )
    assert np.array_equal(noisy.tokens, clean.tokens)
    probability = np.where(noisy.labels == clean.labels, 0.7 + 0.3 / 6, 0.3 / 6)
    losses = -np.log(probability)
    spread = losses.std() / math.sqrt(losses.size)
    assert SyntheticConfig(items=3, noise=0.3).best_loss == pytest.approx(losses.mean(), abs=4 * spread)


@pytest.mark.parametrize(
    ("items", "noise", "expected"),
    [
        (3, 0.0, 0.0),
        (3, 1.0, math.log(6)),
        (5, 1.0, math.log(120)),
        (2, 0.5, 0.75 * math.log(4 / 3) + 0.25 * math.log(4)),
    ],
)
def test_best_losses_in_closed_form(items, noise, expected):
    assert SyntheticConfig(items=items, noise=noise).best_loss == pytest.approx(expected, rel=1e-12)


def test_tokens_are_uniform_and_splits_differ():
    rows = load(SyntheticConfig(items=3, length=16)).rows
    counts = np.bincount(rows["train"].tokens.ravel(), minlength=6)
    size = counts.sum()
    assert np.abs(counts - size / 6).max() < 5 * math.sqrt(size * 5 / 36)
    sides = [{tuple(row) for row in rows[split].tokens.tolist()} for split in SPLITS]
    assert sum(map(len, sides)) == len(set().union(*sides))


def test_every_position_counts_and_the_data_are_the_same_every_time():
    first, second = (load(SyntheticConfig(length=5)).rows["test"] for _ in range(2))
    assert np.array_equal(first.weights, np.ones((512, 5)))
    assert np.array_equal(first.tokens, second.tokens)
    assert np.array_equal(first.labels, second.labels)
