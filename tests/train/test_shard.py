"""Parts of a sweep."""

import pytest

from jaxlayers.refusal import Refusal
from train.shard import Shard


def array(identity, first, last, step=1):
    """What SLURM sets for `--array=first-last:step`."""
    values = {"ID": identity, "MIN": first, "MAX": last, "STEP": step, "COUNT": (last - first) // step + 1}
    return {f"SLURM_ARRAY_TASK_{key}": str(value) for key, value in values.items()}


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_group_is_in_one_part_and_parts_are_level(count, group):
    groups = [group.model_copy(update={"depth": d, "task_name": t}) for t in "ab" for d in (1, 2, 4, 8)]
    parts = [Shard(i + 1, count).of(groups) for i in range(count)]
    assert sorted(g.label for part in parts for g in part) == sorted(g.label for g in groups)
    depths = [sum(g.depth for g in part) for part in parts]
    assert max(depths) - min(depths) <= 8  # by the deepest group, at most


@pytest.mark.parametrize(
    ("text", "environment", "part"),
    [
        ("2/3", {}, (2, 3)),
        ("1/1", array(4, 0, 9), (1, 1)),  # what is said counts
        (None, {}, (1, 1)),
        (None, array(0, 0, 3), (1, 4)),
        (None, array(4, 1, 4), (4, 4)),
        (None, array(6, 2, 8, step=2), (3, 4)),
    ],
)
def test_which_part(text, environment, part):
    shard = Shard.read(text, environment)
    assert (shard.index, shard.count) == part


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/2/3"])
def test_no_such_part_is_refused(text):
    with pytest.raises(Refusal, match=f"shard {text}: give i/n with i from 1 to n"):
        Shard.read(text, {})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"ID": "x"}, "SLURM_ARRAY_TASK_ID=x of 4 from 0 by 1"),
        ({"STEP": "0"}, "SLURM_ARRAY_TASK_ID=1 of 4 from 0 by 0"),
        ({"ID": "9"}, "SLURM_ARRAY_TASK_ID=9 of 4 from 0 by 1"),
        ({"COUNT": ""}, "SLURM_ARRAY_TASK_ID=1 of  from 0 by 1"),
    ],
)
def test_variables_that_say_no_part_are_refused(changed, told):
    environment = array(1, 0, 3) | {f"SLURM_ARRAY_TASK_{key}": value for key, value in changed.items()}
    with pytest.raises(Refusal, match=f"shard {told}: give i/n"):
        Shard.read(None, environment)
