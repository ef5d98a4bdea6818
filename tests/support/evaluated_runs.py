"""Folders of evaluated runs, without training or predicting anything."""

import json

import pandas as pd
import torch

from probattn.experiments.config import presets
from probattn.experiments.evaluation import kept_predictions
from probattn.experiments.evaluation.evaluated_run import (
    run_stamp,
    save_prediction,
    to_frame,
)
from probattn.experiments.runs.folder import RunRecord, claim


def run(folder, name, *changes, seed=0, settings=None, methods=None, data=None, draws=(10, 0)):
    """Create the folder of a run of a preset, evaluated if there are ``methods``.

    ``methods`` are accuracies, metrics or scores by test set, by method; ``data`` digests of the
    test sets.
    """
    settings = (settings or presets.preset(name)).with_changes([f"train.seed={seed}", *changes])
    with claim(folder, RunRecord(name, settings), resume=False):
        (folder / "best.pt").write_bytes(f"{name} {seed}".encode())
    if methods is None:
        return folder
    by_set = {
        method: {"test": {"n": 360, "accuracy": value}} if isinstance(value, float) else value
        for method, value in methods.items()
    }
    to_frame(by_set, run=name, seed=seed).to_csv(folder / "scores.csv", index=False)
    content = {
        "stamp": run_stamp(folder) | dict(zip(("num_samples", "seed"), draws, strict=True)),
        "data": {"valid": "digest", "test": "digest"} | dict(data or {}),
    }
    (folder / "evaluation.json").write_text(json.dumps(content))
    return folder


def store(folder, by_set, method="posterior"):
    """Store predictions of an evaluated run by test set."""
    content = json.loads((folder / "evaluation.json").read_text())
    for name, part in by_set.items():
        stamp = content["stamp"] | {"data": content["data"][name]}
        file, examples = kept_predictions.stored_files(folder, method, name)
        save_prediction(file, part, stamp=stamp)
        keys = [f"{number:012x}" for number in range(len(part))]
        frame = kept_predictions.example_frame(part)
        kept_predictions.save_examples(examples, frame, keys, stamp=stamp)


def random_prediction(number=40, classes=3, *, seed=0, labels=None):
    """Return a prediction of random probabilities."""
    from probattn.inference import Prediction

    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(number, classes, generator=generator)).softmax(-1)
    labels = torch.arange(number) % classes if labels is None else labels
    return Prediction(probs=probs, expected_entropy=torch.zeros(number), labels=labels)


def score_frame(scores):
    """Return row → seed → metric → value as the frame that a comparison takes."""
    pairs = [(row, seed) for row, seeds in scores.items() for seed in seeds]
    index = pd.MultiIndex.from_tuples(pairs, names=["row", "seed"])
    return pd.DataFrame([scores[row][seed] for row, seed in pairs], index=index)
