"""Last-layer Laplace approximation with Kronecker factors (KFLLLA), by laplace-torch."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from probattn.imports import extra
from probattn.inference.methods.features import FeaturePredictor, Features, features
from probattn.inference.prediction.class_labels import class_labels
from probattn.inference.prediction.result import Prediction, entropy

if TYPE_CHECKING:
    from laplace import KronLaplace

_BATCH_SIZE = 1024
LINKS = ("probit", "draws")


@dataclass(frozen=True, eq=False)
class LaplacePredictor(FeaturePredictor):
    """Predictor from a network with a Gaussian posterior over the weights of its last layer.

    Given features φ of one posterior sample, the logits are Gaussian with the network's mean m = W φ + b and the
    covariance induced by the weights. Their expected softmax is approximated by softmax(m / √(1 + π v / 8)), v the
    variances (the multi-class probit of laplace-torch), and averaged over samples of the features. Their expected
    entropy is estimated from samples of the logits, so that the mutual information includes the uncertainty of the last
    layer. The probit ignores covariances between logits, which makes the mutual information larger than that of the
    samples; ``link="draws"`` averages the softmax over the samples instead.

    Args:
        model, guide, num_samples: see :class:`~probattn.inference.methods.features.FeaturePredictor`.
        num_logit_samples, link: as for :func:`laplace`.
        prior_precision: prior precision of the weights and the bias.
        log_marginal_likelihood: Laplace approximation for the training data, in nats; NaN at infinite precision.
        basis: eigenvectors of the features' second moments ``(D, D)``, in columns.
        out_basis: eigenvectors of the log-likelihood's curvature in the logits ``(classes, classes)``, in columns.
        variances: posterior variances of the weights in both bases ``(classes, D)``.
        bias_basis, bias_variances: eigenvectors and variances for the bias, ``(classes, classes)``, ``(classes,)``.
    """

    num_logit_samples: int
    link: Literal["probit", "draws"]
    prior_precision: float
    log_marginal_likelihood: float
    basis: Tensor
    out_basis: Tensor
    variances: Tensor
    bias_basis: Tensor
    bias_variances: Tensor

    @torch.no_grad()
    def predict_features(self, features: Features) -> Prediction:
        """Predict from features, with new samples of the logits."""
        logits, prediction = features.head(features.values), features.prediction
        probs, expected_entropy = self._average_samples(logits, features.values)
        if self.link == "probit":
            probs = (logits * (1 + math.pi / 8 * self.logit_variances(features.values)).rsqrt()).softmax(-1)
        return replace(
            prediction,
            probs=probs.mean(0).to(prediction.probs),
            expected_entropy=expected_entropy.mean(0).to(prediction.probs),
        )

    def logit_variances(self, values: Tensor) -> Tensor:
        """Compute the variances of the logits ``(..., classes)`` for features ``(..., D)``."""
        of_bias = self.bias_basis.square() @ self.bias_variances
        return self._weight_variances(values) @ self.out_basis.square().mT + of_bias

    def logit_noise(self, values: Tensor) -> Tensor:
        """Sample the logits minus their mean ``(..., classes)``, independently for each feature vector."""
        spread = self._weight_variances(values).sqrt()
        noise = (spread * torch.randn_like(spread)) @ self.out_basis.mT
        return noise + (self.bias_variances.sqrt() * torch.randn_like(spread)) @ self.bias_basis.mT

    def _average_samples(self, logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Average probabilities ``(S, n, classes)`` and entropies ``(S, n)`` over antithetic pairs of samples."""
        pairs = math.ceil(self.num_logit_samples / len(values) / 2)
        mean = torch.zeros_like(logits, dtype=torch.float64)
        expected_entropy = torch.zeros_like(mean[..., 0])
        for _ in range(pairs):
            noise = self.logit_noise(values)
            for sign in (1, -1):
                probs = (logits + sign * noise).softmax(-1)
                mean += probs
                expected_entropy += entropy(probs)
        return mean / (2 * pairs), expected_entropy / (2 * pairs)

    def _weight_variances(self, values: Tensor) -> Tensor:
        """Variances of the logits due to the weights, in the logits' basis ``(..., classes)``."""
        return (values @ self.basis).square() @ self.variances.mT


