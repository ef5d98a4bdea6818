"""The sparse CGP layer as a program: loops over examples and heads in float64, its objective, masks and draws."""

import copy
import functools
import math

import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from pyro.nn import PyroModule
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from probattn import SparseCGPAttention, draws, guides, local_sites
from probattn.functional.correlated import Canonical
from probattn.functional.errors import NumericalError
from probattn.handlers import alpha, at_mean, local_posteriors
from probattn.inference import predict
from probattn.inference.elbo import Trace_ELBO, TraceMeanField_ELBO
from probattn.models import Classifier

DIM, HEADS, TOKENS = 6, 2, 5
GUIDES = ["posterior", "prior", "learned"]
COLLAPSED = pytest.mark.parametrize("collapsed", [True, False], ids=["collapsed", "through z_o"])
MASK = torch.tensor([[True] * 5, [True, False, True, True, False], [False, True, False, False, False]])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(dim=DIM, heads=HEADS, *, seed=0, moved=0.2, collapsed=True, **options):
    """A layer, z_o integrated out by default, whose parameters are all away from where they start."""
    torch.manual_seed(seed)
    defaults = {"noise": 0.6, "output": "mean", "alpha": 1.0, "bias": True, "inducing": 3, "inducing_keys": 4}
    defaults["collapsed"] = collapsed
    layer = SparseCGPAttention(dim, heads, **defaults | options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += moved * torch.randn_like(parameter)
    return layer


def kappa(a, b):
    """κ_o entry by entry."""
    return torch.stack([torch.stack([torch.exp(-0.5 * ((x - y) ** 2).sum()) for y in b]) for x in a])


def symmetric(matrix):
    return (matrix + matrix.mT) / 2


class Head:
    """One head of one example without padding, x ``(n, dim)``: each variable a matrix times standard normals."""

    def __init__(self, layer, x, h):
        part = slice(h * layer.head_dim, (h + 1) * layer.head_dim)
        projected = F.linear(x, layer.query_key_value.weight, layer.query_key_value.bias).chunk(3, dim=-1)
        query, key, value = (t[:, part] for t in projected)
        latent = F.linear(x, layer.latent.weight, layer.latent.bias)[:, part]
        (sq, sk), sigma = layer.log_scales[:, h].exp(), layer.log_noise[h].exp()
        if layer.tokens is None:
            m, l = (points[h] for points in layer.inducing)
        else:
            m, l = (mixture @ latent for mixture in layer.inducing)
        n, solve = len(x), torch.linalg.solve
        self.o, self.q, self.k = slice(0, n), slice(n, 2 * n), slice(2 * n, 3 * n)
        k_mm, k_om, k_ll = kappa(m, m), kappa(latent, m), kappa(l, l)
        b_m = k_mm + k_om.T @ k_om / sigma**2
        sizes = [len(l), n, n, len(m), n]
        normals = identity(sum(sizes)).split(sizes)
        z_l = torch.linalg.cholesky(k_ll) @ normals[0]
        z_k = sk * kappa(key, l) @ solve(k_ll, z_l) + sigma * normals[1]
        z_o = kappa(latent, l) @ solve(k_ll, z_l) + sigma * normals[2]
        z_m = k_mm @ solve(b_m, k_om.T @ z_o) / sigma**2  # (55)
        z_m = z_m + torch.linalg.cholesky(symmetric(k_mm @ solve(b_m, k_mm))) @ normals[3]
        z_q = sq * kappa(query, m) @ solve(k_mm, z_m) + sigma * normals[4]
        whole = torch.cat([z_o, z_q, z_k])
        self.joint = whole @ whole.T
        self.z_k = value  # (34)
        self.nu, self.predictive = self.given([self.q], [self.k], self.z_k)
        self.seen = torch.cat([self.nu, self.z_k])
        self.prior = torch.zeros_like(value), symmetric(self.joint[self.o, self.o])
        if layer.canonical_guide == "learned":  # the learned guide is what the program says at its site, R is not
            q = run(copied(layer, collapsed=False), x.unsqueeze(0))["z_o"]["infer"]["posterior"]
            self.learned = q.mean[0, h], symmetric(covariance(q.covariance)[0, h])

    def pick(self, a, b):
        return torch.cat([torch.cat([self.joint[i, j] for j in b], dim=1) for i in a])

    def given(self, of, on, value):
        """Mean and covariance of some blocks given the values of others."""
        gain = torch.linalg.solve(self.pick(on, on), self.pick(on, of)).T
        return gain @ value, self.pick(of, of) - gain @ self.pick(on, of)

    @property
    def given_keys(self):
        """p(z_o | z_k)."""
        mean, covariance = self.given([self.o], [self.k], self.z_k)
        return mean, symmetric(covariance)

    @property
    def posterior(self):
        """p(z_o | z_q = ν, z_k)."""
        mean, covariance = self.given([self.o], [self.q, self.k], self.seen)
        return mean, symmetric(covariance)

    def log_marginal(self):
        zero = torch.zeros(len(self.seen), dtype=torch.float64)
        return MultivariateNormal(zero, self.pick([self.q, self.k], [self.q, self.k])).log_prob(self.seen.T).sum()

    def drawn(self, guide):
        """The law that z_o is drawn from under that guide."""
        return self.given_keys if guide == "posterior" else getattr(self, guide)

    def evidence(self):
        """log p(z_k)."""
        zero = torch.zeros(len(self.z_k), dtype=torch.float64)
        return MultivariateNormal(zero, symmetric(self.joint[self.k, self.k])).log_prob(self.z_k.T).sum()

    def bound(self, guide, *, collapsed=True):
        """R with that guide of z_o: log p(ν, z_k) − KL(q(z_o) ‖ p(z_o | ν, z_k))."""
        q = getattr(self, guide) if collapsed else self.drawn(guide)
        normals = [
            MultivariateNormal(mean.T, covariance.expand(mean.shape[1], -1, -1))
            for mean, covariance in (q, self.posterior)
        ]
        return self.log_marginal() - kl_divergence(*normals).sum()


def identity(n):
    return torch.eye(n, dtype=torch.float64)


def loops(layer, x, mask=None):
    """For each example: its real tokens and its heads."""
    with torch.no_grad():
        for b in range(len(x)):
            rows = torch.arange(x.shape[1]) if mask is None else mask[b].nonzero().flatten()
            yield b, rows, [Head(layer, x[b, rows], h) for h in range(layer.heads)]


def run(layer, x, mask=None):
    """The layer's sites by their own names, with log densities; ``_RETURN`` is its output."""
    trace = poutine.trace(layer).get_trace(x, mask)
    trace.compute_log_prob()
    return {name.rpartition(".")[2]: node for name, node in trace.nodes.items()}


def copied(layer, **attributes):
    layer = copy.deepcopy(layer)
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer


def r_of(layer, x, mask=None):
    return run(layer, x, mask)["regulariser"]["log_prob"]


def covariance(given):
    return given.factor @ given.factor.mT + torch.diag_embed(given.noise.expand(given.shape))


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"heads": 1}, {"heads": 3}, {"inducing_keys": None}, {"inducing": 7}],
    ids=str,
)
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_layer_is_loops_over_examples_and_heads(options, mask):
    x = randn(3, TOKENS, DIM)
    output, drawn = make(alpha=0, **options)(x, mask), make(alpha=0, **options, output="draw")
    nodes = run(drawn, x, mask)
    law, value = nodes["z_q"]["fn"], nodes["z_q"]["value"]
    for b, rows, heads in loops(drawn, x, mask):
        joined = torch.cat([head.nu for head in heads], dim=-1)
        assert_close(output[b, rows], drawn.out(joined))
        joined = torch.cat([value[b, h, rows] for h in range(drawn.heads)], dim=-1)
        assert_close(nodes["_RETURN"]["value"][b, rows], drawn.out(joined))
        for h, head in enumerate(heads):
            assert_close(law.mean[b, h, rows], head.nu)
            assert_close(covariance(law.covariance)[b, h][rows[:, None], rows], head.predictive)
            assert_close(law.variance[b, h, rows], head.predictive.diagonal().unsqueeze(-1).expand_as(head.nu))


