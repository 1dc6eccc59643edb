"""The configurations of tasks: which are accepted, and what is said of the others."""

import pytest
from pydantic import TypeAdapter, ValidationError

from train.tasks import SentencesConfig, SyntheticConfig, TaskConfig, TextConfig, load

CONFIG = TypeAdapter(TaskConfig)


def test_the_kind_says_which_task_it_is():
    shared = {"length": 12, "batch": 3, "steps": 7}
    assert CONFIG.validate_python({"kind": "text", **shared}) == TextConfig(**shared)
    for kind in ("polarity", "domain"):
        config = CONFIG.validate_python({"kind": kind, "vocabulary": 500, **shared})
        assert config == SentencesConfig(kind=kind, vocabulary=500, **shared)
    assert CONFIG.validate_python({"kind": "synthetic", "items": 4, **shared}) == SyntheticConfig(
        items=4, **shared
    )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"kind": "sst2"}, "'text', 'polarity', 'domain', 'synthetic'"),
        ({"kind": "text", "vocabulary": 500}, r"text\.vocabulary\s+Extra inputs"),
        ({"kind": "text", "batch": 0}, r"text\.batch\s.*greater than 0"),
        ({"kind": "text", "steps": 1.5}, r"text\.steps\s.*integer"),
        ({"kind": "text", "length": 1}, r"text\.length\s.*greater than or equal to 2"),
        ({"kind": "domain", "vocabulary": 260}, r"domain\.vocabulary\s.*greater than or equal to 261"),
        ({"kind": "synthetic", "items": 6}, r"synthetic\.items\s.*less than or equal to 5"),
        ({"kind": "synthetic", "noise": float("nan")}, r"synthetic\.noise\s"),
    ],
)
def test_a_bad_value_is_refused_by_name(config, says):
    with pytest.raises(ValidationError, match=says):
        CONFIG.validate_python(config)


def test_configurations_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        TextConfig().length = 3


def test_a_task_has_the_shape_that_its_configuration_asks_for():
    task = load(SyntheticConfig(length=12, batch=3))
    assert (task.name, task.length, task.batch) == ("synthetic", 12, 3)
    assert task.training(0)[0]["tokens"].shape == (3, 12)
    assert len(task.evaluation("test")) == 171  # 512 rows
