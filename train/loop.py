"""Training one group of runs: all seeds of one task, architecture and depth."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np

from train import parallel
from train.checkpoint import Checkpoints
from train.config import GroupConfig
from train.cost import training_flops
from train.interruption import NEVER, Interruption
from train.metrics import Metrics
from train.progress import Progress
from train.step import Sums, Trainer
from train.tasks import Task


def train(
    group: GroupConfig, folder: Path, task: Task, progress: Progress, interruption: Interruption = NEVER
) -> None:
    """Makes the steps that are left. Killed at any moment and called again, it ends with the same bits.

    Raises:
        Stopped: by a signal, after a checkpoint.
    """
    steps, cadence, seeds = group.task.steps, group.cadence, np.array(group.seeds)
    trainer = Trainer(group, task)
    tokens = group.task.batch * task.length
    flops = training_flops(trainer.config, task.classes, tokens)
    start = parallel.over_devices(parallel.over_seeds(trainer.start))
    dispatch = Compiled(parallel.over_devices(parallel.over_seeds(trainer.steps), donate=(0,)))
    evaluate = Evaluation(trainer, task, cadence.validation_batches)

    with Checkpoints(folder) as checkpoints:
        state, done = start(parallel.replicate(seeds)), 0
        if found := checkpoints.newest(like=parallel.first(state)):
            done, state = found[0], parallel.replicate(found[1])
        with Metrics(folder, done) as metrics, interruption.postponed():
            for stop, batches in prefetched(group, task, done):
                batches = parallel.shard(batches, axis=2)
                call = dispatch.at(state, batches)
                begun = time.perf_counter()
                state, found = call(state, batches)
                found = parallel.first(found)  # waits for the device
                seconds = time.perf_counter() - begun

                rate = len(seeds) * (stop - done) * tokens / seconds
                for i, step in enumerate(range(done, stop)):
                    for s, seed in enumerate(group.seeds):
                        metrics.write(
                            step=step + 1,
                            seed=seed,
                            split="train",
                            loss=float(found.loss[s, i]),
                            accuracy=float(found.accuracy[s, i]),
                            gradient_norm=float(found.gradient_norm[s, i]),
                            learning_rate=float(trainer.schedule(step)),
                            tokens_per_second=round(rate),
                            flops=flops * (step + 1),
                        )
                progress.advance(
                    len(seeds) * (stop - done) * flops,
                    seconds,
                    f"step {stop}/{steps}  loss {found.loss[:, -1].mean():.3f}  {rate:,.0f} tokens/s",
                )
                done = stop
                last = stop == steps
                if last or stop % cadence.validate_every == 0:
                    rows = evaluate("validation", state.parameters, at_most=cadence.validation_batches)
                    for seed, row in zip(group.seeds, rows, strict=True):
                        metrics.write(step=stop, seed=seed, split="validation", **row)
                if last:
                    for seed, row in zip(group.seeds, evaluate("test", state.parameters), strict=True):
                        metrics.write(step=stop, seed=seed, split="test", **row)
                if last or stop % cadence.save_every == 0 or interruption.number is not None:
                    metrics.flush()  # before the checkpoint, so that no step is without its line
                    checkpoints.save(stop, parallel.first(state))
                interruption.leave()


class Compiled:
    """A function compiled ahead, once for each shape of its arguments, so that clocks leave it out."""

    def __init__(self, function: Any):
        self.function = function
        self.by_shape: dict[Any, Callable] = {}

    def at(self, *arguments: Any) -> Callable:
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(arguments))
        if shapes not in self.by_shape:
            self.by_shape[shapes] = self.function.lower(*arguments).compile()
        return self.by_shape[shapes]


def prefetched(group: GroupConfig, task: Task, done: int) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """For each dispatch that is left, the step at which it ends and its batches [S, n, B, T]."""
    steps, stride = group.task.steps, group.cadence.dispatch
    streams = [task.training(seed) for seed in group.seeds]

    def load(start: int) -> tuple[int, dict[str, np.ndarray]]:
        stop = min(start + stride, steps)
        return stop, stack([stack([s[i] for i in range(start, stop)]) for s in streams])

    starts = grain.MapDataset.range(done, steps, stride).map(load)
    yield from starts.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))


def stack(batches: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {key: np.stack([batch[key] for batch in batches]) for key in batches[0]}


class Evaluation:
    """Mean loss and accuracy over a split, for each seed; one program for any number of batches."""

    def __init__(self, trainer: Trainer, task: Task, batches: int):
        def sums(parameters: Any, stacked: dict[str, Any]) -> Sums:
            return parallel.over_seeds(lambda each: trainer.evaluate(each, stacked))(parameters)

        self.sums = parallel.over_devices(sums)
        self.task, self.batches = task, batches

    def __call__(self, split: str, parameters: Any, at_most: int | None = None) -> list[dict[str, float]]:
        """One row a seed, over the first `at_most` batches of the split (none: over all)."""
        batches = list(self.task.evaluation(split)[:at_most])
        nothing = {**batches[0], "weights": np.zeros_like(batches[0]["weights"])}
        batches += [nothing] * (-len(batches) % self.batches)
        total: Sums | None = None
        for i in range(0, len(batches), self.batches):
            stacked = parallel.shard(stack(batches[i : i + self.batches]), axis=1)
            sums = parallel.first(self.sums(parameters, stacked))
            total = sums if total is None else total + sums
        assert total is not None
        return [
            {"loss": float(loss / weight), "accuracy": float(correct / weight), "positions": float(weight)}
            for loss, correct, weight in zip(total.loss, total.correct, total.weight, strict=True)
        ]
