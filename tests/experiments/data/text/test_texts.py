import pytest
import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.splits import split
from probattn.experiments.data.text.labelled_texts import Texts, decode


def numbered(count=12):
    return Texts(tuple(f"text {index}" for index in range(count)), torch.arange(count) % 3)


def test_select_keeps_each_text_with_its_label():
    chosen = numbered().select(torch.tensor([7, 0, 7]))
    assert chosen.texts == ("text 7", "text 0", "text 7")
    assert chosen.labels.tolist() == [1, 0, 1]
    assert len(chosen) == 3
    assert len(numbered().select(torch.arange(0))) == 0


def test_split_makes_disjoint_stratified_parts():
    data = numbered(30)
    parts = split(data, sizes=(18, 12), generator=torch.Generator().manual_seed(0))
    assert sorted(text for part in parts for text in part.texts) == sorted(data.texts)
    assert [part.labels.bincount().tolist() for part in parts] == [[6] * 3, [4] * 3]
    for part in parts:
        assert all(int(text.split()[1]) % 3 == label for text, label in zip(part.texts, part.labels, strict=True))


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (("a", "b"), torch.tensor([0]), r"labels must be int64 \(2,\), one per text, got torch.int64 \(1,\)"),
        (("a",), torch.tensor([0.0]), r"labels must be int64 \(1,\), one per text, got torch.float32 \(1,\)"),
        (("a",), torch.tensor([[0]]), r"got torch.int64 \(1, 1\)"),
        (("a", "b", "c"), torch.tensor([0, 1, -2]), "labels must not be negative, got -2 at position 2"),
        (("a", "", "c"), torch.tensor([0, 1, 2]), "the text at position 1 is empty: ''"),
        (("a", "b", " \t\n\u2003"), torch.tensor([0, 1, 2]), "the text at position 2 is empty"),
    ],
)
def test_what_does_not_fit_is_refused(texts, labels, message):
    with pytest.raises(ValueError, match=message):
        Texts(texts, labels)


def test_decode():
    assert decode("naïve – 你".encode(), where="here") == "naïve – 你"
    with pytest.raises(DatasetError, match="here, line 3 is not UTF-8: byte 0xef at position 2"):
        decode("naïve".encode("latin-1"), where="here, line 3")


def test_the_digest_changes_with_every_text_label_and_place():
    data = numbered(3)
    assert data.digest == numbered(3).digest
    others = [("text 0", "text 1", "Text 2"), ("text 0text 1", "text 2"), ("text 0", "text 2", "text 1")]
    others = [Texts(texts, torch.arange(len(texts))) for texts in others]
    others += [Texts(data.texts, torch.tensor([0, 1, 1])), numbered(2)]
    assert len({data.digest, *(each.digest for each in others)}) == 1 + len(others)
