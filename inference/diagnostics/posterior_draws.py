"""What a prediction draws: its latent sites, and labels anew, each as one tensor of the whole data set."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn.handlers import current_draw, is_global_latent, is_latent, local_posteriors, local_priors
from probattn.inference.prediction.predict import Prediction, predict
from probattn.pyro_compat import HANDLER_STACK


class record(Messenger):  # noqa: N801 - lower case as the other handlers are
    """Keeps what :func:`~probattn.inference.predict` draws at its latent sites, around it.

    >>> with record() as drawn:
    ...     prediction = predict(model, guide, x, num_samples=200, keep_draws=True)  # doctest: +SKIP
    >>> u = drawn.latents["network.blocks.1.attention.u"]  # doctest: +SKIP

    Row s of ``u``, ``(200, *event)``, is what ``prediction.draws[s]`` was computed from.

    Args:
        sites: names of the sites to keep, all by default. A site of one example takes as much memory as S forward
            passes over the data.

    Attributes:
        shared: draws ``(S, *event)`` by name of the sites that all examples share.
        local: pieces ``(S, b, *event)`` of those of one example, in the order of the data.
    """

    def __init__(self, sites: Collection[str] | None = None) -> None:
        super().__init__()
        self.sites = sites
        self.shared: dict[str, Tensor] = {}
        self.local: dict[str, list[Tensor]] = defaultdict(list)
        self._rows = _Rows()

    @property
    def latents(self) -> dict[str, Tensor]:
        """Draws by site: ``(S, *event)`` of what all examples share, ``(S, n, *event)`` of what each has of its own."""
        return self.shared | {name: torch.cat(pieces, dim=1) for name, pieces in self.local.items()}

    def _pyro_post_sample(self, msg: Message) -> None:
        name, value = msg["name"], msg["value"]
        if not _in_model() or (self.sites is not None and name not in self.sites):
            return
        together = current_draw() is None
        if not is_latent(msg) or (value := self._rows.whole(name, value)) is None:
            return
        if is_global_latent(msg):
            self.shared[name] = value.squeeze(1) if together else value
        else:
            self.local[name].append(value)


class _Rows:
    """Gathers values of draws that run one after another."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Tensor]] = defaultdict(list)

    def whole(self, name: str, value: Tensor) -> Tensor | None:
        """The value itself where all draws run at once; else all rows ``(S, ...)`` at the last one, and None before."""
        draw = current_draw()
        if draw is None:
            return value
        self.rows[name].append(value)
        return torch.stack(self.rows.pop(name)) if draw.row == draw.of - 1 else None


def posterior_draws(
    model: nn.Module, guide: nn.Module | None, batch: Tensor | Iterable, *, num_samples: int
) -> dict[str, Tensor]:
    """Draws of every latent site as a prediction makes them, in evaluation mode and without gradients.

    Args:
        model, guide: the model and its guide; None draws from the prior.
        batch: what ``predict`` takes. Sites of one example are drawn given its inputs.
        num_samples: S.

    Returns:
        By the name of the site: ``(S, *event)`` of one that all examples share, ``(S, n, *event)`` of one of each
        example, drawn given row s of those above it. Empty for a network that draws nothing.
    """
    with record() as drawn:
        predict(model, guide, batch, num_samples=num_samples)
    return drawn.latents


@dataclass(frozen=True, eq=False, kw_only=True)
class Replicates:
    """Labels drawn anew for a data set of n examples: row r everywhere from draw r of all latent sites.

    Args:
        labels: the labels of the data ``(n, ...)``.
        mask: which of them count, in their shape: all but padded tokens.
        replicated_labels: labels from the likelihood ``(R, n, ...)`` in its own dtype; those that do not count are 0,
            in the data's labels, too.
        log_likelihood: of the data's labels, in nats ``(R, n)``.
        prediction: the mean over the same draws.
    """

    labels: Tensor
    mask: Tensor
    replicated_labels: Tensor
    log_likelihood: Tensor
    prediction: Prediction


def replicate(model: nn.Module, guide: nn.Module | None, data: Iterable, *, num_samples: int) -> Replicates:
    """Labels drawn anew from the posterior predictive, coherently over the data set, with their log-likelihoods.

    Draw r of the latent sites is one function on all batches; its labels are the ones that the model's program draws
    at its site ``y`` under any likelihood. Around it, :class:`record` keeps those latent sites. Batches are streamed.

    Args:
        model, guide: the model and its guide; None replicates from the prior.
        data: batches ``(x, y)`` or ``(x, y, mask)``.
        num_samples: R.

    Raises:
        ValueError: batches without labels, labels of another shape than the likelihood's, and what ``predict`` refuses.
    """
    relabel = _Relabel(num_samples)
    with relabel:
        prediction = predict(model, guide, relabel.watch(data), num_samples=num_samples)
    labels = prediction.labels
    drawn = torch.cat([padded(each, labels.shape[1:]) for each in relabel.replicated_labels], dim=1)
    mask = torch.ones_like(labels, dtype=torch.bool)
    if prediction.mask is not None:
        mask &= prediction.mask.reshape(prediction.mask.shape + (1,) * (labels.dim() - prediction.mask.dim()))
    return Replicates(
        labels=labels.to(torch.promote_types(labels.dtype, drawn.dtype)),
        mask=mask,
        replicated_labels=drawn.where(mask, 0),
        log_likelihood=torch.cat(relabel.log_likelihood, dim=1),
        prediction=prediction,
    )


class _Relabel(Messenger):
    """Keeps the labels drawn at ``y`` and the likelihood of those of the batch that is passing."""

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.num_samples = num_samples
        self.replicated_labels: list[Tensor] = []
        self.log_likelihood: list[Tensor] = []
        self._rows = _Rows()

    def watch(self, data: Iterable) -> Iterator:
        """The batches, each noted on its way to ``predict``, which asks for the next when it is done with one."""
        for number, batch in enumerate((data,) if isinstance(data, Tensor) else data):
            x, self._labels = (*((batch,) if isinstance(batch, Tensor) else batch), None)[:2]
            if self._labels is None:
                raise ValueError(f"batch {number} has no labels to compare with: pass batches (x, y) or (x, y, mask)")
            if len(self._labels) != len(x):
                raise ValueError(f"batch {number} has {len(x)} inputs and {len(self._labels)} labels")
            self._start = 0
            yield batch

    def _pyro_sample(self, msg: Message) -> None:
        together = current_draw() is None
        if msg["name"] == "y" and together and len(msg["fn"].batch_shape) == 1:  # nothing above draws, labels still do
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
        log_likelihood = self._rows.whole("log_likelihood", likelihood.log_prob(labels.to(drawn)).to(labels.device))
        drawn = self._rows.whole("drawn", drawn.to(labels.device))
        if drawn is not None:
            self._start = piece.stop
            self.log_likelihood.append(log_likelihood)
            self.replicated_labels.append(drawn)


def padded(labels: Tensor, shape: torch.Size) -> Tensor:
    """Labels or inputs ``(..., *event)`` of one batch with 0 behind them, up to the shape of the longest example's."""
    own = labels.shape[labels.dim() - len(shape) :]
    behind = [(0, whole - part) for whole, part in zip(shape, own, strict=True)]
    return nn.functional.pad(labels, [side for pair in reversed(behind) for side in pair])


def _in_model() -> bool:
    """Whether it is the model that runs, not the guide: ``predict`` says where its local sites are drawn from."""
    return any(isinstance(handler, (local_posteriors, local_priors)) for handler in HANDLER_STACK)
