"""Compiled programs outlive the process: in the user's cache, where JAX's own variable says, or nowhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SWEEP = """
name = "s"
depths = [1]
seeds = [3]
[architectures.tiny]
width = 16
heads = 2
[tasks.words]
kind = "synthetic"
length = 8
batch = 8
steps = 4
[cadence]
dispatch = 4
validate_every = 4
save_every = 4
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "cache/jaxlayers/programs"),
        ({"JAX_COMPILATION_CACHE_DIR": "elsewhere"}, "elsewhere"),
        ({"JAX_ENABLE_COMPILATION_CACHE": "false"}, None),
    ],
    ids=["default", "elsewhere", "off"],
)
def test_programs_are_kept(tmp_path, variables, expected):
    """A second process, which trains the same anew, adds no program and ends with the same parameters."""
    config = tmp_path / "s.toml"
    config.write_text(SWEEP)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_ENABLE_COMPILATION")}
    environment |= {"XDG_CACHE_HOME": "cache", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"} | variables
    environment["PYTHONPATH"] = str(Path.cwd())

    def programs(folder):
        command = [sys.executable, "-m", "train", str(config), "--folder", folder]
        subprocess.run(command, check=True, env=environment, cwd=tmp_path, capture_output=True)
        return {path.relative_to(tmp_path) for path in tmp_path.rglob("*-cache")}

    first = programs("first")
    assert {str(path.parent) for path in first} == ({expected} if expected else set())
    assert programs("second") == first
    a, b = ((tmp_path / run / "s" / "metrics.csv").read_text().splitlines() for run in ("first", "second"))
    loss = a[0].split(",").index("loss")
    assert [line.split(",")[loss] for line in a] == [line.split(",")[loss] for line in b]
