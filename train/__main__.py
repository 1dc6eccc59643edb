"""python -m train CONFIG [--field value …]: trains what is left of a sweep."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from jaxlayers import xla
from jaxlayers.refusal import Refusal
from train import parallel
from train.config import SweepConfig, read
from train.interruption import Interruption, Stopped
from train.launcher import LAUNCHERS, Launch
from train.log import Fault
from train.shard import Shard
from train.sinks import Log
from train.sweep import run
from train.tasks import CACHE

USAGE = "usage: python -m train CONFIG.toml [--field value ...]    (--help after CONFIG explains each field)"


@dataclass(frozen=True)
class Command:
    """Trains what is left of a sweep."""

    sweep: Annotated[SweepConfig, tyro.conf.arg(name="")]
    shard: Annotated[
        str | None,
        tyro.conf.arg(help="i/n: train the i-th of n parts; unless given, SLURM's job array says which"),
    ] = None
    coordinator: Annotated[
        str | None,
        tyro.conf.arg(
            help="host:port of process 0, where several processes train each run together; auto: as the "
            "cluster says. Unless given, SLURM's and TPUs' variables say whether there are several"
        ),
    ] = None
    processes: Annotated[int | None, tyro.conf.arg(help="how many train each run together")] = None
    process: Annotated[int | None, tyro.conf.arg(help="which of them this one is, from 0")] = None
    log: Annotated[
        tuple[Log, ...], tyro.conf.arg(help="where metrics go too, beside metrics.jsonl: each is an extra")
    ] = ()
    launcher: Annotated[
        Launch,
        tyro.conf.arg(
            help="local: one group of runs after another, here; ray (an extra): each a task of the cluster "
            "at RAY_ADDRESS, else of one started here; its machines share FOLDER and ~/.cache/jaxlayers"
        ),
    ] = "local"


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    xla.keep_programs(CACHE / "programs")
    try:
        sweep = read(Path(arguments[0]))
        command = tyro.cli(
            Command,
            prog="python -m train CONFIG",
            default=Command(sweep),
            args=arguments[1:],
            config=(tyro.conf.AvoidSubcommands,),
        )
        parallel.join(command.coordinator, command.processes, command.process)
        with Interruption() as interruption:
            run(
                command.sweep,
                Console(quiet=not parallel.leads()),
                interruption=interruption,
                shard=Shard.read(command.shard),
                log=command.log,
                launcher=LAUNCHERS[command.launcher],
            )
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 2
    except Fault as fault:
        print(f"error: {fault}", file=sys.stderr, flush=True)
        if parallel.several():  # the others wait for this process: they end once it has
            os._exit(1)
        return 1
    except Stopped as stopped:
        print(f"{stopped}: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 128 + stopped.number
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
