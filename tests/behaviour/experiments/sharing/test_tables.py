"""Models of tables: likelihoods, class weights, intervals, new rows, and programs."""

import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.runs.build import balanced_weights
from probattn.experiments.runs.load import open_run
from probattn.experiments.sharing.answers import number_answers
from probattn.experiments.sharing.pipeline import Pipeline
from probattn.inference import predict

PRICE = ("data.label_column=price", "data.task=regression")
OWN = """
import pyro.distributions as dist
from torch import nn

class Laplace(nn.Module):
    def __init__(self, *, scale: float, factor: float = 1.0):
        super().__init__()
        self.scale = factor * scale

    def forward(self, outputs, mask=None):
        return dist.Laplace(outputs, self.scale).to_event(1)
"""


@pytest.fixture(scope="module")
def number_run(train_table):
    """The folder of a regression of the price."""
    return train_table(*PRICE)


def test_rows_are_answered_by_a_shared_folder_as_by_the_run(number_run, table_rows, tmp_path):
    here = Pipeline.from_pretrained(number_run)
    here.save_pretrained(tmp_path / "shared")
    there = Pipeline.from_pretrained(tmp_path / "shared")
    assert torch.equal(here.predict(table_rows).mean, there.predict(table_rows).mean)
    assert here.answers(table_rows).equals(there.answers(table_rows))


def test_intervals_are_those_of_quantiles_widened_by_the_calibration(number_run, table_rows):
    pipeline = Pipeline.from_pretrained(number_run)
    prediction = pipeline.predict(table_rows)
    low, high = prediction.quantiles([0.05, 0.95]).flatten(1)
    plain, calibrated = (
        pipeline.answers(table_rows, calibrated=choice) for choice in (False, True)
    )
    assert_close(torch.tensor(plain["low"].to_numpy()), low, rtol=1e-4, atol=1e-4)
    highest = torch.tensor(calibrated["high"].to_numpy())
    assert_close(highest, high + pipeline.calibration.quantile, rtol=1e-4, atol=1e-4)
    assert plain.equals(number_answers(prediction))
    assert len(set(plain["std"])) > 1  # by default the noise depends on the row


def test_a_likelihood_of_your_own_takes_the_scale_and_its_options(
    train_table, table_rows, tmp_path, monkeypatch
):
    (tmp_path / "own_likelihood.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    folder = train_table(
        *PRICE, "data.likelihood=own_likelihood:Laplace", "data.likelihood_options={factor: 0.5}"
    )
    run = open_run(folder, trust_code=True)
    assert run.model.likelihood.scale == pytest.approx(0.5 * run.dataset.label_std)
    assert len(Pipeline.from_pretrained(folder, trust_code=True).answers(table_rows)) == 60


def test_balanced_weights_are_scikit_learns_and_weight_the_loss_alone(train_table, table_rows):
    from sklearn.utils.class_weight import compute_class_weight

    labels = torch.tensor([0] * 18 + [1] * 9 + [2] * 3)
    weights = balanced_weights(labels, classes=3)
    expected = compute_class_weight("balanced", classes=labels.unique().numpy(), y=labels.numpy())
    assert_close(weights.double(), torch.from_numpy(expected))
    with pytest.raises(SettingsError, match="class_weights are for classes"):
        train_table(*PRICE, "train.class_weights=balanced")
    run = open_run(train_table("data.label_column=colour", "train.class_weights=balanced"))
    train = run.dataset.train
    weights = balanced_weights(train.labels, classes=len(run.dataset.classes))
    logits = torch.randn(len(train), 3)
    loss = -run.model.likelihood(logits).log_prob(train.labels).sum()
    assert_close(loss, cross_entropy(logits, train.labels, weight=weights, reduction="sum"))
    prediction = predict(run.model, run.guide, run.batches(run.dataset.valid), seed=0)
    valid = run.dataset.valid.labels
    assert_close(prediction.log_prob(valid), prediction.probs.gather(1, valid[:, None])[:, 0].log())


def test_the_command_answers_files_and_names_the_rows_that_it_cannot_read(
    number_run, command, tmp_path
):
    (tmp_path / "new.jsonl").write_text(
        '{"size": 0.5, "colour": "red"}\n{"size": "large", "colour": "red"}\n'
    )
    path = tmp_path / "answers.csv"
    code, _, err = command(
        "predict", number_run, tmp_path / "new.jsonl", "--out", path, "--sort", "std"
    )
    assert code == 1
    assert "'large', in a column of numbers" in err
    good, bad = pd.read_csv(path).to_dict("records")
    assert "'large'" in bad["error"]
    assert good["low"] < good["predicted"] < good["high"]
    assert command("predict", number_run, "--text", "five")[0] == 1