def laplace(
    model: nn.Module,
    guide: nn.Module | None,
    train: Iterable,
    *,
    num_samples: int = 10,
    num_logit_samples: int = 100,
    link: Literal["probit", "draws"] = "probit",
    prior_precision: float | None = None,
) -> LaplacePredictor:
    """Fit KFLLLA: a Gaussian posterior over the last layer's weights, centred at the trained ones.

    Its precision is the Kronecker-factored generalised Gauss–Newton matrix of the log-likelihood plus the prior's,
    for weights and bias separately (Kristiadi et al., ICML 2020; Daxberger et al., NeurIPS 2021), computed by
    laplace-torch in float64. For stochastic networks, example i uses posterior sample i mod ``num_samples``.

    Args:
        model: a classifier that ends in an ``nn.Linear``; it is not changed.
        guide: its guide.
        train: training data without augmentation: batches ``(x, y)`` or ``(x, y, mask)``.
        num_samples: posterior samples, here and in predictions.
        num_logit_samples: samples of the logits per example in predictions, divided among the ``num_samples`` samples
            of its features; in antithetic pairs, so at least two for each.
        link: approximation of the expected softmax, ``"probit"`` or the average over ``"draws"`` of the logits.
        prior_precision: prior precision (1 / variance) of the weights; None maximises the marginal likelihood. At
            ``math.inf`` predictions are those of ``predict``.

    Returns:
        A predictor. Energies are those of the network.

    Raises:
        MissingExtraError: laplace-torch is not installed.
        ValueError: no labels, or labels that are no class indices; ``prior_precision`` not positive;
            ``num_logit_samples`` below 1; unknown link; a network that does not end in an ``nn.Linear``.
    """
    if prior_precision is not None and not prior_precision > 0:
        raise ValueError(f"prior_precision must be positive, or None to optimise it, got {prior_precision}")
    if num_logit_samples < 1 or link not in LINKS:
        raise ValueError(
            f"num_logit_samples must be positive and link one of {', '.join(LINKS)}; got {num_logit_samples}, {link!r}"
        )
    library = _import_laplace()
    found = features(model, guide, train, num_samples=num_samples)
    if found.labels is None:
        raise ValueError("laplace needs training batches (x, y): there are no labels")
    labels = class_labels(found.labels, examples=found.values.shape[1], classes=found.head.out_features)
    posterior = _posterior(library, found, labels, prior_precision)
    delta = posterior.prior_precision
    (out_basis, basis), *bias = posterior.H.eigenvectors
    (out_values, in_values), *bias_values = posterior.H.eigenvalues
    zeros = torch.zeros_like(out_basis)
    bias_basis, bias_variances = (bias[0][0], 1 / (bias_values[0][0] + delta)) if bias else (zeros, zeros[0])
    factors = {
        "basis": basis,
        "out_basis": out_basis,
        "variances": 1 / (torch.outer(out_values, in_values) + delta),
        "bias_basis": bias_basis,
        "bias_variances": bias_variances,
    }
    return LaplacePredictor(
        model=model,
        guide=guide,
        num_samples=num_samples,
        num_logit_samples=num_logit_samples,
        link=link,
        prior_precision=float(delta),
        log_marginal_likelihood=float(posterior.log_marginal_likelihood()),
        **{name: value.to(found.values) for name, value in factors.items()},
    )


def _import_laplace() -> "type[KronLaplace]":
    with extra("laplace", needed_by="the Laplace approximation"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".torch.jit", FutureWarning)  # from an import of laplace-torch
        from laplace import KronLaplace
    return KronLaplace


def _posterior(
    library: "type[KronLaplace]", found: Features, labels: Tensor, prior_precision: float | None
) -> "KronLaplace":
    """Fit laplace-torch's posterior of a copy of the head to one sample of the features per example."""
    draws, number, _ = found.values.shape
    examples = torch.arange(number)
    inputs = found.values[examples % draws, examples].double()
    shape, bias = (found.head.in_features, found.head.out_features), found.head.bias is not None
    head = nn.utils.skip_init(nn.Linear, *shape, bias=bias, device=inputs.device, dtype=inputs.dtype)
    head.load_state_dict(found.head.state_dict())
    posterior = library(nn.Sequential(head), "classification")
    posterior.fit(DataLoader(TensorDataset(inputs, labels.to(inputs.device)), batch_size=_BATCH_SIZE))
    if prior_precision is None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "By default `link_approx` is `probit`", UserWarning)
            posterior.optimize_prior_precision(method="marglik")
    else:
        posterior.prior_precision = prior_precision
    return posterior
