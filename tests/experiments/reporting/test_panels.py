"""Figures of reports: which are drawn, and the sentences that replace missing ones."""

import math
from dataclasses import replace

import pytest
import torch

from probattn.experiments.evaluation.decisions import decide
from probattn.experiments.evaluation.metric_display import COLUMNS
from probattn.experiments.plots import examples, predictions
from probattn.experiments.reporting import report
from probattn.inference import Prediction, metrics


def test_the_caption_says_what_the_attention_matrix_of_each_layer_is():
    captions = {panel.key: panel.caption for panel in report.PANELS}
    matrices = {
        "softmax": "the probabilities of softmax attention",
        "kernel, KEP-SVGP": "the kernel between queries and keys of kernel attention and KEP-SVGP",
        "SGPA": "the kernel between tokens of SGPA",
        "CGP": "the map from values to the mean output of CGP",
    }
    assert [layer for layer, words in matrices.items() if words not in captions["spectrum_by_layer"]] == []


def test_save_figures_writes_what_there_is_to_show(result, probabilistic, tmp_path):
    keys = [
        "reliability",
        "risk_coverage",
        "confidence",
        "training",
        "most_uncertain",
        "most_confidently_wrong",
    ]
    assert report.save_figures(tmp_path / "a", result(n=6)) == [tmp_path / "a" / f"{key}.svg" for key in keys]
    paths = report.save_figures(tmp_path / "b", probabilistic(n=4))
    assert [path.stem for path in paths] == [*keys, "spectrum", "spectrum_by_layer", "similarity", "posterior"]
    assert all(path.read_bytes().startswith(b"<?xml") for path in paths)


@pytest.fixture
def evaluated(probabilistic):
    """Result of a run that was evaluated on all kinds of test sets."""
    run = probabilistic(n=4)
    test = Prediction(probs=run.probs, labels=run.labels)
    scores = {"fog": {1: run.metrics, 5: run.metrics}, "contrast": {1: run.metrics, 5: run.metrics}}
    letters = Prediction(probs=run.probs.flip(0))
    return replace(run, decisions=decide(test, test), shift=scores, ood={"letters": letters})


OF_ANSWERS = {"reliability", "risk_coverage", "confidence", "most_uncertain", "most_confidently_wrong"} | {
    "abstention",
    "set_sizes",
    "ood",
}
MISSING = {
    "no shift": ({"shift": {}}, {"shift"}, "not evaluated on corrupted images"),
    "no OOD sets": ({"ood": {}}, {"ood"}, "not evaluated on OOD images"),
    "no validation": ({"decisions": None}, {"abstention", "set_sizes"}, "no predictions of validation data"),
    "no steps": ({"steps": [], "epochs": []}, {"training"}, "logged no steps"),
    "no images": ({"images": torch.empty(0)}, {"most_uncertain", "most_confidently_wrong"}, "no images"),
    "nan probabilities": (
        {"probs": torch.full((4, 4), math.nan)},
        OF_ANSWERS,
        "probabilities that are not finite",
    ),
    "no spectra": ({"spectra": {}}, {"spectrum", "spectrum_by_layer"}, "no spectrum of an attention matrix"),
    "no similarity": ({"similarity": {}}, {"similarity"}, "did not measure its tokens"),
    "no settings": ({"settings": {}}, set(), "No settings were recorded."),
    "diverged": (
        {"steps": [{"step": 0, "nll": 1.0}, {"step": 1, "nll": math.nan}]},
        set(),
        "in 1 of 2 logged steps",
    ),
    "one epoch": (
        {"epochs": [{"epoch": 0, "step": 4, "valid/nll": 1.0}], "steps": [{"step": 0, "nll": 2.5}]},
        set(),
        "Training curves",
    ),
    "no answers": (
        {
            "probs": torch.empty(0, 4),
            "labels": torch.empty(0, dtype=torch.long),
            "images": torch.empty(0, 1, 5, 5),
            "metrics": {},
        },
        OF_ANSWERS,
        "0 examples",
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_missing_pieces_are_said_and_not_drawn(evaluated, result, read, tmp_path, case):
    changes, absent, sentence = MISSING[case]
    run = replace(evaluated, **changes)
    reader = read(tmp_path / "r.html", [run, result("another")])
    assert sentence in reader.text
    shared = 1 + bool(run.shift) + bool(run.similarity)
    drawn = [image["alt"] for image in reader.images[shared:]]
    titles = {panel.key: panel.title for panel in report.PANELS if not panel.of_numbers}
    assert len(drawn) == 14 - len(absent) + 6
    assert {
        key for key, title in titles.items() if any(alt.startswith(f"{title} of {run.name}.") for alt in drawn)
    } == (titles.keys() - absent)


def test_a_network_without_errors_or_random_variables_is_said_so(result, read, tmp_path):
    run = result()
    run = replace(run, labels=run.probs.argmax(-1))
    run = replace(run, metrics=metrics.evaluate(run.probs, run.labels))
    assert len(predictions.confidence(run.probs, run.labels).axes) == 1
    reader = read(tmp_path / "r.html", [run])
    assert "no wrong answers" in reader.text
    assert "no random variable that all examples share" in reader.text
    assert "deterministic" not in reader.text
    assert reader.tables[0][1][1 + COLUMNS.index("auroc")]["text"] == "–"  # it does not exist
    few = replace(run, labels=torch.cat([(run.labels[:2] + 1) % 4, run.labels[2:]]))
    indices = examples.most_confidently_wrong(few.probs, few.labels)
    assert sorted(indices) == [0, 1]
    axes = examples.gallery(few.images, few.probs, few.labels, few.classes, indices).axes
    assert [int(ax.images[0].get_array().flat[0]) for ax in axes if ax.images] == indices
