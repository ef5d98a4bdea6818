"""The result of a prediction: the posterior predictive of some examples, with its moments, quantiles and entropies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli

from probattn.inference.prediction.class_labels import check_shape, class_labels
from probattn.inference.prediction.mixture import Mixture, innermost, tokens_of

PER_EXAMPLE = ("probs", "expected_entropy", "energy", "mask", "mean", "variance", "labels")
"""Fields of a prediction whose first dimension is that of the examples."""


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Posterior predictive of n examples, averaged over S posterior samples.

    Entropies are in nats. Fields that belong to another kind of likelihood are None. With a label per token, examples
    are padded to the longest: all values at padding are 0, also probabilities and labels (so metrics refuse them);
    :meth:`tokens` returns the real tokens only.

    ``prediction[index]`` is the prediction of some examples, by a slice, a boolean mask ``(n,)`` or indices ``(m,)``;
    ``prediction[i]`` is that of one example, as a prediction of length 1.

    Args:
        probs: mean probabilities ``(n, classes)``, per token ``(n, tokens, classes)`` (categorical likelihoods).
        expected_entropy: mean over samples of the entropy ``(n,)``, per token ``(n, tokens)`` (categorical).
        energy: mean over samples of −log Σ exp(logits), of the same shape (categorical with logits).
        draws: probabilities of each sample ``(S, *probs.shape)`` if kept (categorical).
        ordered: True if the classes are ordered.
        mask: ``(n, tokens)``, True at tokens that the likelihood counts; None without a label per token.
        mean, variance: moments of the labels, aleatoric and epistemic uncertainty together, ``(n, ...)`` (other
            likelihoods). NaN or infinite if the likelihood has none (Cauchy); quantiles, :meth:`cdf`, :meth:`sample`
            and :meth:`log_prob` still exist.
        labels: labels that came with the inputs, or None.
        components: likelihoods of the chunks that ran, of batch shape ``(S, b)``, for tokens ``(S, b, tokens)``. Empty
            for one class per example.
        rows: the n examples as indices into those of all components, one after another; None for all in order.
        num_samples: number of posterior samples S; None if unknown.
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
    rows: Tensor | None = None
    num_samples: int | None = None

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.mean if self.probs is None else self.probs)

    def __repr__(self) -> str:
        """Return a summary of one or two lines: kind, sizes, and means over the examples."""
        kind = "binary labels" if self.is_binary else "numbers"
        if self.probs is not None:
            kind = f"{self.probs.shape[-1]} {'ordered ' if self.ordered else ''}classes"
        samples = "" if self.num_samples is None else f", {self.num_samples} posterior samples"
        labels = "without" if self.labels is None else "with"
        heading = f"Prediction of {kind} for {len(self)} examples{samples}, {labels} labels"
        if self.mask is not None:
            return f"{heading}\n  a label per token: use tokens() for its {int(self.mask.sum())} real tokens"
        if self.probs is None:
            values = {"mean": self.mean, "sd": self.variance.sqrt()}
        else:
            values = {"confidence": self.confidence, "entropy": self.entropy}
            if self.expected_entropy is not None:
                values["mutual_information"] = self.mutual_information
            if self.labels is not None and self.labels.shape == self.predicted.shape:
                values["accuracy"] = self.predicted == self.labels.to(self.predicted.device)
        means = ", ".join(f"{name} {value.double().mean().item():.3g}" for name, value in values.items())
        return f"{heading}\n  means: {means}" if len(self) else heading

    def __getitem__(self, index: int | slice | Sequence | Tensor) -> "Prediction":
        """Return the prediction of some examples, in the order of the index; an int selects one.

        Raises:
            IndexError: an index out of range, or of more than one dimension; a mask of another length.
        """
        index = torch.as_tensor(index).cpu() if isinstance(index, Sequence | np.ndarray | Tensor) else index
        rows = torch.atleast_1d(torch.arange(len(self))[index])
        if rows.dim() != 1:
            raise IndexError(f"an index of examples has one dimension, got {rows.dim()}")
        fields = {name: getattr(self, name) for name in PER_EXAMPLE}
        return replace(
            self,
            **{name: None if value is None else value[rows.to(value.device)] for name, value in fields.items()},
            draws=None if self.draws is None else self.draws[:, rows.to(self.draws.device)],
            rows=None if not self.components else rows if self.rows is None else self.rows[rows],
        )

    @cached_property
    def mixture(self) -> Mixture:
        """The mixture of the components."""
        return Mixture(self.components, self.rows)

    @property
    def is_binary(self) -> bool:
        """True if the labels are 0 or 1 (Bernoulli likelihoods)."""
        return bool(self.components) and isinstance(innermost(self.components[0]), Bernoulli)

    @property
    def predicted(self) -> Tensor:
        """Predicted labels: most probable classes ``(n,)``, per token ``(n, tokens)``; for binary labels 0 or 1, and
        for other numbers the mean, ``(n, ...)``.
        """
        if self.probs is not None:
            return self.probs.argmax(-1)
        return (self.mean > 0.5).long() if self.is_binary else self.mean

    @property
    def confidence(self) -> Tensor:
        """Probability of the predicted class, of the shape of ``predicted``; for binary labels that of each label.

        Raises:
            ValueError: a prediction of numbers, of which no value has a probability.
        """
        if self.probs is not None:
            return self.probs.amax(-1)
        if self.is_binary:
            return self.mean.maximum(1 - self.mean)
        raise ValueError(
            "a prediction of numbers has no confidence: use variance, or intervals by quantiles([0.025, 0.975])"
        )

    @property
    def entropy(self) -> Tensor:
        """Entropy of the mean probabilities, of the shape of ``expected_entropy``: total uncertainty.

        Raises:
            ValueError: a prediction without probabilities of classes.
        """
        return entropy(self._checked_probs("entropy"))

    @property
    def log_probs(self) -> Tensor:
        """Log of the mean probabilities, finite: zeros count as the smallest normal number.

        Raises:
            ValueError: a prediction without probabilities of classes.
        """
        return self._checked_probs("log_probs").clamp(min=torch.finfo(self.probs.dtype).tiny).log()

    @property
    def mutual_information(self) -> Tensor | None:
        """Entropy minus expected entropy, ≥ 0: how much samples of the attention layer's latent variables disagree.

        None if the expected entropy is unknown.

        Raises:
            ValueError: a prediction without probabilities of classes.
        """
        self._checked_probs("mutual_information")
        return None if self.expected_entropy is None else (self.entropy - self.expected_entropy).clamp(min=0)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log predictive density of labels ``(n, ...)``: log of the mean likelihood over samples, in nats ``(n,)``.

        With a label per token, it is the joint density of an example's real tokens.

        Raises:
            ValueError: labels of the wrong shape, or that are no class indices.
        """
        if not self.components:
            if self.mask is not None:
                raise ValueError("only the probabilities of these tokens were kept: use prediction.tokens()")
            examples, classes = self.probs.shape
            labels = class_labels(y, examples=examples, classes=classes)
            return self.log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        event_shape = self.components[0].event_shape
        if self.mask is not None:
            event_shape = self.mask.shape[1:] + event_shape[self.mask.dim() - 1 :]
        check_shape(y, (len(self), *event_shape))
        return self.mixture.log_prob(y).to(y.device)

    def cdf(self, y: Tensor, *, below: bool = False) -> Tensor:
        """Predictive distribution function P(Y ≤ y), or P(Y < y) if ``below``, of each number ``(n, ...)``, in float64.

        Exact for normal likelihoods; else the share of 1000 samples (see
        :mod:`~probattn.inference.prediction.mixture`), with a standard error of at most 0.016.

        Raises:
            ValueError: a prediction of classes or of padded tokens (use :meth:`tokens`); values of the wrong shape.
        """
        check_shape(y, self._checked_mean().shape)
        return self.mixture.cdf(y, below=below).to(y.device)

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score E|Y − y| − ½ E|Y − Y′| of each number ``(n, ...)``, in its units.

        Exact for normal likelihoods; else an unbiased estimate from 1000 samples, NaN where there is no mean.

        Raises:
            ValueError: as for :meth:`cdf`.
        """
        check_shape(y, self._checked_mean().shape)
        return self.mixture.crps(y).to(y.device).where(self.mean.isfinite().to(y.device), torch.nan)

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Predictive quantiles of each number: the smallest y with P(Y ≤ y) ≥ level; exact for normal likelihoods.

        Others are those of 1000 samples with a fixed seed: P(Y ≤ y) has a standard error of at most 0.016.

        Args:
            levels: L probabilities in (0, 1).

        Returns:
            ``(L, n, ...)`` in float64.

        Raises:
            ValueError: as for :meth:`cdf`; a level outside (0, 1).
        """
        probs, device = torch.as_tensor(levels, dtype=torch.float64), self._checked_mean().device
        if probs.dim() != 1 or not ((probs > 0) & (probs < 1)).all():
            raise ValueError(f"levels must be a sequence of numbers between 0 and 1, got {levels}")
        return self.mixture.quantiles(probs).to(device)

    @cached_property
    def median(self) -> Tensor:
        """Predictive median of each number ``(n, ...)``, which exists even if the mean does not."""
        return self.quantiles([0.5])[0]

    def sample(self, num_samples: int) -> Tensor:
        """Sample the numbers ``(num_samples, n, ...)``, rounded up to equally many per posterior sample.

        Samples have a fixed seed: every call returns the same, and PyTorch's generators keep their states.

        Raises:
            ValueError: as for :meth:`cdf`.
        """
        device = self._checked_mean().device
        return self.mixture.sample(num_samples).to(device)

    def tokens(self) -> "Prediction":
        """Return the prediction of the m real tokens, in the order of the examples, as m examples.

        Returns:
            For classes ``probs (m, classes)``, ``expected_entropy``, ``energy``, ``labels (m,)`` and ``draws (S, m,
            classes)``, None if unknown; for numbers ``mean (m, targets)``, ``variance``, ``labels`` and
            ``components``. ``log_prob`` is per token.

        Raises:
            ValueError: a prediction without a label per token.
        """
        if self.mask is None:
            raise ValueError("tokens() needs a label per token, and this prediction has no mask: use it as it is")
        fields = {name: getattr(self, name) for name in PER_EXAMPLE if name != "mask"}
        components = () if self.mean is None else tuple(map(tokens_of, self.components))
        numbers, start = [], 0
        for law in components:
            stop = start + math.prod(law.batch_shape[1:])
            numbers.append(pad_to_shape(torch.arange(start, stop).view(law.batch_shape[1:]), self.mask.shape[1:]))
            start = stop
        rows = slice(None) if self.rows is None else self.rows
        return Prediction(
            **{name: None if value is None else value[self.mask.to(value.device)] for name, value in fields.items()},
            draws=None if self.draws is None else self.draws[:, self.mask],
            ordered=self.ordered,
            components=components,
            rows=torch.cat(numbers)[rows][self.mask.cpu()] if numbers else None,
            num_samples=self.num_samples,
        )

    def _checked_probs(self, name: str) -> Tensor:
        """Return the probabilities of classes.

        Raises:
            ValueError: says what another kind of prediction has instead.
        """
        if self.probs is None:
            kind, instead = ("binary labels", "mean (probabilities) and confidence")
            if not self.is_binary:
                kind, instead = "numbers", "mean, variance and quantiles"
            raise ValueError(f"a prediction of {kind} has no {name}, which needs classes: use {instead}")
        return self.probs

    def _checked_mean(self) -> Tensor:
        """Return the mean if this is a prediction of numbers without padding, for its shape and device."""
        if self.mean is None:
            raise ValueError("a prediction of classes has probabilities, and no distribution function of numbers")
        if self.mask is not None:
            raise ValueError("this prediction has padding between its tokens: use prediction.tokens()")
        return self.mean


def entropy(probs: Tensor) -> Tensor:
    """Entropy ``(...)`` of probabilities ``(..., classes)``, in nats."""
    return torch.special.entr(probs).sum(-1)


def pad_to_shape(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Pad ``(..., *event)`` with trailing zeros to an event shape, that of the longest example."""
    sizes = values.shape[values.dim() - len(shape) :]
    padding = [(0, target - size) for target, size in zip(shape, sizes, strict=True)]
    return nn.functional.pad(values, [side for pair in reversed(padding) for side in pair])
