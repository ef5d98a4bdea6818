"""Last-layer Laplace approximation with Kronecker factors (KFLLLA), by laplace-torch."""

import copy
import math
import warnings
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from probattn.inference.imports import extra
from probattn.inference.methods.features import FeaturePredictor, Features, last_linear, training_labels
from probattn.inference.prediction.predictor import SampledPredictor
from probattn.inference.prediction.result import Prediction, entropy

_BATCH_SIZE = 1024


class Laplace(FeaturePredictor):
    """KFLLLA: a Gaussian posterior over the last layer's weights, centred at the trained ones.

    Its precision is the Kronecker-factored generalised Gauss–Newton matrix of the log-likelihood plus the prior's,
    for weights and bias separately (Kristiadi et al., ICML 2020; Daxberger et al., NeurIPS 2021), computed by
    laplace-torch in float64. For stochastic networks, example i uses posterior sample i mod S. The network is not
    changed.

    Given features φ of one posterior sample, the logits are Gaussian with the network's mean m = W φ + b and the
    covariance induced by the weights. Their expected softmax is approximated by softmax(m / √(1 + π v / 8)), v the
    variances (the multi-class probit of laplace-torch), and averaged over samples of the features. Their expected
    entropy is estimated from samples of the logits, so that the mutual information includes the uncertainty of the last
    layer. The probit ignores covariances between logits, which makes the mutual information larger than that of the
    samples; ``link="draws"`` averages the softmax over the samples instead. Energies are those of the network.

    Args:
        predictor: see :class:`~probattn.inference.methods.features.FeaturePredictor`; S is its number of samples.
        num_logit_samples: samples of the logits per example in predictions, divided among the S samples of its
            features; in antithetic pairs, so at least two for each.
        link: approximation of the expected softmax, ``"probit"`` or the average over ``"draws"`` of the logits.
        prior_precision: prior precision (1 / variance) of the weights and the bias; None maximises the marginal
            likelihood. At ``math.inf`` predictions are those of the predictor.

    Attributes:
        prior_precision: prior precision of the fit.
        log_marginal_likelihood: Laplace approximation for the training data, in nats; NaN at infinite precision.
        basis: eigenvectors of the features' second moments ``(D, D)``, in columns.
        out_basis: eigenvectors of the log-likelihood's curvature in the logits ``(classes, classes)``, in columns.
        variances: posterior variances of the weights in both bases ``(classes, D)``.
        bias_variances: posterior variances of the bias in ``out_basis``, ``(classes,)``; 0 without a bias.

    Raises:
        ImportError: laplace-torch is not installed, which :meth:`fit` needs.
        ValueError: ``prior_precision`` not positive; ``num_logit_samples`` below 1; unknown link.
    """

    fitted_values = ("prior_precision", "log_marginal_likelihood")

    def __init__(
        self,
        predictor: SampledPredictor,
        *,
        num_logit_samples: int = 100,
        link: Literal["probit", "draws"] = "probit",
        prior_precision: float | None = None,
    ) -> None:
        super().__init__(predictor)
        if prior_precision is not None and not prior_precision > 0:
            raise ValueError(f"prior_precision must be positive, or None to optimise it, got {prior_precision}")
        if num_logit_samples < 1 or link not in ("probit", "draws"):
            raise ValueError("num_logit_samples must be positive and link one of probit, draws")
        self.num_logit_samples, self.link, self._given_precision = num_logit_samples, link, prior_precision
        nan = torch.full_like(last_linear(predictor).weight, math.nan, requires_grad=False)
        buffers = {"basis": nan.mT @ nan, "out_basis": nan @ nan.mT, "variances": nan, "bias_variances": nan[:, 0]}
        for name, value in buffers.items():
            self.register_buffer(name, value.clone())

    def fit_features(self, features: Features) -> Self:
        """Fit the posterior to features with labels."""
        posterior = _posterior(features, training_labels(features), self._given_precision)
        delta = posterior.prior_precision
        out_basis, basis = posterior.H.eigenvectors[0]
        # The bias has the curvature of the logits alone, hence the eigenvectors of the weights' first factor.
        (out_values, in_values), *bias_values = posterior.H.eigenvalues
        factors = {
            "basis": basis,
            "out_basis": out_basis,
            "variances": 1 / (torch.outer(out_values, in_values) + delta),
            "bias_variances": 1 / (bias_values[0][0] + delta) if bias_values else torch.zeros_like(out_values),
        }
        for name, value in factors.items():
            setattr(self, name, value.to(features.values).clone(memory_format=torch.contiguous_format))
        self.prior_precision, self.fitted = float(delta), True
        self.log_marginal_likelihood = float(posterior.log_marginal_likelihood())
        return self

    @torch.no_grad()
    def predict_features(self, features: Features) -> Prediction:
        """Predict from features, with new samples of the logits."""
        values, prediction = features.values, features.prediction
        logits, pairs = features.head(values), math.ceil(self.num_logit_samples / len(values) / 2)
        probs = torch.zeros_like(logits, dtype=torch.float64)  # means over antithetic pairs of samples
        expected_entropy = torch.zeros_like(probs[..., 0])
        for _ in range(pairs):
            noise = self.logit_noise(values)
            for sampled in ((logits + noise).softmax(-1), (logits - noise).softmax(-1)):
                probs += sampled.double() / (2 * pairs)
                expected_entropy += entropy(sampled).double() / (2 * pairs)
        if self.link == "probit":
            probs = (logits * (1 + math.pi / 8 * self.logit_variances(values)).rsqrt()).softmax(-1)
        probs, expected_entropy = (value.mean(0).to(prediction.probs) for value in (probs, expected_entropy))
        return replace(prediction, probs=probs, expected_entropy=expected_entropy)

    def logit_variances(self, values: Tensor) -> Tensor:
        """Compute the variances of the logits ``(..., classes)`` for features ``(..., D)``."""
        return (self._weight_variances(values) + self.bias_variances) @ self.out_basis.square().mT

    def logit_noise(self, values: Tensor) -> Tensor:
        """Sample the logits minus their mean ``(..., classes)``, independently for each feature vector."""
        spread = self._weight_variances(values).sqrt()
        noise = spread * torch.randn_like(spread) + self.bias_variances.sqrt() * torch.randn_like(spread)
        return noise @ self.out_basis.mT

    def _weight_variances(self, values: Tensor) -> Tensor:
        """Variances of the logits due to the weights, in the logits' basis ``(..., classes)``."""
        return (values @ self.basis).square() @ self.variances.mT


def _posterior(features: Features, labels: Tensor, prior_precision: float | None) -> Any:
    """Fit laplace-torch's ``KronLaplace`` of a copy of the head to one sample of the features per example."""
    examples = torch.arange(len(labels))
    inputs = features.values[examples % len(features.values), examples].double()
    head = copy.deepcopy(features.head).to(inputs).requires_grad_()
    with extra("laplace", needed_by="the Laplace approximation"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".torch.jit", FutureWarning)  # from an import of laplace-torch
        warnings.filterwarnings("ignore", "By default `link_approx` is `probit`", UserWarning)
        from laplace import KronLaplace

        posterior = KronLaplace(nn.Sequential(head), "classification")
        posterior.fit(DataLoader(TensorDataset(inputs, labels.to(inputs.device)), batch_size=_BATCH_SIZE))
        if prior_precision is None:
            posterior.optimize_prior_precision(method="marglik")
        else:
            posterior.prior_precision = prior_precision
    return posterior
