"""A run on texts by the command, from the corpus's files to predictions and programs."""

import json

import pytest
import torch

from probattn.experiments.data.text.word_tokenizer import WordTokenizer
from probattn.experiments.runs.load import open_run
from probattn.inference import predict

TINY = {
    "train.epochs": 2,
    "train.warmup_epochs": 0,
    "network.dim": 16,
    "network.heads": 2,
    "network.mlp_dim": 16,
}
TINY |= {"network.spelling": 5, "layer.rank": 3}


CHANGES = [part for key, value in TINY.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture
def trained(succeed, tmp_path):
    succeed("train", "kep-svgp/cola", "--out", tmp_path / "run", *CHANGES)
    return tmp_path / "run"


def test_a_finished_run_needs_the_words_that_it_was_trained_with_and_its_program_contains_them(
    command, refused, trained, tmp_path, corpus
):
    assert command("train", "kep-svgp/cola", "--out", trained, "--resume", *CHANGES)[::2] == (0, "")
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
        outputs = program(ids, torch.ones(1, ids.shape[1], dtype=torch.bool))
        torch.testing.assert_close(
            outputs["probs"][0], expected.probs[number], rtol=1e-4, atol=1e-5
        )
    assert json.loads(files["probattn.json"])["classes"] == list(run.dataset.classes)
    before = (trained / "preprocessing.json").read_bytes()
    path = corpus / "cola_public" / "raw" / "in_domain_train.tsv"
    path.write_text(path.read_text().replace("happily", "zealously"))
    assert "data" in refused("train", "kep-svgp/cola", "--out", trained, "--resume", *CHANGES)
    assert (trained / "preprocessing.json").read_bytes() == before
