"""Stored predictions are made again after a change of anything that they were computed from."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from PIL import Image

from probattn.experiments.evaluation import evaluate
from probattn.experiments.runs.folder import read_record
from probattn.inference.io.atomic_write import write_json


def change_setting(folder, change):
    record = read_record(folder)
    changed = replace(record, settings=record.settings.with_changes([change]))
    write_json(folder / "settings.json", asdict(changed))


def paint(folder, seed):
    """Write twenty random images into a folder, over those that are there."""
    folder.mkdir(exist_ok=True)
    for number, pixels in enumerate(np.random.default_rng(seed).integers(0, 256, (20, 8, 8), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / f"{number}.png")


@pytest.fixture
def fresh_copy(trained, tmp_path):
    """Function that evaluates a copy of the run without anything stored."""


def scores_without_store(folder, tmp_path, **options):
    """Return the scores of a copy of the run that has nothing stored."""
    import shutil

    copy = shutil.copytree(folder, tmp_path / "fresh", ignore=shutil.ignore_patterns("predictions", "metrics.json"))
    return evaluate.evaluate(copy, **options).scores


def test_ood_images_that_were_changed_are_predicted_anew(kep, tmp_path):
    photos = tmp_path / "photos"
    paint(photos, 0)
    first = evaluate.evaluate(kep, ood=(str(photos),)).scores
    paint(photos, 1)
    again = evaluate.evaluate(kep, ood=(str(photos),)).scores
    assert again != first
    assert again == scores_without_store(kep, tmp_path, ood=(str(photos),))


def test_another_split_is_predicted_anew(kep, tmp_path):
    first = evaluate.evaluate(kep).scores
    change_setting(kep, "data.seed=1")
    again = evaluate.evaluate(kep).scores
    assert again != first
    assert again == scores_without_store(kep, tmp_path)
