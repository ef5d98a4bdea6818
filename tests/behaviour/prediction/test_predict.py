"""Predictions of loaders: draws that batches share, chunks, modes, memory, and users' own sites."""

import math
import weakref

import pyro
import pyro.distributions as dist
import pytest
import torch
from float64 import randn64
from known_predictives import build
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, SGPAttention
from probattn.inference import PosteriorPredictive, materialise, predict
from probattn.inference.prediction import replays as prediction
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical


@pytest.mark.parametrize("auto", [None, AutoNormal, AutoMultivariateNormal])
def test_all_batches_and_chunks_of_a_loader_share_the_draws(auto, monkeypatch):
    model, guide = build()
    x, y = randn64(8, 5, 3), torch.randint(3, (8,))
    if auto:
        guide = auto(model)
        materialise(guide, (x, y))
        guide.double()
    whole = predict(model, guide, x, num_samples=3, keep_draws=True, seed=5)
    loader = list(DataLoader(TensorDataset(x, y), batch_size=3))
    for chunk in (1000, 6, 1):
        monkeypatch.setattr(prediction, "CPU_CHUNK_SIZE", chunk)
        parts = predict(model, guide, loader, num_samples=3, keep_draws=True, seed=5)
        for field in ("probs", "draws", "expected_entropy"):
            assert_close(getattr(parts, field), getattr(whole, field), msg=field)
        assert torch.equal(parts.labels, y)
    assert whole.labels is None


def test_a_predictor_is_predict_which_draws_anew_in_each_call():
    model, guide = build()
    predictor, x = PosteriorPredictive(model, guide, num_samples=3), randn64(6, 5, 3)
    torch.manual_seed(1)
    first, second = predictor.predict(x), predictor.predict(x)
    torch.manual_seed(1)
    assert torch.equal(predict(model, guide, x, num_samples=3).probs, first.probs)
    assert not torch.equal(second.probs, first.probs)


def test_layers_below_the_first_stochastic_one_run_once_for_all_samples():
    model, guide = build()
    shapes = {}
    for name in ("embed", "head"):
        layer = model.network.get_submodule(name)
        layer.register_forward_pre_hook(
            lambda layer, inputs, name=name: shapes.update({name: inputs[0].shape})
        )
    predict(model, guide, randn64(2, 5, 3), num_samples=7)
    assert shapes == {"embed": (2, 5, 3), "head": (7, 2, 4)}


def test_train_and_eval_modes_come_back_module_by_module():
    model, guide = build()
    model.train()
    model.network.head.eval()
    guide.eval()
    modes = [(module, module.training) for part in (model, guide) for module in part.modules()]
    x, dropout_modes = randn64(2, 5, 3), []
    model.network.dropout.register_forward_hook(
        lambda module, *_: dropout_modes.append(module.training)
    )
    assert not predict(model, guide, x, keep_draws=True).draws.requires_grad
    assert all(module.training == mode for module, mode in modes)
    for broken in ([(x,), (x[..., :2],)], [x, x * math.nan], []):
        with pytest.raises((RuntimeError, ValueError)):
            predict(model, guide, broken)
        assert all(module.training == mode for module, mode in modes)
    assert set(dropout_modes) == {False}
    assert torch.is_grad_enabled()


def test_nothing_of_earlier_batches_is_kept_but_results():
    model, guide = build()
    alive = []

    def batches():
        inputs = []
        for _ in range(4):
            x = randn64(2, 5, 3)
            inputs.append(weakref.ref(x))
            yield x, torch.zeros(2, dtype=torch.long)
            del x
            alive.append(sum(ref() is not None for ref in inputs))

    predict(model, guide, batches(), num_samples=2)
    assert max(alive) <= 1


def test_an_auto_guide_is_an_error_until_it_is_materialised_and_where_it_holds_local_sites():
    model, _ = build()
    x, y = torch.randn(4, 5, 3), torch.randint(3, (4,))
    guide = AutoNormal(model.float())
    for data in (x, [(x, y)]):
        with pytest.raises(ValueError, match="materialise"):
            predict(model, guide, data)
    assert list(guide.parameters()) == []
    materialise(guide, (x, y))
    assert predict(model, guide, x, num_samples=3).probs.shape == (4, 3)
    model, _ = build(attention=SGPAttention.partial(inducing=2))
    guide = AutoNormal(model.float())
    with torch.no_grad():
        guide(x, y)
    with pytest.raises(ValueError, match="local_posteriors"):
        predict(model, guide, x)


class OwnSite(nn.Module):
    """A network with a statement of its own, whose value has no dimension for samples of a
    batch."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = KEPSVGPAttention(8, 2, rank=2), nn.Linear(8, 3)

    def forward(self, x):
        shift = pyro.sample("shift", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        return self.head(self.attention(x).mean(-2)) + shift


def test_samples_of_a_users_own_site_are_not_taken_for_examples():
    model, x = Supervised(OwnSite(), Categorical(), num_data=10), torch.randn(4, 5, 8)
    with pytest.raises(ValueError, match="vectorize=False"):
        predict(model, None, x, num_samples=4)
    assert predict(model, None, x, num_samples=4, vectorize=False, keep_draws=True).draws.shape == (
        4,
        4,
        3,
    )
    samples = {"shift": torch.randn(4, 3), "network.attention.u": torch.randn(4, 2, 2, 2)}
    result = predict(model, samples, x, keep_draws=True, num_samples=4)
    values = {name: value[2] for name, value in samples.items()}
    with torch.no_grad():
        expected = pyro.condition(model.eval().likelihood_of, data=values)(x).probs
    assert_close(result.draws[2], expected)
