"""The KEP-SVGP layer as a program: brute force in float64, its law under the guide, masks, draws, bad input."""

import exact_ksvd
import pyro.poutine as poutine
import pytest
import torch
from torch.testing import assert_close

from probattn import KEPSVGPAttention, draws, guides, local_sites, name_layers
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


def brute_force(layer, u, x, merge, mask=None):
    """The layer written as loops over examples, heads and outputs, from the paper's equations."""
    state = {name: value.detach() for name, value in layer.named_parameters()}
    heads, width, s = layer.heads, layer.head_dim, layer.rank
    outputs, penalties = [], []
    for b in range(x.shape[0]):
        real = torch.arange(x.shape[1]) if mask is None else mask[b].nonzero().flatten()
        n = len(real)
        query, key = (x[b] @ state["query_key.weight"].T).chunk(2, dim=-1)
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
            f_e = torch.stack([e @ torch.diag(1 / lam) @ u[h, d] for d in range(s)], dim=-1)
            f_r = torch.stack([r @ torch.diag(1 / lam) @ u[h, d] for d in range(s)], dim=-1)
            if merge == "add":
                joined.append(f_e + f_r)
            else:
                w_1 = state["merge.weights"] if merge == "concat" else state["merge.a"] @ state["merge.b"].T
                joined.append(w_1 @ torch.cat((f_e, f_r)))
        outputs.append(torch.cat(joined, dim=-1) @ state["out.weight"].T + state["out.bias"])
        penalties.append(layer.eta * torch.stack(squares).mean())
    return torch.stack(outputs), torch.stack(penalties)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("projection", ["data", "plain"])
@pytest.mark.parametrize("merge", MERGES)
def test_layer_is_the_papers_equations_in_loops(merge, projection, masked):
    layer = make(merge=merge, projection=projection, eta=3.0, multiple=2)
    x, u = randn(4, 6, 12), randn(3, 2, 2, seed=1)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0]]).bool()
    mask = mask if masked else None
    output, log_factor = with_u(layer, u, x, mask)
    expected, penalty = brute_force(layer, u, x, merge, mask)
    assert_close(output, expected)
    assert_close(log_factor, -penalty)


@pytest.mark.parametrize("merge", MERGES)
def test_output_under_the_guide_has_the_closed_form_law(merge):
    """Draws of the whole program, un-projected, against the marginals (16) of its own scores."""
    layer = make(dim=6, heads=2, merge=merge)
    layer.out = torch.nn.Identity()
    guide = guides.for_model(layer).double()
    with torch.no_grad():
        guide.u.raw_tril += 0.5 * randn(*guide.u.raw_tril.shape, seed=3)
    x, number = randn(1, 6, 6), 40_000
    torch.manual_seed(1)
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


def test_addition_with_plain_projections_is_equivariant_and_data_dependent_ones_are_not():
    x, u, order = randn(2, 6, 12), randn(3, 2, 2, seed=1), torch.tensor([3, 0, 5, 1, 4, 2])
    plain = make(merge="add", projection="plain")
    assert_close(with_u(plain, u, x[:, order])[0], with_u(plain, u, x)[0][:, order])
    data = make(merge="add", projection="data")
    assert (with_u(data, u, x[:, order])[0] - with_u(data, u, x)[0][:, order]).abs().max() > 1e-3


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("projection", ["data", "plain"])
def test_padding_changes_no_real_token_and_no_penalty(projection, bias):
    layer, u = make(projection=projection, tokens=None, multiple=2, bias=bias), randn(3, 2, 2, seed=1)
    x = randn(2, 5, 12)
    lengths = [5, 3]
    padded = torch.cat((x, 100 * randn(2, 4, 12, seed=2)), dim=1)
    padded[1, 3:] *= 50
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    output, log_factor = with_u(layer, u, padded, mask)
    for b, n in enumerate(lengths):
        alone, alone_factor = with_u(layer, u, x[b : b + 1, :n])
        assert_close(output[b, :n], alone[0])
        assert_close(log_factor[b], alone_factor[0])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("bias", [False, True])
