"""Saving and restoring what training carries, with orbax."""

import hashlib
import json
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import jax
import numpy as np
import orbax.checkpoint as ocp
from pydantic import BaseModel, ValidationError

from jaxlayers.refusal import Refusal
from train import parallel
from train.config import GroupConfig, differences
from train.files import written_whole
from train.log import log
from train.step import State

CONFIG = "config.json"
FOLDER = "checkpoints"
DAMAGED = "damaged"


class Damaged(Refusal):
    """A checkpoint is not what was saved."""


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
    """The checkpoints of one group of runs: the state of all its seeds, on the host, by step.

    Each holds a seal: its step, and a hash of the state that does not depend on how files hold it. The last
    two are kept. Of several processes the leading one alone reads and writes them, for all.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        if not parallel.leads():
            return
        path = (folder / FOLDER).absolute()
        path.mkdir(parents=True, exist_ok=True)
        alone = ocp.options.MultiprocessingOptions(
            primary_host=0, active_processes={0}, barrier_sync_key_prefix="leading"
        )
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, create=False, cleanup_tmp_directories=True, multiprocessing_options=alone
        )
        self.manager = ocp.CheckpointManager(path, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if parallel.leads():
            self.manager.close()  # waits for a save under way, and raises what went wrong with it

    def save(self, step: int, state: State) -> None:
        """Writes in the background; a checkpoint appears under its name only when it is whole.

        Raises what went wrong with the one before, too.
        """
        if not parallel.leads():
            return
        seal = {"step": step, "sha256": digest(state)}
        self.manager.save(
            step, args=ocp.args.Composite(state=ocp.args.StandardSave(state), seal=ocp.args.JsonSave(seal))
        )

    def restore(self, step: int, like: State) -> State:
        """The state saved at a step; `like` has its structure, shapes and types.

        Raises:
            Damaged: it cannot be read, or is not what was saved.
        """
        wanted = ocp.args.Composite(state=ocp.args.StandardRestore(like), seal=ocp.args.JsonRestore())
        try:
            found = self.manager.restore(step, args=wanted)
        except Exception as error:  # orbax, tensorstore and json each have their own for a torn file
            reason = f"cannot be read ({type(error).__name__}: {str(error).splitlines()[0][:200]})"
        else:
            if found["seal"] == {"step": step, "sha256": digest(found["state"])}:
                return found["state"]
            reason = "is not what was saved: its seal does not fit"
        raise Damaged(
            f"{self.folder / FOLDER / str(step)} {reason}: remove it, and `python -m train` goes on from "
            "the checkpoint before it, or from the start"
        )

    def newest(self, like: State) -> tuple[int, State] | None:
        """The last checkpoint that is what was saved, and its step; None where none was ever saved.

        Damaged ones after it are reported and set aside.

        Raises:
            Damaged: all are.
        """
        state = like

        def search() -> int | None:
            nonlocal state
            damaged: list[tuple[int, Damaged]] = []
            for step in sorted(self.manager.all_steps(), reverse=True):
                try:
                    state = self.restore(step, like)
                except Damaged as damage:
                    damaged.append((step, damage))
                    continue
                for bad, _ in damaged:
                    self.set_aside(bad, step)
                return step
            if damaged:
                raise damaged[0][1]
            return None

        step = parallel.led(search)
        return None if step is None else (step, parallel.spread(state))

    def set_aside(self, step: int, before: int) -> None:
        source, target = (self.folder / name / str(step) for name in (FOLDER, DAMAGED))
        log.warning(f"{source} is damaged and moved to {target}; training goes on from step {before}")
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(exist_ok=True)
        source.rename(target)
        self.manager.reload()


def digest(state: State) -> str:
    """SHA-256 of every array with its place, type and shape."""
    found = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(state):
        array = np.ascontiguousarray(leaf)
        found.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()
