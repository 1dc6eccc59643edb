from io import StringIO

import pytest
from rich.console import Console

from jaxlayers.config import Architecture
from train.config import Cadence, GroupConfig, Optimiser
from train.tasks import SyntheticConfig, load


@pytest.fixture(scope="session")
def group() -> GroupConfig:
    """Two seeds of a tiny model on a task that needs no download."""
    return GroupConfig(
        task_name="words",
        task=SyntheticConfig(length=8, batch=8, steps=12),
        architecture_name="tiny",
        architecture=Architecture(width=16, heads=2),
        depth=2,
        seeds=(0, 5),
        optimiser=Optimiser(),
        cadence=Cadence(dispatch=4, validate_every=4, save_every=4, validation_batches=3),
    )


@pytest.fixture(scope="session")
def task(group):
    return load(group.task)


@pytest.fixture
def console():
    """Not a terminal; what is printed is in `console.file`."""
    return Console(file=StringIO(), width=200)
