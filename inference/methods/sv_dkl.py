"""Stochastic variational deep kernel learning (SV-DKL) on the features of a pretrained network."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from probattn.inference.methods.features import FeaturePredictor, Features, features
from probattn.inference.prediction.class_labels import class_labels
from probattn.inference.prediction.result import Prediction, entropy

if TYPE_CHECKING:
    from gpytorch.utils.grid import ScaleToBounds

    from probattn.inference.methods.sv_dkl_gps import FeatureGPs, MixedSoftmax

_CHUNK_SIZE = 256


@dataclass(frozen=True, eq=False)
class SVDKLPredictor(FeaturePredictor):
    """Predictor from a network whose last layer is replaced by Gaussian processes on its features.

    Probabilities are averages of the softmax over independent samples of the GPs' marginals.

    Args:
        model, guide, num_samples: see :class:`~probattn.inference.methods.features.FeaturePredictor`.
        num_gp_samples: samples of the GPs per example, divided among the ``num_samples`` samples of its features.
        scale: maps features into the bounds of the grid; those outside the training data's range are clamped.
        gps: the trained GPs.
        likelihood: the trained softmax likelihood of their mixture.
    """

    num_gp_samples: int
    scale: "ScaleToBounds"
    gps: "FeatureGPs"
    likelihood: "MixedSoftmax"

    @torch.no_grad()
    def predict_features(self, features: Features) -> Prediction:
        """Predict from features, with new samples of the GPs."""
        num_samples, number, _ = features.values.shape
        num_gp_samples = math.ceil(self.num_gp_samples / num_samples)
        chunks = features.values.flatten(0, 1).split(_CHUNK_SIZE)
        averages = zip(*(self._average_samples(chunk, num_gp_samples) for chunk in chunks), strict=True)
        prediction = features.prediction
        probs, expected_entropy, energy = (
            torch.cat(each).unflatten(0, (num_samples, number)).mean(0).to(prediction.probs) for each in averages
        )
        return replace(prediction, probs=probs, expected_entropy=expected_entropy, energy=energy)

    def _average_samples(self, values: Tensor, num_gp_samples: int) -> tuple[Tensor, Tensor, Tensor]:
        """Average probabilities, entropies and energies of features ``(n, D)`` over samples of the GPs."""
        marginals = self.gps(self.scale(values))
        f = torch.distributions.Normal(marginals.mean, marginals.stddev).sample((num_gp_samples,))
        logits = self.likelihood.mixing(f)
        probs = logits.softmax(-1)
        return probs.mean(0), entropy(probs).mean(0), -logits.logsumexp(-1).mean(0)


def sv_dkl(
    model: nn.Module,
    guide: nn.Module | None,
    train: Iterable,
    *,
    num_samples: int = 10,
    num_gp_samples: int = 100,
    epochs: int = 10,
    lr: float = 0.03,
    batch_size: int = 128,
    grid_size: int = 32,
) -> SVDKLPredictor:
    """Train SV-DKL: a GP on each feature of a pretrained network, mixed by a softmax (Wilson et al., NeurIPS 2016).

    The first of the paper's two steps is the training of the network. The second maximises the ELBO of the GP layer
    over q(u) on a grid of inducing points, the kernels and the mixture weights, with Adam. Unlike in the paper, it does
    not train the network further: its features are computed once, and the step takes seconds. Random numbers are from
    PyTorch's global generator.

    Args:
        model: a classifier that ends in an ``nn.Linear``; it is not changed.
        guide: its guide.
        train: training data without augmentation: batches ``(x, y)`` or ``(x, y, mask)``. For stochastic networks, each
            step uses one of ``num_samples`` posterior samples per example, at random.
        num_samples: posterior samples of the network, here and in predictions.
        num_gp_samples: samples of the GPs per example in predictions, divided among ``num_samples``.
        epochs, lr, batch_size: training of the GP layer.
        grid_size: inducing points of each GP, at least 8.

    Raises:
        ValueError: no labels, or labels that are no class indices; a network that does not end in an ``nn.Linear``; a
            grid that is too small.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".torch.jit", FutureWarning)  # from an import of GPyTorch
        from gpytorch.mlls import VariationalELBO
        from gpytorch.utils.grid import ScaleToBounds

        from probattn.inference.methods.sv_dkl_gps import BOUNDS, FeatureGPs, MixedSoftmax

    if grid_size < 8:
        raise ValueError(f"grid_size must be at least 8 for cubic interpolation, got {grid_size}")
    found = features(model, guide, train, num_samples=num_samples)
    if found.labels is None:
        raise ValueError("sv_dkl needs training batches (x, y): there are no labels")
    labels = class_labels(found.labels, examples=found.values.shape[1], classes=found.head.out_features)
    labels = labels.to(found.values.device)
    scale = ScaleToBounds(*BOUNDS)
    inputs = scale(found.values)
    scale.eval()
    draws, number, num_features = inputs.shape
    gps = FeatureGPs(num_features, grid_size=grid_size).to(inputs)
    likelihood = MixedSoftmax(found.head, scale).to(inputs)
    elbo = VariationalELBO(likelihood, gps, num_data=number)
    optimizer = torch.optim.Adam(elbo.parameters(), lr=lr)
    elbo.train()
    for _ in range(epochs):
        for batch in torch.randperm(number).split(batch_size):
            optimizer.zero_grad()
            z = inputs[torch.randint(draws, batch.shape), batch]
            loss = -elbo(gps(z), labels[batch])
            loss.backward()
            optimizer.step()
    elbo.eval()
    return SVDKLPredictor(model, guide, num_samples, num_gp_samples, scale, gps, likelihood)
