"""Detectors of pytorch-ood on our networks, against their direct use on hand-made features."""

import pickle

import pytest
import torch
from fitted_methods import posterior_predictive
from pytorch_ood.detector import KNN, ODIN, EnergyBased, KLMatching, Mahalanobis, ViM
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import Ensemble, OODDetector
from probattn.inference.methods.features import features
from probattn.inference.metrics import ood
from probattn.models import Classifier, Supervised, ViT
from probattn.models.likelihoods import Categorical


def mlp():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 3))
    x = torch.randn(90, 2)
    return Supervised(network, Categorical(), num_data=90), x, torch.arange(90) % 3


def vim(head):
    return ViM(None, 4, head.weight.detach(), head.bias.detach())


BUILD = {
    "mahalanobis": lambda head: Mahalanobis(None),
    "vim": vim,
    "knn": lambda head: KNN(None, k=5),
    "energy": lambda head: EnergyBased(None),
    "kl-matching": lambda head: KLMatching(None),
}


@pytest.mark.parametrize("name", BUILD)
def test_scores_are_those_of_the_detector_on_features_or_logits_by_hand(name):
    model, x, y = mlp()
    head, new = model.network[-1], 3 * torch.randn(20, 2)
    detector = OODDetector(posterior_predictive(model, None), BUILD[name](head)).fit(
        [(x[:50], y[:50]), (x[50:], y[50:])]
    )
    direct = BUILD[name](head)
    with torch.no_grad():
        if hasattr(direct, "fit_features"):
            expected = direct.fit_features(model.network[:-1](x), y).predict_features(model.network[:-1](new))
        else:
            expected = direct.fit_logits(model.network(x), y).predict_logits(model.network(new))
    found = detector.predict(new)
    assert found.shape == (20,)
    torch.testing.assert_close(found, expected)
    assert set(ood.detection_metrics(detector.predict(x), found)) == set(ood.DISPLAY)
    torch.testing.assert_close(pickle.loads(pickle.dumps(detector)).predict(new), found)


def test_of_a_stochastic_network_it_sees_the_mean_over_samples():
    shape = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "depth": 1, "heads": 2}
    model = Classifier(ViT(**shape, mlp_dim=8, attention=KEPSVGPAttention.partial(rank=2, multiple=2)), num_data=30)
    predictor = posterior_predictive(model, guides.for_model(model), num_samples=4)
    x, y = torch.randn(30, 1, 4, 4), torch.arange(30) % 3
    detector = OODDetector(predictor, EnergyBased(None)).fit([(x, y)])
    torch.manual_seed(2)
    found = detector.predict(x)
    torch.manual_seed(2)
    logits = model.network.head(features(predictor, x).values)
    torch.testing.assert_close(found, -logits.mean(0).logsumexp(-1))
    assert (logits[0] - logits[1]).abs().max() > 1e-4


def test_what_does_not_fit_is_refused():
    model, x, y = mlp()
    predictor = posterior_predictive(model, None)
    with pytest.raises(AttributeError, match="ODIN"):
        OODDetector(predictor, ODIN(model.network)).predict(x)
    with pytest.raises(TypeError, match="PosteriorPredictive"):
        OODDetector(Ensemble([predictor]), EnergyBased(None)).predict(x)
    with pytest.raises(ValueError, match="have none"):
        OODDetector(predictor, Mahalanobis(None)).fit([x])
