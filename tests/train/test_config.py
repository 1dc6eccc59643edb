"""What a user may write wrong, and the sentence that each gets."""

import json
from pathlib import Path

import pytest

from jaxlayers.refusal import Refusal
from train.checkpoint import claim
from train.config import differences, read

RIGHT = """
name = "s"
depths = [1, 2]
seeds = [0, 1, 2]
[architectures.tiny]
width = 16
heads = 2
[tasks.words]
kind = "synthetic"
length = 8
[optimiser]
clip = 0.5
"""


@pytest.fixture
def refusal(tmp_path):
    def of(old, new):
        assert old in RIGHT
        path = tmp_path / "sweep.toml"
        path.write_text(RIGHT.replace(old, new))
        with pytest.raises(Refusal) as refused:
            read(path)
        return str(refused.value).removeprefix(f"{path}: ")

    return of


def test_what_is_not_given_has_its_default_and_what_is_given_counts(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(RIGHT)
    sweep = read(path)
    assert [str(group.path) for group in sweep.groups()] == ["words/tiny/depth-01", "words/tiny/depth-02"]
    assert sweep.optimiser.clip == 0.5
    assert sweep.optimiser.beta1 == 0.9
    assert sweep.path == Path("runs/s")


@pytest.mark.parametrize(
    ("equal", "widths"), [("width", [16, 16]), ("parameters", [16, 24]), ("flops", [16, 16])]
)
def test_architectures_of_equal_cost(tmp_path, equal, widths):
    """One block looped twice has the parameters of two where it is about √2 times as wide."""
    path = tmp_path / "sweep.toml"
    loops = "[architectures.loops]\nwidth = 16\nheads = 2\ncore = 1\n[optimiser]"
    path.write_text(f'equal = "{equal}"\n' + RIGHT.replace("[optimiser]", loops))
    groups = read(path).groups()
    assert [group.architecture.width for group in groups if group.depth == 2] == widths
    assert [group.architecture.width for group in groups if group.depth == 1] == [16, 16]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("clip = 0.5", "clop = 0.5", "optimiser.clop: unknown key: remove it or correct its spelling"),
        ("clip = 0.5", 'clip = "much"', "optimiser.clip: Input should be a valid number"),
        ("clip = 0.5", "clip = -1", "optimiser.clip: Input should be greater than 0, not -1"),
        ("heads = 2", "heads = 3", "architectures.tiny: width 16 is not divisible by heads 3"),
        ("depths = [1, 2]", "depths = []", "depths: Tuple should have at least 1 item"),
        ("depths = [1, 2]", "depths = [1, 1]", "depths [1, 1] names a run twice"),
        ("depths = [1, 2]", "depths = [0]", "depths.0: Input should be greater than 0, not 0"),
        ("depths = [1, 2]\n", "", "depths: missing: add it"),
        ('"synthetic"', '"poetry"', "tasks.words: Input tag 'poetry'"),
        ('name = "s"', 'name = "../s"', "name: String should match pattern"),
        ("[optimiser]", "[cadence]\ndispatch = 7\n[optimiser]", "cadence: validate_every 100 is not a"),
        ("[tasks.words]", "[tasks.words", "not TOML"),
        ("[optimiser]", "[architectures.loops]\ncore = 3\n[optimiser]", "architectures.loops: depth 1 is"),
    ],
)  # fmt: skip
def test_refused_with_the_key(refusal, old, new, sentence):
    said = refusal(old, new)
    assert said.startswith(sentence)
    assert "\n" not in said


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(Refusal, match=r"absent\.toml: no such file"):
        read(tmp_path / "absent.toml")


def test_differences_are_dotted_keys_on_either_side():
    old = {"a": 1, "b": {"c": 2, "d": 3}, "e": 0}
    new = {"a": 1, "b": {"c": 5, "d": 3, "f": 6}}
    assert differences(old, new) == ["b.c", "b.f", "e"]


def test_a_folder_of_other_values_is_refused_and_kept(group, tmp_path):
    claim(tmp_path, group)
    before = (tmp_path / "config.json").read_text()
    other = group.model_copy(update={"depth": 3, "task": group.task.model_copy(update={"steps": 13})})
    with pytest.raises(Refusal, match=r"other values of depth, task.steps: set them back"):
        claim(tmp_path, other)
    assert (tmp_path / "config.json").read_text() == before
    claim(tmp_path, group)  # the same again is welcome


def test_a_key_added_since_has_its_default(group, tmp_path):
    """A folder that an older version wrote is still its group's, unless the new key has another value."""
    claim(tmp_path, group)
    path = tmp_path / "config.json"
    older = json.loads(path.read_text())
    del older["architecture"]["residual"]
    path.write_text(json.dumps(older))
    claim(tmp_path, group)
    deepnorm = group.architecture.model_copy(update={"residual": "deepnorm"})
    with pytest.raises(Refusal, match=r"other values of architecture.residual:"):
        claim(tmp_path, group.model_copy(update={"architecture": deepnorm}))


def test_a_torn_config_is_refused(group, tmp_path):
    claim(tmp_path, group)
    path = tmp_path / "config.json"
    path.write_text(path.read_text()[:50])
    with pytest.raises(Refusal, match="not readable as JSON"):
        claim(tmp_path, group)
