"""The NLL split into refinement and calibration, by temperature and class biases."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from probattn.inference.metrics.classes import validate

FOLDS = 5
"""Parts of the examples for cross-fitting."""
SLOPES = (0.05, 20.0)
"""Range of the inverse temperature."""


class Scaling(NamedTuple):
    """Probabilities softmax(slope · log p + bias).

    Args:
        slope: inverse temperature ``(1,)``, positive; or one of each class ``(classes,)``.
        bias: of each class ``(classes,)``, in nats.
    """

    slope: Tensor
    bias: Tensor

    def __call__(self, log_probs: Tensor) -> Tensor:
        """Return log probabilities ``(n, classes)``, in float64."""
        slope, bias = (values.to(log_probs.device) for values in self)
        return (slope * log_probs.double() + bias).log_softmax(-1)


def fit_scaling(log_probs: Tensor, labels: Tensor, *, by_class: bool = False) -> Scaling:
    """Fit inverse temperature and class biases by penalised maximum likelihood.

    The loss Σ_i −t_i · log softmax(β log p_i + b) + |b|² / 2 is convex in (β, b). The penalty is a
    prior N(0, 1) of the biases, without which a class that no example has would get −∞. The targets
    t_i are one-hot labels, of which 1 / (n + 2) is spread over all classes, as in the rule of
    succession: without it n examples without an error would get a β of ∞.

    Args:
        log_probs: ``(n, classes)``.
        labels: class indices ``(n,)``.
        by_class: fit a β of each class, with |β − mean(β)|² / 2 added to the loss.
    """
    # Here, since their import takes a third of a second.
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    values = log_probs.detach().cpu().double().numpy()
    number, classes = values.shape
    doubt = 1 / (number + 2)
    targets = np.full(values.shape, doubt / classes)
    targets[np.arange(number), labels.cpu().numpy()] += 1 - doubt
    slopes = classes if by_class else 1

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        slope, bias = parameters[:slopes], parameters[slopes:]
        fitted = log_softmax(slope * values + bias, axis=1)
        spread = slope - slope.mean()
        value = (bias @ bias + spread @ spread) / 2 - (targets * fitted).sum()
        # ∂/∂(β log p + b) of the first term
        residual = np.exp(fitted) - targets
        of_classes = (residual * values).sum(0)
        of_slopes = of_classes if by_class else of_classes.sum(keepdims=True)
        gradient = np.append(of_slopes + spread, residual.sum(0) + bias)
        return value / number, gradient / number

    start = np.append(np.ones(slopes), np.zeros(classes))
    bounds = [SLOPES] * slopes + [(None, None)] * classes
    options = {"ftol": 1e-14, "gtol": 1e-9, "maxiter": 500}
    found = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
    return Scaling(*torch.tensor(found.x).tensor_split([slopes]))


def refined_log_probs(probs: Tensor, labels: Tensor) -> Tensor:
    """Return log p(label) after the scaling that is best on the other :data:`FOLDS`, ``(n,)`` in
    nats; a fixed permutation assigns the examples.

    Minus their mean is the *refinement* part of the NLL, that of the model with its calibration
    mended; the rest is its *calibration* part (Berta, Holzmüller, Jordan and Bach, 2025). Both are
    estimates: on few examples a scaling may cost more than it mends.

    Args:
        probs: mean probabilities ``(n, classes)``.
        labels: ``(n,)``.

    Raises:
        ValueError: as :func:`~probattn.inference.metrics.nll` raises; fewer examples than folds.
    """
    checked, labels = validate(probs, labels)
    if len(labels) < FOLDS:
        raise ValueError(f"{FOLDS} folds need as many examples or more, got {len(labels)}")
    log_probs = checked.clamp(min=torch.finfo(probs.dtype).tiny).log()
    places = np.random.default_rng(0).permutation(len(labels))
    fold_of = torch.from_numpy(places % FOLDS)
    result = torch.empty(len(labels), dtype=torch.float64)
    for fold in range(FOLDS):
        is_held_out = fold_of == fold
        scaling = fit_scaling(log_probs[~is_held_out], labels[~is_held_out])
        scaled = scaling(log_probs[is_held_out])
        result[is_held_out] = scaled.gather(1, labels[is_held_out].unsqueeze(1)).squeeze(1)
    return result
