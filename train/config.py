"""What is trained: a sweep, read from TOML, and the groups of runs that it comes to."""

import hashlib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import annotated_types
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from jaxlayers import ModelConfig
from jaxlayers.config import Architecture
from jaxlayers.refusal import Refusal
from train.cost import matched
from train.tasks import Task, TaskConfig

Fraction = Annotated[float, annotated_types.Interval(ge=0, le=1)]
Several = annotated_types.MinLen(1)


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Optimiser(Strict):
    """AdamW. The learning rate warms up linearly to the task's peak, then falls along a cosine."""

    warmup: Fraction = Field(0.1, description="share of the steps in which the learning rate rises")
    final: Fraction = Field(0.1, description="the last learning rate, as a share of the peak")
    weight_decay: NonNegativeFloat = Field(0.1, description="of matrices; not of norms and biases")
    beta1: Fraction = Field(0.9, description="decay of the mean of the gradient")
    beta2: Fraction = Field(0.95, description="decay of the mean of its square")
    clip: PositiveFloat = Field(1.0, description="the largest norm of a gradient, over all parameters")
    accumulate: PositiveInt = Field(
        1, description="parts of a batch, one after another, whose gradients make one update: less memory"
    )


class Cadence(Strict):
    """How often what happens; in steps."""

    dispatch: PositiveInt = Field(20, description="steps that the device runs at one call")
    validate_every: PositiveInt = Field(100, description="steps between validations")
    validation_batches: PositiveInt = Field(16, description="batches of one validation, at most")
    save_every: PositiveInt = Field(200, description="steps between checkpoints")

    @model_validator(mode="after")
    def _at_ends_of_dispatches(self) -> "Cadence":
        for key in ("validate_every", "save_every"):
            if getattr(self, key) % self.dispatch:
                raise ValueError(f"{key} {getattr(self, key)} is not a multiple of dispatch {self.dispatch}")
        return self


class Resources(Strict):
    """What a group of runs takes of a machine with `--launcher ray`. No part of what the runs are."""

    cpus: PositiveInt = Field(1, description="cores: no more are given away than a machine has")
    gpus: NonNegativeInt = Field(
        0, description="GPUs, for it alone; 0: CPUs, unless JAX_PLATFORMS is set there"
    )


class SweepConfig(Strict):
    """A depth sweep: every depth x seed x architecture x task is one run."""

    name: str = Field(pattern=r"^[\w.-]+$", description="the runs go to FOLDER/NAME")
    folder: Path = Field(Path("runs"), description="where sweeps are kept")
    depths: Annotated[tuple[PositiveInt, ...], Several] = Field(description="numbers of blocks")
    seeds: Annotated[tuple[NonNegativeInt, ...], Several] = Field(
        description="one run each: initial parameters and order of the data"
    )
    architectures: dict[str, Architecture] = Field(description="by name")
    equal: Literal["width", "parameters", "flops"] = Field(
        "width",
        description="what architectures have in common at a depth: nothing but the widths that they give, or "
        "the parameters or the operations of the first of them, for which the others change their widths",
    )
    tasks: dict[str, TaskConfig] = Field(description="by name")
    optimiser: Optimiser = Optimiser()
    cadence: Cadence = Cadence()
    resources: Resources = Resources()

    @model_validator(mode="after")
    def _no_run_twice(self) -> "SweepConfig":
        for key in ("depths", "seeds"):
            values = getattr(self, key)
            if len(set(values)) < len(values):
                raise ValueError(f"{key} {list(values)} names a run twice: list each value once")
        for key in ("architectures", "tasks"):
            if not getattr(self, key):
                raise ValueError(f"{key} is empty: add a table [{key}.NAME]")
        return self

    @model_validator(mode="after")
    def _blocks_come_out(self) -> "SweepConfig":
        for name, architecture in self.architectures.items():
            for depth in self.depths:
                try:
                    architecture.check(depth)
                except ValueError as error:
                    raise ValueError(f"architectures.{name}: {error}") from None
        return self

    @property
    def path(self) -> Path:
        return self.folder / self.name

    def at(self, architecture: Architecture, depth: int, task: TaskConfig) -> Architecture:
        """The architecture at the width that it has at a depth."""
        if self.equal == "width":
            return architecture
        first = next(iter(self.architectures.values()))
        return matched(architecture, first, depth, task.length, self.equal)

    def groups(self) -> list["GroupConfig"]:
        """The runs that train together: all seeds of one task, architecture and depth."""
        return [
            GroupConfig(
                task_name=task_name,
                task=task,
                architecture_name=architecture_name,
                architecture=self.at(architecture, depth, task),
                depth=depth,
                seeds=self.seeds,
                optimiser=self.optimiser,
                cadence=self.cadence,
            )
            for task_name, task in self.tasks.items()
            for architecture_name, architecture in self.architectures.items()
            for depth in self.depths
        ]


class GroupConfig(Strict):
    """All that determines the parameters of a group of runs, bit for bit on one machine."""

    task_name: str
    task: TaskConfig
    architecture_name: str
    architecture: Architecture
    depth: PositiveInt
    seeds: tuple[NonNegativeInt, ...]
    optimiser: Optimiser
    cadence: Cadence

    @property
    def path(self) -> Path:
        """Of the group, within the sweep's."""
        return Path(self.task_name, self.architecture_name, f"depth-{self.depth:02d}")

    @property
    def label(self) -> str:
        return f"{self.task_name} {self.architecture_name} depth {self.depth}"

    def model(self, task: Task) -> ModelConfig:
        return ModelConfig(
            **dict(self.architecture), depth=self.depth, vocabulary=task.vocabulary, length=task.length
        )

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


def read(path: Path) -> SweepConfig:
    """The sweep that a TOML file describes; Refusal names the first key that is wrong."""
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError:
        raise Refusal(f"{path}: no such file; name a sweep's TOML file, as configs/quickstart.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refusal(f"{path}: not TOML: {error}") from None
    try:
        return SweepConfig.model_validate(table)
    except ValidationError as error:
        raise Refusal(f"{path}: {first_error(error)}") from None


def first_error(error: ValidationError) -> str:
    """The first of pydantic's errors, as one sentence that names the key."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown key: remove it or correct its spelling"
    elif first["type"] == "missing":
        message = "missing: add it"
    elif first["type"] != "value_error":
        message += f", not {first['input']!r}"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{key}: {message}{more}" if key else f"{message}{more}"


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """The keys in which two nested tables differ, dotted."""
    found = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}")
    return found
