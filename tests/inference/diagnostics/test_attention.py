"""Spectra against dense SVD of loops, similarities against all pairs; masks, batches, draws and errors."""

import math

import pyro.poutine as poutine
import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.attention.base import ProbabilisticAttention
from probattn.attention.kernel import KernelAttention
from probattn.inference.diagnostics import attention as module
from probattn.inference.diagnostics.attention import (
    attention_spectra,
    energy_shares,
    mean_pairwise_cosine,
    token_similarity,
)
from probattn.models import Classifier, ViT

F64 = torch.float64
LAYERS = [SoftmaxAttention, KernelAttention, KEPSVGPAttention.partial(rank=2)]


class Opaque(ProbabilisticAttention):
    """A layer that has no attention matrix."""

    def forward(self, x, mask=None):
        return x * 2


class Masked(nn.Module):
    """Layers that take a mask, the second by its name, then a pool over real tokens."""

    def __init__(self, *layers):
        super().__init__()
        self.first, self.second = layers
        self.head = nn.Linear(4, 3)

    def forward(self, x, mask=None):
        x = self.second(self.first(x, mask), mask=mask)
        if mask is None:
            return self.head(x.mean(-2))
        weights = mask.unsqueeze(-1).to(x.dtype)
        return self.head((x * weights).sum(-2) / weights.sum(-2))


def vit_model(attention=LAYERS):
    torch.manual_seed(0)
    vit = ViT(image_size=6, patch_size=2, classes=3, dim=8, depth=3, heads=2, mlp_dim=8, attention=attention)
    model = Classifier(vit, num_data=10).double()
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, KEPSVGPAttention):
                layer.log_scale.copy_(torch.tensor([[0.1, 0.4], [0.3, 0.2]]))
    guide = guides.for_model(model)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model, guide


def text_model():
    torch.manual_seed(0)
    model = Classifier(Masked(KernelAttention(4, 2), KEPSVGPAttention(4, 2, rank=2)), num_data=10).double()
    return model, guides.for_model(model)


def seen_by(model, guide, x, mask=None):
    """Inputs and outputs of every module in one run at the mean of the guide, by path."""
    seen = {}
    handles = [
        module.register_forward_hook(lambda _, args, out, path=path: seen.update({path: (args[0], out)}))
        for path, module in model.network.named_modules()
    ]
    u = {site: guide.get_submodule(site)(prior).mean for site, prior in guides.latent_sites(model)}
    with torch.no_grad(), poutine.condition(data=u):
        model.eval()(x, None, mask)
    for handle in handles:
        handle.remove()
    model.train()
    return seen


def cosines(x):
    """The mean over pairs i ≠ j of one example's tokens, in loops."""
    values = []
    for i in range(len(x)):
        for j in range(len(x)):
            if i != j:
                values.append((x[i] @ x[j] / (x[i].norm() * x[j].norm())).item())
    return sum(values) / len(values)


# ---------------------------------------------------------------- spectra


def loops(layer, x):
    """The attention matrices of one example, in loops over heads, queries and keys."""
    heads, d, n = layer.heads, layer.head_dim, len(x)
    weights = layer.query_key.weight if isinstance(layer, KEPSVGPAttention) else layer.query_key_value.weight
    q, k = (x @ weights.T)[:, : heads * d], (x @ weights.T)[:, heads * d : 2 * heads * d]
    matrices = torch.zeros(heads, n, n, dtype=F64)
    for h in range(heads):
        for i in range(n):
            for j in range(n):
                a, b = q[i, d * h : d * h + d], k[j, d * h : d * h + d]
                if isinstance(layer, KEPSVGPAttention):
                    matrices[h, i, j] = a @ b / (a.norm() * b.norm())
                elif isinstance(layer, KernelAttention):
                    matrices[h, i, j] = (-0.5 * (a - b).square().sum()).exp()
                else:
                    matrices[h, i, j] = (a @ b / d**0.5).exp()
    if isinstance(layer, SoftmaxAttention):
        matrices /= matrices.sum(-1, keepdim=True)
    return matrices.detach()


