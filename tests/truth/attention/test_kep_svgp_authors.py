"""The KEP-SVGP authors' layer: its values given the noise, its objective, its initial values."""

import pyro.poutine as poutine
import pytest
import torch
from elbos import TraceMeanField_ELBO
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn import draws, guides
from probattn.attention.kep_svgp_authors import AuthorsKEPSVGPAttention
from probattn.models import Classifier, ViT


def make(**options):
    torch.manual_seed(0)
    return AuthorsKEPSVGPAttention(6, 2, rank=2, **options).double()


def posterior(layer):
    """Mean and Cholesky factor of q(u_d), by explicit loops."""
    raw = layer.raw_tril.detach()
    return layer.loc.detach(), raw.tril(-1) + raw.diagonal(dim1=-2, dim2=-1).exp().diag_embed()


def values_and_scores(layer, *, noises):
    """F of one example of five tokens, the noise that it was computed from, and its scores."""
    x, layer.out = torch.randn(1, 5, 6, dtype=torch.float64), torch.nn.Identity()
    noise = torch.randn(1, 2, noises, 2, dtype=torch.float64)
    with torch.no_grad():
        f = poutine.condition(layer, data={"noise": noise})(x).unflatten(-1, (2, 2))
    e, r, *_ = layer.scores(x)
    return f, noise, e, r


@pytest.mark.parametrize("pair", ["er", "ee", "rr"])
def test_each_token_has_the_papers_law_with_noise_that_its_outputs_share(pair):
    layer = make(pair=pair)
    f, noise, e, r = values_and_scores(layer, noises=5)
    first, second = ({"e": e, "r": r}[branch] for branch in pair)
    loc, tril = posterior(layer)
    for h in range(2):
        for n in range(5):
            for d in range(2):
                u = loc[h, d] + tril[h, d] @ noise[0, h, n]
                assert_close(f[0, n, h, d], (first + second)[0, h, n] / layer.scale[h] @ u)


def test_concatenated_branches_have_noise_of_their_own_and_w1_mixes_the_tokens():
    layer = make(merge="concat", tokens=5)
    f, noise, e, r = values_and_scores(layer, noises=10)
    loc, tril = posterior(layer)
    for h in range(2):
        for d in range(2):
            u = [loc[h, d] + tril[h, d] @ noise[0, h, n] for n in range(10)]
            branch_e = [e[0, h, n] / layer.scale[h] @ u[n] for n in range(5)]
            branch_r = [r[0, h, n] / layer.scale[h] @ u[5 + n] for n in range(5)]
            assert_close(f[0, :, h, d], layer.merge.weights @ torch.stack(branch_e + branch_r))


def test_initial_values_are_those_of_the_authors_code():
    torch.manual_seed(0)
    layer = AuthorsKEPSVGPAttention(128, 4, rank=8, merge="concat", tokens=64)
    for projection in layer.projection.weights.detach().chunk(2, dim=-1):  # (H, rows, s), orthonormal columns
        assert_close(projection.mT @ projection, torch.eye(8).expand(4, 8, 8), rtol=0, atol=1e-5)
    linear = torch.nn.Linear(128, 64).weight.detach()
    assert_close(layer.merge.weights.std(), linear.std(), rtol=0.05, atol=0)
    assert_close(layer.merge.weights.abs().max(), linear.abs().max(), rtol=0.01, atol=0)
    assert ((layer.scale >= torch.tensor(-2.0).exp()) & (layer.scale <= 1)).all()
    for value in (layer.loc, layer.raw_tril):
        assert_close(value.std(), torch.tensor(1.0), rtol=0.1, atol=0)


def test_the_loss_is_mean_cross_entropy_plus_the_whole_kl_plus_the_penalty():
    torch.manual_seed(0)
    network = ViT(image_size=8, patch_size=4, channels=1, classes=3, dim=6, depth=1, heads=2, mlp_dim=6,
                  attention=AuthorsKEPSVGPAttention.partial(rank=2, eta=0.7))  # fmt: skip
    model = Classifier(network, num_data=50).double().eval()
    guide = guides.for_model(model)
    x, y = torch.randn(4, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 2, 1, 1])
    layer = network.blocks[0].attention
    loc, tril = posterior(layer)
    q, p = (
        MultivariateNormal(loc, scale_tril=tril),
        MultivariateNormal(0 * loc, scale_tril=layer.scale.diag_embed()[:, None]),
    )
    torch.manual_seed(1)
    with draws("example"):
        loss = TraceMeanField_ELBO()(model, guide)(x, y)
    torch.manual_seed(1)
    with draws("example"):
        trace = poutine.trace(model).get_trace(x, y)
    cross_entropy = -trace.nodes["y"]["fn"].log_prob(y).mean()
    ksvd = -trace.nodes["network.blocks.0.attention.ksvd"]["fn"].log_factor.mean()
    assert_close(loss / 50, cross_entropy + kl_divergence(q, p).sum() + ksvd)


def test_padding_changes_nothing_given_the_noise():
    layer, x = make(), torch.randn(2, 5, 6, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    noise = torch.randn(2, 2, 5, 2, dtype=torch.float64)
    whole = poutine.condition(layer, data={"noise": noise})(x, mask)
    short = poutine.condition(layer, data={"noise": noise[1:, :, :3]})(x[1:, :3])
    assert_close(whole[1:, :3], short)
