"""Two fake CPU devices, set before jax starts: what holds on two must hold on one."""

import os
from pathlib import Path

# Also for commands: nothing is written to the user's home.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)


MAPS = Path("/proc/self/maps")


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """Linux gives a process 65,530 mappings, every compiled program takes some, and at the limit XLA dies of
    a segmentation fault. After a file that leaves many, the programs so far are dropped."""
    yield
    if MAPS.exists() and MAPS.read_text().count("\n") > 20_000:
        jax.clear_caches()


@pytest.fixture
def float64():
    """The test runs in float64, where an exact identity shows itself to 1e-12."""
    with jax.enable_x64(True):
        yield
