"""Stochastic variational deep kernel learning on a pretrained network (SV-DKL)."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from probattn.inference.methods.features import Features, features
from probattn.inference.prediction.result import Prediction

if TYPE_CHECKING:
    from gpytorch.utils.grid import ScaleToBounds

    from probattn.inference.methods.sv_dkl_gps import FeatureGPs, MixedSoftmax

_ROWS = 256


@dataclass(frozen=True, eq=False)
class SVDKLPredictor:
    """A network whose last layer is replaced by GPs on its features, as a callable ``data -> Prediction``.

    Probabilities are averages of the softmax over independent draws of the GPs' marginals.

    Args:
        model, guide, num_samples: as for ``predict``; the weights of the model are not to change any more.
        num_gp_samples: draws of the GPs per example, divided among the draws of its features.
        scale: what maps features into the bounds of the grid; those outside the training data's range are clamped.
        gps: the trained GPs.
        likelihood: the trained softmax of their mixture.
    """

    model: nn.Module
    guide: nn.Module | None
    num_samples: int
    num_gp_samples: int
    scale: "ScaleToBounds"
    gps: "FeatureGPs"
    likelihood: "MixedSoftmax"

    def __call__(self, data: Tensor | Iterable) -> Prediction:
        """The posterior predictive of inputs or batches, from new draws of the latent sites and of the GPs."""
        return self.of(features(self.model, self.guide, data, num_samples=self.num_samples))

    @torch.no_grad()
    def of(self, found: Features) -> Prediction:
        """The same of features that are known already, from new draws of the GPs."""
        draws, number, _ = found.values.shape
        samples = math.ceil(self.num_gp_samples / draws)
        parts = [self._averages(rows, samples) for rows in found.values.flatten(0, 1).split(_ROWS)]
        plain = found.prediction
        probs, expected_entropy, energy = (
            torch.cat(part).unflatten(0, (draws, number)).mean(0).to(plain.probs) for part in zip(*parts, strict=True)
        )
        return replace(plain, probs=probs, expected_entropy=expected_entropy, energy=energy)

    def _averages(self, values: Tensor, samples: int) -> tuple[Tensor, Tensor, Tensor]:
        """Mean probabilities, entropies and energies of features ``(n, D)``."""
        marginals = self.gps(self.scale(values))
        f = torch.distributions.Normal(marginals.mean, marginals.stddev).sample((samples,))
        logits = self.likelihood.mixing(f)
        probs = logits.softmax(-1)
        return probs.mean(0), torch.special.entr(probs).sum(-1).mean(0), -logits.logsumexp(-1).mean(0)


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
    """SV-DKL: a GP on each feature of a pretrained network, mixed by a softmax (Wilson et al., NeurIPS 2016).

    Of the two steps of the paper, the first is the network's training. The second maximises the evidence lower bound of
    the GP layer: q(u) on a grid of inducing points, the kernels and the mixture. In the paper it goes on training the
    network, too; here the network stays frozen, as in all methods that come after training: it remains what it was,
    its features are computed once, and the step takes seconds. Adam, from PyTorch's global generator.

    Args:
        model: a classifier that ends in an ``nn.Linear``; it is not changed.
        guide: its guide.
        train: the training data, not augmented: batches ``(x, y)`` or ``(x, y, mask)``. Of a stochastic network, every
            step sees each example with one of ``num_samples`` posterior draws, at random.
        num_samples: posterior draws of the network, here and in predictions.
        num_gp_samples: draws of the GPs per example in predictions, divided among those.
        epochs, lr, batch_size: of the second step.
        grid_size: inducing points of each GP, at least 8.

    Raises:
        ValueError: no labels; a network that does not end in an ``nn.Linear``; a grid that is too small.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".torch.jit", FutureWarning)  # what GPyTorch is built on compiles so
        from gpytorch.mlls import VariationalELBO
        from gpytorch.utils.grid import ScaleToBounds

        from probattn.inference.methods.sv_dkl_gps import BOUNDS, FeatureGPs, MixedSoftmax

    if grid_size < 8:
        raise ValueError(f"grid_size must be at least 8 for cubic interpolation, got {grid_size}")
    found = features(model, guide, train, num_samples=num_samples)
    if found.labels is None:
        raise ValueError("sv_dkl takes training batches (x, y): there are no labels")
    scale = ScaleToBounds(*BOUNDS)
    inputs, labels = scale(found.values), found.labels.to(found.values.device)
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
