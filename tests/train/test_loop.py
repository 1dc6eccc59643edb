"""Resuming: whatever happens to the process, the parameters end as if nothing had happened."""

import os
import signal
from io import StringIO

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from analysis.runs import diverged
from train import loop, parallel
from train.checkpoint import Checkpoints, saved
from train.config import SweepConfig
from train.interruption import Interruption, Stopped
from train.loop import Evaluation, train
from train.metrics import lines
from train.progress import Progress, Work
from train.step import Trainer
from train.sweep import ends, run
from train.tasks import Task


def progress(group):
    quiet = Progress({group.label: Work(group.depth, group.seeds, 1.0, 1.0)}, Console(file=StringIO()))
    quiet.start(group.label)
    return quiet


def final(folder, group, task):
    """The bits of the last checkpoint, optimiser included."""
    trainer = Trainer(group, task)
    shapes = jax.eval_shape(jax.vmap(trainer.start), np.array(group.seeds))
    like = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    with Checkpoints(folder) as checkpoints:
        return checkpoints.restore(group.task.steps, like)


def assert_same_bits(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture(scope="module")
def uninterrupted(group, task, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    train(group, folder, task, progress(group))
    return folder


class Stop(Exception):
    pass


def stop_at(step):
    def trained(self, flops, seconds, now, losses, rate):
        if now == f"{step}/12":
            raise Stop

    return trained


@pytest.mark.parametrize("dispatches", [1, 2])
def test_stopped_and_resumed(dispatches, group, task, tmp_path, uninterrupted, monkeypatch):
    """Stopped after a dispatch whose metrics are written but whose checkpoint is not."""
    folder = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "trained", stop_at(4 * dispatches))
        with pytest.raises(Stop):
            train(group, folder, task, progress(group))
    assert saved(folder) == 4 * (dispatches - 1)
    train(group, folder, task, progress(group))
    assert_same_bits(final(folder, group, task), final(uninterrupted, group, task))

    seconds = [line["seconds"] for line in lines(folder / "metrics.jsonl") if line["split"] == "train"]
    assert seconds == sorted(seconds)  # the clock goes on where it was

    kept, whole = (list(lines(f / "metrics.jsonl")) for f in (folder, uninterrupted))
    for line in kept + whole:
        for key in ("tokens_per_second", "seconds", "utilisation"):
            assert (line.pop(key, 0) > 0) == (line["split"] == "train")
    assert kept == whole  # every step once


def test_asked_to_leave_it_saves_and_goes_on_later(group, task, tmp_path, uninterrupted, monkeypatch):
    """At the end of the dispatch, where no checkpoint was due."""
    rarely = group.model_copy(update={"cadence": group.cadence.model_copy(update={"save_every": 400})})

    def asked(self, *_):
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, Interruption() as interruption:
        patch.setattr(Progress, "trained", asked)
        with pytest.raises(Stopped, match="SIGTERM"):
            train(rarely, tmp_path, task, progress(group), interruption)
    assert saved(tmp_path) == 4
    train(rarely, tmp_path, task, progress(group))
    assert_same_bits(final(tmp_path, group, task), final(uninterrupted, group, task))


def test_metrics_hold_every_step_of_every_seed_once(group, uninterrupted):
    found = [
        (line["seed"], line["step"])
        for line in lines(uninterrupted / "metrics.jsonl")
        if line["split"] == "train"
    ]
    assert sorted(found) == [(seed, step) for seed in group.seeds for step in range(1, 13)]


def poisoned(task, seeds, step):
    """The task, but the losses of some seeds are NaN from a step on (counted from 0)."""

    class Poisoned(Task):
        def training(self, seed, part):
            def poison(index, batch):
                weight = np.float32("nan") if seed in seeds and index >= step else np.float32(1)
                return {**batch, "weights": batch["weights"] * weight}

            return super().training(seed, part).map_with_index(poison)

    return Poisoned(**vars(task))


def test_a_run_that_diverges_stops_and_its_neighbour_does_not(group, task, tmp_path, uninterrupted):
    """At the tenth step, so the checkpoint of step 8 is one step back."""
    folder = tmp_path / group.path
    train(group, folder, poisoned(task, {5}, step=9), progress(group))
    a, b = final(folder, group, task), final(uninterrupted, group, task)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[0], y[0]), a, b)
    assert a.sound.tolist() == [True, False]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(a))
    stopped = jax.tree.leaves(a.optimiser)[0]  # the number of updates
    assert stopped.tolist() == [12, 9]

    found = [line for line in lines(folder / "metrics.jsonl") if line["seed"] == 5 and line["step"] > 8]
    assert [(line["split"], line["step"], line["loss"]) for line in found] == [
        ("train", 9, found[0]["loss"]),
        ("train", 10, None),
        ("diverged", 10, None),
    ]
    assert ends(folder, group)[1] == "diverged at step 10"
    assert diverged(tmp_path, group) == [5]


