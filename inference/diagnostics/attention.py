"""Diagnostics of attention layers: singular spectra of attention matrices, and oversmoothing of
tokens."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn import KEPSVGPAttention, ProbabilisticAttention
from probattn.draws import at_mean
from probattn.functional import ksvd
from probattn.functional.dtypes import at_least_float32
from probattn.inference.prediction.predict import predict
from probattn.threads import one_thread_at_a_time

BUDGET = 2.0**32
"""Bound of Σ N³ over the examples of N tokens of a batch that are decomposed: 256 of 256 tokens, or
32 of 512."""
FEW = 2
"""Number of examples of a batch that are decomposed even beyond :data:`BUDGET`."""


class Spectrum(NamedTuple):
    """Singular values of a layer's attention matrix K, means over examples, and what KEP-SVGP keeps
    of it.

    The energy of K is ‖K‖²_F. E holds s columns; no s columns capture more than the share Σ_{i ≤ s}
    σ_i² / Σ_i σ_i² of the leading left singular vectors.

    Args:
        values: σ ``(heads, N)``, descending; those beyond an example's length count as 0.
        scale: λ ``(heads, s)``, descending; s = 0 for layers without it. Only the KSVD term
            determines it: it need not be near σ (see
            :class:`~probattn.attention.kep_svgp.KEPSVGPAttention`). With ``projection="svd"``,
            where λ is constant, the means of ``layer.spectrum``.
        captured: ‖P_E K‖²_F / ‖K‖²_F ``(heads,)``, with the orthogonal projection P_E on the
            columns of E; empty for layers without E.
        best: largest share for s columns ``(heads,)``.
        examples: number of examples that the means are over; None if unknown.
    """

    values: Tensor
    scale: Tensor
    captured: Tensor
    best: Tensor
    examples: int | None = None


def attention_spectra(
    model: nn.Module, guide: nn.Module | None, data: Tensor | Iterable
) -> dict[str, Spectrum]:
    """Compute the singular values of each layer's attention matrix, and what the scores of KEP-SVGP
    capture of it.

    Compare spectra between depths and runs of one layer type, not between types, whose matrices
    differ: softmax, the attention probabilities; kernel attention, 𝒦_qk; KEP-SVGP, K_att = φ_q
    φ_kᵀ; SGPA, 𝒦 between tokens; anchored, RFF-GPA and CGP, dense or sparse, the map from the
    values to the mean of the output.

    The cost of a singular value decomposition is cubic in the number of tokens N. So of a batch of
    long inputs only the first examples count, with Σ N³ up to :data:`BUDGET`, but at least
    :data:`FEW`.

    Args:
        model, guide: run once in evaluation mode, with the latent sites at their means.
        data: inputs or batches ``(x, y, mask)`` as for :func:`predict`; rows and columns of padding
            are dropped.

    Returns:
        By path of each layer with an ``attention_matrix``, in execution order.
    """
    spectra = {}
    for path, parts in _collect(model, guide, data, _decomposed).items():
        values, shares, scales = zip(*parts, strict=True)
        tokens = max(sigma.shape[-1] for sigma in values)
        padded = [nn.functional.pad(sigma, (0, tokens - sigma.shape[-1])) for sigma in values]
        mean_shares = torch.cat(shares).nanmean(0)  # (heads, 2), or (heads, 0)
        spectra[path] = Spectrum(
            torch.cat(padded).mean(0),
            scale=torch.cat(scales).mean(0).sort(descending=True).values,
            captured=mean_shares[:, :1].flatten(),
            best=mean_shares[:, 1:].flatten(),
            examples=sum(map(len, values)),
        )
    return spectra


def _decomposed(
    layer: nn.Module, x: Tensor, mask: Tensor | None, _: Tensor
) -> tuple[Tensor, ...] | None:
    """Return σ of the attention matrix ``(examples, H, N)``, the shares of energy
    ``(examples, H, 2)`` and λ ``(examples, H, s)``."""
    attention_matrix = getattr(layer, "attention_matrix", None)
    if attention_matrix is None:
        return None
    number = max(FEW, int(BUDGET / x.shape[-2] ** 3))
    x = x[..., :number, :, :]
    if mask is not None:
        mask = mask[:number]
    matrix = at_least_float32(attention_matrix(x, mask))
    if mask is not None:
        matrix = matrix.where(mask[:, None, :, None], 0.0)
    values = torch.linalg.svdvals(matrix)
    shares = scale = values[..., :0]
    if isinstance(layer, KEPSVGPAttention):
        shares = energy_shares(matrix, values, layer.scores(x, mask)[0].to(matrix))
        scale = layer.scale.expand(*values.shape[:-1], -1)
        if layer.solves:
            scale = layer.spectrum(x, mask)
    return tuple(part.flatten(0, -3).cpu() for part in (values, shares, scale))


def energy_shares(matrix: Tensor, values: Tensor, scores: Tensor) -> Tensor:
    """Return the share of ‖K‖²_F in the span of some columns, and the largest share for as many
    columns.

    Args:
        matrix: K ``(..., N, n)``.
        values: its singular values ``(..., N)``, descending.
        scores: columns E ``(..., N, s)``.

    Returns:
        ``(..., 2)``, NaN for K = 0.
    """
    projected = scores @ (torch.linalg.pinv(scores) @ matrix)  # repeated columns count once
    captured = projected.square().sum((-2, -1))
    best = values[..., : scores.shape[-1]].square().sum(-1)
    return torch.stack([captured, best], dim=-1) / matrix.square().sum((-2, -1)).unsqueeze(-1)


def token_similarity(
    model: nn.Module, guide: nn.Module | None, data: Tensor | Iterable
) -> dict[str, float]:
    """Compute the cosine similarity of tokens after each attention layer; values near 1 indicate
    oversmoothing.

    The mean over all pairs of real tokens of an example, then over examples and draws (CGP paper,
    section 5.4 and Figs. III and IV). Examples with a single token are excluded.

    Args:
        model, guide: run once in evaluation mode, with the latent sites at their means.
        data: inputs or batches ``(x, y, mask)`` as for :func:`predict`.

    Returns:
        By path, in execution order: the similarity in [−1, 1], NaN if no example has two tokens.
    """
    collected = _collect(
        model, guide, data, lambda _, __, mask, output: mean_pairwise_cosine(output, mask).flatten()
    )
    return {path: torch.cat(parts).nanmean().item() for path, parts in collected.items()}


def mean_pairwise_cosine(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the mean of cos(x_i, x_j) over pairs i ≠ j of real tokens in linear time; zero tokens
    have cosine 0.

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


class _LastValues(Messenger):
    """Remember the last value of each site."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Tensor] = {}

    def _pyro_post_sample(self, msg: Message) -> None:
        if msg["value"] is not None:
            self.values[str(msg["name"])] = msg["value"]


@one_thread_at_a_time
def _collect(
    model: nn.Module,
    guide: nn.Module | None,
    data: Tensor | Iterable,
    statistic: Callable[..., Any],
) -> dict[str, list]:
    """Compute ``statistic(layer, x, mask, output)`` of each call of the attention layers, by path,
    unless it is None.

    The latent sites are at their means.
    """
    collected: dict[str, list] = {}
    sites = _LastValues()

    def compute(
        path: str, layer: nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor
    ) -> None:
        arguments = dict(zip(("x", "mask"), args, strict=False)) | kwargs
        # Sites that the statistic samples again have their values of this run, and are in no trace.
        with poutine.block(), poutine.condition(data=sites.values):
            value = statistic(layer, arguments["x"], arguments.get("mask"), output)
        if value is not None:
            collected.setdefault(path, []).append(value)

    with ExitStack() as hooks, at_mean(), sites:
        for path, layer in model.named_modules():
            if isinstance(layer, ProbabilisticAttention):
                hook = layer.register_forward_hook(partial(compute, path), with_kwargs=True)
                hooks.enter_context(hook)
        predict(model, guide, data, num_samples=1)
    return collected
