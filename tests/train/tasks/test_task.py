"""Batches are a pure function of (seed, step); every row counts once an epoch, and once in an evaluation."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.tasks import Rows, Task


def numbered(rows: int, batch: int, length: int = 3) -> Task:
    """A task whose tokens tell which row they are from."""
    tokens = np.arange(rows)[:, None] * length + np.arange(length)
    split = Rows(tokens, tokens + 1, np.ones((rows, length), np.float32))
    return Task("numbered", rows * length + 1, 2, length, batch, {"train": split, "validation": split})


def row_numbers(batches) -> np.ndarray:
    return np.concatenate([batch["tokens"][:, 0] for batch in batches]) // 3


@settings(derandomize=True, max_examples=60, deadline=None)
@given(rows=st.integers(1, 23), batch=st.integers(1, 50), seed=st.integers(0, 2**31 - 1))
def test_every_epoch_has_every_row_once(rows, batch, seed):
    data = numbered(rows, batch).training(seed)
    epochs = 3
    stream = row_numbers(data[step] for step in range(-(-epochs * rows // batch)))[: epochs * rows]
    assert np.array_equal(np.sort(stream.reshape(epochs, rows)), np.tile(np.arange(rows), (epochs, 1)))


def test_a_batch_depends_on_seed_and_step_alone():
    forwards = [numbered(50, 8).training(5)[step] for step in range(40)]
    data = numbered(50, 8).training(5)
    for step in reversed(range(40)):
        for name, values in data[step].items():
            assert np.array_equal(values, forwards[step][name])


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {
        tuple(row_numbers(numbered(30, 30).training(seed)[epoch : epoch + 1]))
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


def test_every_row_of_every_step_and_seed_has_noise_of_its_own():
    noise = np.stack(
        [numbered(30, 8).training(seed)[step]["noise"] for seed in range(9) for step in range(9)]
    )
    assert noise.dtype == np.uint32
    assert noise.shape == (81, 8)
    assert len(np.unique(noise)) == 81 * 8
    np.testing.assert_allclose(noise.mean() / 2**32, 0.5, atol=0.05)
    assert "noise" not in numbered(30, 8).evaluation("validation")[0]


def test_training_does_not_end():
    data = numbered(30, 30).training(0)
    orders = {tuple(row_numbers([data[epoch]])) for epoch in (0, 10**6, 10**9, 10**12, 10**15)}
    assert len(orders) == 5


def test_a_batch_holds_whole_rows_in_the_types_of_a_model():
    batch = numbered(9, 4).training(1)[2]
    assert {name: (values.shape, values.dtype) for name, values in batch.items()} == {
        "tokens": ((4, 3), np.int32),
        "labels": ((4, 3), np.int32),
        "weights": ((4, 3), np.float32),
        "noise": ((4,), np.uint32),
    }
    assert np.array_equal(batch["labels"], batch["tokens"] + 1)
    assert np.array_equal(np.diff(batch["tokens"]), np.ones((4, 2)))


@pytest.mark.parametrize(("rows", "batch", "batches"), [(8, 4, 2), (9, 4, 3), (11, 4, 3), (3, 4, 1)])
def test_evaluation_has_every_row_once_and_in_order(rows, batch, batches):
    data = numbered(rows, batch).evaluation("validation")
    assert len(data) == batches
    assert all(each["tokens"].shape == (batch, 3) for each in data)
    counted = np.concatenate([each["weights"] for each in data])
    assert np.array_equal(counted, np.repeat(np.arange(batches * batch) < rows, 3).reshape(-1, 3))
    assert np.array_equal(row_numbers(data)[:rows], np.arange(rows))


def test_a_batch_costs_less_than_a_twentieth_of_a_step():
    """A step of a small model at this size takes 10 ms on a CPU."""
    rows = np.broadcast_to(np.uint8(0), (1_000_000, 64))
    weights = np.broadcast_to(np.float32(1), rows.shape)
    task = Task("text", 80, 80, 64, 32, {"train": Rows(rows, rows, weights)})
    data = task.training(0)
    data[0]
    times = []
    for step in range(1, 200):
        start = time.perf_counter()
        data[step]
        times.append(time.perf_counter() - start)
    assert np.median(times) < 0.0005
