"""VADER's sentences: their counts, their splits, and rows that ask for the class at the end."""

import math
import re
from collections import Counter

import numpy as np
import pytest
from tokenizers import Tokenizer

from train.tasks import CACHE, SentencesConfig, load, sentences
from train.tasks.datasets import SPLITS, read


@pytest.fixture(scope="module", params=["polarity", "domain"])
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def splits(kind) -> dict[str, list[tuple[str, int]]]:
    return {
        split: [(example["sentence"].decode(), int(example["label"])) for example in examples]
        for split, examples in read(sentences.Vader, CACHE, kind).items()
    }


def words(sentence: str) -> list[str]:
    return re.findall(r"\w+", sentence.lower())


def test_every_sentence_is_there(kind, splits):
    labels = Counter(label for split in SPLITS for _, label in splits[split])
    names = [sentences.CLASSES[kind][label] for label in sorted(labels)]
    assert (
        dict(zip(names, (labels[label] for label in sorted(labels)), strict=True))
        == {
            "polarity": {"negative": 9181, "positive": 10278},
            "domain": {"movie": 10_605, "news": 5_190, "tweets": 4_200, "products": 3_708},
        }[kind]
    )


def test_labels_of_known_sentences(kind, splits):
    """The first movie review has the rating 2.27, the third −0.6; a tweet of rating 0 has no polarity."""
    found = dict(pair for split in SPLITS for pair in splits[split])
    (praise,) = (label for sentence, label in found.items() if sentence.startswith("The Rock is destined"))
    assert sentences.CLASSES[kind][praise] == {"polarity": "positive", "domain": "movie"}[kind]
    blame = found["Effective but too tepid biopic"]
    assert sentences.CLASSES[kind][blame] == {"polarity": "negative", "domain": "movie"}[kind]


def test_a_sentence_is_on_one_side(splits):
    sides = [{" ".join(words(sentence)) for sentence, _ in splits[split]} for split in SPLITS]
    assert sum(len(side) for side in sides) == len(set().union(*sides))


def test_naive_bayes_finds_the_classes(kind, splits):
    """The accuracies that unigrams with Laplace smoothing are known to reach on this data."""
    counts: dict[int, Counter] = {}
    prior = Counter(label for _, label in splits["train"])
    for sentence, label in splits["train"]:
        counts.setdefault(label, Counter()).update(words(sentence))
    vocabulary = len(set().union(*counts.values()))
    totals = {label: sum(counter.values()) + vocabulary for label, counter in counts.items()}

    def score(sentence: str, label: int) -> float:
        seen = sum(math.log((counts[label][word] + 1) / totals[label]) for word in words(sentence))
        return math.log(prior[label]) + seen

    right = [
        max(counts, key=lambda label: score(sentence, label)) == answer for sentence, answer in splits["test"]
    ]
    assert np.mean(right) == pytest.approx({"polarity": 0.80, "domain": 0.90}[kind], abs=0.02)


def test_rows_are_the_sentences_each_with_its_question(kind, splits):
    config = SentencesConfig(kind=kind, length=40, vocabulary=1000)
    task = load(config)
    classes = len(sentences.CLASSES[kind])
    assert (task.vocabulary, task.classes, task.length) == (1000, classes, 40)
    train = [sentence for sentence, _ in splits["train"]]
    bpe = sentences._tokenizer(train, 1000 - classes - 1, CACHE / "tokenizers")
    cut = 0
    for split in SPLITS:
        rows = task.rows[split]
        assert len(rows) == len(splits[split])
        asked = rows.weights.argmax(1)
        assert np.array_equal(rows.weights, np.eye(40)[asked])
        assert np.array_equal(
            np.take_along_axis(rows.labels, asked[:, None], 1)[:, 0], [a for _, a in splits[split]]
        )
        assert np.array_equal(rows.tokens == classes, np.arange(40) >= asked[:, None])  # the query token's id
        assert rows.tokens.min() == classes
        for (sentence, _), tokens, end in zip(splits[split], rows.tokens, asked, strict=True):
            found = bpe.decode((tokens[:end] - classes - 1).tolist()).removeprefix(" ")
            expected = sentence.removeprefix(" ")
            cut += found != expected
            assert found == expected or (end == 39 and expected.startswith(found.rstrip("\ufffd")))
    assert 0 < cut < 0.5 * sum(map(len, splits.values()))


def toy(monkeypatch, **splits: list[str]) -> None:
    examples = {
        split: [
            {"sentence": sentence.encode(), "label": 1} for sentence in splits.get(split, ["plain words"])
        ]
        for split in SPLITS
    }
    monkeypatch.setattr(sentences, "read", lambda *_: examples)


def test_the_vocabulary_comes_from_the_train_split(monkeypatch, tmp_path):
    def tokens_of_last_row(split: str) -> int:
        toy(monkeypatch, **{split: ["zyzzyva"] * 50})
        task = load(SentencesConfig(kind="polarity", vocabulary=300), tmp_path)
        return int(task.rows[split].weights[-1].argmax())

    assert tokens_of_last_row("train") == 1
    assert tokens_of_last_row("validation") > 4


@pytest.mark.parametrize("sentence", ["", "naïve 😀 \x00 \u2028", "[CLS] <query> <|endoftext|>", "x" * 500])
def test_any_sentence_has_a_row(monkeypatch, tmp_path, sentence):
    toy(monkeypatch, test=[sentence])
    task = load(SentencesConfig(kind="polarity", length=64), tmp_path)
    rows = task.rows["test"]
    asked = int(rows.weights[0].argmax())
    assert asked == min(len(f" {sentence}".encode()) if sentence else 0, 63)  # no merge was learnt for it
    assert rows.weights.sum() == 1
    assert (rows.tokens[0, :asked] > 2).all()
    assert (rows.tokens[0, asked:] == 2).all()
    assert rows.tokens.max() < task.vocabulary


def test_a_tokenizer_is_the_same_wherever_it_is_trained_and_trained_once(splits, tmp_path, monkeypatch):
    train = [sentence for sentence, _ in splits["train"]]
    for folder in ("one", "two"):
        sentences._tokenizer(train, 600, tmp_path / folder)
    (one,), (two,) = (list((tmp_path / folder).iterdir()) for folder in ("one", "two"))
    assert (one.name, one.read_bytes()) == (two.name, two.read_bytes())

    def trained_again(*_):
        raise AssertionError("it is in the folder")

    monkeypatch.setattr(sentences.trainers, "BpeTrainer", trained_again)
    again = sentences._tokenizer(train, 600, tmp_path / "one")
    assert again.get_vocab() == Tokenizer.from_file(str(two)).get_vocab()
    assert again.get_vocab_size() == 600
