"""Predictive checks: would the model produce data like these? Observed statistics among replicated ones."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from probattn.inference.diagnostics.check_statistics import Statistic, asks_for, evaluate, of_kind, resolve
from probattn.inference.diagnostics.posterior_draws import Replicates, padded, record, replicate


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictiveCheck(Replicates):
    """Test statistics of a data set's labels and of R replicated ones. Printed, it is a table.

    Args:
        observed: T of the data by name, ``()`` or ``(k,)``; of a discrepancy, which depends on the draw of the latent
            sites, too, T at each draw ``(R,)`` or ``(R, k)``.
        replicated: T of each replicate, ``(R,)`` or ``(R, k)``; of a discrepancy at the same draws.
    """

    observed: dict[str, Tensor]
    replicated: dict[str, Tensor]

    @property
    def p_values(self) -> dict[str, Tensor]:
        """P(T(replicate) ≥ T(data)) by name, of the shape of the statistic: see :func:`p_value`."""
        return {name: p_value(observed, self.replicated[name]) for name, observed in self.observed.items()}

    @property
    def two_sided(self) -> dict[str, Tensor]:
        """2 min(p, 1 − p) by name: small where the data lie in either tail."""
        return {name: 2 * torch.minimum(p, 1 - p) for name, p in self.p_values.items()}

    def is_discrepancy(self, name: str) -> bool:
        """True for a statistic of the latent sites' draws, too, whose table shows the mean over them for the data."""
        return self.observed[name].dim() == self.replicated[name].dim()

    def __str__(self) -> str:
        width = max(map(len, self.observed)) + 6
        replicates, examples = self.log_likelihood.shape
        lines = [
            f"{examples} examples, {replicates} replicates",
            f"{'statistic':{width}} observed  replicated: 5 %    median      95 %  P(rep ≥ obs)  two-sided",
        ]
        for name, observed in self.observed.items():
            if self.is_discrepancy(name):
                observed = observed.mean(0)
            levels = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
            columns = (observed, *self.replicated[name].quantile(levels, dim=0))
            rows = torch.stack((*columns, self.p_values[name], self.two_sided[name])).reshape(6, -1).T
            for entry, (t, low, middle, high, p, both) in enumerate(rows.tolist()):
                label = f"{name}[{entry}]" if observed.dim() else name
                numbers = f"{t:8.4g}  {low:15.4g}  {middle:8.4g}  {high:8.4g}  {p:12.3f}  {both:9.3f}"
                lines.append(f"{label:{width}} {numbers}")
        return "\n".join(lines)


