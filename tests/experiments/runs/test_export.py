"""``probattn export``: programs and weights for other software."""

import functools
import json

import pytest
import torch
from torch.testing import assert_close

from probattn import inference
from probattn.draws import at_mean
from probattn.experiments.runs.build import build
from probattn.experiments.runs.load import open_run
from probattn.inference import load_safetensors, predict

KEP = "digits/kep-svgp"


@pytest.fixture
def run(trained):
    """The folder of a finished tiny run."""
    return trained[KEP]


@pytest.fixture
def export(command):
    """Runs `probattn export`: exit code, stdout, stderr."""
    return functools.partial(command, "export")


def opened(path, *further):
    """A program, what it says of itself, and further files in it."""
    files = dict.fromkeys(("probattn.json", *further), "")
    program = torch.export.load(path, extra_files=files).module()
    return program, json.loads(files.pop("probattn.json")), files


def test_a_program_of_images_takes_them_as_they_are(export, run, tmp_path):
    path = tmp_path / "new" / "mean.pt2"
    code, out, err = export(run, "--out", path, "--mean")
    assert (code, err) == (0, "")
    takes = "uint8 images (batch, 1, 8, 8), 0 to 255"
    assert out == f"{path}: takes {takes}; gives probs, energy\n"
    program, about, _ = opened(path)
    trained = open_run(run)
    with at_mean():
        expected = predict(trained.model, trained.guide, trained.batches(trained.dataset.test), num_samples=1)
    found = program(trained.dataset.test.images)
    assert_close(found["probs"], expected.probs)
    assert_close(found["energy"], expected.energy)
    assert about["name"] == KEP
    assert about["classes"] == list("0123456789")
    assert about["mean"] == list(trained.dataset.mean)
    assert about["std"] == list(trained.dataset.std)
    assert (about["num_samples"], about["takes"], about["gives"]) == (None, takes, ["probs", "energy"])
    assert about["epoch"] == trained.best_epoch


def test_draws_are_those_of_the_seed(export, run, tmp_path):
    trained = open_run(run)
    data = trained.batches(trained.dataset.test)
    for seed in (0, 5):
        code, out, err = export(run, "--out", tmp_path / "a.pt2", "--num-samples", 3, "--seed", seed)
        assert (code, err) == (0, "")
        assert "mutual_information" in out
        program, about, _ = opened(tmp_path / "a.pt2")
        assert about["num_samples"] == 3
        torch.manual_seed(seed)
        expected = predict(trained.model, trained.guide, data, num_samples=3)
        found = program(trained.dataset.test.images)
        for name in about["gives"]:
            assert_close(found[name], getattr(expected, name), rtol=1e-4, atol=1e-5)


def test_by_default_a_program_gives_the_uncertainty_over_the_samples_of_the_settings(export, run, tmp_path):
    code, out, _ = export(run, "--out", tmp_path / "a.pt2")
    assert code == 0
    assert out.endswith("gives probs, energy, entropy, expected_entropy, mutual_information\n")
    _, about, _ = opened(tmp_path / "a.pt2")
    assert about["num_samples"] == open_run(run).settings.train.num_samples


def test_a_folder_to_share_is_written_without_a_suffix_and_uploaded_with_the_users_card(
    export, run, tmp_path, monkeypatch
):
    uploaded = []
    monkeypatch.setattr(inference, "upload_pretrained", lambda *each: uploaded.append(each) or "https://hub/commit")
    code, out, _ = export(run, "--out", tmp_path / "shared", "--push-to-hub", "user/name")
    assert code == 0
    assert uploaded == [(tmp_path / "shared", "user/name")]
    assert out.endswith("https://hub/commit\n")
    assert (tmp_path / "shared" / "model.safetensors").exists()


def test_weights_come_with_what_the_model_is_built_from(export, run, tmp_path):
    path = tmp_path / "a.safetensors"
    code, out, err = export(run, "--out", path)
    trained = open_run(run)
    assert (code, err) == (0, "")
    assert out == f"{path}: weights of model and guide, epoch {trained.best_epoch}\n"
    model, guide = build(trained.settings, trained.dataset)
    words = load_safetensors(path, model, guide)
    assert words["name"] == KEP
    assert json.loads(words["settings"])["network"]["dim"] == 16
    for theirs, ours in ((model, trained.model), (guide, trained.guide)):
        assert all(torch.equal(value, ours.state_dict()[name]) for name, value in theirs.state_dict().items())


def test_what_cannot_be_written_is_one_message(export, run, tmp_path):
    for arguments, words in (
        ((run, "--out", tmp_path / "a.pth"), ".safetensors"),
        ((run,), "--push-to-hub"),
        ((run, "--out", tmp_path / "a.pt2", "--mean", "--num-samples", 2), "the posterior mean is no sample"),
        ((run, "--out", tmp_path / "shared", "--mean"), "leave --num-samples and --mean out"),
        ((run, "--out", tmp_path / "a.pt2", "--push-to-hub", "a/b"), "leave its suffix or --push-to-hub out"),
        ((run, "--out", tmp_path / "a.safetensors", "--num-samples", 2), "leave --num-samples and --mean out"),
        ((tmp_path, "--out", tmp_path / "a.pt2"), "holds no run"),
    ):
        code, _, err = export(*arguments)
        assert code == 1
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert words in err
    assert list(tmp_path.iterdir()) == []