@pytest.mark.parametrize("per", ["scalar", "column", "example"])
@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_closed_regulariser_is_the_bound_in_loops(guide, per, mask):
    layer, x = make(canonical_guide=guide, regulariser_norm=per, alpha=0.7), randn(3, TOKENS, DIM)
    r = r_of(layer, x, mask)
    assert r.shape == (3,)
    for b, rows, heads in loops(layer, x, mask):
        count = {"scalar": DIM * len(rows), "column": DIM, "example": 1}[per]
        assert_close(r[b], 0.7 * sum(head.bound(guide) for head in heads) / count)


@pytest.mark.parametrize("guide", GUIDES)
def test_mixtures_of_tokens_as_inducing_inputs(guide):
    layer, x = make(canonical_guide=guide, regulariser_norm="example", tokens=TOKENS), randn(2, TOKENS, DIM)
    output, r = layer(x), r_of(layer, x)
    for b, _, heads in loops(layer, x):
        assert_close(output[b], layer.out(torch.cat([head.nu for head in heads], dim=-1)))
        assert_close(r[b], sum(head.bound(guide) for head in heads))
    for at, mask in ((x[:, :4], None), (x, MASK[:2])):
        with pytest.raises(ValueError, match="leave tokens out where the length varies"):
            layer(at, mask)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_sites_of_the_program_through_z_o(guide, mask):
    """z_o has its prior and carries its guide; z_k and nu are observed, each with its density given z_o; then z_q."""
    layer, x = make(canonical_guide=guide, collapsed=False, output="draw", alpha=0.7), randn(3, TOKENS, DIM)
    nodes = run(layer, x, mask)
    z_o, posterior = nodes["z_o"]["value"], nodes["z_o"]["infer"]["posterior"]
    z_q = nodes["z_q"]
    assert z_q["infer"]["posterior"] is z_q["fn"]  # so that neither density is computed
    for b, rows, heads in loops(layer, x, mask):
        expected, scale = {"z_o": 0, "nu": 0, "z_k": 0}, 0.7 / (DIM * len(rows))
        for h, head in enumerate(heads):
            drawn = z_o[b, h, rows]
            mean, spread = head.drawn(guide)
            assert_close(posterior.mean[b, h, rows], mean)
            assert_close(posterior.variance[b, h, rows], spread.diagonal().unsqueeze(-1).expand_as(mean))
            expected["z_o"] += MultivariateNormal(torch.zeros_like(drawn.T), head.prior[1]).log_prob(drawn.T).sum()
            expected["z_o"] -= MultivariateNormal(mean.T, spread).log_prob(drawn.T).sum()
            for name, of, seen in (("nu", head.q, head.nu), ("z_k", head.k, head.z_k)):
                mean, spread = head.given([of], [head.o], drawn)
                assert_close(nodes[name]["value"][b, h, rows], seen)
                expected[name] += MultivariateNormal(mean.T, symmetric(spread)).log_prob(seen.T).sum()
            mean, spread = head.given([head.q], [head.o], drawn)
            assert_close(z_q["fn"].mean[b, h, rows], mean)
            assert_close(covariance(z_q["fn"].covariance)[b, h][rows[:, None], rows], spread)
        joined = torch.cat([z_q["value"][b, h, rows] for h in range(HEADS)], dim=-1)
        assert_close(nodes["_RETURN"]["value"][b, rows], layer.out(joined))
        for name in ("nu", "z_k"):
            assert_close(nodes[name]["log_prob"][b], scale * expected[name])
        log_q = scale * posterior.log_prob(z_o)[b]  # padding, drawn as plain noise, counts alike in both
        assert_close(nodes["z_o"]["log_prob"][b] - log_q, scale * expected["z_o"])
        assert_close(
            torch.as_tensor(nodes["z_o"]["infer"]["weight"]).expand(3)[b].double(), torch.tensor(scale).double()
        )


