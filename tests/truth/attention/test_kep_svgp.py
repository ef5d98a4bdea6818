"""The KEP-SVGP layer as a program: brute force in float64, its law under the guide, masks, draws."""

import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from probattn import KEPSVGPAttention, draws, guides, local_sites
from probattn.functional import kep_svgp, ksvd

MERGES = ["add", "concat", "concat_lowrank"]


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(dim=12, heads=3, *, seed=0, **options):
    torch.manual_seed(seed)
    return KEPSVGPAttention(dim, heads, **{"rank": 2, "tokens": 6, "scale": 1.7, **options}).double()


def with_u(layer, u, x, mask=None):
    """The layer's output and its penalty site, given u."""
    with local_sites(batch=x.shape[-3], num_data=x.shape[-3]):
        trace = poutine.trace(poutine.condition(layer, data={"u": u})).get_trace(x, mask)
    return trace.nodes["_RETURN"]["value"], trace.nodes["ksvd"]["fn"].log_factor


def brute_force(layer, u, x, mask=None):
    """The layer written as loops over examples, heads and outputs, from the paper's equations."""
    state = {name: value.detach() for name, value in layer.named_parameters()}
    heads, width, s = layer.heads, layer.head_dim, layer.rank
    outputs, penalties = [], []
    for b in range(x.shape[0]):
        real = torch.arange(x.shape[1]) if mask is None else mask[b].nonzero().flatten()
        n = len(real)
        query, key = F.linear(x[b], layer.query_key.weight, layer.query_key.bias).detach().chunk(2, dim=-1)
        joined, squares = [], []
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            phi_q = torch.stack([row / row.norm() for row in query[real, part]])
            phi_k = torch.stack([row / row.norm() for row in key[real, part]])
            if "projection.w_e" in state:
                w_e, w_r = state["projection.w_e"][h], state["projection.w_r"][h]
            else:
                rows = min(n, state["projection.weights"].shape[1])
                index = [j * (n - 1) // max(rows - 1, 1) for j in range(rows)]
                f_x = x[b, real][index][:, part]
                w_e, w_r = (f_x.T @ state["projection.weights"][h, :rows]).chunk(2, dim=-1)
            lam = state["log_scale"][h].exp()
            e, r = torch.zeros(2, x.shape[1], s, dtype=x.dtype)
            e[real], r[real] = phi_q @ w_e, phi_k @ w_r
            variances = 0.5 * sum(
                score[i] @ torch.diag(1 / lam) @ score[i] for score in (e, r) for i in range(x.shape[1])
            )
            squares.append(((torch.trace(w_e.T @ w_r) - variances) / n) ** 2)
            branches = [{"e": e, "r": r}[branch] for branch in layer.pair]
            first, second = (torch.stack([f @ torch.diag(1 / lam) @ u_d for u_d in u[h]], dim=-1) for f in branches)
            if "merge.weights" in state:
                joined.append(state["merge.weights"] @ torch.cat((first, second)))
            elif "merge.a" in state:
                joined.append(state["merge.a"] @ state["merge.b"].T @ torch.cat((first, second)))
            else:
                joined.append(first + second)
        outputs.append(torch.cat(joined, dim=-1) @ state["out.weight"].T + state["out.bias"])
        penalties.append(layer.eta * torch.stack(squares).mean())
    return torch.stack(outputs), torch.stack(penalties)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("projection", ["data", "plain"])
@pytest.mark.parametrize(("merge", "pair"), [*((merge, "er") for merge in MERGES), ("add", "ee"), ("concat", "rr")])
def test_layer_is_the_papers_equations_in_loops(merge, pair, projection, masked):
    """Table 5: the branches that are merged change with the pair, the KSVD penalty does not."""
    layer = make(merge=merge, pair=pair, projection=projection, eta=3.0, multiple=2, bias=masked)
    x, u = randn(4, 6, 12), randn(3, 2, 2, seed=1)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0]]).bool()
    mask = mask if masked else None
    x = x.where(mask.unsqueeze(-1), torch.nan) if masked else x
    output, log_factor = with_u(layer, u, x, mask)
    expected, penalty = brute_force(layer, u, x, mask)
    assert_close(output, expected)
    assert_close(log_factor, -penalty)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"heads": 1}, (2, 6, 12)),
        ({"rank": 4, "tokens": None}, (2, 3, 12)),
        ({"tokens": None, "multiple": 1}, (1, 7, 12)),
        ({"tokens": None}, (2, 1, 12)),
    ],
    ids=["one head", "shorter than the rank", "more tokens than rows", "one token"],
)
def test_corner_shapes_match_the_loops(options, shape):
    layer, x = make(**options), randn(*shape)
    u = randn(layer.heads, layer.rank, layer.rank, seed=1)
    output, log_factor = with_u(layer, u, x)
    expected, penalty = brute_force(layer, u, x)
    assert_close(output, expected)
    assert_close(log_factor, -penalty)


