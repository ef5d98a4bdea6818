"""Export of prior and posterior draws to ArviZ."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from probattn.inference.batches import iterate_batches
from probattn.inference.diagnostics.predictive_check import replicate
from probattn.inference.imports import extra
from probattn.threads import one_thread_at_a_time


@one_thread_at_a_time
def to_datatree(
    model: nn.Module, guide: nn.Module, data: Iterable, *, num_samples: int = 200
) -> Any:
    """Convert a model's draws to ArviZ's ``DataTree``, with one chain; draw r is the same in all
    posterior groups.

    Groups: ``posterior`` and ``prior`` hold the global latent sites by their paths;
    ``posterior_predictive`` and ``prior_predictive`` replicated labels ``y``; ``log_likelihood``
    that of each example's labels in nats, ``y``; ``observed_data`` the labels. Draws of a guide are
    independent, so chain diagnostics (R̂, effective sample size) do not measure its distance to the
    posterior. A network without global latent sites has no ``posterior`` group.

    >>> arviz_plots.plot_ppc_dist(to_datatree(model, guide, test))  # doctest: +SKIP

    Args:
        model, guide: the model and its guide.
        data: batches ``(x, y)`` or ``(x, y, mask)``, iterated twice and held in memory meanwhile.
        num_samples: number of draws from the posterior, and of draws from the prior.

    Raises:
        MissingExtraError: arviz-base is not installed.
        ValueError: errors of :func:`~probattn.inference.predict`.
    """
    with extra("arviz", needed_by="to_datatree"):
        import arviz_base
    batches = list(iterate_batches(data))
    posterior = replicate(model, guide, batches, num_samples=num_samples)
    prior = replicate(model, None, batches, num_samples=num_samples)
    groups = {
        "posterior": posterior.latents,
        "posterior_predictive": {"y": _signed(posterior.replicated_labels)},
        "log_likelihood": {"y": posterior.log_likelihood},
        "prior": prior.latents,
        "prior_predictive": {"y": _signed(prior.replicated_labels)},
    }
    content = {"observed_data": {"y": _signed(posterior.labels).cpu().numpy()}}
    for group, draws in groups.items():
        if draws:
            content[group] = {name: value[None].cpu().numpy() for name, value in draws.items()}
    return arviz_base.from_dict(content, dims={"y": ["example"]})


def _signed(labels: Tensor) -> Tensor:
    """Convert labels to a dtype that ArviZ can plot: it supports neither unsigned integers nor
    booleans."""
    return labels if labels.is_floating_point() else labels.long()
