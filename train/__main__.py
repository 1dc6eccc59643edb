"""python -m train CONFIG [--field value …]: trains what is left of a sweep."""

import sys
from pathlib import Path

import tyro
from rich.console import Console

from jaxlayers.refusal import Refusal
from train.config import SweepConfig, read
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
        run(sweep, console)
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
