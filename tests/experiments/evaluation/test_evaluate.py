"""Evaluation of a small run by every method on corrupted and OOD images, against the same steps by hand."""

import json
import shutil
import sys

import pytest
import torch
from fitted_methods import features_of, laplace, mc_dropout

from probattn.experiments.config import presets
from probattn.experiments.config.settings import SettingsError
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.corruptions import corrupt
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.evaluation import eval_sets, evaluate, methods, provenance
from probattn.experiments.evaluation.evaluated_run import read_evaluated_run
from probattn.experiments.evaluation.metric_display import DETECTORS
from probattn.experiments.reporting.evaluation_tables import evaluation_tables
from probattn.experiments.runs import build, train
from probattn.experiments.runs.load import open_run
from probattn.experiments.studies import collect
from probattn.inference import CheckpointError, metrics, predict
from probattn.inference.imports import MissingExtraError
from probattn.inference.io.checkpoint import read
from probattn.inference.io.files import write_archive
from probattn.inference.methods.temperature import fit_temperature, scale
from probattn.inference.metrics import ood

KEP = "digits/kep-svgp"
TINY = [
    "train.epochs=2",
    "train.warmup_epochs=0",
    "data.limit=200",
    "network.dim=16",
    "network.depth=2",
    "network.heads=2",
    "network.mlp_dim=16",
]
SHIFT = {"shift": True, "corruptions": ("gaussian_noise", "contrast"), "severities": (1, 5)}
BY = ("temperature", "mc-dropout", "laplace", "laplace+temperature")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Folder and evaluation of a run, by several methods, under shift and on letters."""
    folder = tmp_path_factory.mktemp("evaluated") / "kep"
    train.train(presets.preset(KEP).with_changes(TINY), folder, name=KEP, progress=False)
    return folder, evaluate.evaluate(folder, num_samples=4, seed=3, by=BY, ood=("letters",), **SHIFT)


@pytest.fixture
def copy(evaluated, tmp_path):
    """Copy of the evaluated run's folder."""
    return shutil.copytree(evaluated[0], tmp_path / "copy")


def load_predictions(folder, method="posterior"):
    run = read_evaluated_run(folder)
    return run.predictions(run.test_sets, method)


def by_hand(run, images, make, seed=3):
    """Predict by a method as a user would, from the seed."""
    torch.manual_seed(3)
    predictor = make(run)
    torch.manual_seed(seed)
    return predictor(run.batches(images))


def laplace_by_hand(run):
    predictor = laplace(run.model, run.guide, run.batches(run.dataset.train), num_samples=4)

    def predicted(batches):
        return predictor.predict_features(features_of(run.model, run.guide, batches, num_samples=4))

    return predicted


def test_every_method_under_shift_is_what_it_is_by_hand(evaluated):
    folder, done = evaluated
    run = open_run(folder)
    test = run.dataset.test
    shifted = Images(corrupt(test.images, "contrast", 5), test.labels)
    made = {
        "posterior": lambda run: lambda data: predict(run.model, run.guide, data, num_samples=4),
        "mc-dropout": lambda run: mc_dropout(run.model, run.guide, num_samples=4).predict,
        "laplace": laplace_by_hand,
    }
    for method, make in made.items():
        for images, scores in (
            (test, done.scores[method].test),
            (shifted, done.scores[method].shift["contrast"][5]),
        ):
            prediction = by_hand(run, images, make, seed=4 if method == "mc-dropout" else 3)
            expected = metrics.evaluate(prediction.probs, images.labels)
            assert scores == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=True)
    assert done.scores["posterior"].test != done.scores["mc-dropout"].test != done.scores["laplace"].test


def test_temperature_is_fitted_on_the_validation_part_of_what_it_stands_on(evaluated):
    folder, _ = evaluated
    for under, method in (("posterior", "temperature"), ("laplace", "laplace+temperature")):
        plain, scaled = (
            load_predictions(folder, under),
            load_predictions(folder, method),
        )
        temperature = fit_temperature(plain["valid"])
        for name in ("test", "shift/contrast/5", "ood/letters"):
            torch.testing.assert_close(scaled[name].probs, scale(plain[name], temperature).probs)


def test_ood_images_are_scored_against_the_test_part_with_detectors_fitted_on_validation(evaluated):
    folder, done = evaluated
    predictions = load_predictions(folder)
    expected = ood.evaluate(predictions["test"], predictions["ood/letters"], fitted_on=predictions["valid"])
    assert done.scores["posterior"].ood["letters"] == expected
    assert set(expected) == set(DETECTORS)
    assert set(done.scores["temperature"].ood["letters"]) == {"kl_matching", "max_softmax", "entropy"}


def test_the_report_gets_what_the_posterior_predictive_did(evaluated):
    folder, done = evaluated
    predictions = load_predictions(folder)
    assert torch.equal(done.result.probs, predictions["test"].probs)
    assert done.result.metrics == done.scores["posterior"].test
    assert done.result.shift == done.scores["posterior"].shift
    assert done.result.shift_source == read_evaluated_run(folder).shift_source
    assert done.result.shift_source.startswith("generated from")
    tables = evaluation_tables(done)
    source = f"Corrupted images: {done.result.shift_source}."
    assert {key for key, table in tables.items() if source in table.note} == {
        key for key in tables if key.startswith("shift")
    }
    assert torch.equal(done.result.ood["letters"].probs, predictions["ood/letters"].probs)


