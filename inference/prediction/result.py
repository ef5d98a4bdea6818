"""What a model predicts of some examples, and what follows from it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyro.distributions as dist
import torch
from torch import Tensor

from probattn.inference.prediction import mixture
from probattn.inference.prediction.marginals import device_of, seeded
from probattn.inference.prediction.real_tokens import real_tokens


@dataclass(frozen=True, eq=False)
class Prediction:
    """The posterior predictive of n examples, averaged over S coherent draws.

    Entropies are in nats. The fields of the other kind of likelihood are None. Where every token has a label, examples
    are padded to the longest: everything at padding is 0, probabilities and labels too (so that metrics refuse it), and
    :meth:`tokens` gives the real tokens alone.

    Args:
        probs: mean probabilities ``(n, classes)``, per token ``(n, tokens, classes)`` (categorical likelihoods).
        expected_entropy: mean over draws of the entropy ``(n,)``, per token ``(n, tokens)`` (categorical).
        energy: mean over draws of −log Σ exp(logits), of that shape (categorical, from logits).
        draws: probabilities of each draw ``(S, *probs.shape)`` where asked for (categorical).
        ordered: True where the classes have an order.
        mask: ``(n, tokens)``, True where there is a token that the likelihood counts; None without a label per token.
        mean, variance: of the labels, noise and draws together, ``(n, ...)`` (other likelihoods). NaN or infinite where
            the likelihood has none, as Cauchy's: quantiles, :meth:`cdf`, :meth:`sample` and :meth:`log_prob` exist.
        labels: the labels that came with the inputs, or None.
        components: the likelihood of each batch, with batch shape ``(S, batch)`` (all but one class per example).
    """

    probs: Tensor | None = None
    expected_entropy: Tensor | None = None
    energy: Tensor | None = None
    draws: Tensor | None = None
    ordered: bool = False
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

        Where every token has a label, all labels of an example count jointly, and those at padding not at all.

        Raises:
            ValueError: labels of another shape.
        """
        if not self.components:
            return self.log_probs.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
        sizes = [component.batch_shape[-1] for component in self.components]
        event_shape = self.components[0].event_shape
        if self.mask is not None:
            event_shape = self.mask.shape[1:] + event_shape[self.mask.dim() - 1 :]
        expected = (sum(sizes), *event_shape)
        if y.shape != expected:
            raise ValueError(f"the likelihood takes labels of shape {expected}, got {tuple(y.shape)}")
        parts = zip(self.components, y.split(sizes), strict=True)
        log_probs = [_log_prob(component, part) for component, part in parts]
        return torch.cat([each.logsumexp(0) - math.log(len(each)) for each in log_probs]).to(y.device)

    def cdf(self, y: Tensor, *, below: bool = False) -> Tensor:
        """P(Y ≤ y), or P(Y < y), of each number ``(n, ...)`` under the mean over draws of the likelihood, in float64.

        Where the likelihood's distribution function is not known, it is that of 1000 draws (see :meth:`sample`).

        Raises:
            ValueError: a prediction of classes, or of tokens, whose real ones :meth:`tokens` gives; another shape.
        """
        if y.shape != self._numbers().shape:
            raise ValueError(f"the likelihood takes labels of shape {tuple(self.mean.shape)}, got {tuple(y.shape)}")
        parts = zip(self.components, y.split([each.batch_shape[-1] for each in self.components]), strict=True)
        with seeded(device_of(self.components[0])):
            found = [mixture.cdf(each, part.to(device_of(each)), below=below) for each, part in parts]
        return torch.cat(found).to(y.device)

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Quantiles of each number, noise and draws together: the smallest y with P(Y ≤ y) ≥ level.

        Args:
            levels: L probabilities between 0 and 1.

        Returns:
            ``(L, n, ...)`` in float64.

        Raises:
            ValueError: as for :meth:`cdf`; a level outside (0, 1).
        """
        chosen, home = torch.as_tensor(levels, dtype=torch.float64), self._numbers().device
        if chosen.dim() != 1 or not ((chosen > 0) & (chosen < 1)).all():
            raise ValueError(f"levels must be a sequence of numbers between 0 and 1, got {levels}")
        with seeded(device_of(self.components[0])):
            return torch.cat([mixture.quantiles(each, chosen) for each in self.components], dim=1).to(home)

    @cached_property
    def median(self) -> Tensor:
        """Median of each number ``(n, ...)``, which exists where the mean does not."""
        return self.quantiles([0.5])[0]

    def sample(self, count: int) -> Tensor:
        """Draws of the numbers, ``count`` or a few more, equally many of each posterior draw: ``(count, n, ...)``.

        They are the same in every call, and no generator of PyTorch's moves.

        Raises:
            ValueError: as for :meth:`cdf`.
        """
        home = self._numbers().device
        with seeded(device_of(self.components[0])):
            return torch.cat([mixture.sample(each, count) for each in self.components], dim=1).to(home)

    def tokens(self) -> "Prediction":
        """The m real tokens, example after example, as if each were an example: what takes examples takes these.

        Returns:
            Of classes ``probs (m, classes)``, ``expected_entropy``, ``energy``, ``labels (m,)``, ``draws (S, m,
            classes)``, as far as they are known; of numbers ``mean (m, targets)``, ``variance``, ``labels`` and
            ``components``. ``log_prob`` is that of each token by itself.

        Raises:
            ValueError: a prediction without tokens.
        """
        if self.mask is None:
            raise ValueError("tokens() takes a prediction of a label per token, and this has no mask: use it as it is")
        names = ("probs", "expected_entropy", "energy", "mean", "variance", "labels")
        fields = {name: getattr(self, name) for name in names}
        return Prediction(
            **{name: None if value is None else value[self.mask.to(value.device)] for name, value in fields.items()},
            draws=None if self.draws is None else self.draws[:, self.mask],
            ordered=self.ordered,
            components=() if self.mean is None else self._components_of_tokens(),
        )

    def _numbers(self) -> Tensor:
        """The mean of a prediction of numbers, for its shape and device."""
        if self.mean is None:
            raise ValueError("a prediction of classes has probabilities, and no distribution function of numbers")
        if self.mask is not None:
            raise ValueError("this prediction has padding between its tokens: take prediction.tokens()")
        return self.mean

    def _components_of_tokens(self) -> tuple[dist.TorchDistribution, ...]:
        masks = self.mask.split([component.batch_shape[-1] for component in self.components])
        pairs = zip(self.components, masks, strict=True)
        return tuple(real_tokens(each, mask[_own(each)[: mask.dim()]].to(device_of(each))) for each, mask in pairs)


def entropy(probs: Tensor) -> Tensor:
    """Entropies ``(...)`` of probabilities ``(..., classes)``, in nats."""
    return torch.special.entr(probs).sum(-1)


def _log_prob(component: dist.TorchDistribution, y: Tensor) -> Tensor:
    """Log likelihood ``(S, batch)`` of labels, which may be padded beyond the component's own tokens."""
    return component.log_prob(y[_own(component)].to(device_of(component)))


def _own(component: dist.TorchDistribution) -> tuple[slice, ...]:
    """The part of padded labels ``(batch, *event)`` that is a component's."""
    return slice(None), *map(slice, component.event_shape)
