"""Data sets of texts: what goes where, by which seed, and that tokens know the training part alone."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from damage import AMOUNTS, accepted

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.sealed_files import DamagedFileError
from probattn.experiments.data.text import datasets, imdb
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.text_dataset import load
from probattn.experiments.data.text.tokens import EncoderTokens, TokenSettings, WordTokens, fit
from probattn.experiments.data.text.word_tokenizer import WordTokenizer

PLAIN = TokenSettings(max_length=12, min_count=1, max_words=None, spelling=0, encoder=None)


def parts(dataset):
    return {name: getattr(dataset, name) for name in ("train", "valid", "test")}


def test_validation_is_a_stratified_tenth_of_the_training_sentences(corpus):
    dataset = load("cola", PLAIN, root=corpus)
    assert {name: len(part) for name, part in parts(dataset).items()} == {"train": 108, "valid": 12, "test": 30}
    assert [(name, len(part)) for name, part in dataset.domains.items()] == [("out-of-domain", 20)]
    lines = (corpus / "cola_public" / "raw" / "in_domain_train.tsv").read_text().splitlines()
    whole = sorted((line.split("\t")[3], int(line.split("\t")[1])) for line in lines)
    found = [*zip(dataset.train.texts, dataset.train.labels.tolist(), strict=True)]
    found += zip(dataset.valid.texts, dataset.valid.labels.tolist(), strict=True)
    assert sorted(found) == whole
    share = [part.labels.double().mean().item() for part in (dataset.train, dataset.valid)]
    assert abs(share[0] - share[1]) < 0.1
    test = [line.split("\t")[3] for line in (corpus / "cola_public/raw/in_domain_dev.tsv").read_text().splitlines()]
    assert dataset.test.texts == tuple(test)


def test_the_seed_fixes_the_cut(corpus):
    first, same, other = (load("cola", PLAIN, root=corpus, seed=seed) for seed in (0, 0, 1))
    assert first.valid.texts == same.valid.texts
    assert first.valid.texts != other.valid.texts


def test_imdb_is_cut_as_the_paper_cuts_it(monkeypatch, tmp_path):
    texts = Texts(tuple(f"review {n}" for n in range(100)), torch.arange(100) % 2)
    monkeypatch.setattr(imdb, "read", lambda root: texts)
    monkeypatch.setattr(datasets, "IMDB_SIZES", (70, 10, 20))
    dataset = load("imdb", PLAIN, root=tmp_path)
    assert [len(part) for part in parts(dataset).values()] == [70, 10, 20]
    assert sorted(sum((part.texts for part in parts(dataset).values()), ())) == sorted(texts.texts)
    assert [int(part.labels.sum()) for part in parts(dataset).values()] == [35, 5, 10]
    assert dataset.domains == {}
    assert datasets.IMDB_SIZES != (35_000, 5_000, 10_000)


def test_the_papers_sizes_of_imdb():
    assert datasets.IMDB_SIZES == (35_000, 5_000, 10_000)


def test_a_limit_keeps_a_part_of_all_but_the_test_parts(corpus):
    dataset = load("cola", PLAIN, root=corpus, limit=27)
    assert {name: len(part) for name, part in parts(dataset).items()} == {"train": 27, "valid": 3, "test": 30}
    assert len(dataset.domains["out-of-domain"]) == 20
    whole = load("cola", PLAIN, root=corpus)
    assert set(dataset.train.texts) <= set(whole.train.texts)


@pytest.mark.parametrize(
    ("name", "limit", "message"), [("sst", None, "choose one of cola, imdb"), ("cola", 0, "at least 1")]
)
def test_wrong_arguments_are_named(corpus, name, limit, message):
    with pytest.raises(ValueError, match=message):
        load(name, PLAIN, root=corpus, limit=limit)


def test_missing_data_are_an_error_of_the_data(tmp_path):
    with pytest.raises(DatasetError, match="CoLA is not in"):
        load("cola", PLAIN, root=tmp_path)


def test_words_of_other_parts_are_unknown(corpus):
    path = corpus / "cola_public" / "raw" / "in_domain_dev.tsv"
    path.write_text(path.read_text().replace("happily", "zealously"))
    dataset = load("cola", PLAIN, root=corpus)
    words = set(dataset.tokens.tokenizer.words)
    assert "zealously" not in words
    assert words <= {word.lower() for text in dataset.train.texts for word in text.replace("$5", "$ 5").split()} | {"."}
    place = next(n for n, text in enumerate(dataset.test.texts) if text.startswith("zealously") or " zealously" in text)
    assert 1 in dataset.tokens.encode([dataset.test.texts[place]])[0]


def test_training_batches_are_shuffled_from_the_generator_and_others_are_in_order(corpus):
    dataset = load("cola", PLAIN, root=corpus)

    def epoch(seed):
        loader = dataset.training(batch_size=10, generator=torch.Generator().manual_seed(seed))
        assert loader.num_data == 108
        return torch.cat([y for _, y, _ in loader])

    assert torch.equal(epoch(1), epoch(1))
    assert not torch.equal(epoch(1), epoch(2))
    batches = list(dataset.batches(dataset.test, batch_size=7))
    assert torch.equal(torch.cat([y for _, y, _ in batches]), dataset.test.labels)
    x, _, mask = batches[0]
    encoded = dataset.tokens.encode(dataset.test.texts[:7])
    assert mask.sum(1).tolist() == [len(each) for each in encoded]
    assert torch.equal(x[mask], torch.cat(encoded))


def test_a_sample_is_of_training_texts_and_fixed_by_the_generator(corpus):
    dataset = load("cola", PLAIN, root=corpus)
    x, y, mask = dataset.sample(9, generator=torch.Generator().manual_seed(4))
    again = dataset.sample(9, generator=torch.Generator().manual_seed(4))
    assert torch.equal(x, again[0])
    whole = [
        (ids.tolist(), label)
        for ids, label in zip(dataset.tokens.encode(dataset.train.texts), dataset.train.labels, strict=True)
    ]
    assert len(x) == 9
    assert all((row[real].tolist(), label) in whole for row, real, label in zip(x, mask, y, strict=True))


def test_a_run_reads_texts_by_the_words_that_it_has_kept(corpus, tmp_path):
    dataset = load("cola", PLAIN, root=corpus)
    dataset.save_preprocessing(tmp_path)
    other = load("cola", PLAIN, root=corpus, seed=5, limit=20)
    assert other.tokens.tokenizer != dataset.tokens.tokenizer
    assert other.for_run(tmp_path).tokens.tokenizer == dataset.tokens.tokenizer
    assert other.for_run(tmp_path).train.texts == other.train.texts


@pytest.mark.parametrize(("content", "error"), [(None, DatasetError), ("{", DamagedFileError)])
def test_a_missing_or_damaged_tokenizer_is_named(corpus, tmp_path, content, error):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(error, match=r"tokenizer\.json"):
        load("cola", PLAIN, root=corpus).for_run(tmp_path)


@AMOUNTS
def test_a_run_is_read_with_its_encoder_only(tmp_path, amount):
    tokens = EncoderTokens(SimpleNamespace(identity="one"))
    with pytest.raises(DatasetError, match=r"encoder\.json is missing; restore it"):
        tokens.for_run(tmp_path)
    tokens.save_preprocessing(tmp_path)
    assert tokens.for_run(tmp_path) is tokens
    with pytest.raises(DatasetError, match="the encoder's weights differ"):
        EncoderTokens(SimpleNamespace(identity="another")).for_run(tmp_path)
    path = tmp_path / "encoder.json"
    assert accepted(path, lambda _: tokens.for_run(tmp_path), error=DamagedFileError, amount=amount) == []


def test_what_a_run_keeps_is_never_written_over(corpus, tmp_path):
    load("cola", PLAIN, root=corpus).save_preprocessing(tmp_path)
    before = (tmp_path / "tokenizer.json").read_bytes()
    load("cola", PLAIN, root=corpus, limit=20).save_preprocessing(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == before


@pytest.mark.parametrize("spelling", [0, 6])
def test_the_embedding_reads_what_the_tokens_are(spelling):
    texts = Texts(("one word", "and another one"), torch.arange(2))
    tokens = fit(PLAIN._replace(spelling=spelling), texts, cache=None)
    assert isinstance(tokens, WordTokens)
    (first, second) = tokens.encode(texts.texts)
    embedding = tokens.embedding(4)
    assert embedding(first[None]).shape == (1, 2, 4)
    assert embedding(second[None]).shape == (1, 3, 4)
    torch.testing.assert_close(embedding(second[None])[0, 2], embedding(first[None])[0, 0])


def test_a_data_set_is_sent_to_another_process_with_its_tokenizer(corpus):
    dataset = load("cola", PLAIN._replace(spelling=6), root=corpus)
    expected = dataset.tokens.encode(dataset.test.texts)
    found = pickle.loads(pickle.dumps(dataset)).tokens.encode(dataset.test.texts)
    assert all(map(torch.equal, found, expected))


def test_words_are_fitted_when_they_are_first_used(corpus, tmp_path, monkeypatch):
    load("cola", PLAIN, root=corpus).save_preprocessing(tmp_path)
    monkeypatch.setattr(WordTokenizer, "fit", lambda *_, **__: pytest.fail("was fitted"))
    dataset = load("cola", PLAIN, root=corpus).for_run(tmp_path)
    assert len(dataset.tokens.encode(dataset.test.texts)) == 30