def test_a_run_that_was_stopped_early_is_said_so(copy):
    lines = (copy / "log.jsonl").read_text().splitlines()
    last = max(at for at, line in enumerate(lines) if '"epoch": 1' in line and '"kind": "epoch"' in line)
    (copy / "log.jsonl").write_text("\n".join([*lines[: last + 1], ""]))
    result = evaluate.evaluate(copy, num_samples=4, seed=3).result
    assert result.label == f"{KEP} (1 of 2 epochs)"
    assert json.loads((copy / "metrics.json").read_text())["epochs_done"] == 1
    assert [*collect.rows([copy]).scores] == [result.label]


def test_metrics_json_holds_all_scores_and_can_be_compared(evaluated):
    folder, done = evaluated
    content = json.loads((folder / "metrics.json").read_text())
    found = collect.rows([folder])
    assert [*found.scores] == ["digits/kep-svgp" + (f" + {methods.title(m)}" if m != "posterior" else "") for m in
                               ("posterior", *BY)]  # fmt: skip
    for method, title in zip(("posterior", *BY), found.scores, strict=True):
        assert content["methods"][method]["ood"] == found.scores[title][0].ood
        assert found.scores[title][0] == done.scores[method]


def test_all_sets_share_their_draws(copy, monkeypatch):
    from probattn.inference.prediction import latents

    drawn, original = [], latents.global_part

    def record(*arguments):
        drawn.append(original(*arguments))
        return drawn[-1]

    monkeypatch.setattr(latents, "global_part", record)
    run = open_run(copy)
    sets = eval_sets.own_sets(run.dataset)
    evaluate.predict_sets(run, sets, provenance.by_method(run, sets, ["posterior"], num_samples=4, seed=11))
    values = [trace.nodes["network.blocks.1.attention.u"]["value"] for trace in drawn]
    assert len(values) == 2
    assert torch.equal(*values)


def test_what_is_stored_is_not_predicted_again(copy, monkeypatch):
    before = {path: path.read_bytes() for path in (copy / "predictions").rglob("*.pt")}
    monkeypatch.setattr(methods, "fit", lambda *arguments, **options: pytest.fail("predicted"))
    evaluate.evaluate(copy, num_samples=4, seed=3, by=BY, ood=("letters",), **SHIFT)
    assert {path: path.read_bytes() for path in (copy / "predictions").rglob("*.pt")} == before


@pytest.mark.parametrize("change", [{"num_samples": 3, "seed": 3}, {"num_samples": 4, "seed": 4}])
def test_other_draws_are_predicted_anew(copy, change):
    before = load_predictions(copy)
    evaluate.evaluate(copy, **change)
    after = load_predictions(copy)
    assert not torch.equal(before["test"].probs, after["test"].probs)
    assert "ood/letters" not in after  # not asked for
    assert (copy / "predictions" / "posterior" / "ood-letters.pt").exists()


def test_other_weights_are_predicted_anew(copy):
    before = load_predictions(copy)
    content = read(copy / "best.pt")
    content["model"]["network.head.bias"] += torch.arange(10.0)
    write_archive(copy / "best.pt", content)
    evaluate.evaluate(copy, num_samples=4, seed=3)
    assert not torch.equal(before["test"].probs, load_predictions(copy)["test"].probs)


def test_the_default_ood_images_of_digits():
    names = eval_sets.ood_sets(build.load_data(presets.preset(KEP), None), ["default"], root=None)
    assert len(names) > 1
    assert all(each.startswith("ood/") for each in names)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"by": ("temprature",)}, SettingsError, "did you mean temperature"),
        ({"by": ("temperature+laplace",)}, SettingsError, "only temperature can follow a"),
        ({"ood": ("lettters",)}, ValueError, "letters"),
        ({"ood": ("digits",)}, ValueError, "digits"),
        ({"shift": True, "corruptions": ("gausian_noise",)}, ValueError, "gaussian_noise"),
        ({"shift": True, "severities": (6,)}, ValueError, "6"),
        ({"ood": ("./nowhere",)}, DatasetError, "nowhere"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_predicted(copy, monkeypatch, options, error, words):
    monkeypatch.setattr(evaluate, "predict_sets", lambda *arguments, **settings: pytest.fail("predicted"))
    with pytest.raises(error, match=words):
        evaluate.evaluate(copy, **options)


def test_a_library_that_is_not_installed_is_named_before_anything_is_predicted(copy, monkeypatch):
    monkeypatch.setitem(sys.modules, "laplace", None)
    monkeypatch.setattr(evaluate, "predict_sets", lambda *arguments, **settings: pytest.fail("predicted"))
    with pytest.raises(MissingExtraError, match=r"pip install 'probattn\[laplace\]'"):
        evaluate.evaluate(copy, by=("laplace+temperature",))


def test_a_run_without_a_checkpoint_is_refused_before_its_data_are_read(copy, monkeypatch):
    (copy / "best.pt").unlink()
    monkeypatch.setattr(train, "load_data", lambda *arguments: pytest.fail("read"))
    with pytest.raises(CheckpointError, match=r"no best\.pt"):
        evaluate.evaluate(copy, **SHIFT)


@pytest.mark.parametrize("shape", [(5, 1, 9, 9), (5, 3, 8, 8)])
def test_images_of_another_shape_are_refused(evaluated, shape):
    images = Images(torch.zeros(shape, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(DatasetError, match=r"trained on images \(1, 8, 8\)"):
        open_run(evaluated[0]).batches(images)
