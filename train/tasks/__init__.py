"""What models are trained on: each family yields token batches and says which positions and labels count."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from train.tasks import sentences, synthetic, text
from train.tasks.sentences import SentencesConfig
from train.tasks.synthetic import SyntheticConfig
from train.tasks.task import Batch, Rows, Task
from train.tasks.text import TextConfig

__all__ = [
    "CACHE",
    "Batch",
    "Rows",
    "SentencesConfig",
    "SyntheticConfig",
    "Task",
    "TaskConfig",
    "TextConfig",
    "load",
]

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxlayers"
"""Where packages, data sets and tokenizers are kept, unless the user says otherwise."""

TaskConfig = Annotated[TextConfig | SentencesConfig | SyntheticConfig, Field(discriminator="kind")]


def load(config: TaskConfig, cache: Path = CACHE) -> Task:
    """The task that `config` describes, ready to yield batches; what it needs is fetched once into `cache`.

    Raises:
        Refusal: data could not be fetched, or `length` is more than a text has.
    """
    match config:
        case TextConfig():
            return text.load(config, cache)
        case SentencesConfig():
            return sentences.load(config, cache)
        case SyntheticConfig():
            return synthetic.load(config)
