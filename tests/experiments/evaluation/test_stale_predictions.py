"""Stored predictions are made again after a change of anything that they were computed from, and only then."""

import os
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from PIL import Image

from probattn.experiments.config.settings import SettingsError
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.corruptions import CORRUPTIONS
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.sealed_files import write_json
from probattn.experiments.evaluation import eval_sets, evaluate, methods, provenance
from probattn.experiments.evaluation.evaluated_run import read_evaluated_run
from probattn.experiments.runs import load
from probattn.experiments.runs.folder import read_record
from probattn.experiments.runs.load import open_run
from probattn.inference.io.checkpoint import read
from probattn.inference.io.files import write_archive

FOG = {"shift": True, "corruptions": ("fog",), "severities": (1,)}


def change_setting(folder, change):
    record = read_record(folder)
    write_json(folder / "settings.json", asdict(replace(record, settings=record.settings.with_changes([change]))))


def paint(folder, seed):
    """Write twenty random images into a folder, over those that are there."""
    folder.mkdir(exist_ok=True, parents=True)
    for number, pixels in enumerate(np.random.default_rng(seed).integers(0, 256, (20, 8, 8), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return folder


def swap_weights(folder):
    content = read(folder / "best.pt")
    content["model"]["network.head.bias"] += torch.arange(10.0)
    write_archive(folder / "best.pt", content)


def change_data(monkeypatch, **change):
    """Let parts of the data set that runs are evaluated on be changed by functions."""
    load_data = load.load_data

    def changed(*arguments):
        dataset = load_data(*arguments)
        return replace(dataset, **{part: function(getattr(dataset, part)) for part, function in change.items()})

    monkeypatch.setattr(load, "load_data", changed)


@pytest.fixture
def without_store(tmp_path):
    """Function that returns the scores of a copy of a run that has nothing stored."""

    def scores(folder, **options):
        left = shutil.ignore_patterns("predictions", "metrics.json")
        return evaluate.evaluate(shutil.copytree(folder, tmp_path / "fresh", ignore=left), **options).scores

    return scores


@pytest.fixture
def predicted(monkeypatch):
    """List of the methods that are fitted to predict something, since the list was last cleared."""
    made, fit = [], methods.fit
    monkeypatch.setattr(methods, "fit", lambda run, name, **options: made.append(name) or fit(run, name, **options))
    return made


def test_ood_images_that_were_changed_are_predicted_anew(kep, tmp_path, without_store):
    photos = paint(tmp_path / "photos", 0)
    first = evaluate.evaluate(kep, ood=(str(photos),)).scores
    paint(photos, 1)
    again = evaluate.evaluate(kep, ood=(str(photos),)).scores
    assert again != first
    assert again == without_store(kep, ood=(str(photos),))


def test_ood_images_of_another_folder_of_that_name_are_predicted_anew(kep, tmp_path, without_store):
    one, other = paint(tmp_path / "one" / "photos", 0), paint(tmp_path / "other" / "photos", 1)
    first = evaluate.evaluate(kep, ood=(str(one),)).scores
    again = evaluate.evaluate(kep, ood=(str(other),)).scores
    assert again != first
    assert again == without_store(kep, ood=(str(other),))


@pytest.mark.parametrize(
    "change",
    [
        lambda part: Images(255 - part.images, part.labels),
        lambda part: Images(part.images, 9 - part.labels),
        lambda part: part.select(torch.arange(40)),
    ],
    ids=["pixels", "labels", "number"],
)
def test_test_data_that_were_changed_are_predicted_anew(kep, without_store, monkeypatch, change):
    first = evaluate.evaluate(kep).scores
    change_data(monkeypatch, test=change)
    again = evaluate.evaluate(kep).scores
    assert again != first
    assert again == without_store(kep)


@pytest.mark.parametrize("part", ["train", "valid"])
def test_a_run_is_not_evaluated_with_other_training_data_than_its_own(kep, monkeypatch, part, contents):
    """Its normalisation and fitted methods would be others, and its test data may be among those it was trained on."""
    evaluate.evaluate(kep)
    before = contents(kep)
    change_data(monkeypatch, **{part: lambda images: images.select(torch.arange(len(images) - 1))})
    with pytest.raises(DatasetError, match=rf"the {part}\w* part of digits is not the one that {kep} was trained with"):
        evaluate.evaluate(kep)
    assert contents(kep) == before


def test_a_run_is_not_evaluated_on_another_split_than_its_own(kep):
    evaluate.evaluate(kep)
    change_setting(kep, "data.seed=1")
    with pytest.raises(DatasetError, match=r"the training and validation part of digits is not the one"):
        evaluate.evaluate(kep)
    with pytest.raises(SettingsError, match=r"has changed since it was evaluated: settings \(settings\.json\)"):
        read_evaluated_run(kep)


def test_another_corruption_of_that_name_is_predicted_anew(kep, without_store, monkeypatch):
    first = evaluate.evaluate(kep, **FOG).scores
    stronger = replace(CORRUPTIONS["fog"], severities=CORRUPTIONS["fog"].severities[::-1])
    monkeypatch.setitem(CORRUPTIONS, "fog", stronger)
    again = evaluate.evaluate(kep, **FOG).scores
    assert again["posterior"].shift != first["posterior"].shift
    assert again == without_store(kep, **FOG)


def test_a_swapped_checkpoint_is_predicted_anew(kep, without_store):
    first = evaluate.evaluate(kep, by=("temperature",)).scores
    swap_weights(kep)
    again = evaluate.evaluate(kep, by=("temperature",)).scores
    assert again["temperature"] != first["temperature"]
    assert again == without_store(kep, by=("temperature",))


def test_another_version_of_the_library_predicts_anew(kep, monkeypatch, predicted):
    evaluate.evaluate(kep)
    predicted.clear()
    version = provenance.version
    monkeypatch.setattr(provenance, "version", lambda name: "9" if name == "probattn" else version(name))
    evaluate.evaluate(kep)
    assert predicted == ["posterior"]
    versions = read_evaluated_run(kep).provenance["posterior"].versions
    assert versions == {"probattn": "9", "torch": version("torch"), "pyro-ppl": version("pyro-ppl")}


def test_another_version_of_a_method_s_library_predicts_anew_by_that_method(kep, monkeypatch, predicted):
    evaluate.evaluate(kep, by=("laplace",))
    predicted.clear()
    version = provenance.version
    monkeypatch.setattr(provenance, "version", lambda name: "9" if name == "laplace-torch" else version(name))
    evaluate.evaluate(kep, by=("laplace",))
    assert predicted == ["laplace"]


def test_an_evaluation_that_was_interrupted_and_continued_after_a_change_mixes_nothing(kep, without_store, monkeypatch):
    original, groups = methods.predict, []

    def interrupt(*arguments):
        groups.append(0)
        if len(groups) == 2:
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(methods, "predict", interrupt)
        with pytest.raises(KeyboardInterrupt):
            evaluate.evaluate(kep)
    assert len(list((kep / "predictions").rglob("*.pt"))) == 1
    swap_weights(kep)
    assert evaluate.evaluate(kep).scores == without_store(kep)


def test_what_is_copied_or_touched_is_not_predicted_again(kep, tmp_path, predicted):
    first = evaluate.evaluate(kep, **FOG).scores
    predicted.clear()
    copy = shutil.copytree(kep, tmp_path / "copy", copy_function=shutil.copyfile)
    os.utime(copy / "best.pt")
    assert evaluate.evaluate(copy, **FOG).scores == first
    assert predicted == []


def test_predictions_of_another_run_are_predicted_anew(kep, tmp_path, without_store):
    other = shutil.copytree(kep, tmp_path / "other")
    swap_weights(other)
    evaluate.evaluate(other)
    shutil.copytree(other / "predictions", kep / "predictions")
    assert evaluate.evaluate(kep).scores == without_store(kep)


def test_tables_and_report_do_not_outlive_the_scores_that_they_show(command, kep, no_figures):
    assert command("evaluate", kep, "--ood", "letters")[0] == 0
    assert (kep / "tables" / "ood-posterior.md").exists()
    (kep / "tables" / "mine.md").write_text("")
    evaluate.evaluate(kep, ood=("letters",))  # the same scores
    assert (kep / "tables" / "ood-posterior.md").exists()
    evaluate.evaluate(kep)
    assert [path.name for path in (kep / "tables").iterdir()] == ["mine.md"]


def test_every_part_of_the_data_has_its_own_digest(kep):
    run = open_run(kep)
    sets = eval_sets.own_sets(run.dataset) | eval_sets.ood_sets(run.dataset, ["letters", "patches"], root=None)
    sets |= eval_sets.shifted_sets(run.dataset, root=None, corruptions=["fog", "frost"], severities=[1, 2])
    (found,) = provenance.by_method(run, sets, ["posterior"], num_samples=1, seed=0).values()
    assert list(found.data) == ["train", *sets]
    assert len(set(found.data.values())) == 9
