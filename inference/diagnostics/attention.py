"""What the attention layers of a network do to its tokens: the spectra of their attention, and oversmoothing."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.attention.kep_svgp import KEPSVGPAttention
from probattn.functional import ksvd
from probattn.handlers import at_mean
from probattn.inference.prediction.predict import predict

Look = Callable[[nn.Module, Tensor, Tensor | None, Tensor], Tensor]


def attention_spectra(
    model: nn.Module, guide: nn.Module | None, data: Tensor | Iterable
) -> dict[str, tuple[Tensor, Tensor]]:
    """The singular spectrum of each layer's attention matrix, beside Λ where the layer learns one.

    Args:
        model, guide: run once in evaluation mode, with the latent sites at their means.
        data: what :func:`predict` takes: inputs, or batches ``(x, y, mask)``; rows and columns of padding are dropped.

    Returns:
        By the path of each layer that has an ``attention_matrix``, in the order in which they run: its singular values
        ``(heads, N)``, averaged over examples (those beyond an example's length count as 0), and λ ``(heads, rank)``
        with rank 0 where there is none; both descending.

    What the matrix is differs from layer to layer, so that spectra compare depths and runs of one layer rather than
    layers: softmax, the attention probabilities; kernel attention, 𝒦_qk; KEP-SVGP, K_att = φ_q φ_kᵀ; SGPA, 𝒦 between
    tokens; CGP, dense or sparse, the map from the values to the mean of the output.
    """
    layers = _attention_layers(model)
    layers = {path: layer for path, layer in layers.items() if hasattr(layer, "attention_matrix")}

    def singular_values(layer: nn.Module, x: Tensor, mask: Tensor | None, _: Tensor) -> Tensor:
        matrix = layer.attention_matrix(x, mask)
        if mask is not None:
            matrix = matrix.where(mask[:, None, :, None], 0.0)
        matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        return torch.linalg.svdvals(matrix).flatten(0, -3)

    spectra = {}
    for path, parts in _seen(model, guide, data, layers, singular_values).items():
        tokens = max(part.shape[-1] for part in parts)
        values = torch.cat([nn.functional.pad(part, (0, tokens - part.shape[-1])) for part in parts]).mean(0)
        learned = isinstance(layers[path], KEPSVGPAttention)
        scale = layers[path].scale.detach() if learned else values.new_empty(len(values), 0)
        spectra[path] = values.cpu(), scale.sort(descending=True).values.cpu()
    return spectra


def token_similarity(
    model: nn.Module, guide: nn.Module | None, data: Tensor | Iterable, *, paths: Sequence[str] | None = None
) -> dict[str, float]:
    """How alike the tokens are behind each attention layer: near 1 the network has smoothed them into one.

    The mean cosine over all pairs of real tokens of an example, then over examples and draws (CGP paper, section 5.4
    and Figs. III and IV). Examples of one token have no pair and are left out.

    Args:
        model, guide: run once in evaluation mode, with the latent sites at their means.
        data: what :func:`predict` takes: inputs, or batches ``(x, y, mask)``.
        paths: modules whose outputs ``(..., batch, tokens, width)`` to look at, such as whole blocks; by default the
            attention layers.

    Returns:
        By path, in the order in which they run: the similarity in [−1, 1], NaN where no example has two tokens.

    Raises:
        AttributeError: a path that the model does not have.
    """
    modules = _attention_layers(model) if paths is None else {path: model.get_submodule(path) for path in paths}

    def similarity(_: nn.Module, x: Tensor, mask: Tensor | None, output: Tensor) -> Tensor:
        return mean_pairwise_cosine(output, mask).flatten()

    seen = _seen(model, guide, data, modules, similarity)
    return {path: torch.cat(parts).nanmean().item() for path, parts in seen.items()}


def mean_pairwise_cosine(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean of cos(x_i, x_j) over the pairs i ≠ j of real tokens, in time linear in their number; a zero token has 0.

    Args:
        x: ``(..., batch, tokens, width)``.
        mask: ``(batch, tokens)``, True where there is a token.

    Returns:
        ``(..., batch)`` in float64, NaN where there are fewer than two tokens.
    """
    x = ksvd.cosine_features(x.double())
    if mask is not None:
        x = x.where(mask.unsqueeze(-1), 0.0)
    count = x.new_tensor(x.shape[-2]) if mask is None else mask.sum(-1)
    alone = x.square().sum((-2, -1))
    total = x.sum(-2).square().sum(-1) - alone
    # Of one token the difference is a rounding error, not 0, and would give ±Inf.
    return torch.where(count > 1, total / (count * (count - 1)), torch.nan)


def _attention_layers(model: nn.Module) -> dict[str, ProbabilisticAttention]:
    return {path: layer for path, layer in model.named_modules() if isinstance(layer, ProbabilisticAttention)}


def _seen(
    model: nn.Module, guide: nn.Module | None, data: Tensor | Iterable, modules: dict[str, nn.Module], look: Look
) -> dict[str, list[Tensor]]:
    """What ``look`` sees each time that one of the modules runs, by path, with the latent sites at their means."""
    seen: dict[str, list[Tensor]] = {}

    def hook(path: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
            given = dict(zip(("x", "mask"), args, strict=False)) | kwargs
            seen.setdefault(path, []).append(look(module, given["x"], given.get("mask"), output))

        return keep

    handles = [module.register_forward_hook(hook(path), with_kwargs=True) for path, module in modules.items()]
    try:
        with at_mean():
            predict(model, guide, data, num_samples=1)
    finally:
        for handle in handles:
            handle.remove()
    return seen
