"""The command, ended from outside wherever it is, ends with the bits of one that was never ended."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from train.checkpoint import Checkpoints, saved
from train.config import SweepConfig
from train.files import LOCK
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
NOWHERE = "nowhere"  # the folder of a process that does not lead


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Starts the command on a folder of runs; what one process compiles the next one finds."""
    home = tmp_path_factory.mktemp("killed")
    (home / "killed.toml").write_text(SWEEP)
    environment = {
        **os.environ,
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(home / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def start(folder, *flags, devices=1):
        command = [sys.executable, "-m", "train", str(home / "killed.toml"), "--folder", str(home / folder)]
        process = subprocess.Popen(
            [*command, *flags],
            env={**environment, "JAX_NUM_CPU_DEVICES": str(devices)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        start.processes.append(process)
        return process

    start.home, start.processes = home, []
    return start


@pytest.fixture(autouse=True)
def _no_process_outlives_a_test(launch):
    yield
    for process in launch.processes:
        process.kill()
        process.wait()
        process.stderr.close()
    launch.processes.clear()


def launch_two(launch, folder):
    """Two processes, with a device each, that train the same runs; only the first may write."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return [
        launch(name, "--coordinator", f"localhost:{port}", "--processes", "2", "--process", str(i))
        for i, name in enumerate((folder, NOWHERE))
    ]


def finish(launch, folder, devices=1):
    process = launch(folder, devices=devices)
    _, said = process.communicate()
    assert process.returncode == 0, said
    return launch.home / folder / GROUP


def finish_two(launch, folder):
    for process in launch_two(launch, folder):
        _, said = process.communicate()
        assert process.returncode == 0, said
    return launch.home / folder / GROUP


@pytest.fixture(scope="module")
def whole(launch):
    return finish(launch, "whole")


@pytest.fixture(scope="module")
def whole_of_two_devices(launch):
    return finish(launch, "two devices", devices=2)


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


def holder(folder):
    """The process that holds the folder, or the last that did."""
    path = folder / LOCK
    return int(path.read_text().split()[0]) if path.exists() and path.read_text() else None


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


def test_two_processes_are_as_two_devices_of_one(launch, whole_of_two_devices):
    """Bit for bit. The second one's folder does not come to be: it neither writes nor reads there."""
    assert_the_same(finish_two(launch, "two"), whole_of_two_devices)
    assert not (launch.home / NOWHERE).exists()


def test_when_either_of_two_dies_the_other_ends_too(launch, whole_of_two_devices):
    """While they start, in a save or in between; started again, they end with the same bits.

    Killed no earlier than they have met: until then one waits for the other as long as jax.distributed does,
    which is five minutes.
    """
    cut, moments = launch.home / "cut two" / GROUP, random.Random(1)
    for victim, kind in [
        (0, "start"),
        (1, "start"),
        (0, "save"),
        (1, "save"),
        (0, "between"),
        (1, "between"),
    ]:
        processes, begun = launch_two(launch, "cut two"), saved(cut)
        if kind == "start":
            wait_for(lambda first=processes[0].pid: holder(cut) == first, processes[0])
            time.sleep(moments.uniform(0, 2))
        else:
            wait_for(lambda begun=begun: saved(cut) > begun, processes[0])
            time.sleep(moments.uniform(0, 0.1))
        if kind == "save":
            wait_for(lambda: saving(cut), processes[0])
        processes[victim].kill()
        codes = [process.wait(timeout=120) for process in processes]
        assert codes[victim] == -signal.SIGKILL
        assert codes[1 - victim] not in (0, 2)
    assert 0 < saved(cut) < STEPS
    assert_the_same(finish_two(launch, "cut two"), whole_of_two_devices)
    written = [path.name for path in (launch.home / NOWHERE).rglob("*") if path.is_file()]
    assert set(written) <= {"log.txt"}  # the traceback of its own end


def test_what_one_of_two_is_told_both_do(launch, whole_of_two_devices):
    """SIGTERM to the one that does not write: both leave, and what was trained is saved."""
    cut = launch.home / "told two" / GROUP
    processes = launch_two(launch, "told two")
    wait_for(lambda: saved(cut) > 0, processes[0])
    processes[1].send_signal(signal.SIGTERM)
    for process in processes:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM, said
    assert 0 < saved(cut) < STEPS
    assert saved(cut) == max(line["step"] for line in lines(cut / "metrics.jsonl"))
    assert_the_same(finish_two(launch, "told two"), whole_of_two_devices)


def test_what_one_of_two_refuses_both_do(launch):
    """In the words of the one that holds the folder."""
    config = launch.home / "refused two" / GROUP / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text("{}")
    for process in launch_two(launch, "refused two"):
        _, said = process.communicate(timeout=60)
        assert process.returncode == 2
        assert f"error: {config.parent} was trained with other values of" in said.decode()
