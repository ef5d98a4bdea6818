"""Stochastic variational deep kernel learning (SV-DKL) on the features of a pretrained network, by GPyTorch."""

import math
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from probattn.inference.methods.features import FeaturePredictor, Features, last_linear, training_labels
from probattn.inference.prediction.predictor import SampledPredictor
from probattn.inference.prediction.result import Prediction, entropy

_CHUNK_SIZE = 256


class SVDKL(FeaturePredictor):
    """SV-DKL: a GP on each feature of a pretrained network, mixed by a softmax (Wilson et al., NeurIPS 2016).

    The first of the paper's two steps is the training of the network. The second maximises the ELBO of the GP layer
    over q(u) on a grid of inducing points, the kernels and the mixture weights, with Adam. Unlike in the paper, it does
    not train the network further: its features are computed once, and the step takes seconds. For stochastic networks,
    each step uses one of the S samples per example, at random. Random numbers are from PyTorch's global generator.

    Probabilities are averages of the softmax over independent samples of the GPs' marginals.

    Args:
        predictor: see :class:`~probattn.inference.methods.features.FeaturePredictor`; S is its number of samples.
        num_gp_samples: samples of the GPs per example in predictions, divided among the S samples of its features.
        epochs, lr, batch_size: training of the GP layer.
        grid_size: inducing points of each GP, at least 4.

    Attributes:
        scale: maps features into the bounds of the grid; those outside the training data's range are clamped.
        gps: the GPs.
        likelihood: the softmax likelihood of their mixture.
    """

    def __init__(
        self,
        predictor: SampledPredictor,
        *,
        num_gp_samples: int = 100,
        epochs: int = 10,
        lr: float = 0.03,
        batch_size: int = 128,
        grid_size: int = 32,
    ) -> None:
        super().__init__(predictor)
        self.num_gp_samples, self.grid_size = num_gp_samples, grid_size
        self.epochs, self.lr, self.batch_size = epochs, lr, batch_size
        head = last_linear(predictor)
        self._build(head, head.weight.new_tensor([[-1.0], [1.0]]).expand(1, 2, head.in_features))

    def fit_features(self, features: Features) -> Self:
        """Train the GP layer on features with labels."""
        from gpytorch.mlls import VariationalELBO

        labels = training_labels(features)
        inputs = self._build(features.head, features.values)
        draws, number, _ = inputs.shape
        elbo = VariationalELBO(self.likelihood, self.gps, num_data=number).train()
        optimizer = torch.optim.Adam(elbo.parameters(), lr=self.lr)
        for _ in range(self.epochs):
            for batch in torch.randperm(number).split(self.batch_size):
                optimizer.zero_grad()
                z = inputs[torch.randint(draws, batch.shape), batch]
                elbo(self.gps(z), labels[batch]).neg().backward()
                optimizer.step()
        elbo.eval()
        self.fitted = True
        return self

    def _build(self, head: nn.Linear, values: Tensor) -> Tensor:
        """Build the GP layer at its initial values; return the features ``(S, n, D)`` in the bounds of the grid."""
        from gpytorch.utils.grid import ScaleToBounds  # here, since the import of GPyTorch takes a second

        from probattn.inference.methods.sv_dkl_gps import BOUNDS, FeatureGPs, MixedSoftmax

        self.scale = ScaleToBounds(*BOUNDS)
        inputs = self.scale(values)
        self.scale.eval()
        self.gps = FeatureGPs(values.shape[-1], grid_size=self.grid_size).to(inputs).eval()
        self.likelihood = MixedSoftmax(head, self.scale).to(inputs).eval()
        return inputs

    @torch.no_grad()
    def predict_features(self, features: Features) -> Prediction:
        """Predict from features, with new samples of the GPs."""
        num_samples, number, _ = features.values.shape
        num_gp_samples = math.ceil(self.num_gp_samples / num_samples)
        averages = []
        for chunk in features.values.flatten(0, 1).split(_CHUNK_SIZE):
            marginals = self.gps(self.scale(chunk))
            f = torch.distributions.Normal(marginals.mean, marginals.stddev).sample((num_gp_samples,))
            logits = self.likelihood.mixing(f)
            probs = logits.softmax(-1)
            averages.append((probs.mean(0), entropy(probs).mean(0), -logits.logsumexp(-1).mean(0)))
        means = (torch.cat(parts).unflatten(0, (num_samples, number)).mean(0) for parts in zip(*averages, strict=True))
        probs, expected_entropy, energy = (mean.to(features.prediction.probs) for mean in means)
        return replace(features.prediction, probs=probs, expected_entropy=expected_entropy, energy=energy)
