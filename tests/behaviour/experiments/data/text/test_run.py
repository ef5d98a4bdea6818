"""A run on texts by the command, from the corpus's files to predictions and programs."""

import json
import shutil

import pytest
import torch

from probattn.experiments.data.text.word_tokenizer import WordTokenizer
from probattn.experiments.runs.load import open_run
from probattn.inference import predict

TINY = {"train.epochs": 3, "train.warmup_epochs": 0, "network.dim": 16, "network.heads": 2, "network.mlp_dim": 16}
TINY |= {"network.spelling": 5, "layer.rank": 3}


def changes(**others):
    options = {key: value for key, value in (TINY | others).items() if value is not None}
    return [part for key, value in options.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    """The run of :func:`trained`, empty until a test needs it."""
    return tmp_path_factory.mktemp("trained") / "run"


@pytest.fixture
def trained(command, tmp_path, trained_once):
    """A run of its own for each test, copied from one that is trained once."""
    if not trained_once.exists():
        code, _, err = command("train", "kep-svgp/cola", "--out", tmp_path / "first", *changes())
        assert code == 0, err
        shutil.copytree(tmp_path / "first", trained_once)
    shutil.copytree(trained_once, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_that_is_finished_keeps_its_words_and_needs_them(command, trained):
    code, out, err = command("train", "kep-svgp/cola", "--out", trained, "--resume", *changes())
    assert (code, err) == (0, "")
    assert "epoch 3 of 3" in out
    assert json.loads((trained / "preprocessing.json").read_text())["tokens"]["spelling"] == 5
    (trained / "preprocessing.json").unlink()
    code, _, err = command("evaluate", trained)
    assert code == 1
    assert "preprocessing.json" in err


def test_resuming_with_other_data_is_refused_and_leaves_the_words_of_the_run(command, trained, corpus):
    before = (trained / "preprocessing.json").read_bytes()
    path = corpus / "cola_public" / "raw" / "in_domain_train.tsv"
    path.write_text(path.read_text().replace("happily", "zealously"))
    code, _, err = command("train", "kep-svgp/cola", "--out", trained, "--resume", *changes())
    assert code == 1
    assert "data" in err
    assert (trained / "preprocessing.json").read_bytes() == before


def test_a_program_of_texts_comes_with_its_tokenizer(command, trained, tmp_path):
    path = tmp_path / "a.pt2"
    code, out, err = command("export", trained, "--out", path, "--num-samples", 2)
    assert (code, err) == (0, "")
    assert "takes int64 (batch, tokens, 6), bool (batch, tokens)" in out
    files = {"preprocessing.json": "", "probattn.json": ""}
    program = torch.export.load(path, extra_files=files).module()
    tokenizer = WordTokenizer.from_json(json.loads(files["preprocessing.json"])["tokens"])
    run = open_run(trained)
    torch.manual_seed(0)
    expected = predict(run.model, run.guide, run.batches(run.dataset.test), num_samples=2)
    for number, words in enumerate(run.dataset.test.texts[:5]):
        ids = tokenizer.encode(words).unsqueeze(0)
        found = program(ids, torch.ones(1, ids.shape[1], dtype=torch.bool))
        torch.testing.assert_close(found["probs"][0], expected.probs[number], rtol=1e-4, atol=1e-5)
    assert json.loads(files["probattn.json"])["classes"] == list(run.dataset.classes)
