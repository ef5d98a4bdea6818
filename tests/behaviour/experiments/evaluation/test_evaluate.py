"""Evaluation of a small run by every method on corrupted and OOD images, against the same steps by
hand."""

import shutil
from functools import partial

import pandas as pd
import pytest
import torch
from fitted_methods import features_of, laplace, mc_dropout

from probattn.experiments.data.images.corruptions import corrupt
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.evaluation import evaluate, methods
from probattn.experiments.evaluation.evaluated_run import read_evaluated_run
from probattn.experiments.runs.load import open_run
from probattn.experiments.sharing.pipeline import Pipeline
from probattn.experiments.sharing.programs import export_program
from probattn.inference import (
    IsotonicScaling,
    PosteriorPredictive,
    TemperatureScaling,
    VectorScaling,
    metrics,
    predict,
    with_gp_readout,
)
from probattn.inference.io.checkpoint import read
from probattn.inference.io.files import write_archive
from probattn.inference.metrics import ood
from probattn.inference.metrics.refinement import refined_log_probs

KEP = "digits/kep-svgp"
SHIFT = {"shift": True, "corruptions": ("gaussian_noise", "contrast"), "severities": (1, 5)}
BY = (
    "temperature",
    "vector",
    "isotonic",
    "mc-dropout",
    "laplace",
    "laplace+temperature",
    "anchored",
)
SETS = ("valid", "test", "shift/contrast/5", "ood/letters")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, trained):
    """Folder and evaluation of a run, by several methods, under shift and on letters."""
    folder = shutil.copytree(trained[KEP], tmp_path_factory.mktemp("evaluated") / "kep")
    return folder, evaluate.evaluate(
        folder, num_samples=4, seed=3, by=BY, ood=("letters",), **SHIFT
    )


@pytest.fixture
def copy(evaluated, tmp_path):
    """Copy of the evaluated run's folder."""
    return shutil.copytree(evaluated[0], tmp_path / "copy")


def predictions(folder, method="posterior", names=SETS):
    return read_evaluated_run(folder).predictions(names, method)


def scores(frame, method, name):
    row = frame[(frame["method"] == method) & (frame["set"] == name)].iloc[0]
    return {key: value for key, value in row[5:].dropna().items() if not key.startswith("coverage")}


def predictor_by_hand(method, run):
    train, valid, samples = (
        *map(run.batches, (run.dataset.train, run.dataset.valid)),
        {"num_samples": 4},
    )
    program = (run.model, run.guide)
    if method == "laplace":
        predictor = laplace(*program, train, **samples)
        return lambda batches: predictor.predict_features(features_of(*program, batches, **samples))
    if method == "anchored":
        return with_gp_readout(
            PosteriorPredictive(*program, **samples), train, valid, depths="all"
        ).predict
    return (
        mc_dropout(*program, **samples).predict
        if method == "mc-dropout"
        else partial(predict, *program, **samples)
    )


def test_every_method_under_shift_is_what_it_is_by_hand(evaluated):
    folder, done = evaluated
    run = open_run(folder)
    test = run.dataset.test
    shifted = Images(corrupt(test.images, "contrast", 5), test.labels)
    for method in ("posterior", "mc-dropout", "laplace", "anchored"):
        for images, name in ((test, "test"), (shifted, "shift/contrast/5")):
            torch.manual_seed(3)
            predictor = predictor_by_hand(method, run)
            torch.manual_seed(4 if method in ("mc-dropout", "anchored") else 3)
            probs = predictor(run.batches(images)).probs
            expected = metrics.evaluate(probs, images.labels)
            if name == "test":
                expected["refinement"] = -float(refined_log_probs(probs, images.labels).mean())
            finite = {key: value for key, value in expected.items() if value == value}
            assert scores(done.scores, method, name) == pytest.approx(finite, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("under", "method", "kind"),
    [
        ("posterior", "temperature", TemperatureScaling),
        ("laplace", "laplace+temperature", TemperatureScaling),
        ("posterior", "vector", VectorScaling),
        ("posterior", "isotonic", IsotonicScaling),
    ],
)
def test_a_scaling_is_fitted_on_the_validation_part_of_what_it_stands_on(
    evaluated, under, method, kind
):
    plain, scaled = predictions(evaluated[0], under), predictions(evaluated[0], method)
    scaling = kind().fit_prediction(plain["valid"])
    for name in SETS[1:]:
        torch.testing.assert_close(scaled[name].probs, scaling.scaled(plain[name]).probs)


