"""A sweep on the machines of a Ray cluster: one task for each group of runs.

A worker does what the command does, for the part of the sweep that is one group. So what holds of a process
holds of a worker, and a group whose worker was lost goes on, on another, from its last checkpoint. The folder
of runs and the cache of data must lie where all workers see them.
"""

import importlib.util
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console

from jaxlayers import xla
from jaxlayers.refusal import Refusal
from train.config import GroupConfig, SweepConfig
from train.interruption import GRACE, Interruption, Stopped
from train.log import Fault
from train.shard import WHOLE, Only, Part
from train.sinks import Log
from train.sweep import ended, prepared, run, write_evaluations
from train.tasks import CACHE

RETRIES = 10  # of a group whose worker was lost


class Outcome(NamedTuple):
    """Of a worker's task. Plain, since it travels between processes."""

    kind: Literal["trained", "refused", "failed", "stopped"]
    words: str


def train_group(sweep: SweepConfig, group: GroupConfig, cache: Path, log: Sequence[Log]) -> Outcome:
    """A worker's task."""
    xla.keep_programs(cache / "programs")
    begun = time.monotonic()
    try:
        with Interruption() as interruption:
            run(sweep, Console(quiet=True), cache, interruption, Only(group.path), log)
    except Refusal as refusal:
        return Outcome("refused", str(refusal))
    except Fault as fault:
        return Outcome("failed", str(fault))
    except Stopped as stopped:
        return Outcome("stopped", f"{group.label}: {stopped}")
    return Outcome("trained", ended(sweep, group, time.monotonic() - begun))


def run_on_ray(
    sweep: SweepConfig, console: Console, cache: Path = CACHE, part: Part = WHOLE, log: Sequence[Log] = ()
) -> None:
    """Trains every group of a part that is not finished, on the cluster that RAY_ADDRESS names, or here.

    Raises:
        Refusal: it cannot run. Of a group: once all others are done, as a Fault is.
        Stopped: by a signal; the workers were asked to save and leave.
    """
    if importlib.util.find_spec("ray") is None:
        raise Refusal("--launcher ray needs ray: pip install 'jaxlayers[ray]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    sweep = sweep.model_copy(update={"folder": sweep.folder.absolute()})  # a worker is in a folder of its own
    with prepared(sweep, console, cache, part, log) as (order, _, _):
        pass  # from here on the folders are the workers'
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    needs = sweep.resources
    task = ray.remote(num_cpus=needs.cpus, num_gpus=needs.gpus, max_retries=RETRIES)(train_group)
    running = {task.remote(sweep, group, cache.absolute(), tuple(log)): group for group in order}
    wrong: list[Refusal | Fault] = []
    try:
        left = list(running)
        while left:
            (done,), left = ray.wait(left)
            outcome = awaited(ray, done, running[done])
            console.print(outcome.words, highlight=False, markup=False, soft_wrap=True)
            if outcome.kind != "trained":
                wrong.append((Fault if outcome.kind == "failed" else Refusal)(outcome.words))
    except Stopped:
        for each in left:
            ray.cancel(each)  # to a worker it is a SIGINT
        ray.wait(left, num_returns=len(left), timeout=GRACE / 2)
        raise
    finally:
        ray.shutdown()
        write_evaluations(sweep)
    for error in sorted(wrong, key=lambda error: isinstance(error, Refusal)):  # a fault before a refusal
        raise error


def awaited(ray: Any, task: Any, group: GroupConfig) -> Outcome:
    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:  # the worker was lost too often, or could not start
        return Outcome("failed", f"{group.label}: {str(error).strip().splitlines()[0]}")
