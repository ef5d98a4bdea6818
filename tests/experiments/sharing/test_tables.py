"""A model of a table answers new rows as its evaluation did, also from a shared folder."""

import csv
import json

import pytest
import torch

from probattn.experiments.config import presets
from probattn.experiments.evaluation.evaluate import evaluate
from probattn.experiments.evaluation.evaluated_run import read_evaluated_run
from probattn.experiments.runs import export, train
from probattn.experiments.sharing.answers import NumberAnswer, number_answers
from probattn.experiments.sharing.pipeline import Pipeline


def rows_of(number):
    generator = torch.Generator().manual_seed(0)
    size, colour = torch.rand(number, generator=generator), torch.randint(3, (number,), generator=generator)
    for each, code in zip(size.tolist(), colour.tolist(), strict=True):
        yield {"size": f"{each:.4f}", "colour": ("red", "green", "blue")[code], "price": f"{100 * each + 5 * code:.2f}"}


@pytest.fixture(scope="module", params=["regression", "classes"])
def trained(request, tmp_path_factory):
    """A run on a table, its task, and the rows."""
    folder, rows = tmp_path_factory.mktemp(request.param), list(rows_of(60))
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("size", "colour", "price"))
        writer.writeheader()
        writer.writerows(rows)
    label = "price" if request.param == "regression" else "colour"
    changes = [f"data.path={folder / 'table.csv'}", f"data.label_column={label}", f"data.task={request.param}"]
    changes += ["train.accelerator=cpu", "network.dim=8", "network.heads=2", "network.depth=1", "layer.rank=2"]
    settings = presets.preset("tabular/csv").with_changes(changes).with_total_epochs(8)
    train.train(settings, folder / "run", name="tabular/csv", progress=False)
    evaluate(folder / "run", convergence=False)
    return folder / "run", request.param, rows


def test_rows_are_answered_as_in_the_evaluation_and_by_a_shared_folder(trained, tmp_path):
    folder, task, rows = trained
    stored = read_evaluated_run(folder).predictions(["test"], "posterior")["test"]
    here = Pipeline.from_run(folder)
    label = here.run.settings.data.label_column
    assert here.columns == tuple(name for name in ("size", "colour", "price") if name != label)
    here.save_pretrained(tmp_path / "shared")
    there = Pipeline.from_pretrained(tmp_path / "shared")
    field = "mean" if task == "regression" else "probs"
    found, again, evaluated = (getattr(each, field) for each in (here.predict(rows), there.predict(rows), stored))
    assert torch.equal(found, again)
    for each in evaluated:  # the test part is some of the rows
        assert (found - each).abs().flatten(1).amax(-1).min() < 1e-4 * found.abs().max()
    card = (tmp_path / "shared" / "README.md").read_text(encoding="utf-8")
    assert f"tabular-{'regression' if task == 'regression' else 'classification'}" in card
    assert label not in here.columns


def test_the_interval_of_a_number_is_that_of_its_quantiles(trained):
    folder, task, rows = trained
    if task == "classes":
        pytest.skip("answers with classes")
    prediction = Pipeline.from_run(folder).predict(rows)
    found = number_answers(prediction, [str(n) for n in range(60)])
    assert isinstance(found[0], NumberAnswer)
    low = torch.tensor([each.low for each in found], dtype=torch.float64)
    assert torch.allclose(
        prediction.cdf(low.reshape_as(prediction.mean).to(prediction.mean)).flatten().double(),
        torch.tensor(0.05, dtype=torch.float64),
        atol=1e-3,
    )


def test_the_command_answers_files_and_names_the_rows_that_it_cannot_read(trained, command, tmp_path):
    folder, task, rows = trained
    with (tmp_path / "new.jsonl").open("w", encoding="utf-8") as file:
        file.write(json.dumps({"size": 0.5, "colour": "red", "price": 50.0}) + "\n")
        file.write(json.dumps({"size": "large", "colour": "red", "price": 50.0}) + "\n")
    code, text, err = command("predict", folder, tmp_path / "new.jsonl", "--format", "jsonl")
    assert code == 1
    assert "line 2: 'size' is 'large', in a column of numbers" in err
    good, bad = map(json.loads, text.splitlines())
    assert "error" in bad
    if task == "regression":
        assert good["low"] < good["predicted"] < good["high"]
    else:
        assert good["predicted"] in ("red", "green", "blue")
    code, text, _ = command("predict", folder, "--text", "five")
    assert code == 1


def test_a_program_takes_any_number_of_encoded_rows(trained, tmp_path):
    folder, task, rows = trained
    assert "features (batch, 2)" in export.export_run(folder, tmp_path / "model.pt2")
    features = Pipeline.from_run(folder).run.dataset.encoding.features(rows, [""] * 60)
    outputs = torch.export.load(tmp_path / "model.pt2").module()(features)
    mean = Pipeline.from_run(folder).predict(rows, num_samples=200)
    if task == "regression":
        assert torch.allclose(outputs["mean"], mean.mean, atol=0.2 * float(mean.mean.std()))
    else:
        assert torch.allclose(outputs["probs"], mean.probs, atol=0.1)
        assert (outputs["entropy"] > 0).all()
