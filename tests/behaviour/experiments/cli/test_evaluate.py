"""`probattn evaluate`: its tables, files and numbers."""

import json
import shutil
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyro.poutine as poutine
import pytest
import torch

from probattn.experiments.config import presets
from probattn.experiments.data.images.known_sets import load
from probattn.experiments.evaluation import evaluate
from probattn.experiments.runs.build import build
from probattn.inference import metrics

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"


def row(folder, method="posterior", name="test"):
    """Return the scores of a method on a test set."""
    frame = pd.read_csv(folder / "scores.csv")
    return frame[(frame["method"] == method) & (frame["set"] == name)].iloc[0]


def content(folder):
    return json.loads((folder / "evaluation.json").read_text("utf-8"))


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("layer", "changes", "sites", "variants"),
    [
        ("kernel", [], 0, 0),
        ("sgpa", ["warm_start=none"], 2, 3),
        (
            "cgp",
            [
                "warm_start=none",
                "layer.last=1",
                "layer.collapsed=false",
                "layer.canonical_guide=learned",
            ],
            0,
            3,
        ),
        ("sparse-cgp", ["warm_start.epochs=1"], 0, 3),
    ],
)
def test_every_layer_is_trained_and_evaluated(
    command, succeed, tmp_path, layer, changes, sites, variants, assignments, tiny
):
    """With and without latent sites: without global ones no posterior, without any that predictions
    see no variants."""
    out, name = tmp_path / "run", f"digits/{layer}"
    changes = assignments(
        [*tiny, "train.epochs=1", "data.limit=60", "train.num_samples=3", *changes]
    )
    succeed("train", name, "--out", out, *changes)
    code, text, err = command("evaluate", out)
    assert (code, err) == (0, "")
    values, scores = content(out), row(out).dropna()
    assert f"{100 * scores['accuracy']:.2f}" in text
    assert len(scores) >= 5 + 8
    assert (len(values["posterior"]), len(values["variants"])) == (sites, variants)
    if variants:
        assert values["variants"]["at its mean"] != values["variants"]["drawn from q"]
        assert values["variants"]["drawn from q"]["nll"] == scores["nll"]
    result = evaluate.evaluate(out).result
    assert list(result.similarity) == [f"network.blocks.{n}.attention" for n in range(2)]
    assert result.metrics["nll"] == scores["nll"]


def test_evaluate_writes_tables_scores_figures_and_report(command, kep):
    (kep / "log.jsonl").unlink()  # which it does not need
    options = (
        "--corruptions",
        "gaussian_noise,fog",
        "--severities",
        "1",
        "--severities",
        "5",
        "--ood",
        "letters",
    )
    code, text, err = command(
        "evaluate", kep.parent, "--shift", *options, "--method", "temperature"
    )
    assert (code, err) == (0, "")
    shifted = [
        row(kep, name=f"shift/{name}/{level}")
        for name in ("gaussian_noise", "fog")
        for level in (1, 5)
    ]
    accuracies = row(kep)["accuracy"], np.mean([scores["accuracy"] for scores in shifted])
    percents = (
        *accuracies,
        row(kep, "temperature", "ood/letters")["entropy_auroc"],
        row(kep)["nll"] / 10,
    )
    cells = (*(f"{100 * value:.2f}" for value in percents), KEP, "FPR95", "by-class sets")
    assert [cell for cell in cells if cell not in text] == []
    for path in (kep / "figures").iterdir():
        ElementTree.parse(path)
    assert f"probattn train {KEP} --set " in (kep / "report.html").read_text("utf-8")
    stored = content(kep)
    assert (stored["stamp"]["num_samples"], stored["stamp"]["seed"]) == (10, 0)
    assert (
        json.loads((kep / "calibration.json").read_text())["weights"] == stored["stamp"]["best.pt"]
    )


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", [KEP, SOFTMAX])
def test_metrics_equal_those_of_a_network_run_by_hand(succeed, trained, tmp_path, name, tiny):
    """Weights read from the file, images normalised here, u at its posterior mean."""
    folder = shutil.copytree(trained[name], tmp_path / "run")
    succeed("evaluate", folder)
    scores = content(folder)["variants"]["at its mean"] if name == KEP else row(folder)

    data = load("digits", limit=200)
    pixels = data.train.images.double() / 255
    x = ((data.test.images.double() / 255 - pixels.mean()) / pixels.std(correction=0)).float()
    model, _ = build(presets.preset(name).with_changes(tiny), data)
    weights = torch.load(folder / "best.pt")
    model.load_state_dict(weights["model"])
    means, path = {}, "network.blocks.1.attention"
    if name == KEP:
        scale = weights["model"][f"{path}.log_scale"].exp().unsqueeze(-2)
        means[f"{path}.u"] = scale * weights["guide"][f"{path}.u.loc"]
    with torch.no_grad(), poutine.condition(data=means):
        probs = model.network.eval()(x).softmax(-1)
    expected = metrics.evaluate(probs.double(), data.test.labels)
    assert {key: scores[key] for key in expected} == pytest.approx(expected, abs=1e-4, nan_ok=True)


@pytest.mark.usefixtures("no_figures")
def test_evaluate_is_repeatable_and_the_seed_and_the_level_matter(succeed, kep):
    def scores(*options):
        succeed("evaluate", kep, *options)
        return row(kep)["nll"], content(kep)

    nll, first = scores()
    torch.rand(7)  # whatever else has drawn
    assert scores() == (nll, first)
    other, second = scores("--seed", 1)
    assert second["variants"]["at its mean"] == first["variants"]["at its mean"]
    few, third = scores("--num-samples", 3, "--level", 0.5)
    assert third["stamp"]["num_samples"] == 3
    assert nll not in (other, few)
    assert (
        third["decisions"]["plain sets"]["coverage"] < first["decisions"]["plain sets"]["coverage"]
    )
