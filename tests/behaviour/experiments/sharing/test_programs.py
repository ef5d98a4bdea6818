"""``probattn export``: programs and weights for other software."""

import functools
import json
import shutil

import pytest
import torch
from torch.testing import assert_close

from probattn import inference
from probattn.draws import at_mean
from probattn.experiments.runs.load import open_run
from probattn.experiments.sharing.pipeline import Pipeline
from probattn.inference import predict

KEP = "digits/kep-svgp"


@pytest.fixture
def export(command):
    """Runs `probattn export`: exit code, stdout, stderr."""
    return functools.partial(command, "export")


def opened(path, *further):
    """A program, what it says of itself, and further files in it."""
    files = dict.fromkeys(("probattn.json", *further), "")
    program = torch.export.load(path, extra_files=files).module()
    return program, json.loads(files.pop("probattn.json")), files


def test_a_program_of_images_takes_them_as_they_are(export, digits_run, tmp_path):
    path = tmp_path / "new" / "mean.pt2"
    folder = shutil.copytree(
        digits_run, tmp_path / "run", ignore=shutil.ignore_patterns("calibration.json")
    )
    code, out, err = export(folder, "--out", path, "--num-samples", 0)
    assert (code, err) == (0, "")
    assert out == f"{path}: takes uint8 (batch, 1, 8, 8); gives probs, energy\n"
    program, about, files = opened(path, "preprocessing.json")
    run = open_run(digits_run)
    with at_mean():
        expected = predict(run.model, run.guide, run.batches(run.dataset.test), num_samples=1)
    outputs = program(run.dataset.test.images)
    assert_close(outputs["probs"], expected.probs)
    assert_close(outputs["energy"], expected.energy)
    assert (about["name"], about["classes"], about["num_samples"]) == (KEP, list("0123456789"), 0)
    assert json.loads(files["preprocessing.json"])["shape"] == [1, 8, 8]


def test_draws_are_those_of_a_seed_and_outputs_are_calibrated(export, digits_run, tmp_path):
    """The second program goes over the first."""
    run, pipeline = open_run(digits_run), Pipeline.from_pretrained(digits_run)
    data, images = run.batches(run.dataset.test), run.dataset.test.images
    close = functools.partial(assert_close, rtol=1e-4, atol=1e-5)
    for sets in ("by-class", "raps"):
        path = tmp_path / "a.pt2"
        code, out, err = export(digits_run, "--out", path, "--num-samples", 3, "--sets", sets)
        assert (code, err) == (0, "")
        assert out.endswith("gives probs, entropy, mutual_information, set, accepted\n")
        program, *_ = opened(path)
        torch.manual_seed(0)
        plain = predict(run.model, run.guide, data, num_samples=3)
        expected, outputs = pipeline.calibration.apply(plain), program(images)
        close(outputs["probs"], expected.probs)
        close(outputs["entropy"], expected.entropy)
        close(outputs["mutual_information"], plain.mutual_information)
        members = pipeline.calibration.sets(outputs["probs"], kind=sets)
        assert torch.equal(outputs["set"], members)
        assert torch.equal(outputs["accepted"], pipeline.calibration.accepts(outputs["probs"]))


def test_a_folder_to_share_is_written_without_a_suffix_and_uploaded_with_the_users_card(
    export, digits_run, tmp_path, monkeypatch
):
    uploaded = []
    monkeypatch.setattr(
        inference, "upload_pretrained", lambda *each: uploaded.append(each) or "https://hub/commit"
    )
    code, out, _ = export(digits_run, "--out", tmp_path / "shared", "--push-to-hub", "user/name")
    assert code == 0
    assert uploaded == [(tmp_path / "shared", "user/name")]
    assert out.endswith("https://hub/commit\n")
    assert (tmp_path / "shared" / "model.safetensors").exists()
