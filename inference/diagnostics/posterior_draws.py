"""Draws of the latent sites in a prediction, and data replicated from the prior or posterior predictive at them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.prediction.aggregate import pad_to_shape
from probattn.inference.prediction.latents import current_draw, labels_at
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction
from probattn.messages import is_amortised, is_global_latent, is_latent
from probattn.pyro_internals import HANDLERS


class _Stacking(Messenger):
    """Base of handlers that collect values of all draws, whether these run at once or one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[Tensor]] = defaultdict(list)

    def stack(self, name: str, value: Tensor) -> Tensor | None:
        """Return all draws at the last of several sequential ones, None before; if draws are joint, the value."""
        draw = current_draw()
        if draw is None:
            return value
        self.rows[name].append(value)
        return torch.stack(self.rows.pop(name)) if draw.row == draw.of - 1 else None


class record(_Stacking):  # noqa: N801 - lower case like other handlers
    """Handler that records the latent sites that :func:`~probattn.inference.predict` draws in its context.

    >>> with record() as drawn:
    ...     prediction = predict(model, guide, x, num_samples=200, keep_draws=True)  # doctest: +SKIP
    >>> u = drawn.latents["network.blocks.1.attention.u"]  # doctest: +SKIP

    Row s of ``u``, ``(200, *event)``, belongs to ``prediction.draws[s]``.

    Args:
        sites: names of the sites to record, all by default. A local site takes as much memory as S forward passes over
            the data.

    Attributes:
        shared: draws ``(S, *event)`` of the global sites by name.
        local: pieces ``(S, b, *event)`` of the local sites by name, in the order of the data.
    """

    def __init__(self, sites: Collection[str] | None = None) -> None:
        super().__init__()
        self.sites = sites
        self.shared: dict[str, Tensor] = {}
        self.local: dict[str, list[Tensor]] = defaultdict(list)

    @property
    def latents(self) -> dict[str, Tensor]:
        """Draws by site: ``(S, *event)`` of global sites, ``(S, n, *event)`` of local ones."""
        return self.shared | {name: torch.cat(pieces, dim=1) for name, pieces in self.local.items()}

    def _pyro_post_sample(self, msg: Message) -> None:
        name, in_model = msg["name"], any(isinstance(handler, labels_at) for handler in HANDLERS)
        is_drawn = in_model and (is_latent(msg) or is_amortised(msg))  # and no site of the guide's run
        if not is_drawn or (self.sites is not None and name not in self.sites):
            return
        if (draws := self.stack(name, msg["value"])) is None:
            return
        if is_global_latent(msg):
            self.shared[name] = draws.squeeze(1) if current_draw() is None else draws
        else:
            self.local[name].append(draws)


def posterior_draws(
    model: nn.Module, guide: nn.Module | None, batch: Tensor | Iterable, *, num_samples: int
) -> dict[str, Tensor]:
    """Draw every latent site as a prediction does, in evaluation mode and without gradients.

    Args:
        model, guide: the model and its guide; None draws from the prior.
        batch: data as for ``predict``. Local sites are drawn given its inputs.
        num_samples: S.

    Returns:
        By site name: ``(S, *event)`` of global sites, ``(S, n, *event)`` of local ones, drawn given row s of the sites
        that they depend on. Empty for a network without latent sites.
    """
    with record() as drawn:
        predict(model, guide, batch, num_samples=num_samples)
    return drawn.latents


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
    ``y``, under any likelihood. :class:`record` around it records those latent sites. Batches are streamed.

    Args:
        model, guide: the model and its guide; None samples from the prior predictive.
        data: batches ``(x, y)`` or ``(x, y, mask)``.
        num_samples: R.

    Raises:
        ValueError: batches without labels, labels whose shape differs from the likelihood's, and errors of ``predict``.
    """
    with _LabelSampler(num_samples) as sampler:
        prediction = predict(model, guide, sampler.watch(data), num_samples=num_samples)
    labels = prediction.labels
    replicated = torch.cat([pad_to_shape(piece, labels.shape[1:]) for piece in sampler.replicated], dim=1)
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


class _LabelSampler(_Stacking):
    """Handler that records the labels sampled at ``y`` and the log likelihood of the current batch's labels."""

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.num_samples = num_samples
        self.replicated: list[Tensor] = []
        self.log_likelihood: list[Tensor] = []

    def watch(self, data: Iterable) -> Iterator:
        """Yield the batches and remember the labels of the current one, which ``predict`` runs before the next."""
        for number, batch in enumerate(iterate_batches(data)):
            x, y, _ = unpack_batch(batch)
            if y is None or len(y) != len(x):
                raise ValueError(f"batch {number} has {len(x)} inputs and {'no' if y is None else len(y)} labels")
            self.labels = y  # those that no chunk of the batch has been compared with yet
            yield batch

    def _pyro_sample(self, msg: Message) -> None:
        if msg["name"] == "y" and current_draw() is None and len(msg["fn"].batch_shape) == 1:  # nothing below is drawn
            msg["fn"] = msg["fn"].expand((self.num_samples, *msg["fn"].batch_shape))

    def _pyro_post_sample(self, msg: Message) -> None:
        if msg["name"] != "y":
            return
        likelihood, replicated = msg["fn"], msg["value"]
        size = likelihood.batch_shape[-1]
        labels, event_shape = self.labels[:size], likelihood.event_shape
        if labels.shape[1:] != event_shape:
            raise ValueError(f"the likelihood takes labels of shape {(size, *event_shape)}, got {tuple(labels.shape)}")
        log_likelihood = self.stack("log_likelihood", likelihood.log_prob(labels.to(replicated)).to(labels.device))
        replicated = self.stack("y", replicated.to(labels.device))
        if replicated is not None:
            self.labels = self.labels[size:]
            self.log_likelihood.append(log_likelihood)
            self.replicated.append(replicated)
