"""A sweep shared among the processes of a job array, which need not know of each other."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from jaxlayers.refusal import Refusal
from train.config import GroupConfig


@dataclass(frozen=True)
class Shard:
    """The `index`-th of `count` parts, counted from 1."""

    index: int = 1
    count: int = 1

    @classmethod
    def read(cls, text: str | None, environment: Mapping[str, str] = os.environ) -> "Shard":
        """From "i/n", else from SLURM's variables of a job array, else the whole.

        Raises:
            Refusal: it is no such part.
        """
        if text is not None:
            found = re.fullmatch(r"(\d+)/(\d+)", text)
            shard = cls(*map(int, found.groups())) if found else None
        elif "SLURM_ARRAY_TASK_ID" in environment:
            told = [
                environment.get(f"SLURM_ARRAY_TASK_{key}", default)
                for key, default in (("ID", ""), ("MIN", "0"), ("STEP", "1"), ("COUNT", "1"))
            ]
            text = "SLURM_ARRAY_TASK_ID={0} of {3} from {1} by {2}".format(*told)
            try:
                identity, first, step, count = map(int, told)
                shard = cls((identity - first) // step + 1, count)
            except (ValueError, ZeroDivisionError):
                shard = None
        else:
            return WHOLE
        if shard is None or not 1 <= shard.index <= shard.count:
            raise Refusal(f"shard {text}: give i/n with i from 1 to n, as --shard 1/4")
        return shard

    def of(self, groups: list[GroupConfig]) -> list[GroupConfig]:
        """Dealt out in turn, the deepest first, so that all parts end at about the same time."""
        return sorted(groups, key=lambda group: -group.depth)[self.index - 1 :: self.count]


WHOLE = Shard()