def posterior_predictive_check(
    model: nn.Module,
    guide: nn.Module | None,
    data: Iterable,
    *,
    statistics: Mapping[str, Statistic] | Sequence[str | Statistic] | None = None,
    num_replicates: int = 200,
) -> PredictiveCheck:
    """Ranks a data set's statistics among those of data sets that the trained model would produce.

    A replicate draws all latent sites once and then the labels of all examples given them (Rubin, 1984; Gelman, Meng &
    Stern, 1996). On the data that the model was trained on the posterior has seen what it is asked to reproduce, so
    that p-values gather around ½ even for the true model; on held-out data they show misfit more sharply.

    A statistic that has a parameter ``latents`` is a discrepancy T(y, θ): at each draw θ_r of the latent sites that of
    the replicate drawn from it is compared with that of the data, P(T(y_rep, θ) ≥ T(y, θ)) (Gelman et al., 1996).

    Args:
        model, guide: the model and its guide.
        data: batches ``(x, y)`` or ``(x, y, mask)``, under any likelihood.
        statistics: callables ``(labels, prediction) -> number or vector`` by name, or a sequence of names out of
            :data:`~probattn.inference.diagnostics.check_statistics.STATISTICS` and callables. A parameter ``x`` behind these gets
            the inputs ``(n, ...)``, ``latents`` a draw of the latent sites by name. By default accuracy, class
            frequencies, ECE and the labels' entropy; mean, standard deviation and RMSE where labels are no classes.
        num_replicates: R; no p-value is nearer to 0 or 1 than 1/(2 (R + 1)).

    Returns:
        The check. Its ``prediction`` is the mean over the R draws and, as an argument of the statistics, the same for
        the data and for all replicates; that each replicate is part of it moves their ranks by O(1/R).

    Raises:
        ValueError: fewer than one replicate; data without labels; a statistic that is NaN or changes its shape, or
            whose name is unknown; and what :func:`~probattn.inference.predict` refuses.
    """
    if num_replicates < 1:
        raise ValueError(f"num_replicates must be at least 1, got {num_replicates}")
    chosen = None if statistics is None else resolve(statistics)
    wanted = {name: asks_for(each) for name, each in (chosen or {}).items()}
    inputs: list[Tensor] = []
    with ExitStack() as held:
        if any("x" in names for names in wanted.values()):
            data = _keeping_inputs(data, inputs)
        drawn = held.enter_context(record()) if any("latents" in names for names in wanted.values()) else None
        replicates = replicate(model, guide, data, num_samples=num_replicates)
    latents = {} if drawn is None else drawn.latents
    prediction, mask = replicates.prediction, None
    if prediction.mask is not None:
        mask, prediction = prediction.mask, prediction.tokens()
    x = _of_labels(_joined(inputs), mask) if inputs else None

    def value(name: str, labels: Tensor, draw: int) -> Tensor:
        known = {"x": x, "latents": {site: each[draw] for site, each in latents.items()}}
        more = {each: known[each] for each in wanted.get(name, ())}
        return evaluate(name, chosen[name], labels if mask is None else labels[mask], prediction, **more)

    chosen, observed, replicated = chosen or resolve(of_kind(prediction)), {}, {}
    for name in chosen:
        paired = "latents" in wanted.get(name, ())
        of_data = [value(name, replicates.labels, r) for r in (range(num_replicates) if paired else (0,))]
        values = [value(name, labels, r) for r, labels in enumerate(replicates.replicated_labels)]
        for each in (*of_data, *values):
            if each.shape != of_data[0].shape:
                raise ValueError(
                    f"statistic {name!r} changes its shape: {tuple(of_data[0].shape)} for the data's labels, "
                    f"{tuple(each.shape)} for a replicate's"
                )
        observed[name], replicated[name] = torch.stack(of_data) if paired else of_data[0], torch.stack(values)
    return PredictiveCheck(**vars(replicates), observed=observed, replicated=replicated)


def prior_predictive_check(
    model: nn.Module,
    data: Iterable,
    *,
    statistics: Mapping[str, Statistic] | Sequence[str | Statistic] | None = None,
    num_replicates: int = 200,
) -> PredictiveCheck:
    """The same with all latent sites drawn from their priors, at the network's present weights (Box, 1980).

    Data that come from the model have uniform p-values. Arguments, result and errors are those of
    :func:`posterior_predictive_check`.
    """
    return posterior_predictive_check(model, None, data, statistics=statistics, num_replicates=num_replicates)


def p_value(observed: Tensor, replicated: Tensor) -> Tensor:
    """P(T(replicate) ≥ T(data)): the place of the data in the order of all R + 1 values, ties counted half.

    (#{T_r > T} + ½ #{T_r = T} + ½) / (R + 1). The data count as one more replicate, so that the value is never 0 or 1,
    which R replicates cannot tell from small (Phipson & Smyth, 2010); with the half it has mean ½ for exchangeable
    values, ties or not (mid-p, Lancaster, 1961), and that of −T is one minus it.

    Args:
        observed: T of the data ``(...)``, or at each draw ``(R, ...)``.
        replicated: T of the replicates ``(R, ...)``.
    """
    above = (replicated > observed).double().sum(0)
    ties = (replicated == observed).double().sum(0)
    return (above + (ties + 1) / 2) / (len(replicated) + 1)


def _keeping_inputs(data: Iterable, inputs: list[Tensor]) -> Iterator:
    """The batches, whose inputs are kept on their way."""
    for batch in (data,) if isinstance(data, Tensor) else data:
        inputs.append(batch if isinstance(batch, Tensor) else batch[0])
        yield batch


def _joined(inputs: list[Tensor]) -> Tensor:
    """The inputs of all batches ``(n, ...)``, with 0 behind shorter ones."""
    shape = [max(sizes) for sizes in zip(*(each.shape[1:] for each in inputs), strict=True)]
    return torch.cat([padded(each, torch.Size(shape)) for each in inputs])


def _of_labels(x: Tensor, mask: Tensor | None) -> Tensor:
    """The inputs themselves, or those of the real tokens ``(m, ...)``."""
    if mask is None:
        return x
    if x.shape[: mask.dim()] != mask.shape:
        raise ValueError(f"inputs of shape {tuple(x.shape)} are not one per token, {tuple(mask.shape)}")
    return x[mask.to(x.device)]