def test_padding_may_hold_anything(value, bias):
    layer, u = make(bias=bias), randn(3, 2, 2, seed=1)
    x, mask = randn(2, 6, 12), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    expected, expected_factor = with_u(layer, u, x, mask)
    x[1, 4:] = value
    output, log_factor = with_u(layer, u, x, mask)
    assert_close(output[mask], expected[mask])
    assert_close(log_factor, expected_factor)
    (output[mask].sum() + log_factor.sum()).backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_a_number_of_tokens_bounds_the_rows_only_where_it_is_fixed():
    assert make(merge="add", tokens=None, multiple=10).projection.rows == 20
    assert make(merge="add", tokens=6, multiple=10).projection.rows == 6
    with pytest.raises(ValueError, match="for 6 tokens, got 5"):
        make(merge="add")(randn(2, 5, 12))


def test_mask_with_holes_sees_the_real_tokens_only():
    layer, u, x = make(tokens=None), randn(3, 2, 2, seed=1), randn(1, 6, 12)
    mask = torch.tensor([[False, True, True, False, True, False]])
    assert_close(with_u(layer, u, x, mask)[0][mask], with_u(layer, u, x[:, mask[0]])[0][0])


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"heads": 1}, (2, 6, 12)),
        ({}, (1, 6, 12)),
        ({"rank": 4, "tokens": None}, (2, 3, 12)),
        ({"tokens": None}, (2, 1, 12)),
    ],
    ids=["one head", "batch of one", "shorter than the rank", "one token"],
)
def test_corner_shapes_match_the_loops(options, shape):
    layer = make(**{"merge": "add", **options})
    u = randn(layer.heads, layer.rank, layer.rank, seed=1)
    x = randn(*shape)
    output, log_factor = with_u(layer, u, x)
    expected, penalty = brute_force(layer, u, x, "add")
    assert_close(output, expected)
    assert_close(log_factor, -penalty)


def test_non_contiguous_input():
    layer, u = make(), randn(3, 2, 2, seed=1)
    x = randn(12, 6, 2).permute(2, 1, 0)
    assert not x.is_contiguous()
    assert_close(with_u(layer, u, x)[0], with_u(layer, u, x.contiguous())[0])


@pytest.mark.parametrize("batch", [1, 4, 5])
def test_draws_are_a_leading_dimension_whatever_the_batch(batch):
    layer, number = make(merge="concat"), 4
    guide = guides.for_model(layer).double()
    x = randn(batch, 6, 12)
    with draws(number):
        trace = poutine.trace(guide).get_trace()
        together = poutine.replay(layer, trace)(x)
    u = trace.nodes["u"]["value"]
    assert u.shape == (number, 1, 3, 2, 2)
    assert together.shape == (number, batch, 6, 12)
    for s in range(number):
        assert_close(together[s], with_u(layer, u[s, 0], x)[0])


def test_one_draw_per_example():
    layer, x = make(), randn(4, 6, 12)
    u = randn(4, 3, 2, 2, seed=1)
    together, log_factor = with_u(layer, u, x)
    for b in range(4):
        alone, alone_factor = with_u(layer, u[b], x[b : b + 1])
        assert_close(together[b], alone[0])
        assert_close(log_factor[b], alone_factor[0])


