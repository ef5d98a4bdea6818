"""Export of prior and posterior draws to ArviZ."""

from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor, nn

from probattn.inference.batches import iterate_batches
from probattn.inference.diagnostics.posterior_draws import record, replicate
from probattn.inference.imports import extra


def to_datatree(
    model: nn.Module,
    guide: nn.Module,
    data: Iterable,
    *,
    num_samples: int = 200,
    sites: Collection[str] | None = None,
) -> Any:
    """Convert a model's draws to ArviZ's ``DataTree``, with one chain; draw r is the same in all posterior groups.

    Groups: ``posterior`` and ``prior`` hold the latent sites by their paths; ``posterior_predictive`` and
    ``prior_predictive`` replicated labels ``y``; ``log_likelihood`` that of each example's labels in nats, ``y``;
    ``observed_data`` the labels. Local sites have the dimension ``example``. Draws of a guide are independent, so chain
    diagnostics (R̂, effective sample size) do not measure its distance to the posterior. A network without latent sites
    has no ``posterior`` group.

    >>> arviz_plots.plot_ppc_dist(to_datatree(model, guide, test))  # doctest: +SKIP

    Args:
        model, guide: the model and its guide.
        data: batches ``(x, y)`` or ``(x, y, mask)``, iterated twice and held in memory in between.
        num_samples: number of draws from the posterior, and of draws from the prior.
        sites: names of the latent sites to export, all by default. A local site takes as much memory as
            ``num_samples`` forward passes over the data.

    Raises:
        MissingExtraError: arviz-base is not installed.
        ValueError: data without labels; errors of :func:`~probattn.inference.predict`.
    """
    with extra("arviz", needed_by="to_datatree"):
        import arviz_base
    batches = list(iterate_batches(data))
    groups, dims = {}, {"y": ["example"]}
    for kind, source in (("posterior", guide), ("prior", None)):
        with record(num_samples, sites) as drawn:
            replicates = replicate(model, source, batches, num_samples=num_samples)
        groups |= {kind: drawn.latents, f"{kind}_predictive": {"y": _signed(replicates.replicated_labels)}}
        if kind == "posterior":
            groups["log_likelihood"] = {"y": replicates.log_likelihood}
        dims |= {name: ["example"] for name in drawn.local}
    chains = {
        group: {name: values[None].cpu().numpy() for name, values in draws.items()}
        for group, draws in groups.items()
        if draws
    }
    return arviz_base.from_dict(chains | {"observed_data": {"y": _signed(replicates.labels).cpu().numpy()}}, dims=dims)


def _signed(labels: Tensor) -> Tensor:
    """Convert labels to a dtype that ArviZ can plot: it supports neither unsigned integers nor booleans."""
    return labels if labels.is_floating_point() else labels.long()
