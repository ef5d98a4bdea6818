"""Spread of predictions over draws of the latent variables."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from probattn.inference.prediction.predict import predict


@dataclass(frozen=True, kw_only=True)
class PredictiveSpread:
    """Spread of single draws in predictions of classes, averaged over examples.

    Args:
        total_variation: ½ Σ_c |p_s(c) − p̄(c)| between a draw and the mean prediction, in [0, 1].
        entropy: of the mean prediction, in nats.
        mutual_information, mutual_information_95: between label and latent variables in nats, mean and 95 % quantile.
    """

    total_variation: float
    entropy: float
    mutual_information: float
    mutual_information_95: float


def predictive_spread(
    model: nn.Module, guide: nn.Module, data: Tensor | Iterable, *, num_samples: int = 10
) -> PredictiveSpread | None:
    """Measure how far the predictions of single draws are apart; None for likelihoods other than categorical.

    Args:
        model, guide, data, num_samples: as for :func:`~probattn.inference.predict`.
    """
    prediction = predict(model, guide, data, num_samples=num_samples, keep_draws=True)
    if prediction.draws is None:
        return None
    prediction = prediction if prediction.mask is None else prediction.tokens()
    information = prediction.mutual_information.double()
    return PredictiveSpread(
        total_variation=0.5 * (prediction.draws - prediction.probs).abs().sum(-1).mean().item(),
        entropy=prediction.entropy.mean().item(),
        mutual_information=information.mean().item(),
        mutual_information_95=information.quantile(0.95).item(),
    )
