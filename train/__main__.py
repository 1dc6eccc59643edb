"""python -m train CONFIG [--field value …]: trains what is left of a sweep."""

import sys
from pathlib import Path

import tyro
from rich.console import Console

from jaxlayers.refusal import Refusal
from train.config import SweepConfig, read
from train.interruption import Interruption, Stopped
from train.log import Fault
from train.sweep import run

USAGE = "usage: python -m train CONFIG.toml [--field value ...]    (--help after CONFIG explains each field)"


def main(arguments: list[str]) -> int:
    console = Console()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    try:
        sweep = read(Path(arguments[0]))
        sweep = tyro.cli(
            SweepConfig,
            prog="python -m train CONFIG",
            default=sweep,
            args=arguments[1:],
            config=(tyro.conf.AvoidSubcommands,),
        )
        with Interruption() as interruption:
            run(sweep, console, interruption=interruption)
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 2
    except Fault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print(f"{stopped}: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 128 + stopped.number
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
