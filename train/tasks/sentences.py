"""The class of a sentence, asked at its end: VADER's ratings of reviews, news and tweets."""

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tensorflow_datasets as tfds
from pydantic import Field
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from train.tasks.datasets import Example, PackageBuilder, read
from train.tasks.packages import Package, members
from train.tasks.task import Rows, Task, TaskFields

CLASSES = {"polarity": ("negative", "positive"), "domain": ("movie", "news", "tweets", "products")}


class SentencesConfig(TaskFields):
    """The polarity of a sentence (negative or positive), or its domain (movie, news, tweets or products)."""

    kind: Literal["polarity", "domain"] = Field(description="which task this is")
    vocabulary: Annotated[int, Field(ge=261)] = Field(
        2048,
        description="token ids in all: labels, the query token, 256 bytes and as many merges as are left",
    )


class Vader(PackageBuilder):
    """Sentences of Hutto & Gilbert, "VADER" (ICWSM 2014), each rated by 20 readers from −4 to 4."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in CLASSES]  # noqa: RUF012, as TFDS has it
    package = Package(
        name="vaderSentiment",
        version="3.3.2",
        file="vaderSentiment-3.3.2.tar.gz",
        sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    )
    content = "sentence"
    files = ("movieReviewSnippets", "nytEditorialSnippets", "tweets", "amazonReviewSnippets")

    def _info(self):
        label = tfds.features.ClassLabel(names=CLASSES[self.builder_config.name])
        features = tfds.features.FeaturesDict({"sentence": tfds.features.Text(), "label": label})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def examples(self, archive: bytes) -> Iterator[tuple[str, Example]]:
        (inner,) = members(archive, "*/hutto_ICWSM_2014.tar.gz").values()
        for domain, name in zip(CLASSES["domain"], self.files, strict=True):
            (table,) = members(inner, f"*/{name}_GroundTruth.txt").values()
            for line in table.decode().splitlines():
                number, rating, sentence = line.split("\t")
                if self.builder_config.name == "domain":
                    label = domain
                elif abs(float(rating)) >= 0.5:
                    label = "positive" if float(rating) > 0 else "negative"
                else:
                    continue
                yield f"{domain} {number}", {"sentence": sentence, "label": label}


def load(config: SentencesConfig, cache: Path) -> Task:
    """Rows of a sentence's tokens, cut if need be, then query tokens to the end of the row.

    At the first query token the label is the sentence's class; no other position counts. The ids are those
    of the labels, of the query token, and of a byte-level BPE trained on the train split.
    """
    splits = read(Vader, cache, config.kind)
    classes = len(CLASSES[config.kind])
    sentences = {split: [e["sentence"].decode() for e in examples] for split, examples in splits.items()}
    bpe = _tokenizer(sentences["train"], config.vocabulary - classes - 1, cache / "tokenizers")
    rows = {
        split: _rows(bpe, sentences[split], [e["label"] for e in examples], classes, config.length)
        for split, examples in splits.items()
    }
    return Task(config.kind, classes + 1 + bpe.get_vocab_size(), classes, config.length, config.batch, rows)


def _rows(
    bpe: Tokenizer, sentences: Sequence[str], answers: Sequence[int], classes: int, length: int
) -> Rows:
    tokens = np.full((len(sentences), length), classes, np.int32)
    labels = np.zeros((len(sentences), length), np.int32)
    weights = np.zeros((len(sentences), length), np.float32)
    for row, (encoded, answer) in enumerate(zip(bpe.encode_batch(sentences), answers, strict=True)):
        words = encoded.ids[: length - 1]
        tokens[row, : len(words)] = np.asarray(words) + classes + 1
        labels[row, len(words)] = answer
        weights[row, len(words)] = 1
    return Rows(tokens, labels, weights)


def _tokenizer(sentences: Sequence[str], size: int, folder: Path) -> Tokenizer:
    """A byte-level BPE (Sennrich et al. 2016; bytes as in GPT-2) of `size` tokens, kept in `folder`."""
    content = "\n".join([str(size), *sentences]).encode()
    path = folder / f"{hashlib.sha256(content).hexdigest()}.json"
    if not path.exists():
        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        bpe.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
        bpe.train_from_iterator(sentences, trainer)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".training-") as scratch:
            bpe.save(f"{scratch}/bpe.json")
            os.replace(f"{scratch}/bpe.json", path)
    return Tokenizer.from_file(str(path))
