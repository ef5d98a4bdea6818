"""Correlated-GP layers as programs: output and sites against dense conditioning in float64."""

import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from correlated_reference import (
    ALL,
    DIM,
    GUIDES,
    HEADS,
    KINDS,
    MASK,
    TOKENS,
    Dense,
    Fourier,
    Sparse,
    log_density,
    normal,
    r_of,
    run,
)
from sampling import assert_moments, randn
from torch.testing import assert_close

from probattn import draws, guides
from probattn.draws import at_mean
from probattn.inference import predict
from probattn.local_sites import local_posteriors
from probattn.models import Classifier
from probattn.site_info import info_of

MASKS = pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
COLLAPSED = pytest.mark.parametrize("collapsed", [True, False], ids=["collapsed", "through z_o"])
OPTIONS = [(kind, options) for kind in ALL for options in ({}, {"bias": False, "heads": 3})]
OPTIONS += [(Dense(), {"noisy_canonical": False}), (Dense(), {"noisy_output": False, "heads": 1})]
OPTIONS += [(Fourier(), {"features": 16}), (Fourier(), {"frequencies": "independent"})]
OPTIONS += [(Sparse(), {"inducing_keys": None}), (Sparse(), {"inducing": 7})]


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
@MASKS
def test_output_and_its_law_are_those_of_each_example_and_head(kind, options, mask):
    x = randn(3, TOKENS, DIM)
    output = kind.make(alpha=0, **options)(x, mask)
    drawn = kind.make(alpha=0, **options, output="draw")
    nodes = run(drawn, x, mask)
    law, value = nodes["z_q"]["fn"], nodes["z_q"]["value"]
    for b, rows, heads in kind.loops(drawn, x, mask):
        assert_close(output[b, rows], drawn.out(drawn.join_heads(heads.nu)))
        assert_close(
            nodes["_RETURN"]["value"][b, rows], drawn.out(drawn.join_heads(value[b][:, rows]))
        )
        assert_close(law.mean[b][:, rows], heads.nu)
        assert_close(kind.covariance(law.covariance)[b][:, rows][..., rows], heads.predictive)
        assert_close(law.variance[b][:, rows], normal(heads.nu, heads.predictive).variance.mT)


@pytest.mark.parametrize("guide", GUIDES)
def test_mixtures_of_tokens_as_inducing_inputs(guide):
    kind, x = Sparse(), randn(2, TOKENS, DIM)
    layer = kind.make(canonical_guide=guide, regulariser_norm="example", tokens=TOKENS)
    output, r = layer(x), r_of(layer, x)
    for b, _, heads in kind.loops(layer, x):
        assert_close(output[b], layer.out(layer.join_heads(heads.nu)))
        assert_close(r[b], heads.bound(guide))


THROUGH = [(kind, guide, {}) for kind in ALL for guide in GUIDES]
THROUGH += [(Dense(), "posterior", {"noisy_canonical": False, "noisy_output": False})]


@pytest.mark.parametrize(("kind", "guide", "options"), THROUGH)
@MASKS
def test_sites_of_the_program_through_z_o(kind, guide, options, mask):
    """z_o has its prior and carries its guide; z_k and nu are observed, each with its density given
    z_o; then z_q."""
    layer = kind.make(canonical_guide=guide, collapsed=False, output="draw", alpha=0.7, **options)
    x = randn(3, TOKENS, DIM)
    nodes = run(layer, x, mask)
    z_o, posterior, z_q = nodes["z_o"]["value"], info_of(nodes["z_o"]).posterior, nodes["z_q"]
    assert info_of(z_q).posterior is z_q["fn"]  # so that neither density is computed
    for b, rows, heads in kind.loops(layer, x, mask):
        drawn, scale, (mean, spread) = z_o[b][:, rows], 0.7 / (DIM * len(rows)), heads.drawn(guide)
        assert_close(posterior.mean[b][:, rows], mean)
        assert_close(posterior.variance[b][:, rows], normal(mean, spread).variance.mT)
        log_q = (
            scale * posterior.log_prob(z_o)[b]
        )  # padding, drawn as plain noise, counts alike in both
        expected = log_density(drawn, heads.prior[1]) - log_density(drawn - mean, spread)
        assert_close(nodes["z_o"]["log_prob"][b] - log_q, scale * expected)
        assert torch.as_tensor(info_of(nodes["z_o"]).weight).expand(3)[b].item() == pytest.approx(
            scale
        )
        for name, part, seen in (("nu", heads.q, heads.nu), ("z_k", heads.k, heads.z_k)):
            mean, spread = heads.given([part], [heads.o], drawn)
            assert_close(nodes[name]["value"][b][:, rows], seen)
            assert_close(nodes[name]["log_prob"][b], scale * log_density(seen - mean, spread))
        mean, spread = heads.given([heads.q], [heads.o], drawn)
        assert_close(z_q["fn"].mean[b][:, rows], mean)
        assert_close(kind.covariance(z_q["fn"].covariance)[b][:, rows][..., rows], spread)
        assert_close(
            nodes["_RETURN"]["value"][b, rows],
            layer.out(layer.join_heads(z_q["value"][b][:, rows])),
        )


