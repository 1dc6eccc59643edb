"""Two fake CPU devices, set before jax starts: what holds on two must hold on one."""

import os

# Also for commands: nothing is written to the user's home.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)


@pytest.fixture(autouse=True, scope="module")
def _room_for_programs():
    from jaxlayers import xla  # not above, where it would come before its types are checked

    yield
    xla.make_room()


@pytest.fixture
def full(tmp_path, monkeypatch):
    """The process seems to hold as many programs as it should; a program that it does hold."""
    from jaxlayers import xla

    (tmp_path / "maps").write_text("\n" * 20_001)
    monkeypatch.setattr(xla, "MAPPINGS", tmp_path / "maps")
    program = jax.jit(lambda x: x + 1)
    program(1)
    assert program._cache_size() == 1
    return program


@pytest.fixture
def float64():
    """The test runs in float64, where an exact identity shows itself to 1e-12."""
    with jax.enable_x64(True):
        yield
