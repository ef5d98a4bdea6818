"""Metrics as ``torchmetrics.Metric`` classes, for training loops that use them (extra ``torchmetrics``).

Only those that torchmetrics lacks: for the others take ``MulticlassAccuracy(average="micro")``,
``MulticlassMatthewsCorrCoef``, ``MulticlassCalibrationError(norm="l1")`` (ECE; ``"max"`` for MCE), ``BinaryAUROC`` and
``BinaryAveragePrecision``. ``compute`` equals the function of the same metric in :mod:`probattn.inference.metrics`,
over all updates and, under DDP, all processes.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from probattn.inference.imports import extra
from probattn.inference.metrics import classification, ranking, selective
from probattn.inference.metrics.inputs import validate

with extra("torchmetrics", needed_by="probattn.inference.metrics.torchmetrics"):
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat


class _CatMetric(Metric):
    """Metric of all predictions together, which are kept until it is computed."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    plot_lower_bound = 0.0

    preds: list[Tensor]
    target: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("preds", [], dist_reduce_fx="cat")
        self.add_state("target", [], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add predictions."""
        self._check(preds, target)
        self.preds.append(preds.detach())
        self.target.append(target.detach())

    def compute(self) -> Tensor:
        """Compute the metric of all predictions so far, a scalar in float64."""
        value = self._value(dim_zero_cat(self.preds), dim_zero_cat(self.target))
        return torch.tensor(value, dtype=torch.float64, device=self.device)

    def _check(self, preds: Tensor, target: Tensor) -> None:
        raise NotImplementedError

    def _value(self, preds: Tensor, target: Tensor) -> float:
        raise NotImplementedError


class _ClassificationMetric(_CatMetric):
    """Metric of probabilities.

    - ``preds``: probabilities ``(n, classes)``; unlike in torchmetrics, logits are refused.
    - ``target``: class indices ``(n,)``.
    """

    _function: ClassVar[Callable[[Tensor, Tensor], float]]

    def _check(self, preds: Tensor, target: Tensor) -> None:
        validate(preds, target)

    def _value(self, preds: Tensor, target: Tensor) -> float:
        return type(self)._function(preds, target)


class AURC(_ClassificationMetric):
    """Area under the risk–coverage curve; see :func:`~probattn.inference.metrics.aurc`."""

    plot_upper_bound = 1.0
    _function = staticmethod(selective.aurc)


class EAURC(_ClassificationMetric):
    """Excess AURC; see :func:`~probattn.inference.metrics.eaurc`."""

    plot_upper_bound = 1.0
    _function = staticmethod(selective.eaurc)


class FPR95(_ClassificationMetric):
    """Share of wrong predictions accepted with 95 % of the correct ones; see :func:`~probattn.inference.metrics.fpr95`.

    For scores of OOD detectors use :class:`BinaryFPR95`.
    """

    plot_upper_bound = 1.0
    _function = staticmethod(selective.fpr95)


class AUROCSuccess(_ClassificationMetric):
    """AUROC of detecting correct predictions by confidence; see :func:`~probattn.inference.metrics.auroc`."""

    higher_is_better = True
    plot_upper_bound = 1.0
    _function = staticmethod(selective.auroc)


class AUPRSuccess(_ClassificationMetric):
    """Average precision of detecting correct predictions; see :func:`~probattn.inference.metrics.aupr_success`."""

    higher_is_better = True
    plot_upper_bound = 1.0
    _function = staticmethod(selective.aupr_success)


class AUPRError(_ClassificationMetric):
    """Average precision of detecting wrong predictions; see :func:`~probattn.inference.metrics.aupr_error`."""

    higher_is_better = True
    plot_upper_bound = 1.0
    _function = staticmethod(selective.aupr_error)


class BrierScore(_ClassificationMetric):
    """Brier score, summed over classes; see :func:`~probattn.inference.metrics.brier`."""

    plot_upper_bound = 2.0
    _function = staticmethod(classification.brier)


class NegativeLogLikelihood(_ClassificationMetric):
    """Mean −log probability of the label, in nats; see :func:`~probattn.inference.metrics.nll`."""

    _function = staticmethod(classification.nll)


class RankedProbabilityScore(_ClassificationMetric):
    """Ranked probability score of ordered classes; see :func:`~probattn.inference.metrics.rps`."""

    _function = staticmethod(classification.rps)


class BinaryFPR95(_CatMetric):
    """Share of negative scores at or above the strictest threshold that accepts at least 95 % of the positive ones.

    With OOD inputs as the positive class it is ``fpr95_out`` of
    :func:`~probattn.inference.ood.detection_metrics`.

    - ``preds``: finite scores ``(n,)``, higher for the positive class.
    - ``target``: 1 for positive examples, 0 for negative ones ``(n,)``.

    NaN if all examples are positive, or none is.
    """

    plot_upper_bound = 1.0

    def _check(self, preds: Tensor, target: Tensor) -> None:
        if preds.ndim != 1 or preds.shape != target.shape or not preds.isfinite().all():
            raise ValueError(
                "preds must be finite scores (n,) and target 0 or 1 of the same shape, got shapes "
                f"{tuple(preds.shape)} and {tuple(target.shape)}"
            )
        if not ((target == 0) | (target == 1)).all():
            raise ValueError("target must be 1 for positive examples, such as OOD inputs, and 0 for negative ones")

    def _value(self, preds: Tensor, target: Tensor) -> float:
        scores, positive = preds.cpu().double(), target.cpu().bool()
        if positive.all() or not positive.any():
            return float("nan")
        return ranking.fpr_at_95_tpr(scores[positive], scores[~positive])
