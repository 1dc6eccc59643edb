"""What this process knows of its devices, and of processes beside it."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxlayers.refusal import Refusal
from train import parallel
from train.loop import prefetched


@pytest.mark.parametrize(("kind", "peak"), [("NVIDIA H200", 2 * 989e12), ("a chip of tomorrow", None)])
def test_the_peak_of_accelerators_is_stated_or_unknown(kind, peak, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(parallel, "devices", lambda: [SimpleNamespace(device_kind=kind)] * 2)
    assert parallel.peak.__wrapped__() == peak


def test_the_peak_of_a_cpu_is_measured():
    """A core makes 10^9 to 10^12 operations a second, and there are not 1000 of them."""
    assert 1e9 < parallel.peak() < 1e15


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("host0:1234", None, None), "--coordinator, --processes and --process go together: give all three"),
        ((None, 4, 0), "give all three, as --coordinator host0:1234 --processes 4 --process 0"),
        (("host0:1234", 4, 4), "--process 4 of --processes 4: count from 0 to 3"),
        (("host0:1234", 4, -1), "--process -1 of --processes 4: count from 0 to 3"),
    ],
)
def test_half_a_place_among_processes_is_refused(arguments, says):
    with pytest.raises(Refusal) as refused:
        parallel.join(*arguments, environment={})
    assert says in str(refused.value)


def test_a_cluster_that_is_none_is_refused(monkeypatch):
    def initialize():
        raise ValueError("coordinator_address should be defined.")  # as jax says

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(Refusal, match=r"not found \(coordinator_address should be defined\.\): give --coord"):
        parallel.join("auto", None, None, environment={})


@pytest.mark.parametrize(
    ("arguments", "environment", "joined"),
    [
        ((None, None, None), {}, None),
        ((None, None, None), {"SLURM_STEP_NUM_TASKS": "1"}, None),
        ((None, None, None), {"SLURM_STEP_NUM_TASKS": "2"}, {}),
        ((None, None, None), {"TPU_WORKER_HOSTNAMES": "host0"}, None),
        ((None, None, None), {"TPU_WORKER_HOSTNAMES": "host0,host1"}, {}),
        ((None, None, None), {"TPU_WORKER_HOSTNAMES": "host0", "MEGASCALE_NUM_SLICES": "2"}, {}),
        (("auto", None, None), {}, {}),
        (
            ("host0:1", 2, 1),
            {"SLURM_STEP_NUM_TASKS": "4"},  # flags go before the environment
            {"coordinator_address": "host0:1", "num_processes": 2, "process_id": 1},
        ),
    ],
)
def test_processes_join_by_flags_or_by_the_clusters_environment(arguments, environment, joined, monkeypatch):
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **place: calls.append(place))
    parallel.join(*arguments, environment=environment)
    assert calls == ([] if joined is None else [joined])


def test_a_process_reads_only_its_part_of_a_batch(group, task, monkeypatch):
    """Of 8 rows the second of two processes has rows 4 to 7, in training and in evaluation."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    taken = []
    rows = type(task.rows["train"])
    monkeypatch.setattr(
        rows, "take", lambda self, indices, take=rows.take: taken.append(len(indices)) or take(self, indices)
    )
    stop, batches = next(prefetched(group, task, 4))
    assert (stop, set(taken)) == (8, {4})
    for s, seed in enumerate(group.seeds):
        for i in range(4):
            for key, whole in task.training(seed)[4 + i].items():
                np.testing.assert_array_equal(batches[key][s, i], whole[4:])


@pytest.mark.parametrize("split", ["validation", "test"])
def test_parts_of_a_batch_are_the_batch(task, split):
    for whole, *parts in zip(
        task.evaluation(split),
        *(task.evaluation(split, part) for part in (slice(0, 3), slice(3, 8))),
        strict=True,
    ):
        for key in whole:
            np.testing.assert_array_equal(np.concatenate([part[key] for part in parts]), whole[key])