def kinds(layer, x):
    nodes = run(layer, x)
    return {name: "observed" if n["is_observed"] else "latent" for name, n in nodes.items() if n["type"] == "sample"}


def test_names_and_kinds_of_sites():
    x = randn(2, TOKENS, DIM)
    through = {"z_o": "latent", "z_k": "observed", "nu": "observed"}
    assert kinds(make(), x) == {"regulariser": "observed"}
    assert kinds(make(output="draw"), x) == {"regulariser": "observed", "z_q": "latent"}
    assert kinds(make(alpha=0, output="draw"), x) == {"z_q": "latent"}
    assert kinds(make(alpha=0), x) == {}
    assert kinds(make(collapsed=False), x) == through
    assert kinds(make(collapsed=False, output="draw"), x) == through | {"z_q": "latent"}
    assert kinds(make(collapsed=False, alpha=0, output="draw"), x) == {"z_o": "latent", "z_q": "latent"}
    assert kinds(make(collapsed=False, alpha=0), x) == {"z_o": "latent"}
    assert kinds(SparseCGPAttention(DIM, HEADS).double(), x) == through | {"z_q": "latent"}
    network = PyroModule[torch.nn.Sequential](torch.nn.Identity(), make(collapsed=False, output="draw"))
    nodes = poutine.trace(network).get_trace(x).nodes
    ours = {name: node for name, node in nodes.items() if node["type"] == "sample"}
    assert list(ours) == ["1.z_o", "1.z_k", "1.nu", "1.z_q"]
    for name, node in ours.items():
        assert node["infer"]["local"]
        assert node["fn"].batch_shape == (2,)
        assert bool(node["infer"].get("regulariser")) == (name != "1.z_q")
        assert bool(node["infer"].get("is_auxiliary")) == node["is_observed"]
    assert make().sites() == make(collapsed=False).sites() == {}


@COLLAPSED
def test_the_regulariser_is_left_out_where_nobody_listens(collapsed):
    layer, x = make(output="draw", collapsed=collapsed), randn(2, TOKENS, DIM)
    with poutine.mask(mask=False):
        nodes = poutine.trace(layer).get_trace(x).nodes
    names = [name for name, node in nodes.items() if node["type"] == "sample"]
    assert names == (["z_q"] if collapsed else ["z_o", "z_q"])


class Program(PyroModule):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, mask=None):
        with local_sites(batch=len(x), num_data=len(x)):
            return self.layer(x, mask)


def loss_of(elbo, layer, *inputs):
    model = Program(layer)
    return elbo().differentiable_loss(model, guides.for_model(model), *inputs)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("output", ["mean", "draw"])
@pytest.mark.parametrize("guide", GUIDES)
def test_both_elbos_are_alpha_r_in_closed_form(guide, output, elbo):
    """A draw of the output costs nothing: it is drawn from its own predictive."""
    layer, x = make(canonical_guide=guide, output=output, regulariser_norm="example"), randn(3, TOKENS, DIM)
    expected = sum(head.bound(guide) for _, _, heads in loops(layer, x, MASK) for head in heads)
    assert_close(loss_of(elbo, layer, x, MASK), -expected)
    with alpha(0.3):
        assert_close(loss_of(elbo, layer, x, MASK), -0.3 * expected)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("guide", GUIDES)
