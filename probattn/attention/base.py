"""Base class of attention layers: shapes, checks, named sites and penalties."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Concatenate, ParamSpec

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn.attention.options import full_signature
from probattn.functional import dtypes, errors
from probattn.priors import name_of
from probattn.sites import SiteModule, Sites

Options = ParamSpec("Options")
Laws = tuple[dist.TorchDistribution, dist.TorchDistribution]
"""Prior and posterior of a local site, one object where they are the same."""
LayerFactory = Callable[[int, int], "ProbabilisticAttention"]


class ProbabilisticAttention(SiteModule):
    """Base of attention layers that are Pyro programs: ``layer(x, mask=None)`` *is* the model.

    A layer has two parts. :meth:`compute` is a pure function from tokens and latent values to
    output and log factors: it compiles, exports and differentiates. :meth:`forward` samples the
    latents of :meth:`sites` and :meth:`local_sites`, calls it, and adds the factors. A layer whose
    latents depend on each other has a ``forward`` of its own, by :meth:`sample`,
    :meth:`sample_local` and :meth:`factor`. For names of sites see
    :class:`~probattn.sites.SiteModule`.

    Args:
        dim: width of the tokens.
        heads: number of heads; must divide ``dim``.
    """

    example_dim = -3
    symmetric = False
    query_value: nn.Linear
    query_key_value: nn.Linear
    out: nn.Linear
    gain = 1.0  # factor on the initial weights of queries and keys, set by kernels
    signed: tuple[str, ...] = ()
    """Attributes that a checkpoint must share, in addition to the shapes of its parameters."""
    _path: tuple[Callable[[Tensor], Tensor], ...] = ()

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim < 1 or heads < 1 or dim % heads:
            raise ValueError(
                f"dim must be a positive multiple of heads, got dim={dim} and heads={heads}"
            )
        self.dim = dim
        self.heads = heads
        self.head_dim = dim // heads

    def __init_subclass__(cls) -> None:
        """Show the options of its bases in the signature of a layer that passes on ``options``."""
        super().__init_subclass__()
        cls.__signature__ = full_signature(cls)  # type: ignore[attr-defined]

    @classmethod
    def partial(
        cls: Callable[Concatenate[int, int, Options], "ProbabilisticAttention"],
        *args: Options.args,
        **options: Options.kwargs,
    ) -> LayerFactory:
        """Return a factory ``(dim, heads) -> layer`` with options of the class, for a network's
        ``attention=``."""
        # Options are named, so args is empty.
        return functools.partial(cls, *args, **options)  # type: ignore[arg-type]

    def local_sites(self, x: Tensor, mask: Tensor | None) -> dict[str, Laws]:
        """Return prior and posterior of local latent sites by name, for checked tokens."""
        return {}

    # By *Any and **Any type checkers accept layers that name their latents.
    def compute(
        self,
        x: Tensor,
        mask: Tensor | None,
        *_: Any,
        **latents: Any,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output of x's shape, and log factors ``(..., batch)`` of each example by name;
        pure.

        Args:
            x: checked tokens ``(*draws, batch, tokens, dim)``.
            mask: ``(batch, tokens)``, True where there is a token.
            latents: values of the sites by name.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither compute nor forward")

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run the program once.

        Args:
            x: ``(*draws, batch, tokens, dim)``.
            mask: ``(batch, tokens)``, True where there is a token.

        Returns:
            ``(*draws, batch, tokens, dim)``, with draws of the latents as leading dimensions.

        Raises:
            ValueError: x or mask of another shape.
            NumericalError: a NaN or Inf, or a matrix that cannot be factorised.
        """
        x = self.checked(x, mask)
        return self.run(x, mask, self.sites())

    def run(
        self,
        x: Tensor,
        mask: Tensor | None,
        sites: Sites,
        **given: Tensor,
    ) -> Tensor:
        """Sample the latents, and return the output of :meth:`compute` after its log factors are
        added.

        Args:
            x, mask: checked.
            sites: priors of the global sites.
            given: further arguments of ``compute``.
        """
        latents = self.sample_all(sites)
        for name, laws in self.local_sites(x, mask).items():
            latents[name] = self.sample_local(name, *laws)
        output, log_factors = self.compute(x, mask, **given, **latents)
        for name, log_factor in log_factors.items():
            self.factor(name, log_factor)
        return output

    def sample_all(self, sites: Sites) -> dict[str, Tensor]:
        """Sample global sites, from their priors by name."""
        return {name: self.sample(name, prior) for name, prior in sites.items()}

    def is_stochastic(self) -> bool:
        """Return True if the output depends on latent sites; override it where ``forward`` samples
        itself."""
        return bool(self.sites()) or self._computes_local_sites()

    def has_local_sites(self) -> bool:
        """Return True if a call samples local sites; override it where ``forward`` samples itself
        but not those."""
        has_own_forward = type(self).forward is not ProbabilisticAttention.forward
        return self._computes_local_sites() or (has_own_forward and self.is_stochastic())

    def _computes_local_sites(self) -> bool:
        return type(self).local_sites is not ProbabilisticAttention.local_sites

    @contextmanager
    def precise(self) -> Iterator[None]:
        """Compute in float32 or better inside, and name this layer in errors of
        :mod:`probattn.functional.errors`.

        Compiled code names no layer; code that may raise such an error is not compiled.
        """
        device_type = next(self.parameters(), torch.empty(0)).device.type
        where = nullcontext() if torch.compiler.is_compiling() else errors.located(self.label)
        with where, dtypes.exact(device_type):
            yield

    @property
    def label(self) -> str:
        """Class and path, for messages."""
        return f"{type(self).__name__} {self.name!r}".removesuffix(" ''")

    def follow(self, *path: Callable[[Tensor], Tensor]) -> None:
        """Store the path of the residual stream to this layer; called by networks.

        Args:
            path: the modules that vectors of the stream pass through on their way to this layer.
        """
        self._path = path

    def along_path(self, vectors: Tensor) -> Tensor:
        """Return vectors ``(..., dim)`` at the start of the path as they arrive at this layer."""
        for step in self._path:
            vectors = step(vectors)
        return vectors

    def add_projections(self, *, symmetric: bool, bias: bool) -> None:
        """Add the map to queries, keys and values, ``query_key_value``, or ``query_value`` if keys
        are queries; the initial weights of queries and keys are multiplied by :attr:`gain`."""
        self.symmetric = symmetric
        rows = self.dim if symmetric else 2 * self.dim
        linear = nn.Linear(self.dim, rows + self.dim, bias=bias)
        self.scale_rows(linear, rows)
        setattr(self, "query_value" if symmetric else "query_key_value", linear)

    @torch.no_grad()
    def scale_rows(self, linear: nn.Linear, rows: int) -> None:
        """Multiply the first rows of a map by :attr:`gain`."""
        for parameter in linear.parameters():
            parameter[:rows] *= self.gain

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys (the same tensor if ``symmetric``) and values
        ``(..., H, N, head_dim)``, in float32 or better."""
        linear = self.query_value if self.symmetric else self.query_key_value
        projected = dtypes.at_least_float32(linear(x))
        # contiguous, so that no product copies them again
        parts = self.split_heads(projected, 2 if self.symmetric else 3).contiguous().unbind()
        return parts[0], parts[-2], parts[-1]

    def log_of(
        self,
        value: float,
        *shape: int,
        learned: bool = True,
    ) -> nn.Parameter | nn.Buffer:
        """Return a parameter, or a buffer if it is not learned, with the logarithm of a value."""
        return (nn.Parameter if learned else nn.Buffer)(torch.full(shape, value).log())

    def initialise(self, stream: Tensor) -> None:
        """Set inducing inputs, where the layer has any, to vectors ``(..., dim)`` seen at the start
        of its path."""

    def remember_placement(self, *, is_placed: bool) -> None:
        """Add the buffer ``is_placed`` of :meth:`place`; weights without it, of earlier versions,
        count as placed when they are loaded."""
        self.is_placed = nn.Buffer(torch.tensor(float(is_placed)))
        self.register_load_state_dict_pre_hook(_count_as_placed)

    def place(self, stream: Tensor) -> None:
        """Call :meth:`initialise` once in the life of the layer's weights, which the buffer
        ``is_placed`` of layers with inducing inputs remembers."""
        is_placed = getattr(self, "is_placed", None)
        if is_placed is not None and not is_placed:
            self.initialise(stream)
            is_placed.fill_(1.0)

    def signature(self) -> dict[str, int | str]:
        """Return what a checkpoint must share with this layer: its class, width, heads and
        :attr:`signed` options, modules by their class and functions by their name."""
        signature: dict[str, Any] = {"layer": type(self).__name__}
        for name in ("dim", "heads", *self.signed):
            option = getattr(self, name)
            signature[name] = option if isinstance(option, int | str) else name_of(option)
        return signature

    def checked(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Check x and its mask, and return x with zeros at padding.

        Raises:
            ValueError: x not ``(..., batch, tokens, dim)`` or without tokens; mask not boolean
                ``(batch, tokens)``, or with a row without any token.
        """
        if x.dim() < 3 or x.shape[-1] != self.dim:
            raise ValueError(
                f"{self.label} takes x of shape (..., batch, tokens, {self.dim}), got "
                f"{tuple(x.shape)}; build the layer with dim={x.shape[-1]} or project x first"
            )
        if x.shape[-2] == 0:
            raise ValueError(f"{self.label} got examples without any token, {tuple(x.shape)}")
        if mask is None:
            return x
        if mask.dtype != torch.bool or mask.shape != x.shape[-3:-1]:
            raise ValueError(
                f"{self.label} takes a boolean mask of shape (batch, tokens) = "
                f"{tuple(x.shape[-3:-1])}, got {mask.dtype} {tuple(mask.shape)}"
            )
        errors.refuse(
            ~mask.any(-1),
            lambda rows: ValueError(
                f"{self.label} got examples without any token, rows {rows} of the mask; drop them"
            ),
        )
        return x.where(mask.unsqueeze(-1), 0.0)

    def split_heads(self, x: Tensor, parts: int) -> Tensor:
        """Split ``(..., N, parts · dim)`` into that many parts of all heads,
        ``(parts, ..., heads, N, head_dim)``."""
        by_token = x.unflatten(-1, (parts, self.heads, self.head_dim))
        return by_token.transpose(-4, -2).movedim(-3, 0)

    @staticmethod
    def join_heads(x: Tensor) -> Tensor:
        """Join ``(..., heads, N, width)`` into ``(..., N, heads · width)``."""
        return x.transpose(-3, -2).flatten(-2)

    def from_heads(self, x: Tensor) -> Tensor:
        """Return the output map ``out`` of what the heads have computed,
        ``(..., heads, N, width)``."""
        return dtypes.apply_linear(self.out, self.join_heads(x))


def _count_as_placed(layer: nn.Module, weights: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Add ``is_placed`` to weights of a layer that lack nothing else."""
    mark = f"{prefix}is_placed"
    others = {prefix + name for name in layer.state_dict()} - {mark}
    if others <= weights.keys():
        weights.setdefault(mark, torch.ones(()))