def test_a_stochastic_layer_below_is_seen_draw_by_draw():
    """x with a draws dimension: draw s of u belongs to draw s of x."""
    layer, u = make(merge="concat"), randn(5, 1, 3, 2, 2, seed=1)
    x, mask = randn(5, 2, 6, 12), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    together, log_factor = with_u(layer, u, x, mask)
    for s in range(5):
        alone, alone_factor = with_u(layer, u[s, 0], x[s], mask)
        assert_close(together[s], alone)
        assert_close(log_factor[s], alone_factor)


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("projection", ["data", "plain"])
def test_gradients(merge, projection):
    layer = make(dim=4, heads=2, rank=1, tokens=3, merge=merge, projection=projection)
    x, u = randn(1, 3, 4).requires_grad_(), randn(2, 1, 1, seed=1).requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def function(x, u, *parameters):
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(_Program(layer), {f"layer.{n}": v for n, v in values.items()}, (u, x))

    assert torch.autograd.gradcheck(function, (x, u, *(p.detach().requires_grad_() for p in layer.parameters())))


class _Program(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, u, x):
        return with_u(self.layer, u, x)


def test_bf16_autocast_stays_near_float32_and_keeps_the_penalty_in_float32():
    layer = make(dim=32, heads=4, rank=4, tokens=16, merge="concat").float()
    x, u = randn(8, 16, 32).float(), randn(4, 4, 4, seed=1).float()
    output, log_factor = with_u(layer, u, x)
    with torch.autocast("cpu", torch.bfloat16):
        low_output, low_factor = with_u(layer, u, x)
    assert low_output.dtype == torch.bfloat16
    assert low_factor.dtype == torch.float32
    assert (low_output - output).norm() / output.norm() < 2e-2
    assert_close(low_factor, log_factor, rtol=5e-2, atol=1e-3)


def test_eta_scales_the_named_factor_and_handlers_can_block_it():
    x, u = randn(2, 6, 12), randn(3, 2, 2, seed=1)
    assert_close(with_u(make(eta=5.0), u, x)[1], 5 * with_u(make(eta=1.0), u, x)[1])
    blocked = poutine.trace(poutine.block(poutine.condition(make(), data={"u": u}), hide=["ksvd"])).get_trace(x)
    assert "ksvd" not in blocked.nodes
    assert "u" in blocked.nodes


def test_authors_penalty_is_the_named_option():
    x, u = randn(2, 6, 12), randn(3, 2, 2, seed=1)
    layer = make(penalty="authors")
    e, r, w_e, w_r = layer.scores(x)
    assert_close(with_u(layer, u, x)[1], -ksvd.penalty_of_mean(e, r, w_e, w_r, layer.scale, 6))


def test_fixed_lambda_gets_no_gradient():
    assert not make(learn_scale=False).log_scale.requires_grad
    assert make().log_scale.requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 10, "heads": 4}, "multiple of heads"),
        ({"dim": 12, "heads": 0}, "multiple of heads"),
        ({"rank": 5}, "1..4"),
        ({"rank": 0}, "1..4"),
        ({"rank": 4, "tokens": 3, "merge": "concat"}, "at most the 3 tokens"),
        ({"tokens": None, "merge": "concat"}, "give tokens=N"),
        ({"merge": "sum"}, "add, concat, concat_lowrank"),
        ({"pair": "re"}, "pair must be one of er, ee, rr, got 're'"),
        ({"projection": "none"}, "data, plain"),
        ({"penalty": "l1"}, "example, authors"),
        ({"prior": "cauchy"}, "normal, laplace, student_t"),
        ({"scale": -1.0}, "scale > 0"),
        ({"eta": -1.0}, "eta ≥ 0"),
        ({"multiple": 0}, "multiple ≥ 1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (randn(2, 6, 11), None, "project x first"),
        (randn(6, 12), None, "batch, tokens, 12"),
        (randn(2, 5, 12), None, "for 6 tokens, got 5"),
        (randn(2, 6, 12), torch.ones(2, 5).bool(), "boolean mask"),
        (randn(2, 6, 12), torch.ones(2, 6), "boolean mask"),
        (randn(2, 6, 12), torch.tensor([[True] * 6, [False] * 6]), r"rows \[1\]"),
    ],
)
def test_bad_input_is_named(x, mask, message):
    with pytest.raises(ValueError, match=message):
        make(merge="concat")(x, mask)


