"""Rearranged batches of likelihoods: stacked samples, joined examples, and selected examples or tokens."""

import copy
from collections.abc import Callable, Sequence

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent
from torch.distributions.constraints import Constraint


def stack(parts: Sequence[Distribution]) -> Distribution:
    """Stack S distributions of batch shape ``batch`` into one of batch shape ``(S, *batch)``."""
    return _rearranged(parts, torch.stack, Stacked)


def concatenate(parts: Sequence[Distribution]) -> tuple[Distribution, ...]:
    """Join distributions of batch shapes ``(S, b_i, ...)`` along the examples into one; several if that is impossible.

    Impossible are laws whose parameters lack the batch shape, and tokens padded to several lengths.
    """
    shapes = {(part.batch_shape[:1] + part.batch_shape[2:], part.event_shape) for part in parts}
    joined = _rearranged(parts, _cat_examples, _no_view) if len(parts) > 1 == len(shapes) else None
    return tuple(parts) if joined is None else (joined,)


def select(law: Distribution, index: Tensor) -> Distribution:
    """Select examples, or real tokens as examples, of a distribution of batch shape ``(S, b, ...)``.

    Args:
        law: the distribution.
        index: numbers of examples ``(m,)``, or a boolean mask ``(b, tokens)``.

    Raises:
        ValueError: an example twice, of a law whose parameters lack the batch shape.
    """

    def rows(values: Sequence[Tensor]) -> Tensor:
        return values[0][:, index]

    def view(laws: Sequence[Distribution]) -> Distribution:
        return Selected(laws[0], index)

    return _rearranged([law], rows, view)


def _no_view(parts: Sequence[Distribution]) -> None:
    return None


def _cat_examples(values: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(values), 1)


def _rearranged(
    parts: Sequence[Distribution],
    function: Callable[[Sequence[Tensor]], Tensor],
    view: Callable[[Sequence[Distribution]], Distribution | None],
) -> Distribution | None:
    """Return a distribution of the same class with rearranged parameters, or a view if some lack the batch shape."""
    first = parts[0]
    is_same_class = all(type(part) is type(first) for part in parts)
    if is_same_class and isinstance(first, Independent):
        base = _rearranged([part.base_dist for part in parts], function, view)
        return None if base is None else base.to_event(first.reinterpreted_batch_ndims)
    is_masked = isinstance(first, dist.MaskedDistribution)
    if not is_same_class or (first.event_shape and not is_masked):
        return view(parts)  # multivariate laws do not expand their parameters
    new = copy.copy(first)
    for name, value in vars(first).items():
        values = [vars(part).get(name) for part in parts]
        if any(other is None for other in values):
            vars(new).pop(name)  # lazy property, recomputed on first access
        elif isinstance(value, Tensor | Distribution):
            if not all(_starts_with_batch(inner, part) for inner, part in zip(values, parts, strict=True)):
                return view(parts)
            is_tensor = isinstance(value, Tensor)
            inner = function(values) if is_tensor else _rearranged(values, function, view if is_masked else _no_view)
            if inner is None:
                return view(parts)
            vars(new)[name] = inner
        elif isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return view(parts)  # transforms, which have parameters
    shape = function([torch.zeros(()).expand(part.batch_shape) for part in parts]).shape
    Distribution.__init__(new, shape, first.event_shape)
    return new


def _starts_with_batch(value: Tensor | Distribution, law: Distribution) -> bool:
    shape = value.shape if isinstance(value, Tensor) else value.batch_shape
    return shape[: len(law.batch_shape)] == law.batch_shape


