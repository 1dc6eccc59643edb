"""Training one group of runs: all seeds of one task, architecture and depth."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grain
import numpy as np
from jaxtyping import Bool

from train import parallel
from train.checkpoint import Checkpoints
from train.config import GroupConfig
from train.cost import training_flops
from train.interruption import NEVER, Interruption, Stopped
from train.metrics import Metrics, Unwritten
from train.progress import Progress, Work
from train.sinks import Log, opened
from train.step import StepMetrics, Sums, Trainer
from train.tasks import Task


def train(
    group: GroupConfig,
    folder: Path,
    task: Task,
    progress: Progress,
    interruption: Interruption = NEVER,
    log: Sequence[Log] = (),
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
    dispatch = parallel.over_devices(parallel.over_seeds(trainer.steps), donate=(0,))
    evaluate = Evaluation(trainer, task, cadence.validation_batches, progress.evaluated)

    def evaluation(split: str, at_most: int | None = None) -> None:
        rows = evaluate(split, state.parameters, at_most)
        for seed, row, goes_on in zip(group.seeds, rows, sound, strict=True):
            if goes_on:
                metrics.write(step=done, seed=seed, split=split, **row)

    with Checkpoints(folder) as checkpoints:
        state, done = start(parallel.replicate(seeds)), 0
        if restored := checkpoints.newest(like=parallel.first(state)):
            done, state = restored[0], parallel.replicate(restored[1])
        sound = parallel.first(state.sound)
        sinks = partial(opened, log, folder, group)
        written = Metrics(folder, done, sinks) if parallel.leads() else Unwritten()
        with written as metrics, interruption.postponed():
            feed, clock = prefetched(group, task, done), Clock(metrics.seconds)
            while done < steps:
                with clock:
                    stop, batches = next(feed)
                    batches = parallel.shard(batches, axis=2)
                call = dispatch.at(state, batches)
                with clock:
                    state, found = call(state, batches)
                    found = parallel.first(found)  # waits for the device

                seconds, peak = clock.lap(), parallel.peak()
                rate = len(seeds) * (stop - done) * tokens / seconds
                speed = {"tokens_per_second": round(rate), "seconds": round(clock.total, 3)}
                if peak:
                    speed["utilisation"] = round(rate * flops / tokens / peak, 4)
                for line in lines_of(group, done, found, sound):
                    if line["split"] == "train":
                        line["learning_rate"] = float(trainer.schedule(line["step"] - 1))
                        line |= {"flops": flops * line["step"], **speed}
                    metrics.write(**line)
                sound = found.sound[:, -1]
                losses = [
                    float(loss) if ok else None for loss, ok in zip(found.loss[:, -1], sound, strict=True)
                ]
                progress.trained(len(seeds) * (stop - done) * flops, seconds, f"{stop}/{steps}", losses, rate)

                done = stop if sound.any() else steps  # where all have diverged, nothing moves any more
                last = done == steps
                asked = parallel.greatest(interruption.number or 0)  # what one process is told, all do
                if last or done % cadence.validate_every == 0:
                    evaluation("validation", at_most=cadence.validation_batches)
                if last:
                    evaluation("test")
                if last or done % cadence.save_every == 0 or asked:
                    metrics.flush()  # before the checkpoint, so that no step is without its line
                    checkpoints.save(done, parallel.first(state))
                if asked:
                    raise Stopped(asked)


def lines_of(
    group: GroupConfig, done: int, found: StepMetrics, sound: Bool[np.ndarray, " S"]
) -> Iterator[dict[str, Any]]:
    """Of the steps after `done`: one for each seed while it was sound, one more where it diverged."""
    before = np.concatenate([sound[:, None], found.sound[:, :-1]], axis=1)
    for i in range(before.shape[1]):
        for s, seed in enumerate(group.seeds):
            if before[s, i]:
                where = {"step": done + i + 1, "seed": seed}
                loss = float(found.loss[s, i])
                yield {
                    **where,
                    "split": "train",
                    "loss": loss,
                    "accuracy": float(found.accuracy[s, i]),
                    "gradient_norm": float(found.gradient_norm[s, i]),
                }
                if not found.sound[s, i]:
                    yield {**where, "split": "diverged", "loss": loss}


def work(group: GroupConfig, task: Task, done: int) -> Work:
    """What is left to do after `done` steps."""
    steps, cadence = group.task.steps, group.cadence
    batch = training_flops(group.model(task), task.classes, group.task.batch * task.length) * len(group.seeds)
    validations = -(-steps // cadence.validate_every) - done // cadence.validate_every
    test = padded(len(task.evaluation("test")), cadence.validation_batches)
    evaluated = validations * cadence.validation_batches + test
    return Work(group.depth, group.seeds, batch * (steps - done), batch / 3 * evaluated)


def padded(count: int, stride: int) -> int:
    """The next multiple of the stride."""
    return count + -count % stride


class Clock:
    """Seconds within its `with` blocks: in all, and since the last lap."""

    def __init__(self, total: float):
        self.total = self.at_lap = total

    def __enter__(self) -> None:
        self.begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.total += time.perf_counter() - self.begun

    def lap(self) -> float:
        lap, self.at_lap = self.total - self.at_lap, self.total
        return lap


def prefetched(group: GroupConfig, task: Task, done: int) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """For each dispatch that is left, the step at which it ends and its batches [S, n, B, T]."""
    steps, stride = group.task.steps, group.cadence.dispatch
    rows = parallel.rows(task.batch)
    streams = [task.training(seed, rows) for seed in group.seeds]

    def load(start: int) -> tuple[int, dict[str, np.ndarray]]:
        stop = min(start + stride, steps)
        return stop, stack([stack([s[i] for i in range(start, stop)]) for s in streams])

    starts = grain.MapDataset.range(done, steps, stride).map(load)
    yield from starts.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))


def stack(batches: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {key: np.stack([batch[key] for batch in batches]) for key in batches[0]}


class Evaluation:
    """Mean loss and accuracy over a split, for each seed; one program for any number of batches."""

    def __init__(
        self,
        trainer: Trainer,
        task: Task,
        batches: int,
        report: Callable[[float, float], None] = lambda flops, seconds: None,
    ):
        def sums(parameters: Any, stacked: dict[str, Any]) -> Sums:
            return parallel.over_seeds(lambda each: trainer.evaluate(each, stacked))(parameters)

        self.sums = parallel.over_devices(sums)
        self.task, self.batches, self.report = task, batches, report
        self.flops = training_flops(trainer.config, task.classes, batches * task.batch * task.length) / 3

    def __call__(self, split: str, parameters: Any, at_most: int | None = None) -> list[dict[str, float]]:
        """One row a seed, over the first `at_most` batches of the split (none: over all)."""
        batches = list(self.task.evaluation(split, parallel.rows(self.task.batch))[:at_most])
        nothing = {**batches[0], "weights": np.zeros_like(batches[0]["weights"])}
        batches += [nothing] * (padded(len(batches), self.batches) - len(batches))
        total: Sums | None = None
        for i in range(0, len(batches), self.batches):
            stacked = parallel.shard(stack(batches[i : i + self.batches]), axis=1)
            call = self.sums.at(parameters, stacked)
            begun = time.perf_counter()
            sums = parallel.first(call(parameters, stacked))
            self.report(self.flops * len(sums.loss), time.perf_counter() - begun)
            total = sums if total is None else total + sums
        assert total is not None
        return [
            {"loss": float(loss / weight), "accuracy": float(correct / weight), "positions": float(weight)}
            for loss, correct, weight in zip(total.loss, total.correct, total.weight, strict=True)
        ]
