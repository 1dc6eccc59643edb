"""Two fake CPU devices, set before jax starts: what holds on two must hold on one."""

import os

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = (
    "false"  # also for commands: nothing is written to the user's home
)

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)


@pytest.fixture
def float64():
    """The test runs in float64, where an exact identity shows itself to 1e-12."""
    with jax.enable_x64(True):
        yield
