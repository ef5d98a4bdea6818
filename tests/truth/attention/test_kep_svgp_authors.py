"""The KEP-SVGP authors' layer: its values given the noise, its objective, its initial values."""

import pytest
import torch
from elbos import TraceMeanField_ELBO
from sampling import output, randn
from small_vit import small_vit
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn import draws, guides
from probattn.attention.kep_svgp_authors import AuthorsKEPSVGPAttention
from probattn.models import Classifier


def make(**options):
    torch.manual_seed(0)
    return AuthorsKEPSVGPAttention(6, 2, rank=2, **options).double()


def posterior(layer):
    """Mean and Cholesky factor of q(u_d)."""
    raw = layer.raw_tril.detach()
    return layer.loc.detach(), raw.tril(-1) + raw.diagonal(dim1=-2, dim2=-1).exp().diag_embed()


def values_and_branches(layer, *, noises):
    """F of one example of five tokens, and the two branches that its scores and the noise give."""
    x, noise = randn(1, 5, 6), randn(1, 2, noises, 2, seed=1)
    layer.out = torch.nn.Identity()
    f = output(layer, x, noise=noise).unflatten(-1, (2, 2))
    (e, r, *_), (loc, tril) = layer.scores(x), posterior(layer)
    u = loc.unsqueeze(1) + torch.einsum("hdij,bhnj->bhndi", tril, noise)
    chosen = torch.cat([{"e": e, "r": r}[branch] for branch in layer.pair], dim=-2).unflatten(
        -2, (2, 5)
    )
    u = u.unflatten(2, (-1, 5)).expand(1, 2, 2, 5, 2, 2)
    return f, torch.einsum("bhpns,hs,bhpnds->pbnhd", chosen, 1 / layer.scale, u)


@pytest.mark.parametrize("pair", ["er", "ee", "rr"])
def test_each_token_has_the_papers_law_with_noise_that_its_outputs_share(pair):
    f, branches = values_and_branches(make(pair=pair), noises=5)
    assert_close(f, branches.sum(0))


def test_concatenated_branches_have_noise_of_their_own_and_w1_mixes_the_tokens():
    layer = make(merge="concat", tokens=5)
    f, branches = values_and_branches(layer, noises=10)
    assert_close(
        f, torch.einsum("npm,pbmhd->bnhd", layer.merge.weights.unflatten(-1, (2, 5)), branches)
    )


def test_initial_values_are_those_of_the_authors_code():
    layer = AuthorsKEPSVGPAttention(128, 4, rank=8, merge="concat", tokens=64)
    for projection in layer.projection.weights.detach().chunk(
        2, dim=-1
    ):  # (H, rows, s), orthonormal columns
        assert_close(projection.mT @ projection, torch.eye(8).expand(4, 8, 8), rtol=0, atol=1e-5)
    linear = torch.nn.Linear(128, 64).weight.detach()
    assert_close(layer.merge.weights.std(), linear.std(), rtol=0.05, atol=0)
    assert_close(layer.merge.weights.abs().max(), linear.abs().max(), rtol=0.01, atol=0)
    assert ((layer.scale >= torch.tensor(-2.0).exp()) & (layer.scale <= 1)).all()
    for value in (layer.loc, layer.raw_tril):
        assert_close(value.std(), torch.tensor(1.0), rtol=0.1, atol=0)


def test_the_loss_is_mean_cross_entropy_plus_the_whole_kl_plus_the_penalty():
    attention = AuthorsKEPSVGPAttention.partial(rank=2, eta=0.7)
    network = small_vit(attention, dim=6)
    model = Classifier(network, num_data=50).double().eval()
    guide = guides.for_model(model)
    x, y = torch.randn(4, 1, 4, 4, dtype=torch.float64), torch.tensor([0, 2, 1, 1])
    layer = network.blocks[0].attention
    loc, tril = posterior(layer)
    q = MultivariateNormal(loc, scale_tril=tril)
    kl = kl_divergence(
        q, MultivariateNormal(0 * loc, scale_tril=layer.scale.diag_embed()[:, None])
    ).sum()
    objective = TraceMeanField_ELBO()
    with draws("example"):
        loss = objective(model, guide)(x, y)
    nodes = objective.traces[0].nodes
    cross_entropy = -nodes["y"]["fn"].log_prob(y).mean()
    ksvd = -nodes["network.blocks.0.attention.ksvd"]["fn"].log_factor.mean()
    assert_close(loss / 50, cross_entropy + kl + ksvd)
