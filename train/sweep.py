"""All the groups of a sweep; what is finished is left alone."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from jaxlayers import Decoder, xla
from jaxlayers.refusal import Refusal
from train import parallel
from train.checkpoint import Checkpoints, claim, saved, write_json
from train.config import GroupConfig, SweepConfig
from train.files import full_disk_refused, held
from train.interruption import NEVER, Interruption
from train.log import Fault, logged, shown
from train.loop import train, work
from train.metrics import FILE, lines, write_csv
from train.progress import Progress, Work, duration
from train.shard import WHOLE, Shard
from train.sinks import Log, check_installed
from train.step import State, Trainer
from train.tasks import CACHE, Task, load

SWEEP = "sweep.json"


@dataclass(frozen=True)
class Job:
    """The groups of a sweep that are not finished, in folders that are theirs."""

    sweep: SweepConfig
    groups: list[GroupConfig]  # the largest first
    left: dict[str, Work]  # by their labels
    tasks: dict[str, Task]
    cache: Path
    locks: ExitStack  # of the folders: the leading process holds them until it closes it
    console: Console
    interruption: Interruption
    log: Sequence[Log]


@runtime_checkable
class Launcher(Protocol):
    """Where and in which order groups are trained."""

    def check(self, groups: list[GroupConfig]) -> None:
        """Refuses, before anything is written, what cannot run."""

    def train(self, job: Job) -> list[Refusal | Fault]:
        """What kept groups from their end, where that did not keep others from theirs."""


class Local:
    """In this process, one group after another."""

    def check(self, groups: list[GroupConfig]) -> None:
        for group in groups:
            check_batch(group)

    def train(self, job: Job) -> list[Refusal | Fault]:
        with Progress(job.left, job.console) as progress:
            for group in job.groups:
                folder, task = job.sweep.path / group.path, job.tasks[group.task_name]
                progress.finish(train_group(group, folder, task, progress, job.interruption, job.log))
                xla.make_room()
        return []


LOCAL = Local()


def run(
    sweep: SweepConfig,
    console: Console,
    cache: Path = CACHE,
    interruption: Interruption = NEVER,
    shard: Shard = WHOLE,
    log: Sequence[Log] = (),
    launcher: Launcher = LOCAL,
) -> None:
    """Trains every group of the shard that is not finished. Refuses, before anything runs, what cannot run.

    Raises:
        Refusal: it cannot run, or the disk is full.
        Fault: an internal error, whose traceback is in the folder's log.
        Stopped: by a signal; what was trained is saved.
    """
    check_installed(log)
    groups = shard.of(sweep.groups())
    launcher.check(groups)
    with shown(console), logged(sweep.path), full_disk_refused(sweep.path), ExitStack() as locks:
        needed = {group.task_name for group in groups}
        tasks = {name: load(config, cache) for name, config in sweep.tasks.items() if name in needed}
        if shard != WHOLE:
            console.out(f"part {shard.index} of {shard.count}: {len(groups)} groups of runs", highlight=False)

        def claimed() -> dict[str, int]:
            for group in groups:
                locks.enter_context(held(sweep.path / group.path))
                claim(sweep.path / group.path, group)
            write_json(sweep.path / SWEEP, sweep)
            return {group.label: saved(sweep.path / group.path) for group in groups}

        done = parallel.led(claimed)
        left = {
            group.label: work(group, tasks[group.task_name], done[group.label])
            for group in groups
            if done[group.label] < group.task.steps
        }
        if finished := len(groups) - len(left):
            console.out(f"{finished} of {len(groups)} groups of runs are finished already", highlight=False)
        # The largest first: the time left is right early, and processes that share a sweep end together.
        order = sorted((g for g in groups if g.label in left), key=lambda g: -left[g.label].training)
        job = Job(sweep, order, left, tasks, cache, locks, console, interruption, log)
        failed = launcher.train(job) if order else []
        if parallel.leads():
            write_csv(sweep.path / "metrics.csv", evaluations(sweep))
        if failed:
            kind = next((Fault for error in failed if isinstance(error, Fault)), Refusal)
            raise kind(
                f"{len(failed)} of {len(order)} groups of runs did not end, as said above; the same command "
                "goes on with them"
            )


def check_batch(group: GroupConfig) -> None:
    """Refuses a batch that does not split over the devices of this process."""
    batch, accumulate = group.task.batch, group.optimiser.accumulate
    if batch % (parallel.count() * accumulate):
        raise Refusal(
            f"tasks.{group.task_name}.batch {batch} is not divisible by the number of devices, "
            f"{parallel.count()}, times optimiser.accumulate, {accumulate}: change one of them"
        )


def train_group(
    group: GroupConfig,
    folder: Path,
    task: Task,
    progress: Progress,
    interruption: Interruption,
    log: Sequence[Log],
) -> str:
    """In a folder that this process holds. How it ended, as a line."""
    begun = time.monotonic()
    progress.start(group.label)
    with logged(folder), full_disk_refused(folder):
        train(group, folder, task, progress, interruption, log)
    losses = parallel.led(lambda: ends(folder, group))
    return f"{group.label}  test loss {', '.join(losses)}  in {duration(time.monotonic() - begun)}"


def ends(folder: Path, group: GroupConfig) -> list[str]:
    """How each run of a group ended: its test loss, or where it diverged."""
    said = {
        line["seed"]: f"diverged at step {line['step']}"
        if line["split"] == "diverged"
        else f"{line['loss']:.3f}"
        if line["loss"] is not None
        else "not finite"
        for line in lines(folder / FILE)
        if line["split"] in ("test", "diverged")
    }
    return [said[seed] for seed in group.seeds]


def evaluations(sweep: SweepConfig) -> list[dict[str, object]]:
    """Every validation and test of every run, one row each."""
    return [
        {"task": group.task_name, "architecture": group.architecture_name, "depth": group.depth, **line}
        for group in sweep.groups()
        for line in lines(sweep.path / group.path / FILE)
        if line["split"] != "train"
    ]


def trained(folder: Path, group: GroupConfig, task: Task) -> list[tuple[Decoder, Decoder]]:
    """The models of a finished group as they were at the start and at the end, one pair a seed."""
    trainer = Trainer(group, task)
    start = parallel.over_devices(parallel.over_seeds(trainer.start))  # training's, so it is in the cache
    first = parallel.first(start(parallel.replicate(np.array(group.seeds))))
    with Checkpoints(folder / group.path) as checkpoints:
        last = checkpoints.restore(group.task.steps, first)

    def models(state: State) -> list[Decoder]:
        seeds = range(len(group.seeds))
        each = [jax.tree.map(lambda leaf, s=s: jnp.asarray(leaf[s]), state.parameters) for s in seeds]
        return [trainer.model(parameters) for parameters in each]

    return list(zip(models(first), models(last), strict=True))