def test_partial_is_a_factory_of_dim_and_heads():
    layer = KEPSVGPAttention.partial(rank=3, merge="add")(8, 2)
    assert (layer.dim, layer.heads, layer.rank) == (8, 2, 3)


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


def test_exact_singular_vectors_of_the_attention_matrix_make_the_scores():
    """The matrix shown is the one that KSVD decomposes: its triplets as weights give E = H_e Λ and R = H_r Λ."""
    layer, x = make(projection="plain", heads=1, rank=3), randn(1, 6, 12)
    query, key = layer.split_heads(layer.query_key(x), 2)
    triplets = exact_ksvd.singular_triplets(ksvd.cosine_features(query), ksvd.cosine_features(key), 3)
    with torch.no_grad():
        layer.projection.w_e.copy_(triplets.w_e[0])
        layer.projection.w_r.copy_(triplets.w_r[0])
    e, r, _, _ = layer.scores(x)
    assert_close(layer.attention_matrix(x) @ triplets.h_r, e)
    assert_close(layer.attention_matrix(x).mT @ triplets.h_e, r)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("pair", ["er", "ee", "rr"])
def test_pairs_of_branches_in_loops(pair, merge, masked):
    """Table 5: the branches that are merged change, the KSVD penalty does not."""
    layer, u, x = make(merge=merge, pair=pair, eta=3.0), randn(3, 2, 2, seed=1), randn(2, 6, 12)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, False]]) if masked else None
    output, log_factor = with_u(layer, u, x, mask)
    e, r, _, _ = layer.scores(x.where(mask.unsqueeze(-1), 0.0) if masked else x, mask)
    lam, branches = layer.scale, {"e": e, "r": r}
    for b in range(2):
        joined = []
        for h in range(3):
            first, second = (
                torch.stack([score[b, h] @ torch.diag(1 / lam[h]) @ u[h, d] for d in range(2)], dim=-1)
                for score in (branches[pair[0]], branches[pair[1]])
            )
            if merge == "add":
                joined.append(first + second)
            else:
                w_1 = layer.merge.weights if merge == "concat" else layer.merge.a @ layer.merge.b.T
                joined.append(w_1 @ torch.cat((first, second)))
        assert_close(output[b], layer.out(torch.cat(joined, dim=-1)))
    both = make(merge=merge, eta=3.0)
    assert_close(log_factor, with_u(both, u, x, mask)[1])
    if pair != "er":
        assert (output - with_u(both, u, x, mask)[0]).abs().max() > 1e-3


def test_queries_alone_move_one_pair_and_keys_alone_the_other():
    """In the symmetric pairs the other branch's weights act on nothing but the penalty."""
    x, u = randn(2, 6, 12), randn(3, 2, 2, seed=1)
    for pair, dead in (("ee", slice(12, 24)), ("rr", slice(0, 12))):
        layer = make(pair=pair)
        with_u(layer, u, x)[0].square().sum().backward()
        gradient = layer.query_key.weight.grad
        assert (gradient[dead] == 0).all()
        assert (gradient.abs().sum(-1) > 0).sum() == 12
        with_u(layer, u, x)[1].sum().backward()
        assert (gradient[dead] != 0).any()


def test_signature_knows_the_pair():
    signatures = [make(pair=pair).signature() for pair in ("er", "ee", "rr")]
    assert [signature.pop("pair") for signature in signatures] == ["er", "ee", "rr"]
    assert signatures[0] == signatures[1] == signatures[2]


def test_two_layers_in_one_program_have_their_own_sites():
    pair = torch.nn.Sequential(make(), make(seed=1))
    name_layers(pair)
    trace = poutine.trace(pair).get_trace(randn(2, 6, 12))
    assert {"0.u", "1.u", "0.ksvd", "1.ksvd"} <= set(trace.nodes)
