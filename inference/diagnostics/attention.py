"""Diagnostics of attention layers: singular spectra of attention matrices, and oversmoothing of tokens."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.attention.kep_svgp import KEPSVGPAttention
from probattn.functional import ksvd
from probattn.handlers import at_mean
from probattn.inference.prediction.predict import predict

Statistic = Callable[[nn.Module, Tensor, Tensor | None, Tensor], Tensor]
"""A callable ``(module, x, mask, output) -> tensor``."""


def attention_spectra(
    model: nn.Module, guide: nn.Module | None, data: Tensor | Iterable
) -> dict[str, tuple[Tensor, Tensor]]:
    """Compute the singular values of each layer's attention matrix, and the Λ of KEP-SVGP.

    Compare spectra between depths and runs of one layer type, not between types, whose matrices differ: softmax, the
    attention probabilities; kernel attention, 𝒦_qk; KEP-SVGP, K_att = φ_q φ_kᵀ; SGPA, 𝒦 between tokens; CGP, dense or
    sparse, the map from the values to the mean of the output.

    Args:
        model, guide: run once in evaluation mode, with the latent sites at their means.
        data: inputs or batches ``(x, y, mask)`` as for :func:`predict`; rows and columns of padding are dropped.

    Returns:
        By path of each layer with an ``attention_matrix``, in execution order: its singular values ``(heads, N)``,
        averaged over examples (those beyond an example's length count as 0), and λ ``(heads, rank)``, with rank 0 for
        layers without it; both descending. With ``projection="svd"``, where λ is constant, the singular values on the
        scores' columns (``layer.spectrum``) take its place, averaged likewise.
    """
    layers = {path: layer for path, layer in _attention_layers(model).items() if hasattr(layer, "attention_matrix")}

    solved: dict[nn.Module, list[Tensor]] = {}

    def singular_values(layer: nn.Module, x: Tensor, mask: Tensor | None, _: Tensor) -> Tensor:
        if isinstance(layer, KEPSVGPAttention) and layer.solves:
            solved.setdefault(layer, []).append(layer.spectrum(x, mask).detach().flatten(0, -3))
        matrix = layer.attention_matrix(x, mask)
        if mask is not None:
            matrix = matrix.where(mask[:, None, :, None], 0.0)
        matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        return torch.linalg.svdvals(matrix).flatten(0, -3)

    spectra = {}
    for path, parts in _collect(model, guide, data, layers, singular_values).items():
        tokens = max(part.shape[-1] for part in parts)
        values = torch.cat([nn.functional.pad(part, (0, tokens - part.shape[-1])) for part in parts]).mean(0)
        scale = values.new_empty(len(values), 0)
        if layers[path] in solved:
            scale = torch.cat(solved[layers[path]]).mean(0)
        elif isinstance(layers[path], KEPSVGPAttention):
            scale = layers[path].scale.detach()
        spectra[path] = values.cpu(), scale.sort(descending=True).values.cpu()
    return spectra


def token_similarity(
    model: nn.Module, guide: nn.Module | None, data: Tensor | Iterable, *, paths: Sequence[str] | None = None
) -> dict[str, float]:
    """Compute the cosine similarity of tokens after each attention layer; values near 1 indicate oversmoothing.

    The mean over all pairs of real tokens of an example, then over examples and draws (CGP paper, section 5.4 and Figs.
    III and IV). Examples with a single token are excluded.

    Args:
        model, guide: run once in evaluation mode, with the latent sites at their means.
        data: inputs or batches ``(x, y, mask)`` as for :func:`predict`.
        paths: modules with outputs ``(..., batch, tokens, width)``, such as whole blocks; by default the attention
            layers.

    Returns:
        By path, in execution order: the similarity in [−1, 1], NaN if no example has two tokens.

    Raises:
        AttributeError: an unknown path.
    """
    modules = _attention_layers(model) if paths is None else {path: model.get_submodule(path) for path in paths}

    def similarity(_: nn.Module, x: Tensor, mask: Tensor | None, output: Tensor) -> Tensor:
        return mean_pairwise_cosine(output, mask).flatten()

    collected = _collect(model, guide, data, modules, similarity)
    return {path: torch.cat(parts).nanmean().item() for path, parts in collected.items()}


def mean_pairwise_cosine(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the mean of cos(x_i, x_j) over pairs i ≠ j of real tokens in linear time; zero tokens have cosine 0.

    Args:
        x: ``(..., batch, tokens, width)``.
        mask: ``(batch, tokens)``, True at real tokens.

    Returns:
        ``(..., batch)`` in float64, NaN for fewer than two tokens.
    """
    x = ksvd.cosine_features(x.double())
    if mask is not None:
        x = x.where(mask.unsqueeze(-1), 0.0)
    count = x.new_tensor(x.shape[-2]) if mask is None else mask.sum(-1)
    diagonal = x.square().sum((-2, -1))
    total = x.sum(-2).square().sum(-1) - diagonal
    # For a single token the total is a rounding error instead of 0, which would give ±Inf.
    return torch.where(count > 1, total / (count * (count - 1)), torch.nan)


def _attention_layers(model: nn.Module) -> dict[str, ProbabilisticAttention]:
    return {path: layer for path, layer in model.named_modules() if isinstance(layer, ProbabilisticAttention)}


def _collect(
    model: nn.Module,
    guide: nn.Module | None,
    data: Tensor | Iterable,
    modules: dict[str, nn.Module],
    statistic: Statistic,
) -> dict[str, list[Tensor]]:
    """Compute a statistic of each call of the modules, by path, with the latent sites at their means."""
    collected: dict[str, list[Tensor]] = {}

    def compute(path: str, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
        arguments = dict(zip(("x", "mask"), args, strict=False)) | kwargs
        value = statistic(module, arguments["x"], arguments.get("mask"), output)
        collected.setdefault(path, []).append(value)

    with ExitStack() as hooks, at_mean():
        for path, module in modules.items():
            hooks.enter_context(module.register_forward_hook(partial(compute, path), with_kwargs=True))
        predict(model, guide, data, num_samples=1)
    return collected
