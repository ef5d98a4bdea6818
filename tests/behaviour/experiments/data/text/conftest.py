"""A synthetic corpus in the layout of CoLA: sentences with "ca n't" out of place are
unacceptable."""

import random

import pytest

from probattn.experiments.data.text import corpora

SIZES = {"in_domain_train": 120, "in_domain_dev": 30, "out_of_domain_dev": 20}
WORDS = ("a", "cat", "dogs", "see", "the", "runs", "away", "happily", "Mary's", "$5", "not")


def sentences(number, seed):
    """Labels and sentences of one to nine words, wrong where two articles meet."""
    generator = random.Random(seed)
    labelled = []
    for _ in range(number):
        words = generator.choices(WORDS, k=generator.randint(1, 9))
        wrong = generator.random() < 0.4
        labelled.append(
            (0 if wrong else 1, " ".join([*words, *(["the the"] if wrong else []), "."]))
        )
    return labelled


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """The folder of the data sets."""
    monkeypatch.setattr(corpora, "LINES", SIZES)
    folder = tmp_path / "data" / "cola_public" / "raw"
    folder.mkdir(parents=True)
    for seed, (part, number) in enumerate(SIZES.items()):
        lines = [f"made\t{label}\t\t{sentence}\n" for label, sentence in sentences(number, seed)]
        (folder / f"{part}.tsv").write_text("".join(lines), encoding="utf-8")
    return tmp_path / "data"


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def command(command, monkeypatch, corpus):
    """Runs the command in this process, on the synthetic corpus: exit code, stdout, stderr."""
    monkeypatch.setenv("PROBATTN_DATA", str(corpus))
    return command
