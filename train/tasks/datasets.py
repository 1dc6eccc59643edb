"""TFDS builders over pinned packages, prepared and read without TensorFlow."""

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from train.tasks.packages import Package

SPLITS = ("train", "validation", "test")

Example = dict[str, Any]


def split_of(text: str) -> str:
    """The split of a text, picked by a hash of its words: 80 % train, 10 % validation, 10 % test.

    Texts that differ by case, spacing or punctuation alone are on one side, in every version of the data.
    """
    words = re.sub(r"\W+", " ", text.lower()).strip()
    place = int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "big") % 10
    return "validation" if place == 8 else "test" if place == 9 else "train"


class PackageBuilder(tfds.core.GeneratorBasedBuilder):
    """Examples out of a package. A subclass says which and how; if that changes, it gets a new VERSION."""

    package: Package
    content: str  # the key of the text by which the split of an example is picked

    def examples(self, archive: bytes) -> Iterable[tuple[str | int, Example]]:
        """Every example of the package's file, by a key that is its own."""
        raise NotImplementedError

    def _split_generators(self, dl_manager):
        archive = self.package.fetch(Path(dl_manager.download_dir)).read_bytes()
        sides: dict[str, dict[str | int, Example]] = {split: {} for split in SPLITS}
        for key, example in self.examples(archive):
            sides[split_of(example[self.content])][key] = example
        return {split: self._generate_examples(side) for split, side in sides.items()}

    def _generate_examples(self, side: dict[str | int, Example]) -> Iterator[tuple[str | int, Example]]:
        yield from side.items()


def read(builder: type[PackageBuilder], cache: Path, config: str | None = None) -> dict[str, list[Example]]:
    """The examples of every split, in the order in which the data set keeps them; text comes back as bytes.

    Prepared under `cache` on the first call, from there on every later one.

    Raises:
        Refusal: the package could not be fetched (see `Package.fetch`).
    """

    def dataset() -> PackageBuilder:
        return builder(data_dir=cache / "datasets", config=config)

    tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(None):  # the announcements of TFDS
            dataset().download_and_prepare(file_format="array_record", download_dir=cache / "packages")
    except OSError:
        if not dataset().is_prepared():  # else another process was faster, and the data set is there
            raise
    sources = dataset().as_data_source()
    return {split: list(sources[split].__getitems__(range(len(sources[split])))) for split in SPLITS}
