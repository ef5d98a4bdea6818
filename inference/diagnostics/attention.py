"""Diagnostics of attention layers: singular spectra of attention matrices, and oversmoothing of tokens."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.attention.kep_svgp import KEPSVGPAttention
from probattn.draws import at_mean
from probattn.functional import ksvd
from probattn.inference.prediction.predict import predict

Statistic = Callable[[nn.Module, Tensor, Tensor | None, Tensor], Any]
"""A callable ``(module, x, mask, output) -> value``."""


class Spectrum(NamedTuple):
    """Singular values of a layer's attention matrix K, means over examples, and what KEP-SVGP keeps of it.

    The energy of K is ‖K‖²_F. E holds s columns; no s columns capture more than the share Σ_{i ≤ s} σ_i² / Σ_i σ_i² of
    the leading left singular vectors.

    Args:
        values: σ ``(heads, N)``, descending; those beyond an example's length count as 0.
        scale: λ ``(heads, s)``, descending; s = 0 for layers without it. Only the KSVD term determines it: it need not
            be near σ (see :class:`~probattn.attention.kep_svgp.KEPSVGPAttention`). With ``projection="svd"``, where λ
            is constant, the means of ``layer.spectrum``.
        captured: ‖P_E K‖²_F / ‖K‖²_F ``(heads,)``, with the orthogonal projection P_E on the columns of E; empty for
            layers without E.
        best: largest share for s columns ``(heads,)``.
    """

    values: Tensor
    scale: Tensor
    captured: Tensor
    best: Tensor


def attention_spectra(model: nn.Module, guide: nn.Module | None, data: Tensor | Iterable) -> dict[str, Spectrum]:
    """Compute the singular values of each layer's attention matrix, and what the scores of KEP-SVGP capture of it.

    Compare spectra between depths and runs of one layer type, not between types, whose matrices differ: softmax, the
    attention probabilities; kernel attention, 𝒦_qk; KEP-SVGP, K_att = φ_q φ_kᵀ; SGPA, 𝒦 between tokens; CGP, dense or
    sparse, the map from the values to the mean of the output.

    Args:
        model, guide: run once in evaluation mode, with the latent sites at their means.
        data: inputs or batches ``(x, y, mask)`` as for :func:`predict`; rows and columns of padding are dropped.

    Returns:
        By path of each layer with an ``attention_matrix``, in execution order.
    """
    layers = {path: layer for path, layer in _attention_layers(model).items() if hasattr(layer, "attention_matrix")}

    solved: dict[nn.Module, list[Tensor]] = {}

    def statistics(layer: nn.Module, x: Tensor, mask: Tensor | None, _: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(layer, KEPSVGPAttention) and layer.solves:
            solved.setdefault(layer, []).append(layer.spectrum(x, mask).detach().flatten(0, -3))
        matrix = layer.attention_matrix(x, mask)
        if mask is not None:
            matrix = matrix.where(mask[:, None, :, None], 0.0)
        matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        values = torch.linalg.svdvals(matrix)
        shares = values.new_empty(*values.shape[:-1], 0)
        if isinstance(layer, KEPSVGPAttention):
            shares = energy_shares(matrix, values, layer.scores(x, mask)[0].to(matrix))
        return values.flatten(0, -3), shares.flatten(0, -3)

    spectra = {}
    for path, parts in _collect(model, guide, data, layers, statistics).items():
        tokens = max(values.shape[-1] for values, _ in parts)
        padded = [nn.functional.pad(values, (0, tokens - values.shape[-1])) for values, _ in parts]
        values = torch.cat(padded).mean(0)
        shares = torch.cat([shares for _, shares in parts]).nanmean(0).cpu()
        has_scale = isinstance(layers[path], KEPSVGPAttention)
        scale = layers[path].scale.detach() if has_scale else values.new_empty(len(values), 0)
        if layers[path] in solved:
            scale = torch.cat(solved[layers[path]]).mean(0)
        captured, best = shares.unbind(-1) if has_scale else (shares.flatten(),) * 2
        spectra[path] = Spectrum(values.cpu(), scale.sort(descending=True).values.cpu(), captured, best)
    return spectra


def energy_shares(matrix: Tensor, values: Tensor, scores: Tensor) -> Tensor:
    """Return the share of ‖K‖²_F in the span of some columns, and the largest share for as many columns.

    Args:
        matrix: K ``(..., N, N)``.
        values: its singular values ``(..., N)``, descending.
        scores: columns E ``(..., N, s)``.

    Returns:
        ``(..., 2)``, NaN for K = 0.
    """
    basis, lengths, _ = torch.linalg.svd(scores, full_matrices=False)
    rank = lengths > lengths[..., :1] * scores.shape[-2] * torch.finfo(lengths.dtype).eps
    energy = matrix.square().sum((-2, -1))
    captured = (basis * rank.unsqueeze(-2)).mT.matmul(matrix).square().sum((-2, -1))
    best = values[..., : scores.shape[-1]].square().sum(-1)
    return torch.stack([captured, best], dim=-1) / energy.unsqueeze(-1)


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
) -> dict[str, list]:
    """Compute a statistic of each call of the modules, by path, with the latent sites at their means."""
    collected: dict[str, list] = {}

    def compute(path: str, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
        arguments = dict(zip(("x", "mask"), args, strict=False)) | kwargs
        value = statistic(module, arguments["x"], arguments.get("mask"), output)
        collected.setdefault(path, []).append(value)

    with ExitStack() as hooks, at_mean():
        for path, module in modules.items():
            hooks.enter_context(module.register_forward_hook(partial(compute, path), with_kwargs=True))
        predict(model, guide, data, num_samples=1)
    return collected
