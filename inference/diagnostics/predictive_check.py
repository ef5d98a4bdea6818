"""Prior and posterior predictive checks: test statistics of observed data compared with replicated
data, at draws of the global latent sites.

A statistic is a callable ``(labels (n, ...), prediction) -> number or vector (k,)``. The prediction
is the mean over all draws, the same for the observed and all replicated labels. Labels per token
are passed as labels of examples, without padding. A statistic of the inputs has them from the scope
around it:

>>> def residual_slope(labels, prediction):  # a trend that the model misses
...     return ((labels - prediction.mean) * x).mean(0)
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn.inference import metrics
from probattn.inference.prediction.class_labels import log_of
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction
from probattn.threads import one_thread_at_a_time

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


@one_thread_at_a_time
def posterior_draws(
    model: nn.Module, guide: nn.Module | None, batch: Tensor | Iterable, *, num_samples: int
) -> dict[str, Tensor]:
    """Draw every global latent site as a prediction does, in evaluation mode and without gradients.

    Args:
        model, guide: the model and its guide; None draws from the prior.
        batch: data as for ``predict``.
        num_samples: S.

    Returns:
        Draws ``(S, *event)`` by site; empty for a network without global latent sites.
    """
    return dict(predict(model, guide, batch, num_samples=num_samples, keep_draws=True).latents)


@dataclass(frozen=True, eq=False, kw_only=True)
class Replicates:
    """Replicated labels of a data set of n examples; row r is sampled given draw r of all latent
    sites.

    Args:
        labels: observed labels ``(n, ...)``.
        replicated_labels: labels sampled from the likelihood ``(R, n, ...)`` in its dtype; 0 at
            padding, as in the observed labels.
        log_likelihood: of the observed labels, in nats ``(R, n)``. Probabilities of classes that
            are 0 count as the smallest normal number.
        latents: draws ``(R, *event)`` of the global latent sites by name.
        prediction: the mean over the same draws.
    """

    labels: Tensor
    replicated_labels: Tensor
    log_likelihood: Tensor
    latents: dict[str, Tensor]
    prediction: Prediction


@one_thread_at_a_time
def replicate(
    model: nn.Module, guide: nn.Module | None, data: Iterable, *, num_samples: int
) -> Replicates:
    """Sample replicated labels of a data set, with the log likelihood of the observed ones.

    Draw r of the latent sites is one function on all batches; its labels are sampled from the
    likelihood at that draw. All R probabilities of each example are in memory.

    Args:
        model, guide: the model and its guide; None samples from the prior predictive.
        data: batches ``(x, y)`` or ``(x, y, mask)``.
        num_samples: R.

    Raises:
        ValueError: errors of ``predict``.
    """
    prediction = predict(model, guide, data, num_samples=num_samples, keep_draws=True)
    labels = prediction.require("labels")
    likelihoods = prediction.components
    if not likelihoods:
        likelihoods = (dist.Categorical(logits=log_of(prediction.require("draws"))),)
    replicated = []
    log_likelihood = []
    sizes = [likelihood.batch_shape[1] for likelihood in likelihoods]
    for likelihood, rows in zip(likelihoods, labels.split(sizes), strict=True):
        # Without what pads the labels to the longest example.
        inside = [slice(size) for size in likelihood.event_shape]
        sampled = likelihood.sample()
        padded = sampled.new_zeros(len(sampled), *rows.shape)
        padded[:, :, *inside] = sampled
        replicated.append(padded)
        own = rows[:, *inside].to(sampled)
        log_likelihood.append(likelihood.log_prob(own).to(labels.device))
    replicated_labels = torch.cat(replicated, dim=1).to(labels.device)
    if (mask := prediction.mask) is not None:
        missing = labels.dim() - mask.dim()
        mask = mask.view(*mask.shape, *(1,) * missing).to(labels.device)
        replicated_labels = replicated_labels.where(mask, 0)
    return Replicates(
        labels=labels.to(torch.promote_types(labels.dtype, replicated_labels.dtype)),
        replicated_labels=replicated_labels,
        log_likelihood=torch.cat(log_likelihood, dim=1),
        latents=dict(prediction.latents),
        prediction=prediction,
    )


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