@pytest.mark.parametrize("merge", ["add", "concat"])
def test_output_under_the_guide_has_the_closed_form_law(merge):
    """Draws of the whole program, un-projected, against the marginals (16) of its own scores."""
    layer = make(dim=6, heads=2, merge=merge)
    layer.out = torch.nn.Identity()
    guide = guides.for_model(layer).double()
    with torch.no_grad():
        guide.u.raw_tril += 0.5 * randn(*guide.u.raw_tril.shape, seed=3)
    x, number = randn(1, 6, 6), 20_000
    with torch.no_grad(), draws(number):
        trace = poutine.trace(guide).get_trace()
        f = poutine.replay(layer, trace)(x)[:, 0].unflatten(-1, (2, 2))
    e, r, _, _ = layer.scores(x)
    one = torch.ones_like(layer.scale)
    moments = kep_svgp.marginals(layer.merge(e, r)[0], one, guide.u.loc, guide.u.scale_tril)
    for h in range(2):
        for d in range(2):
            samples, mean, covariance = f[:, :, h, d], moments.mean[h, d], moments.covariance[h, d]
            error = (covariance.diagonal() / number).sqrt()
            assert ((samples.mean(0) - mean).abs() < 5 * error + 1e-9).all()
            scale = torch.outer(covariance.diagonal(), covariance.diagonal()).sqrt()
            assert ((samples.T.cov() - covariance).abs() < 7 * scale / number**0.5 + 1e-9).all()


def test_prior_of_u_has_the_scale_lambda():
    layer = make()
    with torch.no_grad():
        layer.log_scale += randn(3, 2)
    prior = layer.sites()["u"]
    assert prior.event_shape == (3, 2, 2)
    u = randn(3, 2, 2)
    scale = layer.scale.unsqueeze(-2).expand(3, 2, 2)
    assert_close(prior.log_prob(u), torch.distributions.Normal(0, scale).log_prob(u).sum())


def test_authors_penalty_is_the_named_option():
    x, u = randn(2, 6, 12), randn(3, 2, 2, seed=1)
    layer = make(penalty="authors")
    e, r, w_e, w_r = layer.scores(x)
    assert_close(with_u(layer, u, x)[1], -ksvd.penalty_of_mean(e, r, w_e, w_r, layer.scale, 6))


@pytest.mark.parametrize("bias", [False, True])
def test_attention_matrix_is_the_cosine_of_queries_and_keys(bias):
    layer, x = make(bias=bias), randn(2, 6, 12)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, False]])
    expected = torch.zeros(2, 3, 6, 6, dtype=x.dtype)
    for b in range(2):
        query, key = layer.query_key(x[b]).chunk(2, dim=-1)
        for h in range(3):
            for i in range(6):
                for j in range(6):
                    q, k = query[i, 4 * h : 4 * h + 4], key[j, 4 * h : 4 * h + 4]
                    expected[b, h, i, j] = (q @ k / (q.norm() * k.norm())).detach()
    assert_close(layer.attention_matrix(x), expected)
    masked = layer.attention_matrix(x.where(mask.unsqueeze(-1), torch.nan), mask)
    assert (masked[1, :, :, ~mask[1]] == 0).all()
    assert_close(masked[1][:, mask[1]][:, :, mask[1]], expected[1][:, mask[1]][:, :, mask[1]])
    assert_close(masked[0], expected[0])
