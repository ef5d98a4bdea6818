"""Prior and posterior predictive checks: test statistics of observed data compared with replicated
data.

A statistic is a callable ``(labels (n, ...), prediction) -> number or vector (k,)``. The prediction
is the mean over all draws, the same for the observed and all replicated labels. Labels per token
are passed as labels of examples, without padding. A statistic of the inputs has them from the scope
around it:

>>> def residual_slope(labels, prediction):  # a trend that the model misses
...     return ((labels - prediction.mean) * x).mean(0)
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from probattn.inference import metrics
from probattn.inference.diagnostics.posterior_draws import Replicates, replicate
from probattn.inference.prediction.result import Prediction

Statistic = Callable[[Tensor, Prediction], Tensor | float]


def _frequencies(labels: Tensor, prediction: Prediction) -> Tensor:
    classes = prediction.require("probs").shape[-1]
    return labels.long().bincount(minlength=classes).double() / len(labels)


CLASSIFICATION: dict[str, Statistic] = {
    "accuracy": lambda labels, prediction: metrics.accuracy(prediction.require("probs"), labels),
    "class_frequencies": _frequencies,
    "ece": lambda labels, prediction: metrics.ece(prediction.require("probs"), labels),
    "entropy": lambda labels, prediction: torch.special.entr(
        _frequencies(labels, prediction)
    ).sum(),
}
"""Statistics of classes: accuracy of the mean prediction; fraction ``(classes,)`` of each class
among the labels; expected calibration error of the mean prediction in 15 bins, positive by chance
even for a calibrated model; entropy of the labels' empirical distribution in nats."""
REGRESSION: dict[str, Statistic] = {
    "mean": lambda labels, prediction: labels.double().mean(0),
    "std": lambda labels, prediction: labels.double().std(0, correction=0),
    "rmse": lambda labels, prediction: (
        (labels - prediction.require("mean")).double().square().mean(0).sqrt()
    ),
}
"""Statistics of each target ``(targets,)`` in its units, over examples: mean (the fraction of a
binary label), standard deviation, and root mean squared error of the predictive mean."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictiveCheck(Replicates):
    """Test statistics T of observed labels and of R replicates; ``print`` displays a table.

    Args:
        observed: T of the data by name, ``()`` or ``(k,)``.
        replicated: T of each replicate, ``(R,)`` or ``(R, k)``.
    """

    observed: dict[str, Tensor]
    replicated: dict[str, Tensor]

    @property
    def p_values(self) -> dict[str, Tensor]:
        """P(T(replicate) ≥ T(data)) by name, in the shape of the statistic: see :func:`p_value`."""
        return {name: p_value(self.observed[name], self.replicated[name]) for name in self.observed}

    def __str__(self) -> str:
        lines = [f"{'statistic':24}  observed   rep. 5 %    median      95 %  P(rep ≥ obs)"]
        levels = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
        for name, observed in self.observed.items():
            quantiles = self.replicated[name].quantile(levels, dim=0)
            columns = torch.stack((observed, *quantiles, self.p_values[name])).reshape(5, -1)
            for entry, (*numbers, p) in enumerate(columns.T.tolist()):
                label = f"{name}[{entry}]" if observed.dim() else name
                shown = "".join(f"{value:10.4g}" for value in numbers)
                lines.append(f"{label:24}{shown}{p:14.3f}")
        return "\n".join(lines)


def posterior_predictive_check(
    model: nn.Module,
    guide: nn.Module | None,
    data: Iterable,
    *,
    statistics: Mapping[str, Statistic] | None = None,
    num_replicates: int = 200,
) -> PredictiveCheck:
    """Compare test statistics of a data set with those of replicates from the posterior predictive.

    Each replicate has one draw of all latent sites and labels of all examples sampled given it
    (Rubin, 1984; Gelman, Meng & Stern, 1996). On training data, p-values concentrate around ½ even
    for the true model, since the posterior has seen the data; held-out data show misfit more
    clearly.

    Without a guide it is a prior predictive check (Box, 1980): all latent sites are drawn from
    their priors, at the network's current weights. Data from the model then have uniform p-values.

    Args:
        model, guide: the model and its guide; None for a prior predictive check.
        data: batches ``(x, y)`` or ``(x, y, mask)``, with any likelihood.
        statistics: callables ``(labels, prediction) -> number or vector`` by name. Default for
            classification: accuracy, class frequencies, ECE and entropy of the labels; otherwise
            mean, standard deviation and RMSE.
        num_replicates: R; p-values lie between 1/(2 (R + 1)) and 1 − 1/(2 (R + 1)).

    Returns:
        The check. Its ``prediction``, the mean over the R draws, is the argument of the statistics
        for the data and all replicates; that it includes each replicate's draw changes ranks by
        O(1/R).

    Raises:
        RuntimeError: a statistic whose shape changes.
        ValueError: a statistic that is NaN; errors of :func:`~probattn.inference.predict`.
    """
    replicates = replicate(model, guide, data, num_samples=num_replicates)
    prediction = replicates.prediction
    mask = prediction.mask
    if mask is not None:
        prediction = prediction.tokens()
    if statistics is None:
        statistics = CLASSIFICATION if prediction.probs is not None else dict(REGRESSION)
        if prediction.probs is None and not prediction.require("mean").isfinite().all():
            del statistics["rmse"]
    observed = {}
    replicated = {}
    for name, statistic in statistics.items():
        values = []
        for labels in (replicates.labels, *replicates.replicated_labels):
            value = statistic(labels if mask is None else labels[mask], prediction)
            values.append(torch.as_tensor(value, dtype=torch.float64).detach().cpu())
        stacked = torch.stack(values)  # refuses different shapes, which would broadcast
        if stacked.isnan().any():
            raise ValueError(f"statistic {name!r} is NaN for some labels, and NaN cannot be ranked")
        observed[name] = stacked[0]
        replicated[name] = stacked[1:]
    return PredictiveCheck(**vars(replicates), observed=observed, replicated=replicated)


def p_value(observed: Tensor, replicated: Tensor) -> Tensor:
    """Return the mid-p value of T(replicate) ≥ T(data), from the rank of the data among all R + 1
    values.

    (#{T_r > T} + ½ #{T_r = T} + ½) / (R + 1). The data count as one more replicate, so that p is
    never 0 or 1, which R replicates cannot resolve (Phipson & Smyth, 2010). Counting ties half
    gives it mean ½ for exchangeable values (Lancaster, 1961), and makes p of −T one minus that of
    T.

    Args:
        observed: T of the data ``(...)``.
        replicated: T of the replicates ``(R, ...)``.
    """
    above = (replicated > observed).double().sum(0)
    ties = (replicated == observed).double().sum(0)
    return (above + (ties + 1) / 2) / (len(replicated) + 1)
