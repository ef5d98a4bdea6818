"""Spectra against dense SVD of the matrices by formula, similarities against all pairs; masks,
batches and draws."""

import math

import pyro.poutine as poutine
import pytest
import torch
from float64 import ones64, randn64, tensor64, zeros64
from torch import nn
from torch.testing import assert_close

from probattn import (
    KEPSVGPAttention,
    RFFCGPAttention,
    RFFGPAttention,
    SoftmaxAttention,
    guides,
)
from probattn.attention.base import ProbabilisticAttention
from probattn.attention.kernel import KernelAttention
from probattn.inference.diagnostics import attention as module
from probattn.inference.diagnostics.attention import (
    attention_spectra,
    token_similarity,
)
from probattn.models import Classifier, ViT, layer_factories


class Opaque(ProbabilisticAttention):
    """A layer that has no attention matrix."""

    def forward(self, x, mask=None):
        return x * 2


LAYERS = [Opaque, SoftmaxAttention, KernelAttention, KEPSVGPAttention.partial(rank=2)]
PATHS = [f"network.blocks.{i}.attention" for i in range(4)]


class Masked(nn.Module):
    """Layers that take a mask, the second by its name, then a pool over real tokens."""

    def __init__(self, *layers):
        super().__init__()
        self.first, self.second = layers
        self.head = nn.Linear(4, 3)

    def forward(self, x, mask=None):
        x = self.second(self.first(x, mask), mask=mask)
        weights = (
            x.new_ones(x.shape[:-1] + (1,)) if mask is None else mask.unsqueeze(-1).to(x.dtype)
        )
        return self.head((x * weights).sum(-2) / weights.sum(-2))


def vit_model():
    vit = ViT(
        image_size=6, patch_size=2, classes=3, dim=8, depth=4, heads=2, mlp_dim=8, attention=LAYERS
    )
    model = Classifier(vit, num_data=10).double()
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, KEPSVGPAttention):
                layer.log_scale.copy_(torch.tensor([[0.1, 0.4], [0.3, 0.2]]))
        guide = guides.for_model(model)
        for parameter in guide.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model, guide, randn64(4, 3, 6, 6)


def text_model(first=KernelAttention):
    model = Classifier(Masked(first(4, 2), KEPSVGPAttention(4, 2, rank=2)), num_data=10).double()
    return model, guides.for_model(model)


def inputs_and_outputs(model, guide, x):
    """Inputs and outputs of every attention layer in one run at the mean of the guide."""
    runs = []
    u = {site: guide.get_submodule(site)(prior).mean for site, prior in guides.latent_sites(model)}
    for block in model.network.blocks:
        block.attention.register_forward_hook(
            lambda _, args, output: runs.append((args[0], output))
        )
    with torch.no_grad(), poutine.condition(data=u):
        model.eval()(x)
    return [(inputs.reshape(-1, 9, 8), outputs.reshape(-1, 9, 8)) for inputs, outputs in runs]


def by_formula(layer, x):
    """The attention matrices ``(examples, heads, n, n)`` of tokens ``(examples, n, dim)``."""
    is_ksvd = isinstance(layer, KEPSVGPAttention)
    maps = x @ (layer.query_key if is_ksvd else layer.query_key_value).weight[: 2 * layer.dim].T
    q, k = maps.unflatten(-1, (2, layer.heads, -1)).permute(2, 0, 3, 1, 4)
    if is_ksvd:
        return torch.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1)
    if isinstance(layer, KernelAttention):
        return (-0.5 * (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)).exp()
    return (q @ k.mT / layer.head_dim**0.5).softmax(-1)


@torch.no_grad()
@pytest.mark.parametrize("kind", [RFFCGPAttention, RFFGPAttention])
def test_spectra_of_a_layer_with_sampled_frequencies_are_those_at_their_means(kind):
    attention = kind.partial(features=6, frequencies="sampled")
    sizes = {"image_size": 6, "patch_size": 2, "classes": 3, "dim": 8, "heads": 2, "mlp_dim": 8}
    model = Classifier(ViT(**sizes, depth=1, attention=attention), num_data=10).double()
    guide, x = guides.for_model(model), randn64(4, 3, 6, 6)
    for parameter in guide.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    layer = model.network.blocks[0].attention
    inputs = []
    hook = layer.register_forward_hook(lambda _, args, __: inputs.append(args[0]))
    (spectrum,) = attention_spectra(model, guide, x).values()
    hook.remove()
    ((site, prior),) = guides.latent_sites(model)
    frequencies = guide.get_submodule(site)(prior).mean
    matrices = poutine.condition(layer.attention_matrix, data={site: frequencies})(inputs[0])
    expected = torch.linalg.svdvals(matrices.flatten(0, -4)).mean(0)
    assert_close(spectrum.values, expected)


