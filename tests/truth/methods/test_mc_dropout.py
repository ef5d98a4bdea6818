"""Monte Carlo dropout against closed forms and the deterministic prediction, and the context
manager of its masks."""

import math
from contextlib import nullcontext

import pytest
import torch
from dropout_networks import chain, images, inputs, outputs, vit
from fitted_methods import mc_dropout
from float64 import randn64
from torch import nn

from probattn import KEPSVGPAttention, SGPAttention, SoftmaxAttention
from probattn.inference import predict
from probattn.inference.methods.mc_dropout import active_dropout

KEP = KEPSVGPAttention.partial(rank=2)


def seeded(predict, data, seed=3):
    torch.manual_seed(seed)
    return predict(data)


@pytest.mark.parametrize("attention", [SoftmaxAttention, KEP, SGPAttention.partial(inducing=3)])
def test_rate_zero_is_the_prediction_without_dropout_bit_for_bit(attention):
    model, guide = vit(attention)
    model.train()
    data = [(images(), torch.tensor([0, 1, 2, 0])), (images(3), torch.tensor([2, 0, 1]))]
    result = seeded(mc_dropout(model, guide, num_samples=5, rate=0).predict, data)
    plain = seeded(lambda data: predict(model, guide, data, num_samples=5, vectorize=False), data)
    for name in ("probs", "expected_entropy", "energy"):
        assert torch.equal(getattr(result, name), getattr(plain, name)), name
    predictor = mc_dropout(model, guide, num_samples=5)
    with_masks = seeded(predictor.predict, data).probs
    assert not torch.allclose(with_masks, plain.probs)
    assert torch.equal(with_masks, seeded(predictor.predict, data).probs)
    assert not torch.equal(with_masks, predictor.predict(data).probs)


def test_a_linear_networks_logits_have_the_moments_of_the_closed_form():
    """Dropout of the inputs x_j: mean w·x + b, covariance p/(1−p) Σ_j x_j² w_cj w_dj between
    logits."""
    model, _ = chain(nn.Dropout(0.3), nn.Linear(4, 3))
    x, head, number = randn64(2, 4), model.network[1].requires_grad_(False), 2000
    log = outputs(head)
    mc_dropout(model, None, num_samples=number).predict(x)
    assert len(log) == number
    covariance = 0.3 / 0.7 * torch.einsum("cj,ij,dj->icd", head.weight, x.square(), head.weight)
    centred = torch.stack(log) - head(x)
    assert (centred.mean(0).abs() < 5 * (covariance.diagonal(dim1=1, dim2=2) / number).sqrt()).all()
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    assert ((products.mean(0) - covariance).abs() < 5 * products.std(0) / number**0.5).all()


def test_attention_probabilities_are_dropped_too():
    """Nothing else is random here; test_softmax_attention.py has the law."""
    model, _ = chain(SoftmaxAttention(4, 2, dropout=0.5), nn.Flatten(-2), nn.Linear(12, 3))
    prediction = mc_dropout(model, None, num_samples=20).predict(randn64(2, 3, 4))
    assert (prediction.mutual_information > 0).all()


def test_a_rate_replaces_those_of_the_layers_and_is_put_back():
    model, _ = chain(
        SoftmaxAttention(8, 2), nn.Flatten(-2), nn.Dropout(0.0), nn.Dropout(0.9), nn.Linear(24, 3)
    )
    attention, _, first, second, _ = model.network
    with active_dropout(model, rate=0.25):
        assert (attention.dropout, first.p, second.p) == (0.25, 0.25, 0.25)
        log = inputs(second)
        model.eval()
        model(randn64(400, 3, 8))
    assert (attention.dropout, first.p, second.p) == (0.0, 0.0, 0.9)
    assert (
        abs((log[0] == 0).double().mean().item() - 0.25) < 5 * (0.25 * 0.75 / log[0].numel()) ** 0.5
    )


@pytest.mark.parametrize("broken", [False, True])
def test_hooks_modes_and_statistics_are_as_before_also_when_the_model_raises(broken):
    layers = (
        SoftmaxAttention(4, 2, dropout=0.5),
        nn.Dropout(0.5),
        nn.BatchNorm1d(3),
        nn.Flatten(-2),
        nn.Linear(12, 3),
    )
    model, guide = chain(*layers)
    if broken:
        layers[3].register_forward_hook(lambda *_: 1 / 0)
    model.train()
    layers[3].eval()
    modes = [module.training for module in model.modules()]
    weights = [value.clone() for value in model.buffers()]
    predictor, x = mc_dropout(model, guide, num_samples=2), randn64(2, 3, 4)
    with pytest.raises(ZeroDivisionError) if broken else nullcontext():
        predictor.predict(x)
    assert [module.training for module in model.modules()] == modes
    assert all(map(torch.equal, model.buffers(), weights))  # batch norm stays in evaluation mode
    model.eval()
    if not broken:
        assert torch.equal(model.network(x), model.network(x))


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_a_rate_lies_between_0_and_1(rate):
    model, guide = vit()
    with pytest.raises(ValueError, match="rate"):
        mc_dropout(model, guide, rate=rate).predict(images())
    model.network.blocks[1].mlp[
        2
    ].p = math.nan  # which would neither drop nor be an error, since NaN > 0 is False
    with pytest.raises(ValueError, match="rate"):
        mc_dropout(model, guide).predict(images())


def test_a_model_without_dropout_is_an_error_unless_a_rate_is_given():
    model, guide = vit(dropout=0.0)
    with pytest.raises(ValueError, match="rate="):
        mc_dropout(model, guide)
    assert (mc_dropout(model, guide, rate=0.2).predict(images()).mutual_information > 0).all()
    with pytest.raises(ValueError, match="dropout"):
        mc_dropout(*chain(nn.Linear(4, 3)), rate=0.5)
