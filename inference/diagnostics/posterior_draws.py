"""Draws of the global latent sites in a prediction, and replicated data at them."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn.inference.prediction.class_labels import log_of
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction
from probattn.threads import one_thread_at_a_time


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
