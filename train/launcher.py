"""A sweep over many machines: each group of runs is a task of a Ray cluster."""

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import jax
from rich.console import Console

from jaxlayers import xla
from jaxlayers.refusal import Refusal, require
from train import parallel
from train.checkpoint import saved
from train.config import GroupConfig, Resources
from train.files import held
from train.interruption import Interruption, Stopped
from train.log import Fault, log, logged, shown
from train.loop import work
from train.progress import Progress
from train.sinks import Log
from train.sweep import LOCAL, Job, Launcher, check_batch, train_group
from train.tasks import load

RETRIES = 20
"""Of a group whose worker is lost; each goes on from the last checkpoint."""
LOOK_EVERY = 0.2  # seconds, for a signal


class Ray:
    """On the machines of a cluster, as many groups at once as `resources` lets; where one cannot end, the
    others go on."""

    def check(self, groups: list[GroupConfig]) -> None:
        require("ray", "--launcher ray", "ray")  # devices are the workers', who look at them
        if parallel.several():
            raise Refusal("--launcher ray starts its processes itself: leave --coordinator out")
        reach(os.environ.get("RAY_ADDRESS", "auto"))

    def train(self, job: Job) -> list[Refusal | Fault]:
        import ray

        job.locks.close()  # each worker holds its group's
        resources, root = job.sweep.resources, job.sweep.path.absolute()
        remote = ray.remote(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            max_retries=RETRIES,
            max_calls=1,  # the memory of a group ends with its process
        )(train_on_worker)
        failed: list[Refusal | Fault] = []
        with cluster(), job.interruption.postponed():
            if waits_for := lacking(resources):
                job.console.out(waits_for, highlight=False)
            group_of = {
                remote.remote(group, root / group.path, job.cache.absolute(), job.log): group
                for group in job.groups
            }
            running = list(group_of)
            while running:
                if job.interruption.number is not None:
                    stop(running)
                    raise Stopped(job.interruption.number)
                ended, running = ray.wait(running, timeout=LOOK_EVERY)
                for each in ended:
                    group = group_of[each]
                    try:
                        job.console.out(result(each, root / group.path), highlight=False)
                    except (Refusal, Fault) as error:
                        log.warning(f"{group.label}: {error}")
                        failed.append(error)
        return failed


LAUNCHERS: dict[str, Launcher] = {"local": LOCAL, "ray": Ray()}
Launch = Literal["local", "ray"]


def reach(address: str) -> None:
    """Ray itself would try for a quarter of an hour.

    Raises:
        Refusal: nobody answers there.
    """
    if address in ("", "auto", "local"):
        return
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise Refusal(
            f"no Ray cluster answers at RAY_ADDRESS={address} ({error}): start it with `ray start`, or "
            "correct or unset RAY_ADDRESS"
        ) from None


def lacking(resources: Resources) -> str | None:
    """What no machine of the cluster has by now, as a line; one that has it may be added yet."""
    import ray

    needed = {"CPU": resources.cpus, "GPU": resources.gpus}
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(has.get(kind, 0) >= n for kind, n in needed.items()) for has in machines):
        return None
    found = f"no machine of the cluster has {resources.cpus} CPUs and {resources.gpus} GPUs yet"
    return f"{found}: groups wait for one"


@contextmanager
def cluster() -> Iterator[None]:
    """The one at RAY_ADDRESS, or one that is started here.

    Raises:
        Refusal: there is none.
    """
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(include_dashboard=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise Refusal(f"{error}: start it with `ray start`, or correct or unset RAY_ADDRESS") from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # ray.init puts its own there
    try:
        yield
    finally:
        ray.shutdown()


def stop(running: list[Any]) -> None:
    """Has the workers save and leave."""
    import ray

    for each in running:
        ray.cancel(each)
    with suppress(KeyboardInterrupt):  # which Ray makes of a second signal
        ray.wait(running, num_returns=len(running))


def result(ended: Any, folder: Path) -> str:
    """Of a group's task.

    Raises:
        Refusal, Fault: the worker's; a Fault also where the worker was lost too often.
    """
    import ray

    with logged(folder):
        try:
            return ray.get(ended)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error


def train_on_worker(group: GroupConfig, folder: Path, cache: Path, log: Sequence[Log]) -> str:
    """In a process of its own, on whatever machine; how the group ended, as a line."""
    import ray

    if not ray.get_gpu_ids() and "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")  # the GPUs in sight are those of others
    xla.keep_programs(cache / "programs")
    try:
        with shown(Console()), Interruption() as interruption, held(folder):
            check_batch(group)
            task = load(group.task, cache)
            progress = Progress({group.label: work(group, task, saved(folder))}, Console(quiet=True))
            return train_group(group, folder, task, progress, interruption, log)
    except Stopped as stopped:
        if stopped.number == signal.SIGTERM:  # the machine's: a worker that is lost, so Ray tries another
            sys.exit(128 + stopped.number)
        raise  # the driver's
