"""RFF-GPA and RFF-CGP against normal equations, exact GPs, GPyTorch, and the authors' formulae."""

import copy
import math

import gpytorch
import pyro
import pyro.poutine as poutine
import pytest
import torch
from correlated_reference import DIM, HEADS, MASK, TOKENS, phi, r_of
from correlated_reference import Fourier as FourierKind
from correlated_reference import run as run_layer
from gpytorch.kernels import RFFKernel, ScaleKernel
from sampling import assert_moments, randn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from probattn import (
    AnchoredAttention,
    RFFCGPAttention,
    RFFGPAttention,
    draws,
    local_posteriors,
    priors,
)
from probattn.site_info import info_of

FORMS = pytest.mark.parametrize(
    "options",
    [
        {"features": 2},
        {"features": 12},
        {"features": 12, "symmetric": False, "variance": 0.7},
        {"features": 4, "frequencies": "equal", "lengthscale": 2.0},
        {"features": 12, "frequencies": "independent", "bias": True},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)


def make(**options):
    """A layer whose parameters are all away from their initial values."""
    torch.manual_seed(0)
    layer = RFFGPAttention(DIM, HEADS, **{"noise": 0.6} | options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return layer


def heads_of(layer, x):
    """Φ_q, Φ_k ``(H, n, M)`` and V of one example without padding, and σ²."""
    projection = layer.query_value if layer.symmetric else layer.query_key_value
    parts = projection(x).unflatten(-1, (-1, HEADS, DIM // HEADS)).permute(1, 2, 0, 3)
    sigma2 = layer.log_noise.exp()[:, None, None] ** 2
    return phi(layer, parts[0]), phi(layer, parts[-2]), parts[-1], sigma2


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: make(features=12),
        lambda: make(features=2, symmetric=False),
        lambda: make(features=4, frequencies="equal"),
        lambda: AnchoredAttention(DIM, HEADS, anchors=3, bias=True).double(),
    ],
)
def test_the_attention_matrix_maps_values_to_the_mean_output(layer, mask):
    layer, x = layer(), randn(3, TOKENS, DIM)
    matrix = layer.attention_matrix(x, mask)
    value = layer.project(x)[-1]
    output = layer.out((matrix @ value).transpose(1, 2).flatten(-2))
    real = torch.ones(3, TOKENS).bool() if mask is None else mask
    assert_close(output[real], layer(x, mask)[real])
    pairs = (real[:, None, :, None] & real[:, None, None, :]).expand_as(matrix)
    assert (matrix[~pairs] == 0).all()
    assert (matrix[pairs] != 0).all()


def normal_equations(layer, x):
    """A, E[W | V] by explicit inverses, and what they need."""
    query, key, value, sigma2 = heads_of(layer, x)
    a = key.mT @ key + sigma2 * torch.eye(key.shape[-1], dtype=x.dtype)
    return query, key, value, sigma2, a, a.inverse() @ key.mT @ value


@FORMS
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_mean_variance_and_evidence_are_those_of_the_normal_equations(options, mask):
    layer, x = make(**options), randn(3, TOKENS, DIM)
    law = layer.law(layer.checked(x, mask), mask)
    for b in range(len(x)):
        rows = torch.arange(TOKENS) if mask is None else mask[b].nonzero().flatten()
        query, key, value, sigma2, a, w = normal_equations(layer, x[b, rows])
        assert_close(law.mean[b][:, rows], query @ w)
        variance = (sigma2 * query @ a.inverse() @ query.mT).diagonal(dim1=-2, dim2=-1)
        assert_close(law.variance[b][:, rows], variance)
        covariance = key @ key.mT + sigma2 * torch.eye(len(rows), dtype=x.dtype)
        columns = MultivariateNormal(torch.zeros_like(value.mT), covariance.unsqueeze(-3))
        assert_close(law.evidence[b], columns.log_prob(value.mT).sum(-1))
        output = layer.out(layer.join_heads(query @ w))
        assert_close(layer(x, mask)[b, rows], output)


@FORMS
def test_w_has_its_exact_posterior_and_the_papers_kl(options):
    layer, x = make(output="draw", **options), randn(3, TOKENS, DIM)
    with pyro.plate("examples", len(x)):
        trace = poutine.trace(local_posteriors(layer)).get_trace(x)
    trace.compute_log_prob()
    with pyro.plate("examples", len(x)):
        posterior = info_of(poutine.trace(layer).get_trace(x).nodes["w"]).posterior
    for b in range(len(x)):
        _, key, _, sigma2, a, w = normal_equations(layer, x[b])
        m, d = w.shape[-2:]
        assert_close(posterior.mean[b], w)
        q = MultivariateNormal(w.mT, (sigma2 * a.inverse()).unsqueeze(-3))
        p = MultivariateNormal(torch.zeros_like(w.mT), torch.eye(m, dtype=x.dtype))
        assert_close(posterior.variance[b], q.variance.mT)
        assert_close(-trace.nodes["w_kl"]["log_prob"][b], kl_divergence(q, p).sum())
        trace_term = d * (sigma2 * a.inverse()).diagonal(dim1=-2, dim2=-1).sum(-1)
        log_det = m * sigma2.log().flatten() - a.logdet()
        paper = 0.5 * (trace_term + w.square().sum((-2, -1)) - m * d - d * log_det)
        assert_close(-trace.nodes["w_kl"]["log_prob"][b], paper.sum())


@pytest.mark.parametrize("features", [2, 8])
def test_draws_have_the_moments_of_the_posterior(features):
    layer, x = make(output="draw", features=features), randn(1, 3, DIM)
    layer.out = torch.nn.Identity()
    with torch.no_grad(), draws(20_000):
        sampled = local_posteriors(layer)(x)[:, 0]
    query, _, _, sigma2, a, w = normal_equations(layer, x[0])
    sampled = sampled.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    for head in range(HEADS):
        covariance = (sigma2 * query @ a.inverse() @ query.mT)[head]
        of_columns = torch.kron(covariance, torch.eye(DIM // HEADS, dtype=x.dtype))
        mean = (query @ w)[head].flatten()
        assert_moments(sampled[:, head].flatten(1), mean, of_columns)


KERNELS = {
    "orthogonal": lambda d: (-0.5 * d.square().sum(-1)).exp(),
    "independent": lambda d: (-0.5 * d.square().sum(-1)).exp(),
    "normal": lambda d: (-0.5 * d.square().sum(-1)).exp(),
    # the spectral densities of Cauchy and Matérn-3/2 kernels of each dimension
    "laplace": lambda d: (1 / (1 + d.square())).prod(-1),
    "student_t": lambda d: ((1 + 3**0.5 * d.abs()) * (-(3**0.5) * d.abs()).exp()).prod(-1),
}


@pytest.mark.parametrize("name", KERNELS)
def test_on_average_the_features_have_the_kernel_of_their_spectral_density(name):
    """φ(x)ᵀφ(y) over draws of all frequencies, within five standard errors."""
    options = {"features": 10, "lengthscale": 0.8, "variance": 1.7}
    if name in ("orthogonal", "independent"):
        options["frequencies"] = name
    else:
        options["frequencies"] = "sampled"
        options["prior"] = priors.student_t(3) if name == "student_t" else name
    points, values = randn(1, 4, 3), []
    for _ in range(500):
        layer = RFFGPAttention(3, 1, **options).double()
        drawn = layer.sites()["frequencies"].sample() if layer.sites() else None
        features = phi(layer, points, drawn)
        values.append(features @ features.mT)
    values = torch.stack(values).squeeze(1)
    difference = (points[0].unsqueeze(-2) - points[0].unsqueeze(-3)) / 0.8
    error = values.std(0) / len(values) ** 0.5
    assert ((values.mean(0) - 1.7 * KERNELS[name](difference)).abs() <= 5 * error + 1e-6).all()


class Doubled(torch.nn.Linear):
    """A map that is not its weights alone, as adapters of weights are."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (RFFGPAttention, {"symmetric": False}),
        (RFFCGPAttention, {"collapsed": True, "output": "mean"}),
    ],
)
def test_a_map_of_another_class_is_called(cls, options):
    """Fixed frequencies are multiplied with the weights of plain maps alone."""
    torch.manual_seed(0)
    layer, x = cls(DIM, HEADS, features=2, **options).double(), randn(2, TOKENS, DIM)
    twice = copy.deepcopy(layer)
    with torch.no_grad():
        twice.query_key_value.weight.mul_(2)
        layer.query_key_value.__class__ = Doubled
        assert_close(layer(x), twice(x))


@pytest.mark.parametrize("bias", [False, True])
def test_hooks_of_a_projection_run_where_it_is_called(bias):
    layer, calls = RFFGPAttention(DIM, HEADS, features=2, bias=bias).double(), []
    layer.query_value.register_forward_hook(lambda *_: calls.append(1))
    layer(randn(2, TOKENS, DIM))
    assert bool(calls) == bias


def test_agrees_with_the_random_features_of_gpytorch():
    layer, x = make(features=8, symmetric=False), randn(1, TOKENS, DIM)
    law = layer.law(x, None)
    query, key, value = layer.split_heads(layer.query_key_value(x), 3)[:, 0]
    for head in range(HEADS):
        base = RFFKernel(num_samples=4, num_dims=DIM // HEADS, ard_num_dims=DIM // HEADS)
        likelihood = gpytorch.likelihoods.GaussianLikelihood()

        class Exact(gpytorch.models.ExactGP):
            def __init__(self, inputs, targets, likelihood=likelihood, base=base):
                super().__init__(inputs, targets, likelihood)
                self.mean, self.kernel = gpytorch.means.ZeroMean(), ScaleKernel(base)

            def forward(self, inputs):
                law = gpytorch.distributions.MultivariateNormal
                return law(self.mean(inputs), self.kernel(inputs))

        model = Exact(key[head], value[head, :, 1]).double().eval()
        base.randn_weights = layer.fourier.frequencies[head].T
        base.lengthscale = layer.fourier.log_lengthscale[head].exp().detach()
        model.kernel.outputscale = layer.fourier.variance[head].detach()
        likelihood.double().noise = law.noise[head].detach()
        with torch.no_grad(), gpytorch.settings.fast_pred_var(False):
            predicted = model(query[head])
        assert_close(law.mean[0, head, :, 1], predicted.mean, rtol=1e-5, atol=1e-6)
        assert_close(law.variance[0, head], predicted.variance, rtol=1e-4, atol=1e-5)


def test_rff_cgp_has_the_authors_output_and_the_likelihood_of_the_key_path():
    """On the same weights; the authors count the log determinant once, here once a column."""
    kind, x = FourierKind(), randn(3, TOKENS, DIM)
    layer = kind.make(features=8, regulariser="keys", regulariser_norm="example", alpha=0.7)
    output, r = layer(x), r_of(layer, x)
    for b in range(len(x)):
        parts = layer.query_key_value(x[b]).unflatten(-1, (3, HEADS, -1)).permute(1, 2, 0, 3)
        (latent,) = layer.latent(x[b]).unflatten(-1, (1, HEADS, -1)).permute(1, 2, 0, 3)
        (sq, sk), lam = layer.log_scales.exp()[..., None, None], layer.log_noise.exp() ** 2
        q, k, o = sq * phi(layer, parts[0]), sk * phi(layer, parts[1]), phi(layer, latent)
        value, lam, eye = parts[2], lam[:, None, None], torch.eye(8, dtype=x.dtype)
        a_k, a_o = k.mT @ k + lam * eye, o.mT @ o + lam * eye
        u = (value - k @ a_k.inverse() @ k.mT @ value) / lam
        b_o = a_o.inverse() @ o.mT @ o
        assert_close(output[b], layer.out(layer.join_heads(q @ b_o @ k.mT @ u)))
        log_det = (TOKENS - 8) * lam.log().flatten() + a_k.logdet() + TOKENS * math.log(2 * math.pi)
        fit = (value * u).sum((-2, -1))
        assert_close(r[b], -0.7 * 0.5 * (fit + value.shape[-1] * log_det).sum())


@pytest.mark.parametrize("guide", ["posterior", "prior"])
def test_the_key_path_leaves_the_output_out_of_the_program(guide):
    """With the exact posterior log p(z_o) + log p(z_k | z_o) − log q(z_o) is log p(z_k) at any
    draw; other guides reach less on average."""
    kind, x = FourierKind(), randn(3, TOKENS, DIM)
    options = {"regulariser": "keys", "regulariser_norm": "example", "output": "draw"}
    layer = kind.make(collapsed=False, canonical_guide=guide, **options)
    with local_posteriors():
        nodes = run_layer(layer, x)
    assert "nu" not in nodes
    evidence = torch.stack([heads.evidence() for _, _, heads in kind.loops(layer, x)])
    if guide == "posterior":
        z_o = run_layer(layer, x)
        log_q = info_of(z_o["z_o"]).posterior.log_prob(z_o["z_o"]["value"])
        assert_close(z_o["z_o"]["log_prob"] + z_o["z_k"]["log_prob"] - log_q, evidence)
        return
    with torch.no_grad(), local_posteriors():
        bound = run_layer(layer, x[:1].expand(2_000, -1, -1))["z_k"]["log_prob"]
    assert bound.mean() <= evidence[0] + 5 * bound.std() / len(bound) ** 0.5


@pytest.mark.parametrize("intervene", [poutine.condition, poutine.do])
def test_interventions_on_w_and_on_frequencies_reach_the_output(intervene):
    layer, x = make(output="draw", features=4, frequencies="sampled"), randn(3, TOKENS, DIM)
    omega, w = 2 * randn(*layer.fourier.shape), randn(3, HEADS, 4, DIM // HEADS, seed=1)
    output = intervene(layer, data={"frequencies": omega, "w": w})(x)
    for b in range(len(x)):
        query = layer.query_value(x[b]).unflatten(-1, (2, HEADS, -1))[:, 0].transpose(0, 1)
        angles = query @ omega.mT
        pairs = torch.cat([angles.cos(), angles.sin()], -1)
        features = (layer.fourier.log_variance.exp() / 2).sqrt()[:, None, None] * pairs
        assert_close(output[b], layer.out(layer.join_heads(features @ w[b])))
    # Fixed frequencies at that value are the same layer.
    fixed = make(features=4, lengthscale=1.0)
    fixed.load_state_dict(layer.state_dict(), strict=False)
    fixed.fourier.frequencies = omega * layer.fourier.log_lengthscale.exp().unsqueeze(-2)
    free = make(features=4, frequencies="sampled")
    assert_close(intervene(free, data={"frequencies": omega})(x), fixed(x))


@pytest.mark.parametrize("layer", [RFFGPAttention, RFFCGPAttention])
@pytest.mark.parametrize("options", [{"output": "mean"}, {"output": "draw", "alpha": 0.1}])
def test_the_work_is_linear_in_the_number_of_tokens(layer, options):
    layer, work = layer(8, 2, features=4, **options), []
    for tokens in (32, 64, 128):
        with FlopCounterMode(display=False) as counter, local_posteriors():
            poutine.trace(layer).get_trace(torch.randn(2, tokens, 8))
        work.append(counter.get_total_flops())
    assert work[2] - work[1] == 2 * (work[1] - work[0])


@pytest.mark.parametrize("layer", [RFFGPAttention, RFFCGPAttention])
@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"features": 5}, "even"),
        ({"features": 0}, "features"),
        ({"frequencies": "sobol"}, "orthogonal"),
        ({"prior": "laplace"}, "sampled"),
        ({"lengthscale": 0.0}, "lengthscale"),
        ({"variance": -1.0}, "variance"),
        ({"noise": 0.0}, "noise"),
    ],
)
def test_wrong_options_are_refused(layer, options, word):
    with pytest.raises(ValueError, match=word):
        layer(8, 2, **options)


def test_a_guide_that_would_have_no_effect_is_refused():
    with pytest.raises(ValueError, match="canonical_guide"):
        RFFCGPAttention(8, 2, collapsed=True, regulariser="keys", canonical_guide="prior")
