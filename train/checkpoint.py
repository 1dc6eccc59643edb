"""Saving and restoring what training carries, with orbax."""

import json
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import orbax.checkpoint as ocp
from pydantic import BaseModel, ValidationError

from jaxlayers.refusal import Refusal
from train.config import GroupConfig, differences
from train.files import written_whole
from train.step import State

CONFIG = "config.json"
FOLDER = "checkpoints"


def claim(folder: Path, group: GroupConfig) -> None:
    """Makes the folder this group's, or refuses where it holds the runs of another configuration."""
    path, config = folder / CONFIG, json.loads(group.model_dump_json())
    if path.exists():
        try:
            found = json.loads(path.read_text())
            with suppress(ValidationError):  # a key that has been added since has its default
                found = json.loads(GroupConfig.model_validate(found).model_dump_json())
        except ValueError:
            raise Refusal(f"{path} is not readable as JSON: restore it, or move {folder} away") from None
        if changed := differences(found, config):
            raise Refusal(
                f"{folder} was trained with other values of {', '.join(changed)}: "
                "set them back, give the sweep another name, or move the folder away"
            )
        return
    write_json(path, group)


def write_json(path: Path, model: BaseModel) -> None:
    with written_whole(path) as file:
        file.write(model.model_dump_json(indent=2) + "\n")


def saved(folder: Path) -> int:
    """The last step of a folder's runs that is in a checkpoint; 0 where there is none."""
    return max((int(path.name) for path in (folder / FOLDER).glob("*") if path.name.isdigit()), default=0)


class Checkpoints:
    """The checkpoints of one group of runs: the state of all its seeds, on the host, by step."""

    def __init__(self, folder: Path):
        options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
        self.manager = ocp.CheckpointManager((folder / FOLDER).absolute(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.manager.close()  # waits for a save under way

    def save(self, step: int, state: State) -> None:
        """Writes in the background; a checkpoint appears under its name only when it is whole."""
        self.manager.save(step, args=ocp.args.StandardSave(state))

    def restore(self, step: int, like: State) -> State:
        """The state saved at a step; `like` has its structure, shapes and types."""
        return self.manager.restore(step, args=ocp.args.StandardRestore(like))