def test_both_elbos_are_alpha_r_in_expectation_through_z_o(guide, elbo):
    """The bound of its guide, below the log marginal; that of the output, drawn or not, costs nothing."""
    layer, copies = (
        make(canonical_guide=guide, collapsed=False, output="draw", regulariser_norm="example", moved=0.1),
        500,
    )
    x, mask = randn(1, TOKENS, DIM).expand(copies, -1, -1), MASK[1:2].expand(copies, -1)
    ((_, _, heads),) = loops(layer, x[:1], mask[:1])
    expected = sum(head.bound(guide, collapsed=False) for head in heads)
    assert expected < sum(head.log_marginal() for head in heads)
    torch.manual_seed(0)
    with torch.no_grad():
        estimates = -torch.stack([loss_of(elbo, layer, x, mask) for _ in range(20)]) / copies
    error = estimates.std() / 20**0.5
    assert error < 0.02 * expected.abs()
    assert (estimates.mean() - expected).abs() < 4 * error
    with alpha(0.3):
        scaled = -loss_of(elbo, layer, x, mask) / copies
    assert (scaled - 0.3 * expected).abs() < 0.3 * 5 * estimates.std()


def test_every_draw_from_the_posterior_gives_the_weighted_evidence_of_the_keys():
    """w [log p(z_k | z_o) + log p(z_o) − log q(z_o)] = w log p(z_k) whatever z_o: Bayes, to rounding."""
    layer, x = make(collapsed=False, alpha=0.7), randn(3, TOKENS, DIM)
    model = Program(layer)
    for seed in range(3):
        torch.manual_seed(seed)
        elbo = Trace_ELBO()
        elbo.differentiable_loss(model, guides.for_model(model), x, MASK)
        model_nodes, guide_nodes = (trace.nodes for trace in elbo.traces)
        terms = model_nodes["layer.z_k"]["log_prob"] + model_nodes["layer.z_o"]["log_prob"]
        terms = terms - guide_nodes["layer.z_o"]["log_prob"]
        for b, rows, heads in loops(layer, x, MASK):
            assert_close(terms[b], 0.7 / (DIM * len(rows)) * sum(head.evidence() for head in heads))


@COLLAPSED
def test_alpha_of_layer_and_handler_multiply(collapsed):
    x = randn(3, TOKENS, DIM)

    def log_probs(weight, handled):
        torch.manual_seed(1)
        layer = make(alpha=weight, collapsed=collapsed, canonical_guide="learned", output="draw")
        with alpha(handled):
            nodes = run(layer, x, MASK)
        return {name: node["log_prob"] for name, node in nodes.items() if node["type"] == "sample"}

    once, twice = log_probs(1.0, 1.0), log_probs(0.5, 0.3)
    assert len(once) == (2 if collapsed else 4)
    for name, log_prob in once.items():
        assert_close(twice[name], log_prob if name == "z_q" else 0.15 * log_prob)
    off = log_probs(0.5, 0.0)
    assert all((off[name] == 0).all() for name in off if name != "z_q")


def test_learned_guide_starts_at_the_prior():
    x = randn(3, TOKENS, DIM)
    start = SparseCGPAttention(DIM, HEADS, canonical_guide="learned", output="mean").double()
    site = run(start, x, MASK)["z_o"]
    assert_close(site["infer"]["posterior"].mean, torch.zeros_like(site["value"]))
    drawn, prior = covariance(site["infer"]["posterior"].covariance), covariance(site["fn"].covariance)
    assert_close(drawn, prior, rtol=1e-4, atol=1e-4)
    options = {"output": "mean", "collapsed": True}
    layers = [
        SparseCGPAttention(DIM, HEADS, canonical_guide=guide, **options).double() for guide in ("prior", "learned")
    ]
    layers[1].load_state_dict(layers[0].state_dict(), strict=False)
    assert_close(r_of(layers[1], x, MASK), r_of(layers[0], x, MASK), rtol=1e-4, atol=0)


@pytest.mark.parametrize("garbage", [1e6, math.nan, math.inf])
@COLLAPSED
@pytest.mark.parametrize("guide", GUIDES)
def test_padding_changes_nothing(guide, collapsed, garbage):
    layer, x = make(canonical_guide=guide, collapsed=collapsed, output="draw"), randn(3, TOKENS, DIM)
    other = x.where(MASK.unsqueeze(-1), garbage)

    def outcome(x):
        torch.manual_seed(0)
        layer.zero_grad()
        x = x.clone().requires_grad_()
        nodes = run(layer, x, MASK)
        output, law = nodes["_RETURN"]["value"], nodes["z_q"]["fn"]
        torch.manual_seed(0)
        loss = loss_of(Trace_ELBO, layer, x, MASK)
        (loss + output[MASK].square().sum()).backward()
        grads = [p.grad for p in layer.parameters() if p.requires_grad]
        assert (x.grad[~MASK] == 0).all()
        return output[MASK], law.mean.mT[MASK[:, None, None].expand_as(law.mean.mT)], loss.detach(), *grads, x.grad

    assert_close(outcome(other), outcome(x))


