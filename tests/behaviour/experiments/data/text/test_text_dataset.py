"""Data sets of texts: what goes where, by which seed, and that tokens know the training part
alone."""

import json
import pickle
from types import SimpleNamespace

import pytest
import torch

from probattn.experiments.data.text import corpora, text_dataset
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.text_dataset import from_parts, load
from probattn.experiments.data.text.word_tokenizer import WordTokenizer

OPTIONS = {"max_length": 12, "min_count": 1, "max_words": None, "spelling": 0}
PLAIN = SimpleNamespace(kind="text", **OPTIONS)
SPELLED = SimpleNamespace(kind="text", **OPTIONS | {"spelling": 6})


def parts(dataset):
    return {name: getattr(dataset, name) for name in ("train", "valid", "test")}


def test_validation_is_a_stratified_tenth_of_the_training_sentences(corpus):
    dataset = load("cola", PLAIN, root=corpus)
    assert {name: len(part) for name, part in parts(dataset).items()} == {
        "train": 108,
        "valid": 12,
        "test": 30,
    }
    assert [(name, len(part)) for name, part in dataset.domains.items()] == [("out-of-domain", 20)]
    whole, test, _ = corpora.read("cola", corpus)
    assert sorted(dataset.train.texts + dataset.valid.texts) == sorted(whole.texts)
    assert dataset.test.texts == test.texts
    share = [part.labels.double().mean().item() for part in (dataset.train, dataset.valid)]
    assert abs(share[0] - share[1]) < 0.1


def test_imdb_is_cut_as_the_paper_cuts_it(monkeypatch, tmp_path):
    assert text_dataset.IMDB_SIZES == (5_000, 10_000)
    texts = Texts(tuple(f"review {n}" for n in range(100)), torch.arange(100) % 2)
    monkeypatch.setattr(corpora, "read", lambda name, root: [texts])
    monkeypatch.setattr(text_dataset, "IMDB_SIZES", (10, 20))
    dataset = load("imdb", PLAIN, root=tmp_path)
    assert sorted(sum((part.texts for part in parts(dataset).values()), ())) == sorted(texts.texts)
    assert [int(part.labels.sum()) for part in parts(dataset).values()] == [35, 5, 10]
    assert dataset.domains == {}


def test_tokens_are_fitted_to_the_training_part_and_batches_have_them(corpus):
    dataset = load("cola", PLAIN, root=corpus)
    tokenizer = WordTokenizer.fit(dataset.train.texts, max_length=12, min_count=1)
    assert dataset.tokens.pipeline.to_str() == tokenizer.pipeline.to_str()
    (x, y, mask), *_ = dataset.batches(dataset.test, batch_size=30)
    for row, real, text in zip(x, mask, dataset.test.texts, strict=True):
        assert torch.equal(row[real], tokenizer.encode(text))
    assert torch.equal(y, dataset.test.labels)
    state = torch.Generator().manual_seed(3)
    assert sum(len(y) for _, y, _ in dataset.training(batch_size=7, generator=state)) == 108


@pytest.mark.parametrize("network", [PLAIN, SPELLED])
def test_a_run_reads_texts_with_its_own_tokens(corpus, tmp_path, network, monkeypatch):
    dataset = load("cola", network, root=corpus)
    dataset.save_preprocessing(tmp_path)
    written = (tmp_path / "preprocessing.json").read_bytes()
    load("cola", network, root=corpus, limit=20).save_preprocessing(
        tmp_path
    )  # what a run has is never written over
    assert (tmp_path / "preprocessing.json").read_bytes() == written
    monkeypatch.setattr(WordTokenizer, "fit", lambda *_, **__: pytest.fail("was fitted"))
    run = load("cola", network, root=corpus, limit=20).for_run(tmp_path)
    expected = dataset.tokens.encode_batch(dataset.test.texts)
    assert all(map(torch.equal, run.tokens.encode_batch(dataset.test.texts), expected))
    sent = pickle.loads(pickle.dumps(run))
    assert all(map(torch.equal, sent.tokens.encode_batch(dataset.test.texts), expected))


def test_runs_of_words_alone_keep_their_ids_and_new_ones_read_rare_words_by_letters(tmp_path):
    texts = ["the cat sat", "the cat ran", "the otter ran", "a tame cat"] * 5
    texts = Texts((*texts, "tamer ottermat"), torch.arange(21) % 2)
    options = OPTIONS | {"min_count": 2}
    network = SimpleNamespace(kind="text", **options)
    old = WordTokenizer.fit(texts.texts, **options)
    content = {"kind": "texts", "classes": ["a", "b"], "tokens": old.to_json()}
    (tmp_path / "preprocessing.json").write_text(json.dumps(content))
    new = from_parts("text-csv", ("a", "b"), texts, texts, texts, network=network)
    text = "the tamer cat xyzzy"
    assert torch.equal(new.for_run(tmp_path).tokens.encode(text), old.encode(text))
    assert old.encode(text).tolist().count(1) == 2
    assert new.tokens.encode(text).tolist().count(1) == 1
    assert len(new.tokens.encode(text)) == 2 + len("tamer") + 1
    assert torch.equal(new.tokens.encode("the cat"), old.encode("the cat"))
