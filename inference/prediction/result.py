"""The result of a prediction: the posterior predictive of some examples, with its moments, quantiles and entropies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor

from probattn.inference.prediction import mixture
from probattn.inference.prediction.batch_views import concatenate, select
from probattn.inference.prediction.class_labels import class_labels
from probattn.inference.prediction.marginals import device_of, fixed_seed, masked_part, unwrap

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
        components: likelihoods of consecutive examples, of batch shape ``(S, b)``: one for all where they can be
            joined. Empty for one class per example.
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
            components=self._components_of(rows),
        )

    @property
    def is_binary(self) -> bool:
        """True if the labels are 0 or 1 (Bernoulli likelihoods)."""
        return bool(self.components) and isinstance(unwrap(self.components[0]), torch.distributions.Bernoulli)

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
        self._check_labels(y, (len(self), *event_shape))
        log_probs = [component.log_prob(labels[_padded_to(component)]) for component, labels in self._split(y)]
        return torch.cat([values.logsumexp(0) - math.log(len(values)) for values in log_probs]).to(y.device)

    def cdf(self, y: Tensor, *, below: bool = False) -> Tensor:
        """Predictive distribution function P(Y ≤ y), or P(Y < y) if ``below``, of each number ``(n, ...)``, in float64.

        Exact for normal likelihoods and others that PyTorch has a distribution function of; else the share of 1000
        samples (see :mod:`~probattn.inference.prediction.mixture`), with a standard error of at most 0.016.

        Raises:
            ValueError: a prediction of classes or of padded tokens (use :meth:`tokens`); values of the wrong shape.
        """
        self._check_labels(y, self._checked_mean().shape)
        with fixed_seed(device_of(self.components[0])):
            values = [mixture.cdf(component, labels, below=below) for component, labels in self._split(y)]
        return torch.cat(values).to(y.device)

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
        with fixed_seed(device_of(self.components[0])):
            values = [mixture.quantiles(component, probs) for component in self.components]
        return torch.cat(values, dim=1).to(device)

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
        with fixed_seed(device_of(self.components[0])):
            values = [mixture.sample(component, num_samples) for component in self.components]
        return torch.cat(values, dim=1).to(device)

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
        components = []
        for component, mask in () if self.mean is None else self._split(self.mask):
            components.append(select(masked_part(component).base_dist, mask[_padded_to(component)[: mask.dim()]]))
        return Prediction(
            **{name: None if value is None else value[self.mask.to(value.device)] for name, value in fields.items()},
            draws=None if self.draws is None else self.draws[:, self.mask],
            ordered=self.ordered,
            components=concatenate(components),
            num_samples=self.num_samples,
        )

    def _split(self, values: Tensor) -> list[tuple[dist.TorchDistribution, Tensor]]:
        """Return each component with the values of its examples, on its device."""
        pieces = values.split([component.batch_shape[1] for component in self.components])
        return [(law, piece.to(device_of(law))) for law, piece in zip(self.components, pieces, strict=True)]

    def _components_of(self, rows: Tensor) -> tuple[dist.TorchDistribution, ...]:
        """Return the likelihoods of some examples: one for each run of examples of one component."""
        if not self.components or not len(rows):
            return self.components and (select(self.components[0], rows),)
        sizes = torch.tensor([component.batch_shape[1] for component in self.components])
        numbers = torch.arange(len(sizes)).repeat_interleave(sizes)[rows]
        numbers, counts = numbers.unique_consecutive(return_counts=True)
        starts = sizes.cumsum(0) - sizes
        runs = zip(numbers.tolist(), rows.split(counts.tolist()), strict=True)
        return tuple(
            select(self.components[number], (run - starts[number]).to(device_of(self.components[number])))
            for number, run in runs
        )

    def _check_labels(self, y: Tensor, expected: Sequence[int]) -> None:
        """Refuse labels of another shape, which would broadcast."""
        if y.shape != torch.Size(expected):
            raise ValueError(f"the likelihood takes labels of shape {tuple(expected)}, got {tuple(y.shape)}")

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


def _padded_to(component: dist.TorchDistribution) -> tuple[slice, ...]:
    """Index of the part of padded labels ``(batch, *event)`` that belongs to a component."""
    return slice(None), *map(slice, component.event_shape)
