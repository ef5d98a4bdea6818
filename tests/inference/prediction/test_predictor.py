"""The plain predictor against predict, and the energies of logits through a whole prediction."""

import math

import pytest
import torch
from fitted_methods import posterior_predictive
from torch import nn

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.inference import Prediction, predict
from probattn.inference.prediction.predictor import class_probs
from probattn.models import Supervised
from probattn.models.likelihoods import Bernoulli, Categorical, TokenCategorical

F64 = torch.float64


class Network(nn.Module):
    def __init__(self, attention=KEPSVGPAttention.partial(rank=2)) -> None:  # noqa: B008
        super().__init__()
        self.attention = attention(4, 2)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.attention(x).mean(-2)) + 5.0


def build(likelihood=None, **options):
    model = Supervised(Network(**options), likelihood or Categorical(), num_data=9).double()
    return model, guides.for_model(model)


def test_it_is_predict():
    model, guide = build()
    x, y = torch.randn(6, 5, 4, dtype=F64), torch.randint(3, (6,))
    torch.manual_seed(1)
    ours = posterior_predictive(model, guide, num_samples=4).predict([(x, y)])
    torch.manual_seed(1)
    theirs = predict(model, guide, [(x, y)], num_samples=4)
    for field in ("probs", "expected_entropy", "energy", "labels"):
        assert torch.equal(getattr(ours, field), getattr(theirs, field)), field


def test_each_call_draws_anew_and_a_seed_repeats_it():
    model, guide = build()
    predictor, x = posterior_predictive(model, guide, num_samples=3), torch.randn(6, 5, 4, dtype=F64)
    torch.manual_seed(1)
    first, second = predictor.predict(x), predictor.predict(x)
    torch.manual_seed(1)
    assert torch.equal(predictor.predict(x).probs, first.probs)
    assert not torch.equal(second.probs, first.probs)


def test_of_softmax_attention_it_is_the_networks_softmax():
    model, guide = build(attention=SoftmaxAttention)
    x = torch.randn(6, 5, 4, dtype=F64)
    result = posterior_predictive(model, guide).predict(x)
    torch.testing.assert_close(result.probs, model.network(x).softmax(-1).detach())


def test_energy_is_the_mean_over_draws_of_the_outputs_free_energy():
    """The likelihood must not have normalised the logits before."""
    model, guide = build()
    outputs = []
    model.network.register_forward_hook(lambda module, args, output: outputs.append(output.detach()))
    result = posterior_predictive(model, guide, num_samples=7).predict(torch.randn(6, 5, 4, dtype=F64))
    (logits,) = outputs
    assert logits.shape == (7, 6, 3)
    for i in range(6):
        each = [-math.log(sum(math.exp(logit) for logit in logits[s, i].tolist())) for s in range(7)]
        assert math.isclose(result.energy[i], sum(each) / 7, rel_tol=1e-9)
    assert (result.energy < -4).all()


def test_energy_of_a_deterministic_network_does_not_depend_on_the_number_of_draws():
    model, guide = build(attention=SoftmaxAttention)
    x = torch.randn(6, 5, 4, dtype=F64)
    expected = -model.network(x).logsumexp(-1).detach()
    for number in (1, 5):
        torch.testing.assert_close(posterior_predictive(model, guide, num_samples=number).predict(x).energy, expected)


def test_log_probs_are_finite():
    result = Prediction(probs=torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    expected = [[0.0, math.log(torch.finfo(torch.float32).tiny)], [math.log(0.25), math.log(0.75)]]
    torch.testing.assert_close(result.log_probs, torch.tensor(expected))
    assert math.isclose(result.log_prob(torch.tensor([1, 1]))[0].item(), expected[0][1], rel_tol=1e-6)


def test_no_expected_entropy_no_mutual_information():
    assert Prediction(probs=torch.tensor([[0.5, 0.5]])).mutual_information is None


def test_class_probs_are_those_of_one_class_per_example():
    probs = torch.tensor([[0.5, 0.5]])
    assert class_probs(Prediction(probs=probs)) is probs
    x = torch.randn(2, 5, 4, dtype=F64)
    model, guide = build(Bernoulli())
    with pytest.raises(ValueError, match="probabilities .*, got None"):
        class_probs(posterior_predictive(model, guide).predict(x))
    model, _ = build(TokenCategorical())
    model.network.forward = lambda x: model.network.head(x)
    with pytest.raises(ValueError, match=r"got \(2, 5, 3\)"):
        class_probs(posterior_predictive(model, None).predict(x))
    with pytest.raises(ValueError, match=r"got \(2, 1\)"):
        class_probs(Prediction(probs=torch.ones(2, 1)))