def test_ood_images_are_scored_against_the_test_part_with_detectors_fitted_on_validation(evaluated):
    folder, done = evaluated
    stored = predictions(folder)
    expected = ood.evaluate(stored["test"], stored["ood/letters"], fitted_on=stored["valid"])
    flat = {
        f"{key}_{metric}": value for key, row in expected.items() for metric, value in row.items()
    }
    assert scores(done.scores, "posterior", "ood/letters") == flat
    assert set(expected) == set(ood.DETECTORS)


def test_scores_csv_is_the_wide_form_and_the_report_gets_the_posterior_predictive(evaluated):
    folder, done = evaluated
    frame, stored = pd.read_csv(folder / "scores.csv"), predictions(folder)
    assert list(frame.columns[:6]) == ["run", "seed", "method", "set", "n", "accuracy"]
    assert set(frame["method"]) == {"posterior", *BY}
    pd.testing.assert_frame_equal(frame, done.scores, check_dtype=False)
    assert torch.equal(done.result.test.probs, stored["test"].probs)
    assert torch.equal(done.result.ood["letters"].probs, stored["ood/letters"].probs)


def test_what_is_stored_is_not_predicted_again(copy, monkeypatch, contents):
    before = contents(copy / "predictions")
    # Validation, test, letters, and two corruptions at two severities; each is kept twice.
    assert len(before) == (1 + len(BY)) * (3 + 4) * 2
    monkeypatch.setattr(methods, "fit", lambda *arguments, **options: pytest.fail("predicted"))
    evaluate.evaluate(copy, num_samples=4, seed=3, by=BY, ood=("letters",), **SHIFT)
    assert contents(copy / "predictions") == before


@pytest.mark.parametrize("damage", ["seed", "weights", "digest"])
def test_outdated_and_damaged_predictions_are_made_anew(copy, damage):
    before, path = predictions(copy)["test"].probs, copy / "predictions" / "posterior" / "test.pt"
    if damage == "weights":
        content = read(copy / "best.pt")
        content["model"]["network.head.bias"] += torch.arange(10.0)
        write_archive(copy / "best.pt", content)
    elif damage == "digest":
        content = torch.load(path)
        content["stamp"]["data"] = "of other images"
        content["fields"]["probs"] = before.flip(1)
        torch.save(content, path)
    evaluate.evaluate(copy, num_samples=4, seed=3 + (damage == "seed"))
    assert torch.equal(before, predictions(copy)["test"].probs) == (damage == "digest")
    assert "ood/letters" not in predictions(copy)  # not asked for


@pytest.mark.parametrize("damage", ["missing", "cut", "of another evaluation"])
def test_kept_examples_that_are_missing_or_outdated_are_made_anew(copy, damage):
    path = copy / "predictions" / "posterior" / "test.parquet"
    before = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(before[:200])
    else:
        frame = pd.read_parquet(path)
        frame.attrs["stamp"]["seed"] = 99
        frame.to_parquet(path)
    evaluate.evaluate(copy, num_samples=4, seed=3)
    assert path.read_bytes() == before


def test_refine_reaches_evaluation_prediction_and_its_calibration(trained, tmp_path):
    folder = shutil.copytree(trained[KEP], tmp_path / "run")
    options = {"num_samples": 4, "refine": 0.3, "by": ["temperature"]}
    used = evaluate.evaluate(folder, **options).result.test.samples_used
    assert set(used.tolist()) == {1, 4}
    assert 0.3 <= (used == 4).double().mean() < 0.32
    pipeline = Pipeline.from_pretrained(folder)
    images = list(open_run(folder).dataset.test.images[:10])
    assert sorted(pipeline.answers(images)["samples"]) == [1] * 7 + [4] * 3
    assert sorted(pipeline.answers(images, refine=0.5)["samples"]) == [1] * 5 + [4] * 5
    with pytest.raises(ValueError, match="refine"):
        export_program(pipeline, tmp_path / "program.pt2")
