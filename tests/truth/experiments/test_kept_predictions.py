"""Kept predictions: scores made from them again, their files, and resamples by identity."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from evaluated_runs import random_prediction

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.evaluation.example_intervals import resampled_metrics
from probattn.experiments.evaluation.kept_predictions import (
    example_frame,
    read_examples,
    refined_frame,
    save_examples,
)
from probattn.experiments.studies import collect
from probattn.inference import metrics

N = 60


def test_the_refinement_is_a_column():
    prediction = random_prediction(N, 4)
    refined = metrics.refinement.refined_log_probs(prediction.probs, prediction.labels)
    values = resampled_metrics(refined_frame(prediction), np.ones((1, N), dtype=int))
    assert values["refinement"] == pytest.approx(-refined.mean().item())


def test_inputs_without_labels_have_confidence_and_entropy():
    frame = example_frame(replace(random_prediction(N, 4), labels=None))
    assert set(frame) == {"predicted", "confidence", "entropy", "mutual_information"}


def test_a_file_is_read_with_its_stamp_alone(tmp_path):
    file = tmp_path / "test.parquet"
    frame = example_frame(random_prediction(N, 4))
    keys = [f"{number:064x}" for number in range(N)]
    stamp = {"data": "digest", "num_samples": 10}
    save_examples(file, frame, keys, stamp=stamp)
    kept = read_examples(file, stamp=stamp)
    pd.testing.assert_frame_equal(kept.drop(columns="example"), frame, check_dtype=False, rtol=1e-6)
    assert kept["example"].tolist() == [key[:12] for key in keys]
    assert read_examples(file, stamp=stamp | {"data": "other"}) is None
    file.write_bytes(file.read_bytes()[:100])
    assert read_examples(file, stamp=stamp) is None
    assert read_examples(tmp_path / "none", stamp=stamp) is None


LABELS = torch.zeros(N, dtype=torch.long)
PARTS = {
    "texts": Texts(tuple(f"they begin alike, {number}" for number in range(N)), LABELS),
    "images": Images(torch.arange(N, dtype=torch.uint8).reshape(-1, 1, 1, 1), LABELS),
}


@pytest.mark.parametrize("kind", PARTS)
def test_different_inputs_are_different_examples_of_a_file_that_has_no_input(kind, tmp_path):
    file, part = tmp_path / "test.parquet", PARTS[kind]
    save_examples(file, example_frame(random_prediction(N, 4)), part.keys, stamp={})
    names = read_examples(file, stamp={})["example"]
    assert names.is_unique
    assert names.str.fullmatch("[0-9a-f]{12}").all()


def kept(prediction, keys, **of_row):
    return example_frame(prediction).assign(example=keys, run="d/softmax", set="test", **of_row)


def test_an_example_is_drawn_with_its_copies_in_other_test_sets():
    """Seeds with the same examples in another order have the replicates of one seed."""
    prediction = random_prediction(N, 4)
    keys = np.array([f"{number:012x}" for number in range(N)])
    order = torch.randperm(N)
    one = kept(prediction, keys, seed=0, method="posterior")
    other = kept(prediction[order], keys[order.numpy()], seed=1, method="posterior")
    alone = collect.resampled(one)["test"]["d/softmax"].values
    both = collect.resampled(pd.concat([one, other]))["test"]["d/softmax"].values
    for metric in ("accuracy", "nll", "brier", "ece"):
        np.testing.assert_allclose(both[metric], alone[metric], rtol=1e-9, atol=1e-12)


def test_the_order_of_the_rows_changes_no_replicate():
    keys = [f"{number:012x}" for number in range(N)]
    frame = kept(random_prediction(N, 4), keys, seed=0, method="posterior")
    replicates = collect.resampled(frame)["test"]
    others = collect.resampled(frame.iloc[torch.randperm(N).numpy()])["test"]
    assert list(replicates) == list(others)
    for row, found in replicates.items():
        for metric in ("accuracy", "nll", "brier", "aurc"):
            np.testing.assert_allclose(others[row].values[metric], found.values[metric], rtol=1e-9)


def test_rows_of_a_seed_with_other_examples_are_refused():
    rows = [
        kept(random_prediction(N, 4), [f"{row}-{n}" for n in range(N)], seed=0, method=row)
        for row in ("posterior", "temperature")
    ]
    with pytest.raises(SettingsError, match="predict different examples"):
        collect.resampled(pd.concat(rows))


def test_disjoint_test_sets_are_drawn_apart():
    """The variance is that of the mean of two samples, not of one."""
    parts = [random_prediction(400, 4, seed=seed) for seed in (0, 1)]
    frames = [
        kept(part, [f"{seed}-{n}" for n in range(400)], seed=seed, method="posterior")
        for seed, part in enumerate(parts)
    ]
    losses = np.concatenate([-frame["log_prob"] for frame in frames])
    values = collect.resampled(pd.concat(frames))["test"]["d/softmax"].values["nll"]
    # Seeds are drawn as well: the mean of c² of two seeds, c times drawn, is 3/2.
    between = np.square(losses[:400].mean() - losses[400:].mean()) / 8
    expected = 1.5 * losses.var() / len(losses) + between
    error = expected * (2 / len(values)) ** 0.5
    assert abs(values.var() - expected) <= 5 * error
