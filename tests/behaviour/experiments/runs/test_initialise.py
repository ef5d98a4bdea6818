"""Initialisation of a fresh run: inducing inputs from its data."""

import pytest
import torch
from small_vit import small_vit

from probattn import guides
from probattn.experiments.config import presets
from probattn.experiments.config.presets import with_layer
from probattn.experiments.runs import build, train
from probattn.experiments.runs.sources import load_data
from probattn.inference import TrainOptions, fit
from probattn.inference.io.checkpoint import read
from probattn.models import Classifier

SETTINGS = ["warm_start=none", "train.epochs=1", "layer.last=none"]


def anchored(tiny):
    changes = [*tiny, *SETTINGS]
    return with_layer(presets.preset("digits/softmax"), "anchored").with_changes(changes)


def test_python_and_the_command_train_the_same_network(tmp_path, tiny):
    settings = anchored(tiny)
    train.train(settings, tmp_path, name="digits/softmax", progress=False)
    dataset = load_data(settings, None)
    model, guide = build.build(settings, dataset)
    loaders = build.loaders(settings, dataset, device="cpu")
    fit(model, guide, *loaders, options=settings.train.options, progress=False)
    stored = read(tmp_path / "best.pt")["model"]
    own = model.state_dict()
    assert any(name.endswith("anchors") for name in own)
    assert all(torch.equal(stored[name], value) for name, value in own.items())


@pytest.mark.parametrize("layer", ["anchored", "sgpa", "sparse-cgp"])
def test_fit_places_inducing_inputs_at_the_data_once(layer):
    """With another scale of the data the inputs are others; later fits, and those of a network with
    loaded weights, leave them where they are."""
    options = TrainOptions(epochs=1, lr=1e-30, min_lr=0.0, seed=3)

    def placed(scale, weights=None):
        torch.manual_seed(1)
        model = Classifier(small_vit(layer, classes=2), num_data=16)
        if weights is not None:
            model.load_state_dict(weights)
        data = [(scale * torch.linspace(-1, 1, 256).view(16, 1, 4, 4), torch.arange(16) % 2)]
        fit(model, guides.for_model(model), data, options=options, progress=False)
        return model.state_dict()

    first = placed(1.0)
    other = placed(5.0)
    kept = placed(5.0, weights=first)
    names = [name for name in first if "inducing" in name or "anchors" in name]
    assert names
    assert not any(torch.allclose(first[name], other[name], atol=1e-3) for name in names)
    assert all(torch.equal(first[name], kept[name]) for name in names)


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
