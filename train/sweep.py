"""All the groups of a sweep, one after another; what is finished is left alone."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from jaxlayers import Decoder
from jaxlayers.refusal import Refusal
from train import parallel
from train.checkpoint import Checkpoints, claim, saved, write_json
from train.config import GroupConfig, SweepConfig
from train.files import full_disk_refused, held
from train.interruption import NEVER, Interruption
from train.log import logged, shown
from train.loop import train, work
from train.metrics import FILE, lines, write_csv
from train.progress import Progress, duration
from train.shard import WHOLE, Shard
from train.sinks import Log, check_installed
from train.step import State, Trainer
from train.tasks import CACHE, Task, load

SWEEP = "sweep.json"


def run(
    sweep: SweepConfig,
    console: Console,
    cache: Path = CACHE,
    interruption: Interruption = NEVER,
    shard: Shard = WHOLE,
    log: Sequence[Log] = (),
) -> None:
    """Trains every group of the shard that is not finished. Refuses, before anything runs, what cannot run.

    Raises:
        Refusal: it cannot run, or the disk is full.
        Fault: an internal error, whose traceback is in the folder's log.
        Stopped: by a signal; what was trained is saved.
    """
    check_installed(log)
    groups = shard.of(sweep.groups())
    for name, config in sweep.tasks.items():
        if config.batch % (parallel.count() * sweep.optimiser.accumulate):
            raise Refusal(
                f"tasks.{name}.batch {config.batch} is not divisible by the number of devices, "
                f"{parallel.count()}, times optimiser.accumulate, {sweep.optimiser.accumulate}: "
                "change one of them"
            )
    with shown(console), logged(sweep.path), full_disk_refused(sweep.path), ExitStack() as holding:
        needed = {group.task_name for group in groups}
        tasks = {name: load(config, cache) for name, config in sweep.tasks.items() if name in needed}
        if shard != WHOLE:
            console.print(
                f"part {shard.index} of {shard.count}: {len(groups)} groups of runs", highlight=False
            )

        def prepare() -> dict[str, int]:
            for group in groups:
                holding.enter_context(held(sweep.path / group.path))
                claim(sweep.path / group.path, group)
            write_json(sweep.path / SWEEP, sweep)
            return {group.label: saved(sweep.path / group.path) for group in groups}

        train_groups(sweep, groups, parallel.led(prepare), tasks, console, interruption, log)


def train_groups(
    sweep: SweepConfig,
    groups: list[GroupConfig],
    done: dict[str, int],
    tasks: dict[str, Task],
    console: Console,
    interruption: Interruption,
    log: Sequence[Log],
) -> None:
    """Those that are left after the steps that are done, in folders that the leading process holds."""
    left = {
        group.label: work(group, tasks[group.task_name], done[group.label])
        for group in groups
        if done[group.label] < group.task.steps
    }
    if finished := len(groups) - len(left):
        console.print(f"{finished} of {len(groups)} groups of runs are finished already", highlight=False)
    # The largest first: the time left is right early, and processes that share a sweep end together.
    order = sorted((g for g in groups if g.label in left), key=lambda g: -left[g.label].training)
    with Progress(left, console) as progress:
        for group in order:
            begun, folder = time.monotonic(), sweep.path / group.path
            progress.start(group.label)
            with logged(folder), full_disk_refused(folder):
                train(group, folder, tasks[group.task_name], progress, interruption, log)
            seconds = duration(time.monotonic() - begun)
            if parallel.leads():
                progress.finish(f"{group.label}  test loss {', '.join(ends(folder, group))}  in {seconds}")
    if parallel.leads():
        write_csv(sweep.path / "metrics.csv", evaluations(sweep))


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
