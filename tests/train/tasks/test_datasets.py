"""Builders prepare without TensorFlow, whoever else prepares, and put a text on one side."""

import shutil
import subprocess
import sys
from collections import Counter

import pytest
import tensorflow_datasets as tfds

from train.tasks import CACHE
from train.tasks.datasets import SPLITS, PackageBuilder, read, split_of
from train.tasks.packages import Package
from train.tasks.sentences import Vader
from train.tasks.text import KingJames


@pytest.fixture
def cache(tmp_path):
    """A cache with the packages in it, so that they are downloaded once a machine, and nothing else."""
    for package in (KingJames.package, Vader.package):
        path = package.fetch(CACHE / "packages")
        (tmp_path / "packages").mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / "packages")
    return tmp_path


def test_split_of_known_texts():
    """Whoever changes these moves sentences from one split to another, and with them every result."""
    texts = ["Rejoice evermore.", "Thou shalt not kill.", "Thou shalt not steal.", "Jesus wept."]
    assert [split_of(text) for text in texts] == ["train", "train", "validation", "test"]


def test_split_of_is_blind_to_case_spacing_and_punctuation():
    for number in range(100):
        assert split_of(f"Verse {number}: jesus wept") == split_of(f" verse  {number} JESUS, wept!!")


def test_split_of_shares_texts_80_10_10():
    counts = Counter(split_of(f"sentence number {number}") for number in range(20_000))
    assert counts["train"] == pytest.approx(16_000, abs=4 * (20_000 * 0.8 * 0.2) ** 0.5)
    for split in ("validation", "test"):
        assert counts[split] == pytest.approx(2_000, abs=4 * (20_000 * 0.1 * 0.9) ** 0.5)


PREPARE = """
import sys
from pathlib import Path
from train.tasks.datasets import read
from train.tasks.sentences import Vader
from train.tasks.text import KingJames

found = {**read(KingJames, Path(sys.argv[1])), **read(Vader, Path(sys.argv[1]), "polarity")}
assert "tensorflow" not in sys.modules
print(sorted((split, len(examples)) for split, examples in found.items()))
"""


def test_two_processes_prepare_at_once_without_tensorflow(cache, tmp_path, monkeypatch):
    installed = tmp_path / "site" / "tensorflow"  # so that importing it would succeed, and be seen
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(installed.parent))
    command = [sys.executable, "-W", "error", "-c", PREPARE, str(cache)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
        assert out == "[('test', 1952), ('train', 15528), ('validation', 1979)]\n"
    assert not list((cache / "datasets").rglob("*incomplete*"))


class Overtaken(PackageBuilder):
    """Prepared by somebody else while it prepares itself."""

    VERSION = tfds.core.Version("1.0.0")
    package = Package("toy", "1.0", "toy.bin", "")
    content = "text"
    overtaken = False

    def _info(self):
        features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def examples(self, archive):
        if not Overtaken.overtaken:
            Overtaken.overtaken = True
            read(Overtaken, self.cache)
        return [(number, {"text": f"{archive.decode()} {number}"}) for number in range(40)]


def test_a_data_set_that_somebody_else_has_just_prepared_is_read(tmp_path, monkeypatch):
    (tmp_path / "toy.bin").write_bytes(b"text")
    monkeypatch.setattr(Package, "fetch", lambda package, folder: tmp_path / package.file)
    monkeypatch.setattr(Overtaken, "cache", tmp_path, raising=False)
    found = read(Overtaken, tmp_path)
    assert Overtaken.overtaken
    texts = {split: [example["text"].decode() for example in found[split]] for split in SPLITS}
    assert texts == {
        split: [f"text {n}" for n in range(40) if split_of(f"text {n}") == split] for split in SPLITS
    }


def test_a_data_set_that_cannot_be_prepared_says_why(tmp_path, monkeypatch):
    def full(package, folder):
        raise OSError("no space left")

    monkeypatch.setattr(Package, "fetch", full)
    with pytest.raises(OSError, match="no space left"):
        read(Overtaken, tmp_path)
