"""The common shape of methods and decisions: fit, state dict, files, pickle, and exported
programs."""

import pickle

import pytest
import torch
from small_vit import TRAIN, X, Y, classifier
from torch import nn

from probattn.inference import (
    SVDKL,
    BiasScaling,
    CheckpointError,
    Ensemble,
    IsotonicScaling,
    Laplace,
    MCDropout,
    NotFittedError,
    PosteriorPredictive,
    Predictor,
    RiskThreshold,
    TemperatureScaling,
    VectorScaling,
    conformal,
    export,
    load,
    load_safetensors,
    predictor_network,
    save,
    save_safetensors,
)
from probattn.models import Supervised
from probattn.models.likelihoods import Gaussian

CLASSES = {
    "temperature": TemperatureScaling,
    "bias": BiasScaling,
    "vector": VectorScaling,
    "isotonic": IsotonicScaling,
    "ensemble": lambda base: Ensemble([base, base]),
    "dropout": MCDropout,
    "laplace": lambda base: Laplace(base, num_weight_samples=20),
    "sv-dkl": lambda base: SVDKL(base, epochs=1),
    "aps": lambda base: conformal.APS(base, alpha=0.3),
    "raps": lambda base: conformal.RAPS(base, alpha=0.3, penalty=0.2, free=2),
    "lac": lambda base: conformal.LAC(base, alpha=0.3),
    "risk": lambda base: RiskThreshold(base, target=0.8),
    "stacked": lambda base: conformal.LAC(
        TemperatureScaling(Ensemble([base, base])).fit(TRAIN), alpha=0.3
    ),
}
NUMBERS = {
    "normalised": lambda base: conformal.Normalised(base, alpha=0.3),
    "cqr": lambda base: conformal.CQR(base, alpha=0.3),
}
UNFITTED = ("ensemble", "dropout")


def regression(seed):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    return Supervised(network, Gaussian(), num_data=60), None


def built(name, seed=0, base=PosteriorPredictive):
    """A method on a model of this seed, and the data that it is fitted to."""
    if name in NUMBERS:
        return NUMBERS[name](base(*regression(seed), num_samples=3)), [
            (X, torch.stack([Y, 2.0 * Y], 1))
        ]
    return CLASSES[name](base(*classifier(seed), num_samples=3)), TRAIN


def answers(method, seed=5):
    """All that a method says of new inputs, from the seed."""
    new = X[:7] + 0.1
    torch.manual_seed(seed)
    prediction = method.predict(new)
    point = prediction.mean if prediction.probs is None else prediction.probs
    torch.manual_seed(seed)
    return [point, *(value for _, value in sorted(method(new).items()))]


def assert_same(one, other):
    assert all(map(torch.equal, answers(one), answers(other)))


@pytest.mark.parametrize("name", [*CLASSES, *NUMBERS])
def test_a_fitted_method_survives_files_and_pickling_and_says_the_same(tmp_path, name):
    method, data = built(name)
    assert method.fit(data) is method
    assert isinstance(method, Predictor)
    assert_same(pickle.loads(pickle.dumps(method)), method)
    for write, read in ((save, load), (save_safetensors, load_safetensors)):
        fresh, _ = built(name, seed=1)
        write(tmp_path / "method", method)
        read(tmp_path / "method", fresh)
        assert_same(fresh, method)


@pytest.mark.parametrize("name", [name for name in (*CLASSES, *NUMBERS) if name not in UNFITTED])
def test_an_unfitted_method_says_so_and_stays_so_in_a_file(tmp_path, name):
    method, _ = built(name)
    fresh, _ = built(name, seed=1)
    save(tmp_path / "method", method)
    load(tmp_path / "method", fresh)
    for unfitted in (method, fresh):
        with pytest.raises(NotFittedError):
            unfitted(X)


@pytest.mark.parametrize("other", ["bias", "lac", "risk"])
def test_the_state_of_another_method_is_refused(tmp_path, other):
    """It has more numbers, the first of which is no temperature."""
    method, data = built(other)
    save(tmp_path / "method", method.fit(data))
    fresh, _ = built("temperature")
    with pytest.raises(CheckpointError, match="method"):
        load(tmp_path / "method", fresh)


@pytest.mark.parametrize("name", ["vector", "isotonic", "laplace", "stacked", "raps", "normalised"])
def test_an_exported_program_says_what_the_method_says(tmp_path, name):
    method, data = built(name, base=predictor_network)
    method.fit(data)
    export(tmp_path / "a.pt2", method, X[:2])
    program = torch.export.load(tmp_path / "a.pt2").module()
    new = X[:7] + 0.1
    torch.manual_seed(5)
    exported = program(new)
    torch.manual_seed(5)
    expected = method(new)
    assert exported.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(exported[key], value, rtol=1e-4, atol=1e-5)


def test_fitting_a_method_leaves_the_predictor_inside_as_it_was():
    method, _ = built("temperature")
    outer = TemperatureScaling(method.fit(TRAIN[:1]))
    before = method.temperature
    outer.fit(TRAIN[1:])
    assert method.temperature == before


def test_predictors_stay_in_evaluation_mode():
    method, data = built("sv-dkl")
    method.fit(data)
    scale = method.scale.max_val.clone()
    method.train().predict(100 * X)
    assert torch.equal(method.scale.max_val, scale)


def test_methods_are_fitted_on_labels_of_their_own_kind(tmp_path):
    method, data = built("temperature")
    with pytest.raises(ValueError, match="labels"):
        method.fit([X])
    save(tmp_path / "method", method.fit(data))
    with pytest.raises(CheckpointError, match="architecture"):
        load(tmp_path / "method", built("ensemble")[0])


@pytest.mark.parametrize("name", ["laplace", "sv-dkl"])
def test_a_method_leaves_the_model_as_it_was_and_takes_class_indices(name):
    method, data = built(name)
    model = method.predictor.model
    model.requires_grad_(False)
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    method.fit(data).predict(X)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(
        parameter.grad is None and not parameter.requires_grad for parameter in model.parameters()
    )
    for wrong in (Y.float(), Y + 1):
        with pytest.raises(ValueError, match="class indices"):
            method.fit([(X, wrong)])