@pytest.mark.parametrize("guide", GUIDES)
def test_a_padded_sentence_is_the_sentence_alone(guide):
    layer, x = make(canonical_guide=guide, output="draw", alpha=0.7), randn(3, TOKENS, DIM)
    padded = run(layer, x, MASK)
    for b in range(3):
        alone = run(layer, x[b : b + 1, MASK[b]])
        law, other = padded["z_q"]["fn"], alone["z_q"]["fn"]
        rows = MASK[b].nonzero().flatten()
        assert_close(law.mean[b, :, rows], other.mean[0])
        assert_close(covariance(law.covariance)[b][:, rows[:, None], rows], covariance(other.covariance)[0])
        assert_close(padded["regulariser"]["log_prob"][b], alone["regulariser"]["log_prob"][0])
    mean = make(canonical_guide=guide, alpha=0)
    for b in range(3):
        assert_close(mean(x, MASK)[b, MASK[b]], mean(x[b : b + 1, MASK[b]])[0])


@pytest.mark.parametrize("guide", GUIDES)
def test_permuting_tokens_permutes_the_output(guide):
    layer, x, order = make(canonical_guide=guide), randn(3, TOKENS, DIM), [3, 0, 4, 2, 1]
    assert_close(layer(x[:, order]), layer(x)[:, order])
    assert_close(r_of(layer, x[:, order], MASK[:, order]), r_of(layer, x, MASK))
    drawn = make(canonical_guide=guide, output="draw")
    straight, permuted = (run(drawn, at)["z_q"]["fn"].covariance for at in (x, x[:, order]))
    assert_close(covariance(permuted), covariance(straight)[..., order, :][..., order])


@pytest.mark.parametrize("guide", GUIDES)
def test_leading_draws_pass_through(guide):
    layer, x = make(canonical_guide=guide, output="draw"), randn(4, 2, 3, TOKENS, DIM)
    nodes = run(layer, x, MASK)
    assert nodes["_RETURN"]["value"].shape == x.shape
    for s in range(4):
        for p in range(2):
            one = run(layer, x[s, p], MASK)
            assert_close(nodes["z_q"]["fn"].mean[s, p], one["z_q"]["fn"].mean)
            assert_close(nodes["regulariser"]["log_prob"][s, p], one["regulariser"]["log_prob"])
    nodes = run(make(canonical_guide=guide, output="draw", collapsed=False), x, MASK)
    assert all(nodes[name]["log_prob"].shape == (4, 2, 3) for name in ("z_o", "z_k", "nu", "z_q"))


def test_non_contiguous_one_head_batch_of_one_and_one_token():
    layer = make(heads=1)
    x = randn(DIM, TOKENS, 1).permute(2, 1, 0)
    assert not x.is_contiguous()
    for at in (x, x[:, :1]):
        ((_, _, heads),) = loops(layer, at)
        assert_close(layer(at)[0], layer.out(heads[0].nu))
        assert_close(r_of(layer, at)[0], heads[0].log_marginal() / at.numel())


@COLLAPSED
@pytest.mark.parametrize("guide", GUIDES)
def test_every_parameter_gets_a_gradient_from_the_regulariser_alone(guide, collapsed):
    layer = make(canonical_guide=guide, collapsed=collapsed, learn_noise=True)
    loss_of(Trace_ELBO, layer, randn(3, TOKENS, DIM), MASK).backward()
    for name, parameter in layer.named_parameters():
        if name.startswith("out."):
            assert parameter.grad is None
        else:
            assert (parameter.grad.abs() > 1e-8).all(), name


@COLLAPSED
@pytest.mark.parametrize("output", ["mean", "draw"])
def test_every_parameter_of_the_program_gets_a_gradient_from_the_output(output, collapsed):
    layer = make(output=output, learn_noise=True, collapsed=collapsed)
    with local_posteriors():
        output = layer(randn(3, TOKENS, DIM), MASK)
    output.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert (parameter.grad.abs() > 1e-8).all(), name


