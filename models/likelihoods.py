"""Likelihoods: modules ``outputs -> Distribution`` with batch shape ``(*draws, batch)``, in float32
or better."""

from collections.abc import Sequence
from typing import cast

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions.transforms import SoftplusTransform
from torch.nn.functional import logsigmoid, pad, softplus

from probattn.attention.options import check_positive
from probattn.functional.dtypes import at_least_float32
from probattn.models.label_distributions import (
    BernoulliOfAnyDtype,
    CategoricalWithEnergy,
    Masked,
    OrderedCategorical,
)

Scale = float | Sequence[float] | None
Weights = Tensor | Sequence[float] | None
softplus_inverse = SoftplusTransform().inv


class _Likelihood(nn.Module):
    """Base of likelihoods of examples: a subclass defines :meth:`distribution`."""

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the labels; the token mask is ignored."""
        return self.distribution(at_least_float32(outputs))

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the labels, of outputs in float32 or better."""
        raise NotImplementedError


class Categorical(_Likelihood):
    """One class per example; outputs are logits ``(*draws, batch, classes)``, labels integers
    ``(batch,)``.

    With class weights the log-likelihood of training is Σ_i w_{y_i} log p(y_i | x_i): an example of
    class c counts like w_c equal examples, against the same prior. Weights are used as they are;
    with scikit-learn's ``compute_class_weight("balanced", ...)`` they sum to the number of
    examples, which keeps the balance of likelihood and KL. Predictions, their log densities and
    metrics have no weights.

    Args:
        class_weights: a positive weight per class, or None.

    Raises:
        ValueError: weights that are not positive and finite; in the forward pass, another number of
            classes.
    """

    def __init__(self, class_weights: Weights = None) -> None:
        super().__init__()
        buffer = None
        if class_weights is not None:
            weights = torch.as_tensor(class_weights, dtype=torch.get_default_dtype())
            if weights.dim() != 1 or not (weights.isfinite() & (weights > 0)).all():
                raise ValueError(
                    f"class_weights must be positive numbers, one per class, got {class_weights}"
                )
            buffer = nn.Buffer(weights)
        self.class_weights = buffer

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the labels."""
        classes = outputs.shape[-1]
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise ValueError(
                f"{len(self.class_weights)} class_weights for outputs of {classes} classes"
            )
        return CategoricalWithEnergy(outputs, self.class_weights)


class Bernoulli(_Likelihood):
    """Multi-label classification; outputs are logits ``(*draws, batch, labels)``, labels 0 or 1 in
    that shape."""

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the labels."""
        return BernoulliOfAnyDtype(logits=outputs).to_event(1)


class Ordinal(_Likelihood):
    """One of several ordered classes per example: the proportional-odds (cumulative logit) model of
    McCullagh (1980).

    P(y ≤ k) = σ(c_k − f), with the location f the network's single output ``(*draws, batch, 1)``
    and learned cutpoints c_0 < … < c_{K−2} shared by all examples. Labels are integers ``(batch,)``
    from 0 to K − 1 in their order.

    Args:
        classes: K, at least 2. At f = 0 the initial cutpoints assign each class the same
            probability.

    Raises:
        ValueError: fewer than two classes; in the forward pass, more than one output per example.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"an ordinal likelihood needs at least two classes, got {classes}")
        cutpoints = (torch.arange(1, classes) / classes).logit()
        gaps = softplus_inverse(cutpoints.diff())
        self.raw_cutpoints = nn.Parameter(torch.cat([cutpoints[:1], gaps]))

    @property
    def cutpoints(self) -> Tensor:
        """Cutpoints c in increasing order, ``(classes − 1,)``."""
        raw = at_least_float32(self.raw_cutpoints)
        return torch.cat([raw[:1], softplus(raw[1:])]).cumsum(0)

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the labels."""
        if outputs.shape[-1] != 1:
            raise ValueError(
                f"an ordinal likelihood takes one output per example, got {outputs.shape[-1]}"
            )
        upper = self.cutpoints - outputs
        # σ(a) − σ(b) = σ(a) σ(−b) (1 − exp(b − a)): no factor suffers from cancellation.
        gap = (-torch.expm1(-softplus(at_least_float32(self.raw_cutpoints[1:])))).log()
        log_probs = pad(logsigmoid(upper), (0, 1)) + pad(logsigmoid(-upper), (1, 0))
        return OrderedCategorical(logits=log_probs + pad(gap, (1, 1)))


class _Scaled(_Likelihood):
    """Base of likelihoods with a noise scale that does not depend on the input."""

    def __init__(self, scale: Scale = None) -> None:
        super().__init__()
        initial = torch.as_tensor(1.0 if scale is None else scale, dtype=torch.get_default_dtype())
        if not (initial > 0).all():
            raise ValueError(f"scale must be positive, got {scale}")
        self.log_scale = nn.Parameter(initial.log())
        self.needs_labels = scale is None

    @property
    def scale(self) -> Tensor:
        """Scale of the noise, a scalar tensor or ``(targets,)``."""
        return at_least_float32(self.log_scale).exp()

    @torch.no_grad()
    def initialise(self, labels: Tensor) -> None:
        """Set a scale that was neither given nor trained to the root mean square deviation of
        labels from their mean.

        Args:
            labels: labels of training ``(n, targets)``.
        """
        deviation = (labels.double() - labels.double().mean(0)).square().mean().sqrt()
        if self.needs_labels and not self.log_scale.any() and 0 < deviation < torch.inf:
            self.log_scale.fill_(deviation.log().item())


