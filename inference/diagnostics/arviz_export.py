"""Export to ArviZ, whose tools then compare, plot and score."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor, nn

from probattn.inference.diagnostics.posterior_draws import record, replicate

if TYPE_CHECKING:
    import arviz


def to_inference_data(
    model: nn.Module,
    guide: nn.Module,
    data: Iterable,
    *,
    num_samples: int = 200,
    sites: Collection[str] | None = None,
) -> "arviz.InferenceData":
    """The model's draws as ArviZ ``InferenceData``: one chain, whose draw r is the same in all groups of one origin.

    Groups: ``posterior`` and ``prior`` hold the latent sites by their paths; ``posterior_predictive`` and
    ``prior_predictive`` labels drawn anew, ``y``; ``log_likelihood`` that of each example's labels in nats, ``y``;
    ``observed_data`` the labels. What belongs to one example has the dimension ``example``. Draws of a guide are
    independent: diagnostics of chains (R̂, effective sample size) say nothing about how near it is to the posterior. A
    network that draws nothing has no ``posterior``, without which ``arviz.loo`` must be told ``reff=1``.

    >>> arviz.plot_ppc(to_inference_data(model, guide, test))  # doctest: +SKIP

    Args:
        model, guide: the model and its guide.
        data: batches ``(x, y)`` or ``(x, y, mask)``, run through twice and held in memory between.
        num_samples: draws from the posterior, and as many from the prior.
        sites: names of the latent sites to export, all by default. One of each example's own is as large as
            ``num_samples`` forward passes over the data.

    Raises:
        ImportError: ArviZ is missing.
        ValueError: a site that the model does not draw; data without labels, and what ``predict`` refuses.
    """
    try:
        import arviz
    except ImportError as error:
        raise ImportError("to_inference_data needs ArviZ: pip install probattn[arviz]") from error
    batches = data if isinstance(data, Tensor) else list(data)
    with record(sites) as drawn:
        posterior = replicate(model, guide, batches, num_samples=num_samples)
    with record(sites) as drawn_prior:
        prior = replicate(model, None, batches, num_samples=num_samples)
    unknown = set(sites or ()) - {*drawn.shared, *drawn.local}
    if unknown:
        raise ValueError(f"the model draws no site {', '.join(sorted(unknown))}: leave out `sites` to export all")
    return arviz.from_dict(
        posterior=_one_chain(drawn.latents),
        posterior_predictive=_one_chain({"y": _signed(posterior.replicated_labels)}),
        log_likelihood=_one_chain({"y": posterior.log_likelihood}),
        prior=_one_chain(drawn_prior.latents),
        prior_predictive=_one_chain({"y": _signed(prior.replicated_labels)}),
        observed_data={"y": _signed(posterior.labels).cpu().numpy()},
        dims={name: ["example"] for name in ("y", *drawn.local)},
    )


def _one_chain(draws: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: values.unsqueeze(0).cpu().numpy() for name, values in draws.items()}


def _signed(labels: Tensor) -> Tensor:
    """Labels in a dtype that ArviZ plots: it takes no unsigned integers and no booleans."""
    return labels if labels.is_floating_point() else labels.long()
