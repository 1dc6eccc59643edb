"""The command, ended from outside wherever it is, ends with the bits of one that was never ended."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from train.checkpoint import Checkpoints, saved
from train.config import SweepConfig
from train.metrics import lines
from train.step import Trainer
from train.tasks import load

pytestmark = pytest.mark.slow
STEPS = 1200
SWEEP = f"""
name = "killed"
depths = [1]
seeds = [0, 1]
[architectures.tiny]
width = 16
heads = 2
[tasks.words]
kind = "synthetic"
length = 8
batch = 8
steps = {STEPS}
[cadence]
dispatch = 4
validate_every = 8
save_every = 8
"""
GROUP = "killed/words/tiny/depth-01"


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Starts the command on a folder of runs; what one process compiles the next one finds."""
    home = tmp_path_factory.mktemp("killed")
    (home / "killed.toml").write_text(SWEEP)
    environment = {
        **os.environ,
        "JAX_NUM_CPU_DEVICES": "1",
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(home / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def start(folder):
        command = [sys.executable, "-m", "train", str(home / "killed.toml"), "--folder", str(home / folder)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    start.home = home
    return start


def finish(launch, folder):
    process = launch(folder)
    _, said = process.communicate()
    assert process.returncode == 0, said
    return launch.home / folder / GROUP


@pytest.fixture(scope="module")
def whole(launch):
    return finish(launch, "whole")


def final(folder):
    """Everything in the last checkpoint, as arrays."""
    sweep = SweepConfig.model_validate(json.loads((folder.parents[2] / "sweep.json").read_text()))
    (group,) = sweep.groups()
    trainer = Trainer(group, load(group.task))
    shapes = jax.eval_shape(jax.vmap(trainer.start), np.array(group.seeds))
    like = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    with Checkpoints(folder) as checkpoints:
        return checkpoints.restore(STEPS, like)


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)


def saving(folder):
    return any((folder / "checkpoints").glob("*-tmp"))


def told(folder):
    return [(x["split"], x["step"], x["seed"], x["loss"]) for x in lines(folder / "metrics.jsonl")]


def assert_the_same(cut, whole):
    jax.tree.map(np.testing.assert_array_equal, final(cut), final(whole))
    told = [
        [(x["split"], x["step"], x["seed"], x["loss"]) for x in lines(f / "metrics.jsonl")]
        for f in (cut, whole)
    ]
    assert told[0] == told[1]


def test_killed_at_twenty_random_moments(launch, whole):
    """Four while it starts, eight in the middle of a save, eight anywhere in between."""
    cut = launch.home / "cut" / GROUP
    moments = random.Random(0)
    kinds = ["start"] * 4 + ["save"] * 8 + ["between"] * 8
    moments.shuffle(kinds)
    for kind in kinds:
        process, begun = launch("cut"), saved(cut)
        if kind == "start":
            time.sleep(moments.uniform(0, 4))
        else:
            wait_for(lambda begun=begun: saved(cut) > begun, process)
            time.sleep(moments.uniform(0, 0.05))
        if kind == "save":
            wait_for(lambda: saving(cut), process)
        process.kill()
        assert process.wait() == -signal.SIGKILL  # it was still at work
        process.stderr.close()
    assert 0 < saved(cut) < STEPS
    assert_the_same(finish(launch, "cut"), whole)
    assert not saving(cut)  # nothing is left behind


def test_preempted_it_saves_and_leaves_within_ten_seconds(launch, whole):
    cut = launch.home / "preempted" / GROUP
    process = launch("preempted")
    wait_for(lambda: saved(cut) > 0, process)
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - begun < 10
    assert process.returncode == 128 + signal.SIGTERM
    assert said.decode().splitlines()[-1].startswith("SIGTERM: stopped; the same command goes on")
    assert 0 < saved(cut) < STEPS
    assert saved(cut) == max(line["step"] for line in lines(cut / "metrics.jsonl"))  # no step is lost
    assert_the_same(finish(launch, "preempted"), whole)
