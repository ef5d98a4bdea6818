"""Initialisation of a fresh run: inducing inputs from its data."""

from dataclasses import replace

import torch

from probattn.experiments.config import presets
from probattn.experiments.data.images.known_sets import load
from probattn.experiments.evaluation import evaluate
from probattn.experiments.runs import train
from probattn.inference.io.checkpoint import read
from probattn.models import ViT


def test_a_fresh_run_sets_inducing_inputs_from_plain_training_images(monkeypatch, tmp_path, tiny):
    """Normalised and not augmented, and never again for a run that has weights."""
    data, seen, initialise = load("digits", limit=200), [], ViT.initialise_inducing
    augmented = replace(data, augment=True)
    monkeypatch.setattr(train, "load_data", lambda *arguments, **options: augmented)

    def spy(self, images):
        seen.append(images)
        initialise(self, images)

    monkeypatch.setattr(ViT, "initialise_inducing", spy)
    name = "digits/sparse-cgp"
    settings = presets.preset(name).with_changes([*tiny, "warm_start=none", "train.epochs=1"])
    train.train(settings, tmp_path, name=name, progress=False)
    train.train(settings, tmp_path, name=name, progress=False, resume=True)
    evaluate.evaluate(tmp_path)
    (images,) = seen
    pixels = data.train.images.double() / 255
    plain = (pixels - pixels.mean()) / pixels.std(correction=0)
    assert images.shape == (64, 1, 8, 8)
    assert torch.cdist(images.double().flatten(1), plain.flatten(1)).amin(1).max() < 1e-4


def test_a_run_starts_from_the_best_weights_of_its_warm_start(monkeypatch, tmp_path, tiny):
    starts, fit = [], train.fit

    def spy(model, *arguments, **options):
        starts.append({name: value.clone() for name, value in model.state_dict().items()})
        return fit(model, *arguments, **options)

    monkeypatch.setattr(train, "fit", spy)
    name, said = "digits/cgp", []
    settings = presets.preset(name).with_changes(
        [*tiny, "train.epochs=1", "warm_start.epochs=2", "data.limit=60"]
    )
    train.train(settings, tmp_path / "run", name=name, progress=False, say=said.append)
    best = read(tmp_path / "run" / "warm-start" / "best.pt")["model"]
    carried = [key for key, value in best.items() if starts[1][key].shape == value.shape]
    assert "network.blocks.1.attention.query_key_value.weight" in carried
    assert all(torch.equal(starts[1][key], best[key]) for key in carried)
    assert any(f"{len(carried)} weights carried over" in line for line in said)