@KINDS
def test_learned_guide_starts_at_the_prior(kind):
    layer = kind.layer(DIM, HEADS, canonical_guide="learned", output="mean", noise=0.3).double()
    assert_close(layer.log_noise.exp(), torch.full((HEADS,), 0.3).double())
    assert not layer.log_noise.requires_grad
    site = run(layer, randn(3, TOKENS, DIM), MASK)["z_o"]
    assert (info_of(site).posterior.mean == 0).all()
    drawn, prior = (
        kind.covariance(law.covariance) for law in (info_of(site).posterior, site["fn"])
    )
    assert_close(drawn, prior, rtol=1e-4, atol=1e-4)


@KINDS
@pytest.mark.parametrize("intervene", [poutine.condition, poutine.do])
def test_interventions_on_z_o_reach_output_and_predictions(kind, intervene):
    layer = kind.make(collapsed=False)
    x = randn(3, TOKENS, DIM)
    z_o = randn(3, HEADS, TOKENS, DIM // HEADS, seed=1)
    means = [
        layer.join_heads(heads.given([heads.q], [heads.o], z_o[b])[0])
        for b, _, heads in kind.loops(layer, x)
    ]
    expected = layer.out(torch.stack(means))
    assert_close(intervene(layer, data={"z_o": z_o})(x), expected)
    model = Classifier(
        torch.nn.Sequential(layer, torch.nn.Flatten(-2), torch.nn.Linear(30, 3)).double(),
        num_data=3,
    )
    with intervene(data={"network.0.z_o": z_o}):
        prediction = predict(model, guides.for_model(model), x, num_samples=4)
    assert_close(prediction.probs, model.network[2](expected.flatten(-2)).softmax(-1))


@KINDS
def test_attention_matrix_maps_values_to_the_mean(kind):
    layer, x = kind.make(alpha=0), randn(3, TOKENS, DIM)
    matrix = layer.attention_matrix(x, MASK)
    value = layer.query_key_value(x)[..., 2 * DIM :].unflatten(-1, (HEADS, -1)).transpose(1, 2)
    assert_close(
        layer.out((matrix @ value).transpose(1, 2).flatten(-2))[MASK], layer(x, MASK)[MASK]
    )
    pairs = (MASK[:, None, :, None] & MASK[:, None, None, :]).expand_as(matrix)
    assert (matrix[~pairs] == 0).all()
    assert (matrix[pairs] != 0).all()


@KINDS
@MASKS
def test_at_the_mean_every_form_puts_out_nu(kind, mask):
    x, keep = randn(3, TOKENS, DIM), torch.ones(3, TOKENS).bool() if mask is None else mask
    expected = kind.make(alpha=0)(x, mask)[keep]
    for output, collapsed in (("mean", False), ("draw", False), ("draw", True)):
        with at_mean(), local_posteriors():
            assert_close(kind.make(output=output, collapsed=collapsed)(x, mask)[keep], expected)


@KINDS
@COLLAPSED
def test_draws_have_the_predictive_moments(kind, collapsed):
    """Mean ν and covariance V[z_q | z_k] + σ²I, in closed form and through z_o; heads and columns
    are independent."""
    layer, x = kind.make(output="draw", alpha=0, collapsed=collapsed), randn(1, 3, DIM)
    with torch.no_grad(), draws(20_000), local_posteriors():
        z_q = run(layer, x)["z_q"]["value"][:, 0]
    ((_, _, heads),) = kind.loops(layer, x)
    eye = torch.eye(layer.head_dim, dtype=x.dtype)
    covariance = torch.block_diag(*(torch.kron(predictive, eye) for predictive in heads.predictive))
    assert_moments(z_q.flatten(1), heads.nu.flatten(), covariance)


@KINDS
def test_float32_at_the_papers_noise_needs_no_jitter(kind):
    """σ = 0.1, 64 tokens, two of them equal (`JitterWarning` is an error here), near float64."""
    layer, x = kind.layer(32, 4), F.layer_norm(torch.randn(2, 64, 32), (32,))
    x[:, 1] = x[:, 0]
    z_o = randn(2, 4, 64, 8)

    def evaluate(dtype):
        layer.to(dtype)
        layer.collapsed, layer.output = True, "mean"
        values = [layer(x.to(dtype)), r_of(layer, x.to(dtype))]
        layer.collapsed, layer.output = False, "draw"
        with poutine.condition(data={"z_o": z_o.to(dtype)}):
            nodes = run(layer, x.to(dtype))
        return values + [
            nodes["z_q"]["fn"].mean,
            *(nodes[name]["log_prob"] for name in ("z_o", "z_k", "nu")),
        ]

    for single, double in zip(evaluate(torch.float32), evaluate(torch.float64), strict=True):
        assert single.dtype == torch.float32
        assert_close(single.double(), double, atol=1e-3, rtol=1e-3)
