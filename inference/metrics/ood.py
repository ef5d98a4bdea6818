"""Out-of-distribution (OOD) detection: scores of predictions, and metrics of how well they detect
OOD inputs.

A detector assigns each input a score ``(n,)``, float64 on the CPU; *higher* means more
out-of-distribution. Scores are computed from class probabilities ``(n, classes)`` averaged over
posterior samples; metrics depend on the order of the scores only. Metrics are fractions.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from probattn.inference.metrics import ranking
from probattn.inference.metrics.metric import table
from probattn.inference.prediction.predictor import class_probs
from probattn.inference.prediction.result import Prediction


def kl_matching(prediction: Prediction, *, fitted_on: Prediction) -> Tensor:
    """KL matching: divergence from the closest class template, min_k KL(p ‖ d_k), in nats.

    Hendrycks et al. (2022, § 4.2). The template d_k ``(classes,)`` is the mean probability vector
    of all examples *predicted* as class k; labels are not needed, and classes that are never
    predicted have no template. Zeros in d_k count as the smallest normal number of the
    probabilities' dtype, as in :attr:`Prediction.log_probs`.

    Args:
        prediction: prediction of the inputs to score.
        fitted_on: prediction of in-distribution inputs, such as the validation set.
    """
    probs, known = (class_probs(of).detach().cpu().double() for of in (prediction, fitted_on))
    predicted, tiny = known.argmax(1), torch.finfo(class_probs(fitted_on).dtype).tiny
    templates = torch.stack([known[predicted == k].mean(0) for k in predicted.unique()])
    return (-probs @ templates.clamp(min=tiny).log().T).amin(1) - torch.special.entr(probs).sum(1)


def scores(prediction: Prediction, *, fitted_on: Prediction) -> dict[str, Tensor]:
    """Compute the scores ``(n,)`` of all detectors by name.

    - ``kl_matching``: see :func:`kl_matching`.
    - ``max_softmax``: one minus the confidence (Hendrycks & Gimpel, 2017).
    - ``entropy``: entropy of the mean probabilities, in nats (Chan et al., 2021).
    - ``energy``: mean over samples of the free energy −log Σ exp(logits) (Liu et al., 2020, eq. 4).
    - ``mutual_information``: that of label and latent variables, in nats (Houlsby et al., 2011):
      how much samples of the attention layer's latent variables disagree. Differences of entropies
      within rounding error (1.9e-6 nats in float32) count as zero, so that identical samples have
      none.

    Scores whose quantity the prediction lacks (the energy of an ensemble, say) are omitted.

    Args:
        prediction: prediction of the inputs to score.
        fitted_on: prediction of in-distribution inputs outside the test set, which KL matching is
            fitted on.

    Raises:
        ValueError: no class probabilities ``(n, classes)``.
    """
    probs = class_probs(prediction).detach().cpu().double()
    information = prediction.mutual_information
    if information is not None:
        information = information.where(information > 16 * torch.finfo(information.dtype).eps, 0.0)
    values = {
        "kl_matching": kl_matching(prediction, fitted_on=fitted_on),
        "max_softmax": 1 - probs.amax(1),
        "entropy": torch.special.entr(probs).sum(1),
        "energy": prediction.energy,
        "mutual_information": information,
    }
    return {
        name: score.detach().cpu().double() for name, score in values.items() if score is not None
    }


def aurc_with_unknowns(id_scores: Tensor, ood_scores: Tensor, *, correct: Tensor) -> float:
    """Area under the risk–coverage curve of in-distribution and OOD inputs together, 0 to 1.

    Inputs are accepted from the lowest score on. Answers to OOD inputs count as wrong.

    Args:
        id_scores: scores ``(n,)`` of in-distribution inputs; higher means more out-of-distribution.
        ood_scores: scores ``(m,)`` of OOD inputs.
        correct: True where the answer to an in-distribution input is right ``(n,)``.
    """
    known = torch.cat([correct.cpu(), torch.zeros(len(ood_scores), dtype=torch.bool)])
    return float(ranking.risks(-torch.cat([id_scores, ood_scores]).cpu().double(), known).mean())


def _of_known(function: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor, Tensor], float]:
    """Return a metric of detection whose positive class are the in-distribution inputs."""
    return lambda scores, is_ood: function(-scores, ~is_ood)


OF_DETECTION = table(
    "detection",
    {
        "auroc": ranking.auroc,
        "aupr_in": _of_known(ranking.average_precision),
        "aupr_out": ranking.average_precision,
        "fpr95_in": _of_known(ranking.fpr95),
        "fpr95_out": ranking.fpr95,
    },
)
"""Metrics of the scores of all inputs ``(n + m,)`` and which of them are OOD, bool."""

WITH_UNKNOWNS = table("unknowns", {"aurc": aurc_with_unknowns})
"""Metrics of the scores of test inputs, those of OOD inputs, and which answers are right."""

DETECTORS = {
    "kl_matching": "KLMatching",
    "max_softmax": "MaxSoftmax",
    "entropy": "Entropy",
    "energy": "Energy",
    "mutual_information": "Mutual information",
}
"""Detectors, in the order of :func:`scores`, with their titles."""


def detection_metrics(id_scores: Tensor, ood_scores: Tensor) -> dict[str, float]:
    """Compute how well scores separate in-distribution from OOD inputs.

    ``_in`` and ``_out`` name the positive class.

    - ``auroc``: the probability that an OOD input has the higher score; ties count half. It is the
      same for either positive class.
    - ``aupr_in``, ``aupr_out``: average precision with in-distribution (OOD) inputs as positive
      class.
    - ``fpr95_in``: share of OOD inputs accepted by the strictest threshold that accepts at least 95
      % of in-distribution inputs.
    - ``fpr95_out``: share of in-distribution inputs rejected by the strictest threshold that
      rejects at least 95 % of OOD inputs; FPR95TPR in pytorch-ood.

    Args:
        id_scores: scores ``(n,)`` of in-distribution inputs; higher means more out-of-distribution.
        ood_scores: scores ``(m,)`` of OOD inputs.
    """
    both = torch.cat([id_scores, ood_scores]).detach().cpu().double()
    is_ood = torch.arange(len(both)) >= len(id_scores)
    return {name: metric.function(both, is_ood) for name, metric in OF_DETECTION.items()}


def evaluate(
    in_distribution: Prediction, ood: Prediction, *, fitted_on: Prediction
) -> dict[str, dict[str, float]]:
    """Compute the metrics of all detectors that both predictions have, in the order of
    :func:`scores`.

    Mutual information is omitted if it is zero for all inputs, as for a deterministic network.

    Args:
        in_distribution: prediction of in-distribution inputs, such as the test set.
        ood: prediction of OOD inputs.
        fitted_on: prediction of other in-distribution inputs, such as the validation set; see
            :func:`scores`.

    Returns:
        The metrics of :func:`detection_metrics`, and those of :data:`WITH_UNKNOWNS` where there are
        labels.

    Raises:
        ValueError: as for :func:`scores`.
    """
    id_scores, ood_scores = (
        scores(prediction, fitted_on=fitted_on) for prediction in (in_distribution, ood)
    )
    names = [name for name in id_scores if name in ood_scores]
    informative = [
        n for n in names if n != "mutual_information" or id_scores[n].any() or ood_scores[n].any()
    ]
    rows = {name: detection_metrics(id_scores[name], ood_scores[name]) for name in informative}
    if in_distribution.labels is None:
        return rows
    correct = class_probs(in_distribution).argmax(1).cpu() == in_distribution.labels.cpu()
    for name, row in rows.items():
        for key, metric in WITH_UNKNOWNS.items():
            row[key] = metric.function(id_scores[name], ood_scores[name], correct=correct)
    return rows
