"""Stochastic variational deep kernel learning (SV-DKL) on the features of a pretrained network, by
GPyTorch."""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from probattn.inference.methods.features import (
    FeaturePredictor,
    Features,
    averaged,
    last_linear,
)
from probattn.inference.prediction.predictor import SampledPredictor
from probattn.inference.prediction.result import Prediction

BATCH_SIZE = 128
_CHUNK_SIZE = 256


class SVDKL(FeaturePredictor):
    """SV-DKL: a GP on each feature of a pretrained network, mixed by a softmax (Wilson et al.,
    NeurIPS 2016).

    The first of the paper's two steps is the training of the network. The second maximises the ELBO
    of the GP layer over q(u) on a grid of inducing points, the kernels and the mixture weights,
    with Adam. Unlike in the paper, it does not train the network further: its features are computed
    once, and the step takes seconds. For stochastic networks, each step uses one of the S samples
    per example, at random. Random numbers are from PyTorch's global generator.

    Probabilities are averages of the softmax over independent samples of the GPs' marginals.

    Args:
        predictor: see :class:`~probattn.inference.methods.features.FeaturePredictor`; S is its
            number of samples.
        num_gp_samples: samples of the GPs per example in predictions, divided among the S samples
            of its features.
        epochs, lr: training of the GP layer, in batches of :data:`BATCH_SIZE`.

    Attributes:
        scale: maps features into the bounds of the grid; those outside the training data's range
            are clamped.
        gps: the GPs, in float64.
        mixing: linear mixture of the GPs, whose softmax is the likelihood.
    """

    not_exported = "GPyTorch branches on values; put Laplace in its place"

    def __init__(
        self,
        predictor: SampledPredictor,
        *,
        num_gp_samples: int = 100,
        epochs: int = 10,
        lr: float = 0.03,
    ) -> None:
        super().__init__(predictor)
        self.num_gp_samples = num_gp_samples
        self.epochs = epochs
        self.lr = lr
        head = last_linear(predictor)
        self._build(head, head.weight.new_tensor([[-1.0], [1.0]]).expand(1, 2, head.in_features))

    def fit_features(self, features: Features) -> Self:
        """Train the GP layer on features with labels."""
        labels = features.labels
        inputs = self._build(features.head, features.values)
        draws, number, _ = inputs.shape
        trained = nn.ModuleList([self.gps, self.mixing])
        optimizer = torch.optim.Adam(trained.parameters(), lr=self.lr)
        self.gps.train()
        for _ in range(self.epochs):
            for batch in torch.randperm(number).split(BATCH_SIZE):
                optimizer.zero_grad()
                z = inputs[torch.randint(draws, batch.shape), batch]
                self.elbo(z, labels[batch], num_data=number).neg().backward()
                optimizer.step()
        self.gps.eval()
        self.fitted = True
        return self

    def elbo(self, z: Tensor, labels: Tensor, *, num_data: int, num_samples: int = 10) -> Tensor:
        """Estimate the ELBO per training example from a batch of features ``(n, D)`` in the bounds
        of the grid."""
        logits = self.mixing(self.gps.marginals(z).rsample((num_samples,)))
        likelihood = torch.distributions.Categorical(logits=logits, validate_args=False)
        kl = self.gps.variational_strategy.kl_divergence().sum()
        return likelihood.log_prob(labels).mean() - kl / num_data

    @torch.no_grad()
    def _build(self, head: Any, values: Tensor) -> Tensor:
        """Build the GP layer at its initial values; return the features ``(S, n, D)`` in the bounds
        of the grid.

        The mixture is initialised as the pretrained last layer: GPs at the identity yield the
        network's logits.
        """
        # Here, since the import of GPyTorch takes a second.
        from gpytorch.utils.grid import ScaleToBounds

        from probattn.inference.methods.sv_dkl_gps import BOUNDS, FeatureGPs

        self.scale = ScaleToBounds(*BOUNDS)
        inputs = self.scale(values)
        self.scale.eval()
        self.gps = FeatureGPs(values.shape[-1]).to(inputs.device).eval()
        self.mixing = nn.utils.skip_init(nn.Linear, head.in_features, head.out_features).to(inputs)
        ends = torch.stack([self.scale.min_val, self.scale.max_val])
        # Of the grid: a feature is the centre of the ends + unit · z.
        unit = ends.diff() / self.scale(ends).diff()
        self.mixing.weight.copy_(head.weight * unit)
        self.mixing.bias.copy_(head(ends.mean().expand(head.in_features)))
        return inputs

    @torch.no_grad()
    def predict_features(self, features: Features) -> Prediction:
        """Predict from features, with new samples of the GPs."""
        chunks = features.values.flatten(0, 1).split(_CHUNK_SIZE)
        marginals = [self.gps.marginals(self.scale(chunk)) for chunk in chunks]
        mean = torch.cat([f.mean for f in marginals]).view_as(features.values)
        stddev = torch.cat([f.stddev for f in marginals]).view_as(features.values)
        samples = range(math.ceil(self.num_gp_samples / len(features.values)))
        logits = (self.mixing(torch.normal(mean, stddev)) for _ in samples)
        return averaged(features.prediction, logits)