def test_spectra_of_computed_singular_vectors_stand_beside_those_of_the_kernel():
    """Scores of as many columns as the kernel's rank reach all of it."""
    torch.manual_seed(0)
    attention = KEPSVGPAttention(4, 2, rank=2, projection="svd")
    model = Classifier(Masked(attention, KEPSVGPAttention(4, 2, rank=2)), num_data=10).double()
    x, mask = torch.randn(5, 4, 4, dtype=F64), torch.arange(4).expand(5, 4) < torch.tensor([[4], [3], [2], [4], [1]])
    spectrum = attention_spectra(model, guides.for_model(model), [(x, None, mask)])["network.first"]
    torch.testing.assert_close(spectrum.scale, spectrum.values[:, :2], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(spectrum.captured, torch.ones(2, dtype=F64), rtol=1e-3, atol=1e-3)


def test_spectra_are_mean_singular_values_of_each_examples_attention_matrix():
    model, guide = vit_model()
    model.train()
    x = torch.randn(4, 3, 6, 6, dtype=F64)
    spectra = attention_spectra(model, guide, x)
    seen = seen_by(model, guide, x)
    assert list(spectra) == [f"network.blocks.{i}.attention" for i in range(3)]
    assert model.training
    for i, (path, (values, *_)) in enumerate(spectra.items()):
        layer, inputs = model.network.blocks[i].attention, seen[path.removeprefix("network.")][0]
        expected = torch.stack([torch.linalg.svdvals(loops(layer, each)) for each in inputs.reshape(-1, 9, 8)]).mean(0)
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)
        assert values.shape == (2, 9)
    scales = [spectrum.scale for spectrum in spectra.values()]
    assert [tuple(scale.shape) for scale in scales] == [(2, 0), (2, 0), (2, 2)]
    torch.testing.assert_close(scales[2], torch.tensor([[0.4, 0.1], [0.3, 0.2]], dtype=F64).exp())


def test_spectra_of_padded_examples_are_those_of_their_real_tokens():
    model, guide = text_model()
    x, lengths = torch.randn(2, 5, 4, dtype=F64), (5, 3)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    x[1, 3:] = math.nan
    padded = attention_spectra(model, guide, [(x, None, mask)])
    alone = [attention_spectra(model, guide, x[b : b + 1, :n]) for b, n in enumerate(lengths)]
    for path in ("network.first", "network.second"):
        expected = torch.zeros(2, 5, dtype=F64)
        for n, each in zip(lengths, alone, strict=True):
            expected[:, :n] += each[path][0] / 2
        torch.testing.assert_close(padded[path][0], expected)


def test_the_energy_that_the_scores_capture_is_that_of_a_projection():
    model, guide = vit_model()
    x = torch.randn(4, 3, 6, 6, dtype=F64)
    spectra = attention_spectra(model, guide, x)
    layer = model.network.blocks[2].attention
    inputs = seen_by(model, guide, x)["blocks.2.attention"][0].reshape(-1, 9, 8)
    captured, best = torch.zeros(2, dtype=F64), torch.zeros(2, dtype=F64)
    for each in inputs:
        e, matrices = layer.scores(each[None])[0][0].detach(), loops(layer, each)
        for h in range(2):
            projection = e[h] @ (e[h].T @ e[h]).inverse() @ e[h].T
            energies = torch.linalg.svdvals(matrices[h]) ** 2
            captured[h] += (projection @ matrices[h]).square().sum() / energies.sum() / len(inputs)
            best[h] += energies[:2].sum() / energies.sum() / len(inputs)
    found = spectra["network.blocks.2.attention"]
    torch.testing.assert_close(found.captured, captured)
    torch.testing.assert_close(found.best, best)
    assert (found.captured < found.best).all()
    assert spectra["network.blocks.0.attention"].captured.numel() == 0


def test_leading_singular_vectors_capture_the_best_share_and_repeated_columns_count_once():
    matrix = torch.randn(3, 5, 5, dtype=F64)
    left, values, _ = torch.linalg.svd(matrix)
    captured, best = energy_shares(matrix, values, left[..., :2]).unbind(-1)
    torch.testing.assert_close(captured, best)
    repeated = energy_shares(matrix, values, left[..., [0, 0]])[:, 0]
    torch.testing.assert_close(repeated, values[:, 0] ** 2 / (values**2).sum(-1))
    assert energy_shares(torch.zeros(1, 4, 4), torch.zeros(1, 4), torch.ones(1, 4, 2)).isnan().all()


def test_of_long_inputs_few_examples_are_decomposed(monkeypatch):
    """Budget for three matrices of nine tokens in each batch."""
    model, guide = vit_model()
    x = torch.randn(6, 3, 6, 6, dtype=F64)
    five = attention_spectra(model, guide, x[:5])
    monkeypatch.setattr(module, "BUDGET", 3.5 * 9**3)
    bounded = attention_spectra(model, guide, [x[:2], x[2:]])
    for path, spectrum in bounded.items():
        assert spectrum.examples == 5
        torch.testing.assert_close(spectrum.values, five[path].values)
        torch.testing.assert_close(spectrum.captured, five[path].captured)
    monkeypatch.setattr(module, "BUDGET", 0.0)
    assert [spectrum.examples for spectrum in attention_spectra(model, guide, x).values()] == [2, 2, 2]


