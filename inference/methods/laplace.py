"""Last-layer Laplace approximation with Kronecker factors (KFLLLA)."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from probattn.inference.methods.features import Features, features
from probattn.inference.prediction import Prediction

if TYPE_CHECKING:
    from laplace import KronLaplace

_BATCH = 1024


@dataclass(frozen=True, eq=False)
class LaplacePredictor:
    """A network whose last layer's weights are Gaussian, as a callable ``data -> Prediction``.

    The logits of one draw of the features φ are Gaussian, with the network's mean m = W φ + b and the variances v that
    the weights give them; their expected softmax is approximated by softmax(m / √(1 + π v / 8)) (the multi-class
    probit of laplace-torch), and averaged over draws.

    Args:
        model, guide, num_draws: as for ``predict``; the weights of the model are not to change any more.
        prior_precision: of the weights and the bias, which the posterior was computed with.
        log_marginal_likelihood: Laplace's approximation, of the training data, in nats; NaN at infinite precision.
        basis: eigenvectors of the features' second moments ``(D, D)``, in columns.
        variances: of each logit per squared feature in that basis ``(classes, D)``.
        bias_variances: of each logit ``(classes,)``.
    """

    model: nn.Module
    guide: nn.Module | None
    num_draws: int
    prior_precision: float
    log_marginal_likelihood: float
    basis: Tensor
    variances: Tensor
    bias_variances: Tensor

    def __call__(self, data: Tensor | Iterable) -> Prediction:
        """The posterior predictive of inputs or batches, from new draws of the latent sites."""
        return self.of(features(self.model, self.guide, data, num_draws=self.num_draws))

    @torch.no_grad()
    def of(self, found: Features) -> Prediction:
        """The same of features that are known already."""
        probs = (found.head(found.values) * (1 + math.pi / 8 * self.logit_variances(found.values)).rsqrt()).softmax(-1)
        entropy = torch.special.entr(probs).sum(-1)
        plain = found.prediction
        mean, expected_entropy = probs.mean(0).to(plain.probs), entropy.mean(0).to(plain.probs)
        return replace(plain, probs=mean, expected_entropy=expected_entropy)

    def logit_variances(self, values: Tensor) -> Tensor:
        """Variances of the logits ``(..., classes)`` of features ``(..., D)``."""
        return (values @ self.basis).square() @ self.variances.mT + self.bias_variances


def laplace(
    model: nn.Module,
    guide: nn.Module | None,
    train: Iterable,
    *,
    num_draws: int = 10,
    prior_precision: float | None = None,
) -> LaplacePredictor:
    """KFLLLA: a Gaussian posterior of the last layer alone, around its trained weights.

    Its precision is the Kronecker-factored generalised Gauss–Newton matrix of the log likelihood plus that of a
    Gaussian prior, for the weights and the bias separately (Kristiadi et al., ICML 2020; Daxberger et al., NeurIPS
    2021), from laplace-torch in float64. Of a stochastic network, example i is seen with posterior draw i mod
    ``num_draws``.

    Args:
        model: a classifier that ends in an ``nn.Linear``; it is not changed.
        guide: its guide.
        train: the training data, not augmented: batches ``(x, y)`` or ``(x, y, mask)``.
        num_draws: posterior draws, here and in predictions.
        prior_precision: of the weights (1 / variance); None maximises the marginal likelihood. At ``math.inf`` the
            predictions are those of ``predict``.

    Returns:
        A predictor. Its energies are those of the network.

    Raises:
        ImportError: laplace-torch is not installed.
        ValueError: no labels; a precision that is not positive; a network that does not end in an ``nn.Linear``.
    """
    if prior_precision is not None and not prior_precision > 0:
        raise ValueError(f"prior_precision must be positive, or None to choose it, got {prior_precision}")
    library = _library()
    found = features(model, guide, train, num_draws=num_draws)
    if found.labels is None:
        raise ValueError("laplace takes training batches (x, y): there are no labels")
    posterior = _posterior(library, found, prior_precision)
    delta = posterior.prior_precision
    (out_vectors, basis), *bias = posterior.H.eigenvectors
    (out_values, in_values), *bias_values = posterior.H.eigenvalues
    variances = out_vectors.square() @ (1 / (torch.outer(out_values, in_values) + delta))
    bias_variances = bias[0][0].square() @ (1 / (bias_values[0][0] + delta)) if bias else torch.zeros(len(variances))
    return LaplacePredictor(
        model=model,
        guide=guide,
        num_draws=num_draws,
        prior_precision=float(delta),
        log_marginal_likelihood=float(posterior.log_marginal_likelihood()),
        basis=basis.to(found.values),
        variances=variances.to(found.values),
        bias_variances=bias_variances.to(found.values),
    )


def _library() -> "type[KronLaplace]":
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".torch.jit", FutureWarning)  # what laplace-torch imports compiles so
            from laplace import KronLaplace
    except ImportError as error:
        raise ImportError("the Laplace approximation needs laplace-torch: pip install probattn[laplace]") from error
    return KronLaplace


def _posterior(library: "type[KronLaplace]", found: Features, prior_precision: float | None) -> "KronLaplace":
    """laplace-torch's posterior of a copy of the head, from one draw of the features per example."""
    draws, number, _ = found.values.shape
    examples = torch.arange(number)
    inputs = found.values[examples % draws, examples].double()
    shape, bias = (found.head.in_features, found.head.out_features), found.head.bias is not None
    head = nn.utils.skip_init(nn.Linear, *shape, bias=bias, device=inputs.device, dtype=inputs.dtype)
    head.load_state_dict(found.head.state_dict())
    posterior = library(nn.Sequential(head), "classification")
    posterior.fit(DataLoader(TensorDataset(inputs, found.labels.to(inputs.device)), batch_size=_BATCH))
    if prior_precision is None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "By default `link_approx` is `probit`", UserWarning)
            posterior.optimize_prior_precision(method="marglik")
    else:
        posterior.prior_precision = prior_precision
    return posterior
