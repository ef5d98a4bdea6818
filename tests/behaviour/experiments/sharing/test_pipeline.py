"""Pipelines predict what the run predicts, calibrated, without the data, and shared what they
predict here."""

from functools import partial

import pytest
import torch
from in_threads import in_threads

from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.runs.load import open_run
from probattn.experiments.sharing.pipeline import Pipeline
from probattn.experiments.sharing.programs import export_program
from probattn.inference import conformal, predict


@pytest.fixture
def images(digits_run):
    return open_run(digits_run).dataset.test.images[:40]


def test_a_pipeline_predicts_as_the_run_scaled_by_its_temperature_and_a_shared_one_the_same(
    digits_run, images, tmp_path
):
    run, pipeline = open_run(digits_run), Pipeline.from_pretrained(digits_run)
    expected = predict(
        run.model, run.guide, run.batches(run.dataset.test.select(torch.arange(40))), seed=0
    )
    state = torch.get_rng_state()
    plain = pipeline.predict(images, calibrated=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(plain.probs, expected.probs)
    assert torch.equal(plain.mutual_information, expected.mutual_information)
    scaled = pipeline.predict(images).probs
    temperature = pipeline.calibration.temperature
    assert torch.allclose(scaled, (expected.probs.log() / temperature).softmax(-1), atol=1e-6)
    assert not torch.allclose(scaled, plain.probs, atol=1e-3)
    pipeline.save_pretrained(tmp_path / "shared")
    there = Pipeline.from_pretrained(tmp_path / "shared")
    assert torch.equal(there.predict(images).probs, scaled)
    assert there.calibration == pipeline.calibration


@pytest.mark.filterwarnings("ignore::probattn.inference.prediction.predictor.FewExamplesWarning")
@pytest.mark.parametrize("options", [{}, {"penalty": 0.02, "free": 6}, {"free": 0}])
def test_raps_sets_have_the_options_of_their_calibration_here_shared_and_exported(
    digits_run, images, options, tmp_path
):
    run = open_run(digits_run)
    valid = predict(run.model, run.guide, run.batches(run.dataset.valid), num_samples=3, seed=0)
    origin = {"weights": run.weights, "num_samples": 3, "seed": 0}
    calibration = Calibration.fit(valid, raps=options, level=0.6, **origin)
    pipeline = Pipeline(run, Calibration.model_validate_json(calibration.to_json()))
    pipeline.save_pretrained(tmp_path / "shared")
    shared = Pipeline.from_pretrained(tmp_path / "shared")
    sets = conformal.RAPS(alpha=0.4, **options).fit_prediction(calibration.apply(valid))
    expected = sets.sets(pipeline.predict(images).probs)
    if options.get("free"):
        assert not torch.equal(expected, calibration.sets(pipeline.predict(images).probs))
    for one in (pipeline, shared):
        told = one.answers(images, sets="raps")["set"]
        members = [[name in names for name in one.classes] for names in told]
        assert torch.equal(torch.tensor(members), expected)
    export_program(shared, tmp_path / "program.pt2", sets="raps")
    outputs = torch.export.load(tmp_path / "program.pt2").module()(images)
    assert torch.equal(outputs["set"], sets.sets(outputs["probs"]))


def test_texts_need_neither_their_data_set_nor_its_vocabulary(text_run, tmp_path):
    texts = ["a good story", "an unknown word"]
    here = Pipeline.from_pretrained(text_run)
    here.save_pretrained(tmp_path / "shared")
    there = Pipeline.from_pretrained(tmp_path / "shared")
    assert there.classes == ("negative", "positive")
    assert torch.equal(here.predict(texts).probs, there.predict(texts).probs)
    with pytest.raises(TypeError, match="takes a sequence"):
        there.predict("a text")


def test_threads_get_what_one_gets_also_while_others_load_pipelines(digits_run, images, tmp_path):
    pipeline = Pipeline.from_pretrained(digits_run)
    pipeline.save_pretrained(tmp_path / "shared")
    calls = [partial(pipeline.predict, images[row : row + 8]) for row in range(16)]
    expected = [call().probs for call in calls]
    loads = [
        partial(Pipeline.from_pretrained, folder)
        for folder in (digits_run, tmp_path / "shared") * 8
    ]
    results = in_threads([call for pair in zip(calls, loads, strict=True) for call in pair])
    for prediction, probs in zip(results[::2], expected, strict=True):
        assert torch.equal(prediction.probs, probs)
