"""The result of a prediction: the posterior predictive of some examples, with its moments,
quantiles and entropies."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Bernoulli

from probattn.inference.prediction.class_labels import check_shape, class_labels, entropy, log_of
from probattn.inference.prediction.mixture import Selected, device_of, innermost, tokens_of
from probattn.inference.prediction.number_laws import Empirical, NormalMixture, law_of_numbers

PER_EXAMPLE = (
    "probs",
    "expected_entropy",
    "energy",
    "mask",
    "mean",
    "variance",
    "labels",
    "samples_used",
    "sample_information",
)
"""Fields of a prediction whose first dimension is that of the examples."""


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Posterior predictive of n examples, averaged over S posterior samples.

    Entropies are in nats. Fields that belong to another kind of likelihood are None. With a label
    per token, examples are padded to the longest: all values at padding are 0, also probabilities
    and labels (so metrics refuse them); :meth:`tokens` returns the real tokens only.

    Args:
        probs: mean probabilities ``(n, classes)``, per token ``(n, tokens, classes)`` (categorical
            likelihoods).
        expected_entropy: mean over samples of the entropy ``(n,)``, per token ``(n, tokens)``
            (categorical).
        energy: mean over samples of −log Σ exp(logits), of the same shape (categorical with
            logits).
        draws: probabilities of each sample ``(S, *probs.shape)`` if kept (categorical).
        latents: values ``(S, *event)`` of the global latent sites by name if the draws are kept;
            row s belongs to ``draws[s]``.
        ordered: True if the classes are ordered.
        mask: ``(n, tokens)``, True at tokens that the likelihood counts; None without a label per
            token.
        mean, variance: moments of the labels, aleatoric and epistemic uncertainty together,
            ``(n, ...)`` (other likelihoods). NaN or infinite if the likelihood has none (Cauchy);
            quantiles, :meth:`cdf` and :meth:`log_prob` still exist.
        labels: labels that came with the inputs, or None.
        components: likelihoods of the chunks that ran, of batch shape ``(S, b)``. Empty for one
            class per example.
        num_samples: number of posterior samples S; None if unknown.
        samples_used: number of samples of each example ``(n,)`` of a prediction with ``refine``;
            where it is 1, the mutual information is 0. None if all have S.
        sample_information: mutual information ``(n,)`` of the samples before a method changed
            their mean, such as temperature scaling; None without such a method.
        decisions: outputs of decisions on a batch by name.
    """

    probs: Tensor | None = None
    expected_entropy: Tensor | None = None
    energy: Tensor | None = None
    draws: Tensor | None = None
    latents: Mapping[str, Tensor] = field(default_factory=dict)
    ordered: bool = False
    mask: Tensor | None = None
    mean: Tensor | None = None
    variance: Tensor | None = None
    labels: Tensor | None = None
    components: tuple[dist.TorchDistribution, ...] = ()
    num_samples: int | None = None
    samples_used: Tensor | None = None
    sample_information: Tensor | None = None
    decisions: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.require("mean") if self.probs is None else self.probs)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> "Prediction":
        """Return the prediction of some examples: a number, a slice, a mask ``(n,)``, or numbers in
        any order."""
        if isinstance(index, Tensor):
            index = index.cpu()
        rows = torch.arange(len(self))[index].reshape(-1).contiguous()
        selected = []
        if self.components:
            lengths = torch.tensor([law.batch_shape[1] for law in self.components])
            # Of each row its component, and its place in it.
            numbers = torch.arange(len(lengths)).repeat_interleave(lengths)[rows]
            places = rows - (lengths.cumsum(0) - lengths)[numbers]
            components, runs = numbers.unique_consecutive(return_counts=True)
            parts = zip(components.tolist(), places.split(runs.tolist()), strict=True)
            for number, part in parts:
                law = self.components[number]
                selected.append(Selected(law, (part.to(device_of(law)),)))
        return replace(
            self,
            **self._fields(PER_EXAMPLE, rows),
            draws=None if self.draws is None else self.draws[:, rows.to(self.draws.device)],
            components=tuple(selected),
        )

    def known(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return fields by name, without those that are None."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def require(self, name: str) -> Tensor:
        """Return a field.

        Raises:
            ValueError: it is None, since the likelihood is another one, the data have no labels,
                nothing was sampled, or a method such as temperature scaling leaves it undefined.
        """
        value = getattr(self, name)
        if value is None:
            raise ValueError(
                f"no {name}: the likelihood is another one (numbers have variance and quantiles), "
                "there are no labels (pass them, or batches (x, y)), nothing was sampled, or a "
                "method has changed the mean probabilities"
            )
        return value

    def _fields(self, names: Sequence[str], index: Tensor) -> dict[str, Any]:
        """Return fields of some examples or tokens by name."""
        return {name: value[index.to(value.device)] for name, value in self.known(names).items()}

    def __repr__(self) -> str:
        """Return a summary in one line: the number of examples, and the known fields."""
        return f"Prediction of {len(self)} examples, with {', '.join(self.known(PER_EXAMPLE))}"

    @property
    def is_binary(self) -> bool:
        """True if the labels are 0 or 1 (Bernoulli likelihoods)."""
        return bool(self.components) and isinstance(innermost(self.components[0]), Bernoulli)

    @property
    def predicted(self) -> Tensor:
        """Predicted labels: most probable classes ``(n,)``, per token ``(n, tokens)``; for binary
        labels 0 or 1, and for other numbers the mean, ``(n, ...)``.
        """
        if self.probs is not None:
            return self.probs.argmax(-1)
        mean = self.require("mean")
        return (mean > 0.5).long() if self.is_binary else mean

    @property
    def confidence(self) -> Tensor:
        """Probability of the predicted class, of the shape of ``predicted``; for binary labels that
        of each label.

        Raises:
            ValueError: a prediction of numbers, of which no value has a probability.
        """
        if self.is_binary:
            mean = self.require("mean")
            return mean.maximum(1 - mean)
        return self.require("probs").amax(-1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the mean probabilities, of the shape of ``expected_entropy``: total
        uncertainty."""
        return entropy(self.require("probs"))

    @property
    def log_probs(self) -> Tensor:
        """Log of the mean probabilities, finite: zeros count as the smallest normal number."""
        return log_of(self.require("probs"))

    @property
    def mutual_information(self) -> Tensor | None:
        """Entropy minus expected entropy, ≥ 0: how much samples of the attention layer's latent
        variables disagree.

        After temperature scaling it is that of the samples before it, ``sample_information``. None
        if neither is known.
        """
        if self.expected_entropy is None:
            return self.sample_information
        return (self.entropy - self.expected_entropy).clamp(min=0)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log predictive density of labels ``(n, ...)``: log of the mean likelihood over samples,
        in nats ``(n,)``.

        With a label per token, it is the joint density of an example's real tokens.

        Raises:
            ValueError: labels of the wrong shape, or that are no class indices.
        """
        if not self.components:
            examples, classes = self.require("probs").shape
            labels = class_labels(y, examples=examples, classes=classes)
            return self.log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        shape = (len(self), *self.components[0].event_shape)
        if self.mask is not None:
            shape = (*self.mask.shape, *shape[2:])
        check_shape(y, shape)
        densities = []
        sizes = [law.batch_shape[1] for law in self.components]
        for law, padded in zip(self.components, y.split(sizes), strict=True):
            labels = padded[(slice(None), *map(slice, law.event_shape))].to(device_of(law))
            densities.append(law.log_prob(labels).logsumexp(0) - math.log(law.batch_shape[0]))
        return torch.cat(densities).to(y.device)

    @property
    def _law(self) -> NormalMixture | Empirical:
        """Law of the numbers; exact for normal likelihoods, else that of samples, which are not
        kept."""
        if self.mask is not None:
            raise ValueError(
                "this prediction has padding between its tokens: use prediction.tokens()"
            )
        return law_of_numbers(self.components, self.require("mean").device)

    def cdf(self, y: Tensor) -> Tensor:
        """Predictive distribution function P(Y ≤ y) of each number ``(n, ...)``, in float64.

        Exact for normal likelihoods; else the share of 1000 samples, with a standard error of at
        most 0.016.

        Raises:
            ValueError: a prediction of padded tokens (use :meth:`tokens`); values of the wrong
                shape.
        """
        check_shape(y, self.require("mean").shape)
        return self._law.cdf(y)

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score E|Y − y| − ½ E|Y − Y′| of each number ``(n, ...)``,
        in its units.

        Exact for normal likelihoods (Grimit et al., 2006, eq. 3); else that of 1000 samples. NaN
        where there is no mean.

        Raises:
            ValueError: as for :meth:`cdf`.
        """
        check_shape(y, self.require("mean").shape)
        return self._law.crps(y).where(self.require("mean").isfinite(), torch.nan)

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Predictive quantiles of each number: the smallest y with P(Y ≤ y) ≥ level; exact for
        normal likelihoods.

        Others are those of 1000 samples with a fixed seed: P(Y ≤ y) has a standard error of at most
        0.016.

        Args:
            levels: L probabilities in (0, 1).

        Returns:
            ``(L, n, ...)`` in float64.

        Raises:
            ValueError: a prediction of padded tokens (use :meth:`tokens`); a level outside (0, 1).
        """
        mean = self.require("mean")
        shares = torch.as_tensor(levels, dtype=torch.float64, device=mean.device)
        if not ((shares > 0) & (shares < 1)).all():
            raise ValueError(f"levels must be numbers between 0 and 1, got {shares.tolist()}")
        return self._law.quantiles(shares)

    @cached_property
    def median(self) -> Tensor:
        """Predictive median of each number ``(n, ...)``, which exists even if the mean does not."""
        return self.quantiles([0.5])[0]

    def tokens(self) -> "Prediction":
        """Return the prediction of the m real tokens, in the order of the examples, as m examples.

        Returns:
            For classes ``probs (m, classes)``, ``expected_entropy``, ``energy``, ``labels (m,)``
            and ``draws (S, m, classes)``, None if unknown; for numbers ``mean (m, targets)``,
            ``variance``, ``labels`` and ``components``. ``log_prob`` is per token.
        """
        mask = self.require("mask")
        names = [name for name in PER_EXAMPLE if name != "mask"]
        components = () if self.mean is None else map(tokens_of, self.components)
        return Prediction(
            **self._fields(names, mask),
            draws=None if self.draws is None else self.draws[:, mask],
            ordered=self.ordered,
            components=tuple(components),
            num_samples=self.num_samples,
        )