def test_inducing_inputs_start_at_latent_inputs_of_vectors_seen():
    """Of all tokens of the stream, carried along the path, other ones for each head; moved a little."""
    layer, x = make(inducing=3, inducing_keys=40), randn(2, 9, DIM)
    before = [points.clone() for points in layer.inducing]
    norm = torch.nn.LayerNorm(DIM).double()
    layer.follow(norm)
    torch.manual_seed(0)
    layer.initialise(x)
    latent = layer.latent(norm(x)).flatten(0, 1).unflatten(-1, (HEADS, -1)).detach()
    for points, old, number in zip(layer.inducing, before, (3, 40), strict=True):
        assert points.shape == old.shape == (HEADS, number, DIM // HEADS)
        nearest = [torch.cdist(points[h].detach(), latent[:, h]).min(-1) for h in range(HEADS)]
        assert max(distance.max() for distance, _ in nearest) < 5e-2 * latent.std()
        assert len(nearest[0].indices.unique()) == min(number, 18)
        assert (nearest[0].indices != nearest[1].indices).any()
    mixing = make(tokens=9)
    before = [mixture.clone() for mixture in mixing.inducing]
    mixing.initialise(x)
    assert_close(list(mixing.inducing), before)


class NoSquare(TorchDispatchMode):
    """Fails where an operation, in the backward pass too, makes a tensor with N rows and N columns, or N² entries."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens, self.seen = tokens, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, torch.Tensor):
                self.seen += 1
                long = sum(size >= self.tokens for size in tensor.shape)
                fine = long < 2 and tensor.numel() < self.tokens**2
                assert fine, f"{function} made {tuple(tensor.shape)}"
        return output


@COLLAPSED
@pytest.mark.parametrize("guide", GUIDES)
def test_nothing_is_quadratic_in_the_number_of_tokens(guide, collapsed):
    torch.manual_seed(0)
    layer = SparseCGPAttention(8, 2, inducing=8, canonical_guide=guide, collapsed=collapsed)
    x, mask = torch.randn(1, 4096, 8), torch.arange(4096).unsqueeze(0) < 4000
    with NoSquare(4096) as watch:
        loss_of(Trace_ELBO, layer, x, mask).backward()
        layer(x, mask).square().mean().backward()
    assert watch.seen > 500


def test_noise_is_sigma_and_is_learned_on_request():
    layer = SparseCGPAttention(DIM, HEADS, noise=0.3)
    assert_close(layer.law(layer._given(*[torch.zeros(1, HEADS, 2, 3)] * 4, None)).noise, torch.full((HEADS,), 0.09))
    assert not layer.log_noise.requires_grad
    assert SparseCGPAttention(DIM, HEADS, learn_noise=True).log_noise.requires_grad
    assert (layer.log_scales == 0).all()


def test_attention_matrix_maps_values_to_the_mean():
    layer, x = make(alpha=0), randn(3, TOKENS, DIM)
    matrix = layer.attention_matrix(x, MASK)
    value = layer.query_key_value(x)[..., 2 * DIM :].unflatten(-1, (HEADS, -1)).transpose(1, 2)
    assert_close(layer.out((matrix @ value).transpose(1, 2).flatten(-2))[MASK], layer(x, MASK)[MASK])
    pairs = (MASK[:, None, :, None] & MASK[:, None, None, :]).expand_as(matrix)
    assert (matrix[~pairs] == 0).all()
    assert (matrix[pairs] != 0).all()


@COLLAPSED
def test_draws_have_the_predictive_moments(collapsed):
    """Mean ν and covariance V[z_q | z_k] + σ²I, within 5 standard errors; heads and columns are independent.

    So it is in closed form and through z_o drawn from p(z_o | z_k).
    """
    layer, x, number = make(output="draw", alpha=0, collapsed=collapsed), randn(1, 3, DIM), 20_000
    torch.manual_seed(0)
    with torch.no_grad(), draws(number), local_posteriors():
        nodes = run(layer, x)
    z_q = nodes["z_q"]["value"]
    assert z_q.shape == (number, 1, HEADS, 3, layer.head_dim)
    assert_close(nodes["_RETURN"]["value"], layer.out(z_q.transpose(-3, -2).flatten(-2)))
    ((_, _, heads),) = loops(layer, x)
    loc = torch.cat([head.nu.flatten() for head in heads])
    columns = identity(layer.head_dim)
    expected = torch.block_diag(*(torch.kron(head.predictive, columns) for head in heads))
    centred, variance = z_q.flatten(1) - loc, expected.diagonal()
    assert (centred.mean(0).abs() < 5 * (variance / number).sqrt()).all()
    error = ((variance[:, None] * variance + expected**2) / number).sqrt()
    assert ((centred.T @ centred / number - expected).abs() < 5 * error).all()


@pytest.mark.parametrize("output", ["mean", "draw"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_at_the_mean_both_forms_put_out_nu(output, mask):
    x = randn(3, TOKENS, DIM)
    expected = make(alpha=0)(x, mask)
    keep = torch.ones(3, TOKENS).bool() if mask is None else mask
    with at_mean(), local_posteriors():
        assert_close(make(output=output, collapsed=False)(x, mask)[keep], expected[keep])
        assert_close(make(output=output)(x, mask)[keep], expected[keep])


def test_a_padded_sentence_draws_what_it_draws_alone():
    """Given z_o, and the law of z_o itself."""
    layer, x = make(collapsed=False, output="draw", alpha=0.7), randn(3, TOKENS, DIM)
    z_o = randn(3, HEADS, TOKENS, DIM // HEADS, seed=5).where(MASK[:, None, :, None], 0.0)
    with poutine.condition(data={"z_o": z_o}):
        padded = run(layer, x, MASK)
    for b in range(3):
        rows = MASK[b].nonzero().flatten()
        with poutine.condition(data={"z_o": z_o[b : b + 1, :, rows]}):
            alone = run(layer, x[b : b + 1, rows])
        for name in ("z_o", "z_k", "nu"):
            assert_close(padded[name]["log_prob"][b], alone[name]["log_prob"][0])
        q, other = padded["z_o"]["infer"]["posterior"], alone["z_o"]["infer"]["posterior"]
        assert_close(q.mean[b, :, rows], other.mean[0])
        assert_close(q.variance[b, :, rows], other.variance[0])
        assert_close(padded["z_q"]["fn"].mean[b, :, rows], alone["z_q"]["fn"].mean[0])


def test_examples_are_drawn_on_their_own():
    x = randn(1, TOKENS, DIM).expand(3, -1, -1)
    with draws(2), local_posteriors():
        nodes = run(make(collapsed=False, output="draw"), x)
    for name in ("z_o", "z_q"):
        assert nodes[name]["value"].shape == (2, 3, HEADS, TOKENS, DIM // HEADS)
        assert nodes[name]["value"].flatten(0, 1)[:, 0, 0, 0].unique().numel() == 6


def test_without_alpha_z_o_is_drawn_from_its_guide_and_weighs_nothing():
    layer, x = make(collapsed=False, alpha=0, output="draw", canonical_guide="learned"), randn(3, TOKENS, DIM)
    with local_posteriors():
        site = run(layer, x, MASK)["z_o"]
    assert (site["log_prob"] == 0).all()
    assert site["value"].std() > 0.1
    assert loss_of(Trace_ELBO, layer, x, MASK) == loss_of(TraceMeanField_ELBO, layer, x, MASK) == 0


def hand_computed(layer, x, z_o):
    """Output A_q z_o of each example in loops."""
    outputs = []
    for b, _, heads in loops(layer, x):
        means = [head.given([head.q], [head.o], z_o[b, h])[0] for h, head in enumerate(heads)]
        outputs.append(layer.out(torch.cat(means, dim=-1)))
    return torch.stack(outputs)


@pytest.mark.parametrize("intervene", [poutine.condition, poutine.do])
def test_interventions_on_z_o_reach_the_output(intervene):
    layer, x = make(collapsed=False), randn(3, TOKENS, DIM)
    for seed in (1, 2):
        z_o = randn(3, HEADS, TOKENS, DIM // HEADS, seed=seed)
        assert_close(intervene(layer, data={"z_o": z_o})(x), hand_computed(layer, x, z_o))


@pytest.mark.parametrize("intervene", [poutine.condition, poutine.do])
def test_interventions_on_z_o_reach_predictions(intervene):
    """Of the mean output they are the softmax of the head of A_q z_o; a drawn output keeps its noise about it."""
    x, values = randn(3, TOKENS, DIM), [randn(3, HEADS, TOKENS, DIM // HEADS, seed=seed) for seed in (1, 2)]
    for output in ("mean", "draw"):
        layer = make(collapsed=False, output=output)
        model = Classifier(Network(layer), num_data=3)
        free = predict(model, guides.for_model(model), x, num_samples=4)
        assert (free.mutual_information > 1e-4).all()
        for z_o in values:
            torch.manual_seed(0)
            with intervene(data={"network.layer.z_o": z_o}):
                found = predict(model, guides.for_model(model), x, num_samples=80, keep_draws=True)
            with torch.no_grad():
                expected = model.network.head(hand_computed(layer, x, z_o)[:, 0]).softmax(-1)
            if output == "mean":
                assert_close(found.probs, expected)
            else:
                assert found.draws.shape == (80, 3, 3)
                assert (found.mutual_information > 1e-4).all()
                assert (found.probs - expected).abs().max() < 0.15  # noise of z_q | z_o, through a softmax
            assert (found.probs - free.probs).abs().max() > 0.02


class Shifted(torch.nn.Module):
    """A guide of one's own: the prior about a mean that is linear in the token, as `Canonical` or as a distribution."""

    def __init__(self, dim, heads, *, plain):
        super().__init__()
        self.linear, self.heads, self.plain = torch.nn.Linear(dim, dim), heads, plain

    def forward(self, law, x):
        loc = self.linear(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
        if self.plain:
            return dist.Normal(loc, 0.5).to_event(3)
        return Canonical(loc, law.prior)


@pytest.mark.parametrize("plain", [True, False], ids=["distribution", "canonical"])
def test_a_guide_of_ones_own(plain):
    """z_o is drawn about its mean, both ELBOs agree with its bound in expectation, and it is trained."""
    guide = functools.partial(Shifted, plain=plain)
    layer, copies = (
        make(collapsed=False, canonical_guide=guide, output="draw", regulariser_norm="example", moved=0.1),
        500,
    )
    assert layer.canonical_guide == "Shifted"
    x = randn(1, TOKENS, DIM)
    q = run(layer, x)["z_o"]["infer"]["posterior"]
    loc = layer.canonical.linear(x).detach().unflatten(-1, (HEADS, -1)).transpose(-3, -2)
    assert_close(q.mean, loc)
    ((_, _, heads),) = loops(layer, x)
    for h, head in enumerate(heads):
        head.own = loc[0, h], 0.25 * identity(TOKENS) if plain else head.prior[1]
    expected = sum(head.bound("own") for head in heads)
    for elbo in (Trace_ELBO, TraceMeanField_ELBO):
        torch.manual_seed(0)
        with torch.no_grad():
            losses = torch.stack([loss_of(elbo, layer, x.expand(copies, -1, -1)) for _ in range(20)]) / copies
        assert (losses.mean() + expected).abs() < 4 * losses.std() / 20**0.5
        assert losses.std() < 0.05 * expected.abs()
        layer.zero_grad()
        loss_of(elbo, layer, x).backward()
        assert all((p.grad.abs() > 0).any() for p in layer.canonical.parameters())


class Network(PyroModule):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, torch.nn.Linear(layer.dim, 3).double()

    def forward(self, x, mask=None):
        return self.head(self.layer(x, mask)[..., 0, :])


@COLLAPSED
def test_predict_is_deterministic_with_the_collapsed_mean_and_spread_with_draws(collapsed):
    x = randn(3, TOKENS, DIM)
    for output in ("mean", "draw"):
        model = Classifier(Network(make(output=output, collapsed=collapsed)), num_data=3)
        with torch.no_grad():
            logits = model.network.head(make(alpha=0)(x)[:, 0])
        first, second = (predict(model, guides.for_model(model), x, num_samples=4) for _ in range(2))
        assert model.network.layer.is_stochastic() == (output == "draw" or not collapsed)
        if model.network.layer.is_stochastic():
            assert (first.mutual_information > 1e-4).all()
            assert ((second.probs - first.probs).abs() > 1e-6).all()
        else:
            assert_close(first.probs, logits.softmax(-1))
            assert_close(second.probs, first.probs)
            assert (first.mutual_information < 1e-9).all()


def test_float32_at_the_papers_noise():
    """σ = 0.1, 64 tokens, two of them equal: no jitter (`JitterWarning` is an error here), near float64."""
    torch.manual_seed(0)
    layer = SparseCGPAttention(32, 4, output="mean", collapsed=True)
    x = F.layer_norm(torch.randn(2, 64, 32), (32,))
    x[:, 1] = x[:, 0]
    output, r = layer(x), r_of(layer, x)
    z_o = randn(2, 4, 64, 8).float()

    def through(dtype):
        drawn = copied(layer, collapsed=False, output="draw")
        with poutine.condition(data={"z_o": z_o.to(dtype)}):
            nodes = run(drawn, x.to(dtype))
        return [nodes["z_q"]["fn"].mean, *(nodes[name]["log_prob"] for name in ("z_o", "z_k", "nu"))]

    single = through(torch.float32)
    layer.double()
    for one, two in zip(single, through(torch.float64), strict=True):
        assert_close(one.double(), two, atol=1e-3, rtol=1e-3)
    assert output.dtype == torch.float32
    assert_close(output.double(), layer(x.double()), atol=1e-3, rtol=1e-3)
    assert_close(r.double(), r_of(layer, x.double()), atol=1e-3, rtol=1e-3)


def test_nan_names_the_layer():
    network = PyroModule[torch.nn.Sequential](torch.nn.Identity(), make())
    x = randn(2, TOKENS, DIM)
    x[1, 3, 2] = math.nan
    with pytest.raises(NumericalError, match="SparseCGPAttention '1'"):
        network(x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"canonical_guide": "map"}, "canonical_guide must be callable or one of posterior, prior, learned, got 'map'"),
        (
            {"canonical_guide": Shifted},
            "collapsed=True has R in closed form for guides posterior, prior, learned alone",
        ),
        ({"output": "sample"}, "output must be one of mean, draw, got 'sample'"),
        ({"regulariser_norm": "token"}, "regulariser_norm must be one of scalar, column, example, got 'token'"),
        ({"noise": 0.0}, "noise > 0"),
        ({"noise": -0.1}, "noise > 0"),
        ({"alpha": -1.0}, "alpha ≥ 0"),
        ({"heads": 4}, "multiple of heads"),
        ({"inducing": 0}, "inducing and inducing_keys must be positive"),
        ({"inducing_keys": 0}, "inducing and inducing_keys must be positive"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("method", ["forward", "attention_matrix"])
@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (randn(2, 5, DIM + 1), None, "project x first"),
        (randn(5, DIM), None, "batch, tokens, 6"),
        (randn(2, 5, DIM), torch.ones(2, 4).bool(), "boolean mask"),
        (randn(2, 5, DIM), torch.ones(2, 5), "boolean mask"),
        (randn(2, 5, DIM), torch.tensor([[True] * 5, [False] * 5]), r"rows \[1\]"),
    ],
)
def test_bad_input_is_named(method, x, mask, message):
    with pytest.raises(ValueError, match=message):
        getattr(make(), method)(x, mask)


def test_signature_holds_what_changes_the_output_and_no_more():
    assert make().signature() == make(canonical_guide="prior").signature()
    assert make(collapsed=False).signature() not in (
        make().signature(),
        make(collapsed=False, canonical_guide="prior").signature(),
    )
    assert make().signature() != make(output="draw").signature()