class Gaussian(_Scaled):
    """Homoscedastic Gaussian noise; outputs are means ``(*draws, batch, targets)``.

    Args:
        scale: initial standard deviation of the noise, in units of the targets; a sequence has one
            per target. None: one for all targets, which :func:`~probattn.inference.fit` initialises
            to the standard deviation of the training labels (see :meth:`initialise`), and which is
            1 until then.

    Raises:
        ValueError: a scale that is not positive.
    """

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the targets."""
        return dist.Normal(outputs, self.scale).to_event(1)


class HeteroscedasticGaussian(_Likelihood):
    """Gaussian noise that depends on the input (Nix & Weigend, 1994).

    Outputs ``(*draws, batch, 2 · targets)`` are the means, followed by the raw standard deviations:
    the standard deviation is ``min_scale + softplus(raw)``.

    Args:
        min_scale: smallest standard deviation, in units of the targets; keeps the density bounded.

    Raises:
        ValueError: min_scale not positive; in the forward pass, an odd number of outputs.
    """

    def __init__(self, min_scale: float = 1e-3) -> None:
        super().__init__()
        check_positive(min_scale=min_scale)
        self.min_scale = min_scale

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the targets."""
        if outputs.shape[-1] % 2:
            raise ValueError(
                "needs a mean and a raw scale for each target, an even number; got "
                f"{outputs.shape[-1]}"
            )
        mean, raw_scale = outputs.chunk(2, -1)
        return dist.Normal(mean, self.min_scale + softplus(raw_scale)).to_event(1)


class StudentT(_Scaled):
    """Heavy-tailed noise; outputs are locations ``(*draws, batch, targets)``.

    The mean exists for df > 1 and the variance for df > 2. Below, these moments of a prediction are
    NaN or infinite; medians, quantiles, intervals and log probabilities are always defined.

    Args:
        df: degrees of freedom, positive; with ``learn_df`` their initial value, above 1.
        scale: initial scale, in units of the targets; a sequence has one per target; None as for
            :class:`Gaussian`.
        learn_df: learn df = 1 + softplus(raw_df), so that a mean exists.

    Raises:
        ValueError: a scale that is not positive, or df out of bounds.
    """

    def __init__(self, df: float = 5.0, scale: Scale = None, *, learn_df: bool = False) -> None:
        super().__init__(scale)
        if not df > (1 if learn_df else 0):
            raise ValueError(f"df must be positive, and above 1 with learn_df=True; got {df}")
        self.fixed_df = None if learn_df else df
        raw = softplus_inverse(torch.tensor(df - 1.0))
        self.raw_df = nn.Parameter(raw) if learn_df else None

    @property
    def df(self) -> Tensor:
        """Degrees of freedom, a scalar tensor."""
        if self.raw_df is None:
            return self.scale.new_tensor(self.fixed_df)
        return 1 + softplus(at_least_float32(self.raw_df))

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the targets."""
        return dist.StudentT(self.df, outputs, self.scale).to_event(1)


class Poisson(_Likelihood):
    """Counts with variance equal to their mean; outputs are log rates
    ``(*draws, batch, targets)``."""

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the counts."""
        rate = outputs.exp()
        return dist.Poisson(rate.clamp(min=torch.finfo(rate.dtype).tiny)).to_event(1)


class NegativeBinomial(_Likelihood):
    """Overdispersed counts; outputs are log means ``(*draws, batch, targets)``.

    The variance is μ + μ²/r with a learned concentration r shared by all examples (NB2; Cameron &
    Trivedi, 2013); the limit r → ∞ is Poisson.

    Args:
        concentration: initial r, positive.

    Raises:
        ValueError: a concentration that is not positive.
    """

    def __init__(self, concentration: float = 1.0) -> None:
        super().__init__()
        check_positive(concentration=concentration)
        self.raw_concentration = nn.Parameter(softplus_inverse(torch.tensor(float(concentration))))

    @property
    def concentration(self) -> Tensor:
        """Concentration r, a scalar tensor."""
        return softplus(at_least_float32(self.raw_concentration))

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the counts."""
        concentration = self.concentration
        # log(μ/r), the log odds of one more count
        logits = outputs - concentration.log()
        return dist.NegativeBinomial(concentration, logits=logits).to_event(1)


class PerToken(nn.Module):
    """Apply a likelihood of examples to every token; outputs are ``(*draws, batch, tokens, ...)``,
    labels likewise.

    ``PerToken(Gaussian())`` takes outputs ``(*draws, batch, tokens, targets)`` and labels
    ``(batch, tokens, targets)``. Padding has log probability 0, whatever its outputs or labels
    (−100 or NaN, for example).

    Args:
        likelihood: a module ``outputs -> Distribution`` with batch shape ``(*draws, batch)``.
    """

    def __init__(self, likelihood: nn.Module) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.needs_labels = getattr(likelihood, "needs_labels", False)

    def initialise(self, labels: Tensor) -> None:
        """Initialise the likelihood of tokens from the labels of real tokens ``(m, ...)``."""
        cast(_Scaled, self.likelihood).initialise(labels)

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the joint distribution of an example's labels; without a mask all tokens are
        real."""
        if mask is None:
            mask = outputs.new_ones(outputs.shape[-3:-1]).bool()
        tokens = self.likelihood(outputs.where(mask.unsqueeze(-1), 0))
        return Masked(tokens, mask.expand(tokens.batch_shape)).to_event(1)


class TokenCategorical(PerToken):
    """One class per token; outputs are logits ``(*draws, batch, tokens, classes)``, labels
    ``(batch, tokens)``."""

    def __init__(self) -> None:
        super().__init__(Categorical())
