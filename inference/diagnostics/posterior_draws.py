"""Draws of the latent sites in a prediction, and data replicated from the prior or posterior predictive at them."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction
from probattn.messages import is_amortised, is_global_latent, is_latent, is_of_draws


class record(Messenger):  # noqa: N801 - lower case like other handlers
    """Handler that records the latent sites that :func:`~probattn.inference.predict` draws in its context.

    >>> with record(200) as drawn:
    ...     prediction = predict(model, guide, x, num_samples=200, keep_draws=True)  # doctest: +SKIP
    >>> u = drawn.latents["network.blocks.1.attention.u"]  # doctest: +SKIP

    Row s of ``u``, ``(200, *event)``, belongs to ``prediction.draws[s]``.

    Args:
        num_samples: S, the number of draws of the prediction.
        sites: names of the sites to record, all by default. A local site takes as much memory as S forward passes over
            the data.
    """

    def __init__(self, num_samples: int, sites: Collection[str] | None = None) -> None:
        super().__init__()
        self.num_samples, self.sites = num_samples, sites
        self.run: dict[str, tuple[Tensor, bool]] = {}  # sites of the present run; the model's replace the guide's
        self.rows: dict[str, list[Tensor]] = defaultdict(list)  # S rows of each global site
        self.pieces: dict[str, list[Tensor]] = defaultdict(list)  # of local sites: S draws or one of a piece of data

    @property
    def shared(self) -> dict[str, Tensor]:
        """Draws ``(S, *event)`` of the global sites."""
        return {name: torch.stack(rows) for name, rows in self.rows.items()}

    @property
    def local(self) -> dict[str, Tensor]:
        """Draws ``(S, n, *event)`` of the local sites, in the order of the data."""
        joined = {}
        for name, pieces in self.pieces.items():
            pieces = [piece for piece in pieces if len(piece) == len(pieces[-1])]  # none of a failed trial of all draws
            step = self.num_samples // len(pieces[-1])
            pieces = [torch.cat(pieces[first : first + step]) for first in range(0, len(pieces), step)]
            joined[name] = torch.cat(pieces, dim=1)
        return joined

    @property
    def latents(self) -> dict[str, Tensor]:
        """Draws by site: ``(S, *event)`` of global sites, ``(S, n, *event)`` of local ones."""
        return self.shared | self.local

    def _pyro_post_sample(self, msg: Message) -> None:
        name = msg["name"]
        if name == "y":  # the end of a run of the model
            for site, (value, is_global) in self.run.items():
                if is_global:
                    self.rows[site] = [*self.rows[site], *value][-self.num_samples :]
                else:
                    self.pieces[site].append(value)
            self.run = {}
        elif (is_latent(msg) or is_amortised(msg)) and not msg["infer"].get("is_auxiliary"):
            if self.sites is not None and name not in self.sites:
                return
            is_global, is_joint = is_global_latent(msg), any(map(is_of_draws, msg["cond_indep_stack"]))
            value = msg["value"] if is_joint else msg["value"].unsqueeze(0)
            self.run[name] = value.squeeze(1) if is_global and is_joint else value, is_global


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
    with record(num_samples) as drawn:
        predict(model, guide, batch, num_samples=num_samples)
    return drawn.latents


@dataclass(frozen=True, eq=False, kw_only=True)
class Replicates:
    """Replicated labels of a data set of n examples; row r is sampled given draw r of all latent sites.

    Args:
        labels: observed labels ``(n, ...)``.
        replicated_labels: labels sampled from the likelihood ``(R, n, ...)`` in its dtype; 0 at padding, as in the
            observed labels.
        log_likelihood: of the observed labels, in nats ``(R, n)``. Probabilities of classes that are 0 count as the
            smallest normal number.
        prediction: the mean over the same draws.
    """

    labels: Tensor
    replicated_labels: Tensor
    log_likelihood: Tensor
    prediction: Prediction


def replicate(model: nn.Module, guide: nn.Module | None, data: Iterable, *, num_samples: int) -> Replicates:
    """Sample replicated labels of a data set, with the log likelihood of the observed ones.

    Draw r of the latent sites is one function on all batches; its labels are sampled from the likelihood at that draw.
    :class:`record` around it records those latent sites. All R probabilities of each example are in memory.

    Args:
        model, guide: the model and its guide; None samples from the prior predictive.
        data: batches ``(x, y)`` or ``(x, y, mask)``.
        num_samples: R.

    Raises:
        ValueError: data without labels; errors of ``predict``.
    """
    prediction = predict(model, guide, data, num_samples=num_samples, keep_draws=True)
    labels, likelihoods = prediction.labels, prediction.components
    if labels is None:
        raise ValueError("replicated labels are compared with observed ones, and these data have no labels")
    if not likelihoods:
        smallest = torch.finfo(prediction.draws.dtype).tiny
        likelihoods = (dist.Categorical(logits=prediction.draws.clamp(min=smallest).log()),)
    replicated, log_likelihood, start = [], [], 0
    for likelihood in likelihoods:
        stop = start + likelihood.batch_shape[1]
        part = (slice(start, stop), *map(slice, likelihood.event_shape))  # of labels padded to the longest example
        sampled = likelihood.sample()
        replicated.append(sampled.new_zeros(num_samples, stop - start, *labels.shape[1:]))
        replicated[-1][:, :, *part[1:]] = sampled
        log_likelihood.append(likelihood.log_prob(labels[part].to(sampled)).to(labels.device))
        start = stop
    replicated_labels = torch.cat(replicated, dim=1).to(labels.device)
    if (mask := prediction.mask) is not None:
        mask = mask.reshape(mask.shape + (1,) * (labels.dim() - mask.dim())).to(labels.device)
        replicated_labels = replicated_labels.where(mask, 0)
    return Replicates(
        labels=labels.to(torch.promote_types(labels.dtype, replicated_labels.dtype)),
        replicated_labels=replicated_labels,
        log_likelihood=torch.cat(log_likelihood, dim=1),
        prediction=prediction,
    )
