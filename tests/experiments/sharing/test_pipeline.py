"""Pipelines predict what the evaluation predicted, without the data, and elsewhere what they predict here."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.evaluation.evaluated_run import read_evaluated_run
from probattn.experiments.runs.load import open_run
from probattn.experiments.sharing.pipeline import Pipeline
from probattn.inference import CheckpointError, conformal

KEP = "digits/kep-svgp"
ELSEWHERE = """
import torch
from probattn.experiments.sharing.pipeline import Pipeline
torch.save(Pipeline.from_pretrained("shared").predict(torch.load("images.pt")).probs, "probs.pt")
"""


@pytest.fixture
def images(evaluated):
    return open_run(evaluated[KEP]).dataset.test.images


def test_a_pipeline_predicts_bit_for_bit_what_was_evaluated_and_a_fresh_process_the_same(evaluated, images, tmp_path):
    folder = shutil.copytree(evaluated[KEP], tmp_path / "run")
    stored = read_evaluated_run(folder).predictions(["test"], "posterior")["test"]
    pipeline = Pipeline.from_run(folder)
    state = torch.get_rng_state()
    found = pipeline.predict(images)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(found.probs, stored.probs)
    assert torch.equal(found.mutual_information, stored.mutual_information)
    pipeline.save_pretrained(tmp_path / "shared")
    torch.save(images, tmp_path / "images.pt")
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(tmp_path / "probs.pt"), stored.probs)


def test_the_threshold_is_that_of_conformal_sets_calibrated_on_the_validation_part(evaluated):
    predictions = read_evaluated_run(evaluated[KEP]).predictions(["valid"], "posterior")["valid"]
    expected = conformal.LAC(alpha=0.1).fit_prediction(predictions).quantile
    assert Pipeline.from_run(evaluated[KEP]).evaluation.threshold == expected


def test_texts_need_neither_their_data_set_nor_its_vocabulary(text_run, tmp_path):
    texts = ["a good story", "an unknown word"]
    here = Pipeline.from_run(text_run)
    here.save_pretrained(tmp_path / "shared")
    there = Pipeline.from_pretrained(tmp_path / "shared")
    assert there.classes == ("negative", "positive")
    assert torch.equal(here.predict(texts).probs, there.predict(texts).probs)
    with pytest.raises(TypeError, match="takes a sequence of texts, got str"):
        there.predict("a text")


def test_the_model_card_says_how_its_metrics_were_got_and_leaves_the_licence_open(evaluated, trained, tmp_path):
    Pipeline.from_run(evaluated[KEP]).save_pretrained(tmp_path / "evaluated")
    card = (tmp_path / "evaluated" / "README.md").read_text()
    metrics = json.loads((evaluated[KEP] / "metrics.json").read_text())["metrics"]
    for words in (
        "library_name: probattn",
        "# license: choose one",
        "--set network.dim=16",
        "with 10 posterior samples of seed 0",
        f"| NLL | {metrics['nll']:.4f} |",
        "true class with probability 0.9 or more",
    ):
        assert words in card
    Pipeline.from_run(trained[KEP]).save_pretrained(tmp_path / "trained")
    assert "1 of 1 sites not converged" in card
    uncertain = (tmp_path / "trained" / "README.md").read_text()
    assert "Not evaluated." in uncertain
    assert "no verdict; `probattn evaluate" in uncertain


def test_no_file_of_a_shared_folder_names_a_path_of_this_machine(evaluated, tmp_path):
    Pipeline.from_run(evaluated[KEP]).save_pretrained(tmp_path / "shared")
    for path in (tmp_path / "shared").iterdir():
        assert str(evaluated[KEP].parent).encode() not in path.read_bytes()


def test_preprocessing_of_another_model_is_refused(evaluated, trained, tmp_path):
    Pipeline.from_run(evaluated[KEP]).save_pretrained(tmp_path / "shared")
    (tmp_path / "shared" / "preprocessing.json").write_text("{}")
    with pytest.raises(CheckpointError, match="preprocessing.json is damaged"):
        Pipeline.from_pretrained(tmp_path / "shared")


def test_inputs_of_another_kind_or_size_are_refused(trained):
    pipeline = Pipeline.from_run(trained[KEP])
    with pytest.raises(DatasetError, match=r"trained on images \(1, 8, 8\), these are \(3, 8, 8\)"):
        pipeline.predict(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(TypeError, match="takes uint8 images"):
        pipeline.predict(["a text"])
