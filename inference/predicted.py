"""What a model predicts of some examples, and what follows from it."""

import math
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Prediction:
    """The posterior predictive of n examples, averaged over S coherent draws.

    Entropies are in nats. The fields of the other kind of likelihood are None. Where every token has a class, examples
    are padded to the longest: everything at padding is 0, probabilities and labels too (so that metrics refuse it), and
    :meth:`tokens` gives the real tokens alone.

    Args:
        probs: mean probabilities ``(n, classes)``, per token ``(n, tokens, classes)`` (categorical likelihoods).
        expected_entropy: mean over draws of the entropy ``(n,)``, per token ``(n, tokens)`` (categorical).
        energy: mean over draws of −log Σ exp(logits), of that shape (categorical, from logits).
        draws: probabilities of each draw ``(S, *probs.shape)`` where asked for (categorical).
        mask: ``(n, tokens)``, True where there is a token that the likelihood counts; None without a class per token.
        mean, variance: of the labels, noise and draws together, ``(n, ...)`` (other likelihoods).
        labels: the labels that came with the inputs, or None.
        components: the likelihood of each batch, with batch shape ``(S, batch)`` (all but one class per example).
    """

    probs: Tensor | None = None
    expected_entropy: Tensor | None = None
    energy: Tensor | None = None
    draws: Tensor | None = None
    mask: Tensor | None = None
    mean: Tensor | None = None
    variance: Tensor | None = None
    labels: Tensor | None = None
    components: tuple[dist.TorchDistribution, ...] = ()

    @property
    def entropy(self) -> Tensor:
        """Entropy of the mean probabilities, of the shape of ``expected_entropy``: all uncertainty."""
        return entropy(self.probs)

    @property
    def log_probs(self) -> Tensor:
        """Log of the mean probabilities, of their shape and finite: a zero counts as the smallest normal number."""
        return self.probs.clamp(min=torch.finfo(self.probs.dtype).tiny).log()

    @property
    def mutual_information(self) -> Tensor | None:
        """Entropy minus expected entropy, of their shape, ≥ 0: the uncertainty that more data could take away."""
        return None if self.expected_entropy is None else (self.entropy - self.expected_entropy).clamp(min=0)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of the mean over draws of the likelihood of labels ``(n, ...)``, in nats ``(n,)``.

        Where every token has a class, all labels of an example count jointly, and those at padding not at all.

        Raises:
            ValueError: labels of another shape.
        """
        if not self.components:
            return self.log_probs.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
        sizes = [component.batch_shape[-1] for component in self.components]
        event_shape = self.components[0].event_shape if self.mask is None else self.mask.shape[1:]
        expected = (sum(sizes), *event_shape)
        if y.shape != expected:
            raise ValueError(f"the likelihood takes labels of shape {expected}, got {tuple(y.shape)}")
        parts = zip(self.components, y.split(sizes), strict=True)
        log_probs = [_log_prob(component, part) for component, part in parts]
        return torch.cat([each.logsumexp(0) - math.log(len(each)) for each in log_probs]).to(y.device)

    def tokens(self) -> "Prediction":
        """The m real tokens, example after example, as if each were an example: what takes classifiers takes these.

        Returns:
            ``probs (m, classes)``, ``expected_entropy``, ``energy``, ``labels (m,)``, ``draws (S, m, classes)``, as far
            as they are known; ``log_prob`` is that of each token by itself.

        Raises:
            ValueError: a prediction without tokens.
        """
        if self.mask is None:
            raise ValueError("tokens() takes a prediction of a class per token, and this has no mask: use it as it is")
        fields = {name: getattr(self, name) for name in ("probs", "expected_entropy", "energy", "labels")}
        return Prediction(
            **{name: None if value is None else value[self.mask.to(value.device)] for name, value in fields.items()},
            draws=None if self.draws is None else self.draws[:, self.mask],
        )


def entropy(probs: Tensor) -> Tensor:
    """Entropies ``(...)`` of probabilities ``(..., classes)``, in nats."""
    return torch.special.entr(probs).sum(-1)


def _log_prob(component: dist.TorchDistribution, y: Tensor) -> Tensor:
    """Log likelihood ``(S, batch)`` of labels, which may be padded beyond the component's own tokens."""
    own = (slice(None), *map(slice, component.event_shape))
    return component.log_prob(y[own].to(component.mean.device))