def test_layers_without_an_attention_matrix_have_no_spectrum():
    model, guide = vit_model([Opaque, SoftmaxAttention, Opaque])
    assert list(attention_spectra(model, guide, torch.randn(2, 3, 6, 6, dtype=F64))) == ["network.blocks.1.attention"]


@pytest.mark.parametrize("diagnose", [attention_spectra, token_similarity])
def test_no_hook_is_left_behind_even_after_an_error(diagnose):
    model, guide = vit_model()
    diagnose(model, guide, torch.randn(2, 3, 6, 6, dtype=F64))
    with pytest.raises((RuntimeError, ValueError), match="images"):
        diagnose(model, guide, torch.randn(2, 3, 5, 5, dtype=F64))
    assert not any(module._forward_hooks for module in model.modules())


# ---------------------------------------------------------------- similarity


def test_mean_pairwise_cosine_is_the_mean_over_pairs():
    x = torch.randn(2, 3, 6, 4, dtype=F64)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, False], [False, True, False, False, False, True]])
    whole, masked = mean_pairwise_cosine(x), mean_pairwise_cosine(x.where(mask.unsqueeze(-1), 1e6), mask)
    for s in range(2):
        for b in range(3):
            assert whole[s, b].item() == pytest.approx(cosines(x[s, b]), abs=1e-12)
            assert masked[s, b].item() == pytest.approx(cosines(x[s, b, mask[b]]), abs=1e-12)


def test_mean_pairwise_cosine_of_special_tokens():
    same = torch.tensor([1.0, 2.0, -1.0]).expand(1, 5, 3) * torch.arange(1, 6)[:, None]
    assert mean_pairwise_cosine(same).item() == pytest.approx(1)
    assert mean_pairwise_cosine(torch.eye(4).unsqueeze(0)).item() == pytest.approx(0)
    assert mean_pairwise_cosine(torch.tensor([[[1.0, 2.0], [-1.0, -2.0]]])).item() == pytest.approx(-1)
    assert mean_pairwise_cosine(torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]])).item() == pytest.approx(1 / 3)
    assert mean_pairwise_cosine(torch.ones(2, 1, 3)).isnan().all()


def test_an_example_of_one_token_has_no_mean_pairwise_cosine_whatever_rounding_leaves():
    x = torch.randn(1000, 3, 7)
    mask = torch.zeros(1000, 3, dtype=torch.bool)
    mask[torch.arange(1000), torch.randint(3, (1000,))] = True
    assert mean_pairwise_cosine(x, mask).isnan().all()
    assert mean_pairwise_cosine(x[:, :1]).isnan().all()
    mask[::2] = True
    assert mean_pairwise_cosine(x, mask)[::2].abs().max() <= 1
    assert mean_pairwise_cosine(x, mask)[1::2].isnan().all()


def test_similarity_is_that_of_the_outputs_of_each_attention_layer():
    model, guide = vit_model()
    x = torch.randn(4, 3, 6, 6, dtype=F64)
    similarity, seen = token_similarity(model, guide, x), seen_by(model, guide, x)
    assert list(similarity) == [f"network.blocks.{i}.attention" for i in range(3)]
    for path, value in similarity.items():
        output = seen[path.removeprefix("network.")][1].reshape(-1, 9, 8)
        assert value == pytest.approx(sum(map(cosines, output)) / 4, abs=1e-12)


def test_similarity_leaves_padding_out_and_examples_without_a_pair():
    model, guide = text_model()
    x, lengths = torch.randn(3, 5, 4, dtype=F64), (5, 3, 1)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    padded = token_similarity(model, guide, [(x[:2], None, mask[:2]), (x[2:], None, mask[2:])])
    alone = [token_similarity(model, guide, x[b : b + 1, :n]) for b, n in enumerate(lengths)]
    for path, value in padded.items():
        assert value == pytest.approx((alone[0][path] + alone[1][path]) / 2, abs=1e-12)
        assert math.isnan(alone[2][path])


def test_equal_tokens_are_alike_and_stay_so():
    model, guide = text_model()
    x = torch.randn(2, 1, 4, dtype=F64).expand(-1, 6, -1)
    assert list(token_similarity(model, guide, x).values()) == pytest.approx([1, 1])


def test_a_network_without_latent_sites_needs_no_guide():
    model, _ = vit_model([SoftmaxAttention, KernelAttention, SoftmaxAttention])
    x = torch.randn(2, 3, 6, 6, dtype=F64)
    assert len(attention_spectra(model, None, x)) == len(token_similarity(model, None, x)) == 3
