"""Out-of-distribution (OOD) detectors of the library pytorch-ood on the features or logits of a network."""

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn

from probattn.inference.methods.features import Features, features, training_labels
from probattn.inference.prediction.predictor import SampledPredictor


class OODDetector(nn.Module):
    """Run a detector of pytorch-ood (extra ``ood``) on the features, or logits, of a network's last layer.

    Detectors of features (``Mahalanobis``, ``ViM``, ``KNN``, …) get the inputs of the last layer, detectors of logits
    (``EnergyBased``, ``KLMatching``, …) its outputs; both are means over posterior samples. Scores are those of
    pytorch-ood: higher means more out-of-distribution, so
    :func:`probattn.inference.metrics.ood.detection_metrics` takes them. A detector has no state dict; pickle stores it.

    >>> detector = OODDetector(PosteriorPredictive(model, guide), Mahalanobis(None)).fit(train)  # doctest: +SKIP
    >>> ood.detection_metrics(detector.predict(test), detector.predict(other))  # doctest: +SKIP

    Args:
        predictor: predictor of one class per example that runs a model.
        detector: a detector with ``predict_features`` or ``predict_logits``, built with ``None`` as its model or
            encoder.
    """

    def __init__(self, predictor: SampledPredictor, detector: Any) -> None:
        super().__init__()
        self.predictor, self.detector = predictor, detector
        self._kind = "features" if hasattr(detector, "predict_features") else "logits"

    def fit(self, data: Iterable) -> Self:
        """Fit the detector to in-distribution training data without augmentation, batches ``(x, y)``.

        Raises:
            ValueError: no labels, or no class indices; as :func:`~probattn.inference.methods.features.features`.
        """
        training = features(self.predictor, data)
        inputs, labels = self._inputs(training), training_labels(training)
        getattr(self.detector, f"fit_{self._kind}")(inputs, labels)
        return self

    def predict(self, data: Tensor | Iterable) -> Tensor:
        """Return the score of each input ``(n,)``; higher means more out-of-distribution."""
        return getattr(self.detector, f"predict_{self._kind}")(self._inputs(features(self.predictor, data)))

    @torch.no_grad()
    def _inputs(self, features: Features) -> Tensor:
        values = features.values if self._kind == "features" else features.head(features.values)
        return values.mean(0)