def test_where_all_runs_diverge_the_group_ends(group, task, tmp_path):
    train(group, tmp_path, poisoned(task, set(group.seeds), step=5), progress(group))
    assert saved(tmp_path) == 12  # nothing is left to do
    assert max(line["step"] for line in lines(tmp_path / "metrics.jsonl")) == 6
    assert not final(tmp_path, group, task).sound.any()


def test_a_checkpoint_of_two_devices_goes_on_on_one(group, task, tmp_path, float64, monkeypatch):
    """The sum over devices is in another order, so the last bits of float64 differ and no more."""
    exact = group.architecture.model_copy(update={"dtype": "float64"})
    group = group.model_copy(update={"architecture": exact})
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "trained", stop_at(8))
        with pytest.raises(Stop):
            train(group, tmp_path / "moved", task, progress(group))
    assert saved(tmp_path / "moved") == 4
    train(group, tmp_path / "stayed", task, progress(group))
    monkeypatch.setattr(parallel, "devices", lambda: jax.local_devices()[:1])
    train(group, tmp_path / "moved", task, progress(group))
    a, b = (final(tmp_path / name, group, task).parameters for name in ("moved", "stayed"))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12), a, b)


def test_evaluation_weighs_a_partial_batch_by_what_it_holds(group, task):
    """Against the mean over rows, one row at a time; 21 rows are two and a part batches of 8."""
    rows = task.rows["test"]
    few = type(rows)(rows.tokens[:21], rows.labels[:21], rows.weights[:21])
    small = type(task)(**{**vars(task), "rows": {**task.rows, "test": few}})
    trainer = Trainer(group, task)
    start = parallel.over_devices(parallel.over_seeds(trainer.start))
    state = start(parallel.replicate(np.array(group.seeds)))
    found = Evaluation(trainer, small, batches=2)("test", state.parameters)

    parameters = parallel.first(state.parameters)
    for s, row in enumerate(found):
        model = trainer.model(jax.tree.map(lambda leaf, s=s: jnp.array(leaf[s]), parameters))
        logits = np.asarray(model(jnp.array(few.tokens, jnp.int32)), np.float64)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        loss = -np.take_along_axis(logits, few.labels[..., None], -1).mean()
        assert row["loss"] == pytest.approx(loss, rel=1e-6)
        assert row["accuracy"] == pytest.approx((logits.argmax(-1) == few.labels).mean(), rel=1e-6)
        assert row["positions"] == 21 * 8


@pytest.fixture
def sweep(group, tmp_path):
    return SweepConfig(
        name="s", folder=tmp_path, depths=(1,), seeds=group.seeds, optimiser=group.optimiser,
        architectures={"tiny": group.architecture}, tasks={"words": group.task}, cadence=group.cadence,
    )  # fmt: skip


def test_the_programs_of_a_group_do_not_pile_up(sweep, full, console):
    run(sweep, console)
    assert full._cache_size() == 0


def test_a_finished_sweep_is_left_alone(sweep, monkeypatch):
    run(sweep, Console(file=StringIO()))
    before = {p: p.stat().st_mtime_ns for p in sweep.path.rglob("checkpoints/*")}
    monkeypatch.setattr(loop, "Trainer", None)
    said = StringIO()
    run(sweep, Console(file=said))
    assert "1 of 1 groups of runs are finished already" in said.getvalue()
    assert {p: p.stat().st_mtime_ns for p in sweep.path.rglob("checkpoints/*")} == before
