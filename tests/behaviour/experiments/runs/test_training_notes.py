"""What is said of a training that was too short, for curves in closed form and a run that was
stopped."""

import json
import math
import shlex
from types import SimpleNamespace

import pytest
import torch

from probattn.experiments.config.presets import preset
from probattn.experiments.runs.training_notes import training_notes

SETTINGS = preset("digits/softmax")


def cosine(time):
    """Share of the learning that the cosine schedule has done at a share of the epochs."""
    return time + math.sin(math.pi * time) / math.pi


def notes(values, *, metric="nll", labels=(0, 1), shares=(0, 1), planned=None):
    """Return the notes on a run with these validation values, one an epoch."""
    sign = -1 if metric == "accuracy" else 1
    best = 1 + min(range(len(values)), key=lambda place: sign * values[place])
    epochs = [
        {"epoch": epoch, "valid/nll": 0.0, "valid/accuracy": 0.5, f"valid/{metric}": value}
        for epoch, value in enumerate(values, 1)
    ]
    parts = {
        name: SimpleNamespace(labels=torch.tensor(numbers))
        for name, numbers in (("train", shares), ("valid", labels))
    }
    changes = [f"train.epochs={planned or len(values)}", f"train.monitor={metric}"]
    return training_notes(
        "run",
        SETTINGS.with_changes([*changes, "train.warmup_epochs=0"]),
        SimpleNamespace(classes=("a", "b"), **parts),
        epochs,
        best_epoch=best,
    )


@pytest.mark.parametrize("epochs", [2, 3, 10, 100])
@pytest.mark.parametrize("metric", ["nll", "accuracy"])
def test_a_curve_that_improves_steadily_to_the_last_epoch_says_to_train_longer(epochs, metric):
    sign = 1 if metric == "accuracy" else -1
    for progress in (cosine, float):
        done = [progress(epoch / epochs) for epoch in range(1, epochs + 1)]
        (note,) = notes([0.5 + sign * share / 10 for share in done], metric=metric)
        assert f"--epochs {2 * epochs}" in note


@pytest.mark.parametrize(
    "values",
    [
        [0.3],
        [0.5, 0.3, 0.3],
        [0.5, 0.3, 0.2, 0.25],
        [0.2 + math.exp(-epoch) for epoch in range(20)],
        [0.2 + math.exp(-5 * cosine(epoch / 40)) for epoch in range(1, 41)],
        [math.nan] * 3,
    ],
)
def test_a_curve_that_has_levelled_out_or_turned_says_nothing(values):
    assert notes(values) == ()


def test_an_nll_that_is_never_below_that_of_the_shares_of_the_classes_is_told():
    labels = {"shares": (0, 0, 0, 1), "labels": (0, 0, 1)}
    constant = -(2 * math.log(3 / 4) + math.log(1 / 4)) / 3
    (note,) = notes([constant + 0.01, constant + 0.1, constant + 0.2], **labels)
    assert f"{constant:.4g}" in note
    assert notes([constant - 0.01, constant + 0.1, constant + 0.2], **labels) == ()


def test_a_run_that_was_stopped_is_evaluated_with_the_command_that_continues_it(
    command, succeed, kep
):
    """As a run that was killed after two of three epochs has it: its settings are of three."""
    record = json.loads((kep / "settings.json").read_text())
    record["settings"]["train"]["epochs"] = 3
    (kep / "settings.json").write_text(json.dumps(record))
    said = succeed("evaluate", kep)
    assert "epoch 2 of 3" in said
    assert "was stopped after epoch 2 of 3" in (kep / "report.html").read_text()
    advice = said.partition("probattn ")[2].partition("\n")[0]
    succeed(*shlex.split(advice))
    assert "was stopped" not in succeed("evaluate", kep)


def test_training_and_evaluation_say_the_same(succeed, kep, trained):
    said = succeed("evaluate", kep)
    log = [json.loads(line) for line in (kep / "log.jsonl").read_text().splitlines()]
    values = [record["valid/nll"] for record in log if record["kind"] == "epoch"]
    told = "still improving" in said
    assert told == (values[1] < values[0])
    assert ("still improving" in succeed("train", "--out", kep, "--resume")) == told
