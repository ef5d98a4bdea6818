"""Prior and posterior predictive checks: test statistics of observed data compared with replicated data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.diagnostics import check_statistics
from probattn.inference.diagnostics.check_statistics import Statistic
from probattn.inference.diagnostics.posterior_draws import record
from probattn.inference.diagnostics.replicates import Replicates, replicate
from probattn.inference.prediction.aggregate import longest, pad_to_shape


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictiveCheck(Replicates):
    """Test statistics T of observed labels and of R replicates; ``print`` displays a table.

    Args:
        observed: T of the data by name, ``()`` or ``(k,)``; for a discrepancy, which also depends on the latent sites,
            T at each of their draws, ``(R,)`` or ``(R, k)``.
        replicated: T of each replicate, ``(R,)`` or ``(R, k)``; for a discrepancy at the same draws.
    """

    observed: dict[str, Tensor]
    replicated: dict[str, Tensor]

    @property
    def p_values(self) -> dict[str, Tensor]:
        """P(T(replicate) ≥ T(data)) by name, in the shape of the statistic: see :func:`p_value`."""
        return {name: p_value(observed, self.replicated[name]) for name, observed in self.observed.items()}

    @property
    def two_sided(self) -> dict[str, Tensor]:
        """Two-sided p-values 2 min(p, 1 − p) by name, small if the data lie in either tail."""
        return {name: 2 * torch.minimum(p, 1 - p) for name, p in self.p_values.items()}

    def is_discrepancy(self, name: str) -> bool:
        """Return True for a discrepancy, for which the table has the mean over draws as observed value."""
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
    """Compare test statistics of a data set with those of replicates from the posterior predictive.

    Each replicate has one draw of all latent sites and labels of all examples sampled given it (Rubin, 1984; Gelman,
    Meng & Stern, 1996). On training data, p-values concentrate around ½ even for the true model, since the posterior
    has seen the data; held-out data show misfit more clearly.

    A statistic with a parameter ``latents`` is a discrepancy T(y, θ): at each draw θ_r of the latent sites, that of the
    replicate is compared with that of the data, P(T(y_rep, θ) ≥ T(y, θ)) (Gelman et al., 1996).

    Args:
        model, guide: the model and its guide.
        data: batches ``(x, y)`` or ``(x, y, mask)``, with any likelihood.
        statistics: callables ``(labels, prediction) -> number or vector`` by name, or a sequence of callables and names
            in :data:`~probattn.inference.diagnostics.check_statistics.STATISTICS`. Optional parameters: ``x``, the
            inputs ``(n, ...)``, and ``latents``, a draw of the latent sites by name. Default for classification:
            accuracy, class frequencies, ECE and entropy of the labels; otherwise mean, standard deviation and RMSE.
        num_replicates: R; p-values lie between 1/(2 (R + 1)) and 1 − 1/(2 (R + 1)).

    Returns:
        The check. Its ``prediction``, the mean over the R draws, is the argument of the statistics for the data and all
        replicates; that it includes each replicate's draw changes ranks by O(1/R).

    Raises:
        ValueError: fewer than one replicate; data without labels; a statistic that is NaN or changes its shape, or
            whose name is unknown; errors of :func:`~probattn.inference.predict`.
    """
    if num_replicates < 1:
        raise ValueError(f"num_replicates must be at least 1, got {num_replicates}")
    chosen = None if statistics is None else check_statistics.resolve(statistics)
    optional = {name: check_statistics.optional_parameters(each) for name, each in (chosen or {}).items()}
    needed = {name for names in optional.values() for name in names}
    inputs: list[Tensor] = []
    if "x" in needed:
        data = _storing_inputs(data, inputs)
    drawn = record()
    with drawn if "latents" in needed else nullcontext():
        replicates = replicate(model, guide, data, num_samples=num_replicates)
    latents = drawn.latents
    prediction, mask = replicates.prediction, None
    if prediction.mask is not None:
        mask, prediction = prediction.mask, prediction.tokens()
    x = _inputs_of_labels(inputs, mask) if inputs else None

    def value(name: str, labels: Tensor, draw: int) -> Tensor:
        available = {"x": x, "latents": {site: each[draw] for site, each in latents.items()}}
        arguments = {each: available[each] for each in optional.get(name, ())}
        labels = labels if mask is None else labels[mask]
        return check_statistics.evaluate(name, chosen[name], labels, prediction, **arguments)

    chosen = chosen or check_statistics.resolve(check_statistics.default_statistics(prediction))
    observed, replicated = {}, {}
    for name in chosen:
        is_discrepancy = "latents" in optional.get(name, ())
        of_data = [value(name, replicates.labels, r) for r in (range(num_replicates) if is_discrepancy else (0,))]
        values = [value(name, labels, r) for r, labels in enumerate(replicates.replicated_labels)]
        for each in (*of_data, *values):
            if each.shape != of_data[0].shape:
                raise ValueError(
                    f"statistic {name!r} changes its shape: {tuple(of_data[0].shape)} for the data's labels, "
                    f"{tuple(each.shape)} for a replicate's"
                )
        observed[name], replicated[name] = torch.stack(of_data) if is_discrepancy else of_data[0], torch.stack(values)
    return PredictiveCheck(**vars(replicates), observed=observed, replicated=replicated)


def prior_predictive_check(
    model: nn.Module,
    data: Iterable,
    *,
    statistics: Mapping[str, Statistic] | Sequence[str | Statistic] | None = None,
    num_replicates: int = 200,
) -> PredictiveCheck:
    """Compare test statistics of a data set with those of replicates from the prior predictive (Box, 1980).

    All latent sites are drawn from their priors, at the network's current weights. Data from the model have uniform
    p-values. Arguments, result and errors are those of :func:`posterior_predictive_check`.
    """
    return posterior_predictive_check(model, None, data, statistics=statistics, num_replicates=num_replicates)


def p_value(observed: Tensor, replicated: Tensor) -> Tensor:
    """Return the mid-p value of T(replicate) ≥ T(data), from the rank of the data among all R + 1 values.

    (#{T_r > T} + ½ #{T_r = T} + ½) / (R + 1). The data count as one more replicate, so that p is never 0 or 1, which R
    replicates cannot resolve (Phipson & Smyth, 2010). Counting ties half gives it mean ½ for exchangeable values
    (Lancaster, 1961), and makes p of −T one minus that of T.

    Args:
        observed: T of the data ``(...)``, or at each draw ``(R, ...)``.
        replicated: T of the replicates ``(R, ...)``.
    """
    above = (replicated > observed).double().sum(0)
    ties = (replicated == observed).double().sum(0)
    return (above + (ties + 1) / 2) / (len(replicated) + 1)


def _storing_inputs(data: Iterable, inputs: list[Tensor]) -> Iterator:
    """Yield the batches and append their inputs to a list."""
    for batch in iterate_batches(data):
        inputs.append(unpack_batch(batch)[0])
        yield batch


def _inputs_of_labels(inputs: list[Tensor], mask: Tensor | None) -> Tensor:
    """Return the inputs of all batches, padded with 0, or for labels per token those at real tokens ``(m, ...)``."""
    x = torch.cat([pad_to_shape(each, longest(inputs)) for each in inputs])
    if mask is None:
        return x
    if x.shape[: mask.dim()] != mask.shape:
        raise ValueError(f"inputs of shape {tuple(x.shape)} are not one per token, {tuple(mask.shape)}")
    return x[mask.to(x.device)]
