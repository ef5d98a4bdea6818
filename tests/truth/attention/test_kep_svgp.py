"""The KEP-SVGP layer as a program: the papers' equations in float64, its law under the guide,
masks, draws."""

import itertools

import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from kep_svgp_layers import layer_of
from sampling import assert_moments, randn, run
from torch.testing import assert_close

from probattn import draws, guides
from probattn.functional import kep_svgp, ksvd

MERGES = ["add", "concat", "concat_lowrank"]


def make(**options):
    return layer_of(**{"tokens": 6, "scale": 1.7, **options})


def from_equations(layer, u, x, real):
    """Output and penalty of one example from the paper's equations, at its real tokens."""
    state, n = {name: value.detach() for name, value in layer.named_parameters()}, int(real.sum())
    query_key = F.linear(x[real], layer.query_key.weight, layer.query_key.bias).detach()
    phi_q, phi_k = F.normalize(query_key.view(n, 2, layer.heads, -1).permute(1, 2, 0, 3), dim=-1)
    if "projection.w_e" in state:
        w_e, w_r = state["projection.w_e"], state["projection.w_r"]
    else:
        rows = min(n, state["projection.weights"].shape[1])
        index = [j * (n - 1) // max(rows - 1, 1) for j in range(rows)]
        f_x = x[real][index].view(rows, layer.heads, -1)
        w_e, w_r = torch.einsum("phd,hps->hds", f_x, state["projection.weights"][:, :rows]).chunk(
            2, dim=-1
        )
    inverse, scores = 1 / state["log_scale"].exp(), {"e": phi_q @ w_e, "r": phi_k @ w_r}
    variances = 0.5 * sum(
        torch.einsum("hns,hs,hns->h", score, inverse, score) for score in scores.values()
    )
    penalty = layer.eta * ((torch.einsum("hds,hds->h", w_e, w_r) - variances) / n).square().mean()
    f = torch.zeros(2, layer.heads, len(x), layer.rank, dtype=x.dtype)
    f[:, :, real] = torch.stack(
        [torch.einsum("hns,hs,hds->hnd", scores[part], inverse, u) for part in layer.pair]
    )
    w_1 = torch.eye(len(x), dtype=x.dtype).repeat(1, 2)
    if "merge.weights" in state:
        w_1 = state["merge.weights"]
    elif "merge.a" in state:
        w_1 = state["merge.a"] @ state["merge.b"].T
    merged = w_1 @ torch.cat(tuple(f), dim=-2)
    return merged.transpose(0, 1).flatten(1) @ state["out.weight"].T + state["out.bias"], penalty


def assert_equations(layer, x, mask=None):
    u = randn(layer.heads, layer.rank, layer.rank, seed=1)
    real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    outputs, penalties = zip(
        *(from_equations(layer, u, x[b], real[b]) for b in range(len(x))), strict=True
    )
    nodes = run(layer, x, mask, u=u).nodes
    assert_close(nodes["_RETURN"]["value"], torch.stack(outputs))
    assert_close(nodes["ksvd"]["fn"].log_factor, -torch.stack(penalties))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("projection", ["data", "plain"])
@pytest.mark.parametrize(
    ("merge", "pair"), [*((merge, "er") for merge in MERGES), ("add", "ee"), ("concat", "rr")]
)
def test_layer_is_the_papers_equations(merge, pair, projection, masked):
    """Table 5: the branches that are merged change with the pair, the KSVD penalty does not."""
    layer = make(merge=merge, pair=pair, projection=projection, eta=3.0, multiple=2, bias=masked)
    mask = torch.tensor(
        [[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0]]
    ).bool()
    x = randn(4, 6, 12)
    assert_equations(layer, *((x.where(mask.unsqueeze(-1), torch.nan), mask) if masked else (x,)))


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
def test_corner_shapes_match_the_equations(options, shape):
    assert_equations(make(**options), randn(*shape))


@pytest.mark.parametrize("merge", ["add", "concat"])
def test_output_under_the_guide_has_the_closed_form_law(merge):
    """Draws of the whole program, un-projected, against the marginals (16) of its own scores."""
    layer = make(dim=6, heads=2, merge=merge)
    layer.out = torch.nn.Identity()
    guide = guides.for_model(layer).double()
    with torch.no_grad():
        guide.u.raw_tril += 0.5 * randn(*guide.u.raw_tril.shape, seed=3)
    x = randn(1, 6, 6)
    with torch.no_grad(), draws(20_000):
        trace = poutine.trace(guide).get_trace()
        f = poutine.replay(layer, trace)(x)[:, 0].unflatten(-1, (2, 2))
    e, r, _, _ = layer.scores(x)
    one = torch.ones_like(layer.scale)
    moments = kep_svgp.marginals(layer.merge(e, r)[0], one, guide.u.loc, guide.u.scale_tril)
    for h, d in itertools.product(range(2), range(2)):
        assert_moments(f[:, :, h, d], moments.mean[h, d], moments.covariance[h, d])


def test_authors_penalty_is_the_named_option():
    layer, x = make(penalty="authors"), randn(2, 6, 12)
    scores = layer.scores(x)
    log_factor = run(layer, x, u=randn(3, 2, 2, seed=1)).nodes["ksvd"]["fn"].log_factor
    assert_close(log_factor, -ksvd.penalty_of_mean(scores, layer.scale, 6))


@pytest.mark.parametrize("bias", [False, True])
def test_attention_matrix_is_the_cosine_of_queries_and_keys(bias):
    layer, x = make(bias=bias), randn(2, 6, 12)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, False]])
    query, key = layer.query_key(x).view(2, 6, 2, 3, 4).permute(2, 0, 3, 1, 4)
    expected = F.cosine_similarity(query.unsqueeze(-2), key.unsqueeze(-3), dim=-1)
    assert_close(layer.attention_matrix(x), expected)
    masked = layer.attention_matrix(x.where(mask.unsqueeze(-1), torch.nan), mask)
    assert (masked[1, :, :, ~mask[1]] == 0).all()
    assert_close(masked[1][:, mask[1]][:, :, mask[1]], expected[1][:, mask[1]][:, :, mask[1]])
    assert_close(masked[0], expected[0])
