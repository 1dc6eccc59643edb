"""`--launcher ray`: what workers and signals do to a sweep on a cluster, and what is refused."""

import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from flax import nnx

from jaxlayers.refusal import Refusal
from train.__main__ import main
from train.checkpoint import saved
from train.config import SweepConfig, read
from train.files import LOCK
from train.log import Fault
from train.metrics import lines
from train.sweep import SWEEP, run, trained
from train.tasks import load

STEPS = 240
CONFIG = f"""
name = "s"
depths = [1, 2]
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
GROUPS = ("s/words/tiny/depth-01", "s/words/tiny/depth-02")


@pytest.fixture
def refused(tmp_path, capfd):
    """What the command says of a config that it refuses."""

    def call(config, *arguments):
        path = tmp_path / "s.toml"
        path.write_text(config)
        assert main([str(path), "--folder", str(tmp_path), *arguments]) == 2
        assert not (tmp_path / "s").exists()
        return capfd.readouterr().err

    return call


def test_ray_that_is_not_installed_is_refused(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refused(CONFIG, "--launcher", "ray")
    assert said == "error: --launcher ray needs ray: pip install 'jaxlayers[ray]'\n"


@pytest.mark.parametrize(
    ("address", "reason"), [("localhost:1", "Connection refused"), ("nowhere", "invalid literal")]
)
def test_an_address_where_nobody_answers_is_refused_at_once(refused, monkeypatch, address, reason):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    said = refused(CONFIG, "--launcher", "ray")
    assert said.startswith(f"error: no Ray cluster answers at RAY_ADDRESS={address} (")
    assert reason in said


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("cpus = 0", "resources.cpus: Input should be greater than 0, not 0"),
        ("gpus = -1", "resources.gpus: Input should be greater than or equal to 0, not -1"),
        ("memory = 4", "resources.memory: unknown key: remove it or correct its spelling"),
    ],
)
def test_resources_that_cannot_be_are_refused_by_their_key(refused, table, reason):
    assert refused(f"{CONFIG}[resources]\n{table}\n").endswith(f"{reason}\n")


def test_resources_are_no_part_of_what_the_runs_are(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(CONFIG)
    command = [str(path), "--folder", str(tmp_path), "--tasks.words.steps", "4", "--depths", "1"]
    assert main(command) == 0
    assert main([*command, "--resources.cpus", "2"]) == 0  # not refused as another configuration


class Failing:
    """A launcher that trains nothing."""

    def __init__(self, *errors):
        self.errors = errors

    def check(self, groups):
        pass

    def train(self, job):
        return list(self.errors)


@pytest.mark.parametrize(
    ("errors", "kind"), [([Refusal("no")], Refusal), ([Refusal("no"), Fault("broken")], Fault)]
)
def test_groups_that_fail_are_said_at_the_end(tmp_path, console, errors, kind):
    """A fault outweighs a refusal; the table is written all the same."""
    path = tmp_path / "s.toml"
    path.write_text(CONFIG)
    sweep = read(path).model_copy(update={"folder": tmp_path})
    with pytest.raises(kind, match=f"^{len(errors)} of 2 groups of runs did not end"):
        run(sweep, console, launcher=Failing(*errors))
    assert (sweep.path / "metrics.csv").exists()


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Starts the command on a folder of runs; Ray's cluster is its own."""
    pytest.importorskip("ray")
    home = tmp_path_factory.mktemp("launcher")
    (home / "s.toml").write_text(CONFIG)
    environment = {
        **os.environ,
        "HOME": str(home),
        "RAY_ADDRESS": "local",
        "JAX_NUM_CPU_DEVICES": "1",
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(home / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def start(folder, *arguments, launcher="ray"):
        command = [sys.executable, "-m", "train", str(home / "s.toml"), "--folder", str(home / folder)]
        return subprocess.Popen(
            [*command, "--launcher", launcher, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    start.home = home
    return start


def finish(process, code=0):
    """What it printed and what it said on the standard error."""
    printed, said = process.communicate(timeout=300)
    assert process.returncode == code, (printed, said)
    return printed, said


@pytest.fixture(scope="module")
def whole(launch):
    """By the plain command."""
    finish(launch("whole", launcher="local"))
    return launch.home / "whole"


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def assert_the_same(folder, whole):
    sweep = SweepConfig.model_validate_json((whole / "s" / SWEEP).read_text())
    for group in sweep.groups():
        task = load(group.task)
        models = [[nnx.state(m) for _, m in trained(f / "s", group, task)] for f in (folder, whole)]
        jax.tree.map(np.testing.assert_array_equal, *models)
        told = [
            [
                (x["split"], x["step"], x["seed"], x["loss"], x["accuracy"])
                for x in lines(f / "s" / group.path / "metrics.jsonl")
            ]
            for f in (folder, whole)
        ]
        assert told[0] == told[1]
        steps = [line[:3] for line in told[0]]
        assert len(set(steps)) == len(steps)
    tables = [(f / "s" / "metrics.csv").read_bytes() for f in (folder, whole)]
    assert tables[0] == tables[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_group_whose_worker_is_lost_ends_with_the_same_bits(launch, whole, number):
    """Killed, or asked to leave by a machine that is preempted."""
    process = launch(f"lost-{number}")
    group = launch.home / f"lost-{number}" / GROUPS[1]
    wait_for(lambda: saved(group), process)
    worker = int((group / LOCK).read_text().split()[0])
    os.kill(worker, number)
    assert saved(group) < STEPS
    printed, _ = finish(process)
    assert int((group / LOCK).read_text().split()[0]) != worker
    for depth in (1, 2):
        assert f"words tiny depth {depth}  test loss" in printed
    assert_the_same(group.parents[3], whole)


@pytest.mark.slow
def test_stopped_it_has_the_workers_save_and_goes_on_later(launch, whole):
    """Until it is stopped nothing is saved."""
    arguments = ["--cadence.save_every", str(STEPS)]
    process = launch("stopped", *arguments)
    group = launch.home / "stopped" / GROUPS[1]
    wait_for(lambda: any(lines(group / "metrics.jsonl")), process)
    process.send_signal(signal.SIGTERM)
    _, said = finish(process, 128 + signal.SIGTERM)
    assert said.splitlines()[-1].startswith("SIGTERM: stopped; the same command goes on")
    assert 0 < saved(group) < STEPS
    finish(launch("stopped", *arguments))
    assert_the_same(launch.home / "stopped", whole)


@pytest.mark.slow
def test_a_group_that_is_refused_keeps_none_from_its_end(launch):
    spoilt, sound = (launch.home / "refused" / group for group in reversed(GROUPS))
    (spoilt / "checkpoints" / "8" / "state").mkdir(parents=True)
    printed, said = finish(launch("refused"), 2)
    assert "words tiny depth 2: " in printed
    assert "cannot be read" in printed
    assert said.splitlines()[-1].startswith("error: 1 of 2 groups of runs did not end")
    assert saved(sound) == STEPS
    assert "words,tiny,1," in (launch.home / "refused" / "s" / "metrics.csv").read_text()


@pytest.mark.slow
def test_a_cluster_that_lacks_the_resources_is_said(launch):
    process = launch("lacking", "--resources.cpus", "1000")
    assert process.stdout.readline() == (
        "no machine of the cluster has 1000 CPUs and 0 GPUs yet: groups wait for one\n"
    )
    process.send_signal(signal.SIGINT)
    finish(process, 128 + signal.SIGINT)
