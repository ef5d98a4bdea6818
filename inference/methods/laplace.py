"""Last-layer Laplace approximation with Kronecker factors (KFLLLA), by laplace-torch."""

import copy
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Self

from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from probattn.inference.imports import extra
from probattn.inference.methods.features import (
    FeaturePredictor,
    Features,
    averaged,
    last_linear,
)
from probattn.inference.prediction.predictor import SampledPredictor
from probattn.inference.prediction.result import Prediction


class Laplace(FeaturePredictor):
    """KFLLLA: a Gaussian posterior over the last layer's weights, centred at the trained ones.

    Its precision is the Kronecker-factored generalised Gauss–Newton matrix of the log-likelihood
    plus the prior's, for weights and bias separately (Kristiadi et al., ICML 2020; Daxberger et
    al., NeurIPS 2021), computed by laplace-torch in float64. For stochastic networks, example i
    uses posterior sample i mod S. The network is not changed.

    :meth:`fit` draws samples of the weights, which every prediction shares. Probabilities and
    expected entropies are means over them and over the S samples of the features, so that the
    mutual information includes the uncertainty of the last layer. Energies are those of the
    network. Random numbers are from PyTorch's global generator.

    Args:
        predictor: see :class:`~probattn.inference.methods.features.FeaturePredictor`; S is its
            number of samples.
        num_weight_samples: samples of the last layer's weights.
        prior_precision: prior precision (1 / variance) of the weights and the bias; None maximises
            the marginal likelihood. At ``math.inf`` predictions are those of the predictor.

    Attributes:
        prior_precision: prior precision of the fit.
        log_marginal_likelihood: Laplace approximation for the training data, in nats; NaN at
            infinite precision.
        samples: samples of the flattened weights and the bias,
            ``(num_weight_samples, classes · D + classes)``.

    Raises:
        ImportError: laplace-torch is not installed, which :meth:`fit` needs.
        ValueError: ``prior_precision`` not positive.
    """

    fitted_values = ("prior_precision", "log_marginal_likelihood")
    samples: Tensor

    def __init__(
        self,
        predictor: SampledPredictor,
        *,
        num_weight_samples: int = 100,
        prior_precision: float | None = None,
    ) -> None:
        super().__init__(predictor)
        if prior_precision is not None and not prior_precision > 0:
            raise ValueError(f"prior_precision must be positive, or None, got {prior_precision}")
        self._given_precision = prior_precision
        parameters = nn.utils.parameters_to_vector(last_linear(predictor).parameters()).detach()
        self.register_buffer("samples", math.nan * parameters.expand(num_weight_samples, -1))

    def fit_features(self, features: Features) -> Self:
        """Fit laplace-torch's ``KronLaplace`` of a copy of the head to one sample of the features
        per example, with labels, and draw its samples."""
        inputs = features.one_sample().double()
        data = TensorDataset(inputs, features.labels)
        head = copy.deepcopy(features.head).to(inputs).requires_grad_()
        precision = self._given_precision
        with extra("laplace", needed_by="the Laplace approximation"), warnings.catch_warnings():
            # From an import of laplace-torch.
            warnings.filterwarnings("ignore", ".torch.jit", FutureWarning)
            warnings.filterwarnings("ignore", "By default `link_approx` is `probit`", UserWarning)
            from laplace import KronLaplace

            posterior = KronLaplace(
                nn.Sequential(head), "classification", prior_precision=precision or 1.0
            )
            posterior.fit(DataLoader(data, batch_size=1024))
            if precision is None:
                posterior.optimize_prior_precision(method="marglik")
        self.samples = posterior.sample(len(self.samples)).detach().to(features.values)
        self.fitted = True
        self.prior_precision = float(posterior.prior_precision)
        self.log_marginal_likelihood = float(posterior.log_marginal_likelihood())
        return self

    def predict_features(self, features: Features) -> Prediction:
        """Predict from features."""
        energy = features.prediction.energy
        return replace(averaged(features.prediction, self._logits(features)), energy=energy)

    def _logits(self, features: Features) -> Iterator[Tensor]:
        sizes = [parameter.numel() for parameter in features.head.parameters()]
        for sample in self.samples:
            weight, *bias = sample.split(sizes)
            yield nn.functional.linear(features.values, weight.view_as(features.head.weight), *bias)
