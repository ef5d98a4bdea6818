"""Replicated data: labels sampled from the prior or posterior predictive, coherently over a data set."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.diagnostics.sequential_draws import SequentialDraws
from probattn.inference.prediction.aggregate import pad_to_shape
from probattn.inference.prediction.latents import current_draw
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction


@dataclass(frozen=True, eq=False, kw_only=True)
class Replicates:
    """Replicated labels of a data set of n examples; row r is sampled given draw r of all latent sites.

    Args:
        labels: observed labels ``(n, ...)``.
        mask: True for labels that count, in their shape: all but those of padding.
        replicated_labels: labels sampled from the likelihood ``(R, n, ...)`` in its dtype; 0 where the mask is False,
            as in the observed labels.
        log_likelihood: of the observed labels, in nats ``(R, n)``.
        prediction: the mean over the same draws.
    """

    labels: Tensor
    mask: Tensor
    replicated_labels: Tensor
    log_likelihood: Tensor
    prediction: Prediction


def replicate(model: nn.Module, guide: nn.Module | None, data: Iterable, *, num_samples: int) -> Replicates:
    """Sample replicated labels of a data set, with the log likelihood of the observed ones.

    Draw r of the latent sites is one function on all batches; its labels are sampled by the model's program at its site
    ``y``, under any likelihood. :class:`~probattn.inference.diagnostics.posterior_draws.record` around it records those
    latent sites. Batches are streamed.

    Args:
        model, guide: the model and its guide; None samples from the prior predictive.
        data: batches ``(x, y)`` or ``(x, y, mask)``.
        num_samples: R.

    Raises:
        ValueError: batches without labels, labels whose shape differs from the likelihood's, and errors of ``predict``.
    """
    sampler = _LabelSampler(num_samples)
    with sampler:
        prediction = predict(model, guide, sampler.watch(data), num_samples=num_samples)
    labels = prediction.labels
    replicated = torch.cat([pad_to_shape(each, labels.shape[1:]) for each in sampler.replicated_labels], dim=1)
    mask = torch.ones_like(labels, dtype=torch.bool)
    if prediction.mask is not None:
        mask &= prediction.mask.reshape(prediction.mask.shape + (1,) * (labels.dim() - prediction.mask.dim()))
    return Replicates(
        labels=labels.to(torch.promote_types(labels.dtype, replicated.dtype)),
        mask=mask,
        replicated_labels=replicated.where(mask, 0),
        log_likelihood=torch.cat(sampler.log_likelihood, dim=1),
        prediction=prediction,
    )


class _LabelSampler(Messenger):
    """Handler that records the labels sampled at ``y`` and the log likelihood of the current batch's labels."""

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.num_samples = num_samples
        self.replicated_labels: list[Tensor] = []
        self.log_likelihood: list[Tensor] = []
        self._sequential = SequentialDraws()

    def watch(self, data: Iterable) -> Iterator:
        """Yield the batches and remember the labels of the current one, which ``predict`` runs before the next."""
        for number, batch in enumerate(iterate_batches(data)):
            x, self._labels, _ = unpack_batch(batch)
            if self._labels is None:
                raise ValueError(f"batch {number} has no labels to compare with: pass batches (x, y) or (x, y, mask)")
            if len(self._labels) != len(x):
                raise ValueError(f"batch {number} has {len(x)} inputs and {len(self._labels)} labels")
            self._start = 0
            yield batch

    def _pyro_sample(self, msg: Message) -> None:
        drawn_jointly = current_draw() is None
        if msg["name"] == "y" and drawn_jointly and len(msg["fn"].batch_shape) == 1:  # no latent site, one batch shape
            msg["fn"] = msg["fn"].expand((self.num_samples, *msg["fn"].batch_shape))

    def _pyro_post_sample(self, msg: Message) -> None:
        if msg["name"] != "y":
            return
        likelihood, drawn = msg["fn"], msg["value"]
        piece = slice(self._start, self._start + likelihood.batch_shape[-1])
        labels = self._labels[piece]
        if labels.shape != (drawn.shape[1:] if current_draw() is None else drawn.shape):
            expected = (len(self._labels), *likelihood.event_shape)
            raise ValueError(f"the likelihood takes labels of shape {expected}, got {tuple(self._labels.shape)}")
        log_likelihood = likelihood.log_prob(labels.to(drawn)).to(labels.device)
        log_likelihood = self._sequential.stack("log_likelihood", log_likelihood)
        drawn = self._sequential.stack("drawn", drawn.to(labels.device))
        if drawn is not None:
            self._start = piece.stop
            self.log_likelihood.append(log_likelihood)
            self.replicated_labels.append(drawn)