@pytest.mark.parametrize("name", layer_factories.LAYERS)
def test_every_layer_of_the_library_has_a_spectrum(name):
    sizes = {"image_size": 6, "patch_size": 1, "classes": 3, "dim": 8, "heads": 2, "mlp_dim": 8}
    vit = ViT(**sizes, depth=1, attention=name)
    model = Classifier(vit, num_data=10)
    spectra = attention_spectra(model, guides.for_model(model), torch.randn(2, 3, 6, 6))
    assert (spectra[PATHS[0]].values.sum(-1) > 0).all()


@torch.no_grad()
def test_spectra_are_mean_singular_values_with_the_energy_of_a_projection():
    model, guide, x = vit_model()
    spectra = attention_spectra(model.train(), guide, x)
    assert model.training
    assert list(spectra) == PATHS[1:]  # the first has no attention matrix
    assert not any(module._forward_hooks for module in model.modules())
    runs = inputs_and_outputs(model, guide, x)
    for i, (inputs, _) in enumerate(runs[1:], start=1):
        layer, spectrum = model.network.blocks[i].attention, spectra[PATHS[i]]
        matrices = by_formula(layer, inputs)
        values = torch.linalg.svdvals(matrices)
        assert_close(spectrum.values, values.mean(0), rtol=1e-9, atol=1e-9)
    assert spectra[PATHS[1]].captured.numel() == spectra[PATHS[1]].scale.numel() == 0
    assert_close(spectrum.scale, tensor64([[0.4, 0.1], [0.3, 0.2]]).exp())
    energies, e = values.square(), layer.scores(inputs)[0]
    projection = e @ (e.mT @ e).inverse() @ e.mT
    captured = (projection @ matrices).square().sum((-2, -1)) / energies.sum(-1)
    assert_close(spectrum.captured, captured.mean(0))
    assert_close(spectrum.best, (energies[..., :2].sum(-1) / energies.sum(-1)).mean(0))
    assert (spectrum.captured < spectrum.best).all()


@pytest.mark.parametrize(
    "first", [KernelAttention, KEPSVGPAttention.partial(rank=2, projection="svd")]
)
def test_padded_examples_count_as_their_real_tokens_and_without_a_pair_not_at_all(first):
    model, guide = text_model(first)
    x, lengths = randn64(3, 5, 4), (5, 2, 1)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    batches = [(x[:2], None, mask[:2]), (x[2:], None, mask[2:])]
    x = x.masked_fill(~mask.unsqueeze(-1), math.nan)
    padded = attention_spectra(model, guide, [(x[:2], None, mask[:2])])
    single = [attention_spectra(model, guide, x[b : b + 1, :n]) for b, n in enumerate(lengths[:2])]
    for path, spectrum in padded.items():
        expected = zeros64(2, 5)
        for n, part in zip(lengths, single, strict=False):
            expected[:, :n] += part[path].values / 2
        assert_close(spectrum.values, expected)
    if (
        first is not KernelAttention
    ):  # scores of as many columns as the kernel's rank reach all of it
        spectrum = padded["network.first"]
        assert_close(spectrum.scale, spectrum.values[:, :2], rtol=1e-3, atol=1e-3)
        assert_close(spectrum.captured, ones64(2), rtol=1e-3, atol=1e-3)
    similarity = token_similarity(model, guide, batches)
    single = [token_similarity(model, guide, x[b : b + 1, :n]) for b, n in enumerate(lengths)]
    for path, value in similarity.items():
        assert value == pytest.approx((single[0][path] + single[1][path]) / 2, abs=1e-12)
        assert math.isnan(single[2][path])


def test_of_long_inputs_few_examples_are_decomposed(monkeypatch):
    """Budget for three matrices of nine tokens in each batch."""
    model, guide, _ = vit_model()
    x = randn64(6, 3, 6, 6)
    five = attention_spectra(model, guide, x[:5])
    monkeypatch.setattr(module, "BUDGET", 3.5 * 9**3)
    for path, spectrum in attention_spectra(model, guide, [x[:2], x[2:]]).items():
        assert spectrum.examples == 5
        assert_close(spectrum.values, five[path].values)
        assert_close(spectrum.captured, five[path].captured)
    monkeypatch.setattr(module, "BUDGET", 0.0)
    assert [spectrum.examples for spectrum in attention_spectra(model, guide, x).values()] == [
        2,
        2,
        2,
    ]


def cosines(x):
    """The mean over pairs i ≠ j of one example's tokens, in loops."""
    pairs = [(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j]
    return sum((a @ b / (a.norm() * b.norm())).item() for a, b in pairs) / len(pairs)


def test_similarity_is_the_mean_over_pairs_of_the_outputs_of_each_attention_layer():
    model, guide, x = vit_model()
    similarity = token_similarity(model, guide, x)
    assert list(similarity) == PATHS
    for value, (_, outputs) in zip(
        similarity.values(), inputs_and_outputs(model, guide, x), strict=True
    ):
        assert value == pytest.approx(sum(map(cosines, outputs)) / 4, abs=1e-12)