class View(dist.TorchDistribution):
    """Base class of distributions whose values are those of their parts, rearranged.

    Args:
        parts: the distributions, of one batch shape.
        batch_shape: that of the view.
    """

    arg_constraints = {}

    def __init__(self, parts: Sequence[Distribution], batch_shape: torch.Size) -> None:
        self.parts, self.base_dist = tuple(parts), parts[0]
        super().__init__(batch_shape, parts[0].event_shape, validate_args=False)

    def gather(self, values: Sequence[Tensor], event_dim: int) -> Tensor:
        """Rearrange values ``(..., *batch, *event)`` of the parts."""
        raise NotImplementedError

    def scatter(self, value: Tensor) -> Sequence[Tensor]:
        """Return the values of the parts that a value ``(..., *event)`` of the view comes from."""
        raise NotImplementedError

    @property
    def support(self) -> Constraint:
        """Support of the first part."""
        return self.base_dist.support

    @property
    def mean(self) -> Tensor:
        """Means ``(*batch, *event)``."""
        return self.gather([part.mean for part in self.parts], self.event_dim)

    @property
    def variance(self) -> Tensor:
        """Variances ``(*batch, *event)``."""
        return self.gather([part.variance for part in self.parts], self.event_dim)

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draw samples ``(*sample_shape, *batch, *event)``."""
        return self.gather([part.sample(torch.Size(sample_shape)) for part in self.parts], self.event_dim)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log densities, in nats."""
        pairs = zip(self.parts, self.scatter(value), strict=True)
        return self.gather([part.log_prob(own) for part, own in pairs], 0)


class Stacked(View):
    """S distributions as one of batch shape ``(S, *batch)``.

    Args:
        parts: distributions of batch shape ``batch``.
    """

    def __init__(self, parts: Sequence[Distribution]) -> None:
        super().__init__(parts, torch.Size((len(parts), *parts[0].batch_shape)))

    def gather(self, values: Sequence[Tensor], event_dim: int) -> Tensor:
        """Stack the values left of the batch."""
        return torch.stack(list(values), -len(self.batch_shape) - event_dim)

    def scatter(self, value: Tensor) -> Sequence[Tensor]:
        """Return one value per part; a value without a dimension of samples is that of all."""
        dim = len(self.batch_shape) + self.event_dim
        if value.dim() < dim or value.shape[-dim] == 1:
            return [value if value.dim() < dim else value.squeeze(-dim)] * len(self.parts)
        return value.unbind(-dim)


class Selected(View):
    """Examples or tokens of a distribution; see :func:`select`."""

    def __init__(self, law: Distribution, index: Tensor) -> None:
        if index.dtype != torch.bool and len(index.unique()) < len(index):
            raise ValueError(f"an example of a prediction by {type(law).__name__} cannot be selected twice")
        self.index, self.dims = index, index.dim() if index.dtype == torch.bool else 1
        trailing = law.batch_shape[1 + self.dims :]
        size = int(index.sum()) if index.dtype == torch.bool else len(index)
        super().__init__([law], torch.Size((law.batch_shape[0], size, *trailing)))

    def gather(self, values: Sequence[Tensor], event_dim: int) -> Tensor:
        """Select the values."""
        return values[0][self._place(event_dim)]

    def scatter(self, value: Tensor) -> Sequence[Tensor]:
        """Return values of the whole; other entries repeat a selected one, which has the law's support."""
        trailing = len(self.batch_shape) - 2 + self.event_dim
        shape = self.base_dist.batch_shape[1 : 1 + self.dims]
        leading, inner = value.shape[: value.dim() - 1 - trailing], value.shape[value.dim() - trailing :]
        whole = value.new_ones(*leading, *shape, *inner)
        if value.numel():
            first = value.select(value.dim() - 1 - trailing, 0)
            whole = first.reshape(*leading, *(1,) * self.dims, *inner).expand(whole.shape).clone()
        whole[self._place(self.event_dim)] = value
        return [whole]

    def _place(self, event_dim: int) -> tuple:
        """Index of the selected entries in values ``(..., *batch, *event)``."""
        return (..., self.index, *(slice(None),) * (len(self.batch_shape) - 2 + event_dim))
